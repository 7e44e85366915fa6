//! An endpoint: the sockets that a device receives on, and the pool of those it sends from.

use crate::flow::{Flow, Flows, Path};
use crate::host_socket::{self, HostSocket, OwnAddresses};
use crate::lan::Lan;
use crate::socket::ports::{self, Ports};
use crate::socket::udp;
use crate::stats::Stats;
use crate::trace::{Trace, Traced};
use descriptors::Kept;
use engine_thread::{lock, read, write};
use rustix::net::sockopt;
use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, RwLock};
use wire::guard::Groups;

/// What [`Endpoint::new`] asks for as receive buffer, before the kernel doubles it.
pub const DEFAULT_RECEIVE_BUFFER_BYTES: usize = 8 << 20;

/// The sockets of one device. All methods may be called from any thread.
pub struct Endpoint {
    v4: Option<Kept>,
    v6: Option<Kept>,
    lan: Option<Arc<Lan>>,
    own: RwLock<OwnAddresses>,
    port: u16,
    ports: Ports,
    flows: Flows,
    stats: Stats,
    tracing: AtomicBool,
    trace: Mutex<Option<Arc<Trace>>>,
    receive_buffer_bytes: usize,
}

impl Endpoint {
    /// Takes over the bound receive sockets, an IPv4 one, an IPv6 one (IPV6_V6ONLY), or both.
    /// `port` is the UDP port that peers listen on, 4791 outside tests.
    ///
    /// # Errors
    /// Those of `setsockopt` for the options without which nothing works (packet information).
    pub fn new(v4: Option<OwnedFd>, v6: Option<OwnedFd>, port: u16) -> io::Result<Endpoint> {
        Endpoint::with_receive_buffer(v4, v6, port, DEFAULT_RECEIVE_BUFFER_BYTES)
    }

    /// The same, asking the kernel for `bytes` of receive buffer per socket. It doubles the figure;
    /// without CAP_NET_ADMIN it first cuts it to `net.core.rmem_max`.
    ///
    /// # Errors
    /// As [`Endpoint::new`].
    pub fn with_receive_buffer(
        v4: Option<OwnedFd>,
        v6: Option<OwnedFd>,
        port: u16,
        bytes: usize,
    ) -> io::Result<Endpoint> {
        let v4 = v4.map(Kept::new);
        let v6 = v6.map(Kept::new);
        let mut granted = usize::MAX;
        for (fd, v6) in [(&v4, false), (&v6, true)] {
            if let Some(fd) = fd {
                granted = granted.min(set_up(fd.as_fd(), v6, bytes)?);
            }
        }
        let granted = if granted == usize::MAX { 0 } else { granted };
        let ports = Ports::with_home(v4.as_ref().map(AsFd::as_fd), v6.as_ref().map(AsFd::as_fd))?;
        Ok(Endpoint::over(v4, v6, None, (port, ports), granted))
    }

    /// An endpoint on an Ethernet, with `bytes` of receive buffer per socket. What it sends to the
    /// host itself by IPv6 leaves from `v6`, a socket on the port.
    ///
    /// # Errors
    /// As [`Endpoint::new`].
    pub fn on_lan(
        lan: impl Into<Arc<Lan>>,
        v6: Option<BorrowedFd<'_>>,
        port: u16,
        bytes: usize,
    ) -> io::Result<Endpoint> {
        let lan = lan.into();
        let mut granted = usize::MAX;
        for fd in lan.receive_fds() {
            granted = granted.min(set_up(fd, false, bytes)?);
        }
        let ports = Ports::with_home(Some(lan.fd()), v6)?;
        Ok(Endpoint::over(None, None, Some(lan), (port, ports), granted))
    }

    fn over(
        v4: Option<Kept>,
        v6: Option<Kept>,
        lan: Option<Arc<Lan>>,
        (port, ports): (u16, Ports),
        receive_buffer_bytes: usize,
    ) -> Endpoint {
        Endpoint {
            receive_buffer_bytes,
            v4,
            v6,
            lan,
            own: RwLock::default(),
            port,
            ports,
            flows: Flows::default(),
            stats: Stats::default(),
            tracing: AtomicBool::new(false),
            trace: Mutex::new(None),
        }
    }

    /// The Ethernet that it is on, if it is.
    pub fn lan(&self) -> Option<&Lan> {
        self.lan.as_deref()
    }

    /// Takes what is sent to `ip`, an address of this host on the interface `ifindex`, before all
    /// sockets on all addresses do; or what is sent there to a group. Other users of this host are
    /// kept out, but for the host's groups on an endpoint of an Ethernet.
    ///
    /// # Errors
    /// Those of `bind`: `EADDRNOTAVAIL` if it is no address of this host, `EADDRINUSE` if another
    /// user's program has it; for a group those of [`join`](Endpoint::join), and `ENOBUFS` past 32
    /// of them.
    pub fn receive_at(&self, ip: IpAddr, ifindex: u32) -> io::Result<()> {
        let known = self.own_addresses();
        if known.iter().any(|known| known.serves(ip, ifindex)) {
            return Ok(());
        }
        host_socket::check_room(&known, ip)?;
        // What is sent to groups of the host leaves from any port, other groups are the user's own.
        let groups = match ip {
            _ if self.lan.is_none() => Groups::Closed,
            IpAddr::V4(_) => Groups::OpenV4,
            IpAddr::V6(_) => Groups::OpenV6,
        };
        let opened =
            HostSocket::open(ip, ifindex, self.port, groups, self.receive_buffer_bytes / 2)?;
        let mut own = write(&self.own);
        Arc::make_mut(&mut own).push(Arc::new(opened));
        Ok(())
    }

    /// Ends a [`receive_at`](Endpoint::receive_at), on every interface.
    pub fn leave_address(&self, ip: IpAddr) {
        let mut own = write(&self.own);
        Arc::make_mut(&mut own).retain(|known| known.ip() != ip);
    }

    /// The sockets of [`receive_at`](Endpoint::receive_at).
    pub fn own_addresses(&self) -> OwnAddresses {
        read(&self.own).clone()
    }

    /// What the port sent to a group of its Ethernet goes to that group of the host too, where the
    /// host has its address.
    pub(crate) fn relay(&self, packet: &Traced<'_>) {
        let own = self.own_addresses();
        let from = own.iter().find(|known| known.ip() == packet.src.to_canonical());
        // As unreliable as any datagram.
        let _ = from.map(|own| own.relay(packet, self.port));
    }

    /// Whether a datagram from the host's network is one that a port of the Ethernet relayed, so
    /// that it came there as well. A port has no address of loopback.
    pub(crate) fn is_relayed(&self, src: IpAddr, dst: IpAddr, udp_src: u16) -> bool {
        self.lan.is_some() && dst.is_multicast() && udp_src == self.port && !src.is_loopback()
    }

    /// A flow along `path` towards the process that owns `dest_qpn`.
    ///
    /// # Errors
    /// `InvalidInput` when the addresses are of different families; else those of making a socket.
    pub fn flow(&self, path: Path, dest_qpn: u32) -> io::Result<Flow> {
        let ways = (&self.flows, &self.ports);
        Flow::new(ways, self.lan.as_deref(), path, dest_qpn, self.port)
    }

    /// Takes what is sent to the multicast `group` on the interface `ifindex` (IGMP or MLD tells
    /// the network).
    ///
    /// # Errors
    /// Those of `IP_ADD_MEMBERSHIP`: `ENODEV` without such an interface, `EADDRINUSE` when joined
    /// already, `ENOBUFS` past `igmp_max_memberships`; `EAFNOSUPPORT` without a socket of the
    /// family.
    pub fn join(&self, group: IpAddr, ifindex: u32) -> io::Result<()> {
        if self.lan.is_some() {
            // It floods every group.
            return Ok(());
        }
        let fd = self.receive_fd(group.is_ipv6()).ok_or(rustix::io::Errno::AFNOSUPPORT)?;
        match group {
            IpAddr::V4(group) => {
                let any = Ipv4Addr::UNSPECIFIED;
                sockopt::set_ip_add_membership_with_ifindex(fd, &group, &any, ifindex)?;
            }
            IpAddr::V6(group) => sockopt::set_ipv6_add_membership(fd, &group, ifindex)?,
        }
        Ok(())
    }

    /// Ends a [`join`](Endpoint::join).
    ///
    /// # Errors
    /// `EADDRNOTAVAIL` when not joined.
    pub fn leave(&self, group: IpAddr, ifindex: u32) -> io::Result<()> {
        if self.lan.is_some() {
            return Ok(());
        }
        let fd = self.receive_fd(group.is_ipv6()).ok_or(rustix::io::Errno::AFNOSUPPORT)?;
        match group {
            IpAddr::V4(group) => {
                let any = Ipv4Addr::UNSPECIFIED;
                sockopt::set_ip_drop_membership_with_ifindex(fd, &group, &any, ifindex)?;
            }
            IpAddr::V6(group) => sockopt::set_ipv6_drop_membership(fd, &group, ifindex)?,
        }
        Ok(())
    }

    /// The sockets to wait on for readability, beside those of [`Endpoint::own_addresses`].
    pub fn receive_fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let lan = self.lan.iter().flat_map(|lan| lan.receive_fds());
        [&self.v4, &self.v6].into_iter().flatten().map(AsFd::as_fd).chain(lan)
    }

    pub(crate) fn receive_fd(&self, v6: bool) -> Option<BorrowedFd<'_>> {
        if v6 { &self.v6 } else { &self.v4 }.as_ref().map(AsFd::as_fd)
    }

    /// What the kernel granted as receive buffer, the lesser of both sockets, as SO_RCVBUF says it.
    /// The kernel charges its own bookkeeping to it. On Linux 6.18 over loopback, payload fills
    /// nine tenths of it in trains, not quite half of it in lone datagrams of 1 or 4 KiB, and a
    /// short datagram is charged 832 bytes.
    pub fn receive_buffer_bytes(&self) -> usize {
        self.receive_buffer_bytes
    }

    /// Datagrams or trains that the kernel dropped for want of receive buffer, or as a stranger's,
    /// since the sockets were made. Zero where the kernel does not tell (before 4.12).
    pub fn receive_overflows(&self) -> u64 {
        self.receive_fds().map(udp::receive_drops).sum()
    }

    /// The counters.
    pub fn stats(&self) -> &Stats {
        &self.stats
    }

    /// Starts or ends the recording of every packet sent and received from now on.
    pub fn set_trace(&self, trace: Option<Arc<Trace>>) {
        let on = trace.is_some();
        *lock(&self.trace) = trace;
        self.tracing.store(on, Relaxed);
    }

    pub(crate) fn trace(&self) -> Option<Arc<Trace>> {
        if !self.tracing.load(Relaxed) {
            return None;
        }
        lock(&self.trace).clone()
    }
}

/// Sets the options of a socket to receive on; answers with the receive buffer that the kernel
/// granted, in bytes.
pub(crate) fn set_up(fd: BorrowedFd<'_>, v6: bool, bytes: usize) -> io::Result<usize> {
    if v6 {
        for option in [libc::IPV6_RECVPKTINFO, libc::IPV6_RECVTCLASS, libc::IPV6_RECVHOPLIMIT] {
            udp::set_option(fd, libc::IPPROTO_IPV6, option, 1)?;
        }
        // Kernels before 4.20 lack it.
        let _ = udp::set_option(fd, libc::IPPROTO_IPV6, libc::IPV6_MULTICAST_ALL, 0);
        // The ICRC makes the UDP checksum needless, and Linux rxe, as many a NIC, sends it as zero,
        // which IPv6 otherwise forbids.
        udp::set_option(fd, libc::SOL_UDP, libc::UDP_NO_CHECK6_RX, 1)?;
    } else {
        for option in [libc::IP_PKTINFO, libc::IP_RECVTOS, libc::IP_RECVTTL] {
            udp::set_option(fd, libc::IPPROTO_IP, option, 1)?;
        }
        // Groups that others on the host joined are no business of ours. Emulators of system calls
        // (qemu-user) lack it; packets for them find no QP then.
        let _ = udp::set_option(fd, libc::IPPROTO_IP, libc::IP_MULTICAST_ALL, 0);
    }
    // Kernels before 5.0 lack it; datagrams then arrive one by one.
    let _ = udp::set_option(fd, libc::SOL_UDP, libc::UDP_GRO, 1);
    let bytes = i32::try_from(bytes).unwrap_or(i32::MAX / 2);
    ports::set_buffer(fd, libc::SO_RCVBUFFORCE, libc::SO_RCVBUF, bytes)?;
    let [size] = udp::option(fd, libc::SOL_SOCKET, libc::SO_RCVBUF)?;
    Ok(size as usize)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Receiver;
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    use std::net::{Ipv6Addr, UdpSocket};

    #[test]
    fn datagrams_without_a_udp_checksum_arrive() {
        let socket = UdpSocket::bind((Ipv6Addr::LOCALHOST, 0)).unwrap();
        let to = socket.local_addr().unwrap();
        let ep = Endpoint::new(None, Some(socket.into()), to.port()).unwrap();
        let peer = UdpSocket::bind((Ipv6Addr::LOCALHOST, 0)).unwrap();
        udp::set_option(peer.as_fd(), libc::SOL_UDP, libc::UDP_NO_CHECK6_TX, 1).unwrap();
        peer.send_to(b"anything", to).unwrap();
        let mut waiting: Vec<_> =
            ep.receive_fds().map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
        poll(&mut waiting, Some(&Timespec { tv_sec: 10, tv_nsec: 0 })).unwrap();
        assert_eq!(Receiver::new().unwrap().receive(&ep, 1, &mut |_| panic!("accepted")), 1);
    }
}
