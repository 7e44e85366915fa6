//! IPv4 headers (RFC 791, section 3.1). Options are skipped on reading, and never written.

use super::internet::{checksum, fold, sum};
use crate::field::{be16, byte, get, put};
use std::net::Ipv4Addr;

/// Where the fields stand.
pub mod field {
    use crate::field::Field;

    /// Version, and the header's length in units of four bytes.
    pub const VERSION_AND_LENGTH: usize = 0;
    /// Type of service: DSCP and ECN.
    pub const TOS: usize = 1;
    /// Length of the packet with this header, in bytes.
    pub const TOTAL_LENGTH: Field = 2..4;
    /// Identification.
    pub const IDENTIFICATION: Field = 4..6;
    /// Flags, and the fragment's offset in units of eight bytes.
    pub const FRAGMENT: Field = 6..8;
    /// Time to live.
    pub const TTL: usize = 8;
    /// Protocol that follows.
    pub const PROTOCOL: usize = 9;
    /// Checksum of the header.
    pub const CHECKSUM: Field = 10..12;
    /// Source.
    pub const SOURCE: Field = 12..16;
    /// Destination.
    pub const DESTINATION: Field = 16..20;
    /// Both addresses, as the pseudo header of UDP and TCP has them.
    pub const ADDRESSES: Field = SOURCE.start..DESTINATION.end;
}

/// Length of a header without options, in bytes.
pub const HEADER_LEN: usize = field::DESTINATION.end;

const VERSION: u8 = 4;
/// What [`field::FRAGMENT`] holds of a packet that is whole and stays so.
pub const DONT_FRAGMENT: u16 = 0x4000;
const MORE_FRAGMENTS: u16 = 0x2000;
const FRAGMENT_OFFSET: u16 = 0x1fff;

/// An IPv4 header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Repr {
    /// Source.
    pub src: Ipv4Addr,
    /// Destination.
    pub dst: Ipv4Addr,
    /// Protocol that follows.
    pub protocol: u8,
    /// Type of service: DSCP and ECN.
    pub tos: u8,
    /// Time to live.
    pub ttl: u8,
    /// Identification.
    pub identification: u16,
    /// Whether routers must not fragment it.
    pub dont_fragment: bool,
    /// Whether a fragment follows.
    pub more_fragments: bool,
    /// Where the fragment stands in its packet, in units of eight bytes; 13 bits.
    pub fragment_offset: u16,
    /// Length of the packet with its header, in bytes.
    pub total_len: u16,
}

impl Repr {
    /// The header of a packet, and what follows it; `None` if it is not whole, or of another
    /// version. Neither its checksum nor the packet's length is verified.
    #[inline]
    pub fn parse(packet: &[u8]) -> Option<(Repr, &[u8])> {
        let header = packet.first_chunk()?;
        let len = header_len(header);
        if header[field::VERSION_AND_LENGTH] >> 4 != VERSION || len < HEADER_LEN {
            return None;
        }
        Some((Repr::of_fields(header), packet.get(len..)?))
    }

    /// Reads the fields where they stand, whatever version and length the header claims.
    #[inline]
    pub fn of_fields(header: &[u8; HEADER_LEN]) -> Repr {
        let fragment = be16(header, field::FRAGMENT);
        Repr {
            src: get(header, field::SOURCE).into(),
            dst: get(header, field::DESTINATION).into(),
            protocol: header[field::PROTOCOL],
            tos: header[field::TOS],
            ttl: header[field::TTL],
            identification: be16(header, field::IDENTIFICATION),
            dont_fragment: fragment & DONT_FRAGMENT != 0,
            more_fragments: fragment & MORE_FRAGMENTS != 0,
            fragment_offset: fragment & FRAGMENT_OFFSET,
            total_len: be16(header, field::TOTAL_LENGTH),
        }
    }

    /// Whether it is the header of a part of a packet.
    #[inline]
    pub fn is_fragment(&self) -> bool {
        self.more_fragments || self.fragment_offset != 0
    }

    /// The header with a right checksum and no options.
    pub fn emit(&self) -> [u8; HEADER_LEN] {
        let mut out = [0; HEADER_LEN];
        let dont_fragment = if self.dont_fragment { DONT_FRAGMENT } else { 0 };
        let more_fragments = if self.more_fragments { MORE_FRAGMENTS } else { 0 };
        let fragment = dont_fragment | more_fragments | self.fragment_offset & FRAGMENT_OFFSET;
        out[field::VERSION_AND_LENGTH] = VERSION << 4 | (HEADER_LEN / 4) as u8;
        out[field::TOS] = self.tos;
        out[field::TTL] = self.ttl;
        out[field::PROTOCOL] = self.protocol;
        put(&mut out, field::TOTAL_LENGTH, &self.total_len.to_be_bytes());
        put(&mut out, field::IDENTIFICATION, &self.identification.to_be_bytes());
        put(&mut out, field::FRAGMENT, &fragment.to_be_bytes());
        put(&mut out, field::SOURCE, &self.src.octets());
        put(&mut out, field::DESTINATION, &self.dst.octets());
        fill_checksum(&mut out);
        out
    }
}

/// Whether bytes begin as a header of this version.
pub fn is_version(packet: &[u8]) -> bool {
    byte(packet, field::VERSION_AND_LENGTH) >> 4 == VERSION
}

/// The length that a header claims, in bytes; 0 to 60.
#[inline]
pub fn header_len(header: &[u8]) -> usize {
    usize::from(byte(header, field::VERSION_AND_LENGTH) & 0xf) * 4
}

/// Fills the checksum of a header in; `header` ends with it.
#[inline]
pub fn fill_checksum(header: &mut [u8]) {
    put(header, field::CHECKSUM, &[0; 2]);
    let value = checksum(header);
    put(header, field::CHECKSUM, &value.to_be_bytes());
}

/// Whether the checksum of a header is right; `header` ends with it.
pub fn checksum_is_right(header: &[u8]) -> bool {
    fold(sum(header)) == 0xffff
}

/// Puts the length of a packet into its header and fills the checksum in; `header` ends with it.
#[inline]
pub fn set_total_len(header: &mut [u8], total_len: u16) {
    put(header, field::TOTAL_LENGTH, &total_len.to_be_bytes());
    fill_checksum(header);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A header well known from textbooks, whose checksum is 0xb861.
    const BYTES: [u8; HEADER_LEN] =
        [0x45, 0, 0, 0x73, 0, 0, 0x40, 0, 0x40, 0x11, 0xb8, 0x61, 192, 168, 0, 1, 192, 168, 0, 199];

    fn header() -> Repr {
        Repr {
            src: Ipv4Addr::new(192, 168, 0, 1),
            dst: Ipv4Addr::new(192, 168, 0, 199),
            protocol: 17,
            tos: 0,
            ttl: 64,
            identification: 0,
            dont_fragment: true,
            more_fragments: false,
            fragment_offset: 0,
            total_len: 0x73,
        }
    }

    #[test]
    fn a_header_is_read_and_made() {
        assert_eq!(header().emit(), BYTES);
        assert_eq!(Repr::parse(&BYTES), Some((header(), &[][..])));
        assert!(checksum_is_right(&BYTES) && is_version(&BYTES));
        let other = Repr {
            tos: 0xb9,
            identification: 0x1234,
            dont_fragment: false,
            more_fragments: true,
            fragment_offset: 0x1abc,
            ..header()
        };
        let bytes = other.emit();
        assert_eq!(bytes[1..8], [0xb9, 0, 0x73, 0x12, 0x34, 0x3a, 0xbc]);
        assert_eq!(Repr::parse(&bytes), Some((other, &[][..])));
        assert!(other.is_fragment() && !header().is_fragment());
    }

    #[test]
    fn options_are_skipped_and_must_be_there() {
        let mut packet = [&BYTES[..], &[1; 4], &[9]].concat();
        packet[0] = 0x46;
        assert_eq!(Repr::parse(&packet), Some((header(), &[9][..])));
        assert_eq!(Repr::parse(&packet[..23]), None);
    }

    #[test]
    fn what_is_cut_or_of_another_version_is_no_header() {
        for len in 0..HEADER_LEN {
            assert_eq!(Repr::parse(&BYTES[..len]), None, "{len} bytes");
        }
        for first in [0x55, 0x44, 0x65, 0] {
            let mut wrong = BYTES;
            wrong[0] = first;
            assert_eq!(Repr::parse(&wrong), None, "{first:#x}");
        }
    }

    #[test]
    fn a_new_length_has_a_right_checksum() {
        let mut bytes = BYTES;
        set_total_len(&mut bytes, 0x1234);
        assert!(checksum_is_right(&bytes));
        assert_eq!(Repr::of_fields(&bytes), Repr { total_len: 0x1234, ..header() });
        bytes[field::TTL] = 1;
        assert!(!checksum_is_right(&bytes));
    }
}
