//! The responder of a reliable connection: PSN and opcode order, then the executor, then what to
//! answer.

use super::order::{check_order, check_packet};
use crate::executor::{Arriving, Landing, Refusal};
use crate::keys::KeyError;
use crate::qp::responder::{Begun, Incoming, Write};
use crate::qp::response::Answer;
use crate::qp::{FaultSide, Transport};
use crate::queues::shared::XrcReceive;
use crate::queues::tags::Label;
use crate::sabotage::{self, Sabotage};
use crate::values::*;
use crate::{Counter, Cx, Rx};
use std::sync::Arc;
use wire::{NakCode, Operation, Syndrome};

/// Longest READ that is answered before what comes after it is served.
const AT_ONCE: u32 = 16 << 10;

impl Transport {
    /// A request packet of a reliable connection.
    pub(crate) fn serve(&mut self, rx: &Rx<'_>, cx: &mut Cx<'_>) {
        self.note_established(cx);
        let psn = rx.headers.bth.psn;
        self.answer_reads_before(rx, cx);
        if self.state == QpState::Err {
            return cx.counters.count(Counter::RxDropped, 1);
        }
        let ahead = psn.after(self.resp.expected);
        if sabotage::on(Sabotage::SkipPsnCheck) {
            self.resp.expected = psn;
        } else if ahead < 0 {
            return self.repeat(rx, cx);
        } else if self.resp.put_off.is_some() {
            // It is sent again after the READ. An error of it now would end the connection with the
            // READ unanswered.
            return cx.counters.count(Counter::OutOfSequence, 1);
        } else if ahead > 0 {
            cx.counters.count(Counter::OutOfSequence, 1);
            if !self.resp.nak_sent {
                let expected = self.resp.expected;
                let nak = Answer::Nak(Syndrome::Nak(NakCode::Sequence));
                self.resp.nak_sent = self.owe(expected, nak, false);
            }
            return;
        }
        if self.faults.is_open(FaultSide::Service) {
            return self.refuse(Refusal::NotReady, psn, cx);
        }
        self.resp.nak_sent = false;
        match self.execute(rx, cx) {
            Ok(()) => {}
            Err(Refusal::PageFault(error)) => self.request_faulted(error, rx, cx),
            Err(refusal) => self.refuse(refusal, psn, cx),
        }
        self.resp.queue = None;
    }

    /// Answers short READs before a request after them that changes memory is served. IBA lets a
    /// READ show what such a request wrote, unless it carries a fence (10.8.3.3). Adapters and
    /// Linux's rxe answer in order as good as always, and programs count on it: Open MPI 4.1's
    /// MPI_Get_accumulate with MPI_REPLACE is a READ and a WRITE behind it. A long READ is answered
    /// in many turns, and keeps to what IBA promises.
    fn answer_reads_before(&mut self, rx: &Rx<'_>, cx: &mut Cx<'_>) {
        let bth = &rx.headers.bth;
        let comes_next = bth.psn == self.resp.expected;
        let changes = bth.opcode.operation != Operation::ReadRequest;
        if comes_next && changes && self.resp.responses.has_only_reads_up_to(AT_ONCE) {
            self.respond(cx);
        }
    }

    /// The queue that an XRC packet names (IBA A14.4).
    pub(super) fn named_queue(
        &self,
        rx: &Rx<'_>,
        cx: &Cx<'_>,
    ) -> Result<Option<Arc<dyn XrcReceive>>, Refusal> {
        let Some(number) = rx.headers.xrc_srqn else { return Ok(None) };
        let queue = cx
            .xrc
            .queue(number)
            .ok_or(Refusal::InvalidRequest("no such XRC shared receive queue"))?;
        if queue.xrcd() != self.xrcd && !sabotage::on(Sabotage::SkipXrcDomain) {
            return Err(Refusal::RemoteAccess(KeyError::ForeignPd));
        }
        Ok(Some(queue))
    }

    fn execute(&mut self, rx: &Rx<'_>, cx: &mut Cx<'_>) -> Result<(), Refusal> {
        let opcode = rx.headers.bth.opcode;
        check_order(self.resp.message.as_ref(), opcode)?;
        check_packet(opcode, rx.payload_len(), self.resp.mtu)?;
        self.resp.queue = self.named_queue(rx, cx)?;
        match opcode.operation {
            Operation::Send => self.serve_send(rx, cx)?,
            Operation::Write => self.serve_write(rx, cx)?,
            Operation::ReadRequest => return self.serve_read(rx.headers.reth, cx),
            Operation::CompareSwap | Operation::FetchAdd => return self.serve_atomic(rx, cx),
            Operation::AtomicWrite | Operation::Flush => return self.serve_placement(rx, cx),
            _ => return Err(Refusal::InvalidRequest("not a request")),
        }
        let psn = self.resp.expected;
        self.resp.expected = psn.plus(1);
        if rx.headers.bth.ack_req || opcode.position.ends() {
            self.owe_ack(psn);
        }
        Ok(())
    }

    fn take_receive(&mut self, cx: &mut Cx<'_>) -> Result<Option<Landing>, Refusal> {
        let taken = match &self.resp.queue {
            // It was taken for the packet that comes again now.
            Some(_) if let Some(landing) = self.inbox.take_held() => Ok(landing),
            Some(queue) => Landing::of_xrc(queue.clone(), self.pd),
            None => self.inbox.take(self.pd),
        };
        match taken {
            Ok(mut landing) => {
                landing.watch(self.peer_alarm.as_ref());
                Ok(Some(landing))
            }
            Err(Refusal::NotReady) if sabotage::on(Sabotage::IgnoreRnr) => Ok(None),
            Err(refusal) => {
                cx.counters.count(Counter::OutOfBuffer, 1);
                Err(refusal)
            }
        }
    }

    /// Where a SEND that begins with this packet goes, how much of the packet does not go there,
    /// and what to fetch instead.
    fn begin_send(&mut self, rx: &Rx<'_>, cx: &mut Cx<'_>) -> Result<Option<Begun>, Refusal> {
        if let Some(matched) = self.resp.matched.take()
            && let Some(landing) = self.inbox.take_held()
        {
            return Ok(Some((landing, matched)));
        }
        let Some(tags) = self.inbox.tags() else {
            return Ok(self.take_receive(cx)?.map(|landing| (landing, (0, None))));
        };
        let whole = rx.headers.bth.opcode.position.ends();
        let begun = Landing::of_tags(tags, self.pd, (rx.payload, whole, self.can_fetch()));
        let begun = begun.map(|(landing, skip, fetch)| Some((landing, (skip, fetch))));
        begun.inspect_err(|_| cx.counters.count(Counter::OutOfBuffer, 1))
    }

    fn serve_send(&mut self, rx: &Rx<'_>, cx: &mut Cx<'_>) -> Result<(), Refusal> {
        let bth = &rx.headers.bth;
        let (mut landing, (skip, fetch)) = match self.resp.message.take() {
            Some(Incoming::Send(landing)) => (landing, (0, None)),
            _ => match self.begin_send(rx, cx)? {
                Some(begun) => begun,
                None => return Ok(()),
            },
        };
        let starts = bth.opcode.position.starts();
        let mut outcome = match &fetch {
            Some(fetch) if u64::from(fetch.len) > landing.room() => Err(Refusal::ReceiveTooShort),
            _ => {
                let bytes = match skip {
                    0 => rx.arriving(),
                    _ => Arriving::Here(rx.payload.get(skip..).unwrap_or_default()),
                };
                let ready = landing.ready(cx.keys, bytes.bytes());
                ready.and_then(|()| landing.append(cx.keys, bytes))
            }
        };
        if let Err(refusal @ (Refusal::PageFault(_) | Refusal::NotReady)) = outcome {
            // Nothing of this packet has taken effect, and it comes again.
            if starts {
                self.resp.matched = self.inbox.tags().map(|_| (skip, fetch));
                self.inbox.put_back(landing);
            } else {
                self.resp.message = Some(Incoming::Send(landing));
            }
            return Err(refusal);
        }
        let ends = bth.opcode.position.ends();
        if let (Ok(()), true, Some(key)) = (outcome, ends, rx.headers.invalidate) {
            outcome = self.executor(cx.keys).invalidate(key);
        }
        if outcome.is_err() || !ends {
            self.resp.message = Some(Incoming::Send(landing));
            return outcome;
        }
        let byte_len = landing.filled() as u32;
        let Label { status, opcode, flags, info } = landing.label();
        let mut done = self.received(landing.wr_id(), status, opcode, byte_len, rx);
        done.flags |= flags;
        done.tm = info;
        cx.received(&landing, done);
        if let Some(fetch) = fetch {
            self.rendezvous(landing, fetch);
        }
        self.message_done();
        Ok(())
    }

    fn serve_write(&mut self, rx: &Rx<'_>, cx: &mut Cx<'_>) -> Result<(), Refusal> {
        let position = rx.headers.bth.opcode.position;
        let ends = position.ends();
        let mut write = match self.resp.message.take() {
            Some(Incoming::Write(mut write)) => {
                write.renew(&self.executor(cx.keys))?;
                write
            }
            _ => {
                cx.counters.count(Counter::RxWriteRequests, 1);
                Write::begin(self.executor(cx.keys), rx.headers.reth, position, self.resp.mtu)?
            }
        };
        let ready = write.target.ready(write.done.into(), rx.payload_len(), true);
        if let Err(refusal) = ready {
            if !position.starts() {
                self.resp.message = Some(Incoming::Write(write));
            }
            return Err(refusal);
        }
        let outcome = self.write_packet(&mut write, rx, cx);
        let again = matches!(outcome, Err(Refusal::PageFault(_))) && position.starts();
        if !again && (!ends || (outcome.is_err() && !position.starts())) {
            self.resp.message = Some(Incoming::Write(write));
        }
        outcome
    }

    fn write_packet(
        &mut self,
        write: &mut Write,
        rx: &Rx<'_>,
        cx: &mut Cx<'_>,
    ) -> Result<(), Refusal> {
        let ends = rx.headers.bth.opcode.position.ends();
        write.check(rx.payload_len(), ends)?;
        // The receive request comes first: without one nothing of this packet may take effect.
        let landing = match rx.headers.imm {
            Some(_) => self.take_receive(cx)?,
            None => None,
        };
        if let Err(refusal) = write.place(rx.arriving()) {
            if let Some(landing) = landing {
                self.inbox.put_back(landing);
            }
            return Err(refusal);
        }
        if let Some(landing) = landing {
            let opcode = WcOpcode::RecvRdmaWithImm;
            let done = self.received(landing.wr_id(), WcStatus::Success, opcode, write.len, rx);
            cx.received(&landing, done);
        }
        if ends {
            self.message_done();
        }
        Ok(())
    }
}
