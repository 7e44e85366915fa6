//! What the responder still has to say, in order.
//!
//! READ responses, atomic acknowledges, acknowledges and NAKs leave in the order of the requests
//! they answer, so an acknowledge waits behind a long READ. Consecutive acknowledges become one.
//! One call emits a bounded number of packets; a long READ goes on in the next.

use crate::executor::{Executor, Refusal};
use crate::qp::response::{Answer, Response};
use crate::qp::{Transport, service};
use crate::requests::window::FURTHER_COST;
use crate::{Cx, Half, To};
use wire::{Aeth, Bth, Headers, Opcode, Operation, Position, Syndrome};

/// Credit code that gives no end-to-end credits (IBA table 46): a missing receive is answered by
/// RNR NAK.
const NO_CREDITS: u8 = 31;

impl Transport {
    /// Emits what is owed.
    pub(crate) fn respond(&mut self, cx: &mut Cx<'_>) {
        if self.resp.replies.has_waiting() {
            self.resp.replies.give_up(cx.now);
        }
        self.notify(cx);
        while !self.resp.responses.is_empty() {
            if cx.budget.responses.is_spent() || cx.tx.is_busy(cx.now) {
                self.more = true;
                return;
            }
            let due = self.resp.responses.front_read().map_or(0, |read| read.next().1);
            let cost = due as u64 + FURTHER_COST;
            if due > 0 && !(self.keeps_pace(cost, cx) && self.port_takes(Half::Responder, cost, cx))
            {
                return;
            }
            cx.budget.responses.spend(due as u64);
            self.respond_step(cx);
        }
    }

    /// Asks for the memory of a READ again where rights may have changed since it was granted.
    fn renew_answer(&mut self, cx: &Cx<'_>) -> Result<(), Refusal> {
        let Some(read) = self.resp.responses.front_read() else { return Ok(()) };
        let now = cx.keys.changes();
        if read.seen == now || read.len == 0 {
            return Ok(());
        }
        let executor = Executor { pd: read.pd, ..self.executor(cx.keys) };
        let target = executor.read(read.remote, read.len)?;
        if let Some(read) = self.resp.responses.front_read_mut() {
            (read.target, read.seen) = (target, now);
        }
        Ok(())
    }

    pub(crate) fn respond_step(&mut self, cx: &mut Cx<'_>) {
        if let Err(refusal) = self.renew_answer(cx) {
            return self.fail_answer(refusal, cx);
        }
        let dest_qp = self.attr.dest_qp_num;
        let (Some(service), Some(response)) = (service(self.kind), self.resp.responses.front())
        else {
            return;
        };
        let read = self.resp.responses.front_read();
        let ack = Some(Syndrome::Ack(NO_CREDITS));
        let (only, psn) = (Position::Only, response.psn);
        let (operation, position, psn, syndrome) = match (&response.answer, read) {
            (Answer::Ack, _) => (Operation::Acknowledge, only, psn, ack),
            (Answer::Nak(syndrome), _) => (Operation::Acknowledge, only, psn, Some(*syndrome)),
            (Answer::Atomic(_), _) => (Operation::AtomicAcknowledge, only, psn, ack),
            (Answer::Done | Answer::Read, None) => (Operation::ReadResponse, only, psn, ack),
            (Answer::Done | Answer::Read, Some(read)) => {
                let position = match (read.done == 0, read.done + 1 == read.packets()) {
                    (true, true) => Position::Only,
                    (true, false) => Position::First,
                    (false, false) => Position::Middle,
                    (false, true) => Position::Last,
                };
                let syndrome = ack.filter(|_| position != Position::Middle);
                (Operation::ReadResponse, position, read.next_psn(), syndrome)
            }
        };
        let (at, len) = read.map_or((0, 0), |read| read.next());
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
            headers.atomic_ack = Some(u64::from_ne_bytes(old));
        }
        let half = Half::Responder;
        let sent = match read {
            Some(read) => {
                let target = &read.target;
                match cx.tx.packet_in_place(half, &headers, (at, len), &mut &*target) {
                    true => Ok(()),
                    false => cx.tx.packet(To::Peer(half), &headers, len, &mut |dst, fold| {
                        target.fetch(at, dst, fold)
                    }),
                }
            }
            None => cx.tx.packet(To::Peer(half), &headers, 0, &mut |_, _| Ok(())),
        };
        match sent {
            Ok(()) => {
                self.sent_packets += 1;
                self.sent_bytes += len as u64;
                let finished = self.resp.responses.front_read_mut().is_none_or(|read| {
                    read.done += 1;
                    read.done == read.packets()
                });
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
        let owed = &mut self.resp.responses;
        let Some(&Response { psn, msn, fresh, .. }) = owed.front() else { return };
        let psn = owed.front_read().map_or(psn, |read| read.next_psn());
        if !fresh {
            // The requester may have had the data long ago: no reason to end the connection.
            let answer = Answer::refused_repetition(refusal);
            owed.replace_front(Response { psn, msn, answer, fresh });
        } else {
            // What follows in the queue may no longer be said: the requester learns the fate from
            // this NAK.
            self.resp.responses.clear();
            self.refuse(refusal, psn, cx);
        }
    }
}
