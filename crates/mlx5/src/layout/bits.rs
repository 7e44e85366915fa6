//! Fields of the device's structures: big-endian, counted in bits from the start, as the
//! Programmer's Reference Manual and the kernel's `mlx5_ifc.h` count them.
//!
//! A field is a constant next to the structure it belongs to. Reading outside of what is there
//! gives 0 and writing there does nothing: structures come from a guest, which may send less than
//! it should.

/// Where a field is: bits from the start of its structure, and its width of at most 64 bits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Field {
    bit: usize,
    width: usize,
}

impl Field {
    pub(crate) const fn new(bit: usize, width: usize) -> Field {
        assert!(width >= 1 && width <= 64);
        Field { bit, width }
    }

    /// The same field of a structure that begins `bits` later.
    pub(crate) const fn at(self, bits: usize) -> Field {
        Field { bit: self.bit + bits, ..self }
    }

    /// The same field of a structure that begins `bits` earlier.
    pub(crate) const fn at_start(self, bits: usize) -> Field {
        Field { bit: self.bit - bits, ..self }
    }

    /// The same field of an answer without its first 8 bytes, status and syndrome, which are put
    /// before it later.
    pub(crate) const fn before_head(self) -> Field {
        self.at_start(64)
    }

    pub(crate) fn get(self, bytes: &[u8]) -> u64 {
        (self.bit..self.bit + self.width).fold(0, |value, bit| {
            let byte = bytes.get(bit / 8).copied().unwrap_or(0);
            value << 1 | u64::from(byte >> (7 - bit % 8) & 1)
        })
    }

    pub(crate) fn get32(self, bytes: &[u8]) -> u32 {
        self.get(bytes) as u32
    }

    /// Whether a field of one bit is set.
    pub(crate) fn is_set(self, bytes: &[u8]) -> bool {
        self.get(bytes) != 0
    }

    /// Stores the low bits of `value`.
    pub(crate) fn set(self, bytes: &mut [u8], value: u64) {
        for step in 0..self.width {
            let bit = self.bit + step;
            let Some(byte) = bytes.get_mut(bit / 8) else { return };
            let mask = 0x80 >> (bit % 8);
            if value >> (self.width - 1 - step) & 1 == 1 { *byte |= mask } else { *byte &= !mask }
        }
    }
}

/// A big-endian word at byte `at`; 0 outside.
pub(crate) fn be32(bytes: &[u8], at: usize) -> u32 {
    word(bytes, at).map_or(0, u32::from_be_bytes)
}

/// As [`be32`] for 8 bytes.
pub(crate) fn be64(bytes: &[u8], at: usize) -> u64 {
    word(bytes, at).map_or(0, u64::from_be_bytes)
}

/// As [`be32`] for 2 bytes.
pub(crate) fn be16(bytes: &[u8], at: usize) -> u16 {
    word(bytes, at).map_or(0, u16::from_be_bytes)
}

fn word<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..at.checked_add(N)?)?.try_into().ok()
}

/// Stores `value` at byte `at`; nothing outside.
pub(crate) fn put(bytes: &mut [u8], at: usize, value: &[u8]) {
    if let Some(place) = at.checked_add(value.len()).and_then(|end| bytes.get_mut(at..end)) {
        place.copy_from_slice(value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_big_endian_and_leave_their_neighbours() {
        let mut bytes = [0xff; 8];
        let field = Field::new(12, 10);
        field.set(&mut bytes, 0x155);
        assert_eq!(bytes, [0xff, 0xf5, 0x57, 0xff, 0xff, 0xff, 0xff, 0xff]);
        assert_eq!(field.get(&bytes), 0x155);
        assert_eq!(field.at(1).get(&bytes), 0x2ab, "the bit behind it is set");
    }

    #[test]
    fn nothing_is_outside() {
        let mut bytes = [0xff; 2];
        assert_eq!(Field::new(12, 8).get(&bytes), 0xf0);
        Field::new(16, 32).set(&mut bytes, 5);
        Field::new(usize::MAX - 64, 32).set(&mut bytes, 5);
        put(&mut bytes, 1, &[0, 0]);
        put(&mut bytes, usize::MAX, &[0, 0]);
        assert_eq!(bytes, [0xff; 2]);
        assert_eq!((be16(&bytes, 1), be32(&bytes, 0), be64(&bytes, usize::MAX)), (0, 0, 0));
    }
}
