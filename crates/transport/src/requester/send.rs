//! The way of a send request from the program to the wire: posted, begun, and turned into packets
//! as far as window, peer and rules of order allow.
//!
//! [`Transport::post_send`] appends it to the queue. [`Transport::transmit`] goes through the queue
//! packet by packet and hands each to [`Tx::packet`](crate::Tx::packet), which has its payload
//! copied straight from the memory that the request names.
//!
//! A reliable connection keeps its requests until the peer answers; `completer` moves them on. A
//! READ larger than a share of the window is asked for in several request packets with consecutive
//! PSN ranges, so that the requester governs the flow of responses too; the responder cannot tell
//! that from several READs. The borders of these ranges are fixed when the READ begins, so a
//! repeated request ends where the first one did.

use crate::error::{Error, Result};
use crate::qp::{FaultSide, QUEUE_LOST, Transport, service};
use crate::requests::check::Offer;
use crate::requests::requester::Cursor;
use crate::requests::vendor;
use crate::requests::wqe::{Phase, Wqe};
use crate::sabotage::{self, Sabotage};
use crate::values::*;
use crate::{Counter, Cx, Half, To};
use umem::AccessError;
use wire::{AtomicEth, Bth, Deth, Feth, Headers, Opcode, Operation, Position, Reth, Service};

/// PSNs that may be unanswered (IBA 9.7.2): half the circle.
const MAX_OUTSTANDING: u32 = 1 << 23;
/// Requests on their way at which a short one waits for company: an answer, at which all leave,
/// comes soon.
const ON_THEIR_WAY: usize = 16;
/// Requests that leave without waiting any longer.
const COMPANY: usize = 32;
/// Longest request that waits: for a longer one the call to the system weighs little.
const SHORT: u32 = 512;
/// READ requests that share the window.
const READS_A_WINDOW: u64 = 4;

/// What one step of emission came to.
enum Step {
    /// A packet went out, or something changed; look again.
    Moved,
    /// A request has its PSNs: its first packet comes next.
    Begun,
    /// Nothing more can be done now.
    Wait,
}

impl Transport {
    /// Appends a send request. In the error states it will be flushed.
    ///
    /// # Errors
    /// [`Error::Invalid`] in a state before RTS or for a request that breaks a limit;
    /// [`Error::NoMemory`] when the queue is full; [`Error::Lost`] when the memory that the program
    /// gave the queue is gone.
    pub fn post_send(&mut self, wr: SendWr) -> Result<()> {
        self.unfold();
        self.check_room(1)?;
        self.check_send(&wr)?;
        self.append(wr)
    }

    /// Appends all of `batch`, which is empty then, or nothing.
    ///
    /// # Errors
    /// As [`Transport::post_send`].
    pub fn post_sends(&mut self, batch: &mut Vec<SendWr>) -> Result<()> {
        self.unfold();
        self.check_room(batch.len())?;
        batch.iter().try_for_each(|wr| self.check_send(wr))?;
        batch.drain(..).try_for_each(|wr| self.append(wr))
    }

    fn append(&mut self, wr: SendWr) -> Result<()> {
        let mut wqe = Wqe::new(wr, self.sq_sig_all);
        if let Some(slots) = &mut self.send_slots {
            wqe.slot = Some(slots.store(&mut wqe.wr).map_err(|_| QUEUE_LOST)?);
        }
        self.req.queue.push_back(wqe);
        Ok(())
    }

    fn check_send(&self, wr: &SendWr) -> Result<()> {
        let (kind, cap, port) = (self.kind, &self.attr.cap, self.attr.port_num);
        Offer { kind, cap, port, custom: self.custom.is_some() }.check(wr)
    }

    fn check_room(&self, requests: usize) -> Result<()> {
        if matches!(self.state, QpState::Reset | QpState::Init | QpState::Rtr) {
            return Err(Error::Invalid("the QP is not ready to send"));
        }
        if self.kind == QpType::XrcRecv {
            return Err(Error::Invalid("the receiving half of XRC does not send"));
        }
        if self.req.posted() + requests > self.attr.cap.max_send_wr as usize {
            return Err(Error::NoMemory("the send queue is full"));
        }
        Ok(())
    }

    /// Emits what is owed to the peer and as many requests as window and peer allow.
    pub fn transmit(&mut self, cx: &mut Cx<'_>) {
        self.unfold_at(cx.now);
        self.now = Some(cx.now);
        self.more = false;
        self.paced_until = None;
        let waits = self.ack_waits(cx.now);
        match waits {
            true => self.notify(cx),
            false => self.respond(cx),
        }
        let sent_before = self.sent_packets;
        self.stop_if_alarmed();
        match (self.state, self.kind) {
            (QpState::Rts | QpState::Sqd, kind) if kind.is_reliable() => {
                self.acknowledge_rest(cx);
                // unless the rest was its end
                if self.state != QpState::Err {
                    self.request(cx);
                }
            }
            (QpState::Rts | QpState::Sqd, _) => self.send_unacknowledged(cx),
            (QpState::Sqe, _) => self.flush_sends(cx),
            (QpState::Err, _) => self.flush(cx),
            _ => {}
        }
        if self.sent_packets != sent_before {
            self.resp.replies.answered(cx.now);
        }
        if waits && !self.resp.replies.has_waiting() {
            // Behind the answer, whose train it joins.
            self.respond(cx);
        }
        self.stop_if_alarmed();
        self.check_drained(cx);
        self.tally(cx);
    }

    /// Whether what was posted last had better not leave by itself: a packet costs a call to the
    /// system, and so does a train. It leaves with the next [`Transport::transmit`], which an
    /// answer to what is on its way brings about, or else its timer.
    pub fn waits_for_company(&self) -> bool {
        let waiting = self.req.queue.len().saturating_sub(self.req.cursor.wqe);
        self.kind.is_reliable()
            && self.state == QpState::Rts
            && self.req.cursor.wqe >= ON_THEIR_WAY
            && (1..COMPANY).contains(&waiting)
            && self.req.queue.back().is_some_and(|wqe| wqe.length <= SHORT)
    }

    /// Emits requests of a reliable connection.
    fn request(&mut self, cx: &mut Cx<'_>) {
        let waits = |side| self.faults.is_open(side);
        if self.req.rnr_until.is_some() || waits(FaultSide::Requests) || waits(FaultSide::Landing) {
            return;
        }
        while !cx.budget.requests.is_spent() && !cx.tx.is_busy(cx.now) {
            if let Step::Wait = self.request_step(cx) {
                return;
            }
        }
        // The last of all may have been what spent the budget.
        self.more |= self.req.queue.get(self.req.cursor.wqe).is_some();
    }

    fn request_step(&mut self, cx: &mut Cx<'_>) -> Step {
        let Cursor { wqe: index, packet } = self.req.cursor;
        let Some(wqe) = self.req.queue.get(index) else { return Step::Wait };
        match wqe.phase {
            Phase::Failed(..) => return Step::Wait,
            Phase::Posted => match self.begin(index, cx) {
                Step::Begun => {}
                other => return other,
            },
            Phase::Started => {}
        }
        let wqe = &self.req.queue[index];
        let steps = if wqe.is_read() { wqe.covers(packet) } else { 1 };
        let cost = wqe.position(packet + steps, self.mtu) - wqe.position(packet, self.mtu);
        let flight = self.req.flight(self.mtu);
        if flight > 0 && flight + cost > self.req.window.size() {
            return Step::Wait;
        }
        let psn = wqe.first.plus(packet);
        if psn.after(self.req.una()) as u32 + steps > MAX_OUTSTANDING - 1 {
            return Step::Wait;
        }
        let answered = wqe.is_answered();
        if answered && self.req.reads >= u32::from(self.attr.max_rd_atomic) {
            return Step::Wait;
        }
        let (is_read, is_last) = (wqe.is_read(), packet + steps == wqe.packets);
        // What a READ brings is asked for where it leaves.
        let leaves =
            is_read || (self.keeps_pace(cost, cx) && self.port_takes(Half::Requester, cost, cx));
        if !leaves {
            return Step::Wait;
        }
        self.req.since_ack_req += cost;
        let ack_req = is_last || answered || self.req.since_ack_req >= self.ack_share();
        if let Err(error) = self.emit(index, packet, ack_req, cx) {
            if self.waits_to_send((index, packet), error, cx) {
                return Step::Wait;
            }
            self.req.queue[index].phase =
                Phase::Failed(WcStatus::LocProtErr, vendor::memory(error));
            self.fail_if_oldest(cx);
            return Step::Wait;
        }
        let end = psn.plus(steps);
        let req = &mut self.req;
        if end.after(req.high) > 0 {
            req.high = end;
            if ack_req && req.sample.is_none() {
                req.sample = Some((psn, cx.now));
            }
        } else {
            cx.counters.count(Counter::Retransmits, 1);
        }
        if ack_req {
            req.since_ack_req = 0;
        }
        req.reads += u32::from(answered);
        req.cursor = match is_last {
            true => Cursor { wqe: index + 1, packet: 0 },
            false => Cursor { wqe: index, packet: packet + steps },
        };
        req.timers.ensure(cx.now, &req.rtt);
        cx.budget.requests.spend(if is_read { 0 } else { cost });
        Step::Moved
    }

    /// Begins the request at the cursor: order, local checks, PSNs.
    fn begin(&mut self, index: usize, cx: &mut Cx<'_>) -> Step {
        self.stop_if_alarmed();
        let wqe = &self.req.queue[index];
        if self.state != QpState::Rts && !wqe.has_begun() {
            return Step::Wait;
        }
        if self.waits_for_its_turn(index, cx) {
            return Step::Wait;
        }
        let wqe = &self.req.queue[index];
        if wqe.is_local() {
            return self.change_key(index, cx);
        }
        let fenced =
            wqe.wr.flags.contains(SendFlags::FENCE) && !sabotage::on(Sabotage::IgnoreFence);
        if fenced && self.req.answers_due > 0 {
            return Step::Wait;
        }
        let max_rd_atomic = u64::from(self.attr.max_rd_atomic);
        let mtu = self.mtu;
        let req = &mut self.req;
        let wqe = &mut req.queue[index];
        let pd = wqe.pd(self.pd);
        let outcome = if wqe.is_answered() && max_rd_atomic == 0 {
            Err((WcStatus::LocQpOpErr, vendor::NO_READ_RESOURCES))
        } else {
            wqe.resolve(cx.keys, pd, &self.ranges)
        };
        if let Err((status, vendor_err)) = outcome {
            wqe.phase = Phase::Failed(status, vendor_err);
            self.fail_if_oldest(cx);
            return Step::Wait;
        }
        if self.goes_directly(index, cx) {
            return Step::Moved;
        }
        let req = &mut self.req;
        let wqe = &mut req.queue[index];
        if let Some(alarm) = &self.alarm {
            wqe.memory.watch(alarm);
        }
        wqe.start(req.next_psn, mtu, req.next_base);
        if wqe.is_read() {
            let share = req.window.size() / READS_A_WINDOW.min(max_rd_atomic);
            let packet = wqe.position(1, mtu.max(1)) - wqe.base;
            wqe.chunk =
                u32::try_from(share / packet.max(1)).unwrap_or(u32::MAX).clamp(1, wqe.packets);
        }
        req.next_psn = wqe.end();
        req.next_base = wqe.position(wqe.packets, mtu);
        req.answers_due += u32::from(wqe.is_answered());
        Step::Begun
    }

    /// A bind or local invalidate takes effect when everything before it is complete: a
    /// retransmission may still need the key. So it needs no fence, and what follows finds the key
    /// changed.
    fn change_key(&mut self, index: usize, cx: &mut Cx<'_>) -> Step {
        if index != 0 {
            return Step::Wait;
        }
        let (who, custom) = ((self.pd, self.qpn), self.custom.as_deref());
        match self.req.queue[0].change_key(cx.keys, who, custom) {
            Ok(Worked::All(bytes)) => {
                cx.budget.requests.spend(bytes);
                self.complete_oldest(cx);
                Step::Moved
            }
            Ok(Worked::Part(bytes)) => {
                cx.budget.requests.spend(bytes);
                Step::Moved
            }
            Err((status, vendor_err)) => {
                self.req.queue[0].phase = Phase::Failed(status, vendor_err);
                self.fail_if_oldest(cx);
                Step::Wait
            }
        }
    }

    /// Emits the request packet at `packet` of request `index`; moves nothing.
    pub(super) fn emit(
        &mut self,
        index: usize,
        packet: u32,
        ack_req: bool,
        cx: &mut Cx<'_>,
    ) -> std::result::Result<(), AccessError> {
        let mtu = self.mtu;
        let wqe = &mut self.req.queue[index];
        let Some(service) = service(self.kind) else {
            let len = wqe.length as usize;
            cx.tx.frame(len, &mut |dst, fold| wqe.fill(0, dst, fold))?;
            self.sent_packets += 1;
            self.sent_bytes += len as u64;
            return Ok(());
        };
        let at = u64::from(packet) * u64::from(mtu);
        let last = packet + 1 == wqe.packets;
        let position = match (packet == 0, last) {
            (true, true) => Position::Only,
            (true, false) => Position::First,
            (false, false) => Position::Middle,
            (false, true) => Position::Last,
        };
        let (operation, remote) = match wqe.wr.op {
            SendOp::Write(remote) | SendOp::WriteImm(remote, _) => (Operation::Write, Some(remote)),
            SendOp::Read(remote) => (Operation::ReadRequest, Some(remote)),
            SendOp::CompareSwap { remote, .. } => (Operation::CompareSwap, Some(remote)),
            SendOp::FetchAdd { remote, .. } => (Operation::FetchAdd, Some(remote)),
            SendOp::AtomicWrite(remote) => (Operation::AtomicWrite, Some(remote)),
            SendOp::Flush(flush) => (Operation::Flush, Some(flush.remote)),
            _ => (Operation::Send, None),
        };
        let imm = match wqe.wr.op {
            SendOp::SendImm(imm) | SendOp::WriteImm(_, imm) if last => Some(imm),
            _ => None,
        };
        let invalidate = match wqe.wr.op {
            SendOp::SendInvalidate(key) if last => Some(key),
            _ => None,
        };
        let answered = wqe.is_answered();
        let len = if wqe.is_fetch() { 0 } else { wqe.payload_at(packet, mtu) };
        let (dest_qp, to, deth) = match &wqe.wr.datagram {
            Some(datagram) => {
                // Bit 31 of the work request's Q_Key asks for the QP's own (IBA 10.2.5).
                let own = datagram.remote_qkey & 1 << 31 != 0;
                let qkey = if own { self.attr.qkey } else { datagram.remote_qkey };
                (
                    datagram.remote_qpn,
                    Some(datagram.ah.clone()),
                    Some(Deth { qkey, src_qp: self.name }),
                )
            }
            None => (self.attr.dest_qp_num, None, None),
        };
        // A solicited event is raised by what consumes a receive request (IBA 9.2.3).
        let may_solicit = operation == Operation::Send || imm.is_some();
        let mut headers = Headers::new(Bth {
            opcode: Opcode {
                service,
                operation,
                position: if answered { Position::Only } else { position },
                imm: imm.is_some(),
                invalidate: invalidate.is_some(),
            },
            solicited: last && may_solicit && wqe.wr.flags.contains(SendFlags::SOLICITED),
            migrated: true,
            pad: (len.wrapping_neg() & 3) as u8,
            pkey: wire::DEFAULT_PKEY,
            fecn: false,
            becn: false,
            dest_qp,
            ack_req,
            psn: wqe.first.plus(packet),
        });
        headers.deth = deth;
        headers.xrc_srqn = (service == Service::Xrc).then_some(wqe.wr.xrc_srqn);
        headers.imm = imm;
        headers.invalidate = invalidate;
        match (&wqe.wr.op, remote) {
            (SendOp::Read(_), Some(remote)) => {
                let span = u64::from(wqe.covers(packet)) * u64::from(mtu);
                headers.reth = Some(Reth {
                    va: remote.addr.wrapping_add(at),
                    rkey: remote.rkey,
                    len: u64::from(wqe.length).saturating_sub(at).min(span) as u32,
                });
            }
            (SendOp::CompareSwap { compare, swap, .. }, Some(Remote { addr: va, rkey })) => {
                headers.atomic =
                    Some(AtomicEth { va, rkey, swap_or_add: *swap, compare: *compare });
            }
            (SendOp::FetchAdd { add, .. }, Some(Remote { addr: va, rkey })) => {
                headers.atomic = Some(AtomicEth { va, rkey, swap_or_add: *add, compare: 0 });
            }
            (SendOp::Flush(flush), Some(Remote { addr: va, rkey })) => {
                let level = u8::from(flush.whole);
                headers.feth = Some(Feth { placement: flush.placement, level });
                headers.reth = Some(Reth { va, rkey, len: flush.len });
            }
            (_, Some(remote)) if position.starts() => {
                headers.reth = Some(Reth { va: remote.addr, rkey: remote.rkey, len: wqe.length });
            }
            _ => {}
        }
        let half = Half::Requester;
        let in_place = to.is_none() && cx.tx.packet_in_place(half, &headers, (at, len), wqe);
        if !in_place {
            let to = to.as_ref().map_or(To::Peer(half), To::Ah);
            cx.tx.packet(to, &headers, len, &mut |dst, fold| wqe.fill(at, dst, fold))?;
        }
        self.sent_packets += 1;
        self.sent_bytes += len as u64;
        Ok(())
    }
}
