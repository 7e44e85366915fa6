//! TCP headers (RFC 9293, section 3.1), as far as somebody looks who only passes segments on.

use crate::field::{be16, be32, put, put_byte};

/// Where the fields stand.
pub mod field {
    use crate::field::Field;

    /// Source port.
    pub const SOURCE: Field = 0..2;
    /// Destination port.
    pub const DESTINATION: Field = 2..4;
    /// Sequence number.
    pub const SEQUENCE: Field = 4..8;
    /// Control bits.
    pub const FLAGS: usize = 13;
    /// Checksum.
    pub const CHECKSUM: Field = 16..18;
}

/// Length of a header without options, in bytes.
pub const HEADER_LEN: usize = 20;

/// Control bit: the sender sends no more.
pub const FIN: u8 = 0x01;
/// Control bit: what was sent so far is for the receiver's program at once.
pub const PSH: u8 = 0x08;
/// Control bit: the sender has reduced its congestion window.
pub const CWR: u8 = 0x80;

/// What is read of a TCP header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Repr {
    /// Source port.
    pub src: u16,
    /// Destination port.
    pub dst: u16,
    /// Sequence number.
    pub sequence: u32,
    /// Control bits.
    pub flags: u8,
}

impl Repr {
    /// The header of a segment; `None` if it is not whole. Its checksum is not verified.
    #[inline]
    pub fn parse(segment: &[u8]) -> Option<Repr> {
        let header: &[u8; HEADER_LEN] = segment.first_chunk()?;
        Some(Repr {
            src: be16(header, field::SOURCE),
            dst: be16(header, field::DESTINATION),
            sequence: be32(header, field::SEQUENCE),
            flags: header[field::FLAGS],
        })
    }

    /// Writes what is read of a header over one that is there already.
    pub fn emit_over(&self, header: &mut [u8]) {
        put(header, field::SOURCE, &self.src.to_be_bytes());
        put(header, field::DESTINATION, &self.dst.to_be_bytes());
        put(header, field::SEQUENCE, &self.sequence.to_be_bytes());
        put_byte(header, field::FLAGS, self.flags);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_is_read_and_changed() {
        let mut bytes = [
            0x12, 0x34, 0, 80, 0xff, 0xff, 0xff, 0xf0, 0, 0, 0, 1, 0x50, 0x99, 1, 0, 0xaa, 0xbb, 0,
            0,
        ];
        let header = Repr { src: 0x1234, dst: 80, sequence: 0xffff_fff0, flags: 0x99 };
        assert_eq!(Repr::parse(&bytes), Some(header));
        assert_eq!(Repr::parse(&bytes[..19]), None);
        let next = Repr { sequence: 8, flags: 0x10, ..header };
        next.emit_over(&mut bytes);
        assert_eq!(Repr::parse(&bytes), Some(next));
        assert_eq!(bytes[12..], [0x50, 0x10, 1, 0, 0xaa, 0xbb, 0, 0], "the rest stays");
    }
}
