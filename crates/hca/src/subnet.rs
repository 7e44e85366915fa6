//! An InfiniBand subnet on the loopback interface: its ports have LIDs, and packets travel as RoCEv2 all the same.
//!
//! The devices of one user in one network namespace that ask for it are the ports of one subnet. LID L is the address
//! 127.77.(L / 256).(L % 256), and a port's LID is the slot that the registry hands out; so no two are the same and nothing is
//! configured. A port binds its own address, so packets for QP 0 and 1, whose numbers name no slot, find it too.
//!
//! The subnet's manager has a LID of its own and is in each port's device: what a port sends to it goes to 127.79 and the port's
//! own slot, where that device receives as well. So no process depends on another. A multicast LID is a multicast address on the
//! loopback interface; see [`crate::membership`].

use rustix::fd::{AsFd, OwnedFd};
use rustix::net::{self, AddressFamily, SocketAddrV4, SocketFlags, SocketType, sockopt};
use std::io;
use std::net::{IpAddr, Ipv4Addr};
use transport::values::Gid;
use wire::guard::Groups;

/// Prefix of the subnet (IBA 4.1.1).
pub const PREFIX: u64 = 0xfe80_0000_0000_0000;
/// The manager's LID: the first that is no slot.
pub const MANAGER_LID: u16 = 1024;
/// LIDs of multicast groups begin here (IBA 4.1.3).
pub const FIRST_MULTICAST_LID: u16 = 0xc000;
/// The LID of whoever is at the end of a directed route, or of nobody (IBA 4.1.3).
pub const PERMISSIVE_LID: u16 = 0xffff;

/// The GID of the port with this GUID.
pub fn gid_of_guid(guid: u64) -> Gid {
    (u128::from(PREFIX) << 64 | u128::from(guid)).to_be_bytes()
}

/// Where the port with LID `own` finds the manager.
pub(crate) fn manager_of(own: u16) -> Ipv4Addr {
    let [high, low] = own.to_be_bytes();
    Ipv4Addr::new(127, 79, high, low)
}

/// Where the port with LID `own` sends what is for `lid`. Directed routes begin at the manager, which is the switch too.
pub fn destination(own: u16, lid: u16) -> Ipv4Addr {
    match lid {
        MANAGER_LID | PERMISSIVE_LID => manager_of(own),
        FIRST_MULTICAST_LID.. => group_of_lid(lid),
        _ => address_of_lid(lid),
    }
}

/// The address of a multicast LID.
pub(crate) fn group_of_lid(lid: u16) -> Ipv4Addr {
    let [high, low] = lid.to_be_bytes();
    Ipv4Addr::new(239, 77, high, low)
}

/// The multicast LID of an address, if it is one's.
pub(crate) fn lid_of_group(ip: IpAddr) -> Option<u16> {
    match ip {
        IpAddr::V4(ip) => match ip.octets() {
            [239, 77, high, low] => Some(u16::from_be_bytes([high, low])),
            _ => None,
        },
        IpAddr::V6(_) => None,
    }
}

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
    link::keep_strangers_out(socket.as_fd(), port, Groups::OpenV4)?;
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

    #[test]
    fn the_manager_and_groups_are_elsewhere_than_ports() {
        let own = 0x0102;
        assert_eq!(destination(own, 0x0203), Ipv4Addr::new(127, 77, 2, 3));
        assert_eq!(destination(own, MANAGER_LID), Ipv4Addr::new(127, 79, 1, 2));
        assert_eq!(destination(own, PERMISSIVE_LID), Ipv4Addr::new(127, 79, 1, 2));
        let group = destination(own, 0xc001);
        assert!(group.is_multicast());
        assert_eq!(lid_of_group(group.into()), Some(0xc001));
    }
}
