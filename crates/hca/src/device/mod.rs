//! The device: what programs open. It has the adapter, the objects that are found by number, and
//! the turns of progress; its other subjects it hands out as parts.

mod create;
mod dispatch;
mod failure;
mod looks;
mod open;
mod ports;
mod progress;
mod short;
mod stand_in;
mod thread;
mod turn;

use crate::adapter::Adapter;
use crate::adapter::caps::DeviceAttr;
use crate::adapter::directory::{Directory, QpEntry, Reader};
use crate::adapter::event::EventSink;
use crate::adapter::network::Attached;
use crate::device::progress::Receiving;
use crate::fabric::Fabric;
use crate::fabric::gsi::{GeneralServices, Gsi};
use crate::fabric::lan::EthernetPort;
use crate::fabric::management::Management;
use crate::fabric::multicast::{Groups, Multicast};
use crate::frames::raw::{Frames, Raw};
use crate::memory::data_direct::{DataDirect, Functions};
use crate::objects::cq::Cq;
use crate::objects::door::Door;
use crate::objects::owner::Owner;
use crate::objects::qp::Qp;
use crate::objects::qp_table::Qps;
use crate::objects::xrc::Xrc;
use engine_thread::lock;
use link::Endpoint;
use std::sync::{Arc, Mutex, MutexGuard, TryLockError, Weak};
use std::time::{Duration, Instant};
use transport::keys::KeyTable;
use transport::values::QpType;
use transport::{Error, Result};

pub use open::{DeviceConfig, Network, OpenError};
pub use stand_in::{Place, Waited, stop_waiting_here};

const PROGRESS_STACK_BYTES: usize = 256 << 10;

/// One virtual HCA with its link.
///
/// Locks, in the order they may be taken: `receiving`, a QP's core, an SRQ's queue; the tables and
/// a CQ's ring are innermost and never held while program memory is touched.
pub struct Device {
    adapter: Arc<Adapter>,
    data_direct: Functions,
    xrc: Arc<Xrc>,
    qps: Qps,
    groups: Groups,
    gsi: Gsi,
    raw: Arc<Raw>,
    receiving: Mutex<Receiving>,
    this: Weak<Device>,
}

impl std::fmt::Debug for Device {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Device {{ {}, slot: {} }}", self.attr().name, self.slot())
    }
}

impl Device {
    fn start_thread(&self) -> std::io::Result<()> {
        let device = self.this.clone();
        self.adapter.thread.begins();
        engine_thread::spawn(c"peerdma", PROGRESS_STACK_BYTES, move || thread::run(&device))?;
        // Neighbours find the directory held from now on, and data moves without an allocation.
        self.adapter.thread.wait_until_begun();
        Ok(())
    }

    /// Leaves the registry and stops the progress thread. Calls on the device's objects fail from
    /// now on.
    pub fn close(&self) {
        self.adapter.close();
    }

    /// In a forked child: the device stays the parent's, and every call here fails with
    /// [`Error::Lost`]. Objects must not be destroyed there: the directory is shared with the
    /// parent, and locks may be held by threads that exist only there.
    pub fn lose(&self) {
        self.adapter.lose();
    }

    /// Before a fork: the progress thread stands still, so that it holds no lock in the child. It
    /// is waited for until `deadline`; a child can do without it unless it keeps the device
    /// ([`Device::adopt`]).
    pub fn pause(&self, deadline: Instant) {
        self.adapter.thread.pause(deadline);
    }

    /// Before a fork whose child keeps the device, once it is paused: neighbours stay out of the
    /// memory until the child lets them in, or [`Device::resume`], as packets wait for the child.
    pub fn keep_neighbours_out(&self) {
        self.directory().keep_out();
    }

    /// After [`Device::pause`] and the fork, in the parent: the progress thread goes on.
    pub fn resume(&self) {
        self.directory().let_in();
        self.adapter.thread.resume();
    }

    /// After a fork, in a child that keeps the device (`daemon(3)`): starts a progress thread
    /// there.
    ///
    /// # Errors
    /// When no thread can be had; when the parent's did not stand at the fork, since it may have
    /// held any lock.
    pub fn adopt(&self) -> std::io::Result<()> {
        if !self.adapter.thread.stood() {
            return Err(std::io::Error::other("it was busy at the fork"));
        }
        self.directory().own();
        self.adapter.thread.resume();
        self.waits_no_longer();
        self.start_thread()
    }

    /// Whether calls still reach the device.
    ///
    /// # Errors
    /// [`Error::Lost`] after [`Device::close`], [`Device::lose`] or
    /// [`EventType::DeviceFatal`](crate::EventType::DeviceFatal).
    pub fn alive(&self) -> Result<()> {
        self.adapter.alive()
    }

    /// Whether a bug of ours has ended it; [`Device::close`] still works.
    pub fn has_failed(&self) -> bool {
        self.adapter.has_failed()
    }

    /// Limits and identity.
    pub fn attr(&self) -> &DeviceAttr {
        self.adapter.attr()
    }

    /// Slot of this device among those that share UDP port 4791, 1 to 1023.
    pub fn slot(&self) -> u16 {
        self.adapter.slot()
    }

    /// Nanoseconds since the device was opened: the clock of completion timestamps.
    pub fn now_ns(&self) -> u64 {
        self.adapter.now_ns()
    }

    /// Where asynchronous events go. The first call decides.
    pub fn set_event_sink(&self, sink: Arc<dyn EventSink>) {
        let _ = self.adapter.events.set(sink);
    }

    /// The link.
    pub fn endpoint(&self) -> &Endpoint {
        self.adapter.endpoint()
    }

    /// Keys of the device.
    pub fn keys(&self) -> &KeyTable {
        self.adapter.keys()
    }

    /// What other processes see.
    pub fn directory(&self) -> &Directory {
        self.adapter.directory()
    }

    /// What its port is on, with what only a port there has.
    pub fn network(&self) -> Fabric<'_> {
        let (adapter, gsi, groups) = (&*self.adapter, &self.gsi, &self.groups);
        match &adapter.network {
            Attached::Host => Fabric::Host,
            Attached::Subnet(subnet) => Fabric::Subnet(Management { adapter, subnet, gsi }),
            Attached::Ethernet(on) => Fabric::Ethernet(EthernetPort { adapter, on, groups }),
        }
    }

    /// The device's port on an InfiniBand subnet.
    ///
    /// # Errors
    /// [`Error::Invalid`] on another network.
    pub fn management(&self) -> Result<Management<'_>> {
        match self.network() {
            Fabric::Subnet(management) => Ok(management),
            Fabric::Host | Fabric::Ethernet(_) => {
                Err(Error::Invalid("the port is on no InfiniBand subnet"))
            }
        }
    }

    /// The device's port on an Ethernet.
    ///
    /// # Errors
    /// [`Error::Invalid`] on another network.
    pub fn ethernet(&self) -> Result<EthernetPort<'_>> {
        match self.network() {
            Fabric::Ethernet(port) => Ok(port),
            Fabric::Host | Fabric::Subnet(_) => Err(Error::Invalid("the port is on no Ethernet")),
        }
    }

    /// QP 1 and the management datagrams there.
    pub fn general_services(&self) -> GeneralServices<'_> {
        GeneralServices { adapter: &self.adapter, gsi: &self.gsi }
    }

    /// Which queue pairs are in which multicast groups.
    pub fn multicast(&self) -> Multicast<'_> {
        Multicast { adapter: &self.adapter, groups: &self.groups }
    }

    /// Ethernet frames that are no packets of the transport: work queues and flow rules.
    pub fn frames(&self) -> Frames<'_> {
        Frames { adapter: &self.adapter, raw: &self.raw, qps: &self.qps }
    }

    /// The Data Direct function.
    pub fn data_direct(&self) -> DataDirect<'_> {
        DataDirect { adapter: &self.adapter, functions: &self.data_direct }
    }

    /// At the program's end: waits until what was received is answered, `limit` at most. The peer
    /// of a program that ends on its last completion would miss the acknowledge otherwise.
    pub fn settle(&self, limit: Duration) {
        let begun = Instant::now();
        // Not the lock itself: the program may end in a signal handler, amid a turn of its own.
        // Nor does it take those that an acknowledge needs which waits for the program's answer:
        // the engine's thread finds that there is none.
        let is_at_it = || match self.receiving.try_lock() {
            Ok(receiving) => receiving.has_waiting(),
            Err(error) => matches!(error, TryLockError::WouldBlock),
        };
        self.pay();
        while is_at_it() && begun.elapsed() < limit {
            std::thread::yield_now();
        }
    }

    /// While the guard lives nobody receives, and what was received is answered.
    pub(crate) fn receives_nothing(&self) -> MutexGuard<'_, Receiving> {
        lock(&self.receiving)
    }

    /// Returns once no queue pair serves a request by what a key stood for when this was called: to
    /// be called after a key changed whose memory stays registered.
    pub fn settle_requests(&self) {
        self.qps.all().iter().for_each(|qp| qp.settle());
    }

    /// The queue pair with this number.
    pub fn find_qp(&self, number: u32) -> Option<Arc<Qp>> {
        self.qps.find(number)
    }

    /// Whether another process of this host has an XRC receive queue pair with this number.
    pub fn neighbour_has_xrc_qp(&self, number: u32) -> bool {
        let slot = (number >> registry::QPN_INDEX_BITS) as u16;
        if slot == self.slot() {
            return false;
        }
        let directory = self.adapter.registry.directory(slot).ok().map(Reader::open);
        directory.and_then(std::result::Result::ok).is_some_and(|reader| {
            let is_it = |qp: &QpEntry| qp.number == number && qp.qp_type == QpType::XrcRecv as u32;
            reader.qps().iter().any(is_it)
        })
    }

    fn arc(&self) -> Result<Arc<Device>> {
        self.this.upgrade().ok_or(Error::Lost("the device is being closed"))
    }

    fn owner(&self) -> Result<Arc<dyn Owner>> {
        Ok(self.arc()?)
    }
}

impl Owner for Device {
    fn adapter(&self) -> &Arc<Adapter> {
        &self.adapter
    }

    fn progress(&self) {
        Device::progress(self);
    }

    fn between_turns(&self, call: &mut dyn FnMut()) {
        let mut receiving = self.receives_nothing();
        receiving.forget_latest();
        self.stop_waiting(&mut receiving);
        call();
    }

    fn program_sleeps(&self) {
        Device::program_sleeps(self);
    }

    fn rouse_users_of(&self, cq: &Cq) {
        let numbers = self.qps.users_of(cq);
        let now = Instant::now();
        numbers.into_iter().for_each(|number| self.adapter.set_timer(now, number));
    }

    fn door(&self, number: u32) -> Option<Arc<Door>> {
        self.find_qp(number).map(|qp| qp.door().clone())
    }

    fn forget_qp(&self, number: u32, takes_frames: bool) {
        self.qps.write().remove(number);
        self.adapter.timers.remove(number);
        self.directory().remove_qp(number);
        self.multicast().forget(number);
        if takes_frames {
            self.frames().forget(number);
        }
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        self.close();
    }
}
