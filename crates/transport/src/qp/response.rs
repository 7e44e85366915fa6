//! What the responder still has to say, in order.
//!
//! READ responses, atomic acknowledges, acknowledges and NAKs leave in the order of the requests they answer, so an
//! acknowledge waits behind a long READ. Consecutive acknowledges become one. One call emits a bounded number of
//! packets; a long READ goes on in the next.

use super::Transport;
use super::executor::{Refusal, Target, fetch_failed};
use super::requester::{PKEY, service};
use super::responder::most_owed;
use super::window::FURTHER_COST;
use crate::values::Remote;
use crate::{Cx, To};
use umem::AccessError;
use wire::{Aeth, Bth, Headers, NakCode, Opcode, Operation, Position, Psn, Syndrome};

/// Credit code that gives no end-to-end credits (IBA table 46): a missing receive is answered by RNR NAK.
const NO_CREDITS: u8 = 31;

/// READ responses in progress.
pub(super) struct ReadAnswer {
    pub(super) psn: Psn,
    pub(super) packets: u32,
    pub(super) done: u32,
    pub(super) len: u32,
    /// As the peer named the memory.
    pub(super) remote: Remote,
    pub(super) target: Target,
}

pub(super) enum Answer {
    Ack,
    Nak(Syndrome),
    Atomic(u64),
    Read(ReadAnswer),
}

impl Answer {
    /// Whether a peer that does not get it asks again.
    fn comes_again(&self) -> bool {
        let again =
            |syndrome| matches!(syndrome, Syndrome::RnrNak(_) | Syndrome::Nak(NakCode::Sequence));
        match self {
            Answer::Ack => true,
            Answer::Nak(syndrome) => again(*syndrome),
            Answer::Atomic(_) | Answer::Read(_) => false,
        }
    }

    /// A READ response without data: what ATOMIC WRITE and FLUSH are answered with.
    pub(super) fn done(psn: Psn) -> Answer {
        let (remote, target) = (Remote::default(), Target::none());
        Answer::Read(ReadAnswer { psn, packets: 1, done: 0, len: 0, remote, target })
    }

    /// The NAK for a repeated READ that can no longer be done. A requester that still waits learns why no data comes;
    /// for one that does not it is stale.
    pub(super) fn refused_repetition(refusal: Refusal) -> Answer {
        Answer::Nak(Syndrome::Nak(match refusal {
            Refusal::RemoteAccess(_) | Refusal::PageFault(_) => NakCode::RemoteAccess,
            Refusal::RemoteOperational(_) => NakCode::RemoteOperational,
            _ => NakCode::InvalidRequest,
        }))
    }
}

/// One thing to say.
pub(super) struct Response {
    pub(super) psn: Psn,
    pub(super) msn: u32,
    pub(super) answer: Answer,
    /// Not a repetition: it occupies a responder resource.
    pub(super) fresh: bool,
}

impl Response {
    pub(super) fn is_answer(&self) -> bool {
        matches!(self.answer, Answer::Atomic(_) | Answer::Read(_))
    }

    /// Bytes of payload that its next packet carries.
    fn next_len(&self, mtu: u32) -> usize {
        match &self.answer {
            Answer::Read(read) => {
                let at = u64::from(read.done) * u64::from(mtu);
                u64::from(read.len).saturating_sub(at).min(mtu.into()) as usize
            }
            _ => 0,
        }
    }
}

impl Transport {
    /// Owes an acknowledge up to `psn`.
    pub(super) fn owe_ack(&mut self, psn: Psn) {
        let msn = self.resp.msn;
        if let Some(Response { psn: owed, msn: owed_msn, answer: Answer::Ack, .. }) =
            self.resp.responses.back_mut()
        {
            if psn.after(*owed) >= 0 {
                *owed = psn;
            }
            *owed_msn = msn;
            return;
        }
        self.owe(psn, Answer::Ack, false);
    }

    /// Owes `answer`; false when the peer repeats itself so fast that it may well ask for that again.
    pub(super) fn owe(&mut self, psn: Psn, answer: Answer, fresh: bool) -> bool {
        let limit = most_owed(self.attr.max_dest_rd_atomic.into());
        if answer.comes_again() && self.resp.responses.len() >= limit {
            return false;
        }
        let msn = self.resp.msn;
        self.resp.responses.push_back(Response { psn, msn, answer, fresh });
        true
    }

    /// Emits what is owed.
    pub(super) fn respond(&mut self, cx: &mut Cx<'_>) {
        while !self.resp.responses.is_empty() {
            if cx.budget.responses.is_spent() || cx.tx.is_busy(cx.now) {
                self.more = true;
                return;
            }
            let due = self.resp.responses.front().map_or(0, |next| next.next_len(self.mtu));
            if due > 0 && !self.port_takes(due as u64 + FURTHER_COST, cx) {
                return;
            }
            cx.budget.responses.spend(due as u64);
            self.respond_step(cx);
        }
    }

    fn respond_step(&mut self, cx: &mut Cx<'_>) {
        let mtu = self.mtu;
        let dest_qp = self.attr.dest_qp_num;
        let (Some(service), Some(response)) = (service(self.kind), self.resp.responses.front_mut())
        else {
            return;
        };
        let (operation, position, psn, syndrome) = match &response.answer {
            Answer::Ack => (
                Operation::Acknowledge,
                Position::Only,
                response.psn,
                Some(Syndrome::Ack(NO_CREDITS)),
            ),
            Answer::Nak(syndrome) => {
                (Operation::Acknowledge, Position::Only, response.psn, Some(*syndrome))
            }
            Answer::Atomic(_) => {
                let syndrome = Some(Syndrome::Ack(NO_CREDITS));
                (Operation::AtomicAcknowledge, Position::Only, response.psn, syndrome)
            }
            Answer::Read(read) => {
                let position = match (read.done == 0, read.done + 1 == read.packets) {
                    (true, true) => Position::Only,
                    (true, false) => Position::First,
                    (false, false) => Position::Middle,
                    (false, true) => Position::Last,
                };
                let syndrome = (position != Position::Middle).then_some(Syndrome::Ack(NO_CREDITS));
                (Operation::ReadResponse, position, read.psn.plus(read.done), syndrome)
            }
        };
        let at = match &response.answer {
            Answer::Read(read) => u64::from(read.done) * u64::from(mtu),
            _ => 0,
        };
        let len = response.next_len(mtu);
        let mut headers = Headers::new(Bth {
            opcode: Opcode { service, operation, position, imm: false, invalidate: false },
            solicited: false,
            migrated: true,
            pad: (len.wrapping_neg() & 3) as u8,
            pkey: PKEY,
            fecn: false,
            becn: false,
            dest_qp,
            ack_req: false,
            psn,
        });
        headers.aeth = syndrome.map(|syndrome| Aeth { syndrome, msn: response.msn });
        if let Answer::Atomic(old) = response.answer {
            headers.atomic_ack = Some(old);
        }
        let sent = match &response.answer {
            Answer::Read(read) => cx
                .tx
                .packet(To::Peer, &headers, len, &mut |dst, fold| read.target.fetch(at, dst, fold)),
            _ => cx.tx.packet(To::Peer, &headers, 0, &mut |_, _| Ok(())),
        };
        match sent {
            Ok(()) => {
                self.sent_packets += 1;
                self.sent_bytes += len as u64;
                let finished = match &mut response.answer {
                    Answer::Read(read) => {
                        read.done += 1;
                        read.done == read.packets
                    }
                    _ => true,
                };
                if finished {
                    self.resp.responses.pop_front();
                }
            }
            Err(error) if self.waits_to_answer(len, error, cx) => {}
            Err(error) => self.fail_answer(error, cx),
        }
    }

    /// The memory of the READ response at hand failed.
    fn fail_answer(&mut self, error: AccessError, cx: &mut Cx<'_>) {
        let Some(response) = self.resp.responses.front_mut() else { return };
        let psn = match &response.answer {
            Answer::Read(read) => read.psn.plus(read.done),
            _ => response.psn,
        };
        if !response.fresh {
            // The requester may have had the data long ago: no reason to end the connection.
            response.psn = psn;
            response.answer = Answer::refused_repetition(fetch_failed(error));
        } else {
            // What follows in the queue may no longer be said: the requester learns the fate from this NAK.
            self.resp.responses.clear();
            self.refuse(fetch_failed(error), psn, cx);
        }
    }
}
