//! The 40 bytes that precede a datagram in its receive buffer, and what a program reads back from
//! them.
//!
//! They are the IPv6 header; for IPv4 they are 20 bytes of zero and then the IPv4 header, as Linux,
//! mlx5 and rxe write them. `ibv_init_ah_from_wc` tells the two apart with the rule of rdma-core
//! and of the kernel's `ib_get_rdma_header_version`, which [`Grh::parse`] follows.

use crate::GRH_LEN;
use crate::network::ip::{Addresses, Ip, PROTOCOL_INFINIBAND, PROTOCOL_UDP};
use crate::network::{ipv4, ipv6};
use std::fmt;

/// The network header of a received datagram.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Grh {
    /// Source and destination.
    pub addresses: Addresses,
    /// DSCP and ECN.
    pub traffic_class: u8,
    /// Flow label, 20 bits; 0 on IPv4.
    pub flow_label: u32,
    /// Hop limit or TTL.
    pub hop_limit: u8,
    /// Length of the UDP header and what follows it, ICRC included, in bytes.
    pub udp_len: u16,
    /// IPv4 identification; 0 on IPv6.
    pub identification: u16,
}

/// Why 40 bytes are not a network header of RoCEv2 (EPROTONOSUPPORT of `ibv_init_ah_from_wc`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum GrhError {
    /// Neither an IPv6 nor an IPv4 header stands where it should.
    Version,
    /// What follows the IPv6 header is not UDP; 0x1b is InfiniBand or RoCEv1.
    NextHeader(u8),
}

impl fmt::Display for GrhError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            GrhError::Version => f.write_str("neither an IPv6 nor an IPv4 header"),
            GrhError::NextHeader(next) => write!(f, "next header {next:#04x} is not UDP"),
        }
    }
}

impl std::error::Error for GrhError {}

impl Grh {
    /// The IP header of the packet, which has DF set on IPv4.
    pub fn ip(&self) -> Ip {
        match self.addresses {
            Addresses::V4(src, dst) => Ip::V4(ipv4::Repr {
                src,
                dst,
                protocol: PROTOCOL_UDP,
                tos: self.traffic_class,
                ttl: self.hop_limit,
                identification: self.identification,
                dont_fragment: true,
                more_fragments: false,
                fragment_offset: 0,
                total_len: self.udp_len.saturating_add(ipv4::HEADER_LEN as u16),
            }),
            Addresses::V6(src, dst) => Ip::V6(ipv6::Repr {
                src,
                dst,
                flow_label: self.flow_label,
                next_header: PROTOCOL_UDP,
                traffic_class: self.traffic_class,
                hop_limit: self.hop_limit,
                payload_len: self.udp_len,
            }),
        }
    }

    /// The bytes for the receive buffer.
    pub fn emit(&self) -> [u8; GRH_LEN] {
        let mut out = [0; GRH_LEN];
        let ip = self.ip();
        ip.emit(&mut out[GRH_LEN - ip.header_len()..]);
        out
    }

    /// Reads the bytes of a receive buffer, which a program may have changed.
    ///
    /// IPv4 it is when the version nibbles say so, or when both could be meant and the bytes are an
    /// IPv4 header without options whose checksum is right.
    pub fn parse(bytes: &[u8; GRH_LEN]) -> Result<Grh, GrhError> {
        let Some((_, header)) = bytes.split_last_chunk::<{ ipv4::HEADER_LEN }>() else {
            return Err(GrhError::Version);
        };
        let ipv6 = ipv6::is_version(bytes);
        if !ipv6 && !ipv4::is_version(header) {
            return Err(GrhError::Version);
        }
        let bare = ipv4::header_len(header) == ipv4::HEADER_LEN;
        if !ipv6 || bare && ipv4::checksum_is_right(header) {
            return Ok(Grh::from_ipv4(&ipv4::Repr::of_fields(header)));
        }
        let ip = ipv6::Repr::of_fields(bytes);
        if ip.next_header != PROTOCOL_UDP {
            return Err(GrhError::NextHeader(ip.next_header));
        }
        Ok(Grh {
            addresses: Addresses::V6(ip.src, ip.dst),
            traffic_class: ip.traffic_class,
            flow_label: ip.flow_label,
            hop_limit: ip.hop_limit,
            udp_len: ip.payload_len,
            identification: 0,
        })
    }

    fn from_ipv4(ip: &ipv4::Repr) -> Grh {
        Grh {
            addresses: Addresses::V4(ip.src, ip.dst),
            traffic_class: ip.tos,
            flow_label: 0,
            hop_limit: ip.ttl,
            udp_len: ip.total_len.saturating_sub(ipv4::HEADER_LEN as u16),
            identification: ip.identification,
        }
    }
}

/// The GRH of a packet on an InfiniBand subnet (IBA 8.3); `payload_len` is the length of what
/// follows it, ICRC included, in bytes.
pub fn of_infiniband(
    source: [u8; 16],
    destination: [u8; 16],
    traffic_class: u8,
    hop_limit: u8,
    payload_len: u16,
) -> [u8; GRH_LEN] {
    let header = ipv6::Repr {
        src: source.into(),
        dst: destination.into(),
        flow_label: 0,
        next_header: PROTOCOL_INFINIBAND,
        traffic_class,
        hop_limit,
        payload_len,
    };
    header.emit()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::network::internet;
    use std::net::Ipv4Addr;

    fn v4() -> Grh {
        Grh {
            addresses: Addresses::V4(
                Ipv4Addr::new(192, 168, 0, 1),
                Ipv4Addr::new(192, 168, 0, 199),
            ),
            traffic_class: 0,
            flow_label: 0,
            hop_limit: 64,
            udp_len: 0x73 - 20,
            identification: 0,
        }
    }

    fn v6() -> Grh {
        Grh {
            addresses: Addresses::V6("fe80::1".parse().unwrap(), "2001:db8::2".parse().unwrap()),
            traffic_class: 0xb9,
            flow_label: 0xa_bcde,
            hop_limit: 255,
            udp_len: 300,
            identification: 0,
        }
    }

    #[test]
    fn ipv4_stands_behind_zeros_with_a_right_checksum() {
        let bytes = v4().emit();
        assert_eq!(bytes[..20], [0; 20]);
        // A header well known from textbooks, whose checksum is 0xb861.
        assert_eq!(
            bytes[20..],
            [
                0x45, 0, 0, 0x73, 0, 0, 0x40, 0, 0x40, 0x11, 0xb8, 0x61, 192, 168, 0, 1, 192, 168,
                0, 199
            ]
        );
        assert_eq!(Grh::parse(&bytes), Ok(v4()));
    }

    #[test]
    fn ipv6_is_the_header_itself() {
        let bytes = v6().emit();
        assert_eq!(bytes[..8], [0x6b, 0x9a, 0xbc, 0xde, 0x01, 0x2c, 17, 255]);
        assert_eq!(Grh::parse(&bytes), Ok(v6()));
    }

    #[test]
    fn garbled_first_bytes_do_not_hide_ipv4() {
        let mut bytes = v4().emit();
        bytes[0] = 0x60;
        assert_eq!(Grh::parse(&bytes), Ok(v4()), "the checksum decides");
        bytes[39] ^= 1;
        assert_eq!(Grh::parse(&bytes), Err(GrhError::NextHeader(0)), "taken for IPv6");
        bytes[0] = 0;
        assert!(Grh::parse(&bytes).is_ok(), "no checksum is asked for when it cannot be IPv6");
    }

    #[test]
    fn ipv4_options_never_stand_in_an_ambiguous_header() {
        // An IPv6 header whose last 20 bytes sum up like an IPv4 header, but for the header length.
        let mut bytes = v6().emit();
        bytes[20] = 0x46;
        bytes[30..32].fill(0);
        let sum = internet::checksum(&bytes[20..]);
        bytes[30..32].copy_from_slice(&sum.to_be_bytes());
        assert!(matches!(Grh::parse(&bytes).unwrap().addresses, Addresses::V6(..)));
        bytes[20] = 0x45;
        bytes[30..32].fill(0);
        let sum = internet::checksum(&bytes[20..]);
        bytes[30..32].copy_from_slice(&sum.to_be_bytes());
        assert!(matches!(Grh::parse(&bytes).unwrap().addresses, Addresses::V4(..)));
    }

    #[test]
    fn other_bytes_are_refused() {
        assert_eq!(Grh::parse(&[0; GRH_LEN]), Err(GrhError::Version));
        let mut bytes = v6().emit();
        bytes[6] = 0x1b;
        assert_eq!(Grh::parse(&bytes), Err(GrhError::NextHeader(0x1b)));
    }
}
