//! The passing of time: what has come due, and when to look again.

use crate::Cx;
use crate::qp::Transport;
use crate::requests::timing::earlier;
use crate::values::QpState;
use std::time::{Duration, Instant};

/// How often an own queue that the front end keeps is looked at in the error state: posting there
/// tells nobody.
const KEPT_QUEUE_PERIOD: Duration = Duration::from_millis(10);

impl Transport {
    /// Time has passed.
    pub fn timer(&mut self, cx: &mut Cx<'_>) {
        self.unfold_at(cx.now);
        if self.kind.is_reliable() && matches!(self.state, QpState::Rts | QpState::Sqd) {
            self.request_timers(cx);
        }
        self.faults.look_again(cx.now);
        self.transmit(cx);
    }

    /// When to call [`Transport::timer`]; an instant already past when work is left over.
    pub fn deadline(&self) -> Option<Instant> {
        let unflushed = match self.state {
            QpState::Err => {
                !self.req.queue.is_empty() || !self.inbox.is_empty() || self.owes_last_wqe
            }
            QpState::Sqe => !self.req.queue.is_empty(),
            _ => false,
        };
        if self.more || self.untimed || unflushed {
            return self.now;
        }
        if self.state == QpState::Err && self.inbox.is_kept() {
            return self.now.map(|now| now + KEPT_QUEUE_PERIOD);
        }
        let timers = match self.has_lone() {
            true => self.lone_deadline(),
            false => self.req.timers.deadline(self.ack_wait()),
        };
        let waits = earlier(self.req.rnr_until, self.paced_until);
        let waits = earlier(waits, self.resp.replies.waits_until());
        earlier(earlier(timers, waits), self.faults.deadline())
    }
}
