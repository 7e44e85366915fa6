//! IPv6 headers (RFC 8200, section 3). Extension headers count as what follows.

use crate::field::{be16, be32, byte, get, put};
use std::net::Ipv6Addr;

/// Where the fields stand.
pub mod field {
    use crate::field::Field;

    /// Version, traffic class and flow label.
    pub const VERSION_CLASS_AND_LABEL: Field = 0..4;
    /// Length of what follows this header, in bytes.
    pub const PAYLOAD_LENGTH: Field = 4..6;
    /// Header that follows.
    pub const NEXT_HEADER: usize = 6;
    /// Hop limit.
    pub const HOP_LIMIT: usize = 7;
    /// Source.
    pub const SOURCE: Field = 8..24;
    /// Destination.
    pub const DESTINATION: Field = 24..40;
    /// Both addresses, as the pseudo header of UDP, TCP and ICMPv6 has them.
    pub const ADDRESSES: Field = SOURCE.start..DESTINATION.end;
}

/// Length of a header, in bytes.
pub const HEADER_LEN: usize = field::DESTINATION.end;
/// The bits that a flow label has.
pub const FLOW_LABEL: u32 = 0xf_ffff;

const VERSION: u32 = 6;

/// An IPv6 header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Repr {
    /// Source.
    pub src: Ipv6Addr,
    /// Destination.
    pub dst: Ipv6Addr,
    /// Flow label, 20 bits.
    pub flow_label: u32,
    /// Header that follows.
    pub next_header: u8,
    /// DSCP and ECN.
    pub traffic_class: u8,
    /// Hop limit.
    pub hop_limit: u8,
    /// Length of what follows the header, in bytes.
    pub payload_len: u16,
}

impl Repr {
    /// The header of a packet, and what follows it; `None` if it is not whole, or of another
    /// version. The packet's length is not verified.
    #[inline]
    pub fn parse(packet: &[u8]) -> Option<(Repr, &[u8])> {
        let (header, payload) = packet.split_first_chunk()?;
        is_version(header).then(|| (Repr::of_fields(header), payload))
    }

    /// Reads the fields where they stand, whatever version the header claims.
    #[inline]
    pub fn of_fields(header: &[u8; HEADER_LEN]) -> Repr {
        let word = be32(header, field::VERSION_CLASS_AND_LABEL);
        Repr {
            src: get::<16>(header, field::SOURCE).into(),
            dst: get::<16>(header, field::DESTINATION).into(),
            flow_label: word & FLOW_LABEL,
            next_header: header[field::NEXT_HEADER],
            traffic_class: (word >> 20) as u8,
            hop_limit: header[field::HOP_LIMIT],
            payload_len: be16(header, field::PAYLOAD_LENGTH),
        }
    }

    /// The header as it stands in a packet.
    pub fn emit(&self) -> [u8; HEADER_LEN] {
        let mut out = [0; HEADER_LEN];
        let word =
            VERSION << 28 | u32::from(self.traffic_class) << 20 | self.flow_label & FLOW_LABEL;
        put(&mut out, field::VERSION_CLASS_AND_LABEL, &word.to_be_bytes());
        put(&mut out, field::PAYLOAD_LENGTH, &self.payload_len.to_be_bytes());
        out[field::NEXT_HEADER] = self.next_header;
        out[field::HOP_LIMIT] = self.hop_limit;
        put(&mut out, field::SOURCE, &self.src.octets());
        put(&mut out, field::DESTINATION, &self.dst.octets());
        out
    }
}

/// Whether bytes begin as a header of this version.
#[inline]
pub fn is_version(packet: &[u8]) -> bool {
    u32::from(byte(packet, 0) >> 4) == VERSION
}

/// Puts the length of what follows a header into it.
#[inline]
pub fn set_payload_len(header: &mut [u8], payload_len: u16) {
    put(header, field::PAYLOAD_LENGTH, &payload_len.to_be_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header() -> Repr {
        Repr {
            src: "2001:db8::1".parse().unwrap(),
            dst: "2001:db8::2".parse().unwrap(),
            flow_label: 0x1_2345,
            next_header: 17,
            traffic_class: 0xab,
            hop_limit: 9,
            payload_len: 0x0102,
        }
    }

    #[test]
    fn a_header_is_read_and_made() {
        let mut bytes = header().emit();
        assert_eq!(bytes[..8], [0x6a, 0xb1, 0x23, 0x45, 1, 2, 17, 9]);
        assert_eq!(bytes[8..12], [0x20, 0x01, 0x0d, 0xb8]);
        assert_eq!((bytes[23], bytes[39]), (1, 2));
        let packet = [&bytes[..], &[7]].concat();
        assert_eq!(Repr::parse(&packet), Some((header(), &[7][..])));
        set_payload_len(&mut bytes, 0xfffe);
        assert_eq!(Repr::of_fields(&bytes), Repr { payload_len: 0xfffe, ..header() });
    }

    #[test]
    fn what_is_cut_or_of_another_version_is_no_header() {
        let mut bytes = header().emit();
        for len in 0..HEADER_LEN {
            assert_eq!(Repr::parse(&bytes[..len]), None, "{len} bytes");
        }
        bytes[0] = 0x45;
        assert_eq!(Repr::parse(&bytes), None);
    }
}
