//! One QP and what surrounds it.

use super::Packet;
use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, Ipv4Addr};
use std::result::Result;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Instant;
use transport::keys::KeyTable;
use transport::queues::tags::{Accepted, TagList};
use transport::queues::tags::{TagOp, TagWr, TmCap};
use transport::values::*;
use transport::{
    Budget, Count, Counter, Cx, Fill, Init, OwnCompletions, PageFault, Routing, Rx, Share,
    SharedQueue, SharedReceive, Sink, TagReceive, To, Transport, Tx, Verdict, XrcQueues,
    XrcReceive,
};
use umem::Fold;
use umem::{AccessError, AtomicOp, DmaSpace, Segment, Umem};
use wire::Headers;

/// Bytes of a page of [`Ram`].
pub const PAGE: u64 = 256;

/// Memory whose accesses can be made to fail.
#[derive(Default)]
pub struct Ram {
    bytes: Mutex<Vec<u8>>,
    /// Numbers of pages that are not there.
    pub absent: Mutex<HashSet<u64>>,
    /// What faults on them are told to be of.
    name: u32,
    /// Such faults are met by a list in another key.
    pub below: AtomicBool,
    pub broken: AtomicBool,
    /// All of it is being moved.
    pub moving: AtomicBool,
    pub atomics: AtomicU64,
}

impl Ram {
    pub fn len(&self) -> u64 {
        self.bytes.lock().unwrap().len() as u64
    }

    fn with<R>(
        &self,
        addr: u64,
        len: usize,
        f: impl FnOnce(&mut [u8]) -> R,
    ) -> Result<R, AccessError> {
        if self.broken.load(Relaxed) {
            return Err(AccessError::Fault);
        }
        if self.moving.load(Relaxed) {
            return Err(AccessError::Moving);
        }
        let absent = self.absent.lock().unwrap();
        let pages = addr / PAGE..(addr + len as u64).div_ceil(PAGE);
        if let Some(page) = pages.filter(|_| !absent.is_empty()).find(|page| absent.contains(page))
        {
            let addr = addr.max(page * PAGE);
            let (key, below) = (self.name, self.below.load(Relaxed));
            return Err(AccessError::NotPresent { key, len: 1, addr, below });
        }
        let mut bytes = self.bytes.lock().unwrap();
        let at = addr as usize;
        bytes.get_mut(at..at + len).map(f).ok_or(AccessError::Fault)
    }
}

impl DmaSpace for Ram {
    fn read(&self, addr: u64, dst: &mut [u8]) -> Result<(), AccessError> {
        self.with(addr, dst.len(), |bytes| dst.copy_from_slice(bytes))
    }
    fn write(&self, addr: u64, src: &[u8]) -> Result<(), AccessError> {
        self.with(addr, src.len(), |bytes| bytes.copy_from_slice(src))
    }
    fn atomic(&self, addr: u64, op: AtomicOp) -> Result<u64, AccessError> {
        self.atomics.fetch_add(1, Relaxed);
        self.with(addr, 8, |bytes| {
            let old = u64::from_ne_bytes(bytes.try_into().unwrap());
            let new = match op {
                AtomicOp::CompareSwap { compare, swap } if old == compare => swap,
                AtomicOp::CompareSwap { .. } => old,
                AtomicOp::FetchAdd { add } => old.wrapping_add(add),
            };
            bytes.copy_from_slice(&new.to_ne_bytes());
            old
        })
    }
}

/// Registered memory of a node.
#[derive(Clone)]
pub struct Region {
    pub ram: Arc<Ram>,
    pub key: u32,
    pub iova: u64,
    pub len: u64,
}

impl Region {
    pub fn get(&self, at: u64, len: usize) -> Vec<u8> {
        self.ram.bytes.lock().unwrap()[at as usize..at as usize + len].to_vec()
    }
    pub fn set(&self, at: u64, bytes: &[u8]) {
        self.ram.bytes.lock().unwrap()[at as usize..at as usize + bytes.len()]
            .copy_from_slice(bytes);
    }
    pub fn word(&self, at: u64) -> u64 {
        u64::from_ne_bytes(self.get(at, 8).try_into().unwrap())
    }
    pub fn sge(&self, at: u64, length: u32) -> Sge {
        Sge { addr: self.iova + at, length, lkey: self.key }
    }
    pub fn remote(&self, at: u64) -> Remote {
        Remote { addr: self.iova + at, rkey: self.key }
    }
}

/// What a QP told its owner.
#[derive(Default)]
pub struct Told {
    pub sent: Vec<Completion>,
    pub received: Vec<Completion>,
    pub events: Vec<EventType>,
    pub faults: Vec<PageFault>,
    /// Nobody serves page faults.
    pub refuses_faults: bool,
}

impl Sink for Told {
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
    pub packets: Vec<Packet>,
    pub frames: Vec<Vec<u8>>,
    pub port_mtu: u32,
    /// Bytes that the peer's port has room for, where it is known.
    pub room: Option<u64>,
}

impl Default for Outbox {
    fn default() -> Outbox {
        Outbox { packets: Vec::new(), frames: Vec::new(), port_mtu: 4096, room: None }
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

    fn room(&mut self, _to: To<'_>, _dest_qpn: u32, bytes: u64, _now: Instant) -> Option<bool> {
        let room = self.room.as_mut()?;
        let left = room.checked_sub(bytes);
        *room = left.unwrap_or(*room);
        Some(left.is_some())
    }
}

/// A shared receive queue.
#[derive(Default)]
pub struct Loose(pub Mutex<std::collections::VecDeque<RecvWr>>);

impl SharedReceive for Loose {
    fn take(&self) -> Option<RecvWr> {
        self.0.lock().unwrap().pop_front()
    }
}

/// An XRC receive queue and what was told to it.
pub struct XrcQueue {
    pub requests: Loose,
    pub xrcd: XrcdId,
    pub pd: PdId,
    pub told: Mutex<Vec<Completion>>,
}

impl SharedReceive for XrcQueue {
    fn take(&self) -> Option<RecvWr> {
        self.requests.take()
    }
    fn pd_id(&self) -> Option<PdId> {
        Some(self.pd)
    }
}

impl XrcReceive for XrcQueue {
    fn xrcd(&self) -> Option<XrcdId> {
        Some(self.xrcd)
    }
}

impl OwnCompletions for XrcQueue {
    fn received(&self, completion: Completion) {
        self.told.lock().unwrap().push(completion);
    }
}

/// A queue that matches tags, and what was told to it.
pub struct TagQueue {
    pub requests: Loose,
    pub list: Mutex<TagList>,
    pub told: Mutex<Vec<Completion>>,
}

impl TagQueue {
    pub fn new() -> Arc<TagQueue> {
        let list = Mutex::new(TagList::new(TmCap { max_num_tags: 64, max_ops: 64 }).unwrap());
        Arc::new(TagQueue { requests: Loose::default(), list, told: Mutex::default() })
    }

    /// Posts a buffer for `tag`, in step.
    pub fn add(&self, wr_id: u64, tag: u64, into: &[Sge]) {
        let request = RecvWr { wr_id, scatter: into.iter().copied().collect() };
        let op = TagOp::Add { request, tag, mask: u64::MAX };
        let wr = TagWr { wr_id: 0, op, signaled: false, handled: None };
        assert_eq!(self.list.lock().unwrap().apply(wr).unwrap().flags, WcFlags::empty());
    }

    pub fn post(&self, wr_id: u64, sge: Sge) {
        let request = RecvWr { wr_id, scatter: [sge].into_iter().collect() };
        self.requests.0.lock().unwrap().push_back(request);
    }

    pub fn told(&self) -> Vec<Completion> {
        self.told.lock().unwrap().clone()
    }
}

impl SharedReceive for TagQueue {
    fn take(&self) -> Option<RecvWr> {
        self.requests.take()
    }
    fn pd_id(&self) -> Option<PdId> {
        Some(QUEUE_PD)
    }
}

impl OwnCompletions for TagQueue {
    fn received(&self, completion: Completion) {
        self.told.lock().unwrap().push(completion);
    }
}

impl TagReceive for TagQueue {
    fn accept(&self, first: &[u8], whole: bool, fetches: bool) -> Option<Accepted> {
        self.list.lock().unwrap().accept(first, whole, fetches, || self.requests.take())
    }
}

/// The XRC queues of a node, by number.
#[derive(Default)]
pub struct Queues(pub HashMap<u32, Arc<XrcQueue>>);

impl XrcQueues for Queues {
    fn queue(&self, number: u32) -> Option<Arc<dyn XrcReceive>> {
        Some(self.0.get(&number)?.clone())
    }
}

/// The XRC domain of every receiving half.
pub const XRCD: XrcdId = XrcdId(3);
pub const PD: PdId = PdId(7);
/// Domain of the shared queues that have one of their own.
pub const QUEUE_PD: PdId = PdId(40);

/// A QP, its device's keys, and what it emitted and told.
pub struct Node {
    pub qp: Transport,
    pub keys: KeyTable,
    pub queues: Queues,
    pub told: Told,
    pub counts: Counts,
    pub out: Outbox,
    pub now: Instant,
    /// Of each call.
    pub budget: Budget,
    pub ip: IpAddr,
    /// All registered memory, by what faults on it are told to be of.
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
            told: Told::default(),
            counts: Counts::default(),
            out: Outbox::default(),
            now: Instant::now(),
            budget: Budget::of(Share::new(512, u64::MAX)),
            ip: IpAddr::V4(Ipv4Addr::new(10, 0, 0, qpn as u8)),
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
        let ram = Arc::new(Ram { name: self.rams.len() as u32, ..Ram::default() });
        self.rams.push(ram.clone());
        *ram.bytes.lock().unwrap() = vec![0; len as usize];
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
        let (src, dst) = (IpAddr::V4(Ipv4Addr::new(10, 0, 0, 99)), self.ip);
        let rx = Rx {
            headers: &packet.headers,
            payload: &packet.payload,
            src,
            dst,
            traffic_class: 0x62,
            hop_limit: 63,
            vlan: None,
            routing: Routing::Ip,
        };
        self.with(|qp, cx| qp.receive(&rx, cx));
    }

    pub fn end_of_batch(&mut self) {
        self.with(|qp, cx| {
            qp.end_of_batch(cx);
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
