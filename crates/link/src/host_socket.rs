//! Sockets on single addresses of this host: how an endpoint on an [Ethernet](crate::Lan) takes
//! what the host gets at an address that both have, or what is sent to a group there.
//!
//! Such a socket takes packets before those on all addresses do, whatever queue pair they are for:
//! messages of the connection manager too. What the port itself sends to a group goes on to the
//! same group of the host ([`HostSocket::relay`]), from the UDP port at which RoCE is received,
//! which no queue pair sends from: by it the other ports know what they got on the Ethernet
//! already.

use crate::crc;
use crate::endpoint::set_up;
use crate::flow::{self, Path};
use crate::socket::name::Name;
use crate::socket::udp::{self, Outgoing};
use crate::trace::Traced;
use descriptors::Kept;
use rustix::net::{self, AddressFamily, SocketFlags, SocketType, sockopt};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use wire::ICRC_LEN;
use wire::guard::Groups;
use wire::icrc::{Addresses, FlowCrc};

/// Groups of the host that one endpoint is in at most: a socket each, and who drives the port asks
/// for them.
const MAX_GROUPS: usize = 32;

/// A socket on an address, or for a group on one of the host's interfaces.
pub struct HostSocket {
    ip: IpAddr,
    ifindex: u32,
    fd: Kept,
}

/// Those of an endpoint. Who waits on them keeps them alive.
pub type OwnAddresses = Arc<Vec<Arc<HostSocket>>>;

/// Whether one more socket may be opened for `ip`.
///
/// # Errors
/// `ENOBUFS` at [`MAX_GROUPS`], as past `igmp_max_memberships`.
pub(crate) fn check_room(own: &OwnAddresses, ip: IpAddr) -> io::Result<()> {
    let groups = own.iter().filter(|known| known.ip.is_multicast()).count();
    if ip.is_multicast() && groups >= MAX_GROUPS {
        return Err(rustix::io::Errno::NOBUFS.into());
    }
    Ok(())
}

fn is_of_link(ip: Ipv6Addr) -> bool {
    ip.is_unicast_link_local() || (ip.is_multicast() && ip.segments()[0] & 0xf <= 2)
}

/// An address with its interface, where it needs one.
fn end(ip: IpAddr, ifindex: u32, port: u16) -> SocketAddr {
    match ip {
        IpAddr::V4(ip) => (ip, port).into(),
        IpAddr::V6(ip) => {
            SocketAddrV6::new(ip, port, 0, if is_of_link(ip) { ifindex } else { 0 }).into()
        }
    }
}

impl HostSocket {
    /// Binds to `ip` on the interface `ifindex`, with `bytes` of receive buffer. A group is joined
    /// there; `groups` says who may send to it.
    pub(crate) fn open(
        ip: IpAddr,
        ifindex: u32,
        port: u16,
        groups: Groups,
        bytes: usize,
    ) -> io::Result<HostSocket> {
        let v6 = ip.is_ipv6();
        let family = if v6 { AddressFamily::INET6 } else { AddressFamily::INET };
        // Relaying must not wait for room.
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let fd = net::socket_with(family, SocketType::DGRAM, flags, None)?;
        sockopt::set_socket_reuseport(&fd, true)?;
        udp::keep_strangers_out(fd.as_fd(), port, groups)?;
        net::bind(&fd, &end(ip, ifindex, port))?;
        set_up(fd.as_fd(), v6, bytes)?;
        let any = Ipv4Addr::UNSPECIFIED;
        match ip {
            IpAddr::V4(ip) => {
                let (level, option) = (libc::IPPROTO_IP, libc::IP_MTU_DISCOVER);
                udp::set_option(fd.as_fd(), level, option, libc::IP_PMTUDISC_DO)?;
                sockopt::set_ip_multicast_if_with_ifindex(&fd, &any, &any, ifindex)?;
                if ip.is_multicast() {
                    sockopt::set_ip_add_membership_with_ifindex(&fd, &ip, &any, ifindex)?;
                }
            }
            IpAddr::V6(ip) => {
                sockopt::set_ipv6_multicast_if(&fd, ifindex)?;
                if ip.is_multicast() {
                    sockopt::set_ipv6_add_membership(&fd, &ip, ifindex)?;
                }
            }
        }
        Ok(HostSocket { ip, ifindex, fd: Kept::new(fd) })
    }

    /// The address.
    pub fn ip(&self) -> IpAddr {
        self.ip
    }

    /// Whether it takes what comes for `ip` by the interface `ifindex`.
    pub(crate) fn serves(&self, ip: IpAddr, ifindex: u32) -> bool {
        self.ip == ip && (!ip.is_multicast() || self.ifindex == ifindex)
    }

    /// Index of the interface that has the address.
    pub fn ifindex(&self) -> u32 {
        self.ifindex
    }

    /// The socket.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Sends what the port sent to a group on to that group of the host, with the UDP port as its
    /// source and an ICRC to match. Its traffic class and hop limit are kept.
    ///
    /// # Errors
    /// Those of `sendmsg`: the packet is lost there.
    pub(crate) fn relay(&self, packet: &Traced<'_>, port: u16) -> io::Result<()> {
        let parts = packet.datagram.split_last_chunk::<ICRC_LEN>();
        let (Some((transport, _)), Some(addresses)) =
            (parts, Addresses::new(packet.src, packet.dst))
        else {
            return Ok(());
        };
        let headers = FlowCrc::new(addresses, port).at_length(transport.len());
        // The kernel identifies a datagram that it must not fragment as 0.
        let icrc = crc::icrc(&headers, 0, transport);
        let bytes = [transport, &icrc.to_le_bytes()].concat();
        let path = Path {
            src: self.ip,
            dst: packet.dst,
            scope_id: self.ifindex,
            traffic_class: packet.traffic_class,
            hop_limit: packet.hop_limit,
            flow_label: 0,
            ethernet: None,
        };
        let to = Name::new(packet.dst, port, self.ifindex);
        let message = Outgoing { to: &to, control: &flow::control(&path), bytes: &bytes };
        udp::send(self.fd.as_fd(), std::iter::once(message))?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::socket::udp::Slots;
    use crate::{Endpoint, Lan};
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    use std::net::UdpSocket;
    use wire::icrc::Checker;

    const LOOPBACK: u32 = 1;

    fn free_port() -> u16 {
        UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap().port()
    }

    #[test]
    fn what_is_relayed_comes_to_the_group_from_the_roce_port() {
        let port = free_port();
        let open = |ip| HostSocket::open(ip, LOOPBACK, port, Groups::Closed, 1 << 16).unwrap();
        let group = Ipv4Addr::new(239, 77, 9, 9).into();
        let (own, member) = (open(Ipv4Addr::LOCALHOST.into()), open(group));
        let datagram = [&[0x64; 24][..], &[0; ICRC_LEN]].concat();
        let packet = Traced {
            src: own.ip(),
            dst: group,
            udp_src: 0xc123,
            traffic_class: 0x6a,
            hop_limit: 3,
            identification: 7,
            datagram: &datagram,
        };
        own.relay(&packet, port).unwrap();
        let mut waiting = [PollFd::from_borrowed_fd(member.fd(), PollFlags::IN)];
        assert!(poll(&mut waiting, Some(&Timespec { tv_sec: 10, tv_nsec: 0 })).unwrap() > 0);
        let mut slots = Slots::new().unwrap();
        assert_eq!(slots.receive(member.fd(), 1).unwrap(), 1);
        let message = slots.get(0);
        assert_eq!(message.from.decode(), Some((own.ip(), port)));
        let (transport, icrc) = message.bytes.split_last_chunk().unwrap();
        assert_eq!(transport, &datagram[..24]);
        let addresses = Addresses::new(packet.src, group).unwrap();
        let found = Checker::new().check(addresses, port, 0, transport, u32::from_le_bytes(*icrc));
        assert_eq!(found, Some(0));
        let told = |of: i32| {
            let mut all = message.control.iter();
            all.find(|(level, kind, _)| (*level, *kind) == (libc::IPPROTO_IP, of)).map(|m| m.2[0])
        };
        assert_eq!((told(libc::IP_TOS), told(libc::IP_TTL)), (Some(0x6a), Some(3)));
    }

    #[test]
    fn groups_of_the_host_are_few() {
        let port = free_port();
        let lan = Lan::open(77, port).unwrap();
        let endpoint = Endpoint::on_lan(lan, None, port, 1 << 16).unwrap();
        let group = |last: usize| IpAddr::from(Ipv4Addr::new(239, 77, 8, last as u8));
        for last in 0..MAX_GROUPS {
            endpoint.receive_at(group(last), LOOPBACK).unwrap();
            endpoint.receive_at(group(last), LOOPBACK).unwrap();
        }
        let refused = endpoint.receive_at(group(MAX_GROUPS), LOOPBACK).unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(libc::ENOBUFS));
        endpoint.leave_address(group(0));
        endpoint.receive_at(group(MAX_GROUPS), LOOPBACK).unwrap();
    }
}
