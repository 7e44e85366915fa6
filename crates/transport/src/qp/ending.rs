//! The error states: nothing new begins, and all requests are flushed.

use super::responder::abandon;
use super::{Cx, Transport};
use crate::counters::Counter;
use crate::requests::vendor;
use crate::requests::wqe::Wqe;
use crate::values::*;

impl Transport {
    /// What it does can no longer be reported, or its receive requests are gone: a local work queue
    /// catastrophic error (IBA 11.6.3.2).
    pub fn fail(&mut self, cx: &mut Cx<'_>) {
        self.unfold_at(cx.now);
        if !matches!(self.state, QpState::Reset | QpState::Init | QpState::Err) {
            cx.sink.event(EventType::QpFatal);
            self.enter_error(cx);
        }
    }

    /// Enters the error state: nothing more is said to the peer, all requests are flushed (IBA
    /// 10.3.1.7).
    pub(crate) fn enter_error(&mut self, cx: &mut Cx<'_>) {
        // The program knows of the message that it is for.
        if self.resp.replies.has_waiting() && self.owes_only_an_ack() {
            self.respond_step(cx);
        }
        self.resp.replies.give_up(cx.now);
        self.resp.responses.clear();
        self.enter_error_answering(cx);
    }

    /// The same, but what is owed to the peer, a NAK last, still goes out.
    pub(crate) fn enter_error_answering(&mut self, cx: &mut Cx<'_>) {
        self.stop();
        self.owes_last_wqe = self.inbox.is_shared();
        self.flush(cx);
    }

    /// Enters the error state; nothing is flushed yet.
    pub(crate) fn stop(&mut self) {
        self.state = QpState::Err;
        self.attr.sq_draining = false;
        self.req.timers.stop();
        self.req.rnr_until = None;
        self.paced_until = None;
        self.faults.clear();
    }

    /// Completes all send requests as flushed, as many as the budget says.
    pub(crate) fn flush_sends(&mut self, cx: &mut Cx<'_>) {
        self.req.timers.stop();
        while !self.req.queue.is_empty() {
            if cx.budget.endings() == 0 {
                self.more = true;
                return;
            }
            cx.budget.spend_ending();
            let flushed = |wqe: &mut Wqe| wqe.ended(self.qpn, WcStatus::WrFlushErr, vendor::NONE);
            let Some(ended) = self.req.pop(flushed) else { return };
            cx.counters.count(Counter::CqeFlushErr, 1);
            self.report(ended, cx);
        }
    }

    /// The same for the requests of both queues.
    pub(crate) fn flush(&mut self, cx: &mut Cx<'_>) {
        abandon(&mut self.resp.message, &mut self.inbox);
        self.flush_sends(cx);
        while cx.budget.endings() > 0 {
            let Some(drained) = self.inbox.drain(self.pd) else { return self.tell_last_wqe(cx) };
            cx.budget.spend_ending();
            let Ok(landing) = drained else {
                cx.sink.event(EventType::QpFatal);
                return self.inbox.clear();
            };
            cx.counters.count(Counter::CqeFlushErr, 1);
            let done = Completion {
                solicited: true,
                ..Completion::new(
                    landing.wr_id(),
                    WcStatus::WrFlushErr,
                    landing.label().opcode,
                    self.qpn,
                )
            };
            cx.received(&landing, done);
        }
        self.more = true;
    }

    /// No receive request is under way any more (IBA 11.6.3.1).
    fn tell_last_wqe(&mut self, cx: &mut Cx<'_>) {
        if std::mem::take(&mut self.owes_last_wqe) {
            cx.sink.event(EventType::QpLastWqeReached);
        }
    }
}
