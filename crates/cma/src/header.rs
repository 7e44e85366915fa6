//! What the RDMA CM puts in front of the private data of its requests: the IP addresses of both ends (IBA annex A11,
//! kernel `struct cma_hdr`).

use crate::addr::Addr;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Length in bytes.
pub const HEADER_LEN: usize = 36;

/// Both ends of a connection as the active side sees them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Header {
    /// Port of the active side.
    pub port: u16,
    /// Address of the active side.
    pub src: IpAddr,
    /// Address of the passive side.
    pub dst: IpAddr,
}

impl Header {
    /// The header for a connection between two IP addresses; `None` where an end has none.
    pub fn between(src: &Addr, dst: &Addr) -> Option<Header> {
        if matches!(src, Addr::Ib(_)) {
            return None;
        }
        Some(Header { port: src.port(), src: src.ip()?, dst: dst.ip()? })
    }

    /// As it stands in the message.
    pub fn emit(&self) -> [u8; HEADER_LEN] {
        let mut out = [0; HEADER_LEN];
        let version = if self.dst.is_ipv4() { 4 } else { 6 };
        out[1] = version << 4;
        out[2..4].copy_from_slice(&self.port.to_be_bytes());
        for (at, ip) in [(4, self.src), (20, self.dst)] {
            match ip {
                IpAddr::V4(ip) => out[at + 12..at + 16].copy_from_slice(&ip.octets()),
                IpAddr::V6(ip) => out[at..at + 16].copy_from_slice(&ip.octets()),
            }
        }
        out
    }

    /// Reads the header; `None` for another version or bytes too few.
    pub fn parse(bytes: &[u8]) -> Option<Header> {
        let bytes: &[u8; HEADER_LEN] = bytes.get(..HEADER_LEN)?.try_into().ok()?;
        let port = u16::from_be_bytes([bytes[2], bytes[3]]);
        let ip = |at: usize| -> Option<IpAddr> {
            match bytes[1] >> 4 {
                4 => {
                    Some(Ipv4Addr::from(<[u8; 4]>::try_from(&bytes[at + 12..at + 16]).ok()?).into())
                }
                6 => Some(Ipv6Addr::from(<[u8; 16]>::try_from(&bytes[at..at + 16]).ok()?).into()),
                _ => None,
            }
        };
        if bytes[0] != 0 {
            return None;
        }
        Some(Header { port, src: ip(4)?, dst: ip(20)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_go_both_ways_and_others_are_refused() {
        for (src, dst) in [("10.0.0.1", "10.0.0.2"), ("fe80::1", "fd00::2")] {
            let header =
                Header { port: 7471, src: src.parse().unwrap(), dst: dst.parse().unwrap() };
            let mut bytes = header.emit();
            assert_eq!(Header::parse(&bytes), Some(header));
            assert_eq!(Header::parse(&bytes[..35]), None);
            bytes[1] = 0x50;
            assert_eq!(Header::parse(&bytes), None);
            bytes[0] = 1;
            assert_eq!(Header::parse(&bytes), None);
        }
    }
}
