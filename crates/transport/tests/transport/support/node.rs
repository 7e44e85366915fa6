//! One QP and what surrounds it.

use super::Packet;
use super::memory::{PAGE, Ram, Region};
use super::neighbour::Neighbour;
use super::queues::{Loose, Queues, XRCD, XrcQueue};
use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::{Arc, Mutex};
use std::time::Instant;
use transport::executor::InTransit;
use transport::keys::KeyTable;
use transport::values::*;
use transport::{
    Budget, Count, Counter, Cx, Direct, Fill, Init, PageFault, Routing, Rx, Share, SharedQueue,
    Sink, To, Transport, Tx, Verdict,
};
use umem::{AccessError, DmaSpace, Fold, Segment, Umem};
use wire::Headers;

/// What a QP reported to its owner.
#[derive(Default)]
pub struct Reports {
    pub sent: Vec<Completion>,
    pub received: Vec<Completion>,
    pub events: Vec<EventType>,
    pub faults: Vec<PageFault>,
    /// Nobody serves page faults.
    pub refuses_faults: bool,
}

impl Sink for Reports {
    fn sent(&mut self, completion: Completion) {
        self.sent.push(completion);
    }
    fn received(&mut self, completion: Completion) {
        self.received.push(completion);
    }
    fn event(&mut self, event: EventType) {
        self.events.push(event);
    }
    fn page_fault(&mut self, fault: PageFault) -> bool {
        self.faults.push(fault);
        !self.refuses_faults
    }
}

/// Counters by name.
#[derive(Default)]
pub struct Counts(Mutex<HashMap<usize, u64>>);

impl Count for Counts {
    fn count(&self, what: Counter, by: u64) {
        *self.0.lock().unwrap().entry(what as usize).or_default() += by;
    }
}

/// Emitted packets, in order, and emitted frames, at a port.
pub struct Outbox {
    pub neighbour: Option<Neighbour>,
    pub packets: Vec<Packet>,
    pub frames: Vec<Vec<u8>>,
    pub port_mtu: u32,
    /// Bytes that the peer's port has room for, where it is known.
    pub room: Option<u64>,
}

impl Default for Outbox {
    fn default() -> Outbox {
        Outbox {
            neighbour: None,
            packets: Vec::new(),
            frames: Vec::new(),
            port_mtu: 4096,
            room: None,
        }
    }
}

impl Tx for Outbox {
    fn port_mtu(&self) -> u32 {
        self.port_mtu
    }

    fn packet(
        &mut self,
        _to: To<'_>,
        headers: &Headers,
        payload_len: usize,
        fill: &mut Fill<'_>,
    ) -> Result<(), AccessError> {
        let mut payload = vec![0; payload_len];
        fill(&mut payload, &mut Fold::off())?;
        self.packets.push(Packet { headers: *headers, payload });
        Ok(())
    }

    fn frame(&mut self, len: usize, fill: &mut Fill<'_>) -> Result<(), AccessError> {
        let mut frame = vec![0; len];
        fill(&mut frame, &mut Fold::off())?;
        self.frames.push(frame);
        Ok(())
    }

    fn has_neighbour(&self) -> bool {
        self.neighbour.is_some()
    }

    fn direct(&mut self, direct: Direct<'_>) -> bool {
        self.neighbour.as_mut().is_some_and(|neighbour| neighbour.moves(direct))
    }

    fn room(&mut self, _to: To<'_>, _dest_qpn: u32, bytes: u64, _now: Instant) -> Option<bool> {
        let room = self.room.as_mut()?;
        let left = room.checked_sub(bytes);
        *room = left.unwrap_or(*room);
        Some(left.is_some())
    }
}

/// Payload that no packet holds yet.
#[derive(Debug)]
struct Transit<'a>(&'a [u8]);

impl InTransit for Transit<'_> {
    fn bytes(&self) -> usize {
        self.0.len()
    }

    fn fill(&self, at: usize, into: umem::Sink<'_>) -> Result<(), AccessError> {
        Ok(into.write(&self.0[at..at + into.len() as usize])?)
    }

    fn copy(&self, at: usize, into: &mut [u8]) -> Result<(), AccessError> {
        into.copy_from_slice(&self.0[at..at + into.len()]);
        Ok(())
    }

    fn whole(&self, f: &mut dyn FnMut(&[u8])) {
        f(self.0);
    }
}

pub const PD: PdId = PdId(7);

/// A QP, its device's keys, and what it emitted and reported.
pub struct Node {
    pub qp: Transport,
    pub keys: KeyTable,
    pub queues: Queues,
    pub told: Reports,
    pub counts: Counts,
    pub out: Outbox,
    pub now: Instant,
    /// What each call may do.
    pub budget: Budget,
    pub ip: IpAddr,
    /// A program polls for what comes, and may be waited for.
    pub polls: bool,
    /// All registered memory, by the name that its faults bear.
    pub rams: Vec<Arc<Ram>>,
}

impl Node {
    pub fn new(qp_type: QpType, qpn: u32, srq: Option<SharedQueue>) -> Node {
        Node::with_window(qp_type, qpn, srq, 256 << 10)
    }

    pub fn with_window(
        qp_type: QpType,
        qpn: u32,
        srq: Option<SharedQueue>,
        window_bytes: u64,
    ) -> Node {
        let cap = QpCap {
            max_send_wr: 256,
            max_recv_wr: 256,
            max_send_sge: 8,
            max_recv_sge: 8,
            max_inline_data: 512,
        };
        let init = Init {
            name: qpn,
            custom: None,
            signatures: None,
            qp_type,
            qpn,
            pd: PD,
            cap,
            sq_sig_all: false,
            srq,
            xrcd: (qp_type == QpType::XrcRecv).then_some(XRCD),
            window_bytes,
            max_rd_atomic: 16,
            memory: None,
            set_aside: true,
        };
        Node {
            qp: Transport::new(init).unwrap(),
            keys: KeyTable::new(),
            queues: Queues::default(),
            told: Reports::default(),
            counts: Counts::default(),
            out: Outbox::default(),
            now: Instant::now(),
            budget: Budget::of(Share::new(512, u64::MAX)),
            ip: IpAddr::V4(Ipv4Addr::new(10, 0, 0, qpn as u8)),
            polls: false,
            rams: Vec::new(),
        }
    }

    pub fn with<R>(&mut self, f: impl FnOnce(&mut Transport, &mut Cx<'_>) -> R) -> R {
        let Node { qp, keys, queues, told, counts, out, now, budget, .. } = self;
        let (now, budget) = (*now, *budget);
        let xrc = queues;
        f(qp, &mut Cx { now, tx: out, keys, xrc, sink: told, counters: counts, budget })
    }

    pub fn counted(&self, what: Counter) -> u64 {
        self.counts.0.lock().unwrap().get(&(what as usize)).copied().unwrap_or(0)
    }

    /// Memory of `len` bytes in one or more segments under one key.
    pub fn register_as(&mut self, pd: PdId, len: u64, access: Access) -> Region {
        let ram = Arc::new(Ram::new(self.rams.len() as u32, len));
        self.rams.push(ram.clone());
        let route = Arc::new(pcie::Route::local());
        let space: Arc<dyn DmaSpace> = ram.clone();
        // Two segments where it can be, so that accesses cross a border.
        let cut = (len / 3) & !7;
        let segments = [(0, cut), (cut, len - cut)]
            .into_iter()
            .filter(|(_, len)| *len > 0)
            .map(|(addr, len)| Segment { space: space.clone(), addr, len, route: route.clone() })
            .collect();
        let umem = Umem::from_segments(segments, true);
        let iova = 0x10_0000;
        let key = self.keys.insert(pd, umem, iova, access).unwrap();
        Region { ram, key, iova, len }
    }

    pub fn register(&mut self, len: u64) -> Region {
        let all = Access::LOCAL_WRITE
            | Access::REMOTE_READ
            | Access::REMOTE_WRITE
            | Access::REMOTE_ATOMIC;
        self.register_as(PD, len, all)
    }

    /// An XRC queue with number `number`, of domain `xrcd`, whose requests lie in `pd`.
    pub fn xrc_queue(&mut self, number: u32, xrcd: XrcdId, pd: PdId) -> Arc<XrcQueue> {
        let told = Mutex::default();
        let queue = Arc::new(XrcQueue { requests: Loose::default(), xrcd, pd, told });
        self.queues.0.insert(number, queue.clone());
        queue
    }

    pub fn modify(&mut self, attr: &QpAttr, mask: AttrMask) -> transport::Result<()> {
        self.with(|qp, cx| qp.modify(attr, mask, cx))
    }

    pub fn post_send(&mut self, wr: SendWr) {
        self.qp.post_send(wr).unwrap();
        self.with(|qp, cx| qp.transmit(cx));
    }

    pub fn post_recv(&mut self, wr_id: u64, sges: &[Sge]) {
        self.qp.post_recv(RecvWr { wr_id, scatter: sges.iter().copied().collect() }).unwrap();
    }

    /// One packet and the end of its batch; gives what the QP emitted.
    pub fn feed(&mut self, packet: &Packet) -> Vec<Packet> {
        self.receive(packet);
        self.end_of_batch();
        std::mem::take(&mut self.out.packets)
    }

    pub fn receive(&mut self, packet: &Packet) {
        self.receive_marked(packet, false);
    }

    /// One packet, which met congestion on its way if it is marked.
    pub fn receive_marked(&mut self, packet: &Packet, marked: bool) {
        self.take(packet, None, marked);
    }

    /// A packet whose payload is still where it came by.
    pub fn feed_in_transit(&mut self, packet: &Packet) -> Vec<Packet> {
        self.feed_in_transit_marked(packet, false)
    }

    /// The same, which met congestion on its way if it is marked.
    pub fn feed_in_transit_marked(&mut self, packet: &Packet, marked: bool) -> Vec<Packet> {
        self.take(
            &Packet { payload: Vec::new(), ..packet.clone() },
            Some(&Transit(&packet.payload)),
            marked,
        );
        self.end_of_batch();
        std::mem::take(&mut self.out.packets)
    }

    fn take(&mut self, packet: &Packet, in_transit: Option<&dyn InTransit>, marked: bool) {
        let (src, dst) = (IpAddr::V4(Ipv4Addr::new(10, 0, 0, 99)), self.ip);
        let rx = Rx {
            headers: &packet.headers,
            payload: &packet.payload,
            in_transit,
            src,
            dst,
            traffic_class: if marked { 0x63 } else { 0x62 },
            hop_limit: 63,
            vlan: None,
            routing: Routing::Ip,
            mtu: None,
        };
        self.with(|qp, cx| qp.receive(&rx, cx));
    }

    /// The end of a burst, which a program polled for or not.
    pub fn end_of_batch(&mut self) {
        let polls = self.polls;
        self.with(|qp, cx| {
            match polls {
                true => drop(qp.burst_ended(cx.now)),
                false => qp.end_of_batch(cx),
            }
            qp.transmit(cx);
        });
    }

    /// Whoever keeps the memory brings a page in, or cannot.
    pub fn serve(&mut self, fault: &PageFault, served: bool) -> Vec<Packet> {
        let page = fault.missing.addr / PAGE;
        if served {
            self.rams[fault.missing.key as usize].absent.lock().unwrap().remove(&page);
        }
        self.answer(fault, if served { Verdict::Served } else { Verdict::Refused })
    }

    pub fn answer(&mut self, fault: &PageFault, verdict: Verdict) -> Vec<Packet> {
        self.with(|qp, cx| qp.resume(fault.id, verdict, cx));
        std::mem::take(&mut self.out.packets)
    }

    pub fn timer(&mut self) -> Vec<Packet> {
        self.with(|qp, cx| qp.timer(cx));
        std::mem::take(&mut self.out.packets)
    }

    pub fn emitted(&mut self) -> Vec<Packet> {
        std::mem::take(&mut self.out.packets)
    }

    /// Takes the QP to RTS.
    pub fn connect(&mut self, setup: &Setup) {
        let kind = setup.kind;
        let base = QpAttr {
            path_mtu: setup.mtu,
            qkey: setup.qkey,
            rq_psn: setup.rq_psn,
            sq_psn: setup.sq_psn,
            dest_qp_num: setup.dest,
            access: setup.access,
            ah: AhAttr { is_global: true, port_num: 1, ..AhAttr::default() },
            max_rd_atomic: setup.max_rd_atomic,
            max_dest_rd_atomic: setup.max_rd_atomic,
            min_rnr_timer: setup.min_rnr_timer,
            port_num: 1,
            timeout: setup.timeout,
            retry_cnt: setup.retry_cnt,
            rnr_retry: setup.rnr_retry,
            ..self.qp.query()
        };
        type M = AttrMask;
        let init = M::STATE | M::PORT;
        let init = match kind {
            QpType::RawPacket => init,
            QpType::Ud => init | M::PKEY_INDEX | M::QKEY,
            _ => init | M::PKEY_INDEX | M::ACCESS_FLAGS,
        };
        self.modify(&QpAttr { qp_state: QpState::Init, ..base }, init).unwrap();
        let connected = M::AV | M::PATH_MTU | M::DEST_QPN | M::RQ_PSN;
        let rtr = match kind {
            QpType::Rc | QpType::XrcRecv => connected | M::MAX_DEST_RD_ATOMIC | M::MIN_RNR_TIMER,
            QpType::Uc | QpType::XrcSend => connected,
            QpType::Ud | QpType::RawPacket => M::empty(),
        };
        self.modify(&QpAttr { qp_state: QpState::Rtr, ..base }, M::STATE | rtr).unwrap();
        if setup.stop_at_rtr {
            return;
        }
        let rts = match kind {
            QpType::Rc | QpType::XrcSend => {
                M::TIMEOUT | M::RETRY_CNT | M::RNR_RETRY | M::MAX_QP_RD_ATOMIC
            }
            QpType::XrcRecv => M::TIMEOUT,
            _ => M::empty(),
        };
        let psn = if kind == QpType::RawPacket { M::empty() } else { M::SQ_PSN };
        self.modify(&QpAttr { qp_state: QpState::Rts, ..base }, M::STATE | psn | rts).unwrap();
    }
}

/// What a turn of progress lets one visit send.
pub fn quantum() -> Budget {
    Budget::of(Share::new(128, 256 << 10))
}

/// How a QP is connected.
#[derive(Clone)]
pub struct Setup {
    pub kind: QpType,
    /// `enum ibv_mtu`.
    pub mtu: u32,
    pub dest: u32,
    pub rq_psn: u32,
    pub sq_psn: u32,
    pub qkey: u32,
    pub access: Access,
    pub max_rd_atomic: u8,
    pub min_rnr_timer: u8,
    pub timeout: u8,
    pub retry_cnt: u8,
    pub rnr_retry: u8,
    pub stop_at_rtr: bool,
}

impl Setup {
    pub fn new(kind: QpType) -> Setup {
        Setup {
            kind,
            mtu: 1,
            dest: 99,
            rq_psn: 1000,
            sq_psn: 5000,
            qkey: 0x1111_1111,
            access: Access::REMOTE_READ | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC,
            max_rd_atomic: 4,
            min_rnr_timer: 12,
            timeout: 14,
            retry_cnt: 7,
            rnr_retry: 7,
            stop_at_rtr: false,
        }
    }
}

/// A send request in registered memory.
pub fn send_wr(wr_id: u64, op: SendOp, sges: &[Sge]) -> SendWr {
    SendWr {
        wr_id,
        op,
        payload: Payload::Gather(sges.iter().copied().collect()),
        flags: SendFlags::SIGNALED,
        datagram: None,
        xrc_srqn: 0,
    }
}

/// An address handle of no device.
#[derive(Debug)]
struct Handle(AhAttr);

impl Destination for Handle {
    fn attr(&self) -> &AhAttr {
        &self.0
    }

    fn pd_id(&self) -> Option<PdId> {
        None
    }
}

/// A destination by port 1.
pub fn port_one() -> Arc<dyn Destination> {
    Arc::new(Handle(AhAttr { port_num: 1, ..AhAttr::default() }))
}
