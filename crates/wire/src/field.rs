//! Access to the fields of a format by their place, most significant byte first.
//!
//! Nothing here fails: bytes that are not there read as zeros, and what has no room is not written.
//! A format whose header must be whole checks its length once, before it reads.

use std::ops::Range;

/// Where a field stands: its bytes, counted from the beginning of the format.
pub type Field = Range<usize>;

/// The bytes of a field.
#[inline]
pub fn get<const N: usize>(bytes: &[u8], field: Field) -> [u8; N] {
    debug_assert_eq!(field.len(), N, "a field is read as wide as it is");
    match bytes.get(field.start..).and_then(|rest| rest.first_chunk()) {
        Some(chunk) => *chunk,
        None => std::array::from_fn(|index| {
            let at = field.start.checked_add(index);
            at.and_then(|at| bytes.get(at)).copied().unwrap_or_default()
        }),
    }
}

/// A byte of a format.
#[inline]
pub fn byte(bytes: &[u8], at: usize) -> u8 {
    bytes.get(at).copied().unwrap_or_default()
}

/// A field of two bytes.
#[inline]
pub fn be16(bytes: &[u8], field: Field) -> u16 {
    u16::from_be_bytes(get(bytes, field))
}

/// A field of three bytes.
#[inline]
pub fn be24(bytes: &[u8], field: Field) -> u32 {
    let [high, middle, low] = get(bytes, field);
    u32::from_be_bytes([0, high, middle, low])
}

/// A field of four bytes.
#[inline]
pub fn be32(bytes: &[u8], field: Field) -> u32 {
    u32::from_be_bytes(get(bytes, field))
}

/// A field of eight bytes.
#[inline]
pub fn be64(bytes: &[u8], field: Field) -> u64 {
    u64::from_be_bytes(get(bytes, field))
}

/// Puts `value` at the beginning of a field, as far as there is room in the field and in `bytes`.
#[inline]
pub fn put(bytes: &mut [u8], field: Field, value: &[u8]) {
    match bytes.get_mut(field.clone()) {
        Some(place) if place.len() == value.len() => place.copy_from_slice(value),
        _ => {
            let places = bytes.iter_mut().skip(field.start).take(field.len());
            places.zip(value).for_each(|(place, byte)| *place = *byte);
        }
    }
}

/// Puts a byte.
#[inline]
pub fn put_byte(bytes: &mut [u8], at: usize, value: u8) {
    if let Some(place) = bytes.get_mut(at) {
        *place = value;
    }
}

/// Puts the low three bytes of `value`.
#[inline]
pub fn put_be24(bytes: &mut [u8], field: Field, value: u32) {
    let [_, low @ ..] = value.to_be_bytes();
    put(bytes, field, &low);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_big_endian() {
        let mut bytes = [1, 2, 3, 4, 5, 6, 7, 8, 9];
        assert_eq!((be16(&bytes, 0..2), be24(&bytes, 1..4)), (0x0102, 0x02_0304));
        assert_eq!(be32(&bytes, 2..6), 0x0304_0506);
        assert_eq!(be64(&bytes, 1..9), 0x0203_0405_0607_0809);
        put_be24(&mut bytes, 0..3, 0xff0a_0b0c);
        put(&mut bytes, 3..6, &[0xee; 2]);
        assert_eq!(bytes, [10, 11, 12, 0xee, 0xee, 6, 7, 8, 9]);
    }

    #[test]
    fn nothing_is_outside() {
        let mut bytes = [0xff; 3];
        assert_eq!((be16(&bytes, 2..4), be32(&bytes, 3..7)), (0xff00, 0));
        assert_eq!(be16(&bytes, usize::MAX - 2..usize::MAX), 0);
        put(&mut bytes, 2..6, &[1, 2, 3, 4]);
        put(&mut bytes, 0..1, &[7, 8]);
        put_byte(&mut bytes, 3, 9);
        assert_eq!((bytes, byte(&bytes, 3)), ([7, 0xff, 1], 0));
    }
}
