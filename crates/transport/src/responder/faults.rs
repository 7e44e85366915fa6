//! Page faults of the responder: what a peer's request or READ needs is not there.

use crate::executor::Refusal;
use crate::keys::KeyError;
use crate::qp::faults::{Met, Open};
use crate::qp::responder::{Incoming, abandon};
use crate::qp::response::{Answer, Response};
use crate::qp::{FaultSide, FaultedWork, Transport};
use crate::values::{QpState, Remote};
use crate::{Counter, Cx, Rx};
use umem::AccessError;
use wire::{NakCode, Operation, Psn, Syndrome};

impl Transport {
    /// A peer's request met a fault and had no effect: the peer comes again, unless nobody takes
    /// the fault.
    pub(super) fn request_faulted(&mut self, error: AccessError, rx: &Rx<'_>, cx: &mut Cx<'_>) {
        let (headers, packet) = (rx.headers, rx.payload_len());
        let met = match (&self.resp.message, self.inbox.held()) {
            (Some(Incoming::Send(landing)), _) => Met::landing(landing, packet),
            (Some(Incoming::Write(write)), _) => {
                Met::remote(write.remote, write.len, write.done, packet)
            }
            (None, Some(landing)) if headers.bth.opcode.operation == Operation::Send => {
                Met::landing(landing, packet)
            }
            (None, _) => {
                let written = headers.reth.map(|reth| (reth.va, reth.rkey, reth.len));
                let changed = headers.atomic.map(|atomic| (atomic.va, atomic.rkey, 8));
                let packet = changed.map_or(packet, |(_, _, len)| len as usize);
                let (addr, rkey, len) = written.or(changed).unwrap_or_default();
                Met::remote(Remote { addr, rkey }, len, 0, packet)
            }
        };
        let receives = matches!(met.work, FaultedWork::Receive(_));
        let psn = headers.bth.psn;
        if self.faults.waits(FaultSide::Service, error, met, cx) {
            return self.refuse(Refusal::NotReady, psn, cx);
        }
        self.refuse_request(receives, psn, cx);
    }

    /// A message of an unreliable connection met a fault: it is lost, and the next one may find the
    /// memory there.
    pub(super) fn message_faulted(&mut self, error: AccessError, rx: &Rx<'_>, cx: &mut Cx<'_>) {
        let packet = rx.payload_len();
        let met = match &self.resp.message {
            Some(Incoming::Send(landing)) => Met::landing(landing, packet),
            Some(Incoming::Write(write)) => {
                Met::remote(write.remote, write.len, write.done, packet)
            }
            None => return,
        };
        self.faults.waits(FaultSide::Service, error, met, cx);
        cx.counters.count(Counter::RxDropped, 1);
        abandon(&mut self.resp.message, &mut self.inbox);
    }

    fn refuse_request(&mut self, receives: bool, psn: Psn, cx: &mut Cx<'_>) {
        let refusal = if receives {
            if self.resp.message.is_none() {
                self.resp.message = self.inbox.take_held().map(Incoming::Send);
            }
            Refusal::ReceiveProtection
        } else {
            Refusal::RemoteAccess(KeyError::Unmapped)
        };
        self.refuse(refusal, psn, cx);
    }

    /// The peer gets its NAK at once: it waits to come again. An unreliable one has lost its
    /// message and hears nothing.
    pub(crate) fn refuse_faulted(&mut self, open: &Open, cx: &mut Cx<'_>) {
        if !self.kind.is_reliable() {
            return;
        }
        let receives = matches!(open.work, FaultedWork::Receive(_));
        self.refuse_request(receives, self.resp.expected, cx);
    }

    /// The peer learns why no more of its READ comes. For one that has it this is stale, and no
    /// reason to end the connection.
    pub(crate) fn refuse_answer(&mut self, open: &Open, cx: &mut Cx<'_>) {
        if open.repeated {
            let nak = Syndrome::Nak(NakCode::RemoteAccess);
            self.owe(open.first, Answer::Nak(nak), false);
            return;
        }
        self.resp.responses.clear();
        self.refuse(Refusal::RemoteAccess(KeyError::Unmapped), open.first, cx);
    }

    /// Whether the rest of the READ at hand waits for its memory: then the peer asks for it again
    /// later, and for whatever it asked after it.
    pub(super) fn waits_to_answer(
        &mut self,
        len: usize,
        error: AccessError,
        cx: &mut Cx<'_>,
    ) -> bool {
        let owed = &self.resp.responses;
        let (Some(response), Some(read)) = (owed.front(), owed.front_read()) else { return false };
        let repeated = !response.fresh;
        let psn = read.next_psn();
        let done = read.done.saturating_mul(read.mtu);
        let met = Met {
            work: FaultedWork::Remote(read.remote, read.len),
            write: false,
            done,
            packet: len,
            ahead: u64::from(read.len.saturating_sub(done)).saturating_sub(len as u64),
            first: psn,
            repeated,
        };
        // Nobody is left to say it to, after an error.
        if self.state == QpState::Err || !self.faults.waits(FaultSide::Answers, error, met, cx) {
            return false;
        }
        if repeated {
            // The peer may have had it long ago, and wait for what stands behind it.
            self.resp.responses.pop_front();
        } else {
            self.resp.responses.clear();
            self.resp.put_off = Some(psn);
        }
        let later = Answer::Nak(Syndrome::RnrNak(self.attr.min_rnr_timer));
        let msn = self.resp.msn;
        self.resp.responses.push_front(Response { psn, msn, answer: later, fresh: false });
        true
    }
}
