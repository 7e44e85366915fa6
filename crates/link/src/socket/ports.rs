//! The sockets that give queue pairs their UDP source ports.
//!
//! RoCE wants a source port per queue pair, so that switches spread them (IBA A17.9.1: 0xC000 to
//! 0xFFFF). It also keeps a receiver's GRO from joining packets of two processes into one train,
//! which the kernel would give to the first one's: a socket never serves two slots (of destination
//! queue pair numbers) of one address. Within that rule sockets are shared once there are many, so
//! that a thousand queue pairs are not a thousand descriptors; past a second, harder limit the rule
//! gives way, and such a train costs the other process a retry.
//!
//! What stays on this host, where nothing is spread or joined, leaves from the socket that receives
//! instead: by its port a receiver knows the sender as of the same user ([`wire::guard`]).
//!
//! Sharing does not touch the ICRC: from an unconnected socket that never fragments, the kernel
//! numbers each train's datagrams from 0, wherever they go.

use crate::socket::udp;
use descriptors::{Kept, soft_limit};
use engine_thread::lock;
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, ipproto, socket_with};
use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, Weak};

/// First of the source ports.
const FIRST_PORT: u16 = 0xC000;
/// How many source ports there are.
const PORTS: u32 = 0x4000;
/// Sockets per address family before flows share them.
const CAP: u64 = 32;
/// Sockets per address family at most.
const MOST: u64 = 256;
/// Bytes that may wait in a socket's send queue: several trains.
const SEND_BUFFER_BYTES: i32 = 4 << 20;

/// Slot of the queue pairs 0 and 1.
const MANAGEMENT: u32 = 0;

/// Where a flow's packets go.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Destination {
    pub(crate) ip: IpAddr,
    pub(crate) scope_id: u32,
    pub(crate) slot: u32,
}

impl Destination {
    /// Whether a receiver could mistake packets to `other` for packets to this one, if they came
    /// from one port.
    fn collides(&self, other: &Destination) -> bool {
        (self.ip, self.scope_id) == (other.ip, other.scope_id) && self.slot != other.slot
    }
}

/// A socket that packets leave from.
struct PortSocket {
    fd: Kept,
    port: u16,
    gso: bool,
    /// Counts the sockets of a family with source ports of their own, if this is one.
    open: Option<Arc<AtomicUsize>>,
}

impl PortSocket {
    fn new(fd: Kept, port: u16, open: Option<Arc<AtomicUsize>>) -> PortSocket {
        // A kernel without the option would ignore the control message and send one long datagram.
        let gso = udp::option::<1>(fd.as_fd(), libc::SOL_UDP, libc::UDP_SEGMENT).is_ok();
        PortSocket { fd, port, gso, open }
    }
}

impl Drop for PortSocket {
    fn drop(&mut self) {
        if let Some(open) = &self.open {
            open.fetch_sub(1, Relaxed);
        }
    }
}

/// A socket's use for one destination.
pub(crate) struct Lane {
    socket: Arc<PortSocket>,
    /// Whether the kernel takes GSO trains on the way to this destination.
    pub(crate) gso: AtomicBool,
}

impl Lane {
    fn new(socket: Arc<PortSocket>) -> Arc<Lane> {
        let gso = AtomicBool::new(socket.gso);
        Arc::new(Lane { socket, gso })
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.socket.fd.as_fd()
    }

    pub(crate) fn port(&self) -> u16 {
        self.socket.port
    }

    /// Whether one call can send for both.
    pub(crate) fn shares_socket(&self, other: &Lane) -> bool {
        Arc::ptr_eq(&self.socket, &other.socket)
    }
}

/// The sockets in use; a socket closes with its last flow.
#[derive(Default)]
pub(crate) struct Ports {
    lanes: Mutex<HashMap<Destination, Vec<Weak<Lane>>>>,
    open_v4: Arc<AtomicUsize>,
    open_v6: Arc<AtomicUsize>,
    /// The lanes to this host, by IPv4 and by IPv6.
    home: [Option<Arc<Lane>>; 2],
    /// The lanes to the management interfaces of other hosts, likewise.
    management: [Mutex<Weak<Lane>>; 2],
}

impl Ports {
    /// No sockets yet but those that packets to this host leave from.
    pub(crate) fn with_home(
        v4: Option<BorrowedFd<'_>>,
        v6: Option<BorrowedFd<'_>>,
    ) -> io::Result<Ports> {
        let home = |fd: Option<BorrowedFd<'_>>| fd.map(home_lane).transpose();
        Ok(Ports { home: [home(v4)?, home(v6)?], ..Ports::default() })
    }

    /// The lane of packets to this host, unless the endpoint only sends.
    pub(crate) fn home(&self, v6: bool) -> Option<Arc<Lane>> {
        self.home[usize::from(v6)].clone()
    }

    /// A lane to `destination`: over a fresh socket while there are few, then the least used one of
    /// the same destination, then one over a socket of others. `preferred` chooses the port of a
    /// fresh socket where it is free.
    pub(crate) fn get(
        &self,
        destination: Destination,
        preferred: Option<u16>,
    ) -> io::Result<Arc<Lane>> {
        let open = if destination.ip.is_ipv4() { &self.open_v4 } else { &self.open_v6 };
        if destination.slot == MANAGEMENT {
            return self.management(destination.ip, open);
        }
        let mut lanes = lock(&self.lanes);
        lanes.retain(|_, list| {
            list.retain(|lane| lane.strong_count() > 0);
            !list.is_empty()
        });
        let used = open.load(Relaxed);
        if used >= limit(CAP, 16) {
            let own = lanes.get(&destination).into_iter().flatten();
            let least = own.min_by_key(|lane| lane.strong_count());
            if let Some(lane) = least.and_then(Weak::upgrade) {
                return Ok(lane);
            }
        }
        let shared = (used >= limit(CAP, 16))
            .then(|| shared(&lanes, destination, used >= limit(MOST, 4)))
            .flatten();
        let socket = match shared {
            Some(socket) => socket,
            None => Arc::new(open_socket(destination.ip, preferred, open)?),
        };
        let lane = Lane::new(socket);
        lanes.entry(destination).or_default().push(Arc::downgrade(&lane));
        Ok(lane)
    }
}

impl Ports {
    /// One for all: whoever asks something of a management interface makes it answer, and that must
    /// cost no socket each.
    fn management(&self, ip: IpAddr, open: &Arc<AtomicUsize>) -> io::Result<Arc<Lane>> {
        let mut lane = lock(&self.management[usize::from(ip.is_ipv6())]);
        if let Some(lane) = lane.upgrade() {
            return Ok(lane);
        }
        let opened = Lane::new(Arc::new(open_socket(ip, None, open)?));
        *lane = Arc::downgrade(&opened);
        Ok(opened)
    }
}

/// `most`, or a share of the descriptors that the process may have.
fn limit(most: u64, share: u64) -> usize {
    soft_limit().map_or(most, |limit| most.min(limit / share)) as usize
}

/// The socket with the fewest destinations among those that may serve `destination` as well; among
/// all of its family if it `must` be one.
fn shared(
    lanes: &HashMap<Destination, Vec<Weak<Lane>>>,
    destination: Destination,
    must: bool,
) -> Option<Arc<PortSocket>> {
    let mut sockets: HashMap<u16, (bool, Arc<PortSocket>)> = HashMap::new();
    for (other, list) in lanes {
        if other.ip.is_ipv4() != destination.ip.is_ipv4() {
            continue;
        }
        for lane in list.iter().filter_map(Weak::upgrade) {
            let entry = sockets.entry(lane.port()).or_insert((false, lane.socket.clone()));
            entry.0 |= other.collides(&destination);
        }
    }
    let usable = sockets.into_values().filter(|(collides, _)| must || !collides);
    usable
        .min_by_key(|(collides, socket)| (*collides, Arc::strong_count(socket)))
        .map(|(_, socket)| socket)
}

fn open_socket(
    destination: IpAddr,
    preferred: Option<u16>,
    open: &Arc<AtomicUsize>,
) -> io::Result<PortSocket> {
    let (family, any): (_, IpAddr) = match destination {
        IpAddr::V4(_) => (AddressFamily::INET, Ipv4Addr::UNSPECIFIED.into()),
        IpAddr::V6(_) => (AddressFamily::INET6, Ipv6Addr::UNSPECIFIED.into()),
    };
    let fd = socket_with(family, SocketType::DGRAM, SocketFlags::CLOEXEC, Some(ipproto::UDP))?;
    let fd = Kept::new(fd);
    if destination.is_ipv6() {
        udp::set_option(fd.as_fd(), libc::IPPROTO_IPV6, libc::IPV6_V6ONLY, 1)?;
    }
    set_up_sending(fd.as_fd(), destination.is_ipv6())?;
    // Best effort: nobody should send here, and then little of it would be kept.
    let _ = udp::drop_arrivals(fd.as_fd());
    let _ = udp::set_option(fd.as_fd(), libc::SOL_SOCKET, libc::SO_RCVBUF, 0);
    let port = bind_port(&fd, any, preferred)?;
    open.fetch_add(1, Relaxed);
    Ok(PortSocket::new(fd, port, Some(open.clone())))
}

/// A lane from a socket that receives.
fn home_lane(fd: BorrowedFd<'_>) -> io::Result<Arc<Lane>> {
    let own = SocketAddr::try_from(rustix::net::getsockname(fd)?)?;
    set_up_sending(fd, own.is_ipv6())?;
    let fd = Kept::new(fd.try_clone_to_owned()?);
    Ok(Lane::new(Arc::new(PortSocket::new(fd, own.port(), None))))
}

/// What is sent is never fragmented, and some of it may wait.
fn set_up_sending(fd: BorrowedFd<'_>, v6: bool) -> io::Result<()> {
    let (level, option, value) = match v6 {
        false => (libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_DO),
        true => (libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER, libc::IPV6_PMTUDISC_DO),
    };
    udp::set_option(fd, level, option, value)?;
    set_buffer(fd, libc::SO_SNDBUFFORCE, libc::SO_SNDBUF, SEND_BUFFER_BYTES)
}

/// Binds to the preferred port or, failing that, to the first free one from a random start.
fn bind_port(fd: &Kept, any: IpAddr, preferred: Option<u16>) -> io::Result<u16> {
    let start = RandomState::new().hash_one(0u8) as u32;
    let random = (0..PORTS).map(|step| FIRST_PORT + (start.wrapping_add(step) % PORTS) as u16);
    for port in preferred.into_iter().chain(random) {
        match bind(fd, &SocketAddr::new(any, port)) {
            Ok(()) => return Ok(port),
            Err(rustix::io::Errno::ADDRINUSE) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Err(io::Error::new(
        io::ErrorKind::AddrInUse,
        "every UDP port from 49152 to 65535 is taken; RoCE needs one of them to send from",
    ))
}

/// Sets a buffer size past the system's limit where permitted, up to it otherwise.
pub(crate) fn set_buffer(fd: BorrowedFd<'_>, force: i32, plain: i32, bytes: i32) -> io::Result<()> {
    udp::set_option(fd, libc::SOL_SOCKET, force, bytes)
        .or_else(|_| udp::set_option(fd, libc::SOL_SOCKET, plain, bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn destination(slot: u32) -> Destination {
        Destination { ip: Ipv4Addr::LOCALHOST.into(), scope_id: 0, slot }
    }

    fn ports_of(lanes: &[Arc<Lane>]) -> Vec<u16> {
        let mut ports: Vec<_> = lanes.iter().map(|lane| lane.port()).collect();
        ports.sort();
        ports.dedup();
        ports
    }

    #[test]
    fn sockets_are_fresh_up_to_the_cap_then_shared_within_a_destination() {
        let ports = Ports::default();
        let cap = limit(CAP, 16);
        let first: Vec<_> = (0..cap).map(|_| ports.get(destination(1), None).unwrap()).collect();
        let numbers = ports_of(&first);
        assert_eq!(numbers.len(), cap, "one port each");
        assert!(numbers[0] >= FIRST_PORT);

        let again: Vec<_> = (0..cap).map(|_| ports.get(destination(1), None).unwrap()).collect();
        for lane in &first {
            assert_eq!(Arc::strong_count(lane), 2, "shared evenly");
        }
        let other = ports.get(destination(2), None).unwrap();
        assert!(!numbers.contains(&other.port()), "another slot never shares");
        assert_eq!(ports.open_v4.load(Relaxed), cap + 1);

        drop((first, again, other));
        assert_eq!(ports.open_v4.load(Relaxed), 0, "closed with the last flow");
    }

    #[test]
    fn two_thousand_destinations_are_few_sockets() {
        let ports = Ports::default();
        let hosts: Vec<_> = (0..2000u32)
            .map(|host| {
                let ip = Ipv4Addr::from(0x7f01_0000 + host).into();
                ports.get(Destination { ip, ..destination(1) }, None).unwrap()
            })
            .collect();
        assert_eq!(ports_of(&hosts).len(), limit(CAP, 16), "different hosts share");
        let most = ports_of(&hosts)
            .iter()
            .map(|port| hosts.iter().filter(|lane| lane.port() == *port).count())
            .max();
        assert!(most.unwrap() <= 2000 / limit(CAP, 16) + 2, "evenly: {most:?}");

        let few = limit(MOST, 4) as u32 - limit(CAP, 16) as u32;
        let slots: Vec<_> =
            (0..few).map(|slot| ports.get(destination(slot), None).unwrap()).collect();
        assert_eq!(ports_of(&slots).len(), few as usize, "slots of one host do not");
        let more: Vec<_> =
            (few..1023).map(|slot| ports.get(destination(slot), None).unwrap()).collect();
        assert!(ports.open_v4.load(Relaxed) <= limit(MOST, 4), "until there are too many");
        drop((hosts, slots, more));
        assert_eq!(ports.open_v4.load(Relaxed), 0);
    }

    #[test]
    fn who_asks_a_management_interface_costs_no_socket() {
        let ports = Ports::default();
        let lanes: Vec<_> = (0..500u32)
            .map(|host| {
                let ip = Ipv4Addr::from(0x7f01_0000 + host).into();
                ports.get(Destination { ip, ..destination(MANAGEMENT) }, None).unwrap()
            })
            .collect();
        assert_eq!(ports_of(&lanes).len(), 1);
        assert!(ports.lanes.lock().unwrap().is_empty(), "nothing to look through");
        drop(lanes);
        assert_eq!(ports.open_v4.load(Relaxed), 0, "closed with the last flow");
    }

    #[test]
    fn preferred_ports_are_taken_where_free() {
        let ports = Ports::default();
        let free = ports.get(destination(1), None).unwrap().port();
        let lane = ports.get(destination(1), Some(free)).unwrap();
        assert_eq!(lane.port(), free);
        assert_ne!(ports.get(destination(1), Some(free)).unwrap().port(), free);
    }
}
