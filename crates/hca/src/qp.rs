//! Queue pairs: a [`Transport`] under its lock, wired to completion queues, the link and the directory.

use crate::ah::handle_of;
use crate::cq::Cq;
use crate::device::{Device, Way};
use crate::event::{AsyncEvent, EventSource};
use crate::gsi::ManagementInterface;
use crate::key_space::parts_reached;
use crate::pd::Pd;
use crate::progress::{LAST_WORDS, QUANTUM};
use crate::rss::Rss;
use crate::srq::Srq;
use crate::timers::Appointment;
use crate::xrc::Xrcd;
use link::{Batch, FrameBatch, FramePort, Losses, ip_of_gid};
use std::net::IpAddr;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};
use transport::Shelf;
use transport::keys::SignatureSink;
use transport::queues::slots::QueueMemory;
use transport::values::XrcdId;
use transport::values::*;
use transport::{Both, Count, Counter, CounterSet};
use transport::{
    Budget, CustomWork, Cx, Fill, Init, PageFault, Rx, Share, SharedQueue, SharedReceive, Sink, To,
    Transport, Tx, Verdict,
};
use transport::{Error, Result};
use umem::AccessError;
use wire::Headers;
use wire::frame::Frame;

/// What a QP is created from.
#[derive(Clone)]
pub struct QpInit {
    /// Transport type.
    pub qp_type: QpType,
    /// Completions of sends; none on the receiving half of XRC.
    pub send_cq: Option<Arc<Cq>>,
    /// Completions of receives; none on XRC.
    pub recv_cq: Option<Arc<Cq>>,
    /// Domain of the receiving half of XRC.
    pub xrcd: Option<Arc<Xrcd>>,
    /// Receives come from here instead of an own queue.
    pub srq: Option<Arc<Srq>>,
    /// Receives come from a queue of its own that the front end keeps.
    pub receives: Option<Arc<dyn SharedReceive>>,
    /// Does what only the front end knows ([`SendOp::Custom`]).
    pub custom: Option<Arc<dyn CustomWork>>,
    /// Is told of block signatures that are bad.
    pub signatures: Option<Arc<dyn SignatureSink>>,
    /// It is this one to its peers; of datagrams only.
    pub management: Option<ManagementInterface>,
    /// It takes no datagram that it sent to a group itself.
    pub blocks_own_multicast: bool,
    /// Queue sizes wanted.
    pub cap: QpCap,
    /// Every send raises a completion.
    pub sq_sig_all: bool,
    /// Where its queues live, of [`QueueMemory::bytes_of_qp`]; `None` = in the engine's own memory.
    pub memory: Option<QueueMemory>,
    /// Memory for all that `cap` allows is set aside at once, so that posting and sending ask for none. Otherwise it grows
    /// with the requests: for a front end that keeps its programs' requests itself.
    pub set_aside: bool,
    /// Frames are spread over work queues instead; only of raw packets, without other queues.
    pub rss: Option<Rss>,
}

impl QpInit {
    /// Nothing but the type: no queues, and no room in any.
    pub fn new(qp_type: QpType) -> QpInit {
        QpInit {
            qp_type,
            send_cq: None,
            recv_cq: None,
            xrcd: None,
            srq: None,
            receives: None,
            custom: None,
            signatures: None,
            management: None,
            blocks_own_multicast: false,
            cap: QpCap::default(),
            sq_sig_all: false,
            memory: None,
            set_aside: true,
            rss: None,
        }
    }

    pub(crate) fn cqs(&self) -> impl Iterator<Item = &Arc<Cq>> {
        self.send_cq.iter().chain(&self.recv_cq)
    }
}

/// What a call of the program's sends before it returns: its queue pair is locked meanwhile, and a turn may wait for that.
const CALL: Budget = Budget::of(Share::new(512, 1 << 20));
/// Parts of keys over other keys after which one call sends no more: each takes as long as some hundred bytes.
const PARTS_A_CALL: u64 = 1024;

/// Stores of the lists and bytes that requests bring along.
struct Shelves {
    gathers: Arc<Shelf<[Sge; 2]>>,
    inline: Arc<Shelf<[u8; 32]>>,
    scatters: Arc<Shelf<[Sge; 2]>>,
}

impl Shelves {
    fn new(init: &QpInit) -> Result<Shelves> {
        let cap = &init.cap;
        // What lies in the program's memory needs a store only until it is there.
        let waiting = |requests: u32| match init.memory {
            Some(_) => 2,
            None if init.set_aside => requests as usize + 2,
            None => 0,
        };
        let (sends, receives) = (waiting(cap.max_send_wr), waiting(cap.max_recv_wr));
        Ok(Shelves {
            gathers: Shelf::new(sends, cap.max_send_sge as usize)?,
            inline: Shelf::new(sends, cap.max_inline_data as usize)?,
            scatters: Shelf::new(receives, cap.max_recv_sge as usize)?,
        })
    }
}

/// How far a QP may run ahead of paced links: a timer for less costs more than it mends.
const LINK_BACKLOG: Duration = Duration::from_micros(20);
/// How long a burst may keep paced links busy: acknowledges come once a burst, and must come in time.
const LINK_BURST: Duration = Duration::from_millis(1);

/// What one QP's lock guards.
struct Core {
    transport: Transport,
    /// Towards the connected peer; set with the address vector.
    way: Option<Way>,
    /// The peer's address and our own, as packets have them; set with the address vector.
    ends: Option<(IpAddr, IpAddr)>,
    appointment: Appointment,
    /// Where PCIe links are paced: they are busy with what the QP moved, and it holds back until then.
    busy_until: Option<Instant>,
    destroyed: bool,
    /// Frames on their way out.
    frames: FrameBatch,
    /// It counts here besides in its device.
    counters: Option<Arc<CounterSet>>,
}

impl Core {
    /// Whether paced links are still busy with what the QP moved.
    fn holds_back(&self, now: Instant) -> bool {
        self.busy_until.is_some_and(|until| until > now + LINK_BACKLOG)
    }
}

/// A queue pair. Lock order: `core`, then an SRQ's queue, then a CQ's ring.
pub struct Qp {
    device: Weak<Device>,
    number: u32,
    init: QpInit,
    pd: Arc<Pd>,
    /// What carries its frames, if it is of raw packets.
    frame_port: Option<Arc<FramePort>>,
    shelves: Shelves,
    core: Mutex<Core>,
    /// The program's handles: it may open the receiving half of XRC more than once.
    handles: AtomicU32,
    this: Weak<Qp>,
}

impl std::fmt::Debug for Qp {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Qp {{ number: {:#x} }}", self.number)
    }
}

impl Qp {
    pub(crate) fn new(
        device: &Arc<Device>,
        number: u32,
        pd: &Arc<Pd>,
        init: QpInit,
        frame_port: Option<Arc<FramePort>>,
    ) -> Result<Arc<Qp>> {
        let shelves = Shelves::new(&init)?;
        let frames = match frame_port {
            Some(_) => FrameBatch::new().map_err(|_| Error::NoMemory("no memory for frames"))?,
            None => FrameBatch::default(),
        };
        let kept = init.receives.clone().map(SharedQueue::Kept);
        let srq = init.srq.as_ref().map(Srq::shared).or(kept);
        let transport = Transport::new(Init {
            qp_type: init.qp_type,
            qpn: number,
            name: init.management.map_or(number, ManagementInterface::qpn),
            pd: pd.id(),
            cap: init.cap,
            sq_sig_all: init.sq_sig_all,
            srq,
            custom: init.custom.clone(),
            signatures: init.signatures.clone(),
            xrcd: init.xrcd.as_ref().map(|xrcd| xrcd.id()),
            window_bytes: device.window_bytes(None),
            max_rd_atomic: device.attr().max_qp_rd_atom as u8,
            memory: init.memory.clone(),
            set_aside: init.set_aside,
        })?;
        pd.add_user();
        init.cqs().for_each(|cq| cq.add_user());
        if let Some(srq) = &init.srq {
            srq.add_user();
        }
        if let Some(xrcd) = &init.xrcd {
            xrcd.add_user();
        }
        if let Some(rss) = &init.rss {
            rss.table.add_user();
        }
        let qp = Arc::new_cyclic(|this| Qp {
            device: Arc::downgrade(device),
            number,
            pd: pd.clone(),
            frame_port,
            shelves,
            core: Mutex::new(Core {
                transport,
                way: None,
                ends: None,
                appointment: Appointment::default(),
                busy_until: None,
                destroyed: false,
                frames,
                counters: None,
            }),
            init,
            handles: AtomicU32::new(1),
            this: this.clone(),
        });
        device.directory().publish_qp(number, qp.init.qp_type, QpState::Reset, pd.id().0, 0);
        Ok(qp)
    }

    /// Whether completions of its requests go to `cq`.
    pub(crate) fn completes_at(&self, cq: &Cq) -> bool {
        self.cqs().any(|own| std::ptr::eq(&raw const **own, cq))
    }

    fn cqs(&self) -> impl Iterator<Item = &Arc<Cq>> {
        let of_tags = self.init.srq.as_ref().and_then(|srq| srq.tags_cq());
        self.init.cqs().chain(of_tags)
    }

    fn core(&self) -> MutexGuard<'_, Core> {
        self.core.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn device(&self) -> Result<Arc<Device>> {
        let device = self.device.upgrade().ok_or(Error::Lost("the device is closed"))?;
        device.alive()?;
        Ok(device)
    }

    /// QP number, 24 bits.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// An empty list for `len` entries of a send request; its store is the queue's, while no more requests are under way than
    /// the queue takes.
    ///
    /// # Errors
    /// [`Error::NoMemory`] when there are more, and the system has no memory.
    pub fn gather_list(&self, len: usize) -> Result<SgList> {
        self.shelves.gathers.lend(len)
    }

    /// The same for `len` bytes that a send request brings along.
    ///
    /// # Errors
    /// As [`Qp::gather_list`].
    pub fn inline_data(&self, len: usize) -> Result<InlineData> {
        self.shelves.inline.lend(len)
    }

    /// The same for the entries of a receive request.
    ///
    /// # Errors
    /// As [`Qp::gather_list`].
    pub fn scatter_list(&self, len: usize) -> Result<SgList> {
        self.shelves.scatters.lend(len)
    }

    /// What it was created from.
    pub fn init(&self) -> &QpInit {
        &self.init
    }

    pub(crate) fn frame_port(&self) -> Option<&FramePort> {
        self.frame_port.as_deref()
    }

    /// Protection domain.
    pub fn pd(&self) -> &Arc<Pd> {
        &self.pd
    }

    /// Current attributes.
    pub fn query(&self) -> QpAttr {
        self.core().transport.query()
    }

    /// Current state.
    pub fn state(&self) -> QpState {
        self.core().transport.state()
    }

    /// From now on counts here as well, or only in its device again.
    pub fn count_into(&self, counters: Option<Arc<CounterSet>>) {
        self.core().counters = counters;
    }

    /// Changes attributes and state (IBA 11.2.5.2).
    ///
    /// # Errors
    /// [`Error::Invalid`] for an illegal transition, mask or value; [`Error::Unreachable`] when the address has no
    /// route; [`Error::NotSupported`] for one that only spreads frames, which has no state.
    pub fn modify(&self, attr: &QpAttr, mask: AttrMask) -> Result<()> {
        if self.init.rss.is_some() {
            return Err(Error::NotSupported("an RSS queue pair has no state"));
        }
        let device = self.device()?;
        let connected = self.init.qp_type.is_connected();
        if mask.contains(AttrMask::PORT) {
            device.port(u32::from(attr.port_num))?;
        }
        if mask.contains(AttrMask::PKEY_INDEX) {
            device.pkey(1, u32::from(attr.pkey_index))?;
        }
        let route = if mask.contains(AttrMask::AV) && connected {
            let path = device.path(&attr.ah)?;
            let dest = if mask.contains(AttrMask::DEST_QPN) {
                attr.dest_qp_num
            } else {
                self.query().dest_qp_num
            };
            let ends = (ip_of_gid(attr.ah.dgid), path.src.to_canonical());
            Some((device.way(path, dest, self.losses())?, ends))
        } else {
            None
        };
        let mut core = self.core();
        let before = core.transport.state();
        self.with_cx(&device, &mut core, |transport, cx| transport.modify(attr, mask, cx))?;
        if let Some((way, ends)) = route {
            core.transport.set_window(device.window_bytes(Some(&way)));
            core.way = Some(way);
            core.ends = Some(ends);
        }
        let after = core.transport.state();
        if after == QpState::Reset {
            core.way = None;
            core.ends = None;
            if before != QpState::Reset {
                self.init.cqs().for_each(|cq| cq.forget(self.number));
            }
        }
        if matches!(after, QpState::Rts | QpState::Sqd) {
            self.transmit(&device, &mut core);
        }
        let dest = core.transport.query().dest_qp_num;
        device.directory().publish_qp(self.number, self.init.qp_type, after, self.pd.id().0, dest);
        Ok(())
    }

    fn losses(&self) -> Losses {
        if self.init.qp_type.is_reliable() { Losses::Repaired } else { Losses::Final }
    }

    /// From now on packets of a connected queue pair that can send leave from this UDP port, on a network that lets it choose
    /// ([`crate::Network::Ethernet`]).
    ///
    /// # Errors
    /// [`Error::Invalid`] for one that is not connected or cannot send; those of [`Qp::modify`] about its peer's address.
    pub fn set_udp_source(&self, port: u16) -> Result<()> {
        let device = self.device()?;
        let now = self.query();
        let way = match self.init.qp_type.is_connected() {
            true => {
                let path = device.path(&AhAttr { udp_src: port, ..now.ah })?;
                device.way(path, now.dest_qp_num, self.losses())?
            }
            false => return Err(Error::Invalid("only a connection has a UDP port of its own")),
        };
        let mut core = self.core();
        if core.transport.state() != QpState::Rts {
            return Err(Error::Invalid("the queue pair cannot send"));
        }
        core.transport.set_udp_source(port);
        core.way = Some(way);
        Ok(())
    }

    /// [`Transport::stop_at_bad_signatures`].
    pub fn stop_at_bad_signatures(&self) {
        self.core().transport.stop_at_bad_signatures();
    }

    /// [`Transport::cancel_sends`].
    ///
    /// # Errors
    /// As there.
    pub fn cancel_sends(&self, wr_id: u64) -> Result<usize> {
        self.core().transport.cancel_sends(wr_id)
    }

    /// [`Transport::withdraw_sends`].
    ///
    /// # Errors
    /// As there.
    pub fn withdraw_sends(&self) -> Result<Vec<SendWr>> {
        self.core().transport.withdraw_sends()
    }

    /// Posts send requests in order and emits as much as window and peer allow, in the caller's thread.
    ///
    /// # Errors
    /// The index of the first request refused, and why; those before it are posted.
    pub fn post_send(
        &self,
        requests: &mut dyn Iterator<Item = Result<SendWr>>,
    ) -> std::result::Result<(), (usize, Error)> {
        let device = self.device().map_err(|error| (0, error))?;
        let mut core = self.core();
        let mut outcome = Ok(());
        for (index, request) in requests.enumerate() {
            if let Ok(request) = &request
                && !knows_way(request)
            {
                drop(core);
                find_way(&device, request);
                core = self.core();
            }
            let posted = request.and_then(|request| core.transport.post_send(request));
            if let Err(error) = posted {
                outcome = Err((index, error));
                break;
            }
        }
        if !core.transport.waits_for_company() {
            self.transmit(&device, &mut core);
        }
        outcome
    }

    /// A page fault of this queue pair was served, or cannot be: what waited for it goes on, or fails. One that is over, or
    /// never was, means nothing.
    pub fn resume(&self, fault: u64, verdict: Verdict) {
        let Ok(device) = self.device() else { return };
        let mut core = self.core();
        if !core.destroyed {
            self.with_cx(&device, &mut core, |transport, cx| transport.resume(fault, verdict, cx));
        }
    }

    /// Posts all of `batch` in order, which is empty then, and emits as [`Qp::post_send`] does, or refuses it as a whole.
    ///
    /// # Errors
    /// Why the first wrong request is wrong, or that there is no room for all.
    pub fn post_sends(&self, batch: &mut Vec<SendWr>) -> Result<()> {
        let device = self.device()?;
        batch.iter().filter(|request| !knows_way(request)).for_each(|r| find_way(&device, r));
        let mut core = self.core();
        core.transport.post_sends(batch)?;
        if !core.transport.waits_for_company() {
            self.transmit(&device, &mut core);
        }
        Ok(())
    }

    /// Posts receive requests in order.
    ///
    /// # Errors
    /// The index of the first request refused, and why.
    pub fn post_recv(
        &self,
        requests: &mut dyn Iterator<Item = Result<RecvWr>>,
    ) -> std::result::Result<(), (usize, Error)> {
        let device = self.device().map_err(|error| (0, error))?;
        let mut core = self.core();
        let mut outcome = Ok(());
        for (index, request) in requests.enumerate() {
            let posted = request.and_then(|request| core.transport.post_recv(request));
            if let Err(error) = posted {
                outcome = Err((index, error));
                break;
            }
        }
        if core.transport.state() == QpState::Err {
            // Posting in the error state flushes at once.
            self.with_cx(&device, &mut core, |transport, cx| transport.transmit(cx));
        }
        outcome
    }

    /// Takes one more handle of the receiving half of XRC in domain `xrcd`.
    ///
    /// # Errors
    /// [`Error::Invalid`] when the QP is none, or of another domain, or just going.
    pub fn open(&self, xrcd: XrcdId) -> Result<()> {
        let same = self.init.xrcd.as_ref().is_some_and(|own| own.id() == xrcd);
        let more = |handles| if handles > 0 { Some(handles + 1) } else { None };
        if same && self.handles.fetch_update(Relaxed, Relaxed, more).is_ok() {
            return Ok(());
        }
        Err(Error::Invalid("the XRC domain has no such queue pair"))
    }

    /// Gives a handle back; the last one destroys the QP.
    pub fn close(&self) {
        if self.handles.fetch_sub(1, Relaxed) == 1 {
            self.destroy();
        }
    }

    /// Ends the QP's life: no packet, completion or event of it comes afterwards. Waits for a turn of progress.
    pub fn destroy(&self) {
        if self.core().destroyed {
            return;
        }
        let device = self.device.upgrade();
        // A turn in progress may still owe the peer the acknowledge of what the program has already seen complete.
        let turn = device.as_ref().map(|device| device.between_turns());
        let mut core = self.core();
        if core.destroyed {
            return;
        }
        if let Some(device) = &device
            && core.transport.has_ack_pending()
        {
            self.with_cx(device, &mut core, Transport::end_of_batch);
        }
        core.destroyed = true;
        core.way = None;
        core.transport.leave_memory();
        drop(core);
        drop(turn);
        if let Some(device) = device {
            device.remove_qp(self.number);
            device.forget_multicast(self.number);
            if self.frame_port.is_some() {
                device.forget_flows(self.number);
            }
            device.keys().forget_qp(self.number);
        }
        self.pd.drop_user();
        for cq in self.init.cqs() {
            cq.forget(self.number);
            cq.drop_user();
        }
        if let Some(srq) = &self.init.srq {
            srq.drop_user();
        }
        if let Some(xrcd) = &self.init.xrcd {
            xrcd.drop_user();
        }
        if let Some(rss) = &self.init.rss {
            rss.table.drop_user();
        }
    }

    /// The device has failed: whoever waits for an answer is told, and all requests are flushed.
    pub(crate) fn end_with_device(&self, device: &Device) {
        let mut core = self.core();
        if core.destroyed {
            return;
        }
        self.with_cx(device, &mut core, |transport, cx| transport.end_with_device(cx));
        let now = core.transport.query();
        let (state, dest) = (now.qp_state, now.dest_qp_num);
        device.directory().publish_qp(self.number, self.init.qp_type, state, self.pd.id().0, dest);
    }

    /// One packet from the wire. `batch` is room for what it makes the QP send; `endings` is how many requests may end in this
    /// turn, by whatever packets.
    pub(crate) fn receive(
        &self,
        device: &Device,
        rx: &Rx<'_>,
        now: Instant,
        batch: &mut Batch,
        endings: &mut u32,
    ) {
        let mut core = self.core();
        // As the peer's address, so must ours be the one that the address vector names (IBA 9.6.1).
        let foreign = self.init.qp_type.is_connected() && core.ends != Some((rx.src, rx.dst));
        if core.destroyed || foreign {
            device.directory().count(Counter::RxDropped, 1);
            return;
        }
        device.directory().add_traffic(self.number, 0, rx.payload.len() as u64);
        let budget = QUANTUM.ending(*endings);
        *endings = self.run(device, &mut core, (now, budget), batch, |transport, cx| {
            transport.receive(rx, cx);
            cx.budget.endings()
        });
    }

    /// One Ethernet frame that steering chose the QP for; `parsed` is what it saw of it.
    pub(crate) fn receive_frame(
        &self,
        device: &Device,
        bytes: &[u8],
        parsed: &Frame,
        now: Instant,
        batch: &mut Batch,
    ) {
        let mut core = self.core();
        if core.destroyed {
            return device.directory().count(Counter::RxDropped, 1);
        }
        device.directory().add_traffic(self.number, 0, bytes.len() as u64);
        if let Some(queue) = self.init.rss.as_ref().and_then(|rss| rss.queue(parsed)) {
            return queue.receive_frame(device, bytes);
        }
        self.run(device, &mut core, (now, QUANTUM), batch, |transport, cx| {
            transport.receive_frame(bytes, cx)
        });
    }

    /// The end of a burst of packets: acknowledges go out, and what the window now allows.
    pub(crate) fn end_of_batch(&self, device: &Device, now: Instant, batch: &mut Batch) {
        let mut core = self.core();
        if core.destroyed {
            return;
        }
        if !core.holds_back(now) {
            self.run(device, &mut core, (now, QUANTUM), batch, |transport, cx| {
                transport.end_of_batch(cx);
                transport.transmit(cx);
            });
        }
        self.arm(device, &mut core);
    }

    /// The end of a burst for which this turn has no time any more. Acknowledges go out all the same: the program has been told
    /// of what they are for, and may end or destroy the queue pair before the next turn.
    pub(crate) fn put_off(&self, device: &Device, now: Instant, batch: &mut Batch) {
        let mut core = self.core();
        if core.destroyed {
            return;
        }
        if core.transport.has_ack_pending() && !core.holds_back(now) {
            self.run(device, &mut core, (now, LAST_WORDS), batch, Transport::end_of_batch);
        }
        core.transport.put_off(now);
        self.arm(device, &mut core);
    }

    /// A timer set for this QP came due.
    pub(crate) fn timer(&self, device: &Device, now: Instant, batch: &mut Batch) {
        let mut core = self.core();
        if core.destroyed {
            return;
        }
        core.appointment.came();
        if core.holds_back(now) {
            return self.arm(device, &mut core);
        }
        let held_back = core.busy_until.take().is_some();
        let due = core.transport.deadline().is_some_and(|deadline| deadline <= now);
        if due || held_back || self.cqs().any(|cq| cq.failed()) {
            self.run(device, &mut core, (now, QUANTUM), batch, |transport, cx| {
                if held_back {
                    transport.end_of_batch(cx);
                }
                transport.timer(cx);
                transport.transmit(cx);
            });
        }
        self.arm(device, &mut core);
    }

    fn arm(&self, device: &Device, core: &mut Core) {
        // While it holds back there is nothing else to do for it.
        let Some(deadline) = core.busy_until.or_else(|| core.transport.deadline()) else { return };
        if core.appointment.make(deadline) {
            device.set_timer(deadline, self.number);
        }
    }

    /// Emits what window and peer allow, unless the QP holds back.
    fn transmit(&self, device: &Device, core: &mut Core) {
        if core.busy_until.is_some() && core.holds_back(Instant::now()) {
            return self.arm(device, core);
        }
        self.with_cx(device, core, |transport, cx| transport.transmit(cx));
    }

    fn with_cx<R>(
        &self,
        device: &Device,
        core: &mut Core,
        call: impl FnOnce(&mut Transport, &mut Cx<'_>) -> R,
    ) -> R {
        let mut batch = device.take_batch();
        let result = self.run(device, core, (Instant::now(), CALL), &mut batch, call);
        device.return_batch(batch);
        self.arm(device, core);
        result
    }

    /// Runs `call` on the transport. What it emits leaves before the lock does, or another thread's packets would overtake it.
    fn run<R>(
        &self,
        device: &Device,
        core: &mut Core,
        (now, budget): (Instant, Budget),
        batch: &mut Batch,
        call: impl FnOnce(&mut Transport, &mut Cx<'_>) -> R,
    ) -> R {
        let mut tx = Out {
            device,
            parts: parts_reached(),
            batch,
            way: core.way.as_ref(),
            number: self.number,
            frames: self.frame_port().map(|port| (port, &mut core.frames)),
        };
        let mut sink = QpSink { qp: self, device };
        let directory = device.directory();
        let both = core.counters.as_deref().map(|set| Both(directory, set));
        let counters: &dyn Count = match &both {
            Some(both) => both,
            None => directory,
        };
        let mut cx = Cx {
            now,
            tx: &mut tx,
            keys: device.keys(),
            xrc: device.xrc(),
            sink: &mut sink,
            counters,
            budget,
        };
        let result = call(&mut core.transport, &mut cx);
        if let Some(until) = pcie::owed() {
            core.busy_until = core.busy_until.max(Some(until));
        }
        if self.cqs().any(|cq| cq.failed()) {
            core.transport.fail(&mut cx);
        }
        batch.flush(device.endpoint());
        if let Some(port) = self.frame_port() {
            core.frames.flush(port, device.endpoint().stats());
        }
        result
    }
}

/// Whether sending `request` asks nobody for the way.
fn knows_way(request: &SendWr) -> bool {
    request
        .datagram
        .as_ref()
        .is_none_or(|to| handle_of(&*to.ah).is_some_and(|ah| ah.knows_way(to.remote_qpn)))
}

/// Finds the way for a datagram: not under a lock. What it comes to is seen when the packet goes.
fn find_way(device: &Device, request: &SendWr) {
    if let Some(to) = &request.datagram {
        let _ = handle_of(&*to.ah).map(|ah| ah.way(device, to.remote_qpn));
    }
}

impl Drop for Qp {
    fn drop(&mut self) {
        self.destroy();
    }
}

/// Packets of one QP on their way to the link.
struct Out<'a> {
    device: &'a Device,
    /// [`parts_reached`] when the call began.
    parts: u64,
    batch: &'a mut Batch,
    way: Option<&'a Way>,
    number: u32,
    /// Of raw packets: what carries frames, and those collected for it.
    frames: Option<(&'a FramePort, &'a mut FrameBatch)>,
}

impl Tx for Out<'_> {
    fn packet(
        &mut self,
        to: To<'_>,
        headers: &Headers,
        payload_len: usize,
        fill: &mut Fill<'_>,
    ) -> std::result::Result<(), AccessError> {
        let endpoint = self.device.endpoint();
        match to {
            To::Peer => {
                let Some(way) = self.way else { return Ok(()) };
                self.batch.packet(endpoint, &way.flow, headers, payload_len, fill)?;
            }
            To::Ah(ah) => {
                let way = handle_of(&**ah).map(|ah| ah.way(self.device, headers.bth.dest_qp));
                let Some(Ok(way)) = way else {
                    self.device.directory().count(Counter::TxNoFlow, 1);
                    return Ok(());
                };
                self.batch.packet(endpoint, &way.flow, headers, payload_len, fill)?;
            }
        }
        self.device.directory().add_traffic(self.number, payload_len as u64, 0);
        Ok(())
    }

    fn frame(&mut self, len: usize, fill: &mut Fill<'_>) -> std::result::Result<(), AccessError> {
        let Some((port, frames)) = &mut self.frames else { return Err(AccessError::Unreachable) };
        frames.frame(port, self.device.endpoint().stats(), len, fill)?;
        self.device.directory().add_traffic(self.number, len as u64, 0);
        Ok(())
    }

    fn port_mtu(&self) -> u32 {
        self.device.active_mtu()
    }

    fn is_busy(&self, now: Instant) -> bool {
        parts_reached() - self.parts >= PARTS_A_CALL || pcie::owes_more(now, LINK_BURST)
    }

    fn room(&mut self, to: To<'_>, dest_qpn: u32, bytes: u64, now: Instant) -> Option<bool> {
        match to {
            To::Peer => self.way?.room(bytes, now),
            To::Ah(ah) => handle_of(&**ah)?.way(self.device, dest_qpn).ok()?.room(bytes, now),
        }
    }
}

/// Completions and events of one QP on their way to their queues.
struct QpSink<'a> {
    qp: &'a Qp,
    device: &'a Device,
}

impl Sink for QpSink<'_> {
    fn sent(&mut self, completion: Completion) {
        if let Some(cq) = &self.qp.init.send_cq {
            cq.push(self.stamp(completion));
        }
    }

    fn received(&mut self, completion: Completion) {
        if let Some(cq) = &self.qp.init.recv_cq {
            cq.push(self.stamp(completion));
        }
    }

    fn event(&mut self, event: EventType) {
        let source = EventSource::Qp(self.qp.this.clone());
        self.device.raise(AsyncEvent { event, source });
    }

    fn page_fault(&mut self, fault: PageFault) -> bool {
        self.device.page_fault(self.qp.number, fault)
    }
}

impl QpSink<'_> {
    fn stamp(&self, completion: Completion) -> Completion {
        Completion { timestamp_ns: self.device.now_ns(), ..completion }
    }
}

#[cfg(test)]
mod tests;
