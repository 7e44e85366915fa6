//! The queue pair: its state, and what its sides have in common.
//!
//! [`Transport`] is all that a QP's lock guards. It is made of the requester's state
//! (`requests::requester`), the responder's (`responder`), the receive requests and the
//! open page faults; none of these knows the whole. What moves it is above: the
//! `requester`, the `responder`, and the `calls` of its owner. Here is what both sides need:
//! draining (`drain`), the error states (`ending`), congestion control (`congestion`, `pace`), and
//! what the HCA asks of itself (`rendezvous`).

mod budget;
mod congestion;
mod cx;
mod drain;
mod ending;
pub(crate) mod faults;
mod pace;
mod page_fault;
mod rendezvous;
mod replies;
pub(crate) mod responder;
pub(crate) mod response;

pub use budget::{Budget, Share};
pub use cx::{Cx, Direct, Fill, Half, InPlace, ReadInPlace, Routing, Rx, Sink, To, Tx};
pub use page_fault::{FaultSide, FaultedWork, Missing, PageFault, Verdict};

use self::congestion::Congestion;
use self::faults::Faults;
use self::responder::Responder;
use crate::calls::Lone;
use crate::counters::Counter;
use crate::error::{Error, Result};
use crate::executor::Inbox;
use crate::keys::{Alarm, SignatureSink, Watcher};
use crate::queues::shared::SharedQueue;
use crate::queues::slots::{self, Fifo, QueueMemory, SendSlots};
use crate::requests::check::MAX_FRAME;
use crate::requests::gather::RangeShelf;
use crate::requests::requester::Requester;
use crate::requests::timing::ack_wait;
use crate::shelf::{Shelf, queue_of};
use crate::values::*;
use std::sync::Arc;
use std::time::{Duration, Instant};
use wire::{Psn, Service};

/// Bytes that a reliable service asks a port to take at a time: about what leaves as one train.
const TRAIN_BYTES: u64 = 64 << 10;
/// How long is waited before a full receiver is asked again.
pub(crate) const PAUSE: Duration = Duration::from_micros(50);
/// What posting to a queue whose slots are gone comes to.
pub(crate) const QUEUE_LOST: Error =
    Error::Lost("the memory that the program gave the queue is gone");

/// Most bytes of a packet's payload: the path MTU, or a whole frame.
pub(crate) fn mtu(kind: QpType, attr: &QpAttr) -> u32 {
    if kind == QpType::RawPacket { MAX_FRAME } else { 128 << attr.path_mtu }
}

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
    /// Hears of bad block signatures.
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
/// [`Transport::end_of_batch`] and `transmit`; when [`Transport::deadline`] passes,
/// [`Transport::timer`].
pub struct Transport {
    pub(crate) kind: QpType,
    pub(crate) qpn: u32,
    pub(crate) name: u32,
    pub(crate) custom: Option<Arc<dyn CustomWork>>,
    pub(crate) pd: PdId,
    pub(crate) sq_sig_all: bool,
    pub(crate) window_bytes: u64,
    pub(crate) max_rd_atomic: u8,
    pub(crate) state: QpState,
    pub(crate) attr: QpAttr,
    /// Bytes of all packets but the last of a request.
    pub(crate) mtu: u32,
    pub(crate) req: Requester,
    /// The only request that is under way, where that is short and needs no more.
    /// One at most.
    pub(crate) lone: Vec<Lone>,
    /// A request is under way that was posted nobody knows when: the next call that knows the time
    /// has its timers count.
    pub(crate) untimed: bool,
    pub(crate) resp: Responder,
    pub(crate) inbox: Inbox,
    pub(crate) faults: Faults,
    pub(crate) congestion: Congestion,
    /// Stores for the resolved lists of send requests.
    pub(crate) ranges: RangeShelf,
    /// Where payloads of send requests are described, if not in the requests.
    pub(crate) send_slots: Option<SendSlots>,
    pub(crate) xrcd: Option<XrcdId>,
    /// Rings when a send request found a bad block signature; on some queue pairs sending stops
    /// then.
    pub(crate) alarm: Option<Alarm>,
    pub(crate) stops_when_alarmed: bool,
    /// Rings when what the peer sent or asked for did.
    pub(crate) peer_alarm: Option<Alarm>,
    /// The latest present known.
    pub(crate) now: Option<Instant>,
    /// A call ended because its budget did.
    pub(crate) more: bool,
    /// An event is due once no receive request is under way any more.
    pub(crate) owes_last_wqe: bool,
    /// The peer's port has no room, or an unreliable service waits for its pace.
    pub(crate) paced_until: Option<Instant>,
    /// Bytes that the peer's port has room for and that were not sent yet.
    pub(crate) allowance: u64,
    /// What was sent and is not counted yet.
    pub(crate) sent_packets: u64,
    pub(crate) sent_bytes: u64,
}

impl Transport {
    /// A QP in RESET.
    ///
    /// # Errors
    /// [`Error::NoMemory`] when there is none for its queues.
    pub fn new(init: Init) -> Result<Transport> {
        let attr = QpAttr::in_reset(init.cap);
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
            sq_sig_all: init.sq_sig_all,
            window_bytes: init.window_bytes,
            max_rd_atomic: init.max_rd_atomic,
            state: QpState::Reset,
            attr,
            mtu,
            req: Requester::new(queue_of(sends)?, Psn::default(), init.window_bytes, mtu),
            lone: Vec::new(),
            untimed: false,
            resp: Responder::default(),
            inbox: Inbox::new(receives, init.srq),
            faults: Faults::default(),
            congestion: Congestion::default(),
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

    /// Whether a peer's request is served and is no news: the first one in RTR raises an event.
    pub fn is_open_to_peer(&self) -> bool {
        match self.state {
            QpState::Rts | QpState::Sqd => true,
            QpState::Rtr => self.resp.established,
            _ => false,
        }
    }

    /// Whether no packet of a reliable connection is under way that one sent now could overtake.
    pub fn has_nothing_under_way(&self) -> bool {
        let answered = !self.has_lone() && self.req.una() == self.req.next_psn;
        answered && self.resp.responses.is_empty()
    }

    /// The peer's QP number.
    pub fn dest_qpn(&self) -> u32 {
        self.attr.dest_qp_num
    }

    /// Path MTU in bytes, as the program named it.
    pub fn path_mtu(&self) -> u32 {
        mtu(self.kind, &self.attr)
    }

    /// From now on packets of requests have so many bytes instead of the path's MTU. Nothing may be
    /// under way.
    pub fn set_request_mtu(&mut self, bytes: u32) {
        self.unfold();
        self.mtu = bytes;
    }

    /// Packets of requests have the path's MTU again, once none is under way: what is has its PSNs
    /// by the packets that it began with, and so has what the peer answers.
    pub fn return_to_path_mtu(&mut self) {
        let path_mtu = self.path_mtu();
        self.unfold();
        if self.mtu != path_mtu && self.req.una() == self.req.next_psn {
            self.mtu = path_mtu;
        }
    }

    /// Remembers that packets leave from this UDP port.
    pub fn set_udp_source(&mut self, port: u16) {
        self.attr.ah.udp_src = port;
    }

    /// Present attributes; PSNs are the next ones.
    pub fn query(&self) -> QpAttr {
        QpAttr {
            qp_state: self.state,
            cur_qp_state: self.state,
            sq_psn: self.req.next_psn.plus(self.has_lone().into()).get(),
            rq_psn: self.resp.expected.get(),
            ..self.attr
        }
    }

    /// Bounds what may be in flight from the next time on that the queue pair becomes ready to
    /// send.
    pub fn set_window(&mut self, bytes: u64) {
        self.window_bytes = bytes;
    }

    /// Whether the peer's port takes `bytes` more from this half of a reliable service; if not, the
    /// timer asks again. Trains are asked for, unless the way wants to be asked for packets: room
    /// that was found on another way says nothing of that one.
    pub(crate) fn port_takes(&mut self, half: Half, bytes: u64, cx: &mut Cx<'_>) -> bool {
        let by_packet = cx.tx.counts_packets(half);
        if !by_packet && self.allowance >= bytes {
            self.allowance -= bytes;
            return true;
        }
        let train = if by_packet { bytes } else { bytes.max(TRAIN_BYTES) };
        match cx.tx.room(To::Peer(half), self.attr.dest_qp_num, train, cx.now) {
            Some(true) if !by_packet => self.allowance = train - bytes,
            Some(false) => {
                self.paced_until = Some(cx.now + PAUSE);
                return false;
            }
            Some(true) | None => {}
        }
        true
    }

    /// How long the peer may be silent now.
    pub(crate) fn ack_wait(&self) -> Option<Duration> {
        ack_wait(self.attr.timeout, self.req.timeouts)
    }

    /// Counts what was sent since the last time.
    pub(crate) fn tally(&mut self, cx: &mut Cx<'_>) {
        if self.sent_packets > 0 {
            cx.counters.count(Counter::SentPackets, std::mem::take(&mut self.sent_packets));
            cx.counters.count(Counter::SentBytes, std::mem::take(&mut self.sent_bytes));
        }
    }
}

/// The service that packets of a QP type name; whole frames have none.
pub(crate) fn service(kind: QpType) -> Option<Service> {
    match kind {
        QpType::Rc => Some(Service::Rc),
        QpType::Uc => Some(Service::Uc),
        QpType::Ud => Some(Service::Ud),
        QpType::XrcSend | QpType::XrcRecv => Some(Service::Xrc),
        QpType::RawPacket => None,
    }
}
