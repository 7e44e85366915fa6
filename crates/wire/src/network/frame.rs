//! Ethernet frames as a receiver's steering sees them: addresses, VLAN tag, IP header and ports.
//!
//! [`Frame::parse`] takes any bytes and reads as far as they go: a header that is cut short, of an
//! unknown version or in a later fragment is absent, and so is everything behind it. Checksums are
//! not verified. Nothing is copied but the fields.

use super::ethernet::{self, ETHERTYPE_IPV4, ETHERTYPE_IPV6, Mac};
use super::ip::{Ip, PROTOCOL_TCP, PROTOCOL_UDP};
use super::{ipv4, ipv6, tcp, udp};

/// What steering sees of a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Frame {
    /// Destination.
    pub dst: Mac,
    /// Source.
    pub src: Mac,
    /// Tag control information of a VLAN tag: priority 3, drop eligible 1, VLAN 12 bits.
    pub vlan: Option<u16>,
    /// Type of what follows the addresses and the tag.
    pub ether_type: u16,
    /// The IP header.
    pub ip: Option<Ip>,
    /// Ports of TCP or UDP; [`Ip::protocol`] says of which.
    pub ports: Option<Ports>,
}

/// Ports of a TCP or UDP header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ports {
    /// Source.
    pub src: u16,
    /// Destination.
    pub dst: u16,
}

impl Frame {
    /// Reads a frame without its frame check sequence; `None` if it has no whole Ethernet header.
    pub fn parse(bytes: &[u8]) -> Option<Frame> {
        let (header, body) = ethernet::Repr::parse(bytes)?;
        let (ip, ports) = match header.ether_type {
            ETHERTYPE_IPV4 => of_ipv4(body).unzip(),
            ETHERTYPE_IPV6 => of_ipv6(body).unzip(),
            _ => (None, None),
        };
        let ethernet::Repr { dst, src, vlan, ether_type } = header;
        Some(Frame { dst, src, vlan, ether_type, ip, ports: ports.flatten() })
    }

    /// Whether it goes to a group: multicast or broadcast.
    pub fn is_multicast(&self) -> bool {
        ethernet::is_multicast(self.dst)
    }

    /// Whether it carries RoCEv2: UDP to port 4791.
    pub fn is_roce(&self) -> bool {
        let udp = self.ip.is_some_and(|ip| ip.protocol() == PROTOCOL_UDP);
        udp && self.ports.is_some_and(|ports| ports.dst == crate::ROCE_PORT)
    }
}

fn of_ipv4(packet: &[u8]) -> Option<(Ip, Option<Ports>)> {
    let (ip, body) = ipv4::Repr::parse(packet)?;
    let ports = if ip.is_fragment() { None } else { of_transport(ip.protocol, body) };
    Some((Ip::V4(ip), ports))
}

fn of_ipv6(packet: &[u8]) -> Option<(Ip, Option<Ports>)> {
    let (ip, body) = ipv6::Repr::parse(packet)?;
    Some((Ip::V6(ip), of_transport(ip.next_header, body)))
}

fn of_transport(protocol: u8, bytes: &[u8]) -> Option<Ports> {
    match protocol {
        PROTOCOL_TCP => tcp::Repr::parse(bytes).map(|tcp| Ports { src: tcp.src, dst: tcp.dst }),
        PROTOCOL_UDP => udp::Repr::parse(bytes).map(|udp| Ports { src: udp.src, dst: udp.dst }),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::network::ethernet::HEADER_LEN;
    use proptest::prelude::*;

    const DST: Mac = [1, 0x50, 0x56, 0x19, 0x20, 0xa7];
    const SRC: Mac = [0x24, 0x8a, 7, 0xa5, 0x28, 0xc8];

    fn ethernet(ether_type: u16, body: &[u8]) -> Vec<u8> {
        [&DST[..], &SRC, &ether_type.to_be_bytes(), body].concat()
    }

    fn ipv4(protocol: u8, fragment: u16, options: usize, payload: &[u8]) -> Vec<u8> {
        let mut ip = vec![0x45 + options as u8, 0xb8, 0, 0, 0, 0];
        ip.extend(fragment.to_be_bytes());
        ip.extend([64, protocol, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2]);
        ip.extend(vec![1; options * 4]);
        ip.extend(payload);
        ip
    }

    fn ipv6(next_header: u8, payload: &[u8]) -> Vec<u8> {
        let mut ip = vec![0x6a, 0xb1, 0x23, 0x45, 0, 0, next_header, 9];
        ip.extend([0xa0; 16]);
        ip.extend([0xb0; 16]);
        ip.extend(payload);
        ip
    }

    const UDP: [u8; 8] = [0x04, 0xd2, 0x16, 0x2e, 0, 8, 0, 0];

    #[test]
    fn a_udp_datagram_is_read_whole() {
        let frame = Frame::parse(&ethernet(0x0800, &ipv4(17, 0x4000, 0, &UDP))).unwrap();
        assert_eq!((frame.dst, frame.src), (DST, SRC));
        assert_eq!((frame.vlan, frame.ether_type), (None, 0x0800));
        let Some(Ip::V4(ip)) = frame.ip else { panic!("{frame:?}") };
        assert_eq!((ip.src, ip.dst), ([1, 1, 1, 1].into(), [2, 2, 2, 2].into()));
        assert_eq!((ip.protocol, ip.tos, ip.ttl), (17, 0xb8, 64));
        assert!(ip.dont_fragment && !ip.more_fragments);
        assert_eq!(frame.ports, Some(Ports { src: 1234, dst: 5678 }));
        assert!(frame.is_multicast() && !frame.is_roce());
    }

    #[test]
    fn tcp_over_ipv6_behind_a_vlan_tag_is_read() {
        let mut tcp = UDP.to_vec();
        tcp.resize(20, 0);
        let mut tagged = vec![0xac, 0x0c, 0x86, 0xdd];
        tagged.extend(ipv6(6, &tcp));
        let frame = Frame::parse(&ethernet(0x8100, &tagged)).unwrap();
        assert_eq!((frame.vlan, frame.ether_type), (Some(0xac0c), 0x86dd));
        let Some(Ip::V6(ip)) = frame.ip else { panic!("{frame:?}") };
        assert_eq!((ip.src, ip.dst), ([0xa0; 16].into(), [0xb0; 16].into()));
        assert_eq!((ip.traffic_class, ip.flow_label), (0xab, 0x1_2345));
        assert_eq!((ip.next_header, ip.hop_limit), (6, 9));
        assert_eq!(frame.ports, Some(Ports { src: 1234, dst: 5678 }));
    }

    #[test]
    fn roce_is_known_by_its_port() {
        let roce = [0xc0, 0, 0x12, 0xb7, 0, 8, 0, 0];
        assert!(Frame::parse(&ethernet(0x0800, &ipv4(17, 0, 0, &roce))).unwrap().is_roce());
        let mut tcp = roce.to_vec();
        tcp.resize(20, 0);
        assert!(!Frame::parse(&ethernet(0x0800, &ipv4(6, 0, 0, &tcp))).unwrap().is_roce());
    }

    #[test]
    fn options_are_skipped_and_fragments_have_no_ports() {
        let parse = |fragment, options| {
            Frame::parse(&ethernet(0x0800, &ipv4(17, fragment, options, &UDP))).unwrap()
        };
        assert_eq!(parse(0, 3).ports, Some(Ports { src: 1234, dst: 5678 }));
        for fragment in [0x2000, 0x0001, 0x1fff, 0x2007] {
            let frame = parse(fragment, 0);
            assert!(frame.ip.is_some() && frame.ports.is_none(), "{fragment:#x}");
        }
    }

    #[test]
    fn what_is_cut_or_wrong_is_absent() {
        let whole = ethernet(0x0800, &ipv4(17, 0, 0, &UDP));
        for len in 0..whole.len() {
            match Frame::parse(&whole[..len]) {
                None => assert!(len < HEADER_LEN),
                Some(frame) => {
                    assert!(len >= HEADER_LEN && frame.ports.is_none());
                    assert_eq!(frame.ip.is_some(), len >= HEADER_LEN + ipv4::HEADER_LEN);
                }
            }
        }
        for first in [0x55, 0x44, 0x4f] {
            let mut wrong = whole.clone();
            wrong[HEADER_LEN] = first;
            assert_eq!(Frame::parse(&wrong).unwrap().ip, None, "{first:#x}");
        }
        assert_eq!(Frame::parse(&ethernet(0x8100, &[1])).unwrap().vlan, None);
        assert_eq!(Frame::parse(&ethernet(0x86dd, &ipv4(17, 0, 2, &UDP))).unwrap().ip, None);
    }

    proptest! {
        /// Any bytes: no panic, and a frame exactly if there is a whole Ethernet header.
        #[test]
        fn anything_may_come(bytes in proptest::collection::vec(any::<u8>(), 0..128)) {
            let frame = Frame::parse(&bytes);
            prop_assert_eq!(frame.is_some(), bytes.len() >= HEADER_LEN);
            if let Some(frame) = frame {
                prop_assert!(frame.ports.is_none() || frame.ip.is_some());
            }
        }

        /// IP headers of any content behind a right beginning: what is read is what stands there.
        #[test]
        fn any_ip_header_is_read(
            v6: bool,
            body in proptest::collection::vec(any::<u8>(), 40..80),
        ) {
            let mut body = body;
            body[0] = if v6 { 0x60 | body[0] & 0xf } else { 0x45 };
            let ether_type = if v6 { ETHERTYPE_IPV6 } else { ETHERTYPE_IPV4 };
            let frame = Frame::parse(&ethernet(ether_type, &body)).unwrap();
            let ip = frame.ip.unwrap();
            prop_assert_eq!(ip.protocol(), body[if v6 { 6 } else { 9 }]);
            match ip {
                Ip::V4(ip) => prop_assert_eq!(&ip.src.octets()[..], &body[12..16]),
                Ip::V6(ip) => prop_assert_eq!(&ip.src.octets()[..], &body[8..24]),
            }
        }
    }
}
