//! The end of a send request: done, or failed once all before it are done.

use crate::qp::Transport;
use crate::requests::vendor;
use crate::requests::wqe::{Ended, Phase, Wqe};
use crate::sabotage::{self, Sabotage};
use crate::values::{QpState, QpType, WcStatus};
use crate::{Counter, Cx};

impl Transport {
    /// The oldest request is done.
    pub(super) fn complete_oldest(&mut self, cx: &mut Cx<'_>) {
        if sabotage::on(Sabotage::LoseCompletionOrder) && self.req.queue.len() > 1 {
            let later = self.req.queue[1].wr.wr_id;
            self.req.queue[1].wr.wr_id = std::mem::replace(&mut self.req.queue[0].wr.wr_id, later);
        }
        cx.budget.spend_ending();
        if let Some(ended) = self.pop_done() {
            self.report(ended, cx);
        }
        self.fail_if_oldest(cx);
    }

    /// Takes out the oldest request, which is done: what there is to report of it, if anybody waits
    /// for that.
    pub(crate) fn pop_done(&mut self) -> Option<Ended> {
        let ended = |wqe: &mut Wqe| {
            let is_awaited = wqe.signaled || wqe.offload.is_some();
            is_awaited.then(|| wqe.ended(self.qpn, WcStatus::Success, vendor::NONE))
        };
        self.req.pop(ended).flatten()
    }

    /// Reports a failed request once everything before it is complete.
    pub(super) fn fail_if_oldest(&mut self, cx: &mut Cx<'_>) {
        if let Some(wqe) = self.req.queue.front()
            && let Phase::Failed(status, vendor_err) = wqe.phase
        {
            self.fail_oldest(status, vendor_err, cx);
        }
    }

    /// Completes the oldest request with an error. A reliable connection enters the error state,
    /// the others the send queue error state (IBA 10.3.1.5, 10.3.1.6); what was posted later is
    /// flushed.
    pub(crate) fn fail_oldest(&mut self, status: WcStatus, vendor_err: u32, cx: &mut Cx<'_>) {
        cx.budget.spend_ending();
        if let Some(ended) = self.req.pop(|wqe| wqe.ended(self.qpn, status, vendor_err)) {
            cx.counters.count(Counter::ReqCqeError, 1);
            self.report(ended, cx);
        }
        match self.kind {
            QpType::Rc | QpType::XrcSend | QpType::XrcRecv => self.enter_error(cx),
            QpType::Uc | QpType::Ud | QpType::RawPacket => {
                self.state = QpState::Sqe;
                self.flush_sends(cx);
            }
        }
    }
}
