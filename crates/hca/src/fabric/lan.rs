//! A device on an Ethernet ([`crate::Network::Ethernet`]): its GIDs come from who drives it, and so
//! do frames that are no packets of its own.
//!
//! The host's own addresses are on this Ethernet too: who asks for one (ARP, RFC 826; neighbour
//! discovery, RFC 4861) gets a hardware address that stands for the host, unless a port has it
//! as a GID. Packets of queue pairs to it leave through the host's network, from the GID's address,
//! if that is one of those that the port shares with the host; what the host gets there the port
//! then receives. Which these are the operator says, not who drives the port: with any other GID it
//! is on the Ethernet, and neither sends to the host nor receives what is sent to it. Other frames
//! to the host go nowhere.

use crate::adapter::Adapter;
use crate::adapter::network::Ethernet;
use crate::fabric::multicast::{Groups, take_group};
use link::{FrameSink, GidEntry, HOST, Lan, Station, ip_of_gid, mac_of_slot};
use registry::Client;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use transport::{Error, Result};
use wire::arp::{self, Operation};
use wire::ethernet::{self, ETHERTYPE_ARP, ETHERTYPE_IPV6, Mac};
use wire::ip::PROTOCOL_ICMPV6;
use wire::ipv6;
use wire::ndp::{ADVERTISEMENT_LEN, Advertisement, Solicitation};

/// Hop limit of what comes from the same link (RFC 4861, section 7.1).
const SAME_LINK: u8 = 255;

/// Name under which a port tells the others of its address.
fn address_id(ip: IpAddr) -> String {
    format!("lan-{ip}")
}

/// Whether a port of the user's Ethernets has an address as its own.
pub(crate) fn is_of_ethernet(registry: &Client, ip: IpAddr) -> bool {
    registry.lookup(&address_id(ip)).is_ok()
}

/// The port of a device on an Ethernet: see [`Device::ethernet`](crate::Device::ethernet).
pub struct EthernetPort<'a> {
    pub(crate) adapter: &'a Adapter,
    pub(crate) on: &'a Ethernet,
    pub(crate) groups: &'a Groups,
}

impl EthernetPort<'_> {
    /// Puts a GID with its hardware address and VLAN at `index` of the table, or empties that
    /// place.
    ///
    /// # Errors
    /// [`Error::Invalid`] for an index that does not exist.
    pub fn set_gid(&self, index: u32, station: Option<Station>) -> Result<()> {
        let lan = &*self.on.lan;
        self.adapter.gid(1, index)?;
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
        self.adapter.port.known().gids.set(index as usize, entry);
        if let Some(before) = before.map(|before| ip_of_gid(before.gid))
            && !lan.is_at(before)
        {
            self.adapter.endpoint().leave_address(before);
            self.adapter.registry.withdraw(&address_id(before));
        }
        // In a VLAN it is another network's.
        if let Some(station) = station.filter(|station| station.vlan.is_none()) {
            self.take_address(lan, ip_of_gid(station.gid));
        }
        self.adapter.thread.kick();
        Ok(())
    }

    /// Tells the other ports that an address is ours, and receives what the host gets there, where
    /// it is the host's as well. One of the host's that the port does not share stays the host's
    /// alone.
    fn take_address(&self, lan: &Lan, ip: IpAddr) {
        let interface = self.on.gateway.interface_of(ip);
        if ip.is_loopback() || interface.is_some() && !self.on.gateway.shares(ip) {
            self.adapter.registry.withdraw(&address_id(ip));
            return self.adapter.endpoint().leave_address(ip);
        }
        // Others ask for it only to leave it to us.
        let _ = self.adapter.registry.publish(&address_id(ip), lan.fd());
        let Some(ifindex) = interface else { return self.adapter.endpoint().leave_address(ip) };
        // Another user's program may have it; peers on the host then do not reach us there.
        let _ = self.adapter.endpoint().receive_at(ip, ifindex);
        self.groups.each(|group| take_group(self.adapter, group));
    }

    /// The host's addresses may have changed: one of ours may have become its as well.
    pub(crate) fn follow_host(&self) {
        let lan = &*self.on.lan;
        // For any address, so that the notice is read.
        let _ = self.on.gateway.interface_of(Ipv4Addr::LOCALHOST.into());
        lan.addresses().into_iter().for_each(|ip| self.take_address(lan, ip));
    }

    /// Hardware address of the port.
    pub fn mac(&self) -> Mac {
        self.on.lan.mac()
    }

    /// Who takes the frames that are no packets of queue pairs. The first call decides.
    pub fn set_frame_sink(&self, sink: Arc<dyn FrameSink>) {
        self.on.lan.set_sink(sink);
    }

    /// Sends a frame without its frame check sequence, 60 to 65507 bytes. It is as unreliable as
    /// any frame.
    ///
    /// # Errors
    /// [`Error::System`] when the kernel does not take it.
    pub fn send_frame(&self, frame: &[u8]) -> Result<()> {
        let lan = &*self.on.lan;
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
        self.on.gateway.interface_of(ip).is_some()
            && self.adapter.port.known().gids.find(ip).is_none()
            && !is_of_ethernet(&self.adapter.registry, ip)
    }
}

/// The address that a frame asks for, and the answer that it is the host's; `None` for a frame that
/// asks for none.
fn answer(frame: &[u8]) -> Option<(IpAddr, Vec<u8>)> {
    let (header, body) = ethernet::Repr::parse(frame)?;
    match header.ether_type {
        // In a VLAN it is another network's.
        _ if header.vlan.is_some() => None,
        ETHERTYPE_ARP => arp_reply(header.src, body),
        ETHERTYPE_IPV6 => advertisement(header.src, body),
        _ => None,
    }
}

/// The header of an answer, in a frame with room for `body_len` bytes behind it.
fn framed(to: Mac, ether_type: u16, body_len: usize) -> Vec<u8> {
    let header = ethernet::Repr { dst: to, src: mac_of_slot(HOST), vlan: None, ether_type };
    let mut frame = Vec::with_capacity(ethernet::LEAST_LEN.max(ethernet::HEADER_LEN + body_len));
    frame.resize(header.header_len(), 0);
    header.emit(&mut frame);
    frame
}

fn arp_reply(asker: Mac, packet: &[u8]) -> Option<(IpAddr, Vec<u8>)> {
    let request = arp::Repr::parse(packet)?;
    // Who asks for its own address wants to hear of nobody else.
    if request.operation != Operation::Request || request.sender == request.target {
        return None;
    }
    let reply = arp::Repr {
        operation: Operation::Reply,
        sender_mac: mac_of_slot(HOST),
        sender: request.target,
        target_mac: request.sender_mac,
        target: request.sender,
    };
    let mut frame = framed(asker, ETHERTYPE_ARP, arp::LEN);
    frame.extend(reply.emit());
    frame.resize(ethernet::LEAST_LEN, 0);
    Some((request.target.into(), frame))
}

fn advertisement(asker: Mac, packet: &[u8]) -> Option<(IpAddr, Vec<u8>)> {
    let (ip, message) = ipv6::Repr::parse(packet)?;
    let Solicitation { target } = Solicitation::parse(message)?;
    // From no address somebody asks whether the one that it wants is free.
    if ip.next_header != PROTOCOL_ICMPV6 || ip.src.is_unspecified() {
        return None;
    }
    let header = ipv6::Repr {
        src: target,
        dst: ip.src,
        flow_label: 0,
        next_header: PROTOCOL_ICMPV6,
        traffic_class: 0,
        hop_limit: SAME_LINK,
        payload_len: ADVERTISEMENT_LEN as u16,
    };
    let mut frame = framed(asker, ETHERTYPE_IPV6, ipv6::HEADER_LEN + ADVERTISEMENT_LEN);
    frame.extend(header.emit());
    frame.extend(Advertisement { target, mac: mac_of_slot(HOST) }.emit(target, ip.src));
    Some((target.into(), frame))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv6Addr;

    /// An ARP request on the Ethernet.
    fn asks_for(sender: Ipv4Addr, target: Ipv4Addr) -> Vec<u8> {
        let asker = [2, 0, 0, 0, 0, 9];
        let ether_type = ETHERTYPE_ARP;
        let header = ethernet::Repr { dst: [0xff; 6], src: asker, vlan: None, ether_type };
        let request = arp::Repr {
            operation: Operation::Request,
            sender_mac: asker,
            sender,
            target_mac: [0; 6],
            target,
        };
        let mut frame = vec![0; ethernet::HEADER_LEN];
        header.emit(&mut frame);
        frame.extend(request.emit());
        frame
    }

    #[test]
    fn who_asks_for_an_ipv4_address_is_told_the_host() {
        let (own, host) = (Ipv4Addr::new(10, 0, 0, 9), Ipv4Addr::new(10, 0, 0, 1));
        let frame = asks_for(own, host);
        let (asked, reply) = answer(&frame).unwrap();
        assert_eq!((asked, reply.len()), (host.into(), ethernet::LEAST_LEN));
        let asker = [2, 0, 0, 0, 0, 9];
        assert_eq!(reply[..6], asker);
        let reply = arp::Repr::parse(&reply[ethernet::HEADER_LEN..]).unwrap();
        assert_eq!(reply.operation, Operation::Reply);
        assert_eq!((reply.sender_mac, reply.sender), (mac_of_slot(HOST), host));
        assert_eq!((reply.target_mac, reply.target), (asker, own));
        assert_eq!(answer(&asks_for(own, own)), None, "a probe for an address of its own");
        for len in 0..42 {
            assert_eq!(answer(&frame[..len]), None, "{len} bytes");
        }
    }

    #[test]
    fn who_solicits_an_ipv6_address_is_told_the_host() {
        let (source, wanted) = (Ipv6Addr::from([0xfe; 16]), Ipv6Addr::from([0xfd; 16]));
        let mut frame = [&[0x33; 6][..], &[2; 6], &ETHERTYPE_IPV6.to_be_bytes()].concat();
        frame.extend([0x60, 0, 0, 0, 0, 24, PROTOCOL_ICMPV6, 255]);
        frame.extend(source.octets());
        frame.extend([0xff; 16]);
        frame.extend(Solicitation { target: wanted }.emit(source, [0xff; 16].into()));
        let (asked, reply) = answer(&frame).unwrap();
        assert_eq!(asked, wanted);
        let (ip, message) = ipv6::Repr::parse(&reply[ethernet::HEADER_LEN..]).unwrap();
        assert_eq!((ip.src, ip.dst, ip.hop_limit), (wanted, source, 255));
        assert_eq!(usize::from(ip.payload_len), message.len());
        let told = Advertisement { target: wanted, mac: mac_of_slot(HOST) };
        assert_eq!(Advertisement::parse(message), Some(told));
        assert_eq!(message, told.emit(wanted, source), "with a right checksum");
        for len in 0..frame.len() {
            assert_eq!(answer(&frame[..len]), None, "{len} bytes");
        }
    }
}
