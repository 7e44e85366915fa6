//! What the responder still has to say, in order.
//!
//! READ responses, atomic acknowledges, acknowledges and NAKs leave in the order of the requests
//! they answer, so an acknowledge waits behind a long READ. Consecutive acknowledges become one.
//! One call emits a bounded number of packets; a long READ goes on in the next.

use crate::executor::{Executor, Refusal};
use crate::qp::response::{Answer, Response};
use crate::qp::{Transport, service};
use crate::requests::window::FURTHER_COST;
use crate::{Cx, To};
use wire::{Aeth, Bth, Headers, Opcode, Operation, Position, Syndrome};

/// Credit code that gives no end-to-end credits (IBA table 46): a missing receive is answered by
/// RNR NAK.
const NO_CREDITS: u8 = 31;

impl Transport {
    /// Emits what is owed.
    pub(crate) fn respond(&mut self, cx: &mut Cx<'_>) {
        while !self.resp.responses.is_empty() {
            if cx.budget.responses.is_spent() || cx.tx.is_busy(cx.now) {
                self.more = true;
                return;
            }
            let due = self.resp.responses.front().map_or(0, |next| next.next_len());
            if due > 0 && !self.port_takes(due as u64 + FURTHER_COST, cx) {
                return;
            }
            cx.budget.responses.spend(due as u64);
            self.respond_step(cx);
        }
    }

    /// Asks for the memory of a READ again where rights may have changed since it was granted.
    fn renew_answer(&mut self, cx: &Cx<'_>) -> Result<(), Refusal> {
        let Some(Response { answer: Answer::Read(read), .. }) = self.resp.responses.front() else {
            return Ok(());
        };
        let now = Some(cx.keys.changes());
        if read.seen == now || read.len == 0 {
            return Ok(());
        }
        let executor = Executor { pd: read.pd, ..self.executor(cx.keys) };
        let target = executor.read(read.remote, read.len)?;
        if let Some(Response { answer: Answer::Read(read), .. }) = self.resp.responses.front_mut() {
            (read.target, read.seen) = (target, now);
        }
        Ok(())
    }

    fn respond_step(&mut self, cx: &mut Cx<'_>) {
        if let Err(refusal) = self.renew_answer(cx) {
            return self.fail_answer(refusal, cx);
        }
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
            Answer::Read(read) => u64::from(read.done) * u64::from(read.mtu),
            _ => 0,
        };
        let len = response.next_len();
        let mut headers = Headers::new(Bth {
            opcode: Opcode { service, operation, position, imm: false, invalidate: false },
            solicited: false,
            migrated: true,
            pad: (len.wrapping_neg() & 3) as u8,
            pkey: wire::DEFAULT_PKEY,
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
            Err(error) => self.fail_answer(Refusal::of_memory(error), cx),
        }
    }

    /// The memory of the READ response at hand failed, or is granted no more.
    fn fail_answer(&mut self, refusal: Refusal, cx: &mut Cx<'_>) {
        let Some(response) = self.resp.responses.front_mut() else { return };
        let psn = match &response.answer {
            Answer::Read(read) => read.psn.plus(read.done),
            _ => response.psn,
        };
        if !response.fresh {
            // The requester may have had the data long ago: no reason to end the connection.
            response.psn = psn;
            response.answer = Answer::refused_repetition(refusal);
        } else {
            // What follows in the queue may no longer be said: the requester learns the fate from
            // this NAK.
            self.resp.responses.clear();
            self.refuse(refusal, psn, cx);
        }
    }
}
