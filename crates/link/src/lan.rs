//! An Ethernet on the loopback interface: its ports are the devices of one user in one network
//! namespace that ask for it.
//!
//! A frame is one UDP datagram, without its frame check sequence, between addresses 127.78.(slot /
//! 256).(slot % 256). A port's own hardware address carries its slot ([`mac_of_slot`]), so a frame
//! to it goes there; whatever else a frame is for goes to a multicast group that every port has
//! joined, as a switch floods what it does not know. RoCEv2 packets are frames like others, with
//! the addresses of who sends them in their IP headers; a port takes those for its own addresses,
//! in their VLAN, out ([`crate::Receiver`]) and gives all else to its [`FrameSink`]. Nothing is
//! configured, and no privilege is needed.

use crate::addresses::gids::ip_of_gid;
use crate::socket::udp;
use descriptors::Kept;
use engine_thread::{read, write};
use rustix::net::{self, AddressFamily, SendFlags, SocketAddrV4, SocketFlags, SocketType, sockopt};
use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, OnceLock, RwLock, RwLockReadGuard};
use wire::ethernet::{Mac, is_multicast};
use wire::guard::Groups;

/// First bytes of the hardware addresses that carry a slot: locally administered.
const PREFIX: [u8; 4] = [0x02, 0x50, 0x44, 0x4d];
/// Slot in the hardware address under which the host itself is reached.
pub const HOST: u16 = 0;
/// Where frames for no port in particular go.
const FLOOD: Ipv4Addr = Ipv4Addr::new(239, 77, 78, 1);
/// Index of the loopback interface.
pub const LOOPBACK: u32 = 1;

/// The hardware address of the port with this slot.
pub fn mac_of_slot(slot: u16) -> Mac {
    let ([a, b, c, d], [high, low]) = (PREFIX, slot.to_be_bytes());
    [a, b, c, d, high, low]
}

/// The slot that a hardware address carries.
pub fn slot_of_mac(mac: Mac) -> Option<u16> {
    let [a, b, c, d, high, low] = mac;
    ([a, b, c, d] == PREFIX).then(|| u16::from_be_bytes([high, low]))
}

/// Bits of a VLAN tag's control information that name the VLAN (IEEE 802.1Q).
const VLAN_ID: u16 = 0xfff;

/// One of the addresses that a port has on the Ethernet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Station {
    /// Its IP address.
    pub gid: [u8; 16],
    /// Its hardware address, beside [`Lan::mac`].
    pub mac: Mac,
    /// The VLAN it is in, 1 to 4094; `None` for frames without a tag.
    pub vlan: Option<u16>,
}

impl Station {
    fn is_at(&self, ip: IpAddr, vlan: Option<u16>) -> bool {
        self.vlan == vlan && ip_of_gid(self.gid) == ip
    }
}

/// Takes the frames that are no packets of the port's own. Called while the device receives, from
/// whichever thread does: it must neither wait nor send.
pub trait FrameSink: Send + Sync {
    /// A frame without its frame check sequence, of any length and contents.
    fn frame(&self, frame: &[u8]);
}

/// A port of the Ethernet.
pub struct Lan {
    /// The socket on the port's own address.
    own: Kept,
    /// The socket on the group's address.
    flood: Kept,
    slot: u16,
    port: u16,
    /// The addresses that the port has, each with the index of its GID.
    stations: RwLock<Vec<(u32, Station)>>,
    sink: OnceLock<Arc<dyn FrameSink>>,
}

fn address_of_slot(slot: u16) -> Ipv4Addr {
    let [high, low] = slot.to_be_bytes();
    Ipv4Addr::new(127, 78, high, low)
}

impl Lan {
    /// The port of `slot`. Its frames travel on UDP `port`, which other programs of this user may
    /// have bound on all addresses, with `SO_REUSEPORT`.
    ///
    /// # Errors
    /// Those of making and binding sockets: `EADDRINUSE` if another port has the slot, or another
    /// user the UDP port.
    pub fn open(slot: u16, port: u16) -> io::Result<Lan> {
        let bind = |address| {
            let flags = SocketFlags::CLOEXEC;
            let fd = net::socket_with(AddressFamily::INET, SocketType::DGRAM, flags, None)?;
            sockopt::set_socket_reuseport(&fd, true)?;
            udp::keep_strangers_out(fd.as_fd(), port, Groups::Closed)?;
            net::bind(&fd, &SocketAddrV4::new(address, port))?;
            Ok::<_, io::Error>(Kept::new(fd))
        };
        let (own, flood) = (bind(address_of_slot(slot))?, bind(FLOOD)?);
        let any = Ipv4Addr::UNSPECIFIED;
        sockopt::set_ip_add_membership_with_ifindex(&flood, &FLOOD, &any, LOOPBACK)?;
        sockopt::set_ip_multicast_if_with_ifindex(&own, &any, &any, LOOPBACK)?;
        Ok(Lan { own, flood, slot, port, stations: RwLock::default(), sink: OnceLock::new() })
    }

    /// The port's own hardware address.
    pub fn mac(&self) -> Mac {
        mac_of_slot(self.slot)
    }

    fn stations(&self) -> RwLockReadGuard<'_, Vec<(u32, Station)>> {
        read(&self.stations)
    }

    /// Puts an address at the GID's `index`, or takes it away; answers what was there.
    pub fn set_station(&self, index: u32, station: Option<Station>) -> Option<Station> {
        let mut stations = write(&self.stations);
        let before = stations.iter().position(|(known, _)| *known == index);
        let before = before.map(|at| stations.swap_remove(at).1);
        stations.extend(station.map(|station| (index, station)));
        before
    }

    /// The address at the GID's `index`.
    pub fn station(&self, index: u32) -> Option<Station> {
        self.stations().iter().find(|(known, _)| *known == index).map(|(_, station)| *station)
    }

    /// The addresses that frames without a tag reach.
    pub fn addresses(&self) -> Vec<IpAddr> {
        let stations = self.stations();
        let plain = stations.iter().filter(|(_, station)| station.vlan.is_none());
        plain.map(|(_, station)| ip_of_gid(station.gid)).collect()
    }

    /// Whether the port has an address that frames without a tag reach.
    pub fn is_at(&self, ip: IpAddr) -> bool {
        self.stations().iter().any(|(_, station)| station.is_at(ip, None))
    }

    /// Whether packets to `ip` that came to `mac` with this tag are for this port, or for a group.
    /// A tag without a VLAN says nothing but a priority.
    pub(crate) fn takes(&self, mac: Mac, ip: IpAddr, tag: Option<u16>) -> bool {
        let vlan = tag.map(|tag| tag & VLAN_ID).filter(|id| *id != 0);
        let ip = ip.to_canonical();
        self.stations().iter().any(|(_, station)| {
            if is_multicast(mac) {
                return station.vlan == vlan;
            }
            station.is_at(ip, vlan) && (mac == station.mac || mac == self.mac())
        })
    }

    /// Who takes frames. The first call decides.
    pub fn set_sink(&self, sink: Arc<dyn FrameSink>) {
        let _ = self.sink.set(sink);
    }

    /// Hands a frame to who takes them, as if it had arrived.
    pub fn arrive(&self, frame: &[u8]) {
        if let Some(sink) = self.sink.get() {
            sink.frame(frame);
        }
    }

    /// Sends a frame. Who is not there, or does not keep up, misses it.
    ///
    /// # Errors
    /// Those of `sendto`: the frame is lost.
    pub fn send(&self, frame: &[u8]) -> io::Result<()> {
        let Some(dst) = frame.first_chunk() else { return Ok(()) };
        let (to, _) = self.way(*dst);
        let to = SocketAddrV4::new(to, self.port);
        net::sendto(&self.own, frame, SendFlags::DONTWAIT, &to)?;
        Ok(())
    }

    /// Address and interface to which frames for `dst` go.
    pub(crate) fn way(&self, dst: Mac) -> (Ipv4Addr, u32) {
        match slot_of_mac(dst) {
            Some(slot) => (address_of_slot(slot), 0),
            None => (FLOOD, LOOPBACK),
        }
    }

    /// Address that the port's datagrams come from.
    pub(crate) fn address(&self) -> Ipv4Addr {
        address_of_slot(self.slot)
    }

    /// Whether a datagram is the port's own, which comes back from the group.
    pub(crate) fn sent(&self, src: IpAddr) -> bool {
        src == self.address()
    }

    /// The socket on the port's own address.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.own.as_fd()
    }

    pub(crate) fn receive_fds(&self) -> [BorrowedFd<'_>; 2] {
        [self.own.as_fd(), self.flood.as_fd()]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Endpoint, Receiver};
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    use std::net::UdpSocket;
    use std::sync::Mutex;

    #[derive(Default)]
    struct Heard(Mutex<Vec<u8>>);

    impl FrameSink for Heard {
        fn frame(&self, frame: &[u8]) {
            self.0.lock().unwrap().extend(frame.last());
        }
    }

    fn frame(to: Mac, mark: u8) -> Vec<u8> {
        [&to[..], &[mark; 60]].concat()
    }

    #[test]
    fn only_ports_of_the_ethernet_send_frames() {
        let port = UdpSocket::bind("0.0.0.0:0").unwrap().local_addr().unwrap().port();
        let (near, far) = (Lan::open(78, port).unwrap(), Lan::open(79, port).unwrap());
        let endpoint = Endpoint::on_lan(far, None, port, 1 << 16).unwrap();
        let heard = Arc::new(Heard::default());
        endpoint.lan().unwrap().set_sink(heard.clone());

        let stranger = UdpSocket::bind("127.0.0.1:0").unwrap();
        let any = Ipv4Addr::UNSPECIFIED;
        sockopt::set_ip_multicast_if_with_ifindex(&stranger, &any, &any, LOOPBACK).unwrap();
        for to in [address_of_slot(79), FLOOD] {
            stranger.send_to(&frame(mac_of_slot(79), 1), (to, port)).unwrap();
        }
        near.send(&frame(mac_of_slot(79), 2)).unwrap();
        near.send(&frame([0xff; 6], 3)).unwrap();

        let mut receiver = Receiver::new().unwrap();
        while heard.0.lock().unwrap().len() < 2 {
            let fds = endpoint.receive_fds();
            let mut fds: Vec<_> =
                fds.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
            assert!(poll(&mut fds, Some(&Timespec { tv_sec: 10, tv_nsec: 0 })).unwrap() > 0);
            receiver.receive(&endpoint, 8, &mut |_| panic!("no packet of ours"));
        }
        assert_eq!(receiver.receive(&endpoint, 8, &mut |_| ()), 0);
        assert_eq!(*heard.0.lock().unwrap(), [2, 3]);
    }
}
