//! Whether the kernel knows the next hop, and how it is made to ask.

use cma::Neighbour;
use link::Knowledge;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6, UdpSocket};

/// Any port: nothing is sent there.
pub const DISCARD: u16 = 9;

/// An address of a host, with its scope where it has one.
pub fn socket_addr(ip: IpAddr, scope: u32, port: u16) -> SocketAddr {
    match ip {
        IpAddr::V4(ip) => (ip, port).into(),
        IpAddr::V6(ip) => SocketAddrV6::new(ip, port, 0, scope).into(),
    }
}

/// The address of the family that means any.
pub fn any_like(ip: IpAddr) -> IpAddr {
    match ip {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    }
}

/// Whether a neighbour's hardware address is known. If nobody asks for it, the kernel is made to.
pub fn is_known(neighbour: Neighbour) -> bool {
    let Neighbour { ip, ifindex } = neighbour;
    let knowledge = link::Neighbour { ip, ifindex }.knowledge();
    if let Ok(Knowledge::Nothing) = knowledge {
        // An empty datagram is what makes it ask, without any privilege.
        let socket = UdpSocket::bind(socket_addr(any_like(ip), 0, 0));
        let _ = socket.map(|socket| socket.send_to(&[], socket_addr(ip, ifindex, DISCARD)));
    }
    !matches!(knowledge, Ok(Knowledge::Nothing | Knowledge::Asked))
}
