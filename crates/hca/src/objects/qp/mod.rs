//! Queue pairs: a [`Transport`] under its lock, wired to completion queues, the link and the
//! directory.

mod at_home;
mod direct;
mod emit;
mod init;
mod post;
mod posts;
mod short;
mod timer;
mod turns;

pub(crate) use turns::{BYTES_AN_ANSWER, InARow, Visit};

use crate::adapter::Adapter;
use crate::adapter::directory::neighbour::Neighbour;
use crate::adapter::directory::{ShownQp, ends_word};
use crate::adapter::management::ManagementInterface;
use crate::adapter::paths::PeerPath;
use crate::adapter::rings::{Ends, RingTo};
use crate::adapter::timers::Appointment;
use crate::memory::pd::Pd;
use crate::objects::cq::Cq;
use crate::objects::door::{Door, Open};
use crate::objects::owner::Owner;
use crate::objects::srq::Srq;
use crate::objects::xrc::Xrc;
use engine_thread::lock;
use init::Shelves;
use link::{FrameBatch, FramePort, Losses, ip_of_gid};
use posts::Posts;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::{Duration, Instant};
use transport::values::*;
use transport::{CounterSet, Error, Init, Result, SharedQueue, Transport, Verdict};

/// How far a QP may run ahead of paced links: a timer for less costs more than it mends.
const LINK_BACKLOG: Duration = Duration::from_micros(20);

/// What one QP's lock guards.
struct Core {
    transport: Transport,
    /// Towards the connected peer; set with the address vector.
    way: Option<PeerPath>,
    /// Our own address and the peer's, as packets to the peer have them; set with the address
    /// vector.
    ends: Option<Ends>,
    /// Whose memory requests may reach without packets, and [`ends_word`] of the packets that they
    /// would be; set with the address vector.
    neighbour: Option<(Arc<Neighbour>, u64)>,
    /// The same where the peer is of this device.
    home: Option<(Arc<Door>, u64)>,
    /// What packets to the peer may pass through instead of the wire, and whether they do; set with
    /// the address vector.
    ring: Option<Arc<RingTo>>,
    by_ring: bool,
    /// Whether the peer's latest request came by a ring: so do its answers go then. By the wire
    /// they would be overtaken, and what an error follows is not asked for again.
    answers_by_ring: bool,
    /// Whether packets to the peer ever went by the wire.
    used_wire: bool,
    /// Whether datagrams ever passed through a ring.
    datagrams_by_ring: bool,
    /// The state that the directory shows, and whether it is open to the peer.
    shown: (QpState, bool),
    appointment: Appointment,
    posts: Posts,
    /// Where PCIe links are paced: they are busy with what the QP moved, and it holds back until
    /// then.
    busy_until: Option<Instant>,
    destroyed: bool,
    /// Frames on their way out; none where it is of packets.
    frames: Vec<FrameBatch>,
    /// It counts here besides in its device.
    counters: Option<Arc<CounterSet>>,
}

impl Core {
    /// The state, and whether it is open to the peer.
    fn state(&self) -> (QpState, bool) {
        (self.transport.state(), self.transport.is_open_to_peer())
    }

    /// Whether paced links are still busy with what the QP moved.
    fn holds_back(&self, now: Instant) -> bool {
        self.busy_until.is_some_and(|until| until > now + LINK_BACKLOG)
    }
}

/// A queue pair. Lock order: `core`, then an SRQ's queue, then a CQ's ring.
pub struct Qp {
    owner: Weak<dyn Owner>,
    adapter: Weak<Adapter>,
    xrc: Arc<Xrc>,
    number: u32,
    init: QpInit,
    pd: Arc<Pd>,
    /// What carries its frames, if it is of raw packets.
    frame_port: Option<Arc<FramePort>>,
    shelves: Shelves,
    /// What the peer may do here past packets, where it is of this device.
    door: Arc<Door>,
    core: Mutex<Core>,
    /// A timer found another thread at the core: that makes its visit.
    missed: AtomicBool,
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
        owner: &Arc<dyn Owner>,
        xrc: &Arc<Xrc>,
        number: u32,
        pd: &Arc<Pd>,
        init: QpInit,
        frame_port: Option<Arc<FramePort>>,
    ) -> Result<Arc<Qp>> {
        let adapter = owner.adapter();
        let shelves = Shelves::new(&init)?;
        let frames = init::frame_batch(frame_port.is_some())?;
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
            window_bytes: adapter.window_bytes(None),
            max_rd_atomic: adapter.attr().max_qp_rd_atom as u8,
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
            owner: Arc::downgrade(owner),
            adapter: Arc::downgrade(adapter),
            xrc: xrc.clone(),
            number,
            pd: pd.clone(),
            frame_port,
            shelves,
            door: Arc::new(Door::new(number, pd.id())),
            core: Mutex::new(Core {
                transport,
                way: None,
                ends: None,
                neighbour: None,
                home: None,
                ring: None,
                by_ring: false,
                answers_by_ring: false,
                datagrams_by_ring: false,
                used_wire: false,
                shown: (QpState::Reset, false),
                appointment: Appointment::default(),
                posts: Posts::default(),
                busy_until: None,
                destroyed: false,
                frames,
                counters: None,
            }),
            init,
            missed: AtomicBool::new(false),
            handles: AtomicU32::new(1),
            this: this.clone(),
        });
        qp.show(adapter, &mut qp.core());
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

    /// Whether a completion found no place in its queue.
    fn lost_completions(&self) -> bool {
        self.cqs().any(|cq| cq.failed())
    }

    fn core(&self) -> MutexGuard<'_, Core> {
        lock(&self.core)
    }

    fn adapter(&self) -> Result<Arc<Adapter>> {
        let adapter = self.adapter.upgrade().ok_or(Error::Lost("the device is closed"))?;
        adapter.alive()?;
        Ok(adapter)
    }

    /// QP number, 24 bits.
    pub fn number(&self) -> u32 {
        self.number
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

    /// Returns once what a thread does for the queue pair just now is done.
    pub(crate) fn settle(&self) {
        drop(self.core());
    }

    /// From now on counts here as well, or only in its device again.
    pub fn count_into(&self, counters: Option<Arc<CounterSet>>) {
        let mut core = self.core();
        core.counters = counters;
        // A neighbour counts in the device only.
        if let Ok(adapter) = self.adapter() {
            self.show(&adapter, &mut core);
        }
    }

    /// Shows the QP as it is to other processes.
    fn show(&self, adapter: &Adapter, core: &mut Core) {
        if core.destroyed {
            return;
        }
        let now = core.transport.query();
        let reads = if now.max_dest_rd_atomic == 0 { Access::REMOTE_READ } else { Access::empty() };
        let open = core.ends.filter(|_| {
            let mine = self.init.qp_type == QpType::Rc && core.counters.is_none();
            mine && adapter.has_neighbours() && core.transport.is_open_to_peer()
        });
        let agreed = core.neighbour.as_ref().is_some_and(|(neighbour, _)| neighbour.has_agreed());
        let direct = agreed || core.home.is_some();
        core.shown = core.state();
        let open = open.map(|ends| (now.access - reads, ends_word(ends.dst, ends.src)));
        let peer = now.dest_qp_num;
        self.door.set(open.map(|(access, ends)| Open { peer, ends, access }));
        adapter.directory().publish_qp(&ShownQp {
            number: self.number,
            qp_type: self.init.qp_type,
            state: now.qp_state,
            pd: self.pd.id().0,
            dest_qpn: peer,
            goes_directly: direct || core.by_ring || core.datagrams_by_ring,
            open,
        });
    }

    /// Changes attributes and state (IBA 11.2.5.2).
    ///
    /// # Errors
    /// [`Error::Invalid`] for an illegal transition, mask or value; [`Error::Unreachable`] when the
    /// address has no route; [`Error::NotSupported`] for one that only spreads frames, which has no
    /// state.
    pub fn modify(&self, attr: &QpAttr, mask: AttrMask) -> Result<()> {
        if self.init.rss.is_some() {
            return Err(Error::NotSupported("an RSS queue pair has no state"));
        }
        let adapter = self.adapter()?;
        let connected = self.init.qp_type.is_connected();
        if mask.contains(AttrMask::PORT) {
            adapter.port(u32::from(attr.port_num))?;
        }
        if mask.contains(AttrMask::PKEY_INDEX) {
            adapter.pkey(1, u32::from(attr.pkey_index))?;
        }
        let route = if mask.contains(AttrMask::AV) && connected {
            let (path, controlled) = adapter.connected_path(&attr.ah)?;
            let dest = if mask.contains(AttrMask::DEST_QPN) {
                attr.dest_qp_num
            } else {
                self.query().dest_qp_num
            };
            let ends = Ends {
                src: path.src.to_canonical(),
                dst: ip_of_gid(attr.ah.dgid),
                traffic_class: path.traffic_class,
                hop_limit: path.hop_limit,
            };
            let one_sided = self.init.qp_type == QpType::Rc;
            let neighbour = one_sided.then(|| adapter.neighbour(&path, dest)).flatten();
            let neighbour = neighbour.map(|neighbour| (neighbour, ends_word(ends.src, ends.dst)));
            let home = self.home(&adapter, &path, dest, &ends);
            let ring = self.frame_port.is_none().then(|| adapter.ring(&path, dest)).flatten();
            let way = adapter.way(path, dest, self.losses())?;
            Some((way, controlled, ends, (neighbour, home), ring))
        } else {
            None
        };
        let mut core = self.core();
        let before = core.transport.state();
        self.with_cx(&adapter, &mut core, |transport, cx| transport.modify(attr, mask, cx))?;
        if let Some((way, controlled, ends, (neighbour, home), ring)) = route {
            core.transport.control_congestion(controlled);
            core.transport.set_window(adapter.window_bytes(Some(&way)));
            core.way = Some(way);
            core.ends = Some(ends);
            (core.neighbour, core.home) = (neighbour, home);
            (core.ring, core.by_ring, core.used_wire) = (ring, false, false);
        }
        let after = core.transport.state();
        if after == QpState::Reset {
            core.way = None;
            core.ends = None;
            (core.neighbour, core.home) = (None, None);
            (core.ring, core.by_ring) = (None, false);
            if before != QpState::Reset {
                self.init.cqs().for_each(|cq| cq.forget(self.number));
            }
        }
        if matches!(after, QpState::Rts | QpState::Sqd) {
            self.transmit(&adapter, &mut core, Instant::now());
        }
        self.show(&adapter, &mut core);
        drop(core);
        // What the peer had leave for before it has none for now.
        adapter.directory().wait_for_visitors_of_qp(self.number);
        Ok(())
    }

    fn losses(&self) -> Losses {
        if self.init.qp_type.is_reliable() { Losses::Repaired } else { Losses::Final }
    }

    /// From now on packets of a connected queue pair that can send leave from this UDP port, on a
    /// network that lets it choose ([`crate::Network::Ethernet`]).
    ///
    /// # Errors
    /// [`Error::Invalid`] for one that is not connected or cannot send; those of [`Qp::modify`]
    /// about its peer's address.
    pub fn set_udp_source(&self, port: u16) -> Result<()> {
        let adapter = self.adapter()?;
        let now = self.query();
        let way = match self.init.qp_type.is_connected() {
            true => {
                let (path, _) = adapter.connected_path(&AhAttr { udp_src: port, ..now.ah })?;
                adapter.way(path, now.dest_qp_num, self.losses())?
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

    /// A page fault of this queue pair was served, or cannot be: what waited for it goes on, or
    /// fails. One that is over, or never was, means nothing.
    pub fn resume(&self, fault: u64, verdict: Verdict) {
        let Ok(adapter) = self.adapter() else { return };
        let mut core = self.core();
        if !core.destroyed {
            self.with_cx(&adapter, &mut core, |transport, cx| transport.resume(fault, verdict, cx));
        }
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

    /// Ends the QP's life: no packet, completion or event of it comes afterwards. Waits for a turn
    /// of progress.
    pub fn destroy(&self) {
        if self.core().destroyed {
            return;
        }
        let mut first = false;
        match self.owner.upgrade() {
            // A turn in progress may still owe the peer the acknowledge of what the program has
            // already seen complete.
            Some(owner) => {
                let adapter = owner.adapter();
                owner.between_turns(&mut || first = self.end(Some(adapter)));
                if first {
                    owner.forget_qp(self.number, self.frame_port.is_some());
                    adapter.keys().forget_qp(self.number);
                }
            }
            None => first = self.end(None),
        }
        if !first {
            return;
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

    /// Ends what the transport does; `false`: another thread has.
    fn end(&self, adapter: Option<&Arc<Adapter>>) -> bool {
        let mut core = self.core();
        if core.destroyed {
            return false;
        }
        if let Some(adapter) = adapter
            && core.transport.has_ack_pending()
        {
            self.with_cx(adapter, &mut core, Transport::end_of_batch);
        }
        core.destroyed = true;
        self.door.set(None);
        core.way = None;
        (core.neighbour, core.home) = (None, None);
        (core.ring, core.by_ring) = (None, false);
        core.transport.leave_memory();
        true
    }
}

impl Drop for Qp {
    fn drop(&mut self) {
        self.destroy();
    }
}

pub use init::QpInit;

#[cfg(test)]
mod tests;
