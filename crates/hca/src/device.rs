//! The device: tables of objects, the link to the wire and the shared directory; where every object is made.

use crate::batches::Batches;
use crate::caps::{DeviceAttr, GidEntry, PortAttr};
use crate::cq::Cq;
use crate::data_direct::{DataDirect, control_id};
use crate::directory::Directory;
use crate::event::{AsyncEvent, CompletionSink, CqNotify, EventSink, EventSource};
use crate::gsi::Gsi;
use crate::lan::Gateway;
use crate::management::Subnet;
use crate::mr::{self, Mr};
use crate::multicast::Groups;
use crate::mw::Mw;
use crate::pd::Pd;
use crate::port::{Known, Port};
use crate::progress::{self, Receiving, Thread};
use crate::qp::{Qp, QpInit};
use crate::qp_table::QpTable;
use crate::raw::Raw;
use crate::srq::{Srq, SrqAttr, SrqKind};
use crate::subnet;
use crate::timers::Timers;
use crate::xrc::{Xrc, Xrcd, XrcdInit};
use link::{Backlog, Batch, Endpoint, Ethernet, Flow, Interfaces, Lan, Losses, Path};
use link::{GID_TABLE_LEN, ip_of_gid, slot_of_mac};
use registry::{Client, Identity};
use rustix::fd::{AsFd, OwnedFd};
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed, Ordering::SeqCst};
use std::sync::{
    Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock, RwLockReadGuard, TryLockError, Weak,
};
use std::time::{Duration, Instant};
use transport::keys::KeyTable;
use transport::queues::slots::QueueMemory;
use transport::values::PdId;
use transport::values::{Access, AhAttr, MwType, QpType};
use transport::{Error, Result};
use transport::{PageFault, SharedReceive};
use umem::{TranslationCache, Umem};

pub use crate::ah::AddressHandle;

const MTU_4096: u32 = 5;
/// Bytes that may be under way to a peer whose port pauses us.
const PAUSED_WINDOW_BYTES: u64 = 4 << 20;
/// The default partition, the only one on RoCE: full membership.
pub const DEFAULT_PKEY: u16 = 0xffff;
/// Of all devices of the process: what is in a domain of one fits none of another.
static NEXT_PD: AtomicU32 = AtomicU32::new(1);
const PROGRESS_STACK_BYTES: usize = 256 << 10;

/// What a device's port is on.
#[derive(Clone, Debug)]
pub enum Network {
    /// Interfaces of the host: its GIDs are their addresses.
    Host(Interfaces),
    /// An InfiniBand subnet on the loopback interface: see [`crate::subnet`].
    Subnet,
    /// An Ethernet on the loopback interface: see [`link::Lan`]. The front end sets the GIDs, and carries other frames.
    Ethernet {
        /// The addresses of the host that the port has as well once they are GIDs of its; no other one, and none of loopback.
        host_addresses: Vec<IpAddr>,
    },
}

/// What a device is opened from.
pub struct DeviceConfig {
    /// Identity and limits.
    pub attr: DeviceAttr,
    /// Command name of the process, for `peerdma ps`.
    pub comm: String,
    /// Registry of this user and network namespace.
    pub registry: Arc<Client>,
    /// Fixed active MTU in bytes (256 to 4096) instead of what the interfaces carry.
    pub mtu_bytes: Option<u32>,
    /// What its port is on.
    pub network: Network,
    /// Packet trace.
    pub trace: Option<Arc<link::Trace>>,
    /// Receive buffer to ask the kernel for instead of the link's default, in bytes.
    pub receive_buffer_bytes: Option<usize>,
}

/// How packets reach one process.
#[derive(Clone)]
pub(crate) struct Way {
    pub(crate) flow: Flow,
    /// How full its receive socket is, where it is on this host.
    pub(crate) backlog: Option<Arc<Backlog>>,
    losses: Losses,
}

impl Way {
    pub(crate) fn room(&self, bytes: u64, now: Instant) -> Option<bool> {
        self.backlog.as_ref().map(|backlog| backlog.room(bytes, self.losses, now))
    }
}

/// What to do about a directory that is refused for its size.
fn file_limit(errno: &rustix::io::Errno) -> &'static str {
    let limited = *errno == rustix::io::Errno::FBIG;
    if limited { "; raise the limit on the size of files (ulimit -f)" } else { "" }
}

/// Why a device cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The registry gave no slot; its words say why and what helps.
    #[error(transparent)]
    Registry(#[from] registry::Error),
    /// No memory for the tables or the shared directory, or a limit on files (`ulimit -f`) below its size.
    #[error("the tables of the device cannot be made: {0}{why}", why = file_limit(.0))]
    Directory(rustix::io::Errno),
    /// The UDP link cannot be set up.
    #[error("the UDP link cannot be set up: {0}")]
    Link(std::io::Error),
    /// The host's interfaces cannot be listed.
    #[error("the network interfaces cannot be listed: {0}")]
    Interfaces(std::io::Error),
    /// No thread or no descriptor for it.
    #[error("the progress thread cannot be started: {0}")]
    Thread(std::io::Error),
}

/// Handles are of one device, as they are of one file in the kernel.
const FOREIGN: Error = Error::Invalid("an object belongs to another device");

/// One virtual HCA with its link.
///
/// Locks, in the order they may be taken: `receiving`, a QP's core, an SRQ's queue; the tables and a CQ's ring are
/// innermost and never held while program memory is touched.
pub struct Device {
    attr: DeviceAttr,
    mtu_bytes: Option<u32>,
    pub(crate) registry: Arc<Client>,
    endpoint: Endpoint,
    /// Places in the group of sockets on all addresses that are kept, where the device receives on another.
    _steered: Vec<OwnedFd>,
    directory: Arc<Directory>,
    slot: u16,
    keys: KeyTable,
    pub(crate) data_direct: DataDirect,
    /// Only where its function's ATS is on.
    ats: Option<Arc<TranslationCache>>,
    xrc: Xrc,
    qps: RwLock<QpTable>,
    pub(crate) port: Port,
    pub(crate) groups: Groups,
    events: OnceLock<Arc<dyn EventSink>>,
    batches: Batches,
    /// Receive sockets on this host that unreliable senders watch, by slot and address family.
    backlogs: Mutex<HashMap<(u16, bool), Weak<Backlog>>>,
    epoch: Instant,
    lost: AtomicBool,
    /// A bug of ours was met: nothing works any more.
    failed: AtomicBool,
    pub(crate) receiving: Mutex<Receiving>,
    pub(crate) timers: Timers,
    pub(crate) gsi: Gsi,
    /// Of a port on an InfiniBand subnet.
    pub(crate) subnet: Option<Subnet>,
    pub(crate) raw: Raw,
    pub(crate) gateway: Gateway,
    pub(crate) thread: Thread,
    this: Weak<Device>,
}

impl std::fmt::Debug for Device {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Device {{ {}, slot: {} }}", self.attr.name, self.slot)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Device {
    /// Takes a slot from the registry, opens the link and starts the progress thread.
    ///
    /// # Errors
    /// What the system or the registry refused; [`OpenError::Registry`] names who holds UDP port 4791.
    pub fn open(config: DeviceConfig) -> std::result::Result<Arc<Device>, OpenError> {
        let attr = config.attr;
        let directory =
            Directory::create(&attr.name, attr.node_guid).map_err(OpenError::Directory)?;
        let who = Identity { device: attr.name.clone(), guid: attr.node_guid, comm: config.comm };
        let mut grant = config.registry.join(&who, directory.as_fd())?;
        let slot = grant.slot;
        directory.set_slot(slot);
        let bytes = config.receive_buffer_bytes.unwrap_or(link::DEFAULT_RECEIVE_BUFFER_BYTES);
        let steered = match config.network {
            Network::Host(_) => Vec::new(),
            Network::Subnet => enter_subnet(&mut grant).map_err(OpenError::Link)?,
            Network::Ethernet { .. } => {
                [grant.v4.take(), grant.v6.take()].into_iter().flatten().collect()
            }
        };
        let port = match steered.first() {
            Some(fd) => port_of(fd).map_err(|e| OpenError::Link(e.into()))?,
            None => bound_port(&grant).map_err(OpenError::Link)?,
        };
        let endpoint = match config.network {
            Network::Ethernet { .. } => {
                let lan = Lan::open(slot, port).map_err(OpenError::Link)?;
                let _ = config.registry.publish(&socket_id(slot, false), lan.fd());
                let v6 = steered.iter().find(|fd| is_ipv6(fd));
                Endpoint::on_lan(lan, v6.map(AsFd::as_fd), port, bytes)
            }
            _ => {
                publish_sockets(&config.registry, &grant);
                Endpoint::with_receive_buffer(grant.v4, grant.v6, port, bytes)
            }
        };
        let endpoint = endpoint.map_err(OpenError::Link)?;
        endpoint.set_trace(config.trace);
        let thread = Thread::new().map_err(|errno| OpenError::Thread(errno.into()))?;
        let mut on_subnet = None;
        if let Network::Subnet = config.network {
            let manager = subnet::manager_of(slot);
            endpoint.receive_at(manager.into(), link::LOOPBACK).map_err(OpenError::Link)?;
            directory.show_subnet();
            on_subnet = Some(Subnet::default());
        }
        let mut gateway = Gateway::default();
        let port = match config.network {
            Network::Host(interfaces) => Port::open(interfaces).map_err(OpenError::Interfaces)?,
            Network::Subnet => Port::of_subnet(subnet::address_of_lid(slot).into()),
            Network::Ethernet { host_addresses } => {
                gateway = Gateway::sharing(host_addresses);
                Port::of_ethernet()
            }
        };
        let epoch = Instant::now();
        let directory = Arc::new(directory);
        let (batches, receiving) = (Batches::new(), Receiving::new());
        let (batches, receiving) =
            batches.and_then(|batches| Ok((batches, receiving?))).map_err(OpenError::Link)?;
        let no_memory = |_| OpenError::Directory(rustix::io::Errno::NOMEM);
        let timers = Timers::new(epoch).map_err(no_memory)?;
        let qps = QpTable::new().map_err(no_memory)?;
        let ats = attr.ats.then(|| mr::translation_cache(directory.clone())).transpose();
        let ats = ats.map_err(|_| OpenError::Directory(rustix::io::Errno::NOMEM))?;
        let device = Arc::new_cyclic(|this| Device {
            attr,
            mtu_bytes: config.mtu_bytes,
            registry: config.registry,
            endpoint,
            _steered: steered,
            directory,
            slot,
            keys: KeyTable::new(),
            data_direct: DataDirect::default(),
            ats,
            xrc: Xrc::new(),
            qps: RwLock::new(qps),
            port,
            groups: Groups::default(),
            events: OnceLock::new(),
            batches,
            backlogs: Mutex::default(),
            epoch,
            lost: AtomicBool::new(false),
            failed: AtomicBool::new(false),
            receiving: Mutex::new(receiving),
            timers,
            gsi: Gsi::default(),
            subnet: on_subnet,
            raw: Raw::default(),
            gateway,
            thread,
            this: this.clone(),
        });
        device.start_thread().map_err(OpenError::Thread)?;
        // Without it nobody can ask anything of the device.
        let _ = device.registry.publish(&control_id(slot), device.thread.fd());
        Ok(device)
    }

    fn start_thread(&self) -> std::io::Result<()> {
        let device = self.this.clone();
        self.thread.begins();
        engine_thread::spawn(c"peerdma", PROGRESS_STACK_BYTES, move || progress::run(&device))?;
        Ok(())
    }

    /// Leaves the registry and stops the progress thread. Calls on the device's objects fail from now on.
    pub fn close(&self) {
        if !self.lost.swap(true, SeqCst) {
            self.thread.stop();
            // The registry's client may outlive the device, and the slot's next owner publishes under the same names.
            for v6 in [false, true] {
                self.registry.withdraw(&socket_id(self.slot, v6));
            }
            self.registry.withdraw(&control_id(self.slot));
            self.registry.leave(self.slot);
        }
    }

    /// In a forked child: the device stays the parent's, and every call here fails with [`Error::Lost`]. Objects must not be
    /// destroyed there: the directory is shared with the parent, and locks may be held by threads that exist only there.
    pub fn lose(&self) {
        self.lost.store(true, SeqCst);
    }

    /// Before a fork: the progress thread stands still, so that it holds no lock in the child. It is waited for until `deadline`;
    /// a child can do without it unless it keeps the device ([`Device::adopt`]).
    pub fn pause(&self, deadline: Instant) {
        self.thread.pause(deadline);
    }

    /// In the parent after [`Device::pause`].
    pub fn resume(&self) {
        self.thread.resume();
    }

    /// In a child that keeps the device (`daemon(3)`): starts a progress thread there.
    ///
    /// # Errors
    /// When no thread can be had; when the parent's did not stand at the fork, since it may have held any lock.
    pub fn adopt(&self) -> std::io::Result<()> {
        if !self.thread.stood() {
            return Err(std::io::Error::other("it was busy at the fork"));
        }
        self.directory.own();
        self.thread.resume();
        self.start_thread()
    }

    /// Whether calls still reach the device.
    ///
    /// # Errors
    /// [`Error::Lost`] after [`Device::close`], [`Device::lose`] or [`EventType::DeviceFatal`](crate::EventType::DeviceFatal).
    pub fn alive(&self) -> Result<()> {
        if self.lost.load(Relaxed) {
            return Err(Error::Lost("the device was closed or belongs to the parent process"));
        }
        if self.has_failed() {
            return Err(Error::Lost("the device failed by a bug of peerdma's"));
        }
        Ok(())
    }

    /// Whether a bug of ours has ended it; [`Device::close`] still works.
    pub fn has_failed(&self) -> bool {
        self.failed.load(Relaxed)
    }

    /// Notes that it has. `false`: that was known.
    pub(crate) fn mark_failed(&self) -> bool {
        !self.failed.swap(true, SeqCst)
    }

    /// Limits and identity.
    pub fn attr(&self) -> &DeviceAttr {
        &self.attr
    }

    /// Slot of this device among those that share UDP port 4791, 1 to 1023.
    pub fn slot(&self) -> u16 {
        self.slot
    }

    /// Nanoseconds since the device was opened: the clock of completion timestamps.
    pub fn now_ns(&self) -> u64 {
        self.epoch.elapsed().as_nanos() as u64
    }

    /// Where asynchronous events go. The first call decides.
    pub fn set_event_sink(&self, sink: Arc<dyn EventSink>) {
        let _ = self.events.set(sink);
    }

    pub(crate) fn page_fault(&self, qp: u32, fault: PageFault) -> bool {
        self.events.get().is_some_and(|sink| sink.page_fault(qp, fault))
    }

    pub(crate) fn raise(&self, event: AsyncEvent) {
        if let Some(sink) = self.events.get() {
            sink.event(event);
        }
    }

    /// Port attributes.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a port that does not exist.
    pub fn port(&self, port: u32) -> Result<PortAttr> {
        self.check_port(port)?;
        let port = self.port_now();
        Ok(PortAttr {
            active: port.state.active,
            max_mtu: MTU_4096,
            active_mtu: wire::mtu::code(self.active_mtu()).unwrap_or(MTU_4096),
            gid_tbl_len: GID_TABLE_LEN as u32,
            pkey_tbl_len: 1,
            max_msg_sz: 1 << 31,
        })
    }

    /// Bytes of the ports' active MTU.
    pub(crate) fn active_mtu(&self) -> u32 {
        self.mtu_bytes.unwrap_or_else(|| self.port.active_mtu())
    }

    fn check_port(&self, port: u32) -> Result<()> {
        if port == 0 || port > self.attr.phys_port_cnt {
            return Err(Error::Invalid("no such port"));
        }
        Ok(())
    }

    /// All entries of a port's GID table.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a port that does not exist.
    pub fn gids(&self, port: u32) -> Result<Vec<GidEntry>> {
        self.check_port(port)?;
        Ok(self.port_now().gids.iter().map(gid_entry).collect())
    }

    /// One entry of a port's GID table; `None` for an empty place.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a port or index that does not exist.
    pub fn gid(&self, port: u32, index: u32) -> Result<Option<GidEntry>> {
        self.check_port(port)?;
        if index >= GID_TABLE_LEN as u32 {
            return Err(Error::Invalid("GID index outside the table"));
        }
        let port = self.port_now();
        let entry = port.gids.get(index as usize);
        Ok(entry.map(|entry| gid_entry((index as usize, entry))))
    }

    /// Whether what is sent to an address of the host's is for this device: where it is on some of the interfaces only, that
    /// is not so for the addresses of the others.
    pub fn takes(&self, destination: IpAddr) -> bool {
        self.port.takes(destination)
    }

    /// The port as the interfaces are now; its events are raised where it changed.
    pub(crate) fn port_now(&self) -> MutexGuard<'_, Known> {
        self.port.now(|event| {
            for port in 1..=self.attr.phys_port_cnt {
                self.raise(AsyncEvent { event, source: EventSource::Port(port) });
            }
        })
    }

    /// A port's P_Key.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a port or index that does not exist.
    pub fn pkey(&self, port: u32, index: u32) -> Result<u16> {
        self.check_port(port)?;
        if index >= self.attr.max_pkeys {
            return Err(Error::Invalid("P_Key index outside the table"));
        }
        Ok(DEFAULT_PKEY)
    }

    /// The path that an address vector names.
    pub(crate) fn path(&self, attr: &AhAttr) -> Result<Path> {
        self.check_port(u32::from(attr.port_num))?;
        if !attr.is_global {
            return Err(Error::Invalid("RoCE needs a GRH in the address vector"));
        }
        let source = self
            .gid(u32::from(attr.port_num), u32::from(attr.sgid_index))?
            .ok_or(Error::Invalid("the source GID index is empty"))?;
        let dst = ip_of_gid(attr.dgid);
        if dst.is_unspecified() || source.ip.is_ipv4() != dst.is_ipv4() {
            return Err(Error::Invalid("source and destination GID are of different families"));
        }
        let link_local = matches!(dst, IpAddr::V6(v6) if v6.is_unicast_link_local());
        let scoped = link_local || dst.is_multicast();
        let ethernet = self.ethernet(attr, source.ip)?;
        Ok(Path {
            src: source.ip,
            dst,
            scope_id: if scoped { source.ifindex } else { 0 },
            traffic_class: attr.traffic_class,
            hop_limit: if attr.hop_limit == 0 { 64 } else { attr.hop_limit },
            flow_label: attr.flow_label,
            ethernet,
        })
    }

    /// What frames to an address vector carry. `None` where there is no Ethernet, and to the host, which is no port of it: it is
    /// reached as any peer of a host is, from an address `src` that both have. From any other one nothing reaches it.
    fn ethernet(&self, attr: &AhAttr, src: IpAddr) -> Result<Option<Ethernet>> {
        let Some(lan) = self.endpoint.lan() else { return Ok(None) };
        let station = lan.station(u32::from(attr.sgid_index));
        let vlan = station.and_then(|station| station.vlan);
        if slot_of_mac(attr.dmac) == Some(link::HOST) {
            match vlan {
                Some(_) => return Err(Error::Unreachable("the host is in no VLAN")),
                None if self.gateway.shares(src) => return Ok(None),
                // A frame to a port that there is not.
                None => {}
            }
        }
        Ok(Some(Ethernet {
            dst: attr.dmac,
            src: station.map_or_else(|| lan.mac(), |station| station.mac),
            vlan: vlan.map(|id| u16::from(attr.sl & 7) << 13 | id),
            udp_src: attr.udp_src,
        }))
    }

    /// The way to the process that owns QP `dest_qpn` at the end of `path`. Asks the registry and makes sockets, so no lock
    /// that receiving needs may be held.
    pub(crate) fn way(&self, path: Path, dest_qpn: u32, losses: Losses) -> Result<Way> {
        let flow = self.endpoint.flow(path, dest_qpn).map_err(|error| {
            Error::System(error.raw_os_error().unwrap_or(0), "no source port for the destination")
        })?;
        let slot = (dest_qpn >> 14) as u16;
        let backlog = match path.ethernet.map(|ethernet| slot_of_mac(ethernet.dst)) {
            Some(port) => port.and_then(|port| self.backlog(port, false)),
            None if self.port.known().gids.is_here(path.dst) => {
                self.backlog(slot, path.dst.is_ipv6())
            }
            None => None,
        };
        Ok(Way { flow, backlog, losses })
    }

    /// The backlog of the process with `slot`, which is on this host. One copy of its socket serves all who send there.
    fn backlog(&self, slot: u16, v6: bool) -> Option<Arc<Backlog>> {
        let id = (slot, v6);
        if let Some(known) = lock(&self.backlogs).get(&id).and_then(Weak::upgrade) {
            return Some(known);
        }
        let socket = self.registry.lookup(&socket_id(slot, v6)).ok()?;
        let backlog = Arc::new(Backlog::new(socket));
        let mut backlogs = lock(&self.backlogs);
        backlogs.retain(|_, known| known.strong_count() > 0);
        backlogs.insert(id, Arc::downgrade(&backlog));
        Some(backlog)
    }

    /// The link.
    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// Keys of the device.
    pub fn keys(&self) -> &KeyTable {
        &self.keys
    }

    pub(crate) fn xrc(&self) -> &Xrc {
        &self.xrc
    }

    /// What other processes see.
    pub fn directory(&self) -> &Directory {
        &self.directory
    }

    /// The same, to be kept.
    pub(crate) fn shared_directory(&self) -> Arc<Directory> {
        self.directory.clone()
    }

    /// Translations of memory that moves; only where ATS is on.
    pub(crate) fn translation_cache(&self) -> Option<&Arc<TranslationCache>> {
        self.ats.as_ref()
    }

    /// Bytes that may be under way to one peer: what a socket buffer like ours takes. One that pauses us before its buffer
    /// overflows needs no such limit, and is not asked for acknowledges for its sake.
    pub(crate) fn window_bytes(&self, way: Option<&Way>) -> u64 {
        let buffer = self.endpoint.receive_buffer_bytes() as u64;
        match way.and_then(|way| way.backlog.as_ref()) {
            Some(_) => buffer.max(PAUSED_WINDOW_BYTES),
            None => buffer,
        }
    }

    pub(crate) fn take_batch(&self) -> Batch {
        self.batches.take()
    }

    pub(crate) fn return_batch(&self, batch: Batch) {
        self.batches.give_back(batch);
    }

    pub(crate) fn set_timer(&self, at: Instant, qpn: u32) {
        if self.timers.set(at, qpn) {
            self.thread.expect(at.saturating_duration_since(self.epoch).as_nanos() as u64);
        }
    }

    /// At the program's end: waits until what was received is answered, `limit` at most. The peer of a program that ends on
    /// its last completion would miss the acknowledge otherwise.
    pub fn settle(&self, limit: Duration) {
        let begun = Instant::now();
        // Not the lock itself: the program may end in a signal handler, amid a turn of its own.
        while matches!(self.receiving.try_lock(), Err(TryLockError::WouldBlock))
            && begun.elapsed() < limit
        {
            std::thread::yield_now();
        }
    }

    /// While the guard lives nobody receives, and what was received is answered.
    pub(crate) fn between_turns(&self) -> MutexGuard<'_, Receiving> {
        lock(&self.receiving)
    }

    fn qp_table(&self) -> RwLockReadGuard<'_, QpTable> {
        self.qps.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// The QP of a number, if it is ours and alive.
    pub(crate) fn qp(&self, number: u32) -> Option<Arc<Qp>> {
        if number >> 14 != u32::from(self.slot) {
            return None;
        }
        self.qp_table().get(number).cloned()
    }

    pub(crate) fn all_qps(&self) -> Vec<Arc<Qp>> {
        self.qp_table().iter().cloned().collect()
    }

    /// Gives every queue pair that completes at `cq` a turn soon.
    pub(crate) fn rouse_users_of(&self, cq: &Cq) {
        let table = self.qp_table();
        let users = table.iter().filter(|qp| qp.completes_at(cq));
        let numbers: Vec<u32> = users.map(|qp| qp.number()).collect();
        drop(table);
        let now = Instant::now();
        numbers.into_iter().for_each(|number| self.set_timer(now, number));
    }

    pub(crate) fn remove_qp(&self, number: u32) {
        self.qps.write().unwrap_or_else(PoisonError::into_inner).remove(number);
        self.timers.remove(number);
        self.directory.remove_qp(number);
    }

    /// A protection domain.
    ///
    /// # Errors
    /// [`Error::Lost`] when the device is gone.
    pub fn alloc_pd(&self) -> Result<Arc<Pd>> {
        self.alive()?;
        Ok(Arc::new(Pd::new(PdId(NEXT_PD.fetch_add(1, Relaxed)))))
    }

    /// A memory region over a registration.
    ///
    /// # Errors
    /// [`Error::NoMemory`] when no key is left.
    pub fn reg_mr(
        &self,
        pd: &Arc<Pd>,
        umem: Arc<Umem>,
        iova: u64,
        access: Access,
    ) -> Result<Arc<Mr>> {
        self.alive()?;
        Mr::new(&self.arc()?, pd, umem, iova, access)
    }

    /// A memory window.
    ///
    /// # Errors
    /// [`Error::NoMemory`] when no key is left.
    pub fn alloc_mw(&self, pd: &Arc<Pd>, mw_type: MwType) -> Result<Arc<Mw>> {
        self.alive()?;
        Mw::new(&self.arc()?, pd, mw_type)
    }

    /// A completion queue of at least `cqe` entries.
    ///
    /// # Errors
    /// [`Error::Invalid`] when `cqe` is 0 or above the limit, [`Error::NoMemory`] when the system has none for it.
    pub fn create_cq(&self, cqe: u32, notify: Option<Arc<dyn CqNotify>>) -> Result<Arc<Cq>> {
        self.create_cq_in(cqe, notify, None)
    }

    /// A completion queue in memory that the front end provides, of [`QueueMemory::bytes_of_cq`].
    ///
    /// # Errors
    /// As [`Device::create_cq`].
    pub fn create_cq_in(
        &self,
        cqe: u32,
        notify: Option<Arc<dyn CqNotify>>,
        memory: Option<QueueMemory>,
    ) -> Result<Arc<Cq>> {
        self.alive()?;
        self.check_cq(cqe)?;
        Cq::new(&self.arc()?, cqe, notify, memory)
    }

    /// A completion queue that keeps nothing: each completion goes to `sink` at once. [`Cq::poll`] finds none there.
    ///
    /// # Errors
    /// [`Error::Lost`] when the device is gone.
    pub fn create_cq_to(&self, sink: Arc<dyn CompletionSink>) -> Result<Arc<Cq>> {
        self.alive()?;
        Ok(Cq::handing_over(&self.arc()?, sink))
    }

    /// A shared receive queue, in `memory` of [`QueueMemory::bytes_of_srq`] if the front end provides it.
    ///
    /// # Errors
    /// [`Error::Invalid`] when a size is out of the device's limits, [`Error::NoMemory`] when the system has none for it.
    pub fn create_srq(
        &self,
        pd: &Arc<Pd>,
        attr: SrqAttr,
        kind: SrqKind,
        memory: Option<QueueMemory>,
    ) -> Result<Arc<Srq>> {
        self.alive()?;
        self.check_srq(&attr)?;
        if kind.cq().is_some_and(|cq| !cq.is_of(self)) {
            return Err(FOREIGN);
        }
        self.check_tags(&kind)?;
        let attr = SrqAttr { limit: 0, max_sge: attr.max_sge.max(1), ..attr };
        Srq::new(&self.arc()?, pd, attr, kind, memory, None)
    }

    /// A shared receive queue whose requests the front end keeps: `source` hands them out. Its limit is the front end's too.
    ///
    /// # Errors
    /// [`Error::Invalid`] when the size of a matching list is out of limits.
    pub fn create_srq_over(
        &self,
        pd: &Arc<Pd>,
        kind: SrqKind,
        source: Arc<dyn SharedReceive>,
    ) -> Result<Arc<Srq>> {
        self.alive()?;
        self.check_tags(&kind)?;
        Srq::new(&self.arc()?, pd, SrqAttr::default(), kind, None, Some(source))
    }

    fn check_tags(&self, kind: &SrqKind) -> Result<()> {
        let SrqKind::TagMatching(_, cap) = kind else { return Ok(()) };
        let tags = (1..=self.attr.max_num_tags).contains(&cap.max_num_tags);
        if !tags || cap.max_ops > self.attr.max_tag_ops {
            return Err(Error::Invalid("size of the matching list out of range"));
        }
        Ok(())
    }

    /// An XRC domain.
    ///
    /// # Errors
    /// [`Error::Invalid`] when it is there and shall be new, EAGAIN when it is not and shall not be made.
    pub fn open_xrcd(&self, init: XrcdInit) -> Result<Arc<Xrcd>> {
        self.alive()?;
        self.xrc.open(&self.arc()?, init)
    }

    /// The queue pair with this number.
    pub fn find_qp(&self, number: u32) -> Option<Arc<Qp>> {
        self.qp(number)
    }

    /// A queue pair in the RESET state.
    ///
    /// # Errors
    /// [`Error::Invalid`] when a size is out of limits or an object belongs to another domain,
    /// [`Error::NoMemory`] when no number is free or the system has no memory for the queues, [`Error::System`] when an interface for raw packets is not to be had.
    pub fn create_qp(&self, pd: &Arc<Pd>, init: QpInit) -> Result<Arc<Qp>> {
        self.alive()?;
        self.check_qp(&init)?;
        let device = self.arc()?;
        let frame_port = match init.qp_type {
            QpType::RawPacket => Some(self.frame_port()?),
            _ => None,
        };
        let management = init.management;
        let mut table = self.qps.write().unwrap_or_else(PoisonError::into_inner);
        let place = table.free_place().ok_or(Error::NoMemory("all QP numbers are in use"))?;
        let number = u32::from(self.slot) << 14 | place as u32;
        // The management queue pair has its appointments beside them.
        self.timers.set_aside(table.used() + 2)?;
        let qp = Qp::new(&device, number, pd, init, frame_port)?;
        table.insert(qp.clone());
        drop(table);
        if let Some(interface) = management {
            self.gsi.serve_by(interface, &qp);
        }
        Ok(qp)
    }

    /// Sets `count` queue pair numbers aside, one after the other, which no queue pair has or gets; gives the first.
    ///
    /// # Errors
    /// [`Error::NoMemory`] when so many are not free beside each other.
    pub fn set_qp_numbers_aside(&self, count: usize) -> Result<u32> {
        self.alive()?;
        let mut table = self.qps.write().unwrap_or_else(PoisonError::into_inner);
        let first = table.set_aside(count).ok_or(Error::NoMemory("too few QP numbers are free"))?;
        Ok(u32::from(self.slot) << 14 | first as u32)
    }

    /// Ends what [`Device::set_qp_numbers_aside`] did; other numbers stay as they are.
    pub fn give_qp_numbers_back(&self, first: u32, count: usize) {
        let mut table = self.qps.write().unwrap_or_else(PoisonError::into_inner);
        table.give_back(first, count);
    }

    /// An address handle.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a wrong port, GID index or missing GRH.
    pub fn create_ah(&self, pd: &Arc<Pd>, attr: &AhAttr) -> Result<Arc<AddressHandle>> {
        self.alive()?;
        AddressHandle::new(self, pd, *attr)
    }

    /// Whether the device can make a completion queue of `cqe` entries.
    ///
    /// # Errors
    /// [`Error::Invalid`] when the size is out of the device's limits.
    pub fn check_cq(&self, cqe: u32) -> Result<()> {
        if cqe == 0 || cqe > self.attr.max_cqe {
            return Err(Error::Invalid("completion queue size out of range"));
        }
        Ok(())
    }

    /// Whether the device can make a shared receive queue like this.
    ///
    /// # Errors
    /// [`Error::Invalid`] when a size is out of the device's limits.
    pub fn check_srq(&self, attr: &SrqAttr) -> Result<()> {
        if attr.max_wr == 0 || attr.max_wr > self.attr.max_srq_wr {
            return Err(Error::Invalid("size of the shared receive queue out of range"));
        }
        if attr.max_sge > self.attr.max_srq_sge {
            return Err(Error::Invalid("too many scatter entries"));
        }
        Ok(())
    }

    /// Whether the device can make a QP like this.
    ///
    /// # Errors
    /// [`Error::Invalid`] when a size is out of the device's limits or the service does not go with it.
    pub fn check_qp(&self, init: &QpInit) -> Result<()> {
        let foreign = init.cqs().any(|cq| !cq.is_of(self))
            || init.srq.as_ref().is_some_and(|srq| !srq.is_of(self))
            || init.xrcd.as_ref().is_some_and(|xrcd| !xrcd.is_of(self));
        if foreign {
            return Err(FOREIGN);
        }
        let cap = init.cap;
        if cap.max_send_wr > self.attr.max_qp_wr
            || cap.max_recv_wr > self.attr.max_qp_wr
            || cap.max_send_sge > self.attr.max_sge
            || cap.max_recv_sge > self.attr.max_sge
            || cap.max_inline_data > self.attr.max_inline_data
        {
            return Err(Error::Invalid("a queue size is above the device's limit"));
        }
        if init.management.is_some() && init.qp_type != QpType::Ud {
            return Err(Error::Invalid("QP 0 and QP 1 are of datagrams"));
        }
        if init.srq.is_some() && init.receives.is_some() {
            return Err(Error::Invalid("a queue pair receives from one queue"));
        }
        if init.srq.is_some() && init.qp_type == QpType::Uc {
            return Err(Error::Invalid("UC does not receive from a shared queue"));
        }
        if init.qp_type != QpType::Rc && init.srq.as_ref().is_some_and(|srq| srq.matches_tags()) {
            return Err(Error::Invalid("only RC receives from a queue that matches tags"));
        }
        Ok(())
    }

    pub(crate) fn weak(&self) -> Weak<Device> {
        self.this.clone()
    }

    pub(crate) fn arc(&self) -> Result<Arc<Device>> {
        self.this.upgrade().ok_or(Error::Lost("the device is being closed"))
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        self.close();
    }
}

/// Takes the socket of the port's own address instead of the one on all addresses, which is given back.
fn enter_subnet(grant: &mut registry::Grant) -> std::io::Result<Vec<OwnedFd>> {
    let own = subnet::bind(grant.slot, bound_port(grant)?)?;
    Ok(grant.v4.replace(own).into_iter().collect())
}

/// The port that a grant's sockets are bound to, and on which peers are reached: 4791, but for tests.
fn bound_port(grant: &registry::Grant) -> std::io::Result<u16> {
    let bound = grant.v4.as_ref().or(grant.v6.as_ref());
    Ok(bound.map(port_of).transpose()?.unwrap_or(wire::ROCE_PORT))
}

fn port_of(socket: &OwnedFd) -> rustix::io::Result<u16> {
    let address = std::net::SocketAddr::try_from(rustix::net::getsockname(socket)?);
    Ok(address.map_or(wire::ROCE_PORT, |address| address.port()))
}

fn is_ipv6(socket: &OwnedFd) -> bool {
    let domain = rustix::net::sockopt::socket_domain(socket);
    domain.is_ok_and(|domain| domain == rustix::net::AddressFamily::INET6)
}

/// Lets senders on this host see how full our sockets are. Without it they keep to a pace.
fn publish_sockets(registry: &Client, grant: &registry::Grant) {
    for (socket, v6) in [(&grant.v4, false), (&grant.v6, true)] {
        if let Some(socket) = socket {
            let _ = registry.publish(&socket_id(grant.slot, v6), socket.as_fd());
        }
    }
}

/// Name under which a member publishes its receive socket.
fn socket_id(slot: u16, v6: bool) -> String {
    format!("socket-v{}-{slot}", if v6 { 6 } else { 4 })
}

fn gid_entry((index, entry): (usize, &link::GidEntry)) -> GidEntry {
    GidEntry {
        index: index as u32,
        gid: entry.gid,
        ip: entry.ip,
        ifindex: entry.ifindex,
        ifname: entry.ifname.clone(),
    }
}
