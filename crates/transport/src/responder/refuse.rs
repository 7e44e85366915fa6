//! What a refused operation costs: the NAK that the peer gets, the completion with an error and the
//! end of the connection.

use crate::executor::{Landing, Refusal};
use crate::qp::Transport;
use crate::qp::responder::Incoming;
use crate::qp::response::Answer;
use crate::values::*;
use crate::{Counter, Cx, Rx};
use wire::{NakCode, Psn, Syndrome};

impl Transport {
    /// Refuses a request of the peer (IBA 9.9.3). Every refusal but "not ready" ends the
    /// connection.
    pub(super) fn refuse(&mut self, refusal: Refusal, psn: Psn, cx: &mut Cx<'_>) {
        let (code, landing_status, event) = match refusal {
            Refusal::NotReady => {
                let nak = Answer::Nak(Syndrome::RnrNak(self.attr.min_rnr_timer));
                self.resp.nak_sent = self.owe(psn, nak, false);
                return;
            }
            Refusal::InvalidRequest(_) => {
                (NakCode::InvalidRequest, WcStatus::WrFlushErr, Some(EventType::QpReqErr))
            }
            Refusal::RemoteAccess(_) | Refusal::PageFault(_) => {
                cx.counters.count(Counter::RespRemoteAccessErrors, 1);
                (NakCode::RemoteAccess, WcStatus::WrFlushErr, Some(EventType::QpAccessErr))
            }
            Refusal::RemoteOperational(_) => {
                (NakCode::RemoteOperational, WcStatus::WrFlushErr, Some(EventType::QpFatal))
            }
            Refusal::ReceiveTooShort => {
                cx.counters.count(Counter::RespLocalLengthError, 1);
                (NakCode::InvalidRequest, WcStatus::LocLenErr, None)
            }
            Refusal::ReceiveProtection => (NakCode::RemoteOperational, WcStatus::LocProtErr, None),
            Refusal::QueueLost(_) => {
                (NakCode::RemoteOperational, WcStatus::WrFlushErr, Some(EventType::QpFatal))
            }
        };
        self.owe(psn, Answer::Nak(Syndrome::Nak(code)), false);
        // The memory of an earlier READ failed after a later request had ended the connection: the
        // program knows.
        if self.state == QpState::Err {
            return;
        }
        if landing_status != WcStatus::WrFlushErr
            && let Some(Incoming::Send(landing)) = self.resp.message.take()
        {
            self.fail_receive(landing, landing_status, cx);
        }
        if let Some(event) = event {
            cx.sink.event(event);
        }
        self.enter_error_answering(cx);
    }

    /// Completes a receive request with an error of its own.
    pub(super) fn fail_receive(&mut self, landing: Landing, status: WcStatus, cx: &mut Cx<'_>) {
        cx.counters.count(Counter::RespCqeError, 1);
        let done = Completion {
            solicited: true,
            ..Completion::new(landing.wr_id(), status, landing.label().opcode, self.qpn)
        };
        cx.received(&landing, done);
    }

    /// A completion for a receive request.
    pub(super) fn received(
        &self,
        wr_id: u64,
        status: WcStatus,
        opcode: WcOpcode,
        byte_len: u32,
        rx: &Rx<'_>,
    ) -> Completion {
        let (imm_or_key, flags) = match (rx.headers.imm, rx.headers.invalidate) {
            (Some(imm), _) => (imm, WcFlags::WITH_IMM),
            (None, Some(key)) => (key, WcFlags::WITH_INV),
            (None, None) => (0, WcFlags::empty()),
        };
        Completion {
            byte_len,
            imm_or_key,
            flags,
            // RC and UC report the connected peer.
            src_qp: self.attr.dest_qp_num,
            solicited: rx.headers.bth.solicited,
            ..Completion::new(wr_id, status, opcode, self.qpn)
        }
    }
}
