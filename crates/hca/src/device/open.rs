//! How a device comes to be: what it is opened from, its slot, its sockets, and what may be
//! refused.

use super::Device;
use crate::adapter::batches::Batches;
use crate::adapter::caps::DeviceAttr;
use crate::adapter::directory::Directory;
use crate::adapter::network::{Attached, Ethernet, Gateway, Subnet};
use crate::adapter::port::Port;
use crate::adapter::rings::Rings;
use crate::adapter::thread::Thread;
use crate::adapter::timers::Timers;
use crate::adapter::{Adapter, control_id, socket_id};
use crate::device::progress::Receiving;
use crate::fabric::gsi::Gsi;
use crate::fabric::multicast::Groups;
use crate::fabric::subnet;
use crate::memory::data_direct::Functions;
use crate::memory::mr;
use crate::objects::qp_table::Qps;
use crate::objects::xrc::Xrc;
use link::{Endpoint, Interfaces, Lan};
use registry::{Client, Identity};
use rustix::fd::{AsFd, OwnedFd};
use std::net::IpAddr;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Instant;
use transport::keys::KeyTable;

/// What a device's port is on.
#[derive(Clone, Debug)]
pub enum Network {
    /// Interfaces of the host: its GIDs are their addresses.
    Host(Interfaces),
    /// An InfiniBand subnet on the loopback interface: see [`crate::fabric::subnet`].
    Subnet,
    /// An Ethernet on the loopback interface: see [`link::Lan`]. The front end sets the GIDs, and
    /// carries other frames.
    Ethernet {
        /// The addresses of the host that the port has as well once they are GIDs of its; no other
        /// one, and none of loopback.
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
    /// Whether the registered memory of this user's other processes on this host is reached without
    /// packets, and theirs may reach this one's; and whether other packets of connections on this
    /// host pass through shared memory, where the other end does the same (D7). Only on
    /// [`Network::Host`], and never with a trace, which is of packets.
    pub neighbours: bool,
    /// Receive buffer to ask the kernel for instead of the link's default, in bytes.
    pub receive_buffer_bytes: Option<usize>,
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
    /// No memory for the tables or the shared directory, or a limit on files (`ulimit -f`) below
    /// its size.
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

impl Device {
    /// Takes a slot from the registry, opens the link and starts the progress thread.
    ///
    /// # Errors
    /// What the system or the registry refused; [`OpenError::Registry`] names who holds UDP
    /// port 4791.
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
        let (endpoint, network) = match &config.network {
            Network::Ethernet { host_addresses } => {
                let lan = Arc::new(Lan::open(slot, port).map_err(OpenError::Link)?);
                let _ = config.registry.publish(&socket_id(slot, false), lan.fd());
                let v6 = steered.iter().find(|fd| is_ipv6(fd));
                let endpoint = Endpoint::on_lan(lan.clone(), v6.map(AsFd::as_fd), port, bytes);
                let gateway = Gateway::sharing(host_addresses.clone());
                (endpoint, Attached::Ethernet(Ethernet { lan, gateway }))
            }
            Network::Subnet => {
                let subnet = Attached::Subnet(Subnet::default());
                (endpoint_of(&config.registry, grant, port, bytes), subnet)
            }
            Network::Host(_) => (endpoint_of(&config.registry, grant, port, bytes), Attached::Host),
        };
        let endpoint = endpoint.map_err(OpenError::Link)?;
        let on_host = matches!(config.network, Network::Host(_));
        let neighbours = config.neighbours && on_host && config.trace.is_none();
        endpoint.set_trace(config.trace);
        let thread = Thread::new().map_err(|errno| OpenError::Thread(errno.into()))?;
        if let Attached::Subnet(_) = network {
            let manager = subnet::manager_of(slot);
            endpoint.receive_at(manager.into(), link::LOOPBACK).map_err(OpenError::Link)?;
            directory.show_subnet();
        }
        let port = match config.network {
            Network::Host(interfaces) => Port::open(interfaces).map_err(OpenError::Interfaces)?,
            Network::Subnet => Port::of_subnet(subnet::address_of_lid(slot).into()),
            Network::Ethernet { .. } => Port::of_ethernet(),
        };
        let epoch = Instant::now();
        let directory = Arc::new(directory);
        let (batches, receiving) = (Batches::new(), Receiving::new());
        let (batches, receiving) =
            batches.and_then(|batches| Ok((batches, receiving?))).map_err(OpenError::Link)?;
        let no_memory = |_| OpenError::Directory(rustix::io::Errno::NOMEM);
        let timers = Timers::new(epoch).map_err(no_memory)?;
        let qps = Qps::new(slot).map_err(no_memory)?;
        let rings = neighbours.then(Rings::new).transpose().map_err(OpenError::Link)?;
        let ats = attr.ats.then(|| mr::translation_cache(directory.clone())).transpose();
        let ats = ats.map_err(|_| OpenError::Directory(rustix::io::Errno::NOMEM))?;
        let adapter = Adapter {
            attr,
            mtu_bytes: config.mtu_bytes,
            registry: config.registry,
            endpoint,
            _steered: steered,
            directory,
            slot,
            keys: KeyTable::new(),
            ats,
            port,
            network,
            events: OnceLock::new(),
            batches,
            neighbours: neighbours.then(Mutex::default),
            rings,
            backlogs: Mutex::default(),
            epoch,
            lost: AtomicBool::new(false),
            failed: AtomicBool::new(false),
            timers,
            thread,
        };
        let device = Arc::new_cyclic(|this| Device {
            adapter: Arc::new(adapter),
            data_direct: Functions::default(),
            xrc: Arc::new(Xrc::new(slot)),
            qps,
            groups: Groups::default(),
            gsi: Gsi::default(),
            raw: Arc::default(),
            receiving: Mutex::new(receiving),
            this: this.clone(),
        });
        device.start_thread().map_err(OpenError::Thread)?;
        // Without it nobody can ask anything of the device.
        let adapter = &device.adapter;
        let _ = adapter.registry.publish(&control_id(slot), adapter.thread.stand_in.bell());
        Ok(device)
    }
}

/// Takes the socket of the port's own address instead of the one on all addresses, which is given
/// back.
fn enter_subnet(grant: &mut registry::Grant) -> std::io::Result<Vec<OwnedFd>> {
    let own = subnet::bind(grant.slot, bound_port(grant)?)?;
    Ok(grant.v4.replace(own).into_iter().collect())
}

/// The port that a grant's sockets are bound to, and on which peers are reached: 4791, but for
/// tests.
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

/// The endpoint on the sockets of a grant.
fn endpoint_of(
    registry: &Client,
    grant: registry::Grant,
    port: u16,
    bytes: usize,
) -> std::io::Result<Endpoint> {
    publish_sockets(registry, &grant);
    Endpoint::with_receive_buffer(grant.v4, grant.v6, port, bytes)
}

/// Lets senders on this host see how full our sockets are. Without it they keep to a pace.
fn publish_sockets(registry: &Client, grant: &registry::Grant) {
    for (socket, v6) in [(&grant.v4, false), (&grant.v6, true)] {
        if let Some(socket) = socket {
            let _ = registry.publish(&socket_id(grant.slot, v6), socket.as_fd());
        }
    }
}
