//! A device on an Ethernet ([`crate::Network::Ethernet`]): its GIDs come from who drives it, and so do frames that are no
//! packets of its own.
//!
//! The host's own addresses are on this Ethernet too: who asks for one (ARP, RFC 826; neighbour discovery, RFC 4861) is told a
//! hardware address that stands for the host, unless a port has it as a GID. Packets of queue pairs to it leave through the
//! host's network, from the GID's address, if that is one of those that the port shares with the host; what the host gets there
//! the port then receives. Which these are the operator says, not who drives the port: with any other GID it is on the Ethernet,
//! and neither sends to the host nor receives what is sent to it. Other frames to the host go nowhere.

use crate::device::Device;
use crate::port::Port;
use link::{FrameSink, GidEntry, HOST, Interfaces, Lan, Station, ip_of_gid, mac_of_slot};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::BorrowedFd;
use std::sync::{Arc, OnceLock};
use transport::{Error, Result};
use wire::frame::{ETHERNET_LEN, ETHERTYPE_IPV6, Mac, VLAN_AT};
use wire::internet;

const ETHERTYPE_ARP: u16 = 0x0806;
/// Ethernet and IPv4, addresses of 6 and 4 bytes, a request (RFC 826).
const ARP_REQUEST: [u8; 8] = [0, 1, 8, 0, 6, 4, 0, 1];
const ARP_REPLY: u8 = 2;
const ARP_LEN: usize = 28;
const IPV6_LEN: usize = 40;
const ICMPV6: u8 = 58;
const SOLICITATION: u8 = 135;
const ADVERTISEMENT: u8 = 136;
/// An advertisement with the option that names a hardware address.
const ADVERTISEMENT_LEN: usize = 32;
/// "Solicited" and "override".
const ANSWERS: u8 = 0x60;
const TARGET_ADDRESS: u8 = 2;

/// The host as the Ethernet knows it.
#[derive(Default)]
pub(crate) struct Gateway {
    host: OnceLock<Option<Port>>,
    /// Addresses of the host that the port may have as well.
    shared: Vec<IpAddr>,
}

impl Gateway {
    /// The port may have these addresses of the host's.
    pub(crate) fn sharing(addresses: Vec<IpAddr>) -> Gateway {
        Gateway { host: OnceLock::new(), shared: addresses }
    }

    /// Whether the port may have an address that is the host's. What is sent to loopback addresses is of the host's own programs.
    pub(crate) fn shares(&self, ip: IpAddr) -> bool {
        !ip.is_loopback() && self.shared.contains(&ip)
    }

    /// Readable when the host's interfaces changed; `None` before somebody asked for an address of the host's.
    pub(crate) fn watch_fd(&self) -> Option<BorrowedFd<'_>> {
        self.host.get()?.as_ref()?.watch_fd()
    }

    /// Index of the interface that has an address, if the host has it now.
    fn interface_of(&self, ip: IpAddr) -> Option<u32> {
        let port = self.host.get_or_init(|| Port::open(Interfaces::default()).ok());
        port.as_ref()?.now(|_| ()).gids.find(ip).map(|(_, entry)| entry.ifindex)
    }
}

/// Name under which a port tells the others of its address.
fn address_id(ip: IpAddr) -> String {
    format!("lan-{ip}")
}

impl Device {
    /// Puts a GID with its hardware address and VLAN at `index` of the table, or empties that place.
    ///
    /// # Errors
    /// [`Error::Invalid`] on another network, or for an index that does not exist.
    pub fn set_gid(&self, index: u32, station: Option<Station>) -> Result<()> {
        let lan = self.endpoint().lan().ok_or(Error::Invalid("the port is on no Ethernet"))?;
        self.gid(1, index)?;
        let entry = station.map(|station| GidEntry {
            gid: station.gid,
            ip: ip_of_gid(station.gid),
            ifindex: 0,
            ifname: String::new(),
            mtu: 0,
            up: true,
            loopback: false,
        });
        let before = lan.set_station(index, station);
        self.port.known().gids.set(index as usize, entry);
        if let Some(before) = before.map(|before| ip_of_gid(before.gid))
            && !lan.is_at(before)
        {
            self.endpoint().leave_address(before);
            self.registry.withdraw(&address_id(before));
        }
        // In a VLAN it is another network's.
        if let Some(station) = station.filter(|station| station.vlan.is_none()) {
            self.take_address(lan, ip_of_gid(station.gid));
        }
        self.thread.kick();
        Ok(())
    }

    /// Tells the other ports that an address is ours, and receives what the host gets there, where it is the host's as well. One of
    /// the host's that the port does not share stays the host's alone.
    fn take_address(&self, lan: &Lan, ip: IpAddr) {
        let interface = self.gateway.interface_of(ip);
        if ip.is_loopback() || interface.is_some() && !self.gateway.shares(ip) {
            self.registry.withdraw(&address_id(ip));
            return self.endpoint().leave_address(ip);
        }
        // Others ask for it only to leave it to us.
        let _ = self.registry.publish(&address_id(ip), lan.fd());
        let Some(ifindex) = interface else { return self.endpoint().leave_address(ip) };
        // Another user's program may have it; peers on the host then do not reach us there.
        let _ = self.endpoint().receive_at(ip, ifindex);
        self.groups.each(|group| self.take_group(group));
    }

    /// The host's addresses may have changed: one of ours may have become its as well.
    pub(crate) fn follow_host(&self) {
        let Some(lan) = self.endpoint().lan() else { return };
        // For any address, so that the notice is read.
        let _ = self.gateway.interface_of(Ipv4Addr::LOCALHOST.into());
        lan.addresses().into_iter().for_each(|ip| self.take_address(lan, ip));
    }

    /// Receives what is sent to a group where the host has an address of ours.
    pub(crate) fn take_group(&self, group: IpAddr) {
        for own in self.endpoint().own_addresses().iter() {
            if !own.ip().is_multicast() && own.ip().is_ipv4() == group.is_ipv4() {
                // Without it the group's members on the host are not heard.
                let _ = self.endpoint().receive_at(group, own.ifindex());
            }
        }
        self.thread.kick();
    }

    /// Whether a port of the user's Ethernets has an address as its own: what is sent there comes to it, even where the host has
    /// the address as well.
    pub fn is_of_ethernet(&self, ip: IpAddr) -> bool {
        self.registry.lookup(&address_id(ip)).is_ok()
    }

    /// Hardware address of the port; `None` on another network.
    pub fn mac(&self) -> Option<Mac> {
        self.endpoint().lan().map(link::Lan::mac)
    }

    /// Who takes the frames that are no packets of queue pairs. The first call decides.
    pub fn set_frame_sink(&self, sink: Arc<dyn FrameSink>) {
        if let Some(lan) = self.endpoint().lan() {
            lan.set_sink(sink);
        }
    }

    /// Sends a frame without its frame check sequence, 60 to 65507 bytes. It is as unreliable as any frame.
    ///
    /// # Errors
    /// [`Error::Invalid`] on another network, [`Error::System`] when the kernel does not take it.
    pub fn send_frame(&self, frame: &[u8]) -> Result<()> {
        let lan = self.endpoint().lan().ok_or(Error::Invalid("the port is on no Ethernet"))?;
        if let Some((asked, answer)) = answer(frame)
            && self.stands_for_host(asked)
        {
            lan.arrive(&answer);
            return Ok(());
        }
        lan.send(frame).map_err(|error| {
            Error::System(error.raw_os_error().unwrap_or(0), "the frame cannot be sent")
        })
    }

    /// Whether an address is the host's and no port's.
    fn stands_for_host(&self, ip: IpAddr) -> bool {
        self.gateway.interface_of(ip).is_some()
            && self.port.known().gids.find(ip).is_none()
            && !self.is_of_ethernet(ip)
    }
}

/// The address that a frame asks for, and the answer that it is the host's; `None` for a frame that asks for none.
fn answer(frame: &[u8]) -> Option<(IpAddr, Vec<u8>)> {
    let asker: Mac = *frame.get(6..)?.first_chunk()?;
    let body = frame.get(ETHERNET_LEN..)?;
    match u16::from_be_bytes(*frame.get(VLAN_AT..)?.first_chunk()?) {
        ETHERTYPE_ARP => arp_reply(asker, body),
        ETHERTYPE_IPV6 => advertisement(asker, body),
        _ => None,
    }
}

fn header(to: Mac, kind: u16) -> Vec<u8> {
    [&to[..], &mac_of_slot(HOST), &kind.to_be_bytes()].concat()
}

fn arp_reply(asker: Mac, request: &[u8]) -> Option<(IpAddr, Vec<u8>)> {
    let request = request.get(..ARP_LEN)?;
    let wanted: [u8; 4] = *request.get(24..)?.first_chunk()?;
    if !request.starts_with(&ARP_REQUEST) || request[14..18] == wanted {
        // Who asks for its own address wants to hear of nobody else.
        return None;
    }
    let mut frame = header(asker, ETHERTYPE_ARP);
    frame.extend(&ARP_REQUEST[..7]);
    frame.push(ARP_REPLY);
    frame.extend(mac_of_slot(HOST));
    frame.extend(wanted);
    frame.extend(&request[8..18]);
    frame.resize(60, 0);
    Some((Ipv4Addr::from(wanted).into(), frame))
}

fn advertisement(asker: Mac, packet: &[u8]) -> Option<(IpAddr, Vec<u8>)> {
    let (ip, message) = packet.split_at_checked(IPV6_LEN)?;
    let source: [u8; 16] = *ip.get(8..)?.first_chunk()?;
    let wanted: [u8; 16] = *message.get(8..)?.first_chunk()?;
    // From no address somebody asks whether the one that it wants is free.
    if ip[6] != ICMPV6 || message[0] != SOLICITATION || source == [0; 16] {
        return None;
    }
    let mut icmp = vec![ADVERTISEMENT, 0, 0, 0, ANSWERS, 0, 0, 0];
    icmp.extend(wanted);
    icmp.extend([TARGET_ADDRESS, 1]);
    icmp.extend(mac_of_slot(HOST));
    let pseudo = [&wanted[..], &source, &[0, 0, 0, ADVERTISEMENT_LEN as u8, 0, 0, 0, ICMPV6]];
    let sum = internet::checksum(&[&pseudo.concat()[..], &icmp].concat());
    icmp[2..4].copy_from_slice(&sum.to_be_bytes());
    let mut frame = header(asker, ETHERTYPE_IPV6);
    frame.extend([0x60, 0, 0, 0, 0, ADVERTISEMENT_LEN as u8, ICMPV6, 255]);
    frame.extend(wanted);
    frame.extend(source);
    frame.extend(icmp);
    Some((Ipv6Addr::from(wanted).into(), frame))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_shares_the_addresses_that_are_named_and_never_loopback() {
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        assert!(!Gateway::default().shares(ip("198.18.7.1")));
        let gateway = Gateway::sharing(["198.18.7.1", "127.0.0.1", "::1"].map(ip).to_vec());
        assert!(gateway.shares(ip("198.18.7.1")));
        for other in ["198.18.7.2", "127.0.0.1", "::1", "0.0.0.0"] {
            assert!(!gateway.shares(ip(other)), "{other}");
        }
    }

    #[test]
    fn who_asks_for_an_ipv4_address_is_told_the_host() {
        let asker = [2, 0, 0, 0, 0, 9];
        let mut frame = [&[0xff; 6][..], &asker, &ETHERTYPE_ARP.to_be_bytes()].concat();
        frame.extend(ARP_REQUEST);
        frame.extend(asker);
        frame.extend([10, 0, 0, 9]);
        frame.extend([0; 6]);
        frame.extend([10, 0, 0, 1]);
        let (asked, reply) = answer(&frame).unwrap();
        assert_eq!(asked, Ipv4Addr::new(10, 0, 0, 1));
        assert_eq!(reply[..6], asker);
        assert_eq!(reply[20..22], [0, ARP_REPLY]);
        assert_eq!(reply[22..28], mac_of_slot(HOST));
        assert_eq!(reply[28..32], [10, 0, 0, 1]);
        assert_eq!(reply[38..42], [10, 0, 0, 9]);
        frame[38..42].copy_from_slice(&[10, 0, 0, 9]);
        assert_eq!(answer(&frame), None, "a probe for an address of its own");
        for len in 0..42 {
            assert_eq!(answer(&frame[..len]), None, "{len} bytes");
        }
    }

    #[test]
    fn who_solicits_an_ipv6_address_is_told_the_host() {
        let (source, wanted) = ([0xfe; 16], [0xfd; 16]);
        let mut frame = [&[0x33; 6][..], &[2; 6], &ETHERTYPE_IPV6.to_be_bytes()].concat();
        frame.extend([0x60, 0, 0, 0, 0, 24, ICMPV6, 255]);
        frame.extend(source);
        frame.extend([0xff; 16]);
        frame.extend([SOLICITATION, 0, 0, 0, 0, 0, 0, 0]);
        frame.extend(wanted);
        let (asked, reply) = answer(&frame).unwrap();
        assert_eq!(asked, Ipv6Addr::from(wanted));
        let (ip, icmp) = reply[ETHERNET_LEN..].split_at(IPV6_LEN);
        assert_eq!((&ip[8..24], &ip[24..40]), (&wanted[..], &source[..]));
        let pseudo = [&ip[8..40], &[0, 0, 0, 32, 0, 0, 0, ICMPV6]].concat();
        assert_eq!(internet::checksum(&[&pseudo, icmp].concat()), 0);
        for len in 0..frame.len() {
            assert_eq!(answer(&frame[..len]), None, "{len} bytes");
        }
    }
}
