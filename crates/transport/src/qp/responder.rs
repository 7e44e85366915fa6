//! The responder of a reliable connection: PSN and opcode order, then the executor, then what to answer.

use super::Transport;
use super::executor::{Executor, Inbox, Landing, MAX_MESSAGE, Refusal, Target};
use super::paging::FaultSide;
use super::response::{Answer, ReadAnswer, Response};
use crate::error::Result as HcaResult;
use crate::keys::{KeyError, KeyTable};
use crate::queues::tags::{Fetch, Label};
use crate::sabotage::{self, Sabotage};
use crate::shelf::queue_of;
use crate::values::*;
use crate::{Counter, Cx, Rx, XrcReceive};
use std::collections::VecDeque;
use std::sync::Arc;
use umem::AtomicOp;
use wire::{AtomicEth, Feth, NakCode, Opcode, Operation, Position, Psn, Reth, Syndrome};

/// A message of several packets that has begun.
pub(super) enum Incoming {
    Send(Landing),
    Write(Write),
}

/// A SEND that begins: its receive request, and what the tag list said of it.
type Begun = (Landing, Matched);

/// What a tag list says of a message: the bytes in front that do not go to the receive request, and what to fetch instead.
type Matched = (usize, Option<Fetch>);

/// An RDMA WRITE in progress.
pub(super) struct Write {
    pub(super) target: Target,
    /// As the peer named it.
    pub(super) remote: Remote,
    pub(super) len: u32,
    pub(super) done: u32,
}

/// State of the receive side.
#[derive(Default)]
pub(super) struct Responder {
    /// The PSN that comes next.
    pub(super) expected: Psn,
    /// Messages completed, 24 bits.
    pub(super) msn: u32,
    /// A NAK or RNR NAK went out and the expected packet has not come since: no second one.
    pub(super) nak_sent: bool,
    pub(super) message: Option<Incoming>,
    pub(super) responses: VecDeque<Response>,
    /// The peer was told to ask for a new READ again, and whatever followed it: what it has not asked for again begins here.
    /// Nothing new is served before it has.
    pub(super) put_off: Option<Psn>,
    /// Results of the latest atomics, for their repetition.
    saved: VecDeque<(Psn, u64)>,
    /// PSN of the latest READ or atomic.
    last_answered: Option<Psn>,
    /// The XRC queue that the packet at hand names: its domain is also that of the memory keys.
    queue: Option<Arc<dyn XrcReceive>>,
    /// Of the receive request that the inbox holds, if it was matched: its message comes again.
    matched: Option<Matched>,
    /// The communication-established event was raised.
    pub(super) established: bool,
}

impl Responder {
    /// Begins anew, in the same memory.
    pub(super) fn restart(&mut self, expected: Psn) {
        let mut responses = std::mem::take(&mut self.responses);
        let mut saved = std::mem::take(&mut self.saved);
        responses.clear();
        saved.clear();
        *self = Responder { expected, responses, saved, ..Responder::default() };
    }

    /// Sets memory aside for all that it can owe to a peer that may have `resources` READs and atomics under way.
    ///
    /// # Errors
    /// [`Error::NoMemory`](crate::Error::NoMemory); nothing has changed then.
    pub(super) fn set_aside(&mut self, resources: usize) -> HcaResult<()> {
        // A request of each resource, and the NAK that ends the connection, come on top of what is bounded.
        let mut responses = queue_of(most_owed(resources) + resources + 1)?;
        let mut saved = queue_of(resources)?;
        responses.append(&mut self.responses);
        saved.append(&mut self.saved);
        (self.responses, self.saved) = (responses, saved);
        Ok(())
    }
}

/// What may wait to be said to a peer that repeats itself faster than the answers leave; it comes again for the rest.
pub(super) fn most_owed(resources: usize) -> usize {
    2 * resources + 16
}

/// Checks what each position of a message allows (IBA 9.7.4.1.2, 9.7.4.1.3).
pub(super) fn check_packet(opcode: Opcode, payload: usize, mtu: u32) -> Result<(), Refusal> {
    let mtu = mtu as usize;
    let fits = match opcode.operation {
        Operation::Send | Operation::Write => match opcode.position {
            Position::First | Position::Middle => payload == mtu,
            Position::Last => (1..=mtu).contains(&payload),
            Position::Only => payload <= mtu,
        },
        Operation::AtomicWrite => payload == 8,
        _ => payload == 0,
    };
    if fits || sabotage::on(Sabotage::SkipLengthCheck) {
        Ok(())
    } else {
        Err(Refusal::InvalidRequest("payload does not fit the packet's place in its message"))
    }
}

/// Checks that `opcode` may follow what has begun (IBA 9.7.4.1.1).
pub(super) fn check_order(message: Option<&Incoming>, opcode: Opcode) -> Result<(), Refusal> {
    let continues = match (message, opcode.operation) {
        (None, _) => None,
        (Some(Incoming::Send(_)), Operation::Send) => Some(true),
        (Some(Incoming::Write(_)), Operation::Write) => Some(true),
        (Some(_), _) => Some(false),
    };
    match (continues, opcode.position.starts()) {
        (None, true) | (Some(true), false) => Ok(()),
        _ => Err(Refusal::InvalidRequest("packet out of order within its message")),
    }
}

impl Write {
    /// Begins with the packet that carries the RETH.
    pub(super) fn begin(
        executor: Executor<'_>,
        reth: Option<Reth>,
        position: Position,
        mtu: u32,
    ) -> Result<Write, Refusal> {
        let Some(Reth { va, rkey, len }) = reth else {
            return Err(Refusal::InvalidRequest("RDMA WRITE without RETH"));
        };
        if position == Position::First && len <= mtu && !sabotage::on(Sabotage::SkipLengthCheck) {
            return Err(Refusal::InvalidRequest("RDMA WRITE shorter than its first packet says"));
        }
        let remote = Remote { addr: va, rkey };
        let target = executor.write(remote, len)?;
        Ok(Write { target, remote, len, done: 0 })
    }

    /// Checks the lengths of the next packet.
    pub(super) fn check(&self, payload: usize, ends: bool) -> Result<(), Refusal> {
        let end = u64::from(self.done) + payload as u64;
        let fits = if ends { end == self.len.into() } else { end < self.len.into() };
        if fits || sabotage::on(Sabotage::SkipLengthCheck) {
            Ok(())
        } else {
            Err(Refusal::InvalidRequest("RDMA WRITE differs from its announced length"))
        }
    }

    /// Places the next packet.
    pub(super) fn place(&mut self, payload: &[u8]) -> Result<(), Refusal> {
        if !sabotage::on(Sabotage::LoseWrite) {
            match self.target.place(self.done.into(), payload) {
                Err(_) if sabotage::on(Sabotage::AckBeforePlace) => {}
                other => other?,
            }
        }
        self.done = self.done.saturating_add(payload.len() as u32);
        Ok(())
    }
}

impl Transport {
    pub(super) fn executor<'k>(&self, keys: &'k KeyTable) -> Executor<'k> {
        let queue = self.resp.queue.as_ref();
        let pd = queue.and_then(|queue| queue.pd_id()).unwrap_or(self.pd);
        let alarm = self.peer_alarm.clone();
        Executor { keys, pd, qpn: self.qpn, access: self.attr.access, alarm }
    }

    /// A request packet of a reliable connection.
    pub(super) fn serve(&mut self, rx: &Rx<'_>, cx: &mut Cx<'_>) {
        self.note_established(cx);
        let psn = rx.headers.bth.psn;
        let ahead = psn.after(self.resp.expected);
        if sabotage::on(Sabotage::SkipPsnCheck) {
            self.resp.expected = psn;
        } else if ahead < 0 {
            return self.repeat(rx, cx);
        } else if self.resp.put_off.is_some() {
            // It is sent again after the READ. An error of it now would end the connection with the READ unanswered.
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

    /// The queue that an XRC packet names (IBA A14.4).
    fn named_queue(
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

    /// The first packet in RTR tells the program that its peer is there (IBA 11.6.3.2).
    pub(super) fn note_established(&mut self, cx: &mut Cx<'_>) {
        if self.state == QpState::Rtr && !self.resp.established {
            self.resp.established = true;
            cx.sink.event(EventType::CommEst);
        }
    }

    fn execute(&mut self, rx: &Rx<'_>, cx: &mut Cx<'_>) -> Result<(), Refusal> {
        let opcode = rx.headers.bth.opcode;
        check_order(self.resp.message.as_ref(), opcode)?;
        check_packet(opcode, rx.payload.len(), self.mtu)?;
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

    fn message_done(&mut self) {
        self.resp.msn = (self.resp.msn + 1) & 0x00ff_ffff;
    }

    fn take_receive(&mut self, cx: &mut Cx<'_>) -> Result<Option<Landing>, Refusal> {
        let taken = match &self.resp.queue {
            // It was taken for the packet that comes again now.
            Some(_) if let Some(landing) = self.inbox.take_held() => Ok(landing),
            Some(queue) => Landing::of_xrc(queue.clone(), self.pd),
            None => self.inbox.take(self.pd),
        };
        match taken {
            Ok(landing) => Ok(Some(landing.watched(self.peer_alarm.as_ref()))),
            Err(Refusal::NotReady) if sabotage::on(Sabotage::IgnoreRnr) => Ok(None),
            Err(refusal) => {
                cx.counters.count(Counter::OutOfBuffer, 1);
                Err(refusal)
            }
        }
    }

    /// Where a SEND that begins with this packet goes, how much of the packet does not go there, and what to fetch instead.
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
                let bytes = rx.payload.get(skip..).unwrap_or_default();
                let ready = landing.ready(cx.keys, bytes.len());
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
        landing.tell(done, cx.sink);
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
            Some(Incoming::Write(write)) => write,
            _ => {
                cx.counters.count(Counter::RxWriteRequests, 1);
                Write::begin(self.executor(cx.keys), rx.headers.reth, position, self.mtu)?
            }
        };
        let ready = write.target.ready(write.done.into(), rx.payload.len(), true);
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
        write.check(rx.payload.len(), ends)?;
        // The receive request comes first: without one nothing of this packet may take effect.
        let landing = match rx.headers.imm {
            Some(_) => self.take_receive(cx)?,
            None => None,
        };
        if let Err(refusal) = write.place(rx.payload) {
            if let Some(landing) = landing {
                self.inbox.put_back(landing);
            }
            return Err(refusal);
        }
        if let Some(landing) = landing {
            let opcode = WcOpcode::RecvRdmaWithImm;
            let done = self.received(landing.wr_id(), WcStatus::Success, opcode, write.len, rx);
            landing.tell(done, cx.sink);
        }
        if ends {
            self.message_done();
        }
        Ok(())
    }

    /// A responder resource for one more READ or atomic, if the peer keeps to what was agreed.
    fn check_resources(&self) -> Result<(), Refusal> {
        let used = self.resp.responses.iter().filter(|r| r.fresh && r.is_answer()).count();
        if used < usize::from(self.attr.max_dest_rd_atomic) {
            Ok(())
        } else {
            Err(Refusal::InvalidRequest(
                "more READs and atomics than the responder has resources for",
            ))
        }
    }

    fn serve_read(&mut self, reth: Option<Reth>, cx: &mut Cx<'_>) -> Result<(), Refusal> {
        let Some(Reth { va, rkey, len }) = reth else {
            return Err(Refusal::InvalidRequest("RDMA READ without RETH"));
        };
        cx.counters.count(Counter::RxReadRequests, 1);
        let target = self.executor(cx.keys).read(Remote { addr: va, rkey }, len)?;
        self.check_resources()?;
        target.ready(0, len.min(self.mtu) as usize, false)?;
        let psn = self.resp.expected;
        let packets = len.div_ceil(self.mtu).max(1);
        self.message_done();
        self.resp.expected = psn.plus(packets);
        self.resp.last_answered = Some(psn);
        let remote = Remote { addr: va, rkey };
        self.owe(
            psn,
            Answer::Read(ReadAnswer { psn, packets, done: 0, len, remote, target }),
            true,
        );
        Ok(())
    }

    fn serve_atomic(&mut self, rx: &Rx<'_>, cx: &mut Cx<'_>) -> Result<(), Refusal> {
        let psn = self.resp.expected;
        cx.counters.count(Counter::RxAtomicRequests, 1);
        self.check_resources()?;
        let old = self.atomic(rx, cx)?;
        self.message_done();
        self.resp.expected = psn.plus(1);
        self.resp.last_answered = Some(psn);
        if self.resp.saved.len() >= usize::from(self.attr.max_dest_rd_atomic) {
            self.resp.saved.pop_front();
        }
        self.resp.saved.push_back((psn, old));
        self.owe(psn, Answer::Atomic(old), true);
        Ok(())
    }

    /// An ATOMIC WRITE or FLUSH (IBA A19): done, then answered by a READ response without data.
    fn serve_placement(&mut self, rx: &Rx<'_>, cx: &mut Cx<'_>) -> Result<(), Refusal> {
        let psn = self.resp.expected;
        self.check_resources()?;
        self.place_or_flush(rx, cx)?;
        self.message_done();
        self.resp.expected = psn.plus(1);
        self.resp.last_answered = Some(psn);
        self.owe(psn, Answer::done(psn), true);
        Ok(())
    }

    fn place_or_flush(&self, rx: &Rx<'_>, cx: &mut Cx<'_>) -> Result<(), Refusal> {
        let Some(Reth { va: addr, rkey, len }) = rx.headers.reth else {
            return Err(Refusal::InvalidRequest("a request without RETH"));
        };
        let remote = Remote { addr, rkey };
        if let Some(Feth { placement, level }) = rx.headers.feth {
            if level > 1 {
                return Err(Refusal::InvalidRequest("FLUSH of an unknown selectivity level"));
            }
            return self.executor(cx.keys).flush(&Flush {
                remote,
                len,
                placement,
                whole: level == 1,
            });
        }
        cx.counters.count(Counter::RxWriteRequests, 1);
        match rx.payload.try_into() {
            Ok(bytes) if len == 8 => {
                self.executor(cx.keys).atomic_write(remote, u64::from_ne_bytes(bytes))
            }
            _ => Err(Refusal::InvalidRequest("ATOMIC WRITE of other than 8 bytes")),
        }
    }

    fn atomic(&self, rx: &Rx<'_>, cx: &mut Cx<'_>) -> Result<u64, Refusal> {
        let Some(AtomicEth { va, rkey, swap_or_add, compare }) = rx.headers.atomic else {
            return Err(Refusal::InvalidRequest("atomic without AtomicETH"));
        };
        let op = match rx.headers.bth.opcode.operation {
            Operation::CompareSwap => AtomicOp::CompareSwap { compare, swap: swap_or_add },
            _ => AtomicOp::FetchAdd { add: swap_or_add },
        };
        self.executor(cx.keys).atomic(Remote { addr: va, rkey }, op)
    }

    /// A request seen before (IBA 9.7.5.1.4): nothing takes effect twice.
    fn repeat(&mut self, rx: &Rx<'_>, cx: &mut Cx<'_>) {
        cx.counters.count(Counter::DuplicateRequest, 1);
        self.resp.queue = self.named_queue(rx, cx).unwrap_or_default();
        self.repeat_answer(rx, cx);
        self.resp.queue = None;
    }

    fn repeat_answer(&mut self, rx: &Rx<'_>, cx: &mut Cx<'_>) {
        let psn = rx.headers.bth.psn;
        let operation = rx.headers.bth.opcode.operation;
        if operation != Operation::ReadRequest {
            self.asked_again(psn, 1);
        }
        match operation {
            Operation::Send | Operation::Write => {
                // An acknowledge beyond a READ whose responses were lost would read as an implied NAK.
                let ack = match self.resp.last_answered {
                    Some(answered) if answered.after(psn) > 0 => psn,
                    _ => self.resp.expected.minus(1),
                };
                self.owe_ack(ack);
            }
            Operation::ReadRequest => self.repeat_read(psn, rx.headers.reth, cx),
            Operation::AtomicWrite | Operation::Flush => {
                if sabotage::on(Sabotage::ReexecuteAtomics) {
                    let _ = self.place_or_flush(rx, cx);
                }
                if !self.crowded() {
                    self.owe(psn, Answer::done(psn), false);
                }
            }
            Operation::CompareSwap | Operation::FetchAdd => {
                if self.crowded() {
                    return;
                }
                let saved = self.resp.saved.iter().find(|(of, _)| *of == psn).map(|(_, old)| *old);
                let old = if sabotage::on(Sabotage::ReexecuteAtomics) {
                    self.atomic(rx, cx).ok()
                } else {
                    saved
                };
                if let Some(old) = old {
                    self.owe(psn, Answer::Atomic(old), false);
                }
            }
            _ => {}
        }
    }

    /// The peer asks for `packets` from `psn` on again. Whether that is of what was put off.
    fn asked_again(&mut self, psn: Psn, packets: u32) -> bool {
        let (end, expected) = (psn.plus(packets), self.resp.expected);
        let is_of_it = self.resp.put_off.is_some_and(|from| end.after(from) > 0);
        if is_of_it {
            self.resp.put_off = (expected.after(end) > 0).then_some(end);
        }
        is_of_it
    }

    /// Whether the peer repeats itself faster than the answers leave.
    fn crowded(&self) -> bool {
        self.resp.responses.len() > 2 * usize::from(self.attr.max_dest_rd_atomic) + 8
    }

    /// A READ, or the rest of one, asked for again is executed again from the address it names. When that fails it is
    /// refused, but nothing more: a late duplicate must not break the connection after the program took the memory away.
    fn repeat_read(&mut self, psn: Psn, reth: Option<Reth>, cx: &mut Cx<'_>) {
        let Some(Reth { va, rkey, len }) = reth else { return };
        if len > MAX_MESSAGE || self.crowded() {
            return;
        }
        let packets = len.div_ceil(self.mtu).max(1);
        if packets >= 1 << 23 || psn.plus(packets).after(self.resp.expected) > 0 {
            return;
        }
        let coming = self.resp.responses.iter().any(|response| match &response.answer {
            Answer::Read(read) => {
                psn.after(read.psn.plus(read.done)) >= 0
                    && psn.plus(packets).after(read.psn.plus(read.packets)) <= 0
            }
            _ => false,
        });
        if coming {
            return;
        }
        let put_off = self.asked_again(psn, packets);
        let remote = Remote { addr: va, rkey };
        let answer = match self.executor(cx.keys).read(remote, len) {
            Ok(target) => Answer::Read(ReadAnswer { psn, packets, done: 0, len, remote, target }),
            Err(refusal) if put_off => return self.refuse(refusal, psn, cx),
            Err(refusal) => Answer::refused_repetition(refusal),
        };
        self.owe(psn, answer, put_off);
    }

    /// Tells the peer no and draws the consequences (IBA 9.9.3): all but "not ready" end the connection.
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
        // The memory of an earlier READ failed after a later request had ended the connection: the program knows.
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
        landing.tell(done, cx.sink);
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

/// Takes what an aborted message had consumed, for the next message or the flush.
pub(super) fn abandon(message: &mut Option<Incoming>, inbox: &mut Inbox) {
    if let Some(Incoming::Send(landing)) = message.take() {
        inbox.put_back(landing);
    }
}
