//! The port as programs see it, and the way from it to a peer: from an address vector to a path,
//! from a path to the process at its end.

use super::{Adapter, socket_id};
use crate::adapter::caps::{GidEntry, PortAttr};
use crate::adapter::directory::neighbour::Neighbour;
use crate::adapter::event::{AsyncEvent, EventSource};
use crate::adapter::network::{Attached, Ethernet as OnEthernet};
use crate::adapter::port::Known;
use crate::adapter::tracer;
use engine_thread::lock;
use link::{Backlog, Ethernet, Flow, GID_TABLE_LEN, Losses, Path, ip_of_gid, slot_of_mac};
use registry::QPN_INDEX_BITS;
use rustix::fd::BorrowedFd;
use std::net::IpAddr;
use std::sync::{Arc, MutexGuard, Weak};
use std::time::Instant;
use transport::values::AhAttr;
use transport::{Error, Result};

const MTU_4096: u32 = 5;
/// The two ECN bits of a traffic class, and what says in them that the ends of a path heed marks
/// (ECT(0), RFC 3168).
const ECN_BITS: u8 = 0b11;
const ECN_CAPABLE: u8 = 0b10;
/// Bytes that may be under way to a peer whose port pauses us.
const PAUSED_WINDOW_BYTES: u64 = 4 << 20;

/// How packets reach one process.
#[derive(Clone)]
pub(crate) struct PeerPath {
    pub(crate) flow: Flow,
    /// How full its receive socket is, where it is on this host.
    pub(crate) backlog: Option<Arc<Backlog>>,
    losses: Losses,
}

impl PeerPath {
    pub(crate) fn room(&self, bytes: u64, now: Instant) -> Option<bool> {
        self.backlog.as_ref().map(|backlog| backlog.room(bytes, self.losses, now))
    }
}

impl Adapter {
    /// Port attributes.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a port that does not exist.
    pub(crate) fn port(&self, port: u32) -> Result<PortAttr> {
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
    pub(crate) fn gids(&self, port: u32) -> Result<Vec<GidEntry>> {
        self.check_port(port)?;
        Ok(self.port_now().gids.iter().map(gid_entry).collect())
    }

    /// One entry of a port's GID table; `None` for an empty place.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a port or index that does not exist.
    pub(crate) fn gid(&self, port: u32, index: u32) -> Result<Option<GidEntry>> {
        self.check_port(port)?;
        if index >= GID_TABLE_LEN as u32 {
            return Err(Error::Invalid("GID index outside the table"));
        }
        let port = self.port_now();
        let entry = port.gids.get(index as usize);
        Ok(entry.map(|entry| gid_entry((index as usize, entry))))
    }

    /// Whether what is sent to an address of the host's is for this device: where it is on some of
    /// the interfaces only, that is not so for the addresses of the others.
    pub(crate) fn takes(&self, destination: IpAddr) -> bool {
        self.port.takes(destination)
    }

    /// Readable when the host's interfaces changed; `None` where nothing tells, or nothing depends
    /// on them.
    pub(crate) fn watch_fd(&self) -> Option<BorrowedFd<'_>> {
        match &self.network {
            Attached::Ethernet(on) => on.gateway.watch_fd(),
            Attached::Host | Attached::Subnet(_) => self.port.watch_fd(),
        }
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
    pub(crate) fn pkey(&self, port: u32, index: u32) -> Result<u16> {
        self.check_port(port)?;
        if index >= self.attr.max_pkeys {
            return Err(Error::Invalid("P_Key index outside the table"));
        }
        Ok(wire::DEFAULT_PKEY)
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

    /// The path of a connection, and whether its ends heed the network's marks of congestion: where
    /// it leaves this host. The network is told so by every packet, as adapters do whatever a
    /// program names in these two bits.
    pub(crate) fn connected_path(&self, attr: &AhAttr) -> Result<(Path, bool)> {
        let path = self.path(attr)?;
        let leaves_host = matches!(self.network, Attached::Host) && !self.is_here(&path);
        let traffic_class = match leaves_host {
            true => path.traffic_class & !ECN_BITS | ECN_CAPABLE,
            false => path.traffic_class,
        };
        Ok((Path { traffic_class, ..path }, leaves_host))
    }

    /// Whether the end of `path` is an address of this host's.
    fn is_here(&self, path: &Path) -> bool {
        self.port.known().gids.is_here(path.dst)
    }

    /// What frames to an address vector carry. `None` where there is no Ethernet, and to the host,
    /// which is no port of it: it is reached as any peer of a host is, from an address `src` that
    /// both have. From any other one nothing reaches it.
    fn ethernet(&self, attr: &AhAttr, src: IpAddr) -> Result<Option<Ethernet>> {
        let Attached::Ethernet(OnEthernet { lan, gateway }) = &self.network else {
            return Ok(None);
        };
        let station = lan.station(u32::from(attr.sgid_index));
        let vlan = station.and_then(|station| station.vlan);
        if slot_of_mac(attr.dmac) == Some(link::HOST) {
            match vlan {
                Some(_) => return Err(Error::Unreachable("the host is in no VLAN")),
                None if gateway.shares(src) => return Ok(None),
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

    /// The way to the process that owns QP `dest_qpn` at the end of `path`. Asks the registry and
    /// makes sockets, so no lock that receiving needs may be held.
    pub(crate) fn way(&self, path: Path, dest_qpn: u32, losses: Losses) -> Result<PeerPath> {
        let flow = self.endpoint.flow(path, dest_qpn).map_err(|error| {
            Error::System(error.raw_os_error().unwrap_or(0), "no source port for the destination")
        })?;
        let slot = (dest_qpn >> QPN_INDEX_BITS) as u16;
        let backlog = match path.ethernet.map(|ethernet| slot_of_mac(ethernet.dst)) {
            Some(port) => port.and_then(|port| self.backlog(port, false)),
            None if self.is_here(&path) => self.backlog(slot, path.dst.is_ipv6()),
            None => None,
        };
        Ok(PeerPath { flow, backlog, losses })
    }

    /// The backlog of the process with `slot`, which is on this host. One copy of its socket serves
    /// all who send there.
    fn backlog(&self, slot: u16, v6: bool) -> Option<Arc<Backlog>> {
        let id = (slot, v6);
        if let Some(known) = lock(&self.backlogs).get(&id).and_then(Weak::upgrade) {
            return Some(known);
        }
        let socket = self.registry.lookup(&socket_id(slot, v6)).ok()?;
        let backlog = Arc::new(Backlog::new(socket));
        let mut backlogs = lock(&self.backlogs);
        backlogs.retain(|_, known| known.strong_count() > 0);
        // What finds no place serves who asked for it.
        if backlogs.try_reserve(1).is_ok() {
            backlogs.insert(id, Arc::downgrade(&backlog));
        }
        Some(backlog)
    }

    /// The process that owns QP `dest_qpn` at the end of `path`, if its memory may be reached. Asks
    /// the registry, so no lock that receiving needs may be held.
    pub(crate) fn neighbour(&self, path: &Path, dest_qpn: u32) -> Option<Arc<Neighbour>> {
        let neighbours = self.neighbours.as_ref()?;
        let slot = self.slot_here(path, dest_qpn).filter(|slot| *slot != self.slot)?;
        let known = lock(neighbours).get(&slot).and_then(Weak::upgrade);
        if let Some(known) = known.filter(|known| known.is_there()) {
            tracer::name(&known);
            return Some(known);
        }
        let members = self.registry.members().ok()?;
        let pid = members.iter().find(|member| member.slot == slot)?.pid;
        let directory = self.registry.directory(slot).ok()?;
        let neighbour = Arc::new(Neighbour::agree(directory, u32::try_from(pid).ok()?)?);
        tracer::name(&neighbour);
        let mut neighbours = lock(neighbours);
        neighbours.retain(|_, known| known.strong_count() > 0);
        // What finds no place serves who asked for it.
        if neighbours.try_reserve(1).is_ok() {
            neighbours.insert(slot, Arc::downgrade(&neighbour));
        }
        Some(neighbour)
    }

    /// Whether QP `dest_qpn` at the end of `path` is one of this device's.
    pub(crate) fn is_own(&self, path: &Path, dest_qpn: u32) -> bool {
        self.slot_here(path, dest_qpn) == Some(self.slot)
    }

    /// The slot of the process that owns QP `dest_qpn`, where the end of `path` is this host.
    pub(super) fn slot_here(&self, path: &Path, dest_qpn: u32) -> Option<u16> {
        let here = path.ethernet.is_none() && self.is_here(path);
        here.then_some((dest_qpn >> QPN_INDEX_BITS) as u16)
    }

    /// Bytes that may be under way to one peer: what a socket buffer like ours takes. One that
    /// pauses us before its buffer overflows needs no such limit, and is not asked for acknowledges
    /// for its sake.
    pub(crate) fn window_bytes(&self, way: Option<&PeerPath>) -> u64 {
        let buffer = self.endpoint.receive_buffer_bytes() as u64;
        match way.and_then(|way| way.backlog.as_ref()) {
            Some(_) => buffer.max(PAUSED_WINDOW_BYTES),
            None => buffer,
        }
    }
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
