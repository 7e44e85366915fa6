//! IP headers of either version, and the protocol numbers that both use.

use super::{internet, ipv4, ipv6};
use crate::field::put;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Protocol number of TCP.
pub const PROTOCOL_TCP: u8 = 6;
/// Protocol number of UDP.
pub const PROTOCOL_UDP: u8 = 17;
/// Next header of a packet whose transport is InfiniBand's (IBA 8.3).
pub const PROTOCOL_INFINIBAND: u8 = 0x1b;
/// Protocol number of ICMPv6.
pub const PROTOCOL_ICMPV6: u8 = 58;

/// Length of the longest header that [`Ip::emit`] writes, in bytes.
pub const MAX_HEADER_LEN: usize = ipv6::HEADER_LEN;

/// Source and destination of a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Addresses {
    /// IPv4, source then destination.
    V4(Ipv4Addr, Ipv4Addr),
    /// IPv6, source then destination.
    V6(Ipv6Addr, Ipv6Addr),
}

impl Addresses {
    /// The pair as it stands in the IP header: addresses mapped from IPv4 travel as IPv4. `None`
    /// when one is IPv4 and the other is not.
    pub fn new(source: IpAddr, destination: IpAddr) -> Option<Addresses> {
        match (source.to_canonical(), destination.to_canonical()) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                Some(Addresses::V4(source, destination))
            }
            (IpAddr::V6(source), IpAddr::V6(destination)) => {
                Some(Addresses::V6(source, destination))
            }
            _ => None,
        }
    }
}

/// An IP header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ip {
    /// Version 4.
    V4(ipv4::Repr),
    /// Version 6.
    V6(ipv6::Repr),
}

impl Ip {
    /// What follows the header (IANA protocol numbers); extension headers of IPv6 count as a
    /// protocol.
    pub fn protocol(&self) -> u8 {
        match self {
            Ip::V4(ip) => ip.protocol,
            Ip::V6(ip) => ip.next_header,
        }
    }

    /// The header of an answer: source and destination have changed places.
    pub fn reversed(&self) -> Ip {
        match *self {
            Ip::V4(ip) => Ip::V4(ipv4::Repr { src: ip.dst, dst: ip.src, ..ip }),
            Ip::V6(ip) => Ip::V6(ipv6::Repr { src: ip.dst, dst: ip.src, ..ip }),
        }
    }

    /// DSCP and ECN.
    pub fn traffic_class(&self) -> u8 {
        match self {
            Ip::V4(ip) => ip.tos,
            Ip::V6(ip) => ip.traffic_class,
        }
    }

    /// TTL or hop limit.
    pub fn hop_limit(&self) -> u8 {
        match self {
            Ip::V4(ip) => ip.ttl,
            Ip::V6(ip) => ip.hop_limit,
        }
    }

    /// Length that [`Ip::emit`] writes, in bytes.
    pub fn header_len(&self) -> usize {
        match self {
            Ip::V4(_) => ipv4::HEADER_LEN,
            Ip::V6(_) => ipv6::HEADER_LEN,
        }
    }

    /// Writes the header to the front of `out`, as far as there is room.
    pub fn emit(&self, out: &mut [u8]) {
        let place = 0..self.header_len();
        match self {
            Ip::V4(ip) => put(out, place, &ip.emit()),
            Ip::V6(ip) => put(out, place, &ip.emit()),
        }
    }

    /// Sum of the pseudo header for `len` bytes of its protocol.
    pub fn pseudo_header(&self, len: usize) -> u64 {
        let mut header = [0; MAX_HEADER_LEN];
        self.emit(&mut header);
        let addresses = match self {
            Ip::V4(_) => ipv4::field::ADDRESSES,
            Ip::V6(_) => ipv6::field::ADDRESSES,
        };
        internet::pseudo_header(&header[addresses], self.protocol(), len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn v4(dst: Ipv4Addr) -> ipv4::Repr {
        ipv4::Repr {
            src: Ipv4Addr::new(10, 0, 0, 1),
            dst,
            protocol: PROTOCOL_UDP,
            tos: 4,
            ttl: 5,
            identification: 6,
            dont_fragment: true,
            more_fragments: false,
            fragment_offset: 0,
            total_len: 7,
        }
    }

    fn v6() -> ipv6::Repr {
        ipv6::Repr {
            src: Ipv6Addr::LOCALHOST,
            dst: "2001:db8::2".parse().unwrap(),
            flow_label: 3,
            next_header: PROTOCOL_ICMPV6,
            traffic_class: 4,
            hop_limit: 5,
            payload_len: 6,
        }
    }

    #[test]
    fn both_versions_answer_alike() {
        let dst = Ipv4Addr::new(10, 0, 0, 2);
        for (ip, bytes, protocol) in [
            (Ip::V4(v4(dst)), v4(dst).emit().to_vec(), PROTOCOL_UDP),
            (Ip::V6(v6()), v6().emit().to_vec(), PROTOCOL_ICMPV6),
        ] {
            assert_eq!((ip.protocol(), ip.traffic_class(), ip.hop_limit()), (protocol, 4, 5));
            let mut out = vec![0; ip.header_len()];
            ip.emit(&mut out);
            assert_eq!(out, bytes);
            let addresses = if let Ip::V4(_) = ip { &bytes[12..20] } else { &bytes[8..40] };
            let expected = internet::pseudo_header(addresses, protocol, 9);
            assert_eq!(ip.pseudo_header(9), expected);
            assert_ne!(ip.reversed(), ip);
            assert_eq!(ip.reversed().reversed(), ip);
        }
    }

    #[test]
    fn mapped_addresses_are_ipv4() {
        let mapped = |a: Ipv4Addr| IpAddr::V6(a.to_ipv6_mapped());
        let (a, b) = (Ipv4Addr::new(1, 2, 3, 4), Ipv4Addr::new(5, 6, 7, 8));
        assert_eq!(Addresses::new(mapped(a), b.into()), Some(Addresses::V4(a, b)));
        assert_eq!(Addresses::new(a.into(), Ipv6Addr::LOCALHOST.into()), None);
    }
}
