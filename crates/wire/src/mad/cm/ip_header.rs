//! What RDMA IP CM puts in front of the private data of a REQ or a SIDR_REQ: the IP addresses of
//! both ends (IBA annex A11, kernel `struct cma_hdr`).

use crate::field::{Field, be16, byte, get, put, put_byte};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Length of the header, in bytes.
pub const IP_HEADER_LEN: usize = field::DESTINATION.end;
/// The only version of the header, its major and minor number.
const VERSION: u8 = 0;

/// Where the fields stand.
pub(super) mod field {
    use crate::field::Field;

    pub(super) const VERSION: usize = 0;
    /// In the upper four bits.
    pub(super) const IP_VERSION: usize = 1;
    pub(super) const SOURCE_PORT: Field = 2..4;
    pub(super) const SOURCE: Field = 4..20;
    pub(in crate::mad::cm) const DESTINATION: Field = 20..36;
}

/// Both ends of a connection as the active side sees them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct IpHeader {
    /// Port of the active side.
    pub port: u16,
    /// Address of the active side.
    pub src: IpAddr,
    /// Address of the passive side, of the same version.
    pub dst: IpAddr,
}

impl IpHeader {
    /// As it stands in the message.
    pub fn emit(&self) -> [u8; IP_HEADER_LEN] {
        let mut out = [0; IP_HEADER_LEN];
        let version = if self.dst.is_ipv4() { 4 } else { 6 };
        put_byte(&mut out, field::VERSION, VERSION);
        put_byte(&mut out, field::IP_VERSION, version << 4);
        put(&mut out, field::SOURCE_PORT, &self.port.to_be_bytes());
        for (place, ip) in [(field::SOURCE, self.src), (field::DESTINATION, self.dst)] {
            match ip {
                IpAddr::V4(ip) => put(&mut out, last_four(place), &ip.octets()),
                IpAddr::V6(ip) => put(&mut out, place, &ip.octets()),
            }
        }
        out
    }

    /// Reads the header; `None` for another version or bytes too few.
    pub fn parse(bytes: &[u8]) -> Option<IpHeader> {
        let bytes: &[u8; IP_HEADER_LEN] = bytes.first_chunk()?;
        if byte(bytes, field::VERSION) != VERSION {
            return None;
        }
        let address = |place: Field| -> Option<IpAddr> {
            match byte(bytes, field::IP_VERSION) >> 4 {
                4 => Some(Ipv4Addr::from(get::<4>(bytes, last_four(place))).into()),
                6 => Some(Ipv6Addr::from(get::<16>(bytes, place)).into()),
                _ => None,
            }
        };
        Some(IpHeader {
            port: be16(bytes, field::SOURCE_PORT),
            src: address(field::SOURCE)?,
            dst: address(field::DESTINATION)?,
        })
    }
}

/// Where an IPv4 address stands in the field of an address.
fn last_four(place: Field) -> Field {
    place.end - 4..place.end
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fields_stand_where_the_kernel_has_them() {
        let header =
            IpHeader { port: 0x1d2f, src: [10, 0, 0, 1].into(), dst: [192, 168, 7, 2].into() };
        let mut wanted = [0; 36];
        wanted[1..4].copy_from_slice(&[0x40, 0x1d, 0x2f]);
        wanted[16..20].copy_from_slice(&[10, 0, 0, 1]);
        wanted[32..].copy_from_slice(&[192, 168, 7, 2]);
        assert_eq!(header.emit(), wanted);
    }

    #[test]
    fn headers_go_both_ways_and_others_are_refused() {
        for (src, dst) in [("10.0.0.1", "10.0.0.2"), ("fe80::1", "fd00::2")] {
            let header =
                IpHeader { port: 7471, src: src.parse().unwrap(), dst: dst.parse().unwrap() };
            let mut bytes = header.emit();
            assert_eq!(IpHeader::parse(&bytes), Some(header));
            assert_eq!(IpHeader::parse(&bytes[..35]), None);
            bytes[1] = 0x50;
            assert_eq!(IpHeader::parse(&bytes), None);
            bytes = header.emit();
            bytes[0] = 1;
            assert_eq!(IpHeader::parse(&bytes), None);
        }
    }
}
