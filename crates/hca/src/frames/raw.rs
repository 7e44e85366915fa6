//! Raw packets at the device: the interface that carries its frames, the flow rules, and the way of
//! a frame to its takers.
//!
//! The frames of port 1 are those of one network interface: that of the first GID, loopback only
//! where there is no other. Who sends goes out by it; while there is a rule, what passes there is
//! looked at. The kernel's own stack goes on seeing it all: frames are copied to a program here,
//! never taken away from the host.

use crate::adapter::Adapter;
use crate::frames::flow_counters::FlowCounters;
use crate::frames::steering::{FlowAttr, Reach, Table, Takers};
use crate::memory::pd::Pd;
use crate::objects::qp::Qp;
use crate::objects::qp_table::Qps;
use crate::objects::rss::IndTable;
use crate::objects::wq::{FIRST_NUMBER, Wq, WqInit};
use engine_thread::{lock, read, write};
use link::{Batch, FramePort, FrameReceiver, FrameTap, TappedFrame};
use rustix::io::Errno;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard, Weak};
use std::time::Instant;
use transport::values::QpType;
use transport::{Count, Counter};
use transport::{Error, Result};
use wire::frame::Frame;

const EPERM: i32 = Errno::PERM.raw_os_error();
const EIO: i32 = Errno::IO.raw_os_error();
/// Frames taken in one turn of progress, so that a poll returns soon.
const FRAMES_A_TURN: usize = 64;

#[derive(Default)]
struct Rules {
    table: Table,
    tap: Option<Arc<FrameTap>>,
}

/// What a device has for raw packets.
#[derive(Default)]
pub(crate) struct Raw {
    /// Whether there is a tap: asked by every turn of progress.
    open: AtomicBool,
    rules: RwLock<Rules>,
    port: Mutex<Weak<FramePort>>,
    wqs: AtomicU32,
}

impl Raw {
    fn read(&self) -> RwLockReadGuard<'_, Rules> {
        read(&self.rules)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Rules> {
        write(&self.rules)
    }

    /// Where frames come in, while there is a rule.
    pub(crate) fn tap(&self) -> Option<Arc<FrameTap>> {
        if self.open.load(Relaxed) { self.read().tap.clone() } else { None }
    }

    fn changed(&self, rules: &mut Rules) {
        if rules.table.is_empty() {
            rules.tap = None;
        }
        self.open.store(rules.tap.is_some(), Relaxed);
    }
}

/// A flow rule; it ends with the value.
#[derive(Debug)]
pub struct Flow {
    raw: Weak<Raw>,
    id: u64,
}

impl Drop for Flow {
    fn drop(&mut self) {
        if let Some(raw) = self.raw.upgrade() {
            let mut rules = raw.write();
            rules.table.remove(self.id);
            raw.changed(&mut rules);
        }
    }
}

/// Ethernet frames at a device: see [`Device::frames`](crate::Device::frames).
pub struct Frames<'a> {
    pub(crate) adapter: &'a Arc<Adapter>,
    pub(crate) raw: &'a Arc<Raw>,
    pub(crate) qps: &'a Qps,
}

impl Frames<'_> {
    /// The interface that carries the frames of port 1; the same one for all who use it at a time.
    pub(crate) fn port(&self) -> Result<Arc<FramePort>> {
        let refused = |error: std::io::Error| {
            let why = match error.raw_os_error() {
                Some(EPERM) => "raw packets need CAP_NET_RAW",
                _ => "the interface of the first GID carries no raw packets",
            };
            Error::System(error.raw_os_error().unwrap_or(EIO), why)
        };
        let ifindex = self.adapter.gids(1)?.first().map(|entry| entry.ifindex);
        let mut known = lock(&self.raw.port);
        if let Some(port) = known.upgrade() {
            return Ok(port);
        }
        let port = Arc::new(FramePort::open(ifindex.unwrap_or(0)).map_err(refused)?);
        *known = Arc::downgrade(&port);
        Ok(port)
    }

    /// Whether raw packets can be had.
    ///
    /// # Errors
    /// [`Error::System`]: EPERM without CAP_NET_RAW in the network's user namespace, ENODEV without
    /// an interface, EOPNOTSUPP where it carries no Ethernet frames.
    pub fn check(&self) -> Result<()> {
        self.port().map(drop)
    }

    /// A rule by which `qp` takes frames. As long as it is there it counts them, where `counters`
    /// are given.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a rule that cannot be, counters that count nothing or a QP of another
    /// type than raw packet, [`Error::NotSupported`] for one of datagrams, [`Error::NoMemory`] with
    /// too many rules, [`Error::System`] where the interface cannot be listened to.
    pub fn create_flow(
        &self,
        qp: &Qp,
        attr: FlowAttr,
        counters: Option<&Arc<FlowCounters>>,
    ) -> Result<Arc<Flow>> {
        self.adapter.alive()?;
        attr.check()?;
        let Some(port) = qp.frame_port() else {
            return Err(match qp.init().qp_type {
                QpType::Ud => Error::NotSupported("flow rules of datagram queue pairs"),
                _ => Error::Invalid("only raw packet queue pairs have flow rules"),
            });
        };
        let counters = counters.map(FlowCounters::bind).transpose()?;
        let mut rules = self.raw.write();
        let tap = match &rules.tap {
            Some(tap) => tap.clone(),
            None => Arc::new(FrameTap::open(port).map_err(|error| {
                let errno = error.raw_os_error().unwrap_or(EIO);
                Error::System(errno, "the interface cannot be listened to")
            })?),
        };
        let id = rules.table.add(qp.number(), attr, counters)?;
        let reach = rules.table.reach(tap.mac());
        rules.tap = Some(tap.clone());
        self.raw.changed(&mut rules);
        drop(rules);
        tap.open_to(reach >= Reach::Groups, reach == Reach::All);
        // The progress thread shall wait on the tap as well.
        self.adapter.thread.kick();
        Ok(Arc::new(Flow { raw: Arc::downgrade(self.raw), id }))
    }

    /// Whether a rule names `qp`.
    pub fn has_flows(&self, qp: &Qp) -> bool {
        qp.frame_port().is_some() && self.raw.read().table.has(qp.number())
    }

    /// Takes the rules of the QP with `number` out.
    pub(crate) fn forget(&self, number: u32) {
        let mut rules = self.raw.write();
        rules.table.forget(number);
        self.raw.changed(&mut rules);
    }

    /// A work queue in RESET.
    ///
    /// # Errors
    /// [`Error::Invalid`] when a size is out of the device's limits.
    pub fn create_wq(&self, pd: &Arc<Pd>, init: WqInit) -> Result<Arc<Wq>> {
        self.adapter.alive()?;
        if init.max_wr == 0 || init.max_wr > self.adapter.attr().max_qp_wr {
            return Err(Error::Invalid("size of the work queue out of range"));
        }
        if init.max_sge > self.adapter.attr().max_sge {
            return Err(Error::Invalid("too many scatter entries"));
        }
        let init = WqInit { max_sge: init.max_sge.max(1), ..init };
        let number = FIRST_NUMBER | self.raw.wqs.fetch_add(1, Relaxed) & !(0xff << 24);
        Wq::new(self.adapter, number, pd, init)
    }

    /// An indirection table over work queues.
    ///
    /// # Errors
    /// [`Error::Invalid`] unless there are 2^0 to 2^13 of them.
    pub fn create_ind_table(&self, wqs: Vec<Arc<Wq>>) -> Result<Arc<IndTable>> {
        self.adapter.alive()?;
        Ok(Arc::new(IndTable::new(wqs)?))
    }

    /// Takes frames that wait and hands them to their takers; answers with their bytes.
    pub(crate) fn receive(
        &self,
        receiver: &mut Option<FrameReceiver>,
        batch: &mut Batch,
        touched: &mut Vec<Arc<Qp>>,
    ) -> usize {
        let Some(tap) = self.raw.tap() else { return 0 };
        let mut bytes = 0;
        if receiver.is_none() {
            // Without memory the frames wait in the socket.
            *receiver = FrameReceiver::new().ok();
        }
        let Some(receiver) = receiver else { return 0 };
        receiver.receive(&tap, FRAMES_A_TURN, &mut |tapped| {
            bytes += tapped.bytes.len();
            self.steer(&tap, &tapped, batch, touched);
        });
        bytes
    }

    fn steer(
        &self,
        tap: &FrameTap,
        tapped: &TappedFrame<'_>,
        batch: &mut Batch,
        touched: &mut Vec<Arc<Qp>>,
    ) {
        let Some(frame) = Frame::parse(tapped.bytes) else { return };
        // As a NIC's switch does: what is sent to a group, or to the interface itself, comes back
        // in.
        let comes_in = !tapped.outgoing || frame.is_multicast() || frame.dst == tap.mac();
        let rules = self.raw.read();
        let bytes = tapped.bytes.len() as u64;
        let takers: Takers = match comes_in {
            true => rules.table.takers(&frame, bytes),
            false => rules.table.sniffers(bytes).collect(),
        };
        drop(rules);
        if takers.is_empty() {
            return;
        }
        let now = Instant::now();
        self.adapter.directory().count(Counter::RcvdPackets, 1);
        self.adapter.directory().count(Counter::RcvdBytes, bytes);
        for qp in takers.iter().filter_map(|&qpn| self.qps.find(qpn)) {
            qp.receive_frame(self.adapter, tapped.bytes, &frame, now, batch);
            if touched.iter().all(|known| known.number() != qp.number()) {
                touched.push(qp);
            }
        }
    }
}
