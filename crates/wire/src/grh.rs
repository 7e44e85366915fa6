//! The 40 bytes that precede a datagram in its receive buffer, and what a program reads back from them.
//!
//! They are the IPv6 header; for IPv4 they are 20 bytes of zero and then the IPv4 header, as Linux, mlx5 and rxe
//! write them. `ibv_init_ah_from_wc` tells the two apart with the rule of rdma-core and of the kernel's
//! `ib_get_rdma_header_version`, which [`Grh::parse`] follows.

use crate::GRH_LEN;
use crate::icrc::Addresses;
use crate::internet;
use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};

/// Where the IPv4 header begins.
const IPV4_AT: usize = GRH_LEN - 20;
const UDP: u8 = 17;
/// A transport of InfiniBand follows.
const INFINIBAND: u8 = 0x1b;

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
    /// The bytes for the receive buffer. The IPv4 header has DF set and a right checksum.
    pub fn emit(&self) -> [u8; GRH_LEN] {
        let mut out = [0; GRH_LEN];
        match self.addresses {
            Addresses::V4(source, destination) => {
                let ip = &mut out[IPV4_AT..];
                ip[0] = 0x45;
                ip[1] = self.traffic_class;
                ip[2..4].copy_from_slice(&self.udp_len.saturating_add(20).to_be_bytes());
                ip[4..6].copy_from_slice(&self.identification.to_be_bytes());
                ip[6] = 0x40;
                ip[8] = self.hop_limit;
                ip[9] = UDP;
                ip[12..16].copy_from_slice(&source.octets());
                ip[16..20].copy_from_slice(&destination.octets());
                let checksum = internet::checksum(ip);
                ip[10..12].copy_from_slice(&checksum.to_be_bytes());
            }
            Addresses::V6(source, destination) => {
                let word =
                    6 << 28 | u32::from(self.traffic_class) << 20 | self.flow_label & 0x000f_ffff;
                out[..4].copy_from_slice(&word.to_be_bytes());
                out[4..6].copy_from_slice(&self.udp_len.to_be_bytes());
                out[6] = UDP;
                out[7] = self.hop_limit;
                out[8..24].copy_from_slice(&source.octets());
                out[24..40].copy_from_slice(&destination.octets());
            }
        }
        out
    }

    /// Reads the bytes of a receive buffer, which a program may have changed.
    ///
    /// IPv4 it is when the version nibbles say so, or when both could be meant and the bytes are an IPv4 header
    /// without options whose checksum is right.
    pub fn parse(bytes: &[u8; GRH_LEN]) -> Result<Grh, GrhError> {
        let ipv4 = &bytes[IPV4_AT..];
        if bytes[0] >> 4 != 6 {
            return if ipv4[0] >> 4 == 4 {
                Ok(Grh::from_ipv4(ipv4))
            } else {
                Err(GrhError::Version)
            };
        }
        if ipv4[0] & 0x0f == 5 && internet::fold(internet::sum(ipv4)) == 0xffff {
            return Ok(Grh::from_ipv4(ipv4));
        }
        if bytes[6] != UDP {
            return Err(GrhError::NextHeader(bytes[6]));
        }
        let word = u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        Ok(Grh {
            addresses: Addresses::V6(address(&bytes[8..24]), address(&bytes[24..40])),
            traffic_class: (word >> 20) as u8,
            flow_label: word & 0x000f_ffff,
            hop_limit: bytes[7],
            udp_len: u16::from_be_bytes([bytes[4], bytes[5]]),
            identification: 0,
        })
    }

    fn from_ipv4(ip: &[u8]) -> Grh {
        let source = Ipv4Addr::new(ip[12], ip[13], ip[14], ip[15]);
        let destination = Ipv4Addr::new(ip[16], ip[17], ip[18], ip[19]);
        Grh {
            addresses: Addresses::V4(source, destination),
            traffic_class: ip[1],
            flow_label: 0,
            hop_limit: ip[8],
            udp_len: u16::from_be_bytes([ip[2], ip[3]]).saturating_sub(20),
            identification: u16::from_be_bytes([ip[4], ip[5]]),
        }
    }
}

/// The GRH of a packet on an InfiniBand subnet (IBA 8.3); `payload_len` is the length of what follows it, ICRC included, in bytes.
pub fn of_infiniband(
    source: [u8; 16],
    destination: [u8; 16],
    traffic_class: u8,
    hop_limit: u8,
    payload_len: u16,
) -> [u8; GRH_LEN] {
    let addresses = Addresses::V6(source.into(), destination.into());
    let like = Grh {
        addresses,
        traffic_class,
        flow_label: 0,
        hop_limit,
        udp_len: payload_len,
        identification: 0,
    };
    let mut out = like.emit();
    out[6] = INFINIBAND;
    out
}

fn address(bytes: &[u8]) -> Ipv6Addr {
    let mut octets = [0; 16];
    octets.copy_from_slice(bytes);
    Ipv6Addr::from(octets)
}

#[cfg(test)]
mod tests {
    use super::*;

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
