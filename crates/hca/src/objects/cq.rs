//! Completion queues (IBA 11.2.8): a bounded ring of values, armed for one event at a time.

use crate::adapter::event::{AsyncEvent, CompletionSink, CqNotify, EventSource};
use crate::objects::owner::Owner;
use engine_thread::{Uncancelled, lock};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use transport::queues::slots::{Fifo, QueueMemory, SlotLost};
use transport::values::{Completion, EventType};
use transport::{Error, Result};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Armed {
    No,
    Solicited,
    Any,
}

struct Ring {
    completions: Fifo<Completion>,
    /// Entries asked for.
    cqe: u32,
    armed: Armed,
    /// Why it takes no completions any more, once it does not.
    why: &'static str,
}

/// Places of a queue of `cqe` entries: drivers round up to a power of two with one to spare, and
/// programs that ask for the bare minimum live on it (perftest's latency tests ask for 1 and let 2
/// completions wait).
pub(crate) fn places(cqe: u32) -> usize {
    (cqe as usize + 1).next_power_of_two()
}

const OVERRUN: &str = "the completion queue overran: create it larger";
const LOST: &str =
    "the memory that the program gave the completion queue is gone or was overwritten";

/// Who is told of completions, and what.
struct Told {
    notify: Option<Arc<dyn CqNotify>>,
    /// Takes completions at once; the ring stays empty then.
    sink: Option<Arc<dyn CompletionSink>>,
    /// Whether completions carry the time: to read the clock takes a good part of what a short
    /// message does.
    timed: bool,
}

/// A completion queue. `ring` is the innermost lock of the device: nothing else is taken under it.
pub struct Cq {
    owner: Weak<dyn Owner>,
    told: Told,
    ring: Mutex<Ring>,
    /// Completions may wait in the ring: whoever finds that none do need not lock it.
    may_wait: AtomicBool,
    /// How often somebody asked for completions, about.
    polls: AtomicU32,
    /// A completion found no place, or the memory is lost: no other is taken any more (IBA
    /// 11.6.3.2).
    failed: AtomicBool,
    users: AtomicU32,
    this: Weak<Cq>,
}

impl std::fmt::Debug for Cq {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cq").field("cqe", &self.ring().cqe).finish_non_exhaustive()
    }
}

impl Cq {
    /// Whether it is an object of `device`.
    pub(crate) fn is_of(&self, device: &dyn Owner) -> bool {
        std::ptr::addr_eq(self.owner.as_ptr(), device)
    }

    pub(crate) fn new(
        owner: &Arc<dyn Owner>,
        cqe: u32,
        notify: Option<Arc<dyn CqNotify>>,
        memory: Option<QueueMemory>,
        timed: bool,
    ) -> Result<Arc<Cq>> {
        Ok(Cq::with(owner, Told { notify, sink: None, timed }, Fifo::of_cq(cqe, memory)?, cqe))
    }

    /// A queue that keeps nothing: `sink` takes each completion.
    pub(crate) fn handing_over(owner: &Arc<dyn Owner>, sink: Arc<dyn CompletionSink>) -> Arc<Cq> {
        Cq::with(owner, Told { notify: None, sink: Some(sink), timed: true }, Fifo::default(), 0)
    }

    fn with(
        owner: &Arc<dyn Owner>,
        told: Told,
        completions: Fifo<Completion>,
        cqe: u32,
    ) -> Arc<Cq> {
        let ring = Ring { completions, cqe, armed: Armed::No, why: OVERRUN };
        Arc::new_cyclic(|this| Cq {
            owner: Arc::downgrade(owner),
            told,
            ring: Mutex::new(ring),
            may_wait: AtomicBool::new(false),
            polls: AtomicU32::new(0),
            failed: AtomicBool::new(false),
            users: AtomicU32::new(0),
            this: this.clone(),
        })
    }

    fn ring(&self) -> MutexGuard<'_, Ring> {
        lock(&self.ring)
    }

    /// Entries the queue can hold.
    pub fn capacity(&self) -> u32 {
        self.ring().cqe
    }

    /// Takes up to `max` completions. When the ring is empty the caller's thread makes the device's
    /// progress first, so a polling program needs no other thread (D1).
    ///
    /// # Errors
    /// [`Error::Lost`] when it is empty and overran or lost its memory, or the device is lost.
    pub fn poll(&self, max: usize, take: &mut dyn FnMut(&Completion)) -> Result<usize> {
        self.polls.store(self.polls().wrapping_add(1), Relaxed);
        if max == 0 || self.may_wait.load(Relaxed) || self.failed() {
            let taken = self.take(max, take)?;
            if taken > 0 || max == 0 {
                return Ok(taken);
            }
        }
        if let Some(owner) = self.owner.upgrade() {
            owner.adapter().alive()?;
            owner.progress();
        }
        if !self.may_wait.load(Relaxed) && !self.failed() {
            return Ok(0);
        }
        self.take(max, take)
    }

    /// How often somebody asked for completions, about: two threads that ask at once may count as
    /// one.
    pub(crate) fn polls(&self) -> u32 {
        self.polls.load(Relaxed)
    }

    fn take(&self, max: usize, take: &mut dyn FnMut(&Completion)) -> Result<usize> {
        let mut ring = self.ring();
        if max > 0 && ring.completions.is_empty() && self.failed() {
            return Err(Error::Lost(ring.why));
        }
        let mut taken = 0;
        while taken < max {
            match ring.completions.take_front(&mut *take) {
                Some(Ok(())) => {}
                Some(Err(SlotLost)) => {
                    self.fail(ring, LOST);
                    return if taken > 0 { Ok(taken) } else { Err(Error::Lost(LOST)) };
                }
                None => break,
            }
            taken += 1;
        }
        self.may_wait.store(!ring.completions.is_empty(), Relaxed);
        Ok(taken)
    }

    /// Asks for one event at the next completion, or at the next solicited one. The stronger of two
    /// requests holds (IBA 11.4.2.2).
    pub fn arm(&self, solicited_only: bool) {
        if let Some(owner) = self.owner.upgrade() {
            owner.program_sleeps();
        }
        let mut ring = self.ring();
        ring.armed = match (ring.armed, solicited_only) {
            (Armed::Any, _) | (_, false) => Armed::Any,
            _ => Armed::Solicited,
        };
    }

    /// Changes the capacity, and moves to `memory` where the front end provides it.
    ///
    /// # Errors
    /// [`Error::Invalid`] when more completions wait than would fit, or out of the device's limits;
    /// [`Error::NoMemory`] without memory for the new size; [`Error::Lost`] when the old or the new
    /// memory is not there.
    pub fn resize(&self, cqe: u32, memory: Option<QueueMemory>) -> Result<()> {
        let max = self.owner.upgrade().map_or(u32::MAX, |owner| owner.adapter().attr().max_cqe);
        let mut ring = self.ring();
        if cqe == 0 || cqe > max {
            return Err(Error::Invalid("completion queue size out of range"));
        }
        if ring.completions.len() > cqe as usize {
            return Err(Error::Invalid("more completions wait than the new size holds"));
        }
        if ring.completions.move_to(Fifo::of_cq(cqe, memory)?).is_err() {
            self.fail(ring, LOST);
            return Err(Error::Lost(LOST));
        }
        ring.cqe = cqe;
        Ok(())
    }

    /// Ends the queue's life.
    ///
    /// # Errors
    /// [`Error::Busy`] while a QP or SRQ uses it.
    pub fn destroy(&self) -> Result<()> {
        if self.users.load(Relaxed) > 0 {
            return Err(Error::Busy("queue pairs still use the completion queue"));
        }
        // Whoever provided its memory takes it back now.
        self.ring().completions = Fifo::default();
        Ok(())
    }

    pub(crate) fn add_user(&self) {
        self.users.fetch_add(1, Relaxed);
    }

    pub(crate) fn drop_user(&self) {
        self.users.fetch_sub(1, Relaxed);
    }

    /// Forgets completions of a destroyed QP, as a driver cleans its CQ.
    pub(crate) fn forget(&self, qp_num: u32) {
        let mut ring = self.ring();
        if ring.completions.retain(|c| c.qp_num != qp_num).is_err() {
            self.fail(ring, LOST);
        }
    }

    /// Queues a completion; `now_ns` tells the time if it is asked for.
    pub(crate) fn push(&self, mut completion: Completion, now_ns: impl FnOnce() -> u64) {
        if self.told.timed {
            completion.timestamp_ns = now_ns();
        }
        if let Some(sink) = &self.told.sink {
            if !self.failed() && !sink.completed(completion) {
                self.fail(self.ring(), OVERRUN);
            }
            return;
        }
        let mut ring = self.ring();
        if self.failed() {
            return;
        }
        if ring.completions.len() >= places(ring.cqe) {
            return self.fail(ring, OVERRUN);
        }
        let wanted = match ring.armed {
            Armed::No => false,
            Armed::Solicited => completion.solicited,
            Armed::Any => true,
        };
        if ring.completions.push_back(completion).is_err() {
            return self.fail(ring, LOST);
        }
        self.may_wait.store(true, Relaxed);
        if wanted {
            ring.armed = Armed::No;
            drop(ring);
            if let Some(notify) = &self.told.notify {
                let _whole = Uncancelled::begin();
                notify.notify();
                if let Some(owner) = self.owner.upgrade() {
                    owner.adapter().thread.stand_in.event();
                }
            }
        }
    }

    /// Whether completions were lost.
    pub(crate) fn failed(&self) -> bool {
        self.failed.load(Relaxed)
    }

    /// From now on it takes no completions. Tells the program, and has every queue pair that
    /// completes here look: it cannot go on.
    fn fail(&self, mut ring: MutexGuard<'_, Ring>, why: &'static str) {
        if self.failed.swap(true, Relaxed) {
            return;
        }
        ring.why = why;
        if why == LOST {
            ring.completions.clear();
        }
        drop(ring);
        let Some(owner) = self.owner.upgrade() else { return };
        let (event, source) = (EventType::CqErr, EventSource::Cq(self.this.clone()));
        owner.adapter().raise(AsyncEvent { event, source });
        owner.rouse_users_of(self);
    }
}
