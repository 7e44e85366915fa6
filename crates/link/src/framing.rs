//! RoCEv2 packets as Ethernet frames (IBA A17.3; RFC 791, RFC 8200, RFC 768): the headers in front of a packet's transport
//! bytes, made and read. Frames that are no such packet, or not whole, are none here; whatever they hold, reading ends.

use crate::flow::Path;
use crate::trace::Traced;
use std::net::IpAddr;
use wire::frame::{
    ETHERNET_LEN, ETHERTYPE_IPV4, ETHERTYPE_IPV6, ETHERTYPE_VLAN, Frame, Ip, Mac, PROTOCOL_UDP,
    VLAN_LEN,
};
use wire::{ROCE_PORT, internet};

const IPV4_LEN: usize = 20;
const IPV6_LEN: usize = 40;
const UDP_LEN: usize = 8;
const MAX_LEN: usize = ETHERNET_LEN + VLAN_LEN + IPV6_LEN + UDP_LEN;
const DONT_FRAGMENT: u16 = 0x4000;
const DEFAULT_HOP_LIMIT: u8 = 64;

/// What a path over an Ethernet says besides.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ethernet {
    /// Destination.
    pub dst: Mac,
    /// Source.
    pub src: Mac,
    /// Tag control information, where frames have a VLAN tag.
    pub vlan: Option<u16>,
    /// UDP source port; 0 leaves it to the endpoint.
    pub udp_src: u16,
}

/// The headers before a packet's transport bytes, but for lengths and checksum.
#[derive(Clone)]
pub(crate) struct Head {
    bytes: [u8; MAX_LEN],
    len: usize,
    /// Where the IP header begins.
    ip: usize,
}

impl Head {
    /// For packets along `path`, whose addresses are of one family.
    pub(crate) fn new(ethernet: &Ethernet, path: &Path, udp_src: u16) -> Head {
        let mut bytes = Vec::with_capacity(MAX_LEN);
        bytes.extend(ethernet.dst);
        bytes.extend(ethernet.src);
        if let Some(tag) = ethernet.vlan {
            bytes.extend(ETHERTYPE_VLAN.to_be_bytes());
            bytes.extend(tag.to_be_bytes());
        }
        let hop_limit = if path.hop_limit == 0 { DEFAULT_HOP_LIMIT } else { path.hop_limit };
        let ip = bytes.len() + 2;
        match (path.src, path.dst) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => {
                bytes.extend(ETHERTYPE_IPV4.to_be_bytes());
                bytes.extend([0x45, path.traffic_class, 0, 0, 0, 0]);
                bytes.extend(DONT_FRAGMENT.to_be_bytes());
                bytes.extend([hop_limit, PROTOCOL_UDP, 0, 0]);
                bytes.extend(src.octets());
                bytes.extend(dst.octets());
            }
            (src, dst) => {
                bytes.extend(ETHERTYPE_IPV6.to_be_bytes());
                let word =
                    6 << 28 | u32::from(path.traffic_class) << 20 | path.flow_label & 0xf_ffff;
                bytes.extend(word.to_be_bytes());
                bytes.extend([0, 0, PROTOCOL_UDP, hop_limit]);
                for end in [src, dst] {
                    match end {
                        IpAddr::V4(end) => bytes.extend(end.to_ipv6_mapped().octets()),
                        IpAddr::V6(end) => bytes.extend(end.octets()),
                    }
                }
            }
        }
        bytes.extend(udp_src.to_be_bytes());
        bytes.extend(ROCE_PORT.to_be_bytes());
        let len = bytes.len() + 4;
        bytes.resize(MAX_LEN, 0);
        Head { bytes: bytes.try_into().unwrap_or([0; MAX_LEN]), len, ip }
    }

    /// Bytes of the headers.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Writes them into `out`, which is [`Head::len`] long, before `transport_len` bytes with their ICRC.
    pub(crate) fn emit(&self, out: &mut [u8], transport_len: usize) {
        out.copy_from_slice(&self.bytes[..self.len]);
        let udp_len = (transport_len + UDP_LEN) as u16;
        let (ip, udp) = out[self.ip..].split_at_mut(self.len - self.ip - UDP_LEN);
        udp[4..6].copy_from_slice(&udp_len.to_be_bytes());
        if ip.len() == IPV4_LEN {
            ip[2..4].copy_from_slice(&(udp_len + IPV4_LEN as u16).to_be_bytes());
            let sum = internet::checksum(ip);
            ip[10..12].copy_from_slice(&sum.to_be_bytes());
        } else {
            ip[4..6].copy_from_slice(&udp_len.to_be_bytes());
        }
    }
}

/// A frame that holds a RoCEv2 packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Framed<'a> {
    pub(crate) mac: Mac,
    /// Control information of its VLAN tag.
    pub(crate) vlan: Option<u16>,
    pub(crate) packet: Traced<'a>,
}

fn be16(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(*bytes.get(at..)?.first_chunk()?))
}

impl<'a> Framed<'a> {
    /// Reads a frame; `None` for one that holds no RoCEv2 packet. What lies behind the packet is padding.
    pub(crate) fn parse(frame: &'a [u8]) -> Option<Framed<'a>> {
        let parsed = Frame::parse(frame).filter(Frame::is_roce)?;
        let tag = if parsed.vlan.is_some() { VLAN_LEN } else { 0 };
        let ip = frame.get(ETHERNET_LEN + tag..)?;
        let (src, dst, traffic_class, hop_limit) = match parsed.ip? {
            Ip::V4(v4) => (v4.src.into(), v4.dst.into(), v4.tos, v4.ttl),
            Ip::V6(v6) => (v6.src.into(), v6.dst.into(), v6.traffic_class, v6.hop_limit),
        };
        let (udp, identification) = match parsed.ip? {
            Ip::V4(_) if *ip.first()? == 0x45 && be16(ip, 6)? == DONT_FRAGMENT => {
                (ip.get(IPV4_LEN..usize::from(be16(ip, 2)?))?, be16(ip, 4)?)
            }
            Ip::V4(_) => return None,
            Ip::V6(_) => (ip.get(IPV6_LEN..IPV6_LEN + usize::from(be16(ip, 4)?))?, 0),
        };
        let packet = Traced {
            src,
            dst,
            udp_src: parsed.ports?.src,
            traffic_class,
            hop_limit,
            identification,
            datagram: udp.get(UDP_LEN..usize::from(be16(udp, 4)?))?,
        };
        Some(Framed { mac: parsed.dst, vlan: parsed.vlan, packet })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn framed(src: &str, dst: &str, vlan: Option<u16>) -> Vec<u8> {
        let ethernet = Ethernet { dst: [1; 6], src: [2; 6], vlan, udp_src: 0 };
        let path = Path {
            src: src.parse().unwrap(),
            dst: dst.parse().unwrap(),
            scope_id: 0,
            traffic_class: 0x6a,
            hop_limit: 7,
            flow_label: 0x12345,
            ethernet: Some(ethernet),
        };
        let head = Head::new(&ethernet, &path, 0xc123);
        let mut frame = vec![0; head.len()];
        head.emit(&mut frame, 16);
        frame.extend([9; 16]);
        frame
    }

    #[test]
    fn what_is_made_is_read_back() {
        for (src, dst) in [("10.0.0.1", "10.0.0.2"), ("fd00::1", "fd00::2")] {
            for vlan in [None, Some(0x6005)] {
                let mut frame = framed(src, dst, vlan);
                let packet = Traced {
                    src: src.parse().unwrap(),
                    dst: dst.parse().unwrap(),
                    udp_src: 0xc123,
                    traffic_class: 0x6a,
                    hop_limit: 7,
                    identification: 0,
                    datagram: &[9; 16],
                };
                let expected = Framed { mac: [1; 6], vlan, packet };
                frame.extend([0; 5]);
                assert_eq!(Framed::parse(&frame), Some(expected), "with padding behind it");
                let parsed = wire::frame::Frame::parse(&frame).unwrap();
                assert_eq!((parsed.vlan, parsed.ports.unwrap().dst), (vlan, ROCE_PORT));
            }
        }
    }

    #[test]
    fn the_ipv4_header_sums_to_nothing() {
        let frame = framed("10.0.0.1", "10.0.0.2", None);
        assert_eq!(internet::checksum(&frame[ETHERNET_LEN..ETHERNET_LEN + IPV4_LEN]), 0);
    }

    #[test]
    fn what_is_cut_short_or_lies_is_no_packet() {
        for (src, dst) in [("10.0.0.1", "10.0.0.2"), ("fd00::1", "fd00::2")] {
            let frame = framed(src, dst, None);
            for len in 0..frame.len() {
                assert_eq!(Framed::parse(&frame[..len]), None, "{len} bytes");
            }
            for at in 12..frame.len() - 16 {
                let mut wrong = frame.clone();
                wrong[at] ^= 0xff;
                let _ = Framed::parse(&wrong);
            }
        }
    }
}
