//! UDP headers (RFC 768).

use super::internet::{fold, sum};
use crate::field::{be16, put};

/// Where the fields stand.
pub mod field {
    use crate::field::Field;

    /// Source port.
    pub const SOURCE: Field = 0..2;
    /// Destination port.
    pub const DESTINATION: Field = 2..4;
    /// Length of the datagram with this header, in bytes.
    pub const LENGTH: Field = 4..6;
    /// Checksum; 0 says that there is none.
    pub const CHECKSUM: Field = 6..8;
}

/// Length of a header, in bytes.
pub const HEADER_LEN: usize = field::CHECKSUM.end;

/// A UDP header but for its checksum.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Repr {
    /// Source port.
    pub src: u16,
    /// Destination port.
    pub dst: u16,
    /// Length of the datagram with its header, in bytes.
    pub len: u16,
}

impl Repr {
    /// The header of a datagram; `None` if it is not whole. Neither checksum nor length is
    /// verified.
    #[inline]
    pub fn parse(datagram: &[u8]) -> Option<Repr> {
        let header: &[u8; HEADER_LEN] = datagram.first_chunk()?;
        Some(Repr {
            src: be16(header, field::SOURCE),
            dst: be16(header, field::DESTINATION),
            len: be16(header, field::LENGTH),
        })
    }

    /// What follows the header of the datagram that it was read from; `None` if the length lies.
    #[inline]
    pub fn payload<'a>(&self, datagram: &'a [u8]) -> Option<&'a [u8]> {
        datagram.get(HEADER_LEN..usize::from(self.len))
    }

    /// The header without a checksum.
    pub fn emit(&self) -> [u8; HEADER_LEN] {
        let mut out = [0; HEADER_LEN];
        put(&mut out, field::SOURCE, &self.src.to_be_bytes());
        put(&mut out, field::DESTINATION, &self.dst.to_be_bytes());
        put(&mut out, field::LENGTH, &self.len.to_be_bytes());
        out
    }

    /// The header with the checksum over `payload` and a pseudo header of this sum.
    pub fn emit_with_checksum(&self, pseudo_header: u64, payload: &[u8]) -> [u8; HEADER_LEN] {
        let mut out = self.emit();
        let value = checksum_of_sum(pseudo_header + sum(&out) + sum(payload));
        put(&mut out, field::CHECKSUM, &value.to_be_bytes());
        out
    }
}

/// The checksum for the sum of pseudo header, header and payload: never 0, which would say that
/// there is none.
pub fn checksum_of_sum(sum: u64) -> u16 {
    match !fold(sum) {
        0 => u16::MAX,
        checksum => checksum,
    }
}

/// Puts the length of a datagram into its header.
#[inline]
pub fn set_len(header: &mut [u8], len: u16) {
    put(header, field::LENGTH, &len.to_be_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: Repr = Repr { src: 0xc001, dst: 4791, len: 11 };

    #[test]
    fn a_header_is_read_and_made() {
        let datagram = [0xc0, 0x01, 0x12, 0xb7, 0, 11, 0, 0, 1, 2, 3, 0xee];
        assert_eq!(HEADER.emit()[..], datagram[..HEADER_LEN]);
        assert_eq!(Repr::parse(&datagram), Some(HEADER));
        assert_eq!(HEADER.payload(&datagram), Some(&[1, 2, 3][..]));
        assert_eq!(HEADER.payload(&datagram[..10]), None);
        assert_eq!(Repr { len: 7, ..HEADER }.payload(&datagram), None);
        assert_eq!(Repr::parse(&datagram[..7]), None);
    }

    #[test]
    fn checksums_are_right_and_never_zero() {
        let out = HEADER.emit_with_checksum(0x1234, &[1, 2, 3]);
        assert_eq!(fold(0x1234 + sum(&out) + sum(&[1, 2, 3])), 0xffff);
        assert_eq!(checksum_of_sum(0xffff), 0xffff);
        assert_eq!(checksum_of_sum(0x0001), 0xfffe);
    }
}
