//! The requester: turns send requests into packets, as far as window, peer and rules of order allow.
//!
//! A reliable connection keeps its requests until the peer answers; `completer` moves them on. A READ larger than a
//! share of the window is asked for in several request packets with consecutive PSN ranges, so that the requester governs
//! the flow of responses too; the responder cannot tell that from several READs. The borders of these ranges are
//! fixed when the READ begins, so a repeated request ends where the first one did.

use super::Transport;
use super::paging::FaultSide;
use super::raw::MAX_FRAME;
use super::send::{Phase, Wqe, vendor};
use super::timing::{AckTimers, RoundTrip};
use super::window::{Pace, Window};
use crate::sabotage::{self, Sabotage};
use crate::values::*;
use crate::{Counter, Cx, To, Worked};
use std::collections::VecDeque;
use std::time::{Duration, Instant};
use umem::AccessError;
use wire::{
    AtomicEth, Bth, Deth, Feth, Headers, Opcode, Operation, Position, Psn, Reth, Service, Syndrome,
};

/// The only partition of RoCE: default, full membership.
pub(super) const PKEY: u16 = 0xffff;
/// PSNs that may be unanswered (IBA 9.7.2): half the circle.
const MAX_OUTSTANDING: u32 = 1 << 23;
/// How long is waited before a full receiver is asked again.
pub(super) const PAUSE: Duration = Duration::from_micros(50);
/// Requests on their way at which a short one waits for company: an answer, at which all leave, comes soon.
const ON_THEIR_WAY: usize = 16;
/// Requests that leave without waiting any longer.
const COMPANY: usize = 32;
/// Longest request that waits: for a longer one the call to the system weighs little.
const SHORT: u32 = 512;
/// READ requests that share the window.
const READS_A_WINDOW: u64 = 4;

/// The next packet to emit.
#[derive(Clone, Copy, Default)]
pub(super) struct Cursor {
    /// Request, counted from the oldest.
    pub(super) wqe: usize,
    /// PSN within it.
    pub(super) packet: u32,
}

/// State of the send side.
pub(super) struct Requester {
    /// Requests not completed, oldest first.
    pub(super) queue: VecDeque<Wqe>,
    /// Of these, the HCA's own.
    offloaded: usize,
    pub(super) cursor: Cursor,
    /// PSN of the next request that begins.
    pub(super) next_psn: Psn,
    /// The PSN after the highest one ever asked for.
    pub(super) high: Psn,
    /// End of the axis of costs.
    next_base: u64,
    pub(super) window: Window,
    pace: Pace,
    pub(super) rtt: RoundTrip,
    pub(super) timers: AckTimers,
    /// ACK timeouts since the peer last made progress.
    pub(super) timeouts: u32,
    /// READ and atomic packets that the peer has not finished answering.
    pub(super) reads: u32,
    /// READ and atomic requests begun and not complete.
    pub(super) answers_due: u32,
    since_ack_req: u64,
    pub(super) retry_left: u8,
    pub(super) rnr_left: u8,
    /// The peer asked us to wait.
    pub(super) rnr_until: Option<Instant>,
    /// An acknowledge of which a part waits for another call.
    pub(super) rest: Option<(Psn, Syndrome)>,
    /// The oldest PSN at the last go-back: one loss is reported by many packets and repaired once.
    pub(super) recovering: Option<Psn>,
    /// The PSN after the last probe.
    pub(super) probe_end: Option<Psn>,
    /// One packet whose round trip is being measured.
    pub(super) sample: Option<(Psn, Instant)>,
}

impl Requester {
    /// One whose requests go to `queue`, which is empty.
    pub(super) fn new(queue: VecDeque<Wqe>, first: Psn, window_bytes: u64, mtu: u32) -> Requester {
        Requester {
            queue,
            offloaded: 0,
            cursor: Cursor::default(),
            next_psn: first,
            high: first,
            next_base: 0,
            window: Window::new(window_bytes, mtu),
            pace: Pace::new(window_bytes, mtu),
            rtt: RoundTrip::default(),
            timers: AckTimers::default(),
            timeouts: 0,
            reads: 0,
            answers_due: 0,
            since_ack_req: 0,
            retry_left: 0,
            rnr_left: 0,
            rnr_until: None,
            rest: None,
            recovering: None,
            probe_end: None,
            sample: None,
        }
    }

    /// Forgets everything but the memory of its queue.
    pub(super) fn restart(&mut self, first: Psn, window_bytes: u64, mtu: u32) {
        let mut queue = std::mem::take(&mut self.queue);
        queue.clear();
        *self = Requester::new(queue, first, window_bytes, mtu);
    }

    /// Requests of the program that are not complete.
    pub(super) fn posted(&self) -> usize {
        self.queue.len() - self.offloaded
    }

    /// Appends a request of the HCA's own.
    pub(super) fn offload(&mut self, wqe: Wqe) {
        self.queue.push_back(wqe);
        self.offloaded += 1;
    }

    /// The oldest unanswered PSN.
    pub(super) fn una(&self) -> Psn {
        match self.queue.front() {
            Some(wqe) if wqe.phase != Phase::Posted => wqe.first.plus(wqe.acked),
            _ => self.next_psn,
        }
    }

    /// The PSN of the next packet to emit.
    pub(super) fn cursor_psn(&self) -> Psn {
        match self.queue.get(self.cursor.wqe) {
            Some(wqe) if wqe.phase != Phase::Posted => wqe.first.plus(self.cursor.packet),
            _ => self.next_psn,
        }
    }

    /// What is in flight, in bytes of cost.
    fn flight(&self, mtu: u32) -> u64 {
        let at = |index: usize, packet: u32| match self.queue.get(index) {
            Some(wqe) if wqe.phase != Phase::Posted => wqe.position(packet, mtu),
            _ => self.next_base,
        };
        let oldest = self.queue.front().map_or(0, |wqe| wqe.acked);
        at(self.cursor.wqe, self.cursor.packet).saturating_sub(at(0, oldest))
    }

    /// Everything from the oldest unanswered PSN on will be emitted again.
    pub(super) fn go_back(&mut self) {
        let packet = self.queue.front().map_or(0, |wqe| wqe.acked);
        self.cursor = Cursor { wqe: 0, packet };
        self.reads = 0;
        self.since_ack_req = 0;
        self.sample = None;
        self.probe_end = None;
        self.timers.stop();
    }

    /// Takes the oldest request out; the cursor stays on its packet.
    pub(super) fn pop(&mut self) -> Option<Wqe> {
        let wqe = self.queue.pop_front()?;
        if self.queue.is_empty() {
            // It begins anew at its first place, so that a queue that is never full touches little memory.
            self.queue.clear();
        }
        self.offloaded -= usize::from(wqe.offload.is_some());
        match self.cursor.wqe {
            0 => self.cursor.packet = 0,
            _ => self.cursor.wqe -= 1,
        }
        if wqe.is_answered() && wqe.phase != Phase::Posted && wqe.packets > 0 {
            self.answers_due = self.answers_due.saturating_sub(1);
        }
        Some(wqe)
    }
}

/// What one step of emission came to.
enum Step {
    /// A packet went out, or something changed; look again.
    Moved,
    /// Nothing more can be done now.
    Wait,
}

impl Transport {
    /// Whether what was posted last had better not leave by itself: a packet costs a call to the system, and so does a train. It
    /// leaves with the next [`Transport::transmit`], which an answer to what is on its way brings about, or else its timer.
    pub fn waits_for_company(&self) -> bool {
        let waiting = self.req.queue.len().saturating_sub(self.req.cursor.wqe);
        self.kind.is_reliable()
            && self.state == QpState::Rts
            && self.req.cursor.wqe >= ON_THEIR_WAY
            && (1..COMPANY).contains(&waiting)
            && self.req.queue.back().is_some_and(|wqe| wqe.length <= SHORT)
    }

    /// Emits requests of a reliable connection.
    pub(super) fn request(&mut self, cx: &mut Cx<'_>) {
        let waits = |side| self.faults.is_open(side);
        if self.req.rnr_until.is_some() || waits(FaultSide::Requests) || waits(FaultSide::Landing) {
            return;
        }
        while !cx.budget.requests.is_spent() && !cx.tx.is_busy(cx.now) {
            if let Step::Wait = self.request_step(cx) {
                return;
            }
        }
        self.more = true;
    }

    fn request_step(&mut self, cx: &mut Cx<'_>) -> Step {
        let Cursor { wqe: index, packet } = self.req.cursor;
        let Some(wqe) = self.req.queue.get(index) else { return Step::Wait };
        match wqe.phase {
            Phase::Failed(..) => return Step::Wait,
            Phase::Posted => return self.begin(index, cx),
            Phase::Started => {}
        }
        if packet == wqe.packets {
            self.req.cursor = Cursor { wqe: index + 1, packet: 0 };
            return Step::Moved;
        }
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
        if !is_read && !self.port_takes(cost, cx) {
            return Step::Wait;
        }
        self.req.since_ack_req += cost;
        let ack_req = is_last || answered || self.req.since_ack_req >= self.req.window.size() / 4;
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
        req.cursor.packet += steps;
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
        Step::Moved
    }

    /// A bind or local invalidate takes effect when everything before it is complete: a retransmission may still need the
    /// key. So it needs no fence, and what follows finds the key changed.
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
    ) -> Result<(), AccessError> {
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
            pkey: PKEY,
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
        let to = to.as_ref().map_or(To::Peer, To::Ah);
        cx.tx.packet(to, &headers, len, &mut |dst, fold| wqe.fill(at, dst, fold))?;
        self.sent_packets += 1;
        self.sent_bytes += len as u64;
        Ok(())
    }

    /// Emits requests of an unreliable service: each is complete once its last packet is out.
    pub(super) fn send_unacknowledged(&mut self, cx: &mut Cx<'_>) {
        if self.faults.is_open(FaultSide::Requests) {
            return;
        }
        while let Some(wqe) = self.req.queue.front_mut() {
            if cx.budget.requests.is_spent() || cx.tx.is_busy(cx.now) {
                self.more = true;
                return;
            }
            if wqe.phase == Phase::Posted {
                if self.state != QpState::Rts && !wqe.has_begun() {
                    return;
                }
                let outcome = if wqe.is_local() {
                    wqe.change_key(cx.keys, (self.pd, self.qpn), self.custom.as_deref())
                } else {
                    wqe.resolve(cx.keys, self.pd, &self.ranges).map(|()| Worked::All(0))
                };
                let worked = match outcome {
                    Ok(Worked::All(bytes)) => bytes,
                    Ok(Worked::Part(bytes)) => {
                        cx.budget.requests.spend(bytes);
                        continue;
                    }
                    Err((status, vendor_err)) => {
                        wqe.phase = Phase::Failed(status, vendor_err);
                        return self.fail_if_oldest(cx);
                    }
                };
                if let Some(alarm) = &self.alarm {
                    wqe.memory.watch(alarm);
                }
                // C10-93.1.1: nothing of a datagram beyond the port's MTU leaves, and that is no error.
                let too_long = match self.kind {
                    QpType::Ud => wqe.length > cx.tx.port_mtu(),
                    QpType::RawPacket => wqe.length > MAX_FRAME,
                    _ => false,
                };
                if too_long {
                    cx.counters.count(Counter::TxRefused, 1);
                }
                if too_long || wqe.is_local() {
                    cx.budget.requests.spend(worked);
                    self.complete_oldest(cx);
                    continue;
                }
                wqe.start(self.req.next_psn, self.mtu, 0);
                self.req.next_psn = wqe.end();
                self.req.cursor = Cursor::default();
            }
            let (packet, packets) = (self.req.cursor.packet, wqe.packets);
            let cost = wqe.position(packet + 1, self.mtu) - wqe.position(packet, self.mtu);
            let (to, dest_qpn) = match &wqe.wr.datagram {
                Some(datagram) => (To::Ah(&datagram.ah), datagram.remote_qpn),
                None => (To::Peer, self.attr.dest_qp_num),
            };
            let go = match cx.tx.room(to, dest_qpn, cost, cx.now) {
                Some(true) => Ok(()),
                Some(false) => Err(cx.now + PAUSE),
                None => self.req.pace.take(cx.now, cost),
            };
            if let Err(until) = go {
                self.paced_until = Some(until);
                return;
            }
            if let Err(error) = self.emit(0, packet, false, cx) {
                if self.waits_to_send((0, packet), error, cx) {
                    return;
                }
                self.req.queue[0].phase =
                    Phase::Failed(WcStatus::LocProtErr, vendor::memory(error));
                return self.fail_if_oldest(cx);
            }
            cx.budget.requests.spend(cost);
            self.req.cursor.packet += 1;
            if packet + 1 == packets {
                self.complete_oldest(cx);
            }
        }
    }
}

/// The wire's name of a QP type; whole frames have none.
pub(super) fn service(kind: QpType) -> Option<Service> {
    match kind {
        QpType::Rc => Some(Service::Rc),
        QpType::Uc => Some(Service::Uc),
        QpType::Ud => Some(Service::Ud),
        QpType::XrcSend | QpType::XrcRecv => Some(Service::Xrc),
        QpType::RawPacket => None,
    }
}
