//! The sockets that give queue pairs their UDP source ports.
//!
//! RoCE wants a source port per queue pair, so that switches spread them (IBA A17.9.1: 0xC000 to
//! 0xFFFF). It also keeps a receiver's GRO from joining packets of two processes into one train,
//! which the kernel would give to the first one's: a socket never serves two destinations, where a
//! destination is an address and the slot of the destination queue pair number. Within that rule
//! sockets are shared once there are many, so that a thousand queue pairs are not a thousand
//! descriptors.

use crate::udp;
use descriptors::{Kept, soft_limit};
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, ipproto, socket_with};
use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// First of the source ports.
const FIRST_PORT: u16 = 0xC000;
/// How many source ports there are.
const PORTS: u32 = 0x4000;
/// Sockets per address family before flows share them.
const CAP: u64 = 32;
/// Bytes that may wait in a socket's send queue: several trains.
const SEND_BUFFER_BYTES: i32 = 4 << 20;

/// What a socket serves.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Destination {
    pub(crate) ip: IpAddr,
    pub(crate) scope_id: u32,
    pub(crate) slot: u32,
}

/// A socket bound to a source port of its own and to no address.
pub(crate) struct PortSocket {
    fd: Kept,
    pub(crate) port: u16,
    /// Whether the kernel takes GSO trains on the way to this destination.
    pub(crate) gso: AtomicBool,
    open: Arc<AtomicUsize>,
}

impl PortSocket {
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Drop for PortSocket {
    fn drop(&mut self) {
        self.open.fetch_sub(1, Relaxed);
    }
}

/// The sockets in use; a socket closes with its last flow.
#[derive(Default)]
pub(crate) struct Ports {
    sockets: Mutex<HashMap<Destination, Vec<Weak<PortSocket>>>>,
    open_v4: Arc<AtomicUsize>,
    open_v6: Arc<AtomicUsize>,
}

impl Ports {
    /// A socket for `destination`: a fresh one while there are few, then the least used one of the
    /// same destination. `preferred` chooses the port where it is free.
    pub(crate) fn get(
        &self,
        destination: Destination,
        preferred: Option<u16>,
    ) -> io::Result<Arc<PortSocket>> {
        let open = if destination.ip.is_ipv4() { &self.open_v4 } else { &self.open_v6 };
        let mut sockets = self.sockets.lock().unwrap_or_else(PoisonError::into_inner);
        sockets.retain(|_, list| {
            list.retain(|socket| socket.strong_count() > 0);
            !list.is_empty()
        });
        let cap = soft_limit().map_or(CAP, |limit| CAP.min(limit / 16)) as usize;
        let list = sockets.entry(destination).or_default();
        if open.load(Relaxed) >= cap {
            let least = list.iter().min_by_key(|socket| socket.strong_count());
            if let Some(socket) = least.and_then(Weak::upgrade) {
                return Ok(socket);
            }
        }
        let socket = Arc::new(open_socket(destination.ip, preferred, open)?);
        list.push(Arc::downgrade(&socket));
        Ok(socket)
    }
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
    match destination {
        IpAddr::V4(_) => udp::set_option(
            fd.as_fd(),
            libc::IPPROTO_IP,
            libc::IP_MTU_DISCOVER,
            libc::IP_PMTUDISC_DO,
        )?,
        IpAddr::V6(_) => {
            let level = libc::IPPROTO_IPV6;
            udp::set_option(fd.as_fd(), level, libc::IPV6_V6ONLY, 1)?;
            udp::set_option(fd.as_fd(), level, libc::IPV6_MTU_DISCOVER, libc::IPV6_PMTUDISC_DO)?;
        }
    }
    // Best effort: nobody should send here, and then little of it would be kept.
    let _ = udp::drop_arrivals(fd.as_fd());
    let _ = udp::set_option(fd.as_fd(), libc::SOL_SOCKET, libc::SO_RCVBUF, 0);
    set_buffer(fd.as_fd(), libc::SO_SNDBUFFORCE, libc::SO_SNDBUF, SEND_BUFFER_BYTES)?;
    let port = bind_port(&fd, any, preferred)?;
    // A kernel without the option would ignore the control message and send one long datagram.
    let gso = udp::option::<1>(fd.as_fd(), libc::SOL_UDP, libc::UDP_SEGMENT).is_ok();
    open.fetch_add(1, Relaxed);
    Ok(PortSocket { fd, port, gso: AtomicBool::new(gso), open: open.clone() })
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

    #[test]
    fn sockets_are_fresh_up_to_the_cap_then_shared_within_a_destination() {
        let ports = Ports::default();
        let cap = soft_limit().map_or(CAP, |limit| CAP.min(limit / 16)) as usize;
        let first: Vec<_> = (0..cap).map(|_| ports.get(destination(1), None).unwrap()).collect();
        let mut numbers: Vec<_> = first.iter().map(|socket| socket.port).collect();
        numbers.sort();
        numbers.dedup();
        assert_eq!(numbers.len(), cap, "one port each");
        assert!(numbers[0] >= FIRST_PORT);

        let shared: Vec<_> = (0..cap).map(|_| ports.get(destination(1), None).unwrap()).collect();
        for socket in &first {
            assert_eq!(Arc::strong_count(socket), 2, "shared evenly");
        }
        let other = ports.get(destination(2), None).unwrap();
        assert!(!numbers.contains(&other.port), "another slot never shares");
        assert_eq!(ports.open_v4.load(Relaxed), cap + 1);

        drop((first, shared, other));
        assert_eq!(ports.open_v4.load(Relaxed), 0, "closed with the last flow");
        let again = ports.get(destination(1), None).unwrap();
        assert_eq!(ports.sockets.lock().unwrap().len(), 1);
        drop(again);
    }

    #[test]
    fn preferred_ports_are_taken_where_free() {
        let ports = Ports::default();
        let free = ports.get(destination(1), None).unwrap().port;
        let socket = ports.get(destination(1), Some(free)).unwrap();
        assert_eq!(socket.port, free);
        assert_ne!(ports.get(destination(1), Some(free)).unwrap().port, free);
    }
}
