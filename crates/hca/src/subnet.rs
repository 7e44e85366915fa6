//! An InfiniBand subnet on the loopback interface: its ports have LIDs, and packets travel as RoCEv2 all the same.
//!
//! The devices of one user in one network namespace that ask for it are the ports of one subnet. LID L is the address
//! 127.77.(L / 256).(L % 256), and a port's LID is the slot that the registry hands out; so no two are the same and nothing is
//! configured. A port binds its own address, so packets for QP 0 and 1, whose numbers name no slot, find it too.

use rustix::fd::OwnedFd;
use rustix::net::{self, AddressFamily, SocketAddrV4, SocketFlags, SocketType, sockopt};
use std::io;
use std::net::{IpAddr, Ipv4Addr};

/// The address of the port with this LID.
pub fn address_of_lid(lid: u16) -> Ipv4Addr {
    let [high, low] = lid.to_be_bytes();
    Ipv4Addr::new(127, 77, high, low)
}

/// The LID of the port with this address, if it is one of the subnet.
pub fn lid_of_address(ip: IpAddr) -> Option<u16> {
    match ip.to_canonical() {
        IpAddr::V4(ip) => match ip.octets() {
            [127, 77, high, low] => Some(u16::from_be_bytes([high, low])),
            _ => None,
        },
        IpAddr::V6(_) => None,
    }
}

/// A UDP socket on the address of `lid`. It shares `port` with the sockets on all addresses, which it takes packets before.
pub(crate) fn bind(lid: u16, port: u16) -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC;
    let socket = net::socket_with(AddressFamily::INET, SocketType::DGRAM, flags, None)?;
    sockopt::set_socket_reuseport(&socket, true)?;
    net::bind(&socket, &SocketAddrV4::new(address_of_lid(lid), port))?;
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lids_are_addresses() {
        let address = address_of_lid(0x1234);
        assert_eq!(address, Ipv4Addr::new(127, 77, 0x12, 0x34));
        assert_eq!(lid_of_address(address.into()), Some(0x1234));
        assert_eq!(lid_of_address(address.to_ipv6_mapped().into()), Some(0x1234));
        assert_eq!(lid_of_address(Ipv4Addr::LOCALHOST.into()), None);
    }
}
