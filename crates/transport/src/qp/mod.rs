//! One QP's transport as a whole: posting, packets in, packets out, time, and the end of everything in the error state.

mod budget;
mod completer;
pub mod executor;
mod paging;
mod raw;
mod rendezvous;
mod requester;
mod responder;
mod response;
mod send;
mod state;
pub mod timing;
mod uc;
mod ud;
mod window;

pub use budget::{Budget, Share};
pub use executor::SharedQueue;
pub use paging::{FaultSide, FaultedWork, Missing, PageFault, Verdict};

use self::executor::{Inbox, MAX_MESSAGE, total_length};
use self::paging::Faults;
use self::raw::{MAX_FRAME, check_frame};
use self::requester::{PAUSE, PKEY, Requester, service};
use self::responder::{Responder, abandon};
use self::response::Answer;
use self::send::{RangeShelf, Wqe, vendor};
use self::state::reset_attr;
use self::timing::ack_wait;
use crate::counters::Counter;
use crate::cx::{CustomWork, Cx, Rx, To};
use crate::error::{Error, Result};
use crate::keys::SignatureSink;
use crate::keys::{Alarm, Watcher};
use crate::queues::slots::{self, Fifo, QueueMemory, SendSlots};
use crate::sabotage::{self, Sabotage};
use crate::shelf::{Shelf, queue_of};
use crate::values::PdId;
use crate::values::XrcdId;
use crate::values::*;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};
use wire::{NakCode, Psn, Syndrome};

/// Bytes that a reliable service asks a port to take at a time: about what leaves as one train.
const TRAIN_BYTES: u64 = 64 << 10;

/// What a transport is created from.
pub struct Init {
    /// Service.
    pub qp_type: QpType,
    /// Own QP number.
    pub qpn: u32,
    /// The number that its datagrams name as their source.
    pub name: u32,
    /// Protection domain.
    pub pd: PdId,
    /// Queue sizes, which are also the limits.
    pub cap: QpCap,
    /// Every send raises a completion.
    pub sq_sig_all: bool,
    /// Receives come from here instead of an own queue.
    pub srq: Option<SharedQueue>,
    /// Does [`SendOp::Custom`]; without it there is none.
    pub custom: Option<Arc<dyn CustomWork>>,
    /// Is told of block signatures that are bad.
    pub signatures: Option<Arc<dyn SignatureSink>>,
    /// Receives come from any queue of this domain.
    pub xrcd: Option<XrcdId>,
    /// What the link's buffers bear in flight, in bytes.
    pub window_bytes: u64,
    /// Limit of `max_rd_atomic` and `max_dest_rd_atomic`.
    pub max_rd_atomic: u8,
    /// Where its queues live; `None` = in the engine's own memory.
    pub memory: Option<QueueMemory>,
    /// Memory for as many requests as `cap` allows is set aside now; otherwise it grows with them.
    pub set_aside: bool,
}

/// Everything of one QP that its lock guards.
///
/// After any `post_*`, call [`Transport::transmit`]; after a burst of [`Transport::receive`],
/// [`Transport::end_of_batch`] and `transmit`; when [`Transport::deadline`] passes, [`Transport::timer`].
pub struct Transport {
    kind: QpType,
    qpn: u32,
    name: u32,
    custom: Option<Arc<dyn CustomWork>>,
    pd: PdId,
    cap: QpCap,
    sq_sig_all: bool,
    window_bytes: u64,
    max_rd_atomic: u8,
    state: QpState,
    attr: QpAttr,
    /// Path MTU in bytes.
    mtu: u32,
    req: Requester,
    resp: Responder,
    inbox: Inbox,
    faults: Faults,
    /// Stores for the resolved lists of send requests.
    ranges: Arc<RangeShelf>,
    /// Where payloads of send requests are described, if not in the requests.
    send_slots: Option<SendSlots>,
    xrcd: Option<XrcdId>,
    /// Rings when a send request found a bad block signature; on some queue pairs sending stops then.
    alarm: Option<Alarm>,
    stops_when_alarmed: bool,
    /// Rings when what the peer sent or asked for did.
    peer_alarm: Option<Alarm>,
    /// The latest present known.
    now: Option<Instant>,
    /// A call ended because its budget did.
    more: bool,
    /// It is to be told that no receive request is under way, once that is so.
    owes_last_wqe: bool,
    /// The peer's port has no room, or an unreliable service waits for its pace.
    paced_until: Option<Instant>,
    /// Bytes that the peer's port has room for and that were not sent yet.
    allowance: u64,
    /// Not yet counted.
    sent_packets: u64,
    sent_bytes: u64,
}

impl Transport {
    /// A QP in RESET.
    ///
    /// # Errors
    /// [`Error::NoMemory`] when there is none for its queues.
    pub fn new(init: Init) -> Result<Transport> {
        let attr = reset_attr(init.cap);
        let signatures = init.signatures;
        let mtu = mtu(init.qp_type, &attr);
        let (send_slots, receives) = match init.memory {
            Some(memory) => {
                let (sends, receives) = slots::split(memory, &init.cap)?;
                (Some(sends), receives)
            }
            None if init.set_aside && init.srq.is_none() => {
                (None, Fifo::own(init.cap.max_recv_wr as usize)?)
            }
            None => (None, Fifo::default()),
        };
        let sends = if init.set_aside { init.cap.max_send_wr as usize } else { 0 };
        Ok(Transport {
            kind: init.qp_type,
            qpn: init.qpn,
            name: init.name,
            custom: init.custom,
            pd: init.pd,
            cap: init.cap,
            sq_sig_all: init.sq_sig_all,
            window_bytes: init.window_bytes,
            max_rd_atomic: init.max_rd_atomic,
            state: QpState::Reset,
            attr,
            mtu,
            req: Requester::new(queue_of(sends)?, Psn::default(), init.window_bytes, mtu),
            resp: Responder::default(),
            inbox: Inbox::new(receives, init.srq),
            faults: Faults::default(),
            ranges: Shelf::new(sends, init.cap.max_send_sge as usize)?,
            send_slots,
            xrcd: init.xrcd,
            alarm: signatures.clone().map(|sink| Watcher::telling(sink, false)),
            stops_when_alarmed: false,
            peer_alarm: signatures.map(|sink| Watcher::telling(sink, true)),
            now: None,
            more: false,
            owes_last_wqe: false,
            paced_until: None,
            allowance: 0,
            sent_packets: 0,
            sent_bytes: 0,
        })
    }

    /// Present state.
    pub fn state(&self) -> QpState {
        self.state
    }

    /// Remembers that packets leave from this UDP port.
    pub fn set_udp_source(&mut self, port: u16) {
        self.attr.ah.udp_src = port;
    }

    /// Has the send queue of a reliable connection drain to SQD when one of its requests finds a bad block signature, before
    /// any later request begins (mlx5dv_qp_cancel_posted_send_wrs(3)).
    pub fn stop_at_bad_signatures(&mut self) {
        self.alarm.get_or_insert_default();
        self.stops_when_alarmed = true;
    }

    /// Cancels the program's send requests of this identifier that have not begun: each will complete as if it had been done.
    /// Gives how many they are.
    ///
    /// # Errors
    /// [`Error::Invalid`] unless the send queue has drained to SQD.
    pub fn cancel_sends(&mut self, wr_id: u64) -> Result<usize> {
        if self.state != QpState::Sqd || self.attr.sq_draining {
            return Err(Error::Invalid("the send queue is not drained"));
        }
        let is_meant =
            |wqe: &&mut Wqe| wqe.wr.wr_id == wr_id && wqe.offload.is_none() && !wqe.cancelled;
        let meant = self.req.queue.iter_mut().filter(is_meant);
        Ok(meant.map(|wqe| wqe.cancelled = true).count())
    }

    /// Takes back the program's send requests that have not begun, oldest first: a front end whose program may still change
    /// them posts them anew.
    ///
    /// # Errors
    /// [`Error::Invalid`] unless the send queue has drained to SQD.
    pub fn withdraw_sends(&mut self) -> Result<Vec<SendWr>> {
        if self.state != QpState::Sqd || self.attr.sq_draining {
            return Err(Error::Invalid("the send queue is not drained"));
        }
        let stays = |wqe: &Wqe| wqe.offload.is_some() || wqe.slot.is_some();
        let (stay, taken): (VecDeque<Wqe>, VecDeque<Wqe>) =
            self.req.queue.drain(..).partition(stays);
        self.req.queue = stay;
        Ok(taken.into_iter().map(|wqe| wqe.wr).collect())
    }

    /// Present attributes; PSNs are the next ones.
    pub fn query(&self) -> QpAttr {
        QpAttr {
            qp_state: self.state,
            cur_qp_state: self.state,
            sq_psn: self.req.next_psn.get(),
            rq_psn: self.resp.expected.get(),
            ..self.attr
        }
    }

    /// Appends a send request. In the error states it will be flushed.
    ///
    /// # Errors
    /// [`Error::Invalid`] in a state before RTS or for a request that breaks a limit; [`Error::NoMemory`] when the queue
    /// is full; [`Error::Lost`] when the memory that the program gave the queue is gone.
    pub fn post_send(&mut self, wr: SendWr) -> Result<()> {
        self.check_room(1)?;
        self.check_send(&wr)?;
        self.append(wr)
    }

    /// Appends all of `batch`, which is empty then, or nothing.
    ///
    /// # Errors
    /// As [`Transport::post_send`].
    pub fn post_sends(&mut self, batch: &mut Vec<SendWr>) -> Result<()> {
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

    fn check_room(&self, requests: usize) -> Result<()> {
        if matches!(self.state, QpState::Reset | QpState::Init | QpState::Rtr) {
            return Err(Error::Invalid("the QP is not ready to send"));
        }
        if self.kind == QpType::XrcRecv {
            return Err(Error::Invalid("the receiving half of XRC does not send"));
        }
        if self.req.posted() + requests > self.cap.max_send_wr as usize {
            return Err(Error::NoMemory("the send queue is full"));
        }
        Ok(())
    }

    fn check_send(&self, wr: &SendWr) -> Result<()> {
        let offered = match (self.kind, &wr.op) {
            (QpType::Rc | QpType::XrcSend, _) => true,
            (QpType::XrcRecv, _) => false,
            (QpType::Uc, op) => matches!(
                op,
                SendOp::Send
                    | SendOp::SendImm(_)
                    | SendOp::Write(_)
                    | SendOp::WriteImm(..)
                    | SendOp::LocalInvalidate(_)
                    | SendOp::BindMw(_)
                    | SendOp::Custom(_)
            ),
            (QpType::Ud, op) => {
                matches!(op, SendOp::Send | SendOp::SendImm(_) | SendOp::Custom(_))
            }
            (QpType::RawPacket, op) => matches!(op, SendOp::Send),
        };
        if !offered || (matches!(wr.op, SendOp::Custom(_)) && self.custom.is_none()) {
            return Err(Error::Invalid("the service does not offer the operation"));
        }
        if wr.flags.contains(SendFlags::IP_CSUM) || !SendFlags::all().contains(wr.flags) {
            return Err(Error::Invalid("a send flag that the QP does not offer"));
        }
        let length = match &wr.payload {
            Payload::Inline(bytes) => {
                if matches!(
                    wr.op,
                    SendOp::Read(_) | SendOp::CompareSwap { .. } | SendOp::FetchAdd { .. }
                ) {
                    return Err(Error::Invalid("READs and atomics cannot be inline"));
                }
                // An ATOMIC WRITE takes its value along however little the QP has room for.
                let granted = matches!(wr.op, SendOp::AtomicWrite(_));
                if bytes.len() > self.cap.max_inline_data as usize && !granted {
                    return Err(Error::Invalid("more inline data than the QP allows"));
                }
                bytes.len() as u64
            }
            Payload::Gather(list) => {
                if list.len() > self.cap.max_send_sge as usize {
                    return Err(Error::Invalid("more scatter/gather entries than the QP allows"));
                }
                total_length(list)
            }
        };
        if length > MAX_MESSAGE.into() {
            return Err(Error::Invalid("a message is longer than 2^31 bytes"));
        }
        check_placement(&wr.op, length)?;
        match (self.kind, &wr.datagram) {
            (QpType::Ud, None) if matches!(wr.op, SendOp::Custom(_)) => Ok(()),
            (QpType::Ud, None) => Err(Error::Invalid("a datagram needs a destination")),
            // What IBV_DEVICE_UD_AV_PORT_ENFORCE promises (IBA 10.2.2.2).
            (QpType::Ud, Some(to)) if to.ah.attr().port_num != self.attr.port_num => {
                Err(Error::Invalid("the address handle is of another port than the QP"))
            }
            (QpType::RawPacket, _) => check_frame(length),
            _ => Ok(()),
        }
    }

    /// Appends a receive request. In the error state it will be flushed.
    ///
    /// # Errors
    /// [`Error::Invalid`] in RESET, on a QP with a shared queue, or with too many entries; [`Error::NoMemory`] when
    /// the queue is full; [`Error::Lost`] when the memory that the program gave the queue is gone.
    pub fn post_recv(&mut self, wr: RecvWr) -> Result<()> {
        if self.state == QpState::Reset {
            return Err(Error::Invalid("the QP is in RESET"));
        }
        if !self.inbox.is_own() || matches!(self.kind, QpType::XrcSend | QpType::XrcRecv) {
            return Err(Error::Invalid("the QP has no receive queue of its own"));
        }
        if wr.scatter.len() > self.cap.max_recv_sge as usize {
            return Err(Error::Invalid("more scatter entries than the QP allows"));
        }
        if self.inbox.len() >= self.cap.max_recv_wr as usize {
            return Err(Error::NoMemory("the receive queue is full"));
        }
        self.inbox.post(wr).map_err(|_| QUEUE_LOST)
    }

    /// Bounds what may be in flight from the next time on that the queue pair becomes ready to send.
    pub fn set_window(&mut self, bytes: u64) {
        self.window_bytes = bytes;
    }

    /// Whether the peer's port takes `bytes` more from a reliable service; if not, the timer asks again. Trains are asked
    /// for, not packets.
    pub(super) fn port_takes(&mut self, bytes: u64, cx: &mut Cx<'_>) -> bool {
        if self.allowance < bytes {
            let train = bytes.max(TRAIN_BYTES);
            match cx.tx.room(To::Peer, self.attr.dest_qp_num, train, cx.now) {
                Some(true) => self.allowance = train,
                Some(false) => {
                    self.paced_until = Some(cx.now + PAUSE);
                    return false;
                }
                None => return true,
            }
        }
        self.allowance -= bytes;
        true
    }

    /// Emits what is owed to the peer and as many requests as window and peer allow.
    pub fn transmit(&mut self, cx: &mut Cx<'_>) {
        self.now = Some(cx.now);
        self.more = false;
        self.paced_until = None;
        self.respond(cx);
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
        self.stop_if_alarmed();
        self.check_drained(cx);
        self.tally(cx);
    }

    /// One packet. Acknowledges wait for [`Transport::end_of_batch`], requests for [`Transport::transmit`].
    pub fn receive(&mut self, rx: &Rx<'_>, cx: &mut Cx<'_>) {
        self.now = Some(cx.now);
        let bth = &rx.headers.bth;
        let listening =
            matches!(self.state, QpState::Rtr | QpState::Rts | QpState::Sqd | QpState::Sqe);
        // Membership differs in the high bit; being full members ourselves we may talk to either kind (IBA 10.9.3).
        let partition = (bth.pkey ^ PKEY) & 0x7fff == 0 || sabotage::on(Sabotage::SkipPkey);
        if !listening || !partition || Some(bth.opcode.service) != service(self.kind) {
            return cx.counters.count(Counter::RxDropped, 1);
        }
        match (self.kind, bth.opcode.is_response()) {
            (QpType::Rc | QpType::XrcSend, true) => self.answer(rx, cx),
            (QpType::Rc | QpType::XrcRecv, false) => self.serve(rx, cx),
            (QpType::Uc, _) => self.serve_unreliable(rx, cx),
            (QpType::Ud, _) => self.receive_datagram(rx, cx),
            (QpType::XrcSend, false) | (QpType::XrcRecv, true) | (QpType::RawPacket, _) => {
                cx.counters.count(Counter::RxDropped, 1);
            }
        }
    }

    /// Ends a burst of received packets: emits acknowledges and responses.
    pub fn end_of_batch(&mut self, cx: &mut Cx<'_>) {
        self.now = Some(cx.now);
        self.respond(cx);
        self.stop_if_alarmed();
        self.check_drained(cx);
        self.tally(cx);
    }

    /// Ends a burst of received packets for now: what [`Transport::end_of_batch`] and [`Transport::transmit`] would do waits for
    /// [`Transport::timer`], which is due at once.
    pub fn put_off(&mut self, now: Instant) {
        self.now = Some(now);
        self.more = true;
    }

    /// Whether [`Transport::end_of_batch`] has something to emit.
    pub fn has_ack_pending(&self) -> bool {
        !self.resp.responses.is_empty()
    }

    /// Time has passed.
    pub fn timer(&mut self, cx: &mut Cx<'_>) {
        if self.kind.is_reliable() && matches!(self.state, QpState::Rts | QpState::Sqd) {
            self.request_timers(cx);
        }
        self.look_again(cx.now);
        self.transmit(cx);
    }

    /// When to call [`Transport::timer`]; an instant already past when work is left over.
    pub fn deadline(&self) -> Option<Instant> {
        let unflushed = match self.state {
            QpState::Err => {
                !self.req.queue.is_empty() || !self.inbox.is_empty() || self.owes_last_wqe
            }
            QpState::Sqe => !self.req.queue.is_empty(),
            _ => false,
        };
        if self.more || unflushed {
            return self.now;
        }
        if self.state == QpState::Err && self.inbox.is_kept() {
            return self.now.map(|now| now + KEPT_QUEUE_PERIOD);
        }
        let timers = self.req.timers.deadline(self.ack_wait());
        let looks = self.faults.deadline();
        [timers, self.req.rnr_until, self.paced_until, looks].into_iter().flatten().min()
    }

    /// How long the peer may be silent now.
    pub(super) fn ack_wait(&self) -> Option<Duration> {
        ack_wait(self.attr.timeout, self.req.timeouts)
    }

    fn tally(&mut self, cx: &mut Cx<'_>) {
        if self.sent_packets > 0 {
            cx.counters.count(Counter::SentPackets, std::mem::take(&mut self.sent_packets));
            cx.counters.count(Counter::SentBytes, std::mem::take(&mut self.sent_bytes));
        }
    }

    /// Enters the error state: nothing more is said to the peer, all requests are flushed (IBA 10.3.1.7).
    pub(super) fn enter_error(&mut self, cx: &mut Cx<'_>) {
        self.resp.responses.clear();
        self.enter_error_answering(cx);
    }

    /// The same, but what is owed to the peer, a NAK last, still goes out.
    pub(super) fn enter_error_answering(&mut self, cx: &mut Cx<'_>) {
        self.stop();
        self.owes_last_wqe = self.inbox.is_shared();
        self.flush(cx);
    }

    fn stop(&mut self) {
        self.state = QpState::Err;
        self.attr.sq_draining = false;
        self.req.timers.stop();
        self.req.rnr_until = None;
        self.paced_until = None;
        self.faults.clear();
    }

    /// What it does can no longer be reported, or its receive requests are gone: a local work queue catastrophic error
    /// (IBA 11.6.3.2).
    pub fn fail(&mut self, cx: &mut Cx<'_>) {
        if !matches!(self.state, QpState::Reset | QpState::Init | QpState::Err) {
            cx.sink.event(EventType::QpFatal);
            self.enter_error(cx);
        }
    }

    /// The device can do nothing more: a peer whose request comes next, or is under way, is told so, and all requests are flushed.
    /// Another event than the device's own is not raised.
    pub fn end_with_device(&mut self, cx: &mut Cx<'_>) {
        if matches!(self.state, QpState::Reset | QpState::Err) {
            return;
        }
        self.now = Some(cx.now);
        // There is no other turn.
        cx.budget = cx.budget.ending(u32::MAX);
        self.resp.responses.clear();
        if matches!(self.kind, QpType::Rc | QpType::XrcRecv) && self.state != QpState::Init {
            let nak = Syndrome::Nak(NakCode::RemoteOperational);
            self.owe(self.resp.expected, Answer::Nak(nak), false);
        }
        self.stop();
        self.flush(cx);
        self.respond(cx);
    }

    /// Forgets all requests and the memory they are in, before whoever provided it takes it back.
    pub fn leave_memory(&mut self) {
        self.send_slots = None;
        self.req.queue = VecDeque::new();
        self.inbox.leave_memory();
    }

    pub(super) fn flush_sends(&mut self, cx: &mut Cx<'_>) {
        self.req.timers.stop();
        while !self.req.queue.is_empty() {
            if cx.budget.endings() == 0 {
                self.more = true;
                return;
            }
            cx.budget.spend_ending();
            let Some(wqe) = self.req.pop() else { return };
            cx.counters.count(Counter::CqeFlushErr, 1);
            self.report(&wqe, WcStatus::WrFlushErr, vendor::NONE, cx);
        }
    }

    fn flush(&mut self, cx: &mut Cx<'_>) {
        abandon(&mut self.resp.message, &mut self.inbox);
        self.flush_sends(cx);
        while cx.budget.endings() > 0 {
            let Some(drained) = self.inbox.drain(self.pd) else { return self.tell_last_wqe(cx) };
            cx.budget.spend_ending();
            let Ok(landing) = drained else {
                cx.sink.event(EventType::QpFatal);
                return self.inbox.clear();
            };
            cx.counters.count(Counter::CqeFlushErr, 1);
            let done = Completion {
                solicited: true,
                ..Completion::new(
                    landing.wr_id(),
                    WcStatus::WrFlushErr,
                    landing.label().opcode,
                    self.qpn,
                )
            };
            landing.tell(done, cx.sink);
        }
        self.more = true;
    }

    /// No receive request is under way any more (IBA 11.6.3.1).
    fn tell_last_wqe(&mut self, cx: &mut Cx<'_>) {
        if std::mem::take(&mut self.owes_last_wqe) {
            cx.sink.event(EventType::QpLastWqeReached);
        }
    }
}

/// How often an own queue that the front end keeps is looked at in the error state: posting there tells nobody.
const KEPT_QUEUE_PERIOD: Duration = Duration::from_millis(10);

const QUEUE_LOST: Error = Error::Lost("the memory that the program gave the queue is gone");

/// Most bytes of a packet's payload: the path MTU, or a whole frame.
pub(super) fn mtu(kind: QpType, attr: &QpAttr) -> u32 {
    if kind == QpType::RawPacket { MAX_FRAME } else { 128 << attr.path_mtu }
}

/// What ATOMIC WRITE and FLUSH must keep to (IBA A19).
fn check_placement(op: &SendOp, length: u64) -> Result<()> {
    match op {
        SendOp::AtomicWrite(remote) if length != 8 || !remote.addr.is_multiple_of(8) => {
            Err(Error::Invalid("ATOMIC WRITE writes 8 aligned bytes"))
        }
        SendOp::Flush(flush) if !(1..=3).contains(&flush.placement) || flush.len > MAX_MESSAGE => {
            Err(Error::Invalid("FLUSH of an unknown placement, or of more than 2^31 bytes"))
        }
        _ => Ok(()),
    }
}
