//! When a queue pair is looked at again: its appointment with the device's timers.

use super::turns::QUANTUM;
use super::{Core, Qp};
use crate::adapter::Adapter;
use engine_thread::try_lock;
use link::Batch;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

/// When a timer comes again that found another thread at its queue pair.
const CROWDED: Duration = Duration::from_micros(200);

impl Qp {
    /// A timer set for this QP came due.
    ///
    /// Where another thread has the core, that makes the visit when it has done what it is at: who
    /// posts one long request after the other would have to wake this one after each, and have the
    /// core again before it.
    pub(crate) fn timer(&self, adapter: &Adapter, now: Instant, batch: &mut Batch) {
        match try_lock(&self.core) {
            Some(mut core) => self.come_due(adapter, &mut core, now, Some(batch)),
            None => {
                self.missed.store(true, Relaxed);
                adapter.set_timer(now + CROWDED, self.number);
            }
        }
    }

    pub(super) fn come_due(
        &self,
        adapter: &Adapter,
        core: &mut Core,
        now: Instant,
        batch: Option<&mut Batch>,
    ) {
        if core.destroyed {
            return;
        }
        core.appointment.came();
        if core.holds_back(now) {
            return self.arm(adapter, core);
        }
        let held_back = core.busy_until.take().is_some();
        let due = core.transport.deadline().is_some_and(|deadline| deadline <= now);
        if due || held_back || self.lost_completions() {
            self.run(adapter, core, (now, QUANTUM), batch, |transport, cx| {
                if held_back {
                    transport.end_of_batch(cx);
                }
                transport.timer(cx);
            });
        }
        self.arm(adapter, core);
    }

    pub(super) fn arm(&self, adapter: &Adapter, core: &mut Core) {
        // While it holds back there is nothing else to do for it.
        let deadline = core.busy_until.or_else(|| core.transport.deadline());
        self.meet(adapter, core, deadline);
    }

    /// Has the timer call at `deadline`.
    pub(super) fn meet(&self, adapter: &Adapter, core: &mut Core, deadline: Option<Instant>) {
        let Some(deadline) = deadline else { return };
        if core.appointment.make(deadline) {
            adapter.set_timer(deadline, self.number);
        }
    }
}
