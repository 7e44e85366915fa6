//! An InfiniBand subnet on the loopback interface: its ports have LIDs, and packets travel as
//! RoCEv2 all the same.
//!
//! The devices of one user in one network namespace that ask for it are the ports of one subnet.
//! LID L is the address 127.77.(L / 256).(L % 256), and a port's LID is the slot that the registry
//! hands out; so no two are the same and nothing is configured. A port binds its own address, so
//! packets for QP 0 and 1, whose numbers name no slot, find it too.
//!
//! The subnet's manager has a LID of its own and is in each port's device: what a port sends to it
//! goes to 127.79 and the port's own slot, where that device receives as well. So no process
//! depends on another. A multicast LID is a multicast address on the loopback interface; see
//! `membership.rs`.

use rustix::fd::{AsFd, OwnedFd};
use rustix::net::{self, AddressFamily, SocketAddrV4, SocketFlags, SocketType, sockopt};
use std::io;
use std::net::{IpAddr, Ipv4Addr};
use transport::values::Gid;
use wire::guard::Groups;

pub use wire::PERMISSIVE_LID;

/// Prefix of the subnet (IBA 4.1.1).
pub const PREFIX: u64 = 0xfe80_0000_0000_0000;
/// The manager's LID: the first that is no slot.
pub const MANAGER_LID: u16 = 1024;
/// LIDs of multicast groups begin here (IBA 4.1.3).
pub const FIRST_MULTICAST_LID: u16 = 0xc000;

/// The GID of the port with this GUID.
pub fn gid_of_guid(guid: u64) -> Gid {
    (u128::from(PREFIX) << 64 | u128::from(guid)).to_be_bytes()
}

/// Where the port with LID `own` finds the manager.
pub(crate) fn manager_of(own: u16) -> Ipv4Addr {
    let [high, low] = own.to_be_bytes();
    Ipv4Addr::new(127, 79, high, low)
}

/// Where the port with LID `own` sends what is for `lid`. Directed routes begin at the manager,
/// which is the switch too.
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

/// A UDP socket on the address of `lid`. It shares `port` with the sockets on all addresses, which
/// it takes packets before.
pub(crate) fn bind(lid: u16, port: u16) -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC;
    let socket = net::socket_with(AddressFamily::INET, SocketType::DGRAM, flags, None)?;
    sockopt::set_socket_reuseport(&socket, true)?;
    link::keep_strangers_out(socket.as_fd(), port, Groups::Closed)?;
    net::bind(&socket, &SocketAddrV4::new(address_of_lid(lid), port))?;
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use super::*;
    use link::{Batch, Endpoint, LOOPBACK, Path, Receiver};
    use mm::guard::fold::Fold;
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    use std::convert::Infallible;
    use std::net::UdpSocket;
    use wire::{Bth, Headers, Opcode, Operation, Position, Psn, Service};

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

    const MULTICAST_LID: u16 = 0xc123;

    fn port_of_subnet(lid: u16, port: u16) -> Endpoint {
        Endpoint::with_receive_buffer(Some(bind(lid, port).unwrap()), None, port, 1 << 16).unwrap()
    }

    fn send(batch: &mut Batch, from: &Endpoint, src: Ipv4Addr, dst: Ipv4Addr, mark: u8) {
        let scope_id = if dst.is_multicast() { LOOPBACK } else { 0 };
        let (src, dst, hop_limit) = (src.into(), dst.into(), 64);
        let path =
            Path { src, dst, scope_id, traffic_class: 0, hop_limit, flow_label: 0, ethernet: None };
        let flow = from.flow(path, 0xff_ffff).unwrap();
        let (service, operation, position) = (Service::Uc, Operation::Send, Position::Middle);
        let opcode = Opcode { service, operation, position, imm: false, invalidate: false };
        let headers = Headers::new(Bth {
            opcode,
            solicited: false,
            migrated: false,
            pad: 0,
            pkey: wire::DEFAULT_PKEY,
            fecn: false,
            becn: false,
            dest_qp: 0xff_ffff,
            ack_req: false,
            psn: Psn::new(0),
        });
        let mut fill = |out: &mut [u8], _: &mut Fold| {
            out.fill(mark);
            Ok::<_, Infallible>(())
        };
        let Ok(()) = batch.packet(from, &flow, &headers, 256, &mut fill);
    }

    #[test]
    fn only_ports_of_the_subnet_send_to_one() {
        let port = UdpSocket::bind("0.0.0.0:0").unwrap().local_addr().unwrap().port();
        let (near, far) = (port_of_subnet(0x101, port), port_of_subnet(0x102, port));
        let ends = [address_of_lid(0x102), manager_of(0x102), group_of_lid(MULTICAST_LID)];
        for end in &ends[1..] {
            far.receive_at((*end).into(), LOOPBACK).unwrap();
        }

        let stranger = UdpSocket::bind((address_of_lid(0x103), 0)).unwrap();
        let any = Ipv4Addr::UNSPECIFIED;
        sockopt::set_ip_multicast_if_with_ifindex(&stranger, &any, &any, LOOPBACK).unwrap();
        let mut batch = Batch::new().unwrap();
        for (end, mark) in ends.into_iter().zip(1..) {
            stranger.send_to(&[0x64; 64], (end, port)).unwrap();
            // More than one, so that they go as a train where the kernel takes trains.
            for _ in 0..2 {
                send(&mut batch, &near, address_of_lid(0x101), end, mark);
            }
        }
        batch.flush(&near);

        let (mut receiver, mut heard) = (Receiver::new().unwrap(), Vec::new());
        while heard.len() < 2 * ends.len() {
            let own = far.own_addresses();
            let fds = far.receive_fds().chain(own.iter().map(|own| own.fd()));
            let mut fds: Vec<_> =
                fds.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
            assert!(poll(&mut fds, Some(&Timespec { tv_sec: 10, tv_nsec: 0 })).unwrap() > 0);
            receiver.receive(&far, 8, &mut |datagram| {
                assert_eq!(datagram.src, IpAddr::from(address_of_lid(0x101)));
                heard.push(datagram.payload[0]);
            });
        }
        heard.sort_unstable();
        assert_eq!(heard, [1, 1, 2, 2, 3, 3]);
        assert_eq!(receiver.receive(&far, 8, &mut |_| panic!("one more")), 0);
        let stats = far.stats();
        let bad = [&stats.rx_malformed, &stats.rx_icrc_errors]
            .map(|counter| counter.load(std::sync::atomic::Ordering::Relaxed));
        assert_eq!(bad, [0, 0], "a stranger was heard");
    }
}
