//! The header of the reliable multi-packet protocol (IBA 13.6.2), which stands behind the common
//! one in the datagrams of a transfer.

use super::header::{HEADER_LEN, MAD_LEN};
use crate::field::{be32, put};

/// Where the fields stand, counted from the beginning of the datagram.
pub mod field {
    use crate::field::Field;

    /// Version of the protocol.
    pub const VERSION: usize = super::HEADER_LEN;
    /// Kind of the datagram.
    pub const KIND: usize = 25;
    /// Five bits of the time that an answer may take, and the flags.
    pub const FLAGS: usize = 26;
    /// Status of a transfer that ends.
    pub const STATUS: usize = 27;
    /// Number of the segment, or of the last one that the receiver has.
    pub const SEGMENT: Field = 28..32;
    /// Length of the payload in bytes, or the last segment that may be sent.
    pub const LENGTH: Field = 32..36;
    /// All of them.
    pub const WHOLE: Field = VERSION..LENGTH.end;
}

const VERSION: u8 = 1;
/// RRespTime that says nothing.
const NO_TIME: u8 = 0x1f << 3;
const FLAGS: u8 = 0x07;

/// Kinds of datagrams (IBA 13.6.2.1).
pub mod kind {
    /// A segment.
    pub const DATA: u8 = 1;
    /// Says which segments have come, and which may be sent.
    pub const ACKNOWLEDGE: u8 = 2;
    /// Ends a transfer for want of resources.
    pub const STOP: u8 = 3;
    /// Ends a transfer because of an error.
    pub const ABORT: u8 = 4;
}

/// Flags.
pub mod flag {
    /// The header means something.
    pub const ACTIVE: u8 = 1;
    /// The first segment.
    pub const FIRST: u8 = 2;
    /// The last segment.
    pub const LAST: u8 = 4;
}

/// Status of a transfer that ends because of too many retries.
pub const TOO_MANY_RETRIES: u8 = 126;

/// The header of one datagram of a transfer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Header {
    /// Kind, one of [`kind`] unless the sender is mistaken.
    pub kind: u8,
    /// Flags of [`flag`], 3 bits.
    pub flags: u8,
    /// Status of a transfer that ends.
    pub status: u8,
    /// Number of the segment, from 1, or of the last one that the receiver has.
    pub segment: u32,
    /// Length of the payload in bytes, or the last segment that may be sent.
    pub length: u32,
}

impl Header {
    /// The header of a datagram; `None` if it is no part of a transfer.
    pub fn parse(mad: &[u8; MAD_LEN]) -> Option<Header> {
        let flags = mad[field::FLAGS] & FLAGS;
        (flags & flag::ACTIVE != 0).then(|| Header {
            kind: mad[field::KIND],
            flags,
            status: mad[field::STATUS],
            segment: be32(mad, field::SEGMENT),
            length: be32(mad, field::LENGTH),
        })
    }

    /// Writes the header into a datagram, without a time that an answer may take.
    pub fn emit(&self, mad: &mut [u8; MAD_LEN]) {
        mad[field::VERSION] = VERSION;
        mad[field::KIND] = self.kind;
        mad[field::FLAGS] = NO_TIME | self.flags & FLAGS;
        mad[field::STATUS] = self.status;
        put(mad, field::SEGMENT, &self.segment.to_be_bytes());
        put(mad, field::LENGTH, &self.length.to_be_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_is_read_and_made() {
        let header = Header {
            kind: kind::DATA,
            flags: flag::ACTIVE | flag::LAST,
            status: 7,
            segment: 0x0102_0304,
            length: 220,
        };
        let mut mad = [0; MAD_LEN];
        assert_eq!(Header::parse(&mad), None);
        header.emit(&mut mad);
        assert_eq!(mad[24..36], [1, 1, 0xfd, 7, 1, 2, 3, 4, 0, 0, 0, 220]);
        assert_eq!(Header::parse(&mad), Some(header));
        mad[26] = 0x04;
        assert_eq!(Header::parse(&mad), None, "it is not active");
    }
}
