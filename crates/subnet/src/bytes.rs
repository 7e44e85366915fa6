//! Fields of management datagrams and records by their place, most significant byte first.

/// Bytes at `at`; zeros beyond the end.
pub(crate) fn get<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    std::array::from_fn(|index| bytes.get(at + index).copied().unwrap_or_default())
}

pub(crate) fn be16(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes(get(bytes, at))
}

pub(crate) fn be32(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(get(bytes, at))
}

pub(crate) fn be64(bytes: &[u8], at: usize) -> u64 {
    u64::from_be_bytes(get(bytes, at))
}

/// Puts `value` at `at`, as far as there is room.
pub(crate) fn put(bytes: &mut [u8], at: usize, value: &[u8]) {
    bytes.iter_mut().skip(at).zip(value).for_each(|(place, byte)| *place = *byte);
}

/// The common header (IBA 13.4.2).
pub(crate) mod header {
    pub(crate) const CLASS: usize = 1;
    pub(crate) const CLASS_VERSION: usize = 2;
    pub(crate) const METHOD: usize = 3;
    pub(crate) const STATUS: usize = 4;
    pub(crate) const HOP_POINTER: usize = 6;
    pub(crate) const HOP_COUNT: usize = 7;
    pub(crate) const TRANSACTION: usize = 8;
    pub(crate) const ATTRIBUTE: usize = 16;
    pub(crate) const MODIFIER: usize = 20;
}

/// Methods (IBA 13.4.5, 15.2.2).
pub(crate) mod method {
    pub(crate) const GET: u8 = 0x01;
    pub(crate) const SET: u8 = 0x02;
    pub(crate) const REPORT: u8 = 0x06;
    pub(crate) const GET_TABLE: u8 = 0x12;
    pub(crate) const DELETE: u8 = 0x15;
    pub(crate) const RESPONSE: u8 = 0x80;
    pub(crate) const GET_RESPONSE: u8 = 0x81;
}

/// Status: class version not supported (IBA 13.4.7).
pub(crate) const BAD_VERSION: u16 = 1 << 2;
/// Method not supported.
pub(crate) const BAD_METHOD: u16 = 2 << 2;
/// Method and attribute are not supported together.
pub(crate) const BAD_ATTRIBUTE: u16 = 3 << 2;
/// A field of the attribute or its modifier is invalid.
pub(crate) const BAD_FIELD: u16 = 7 << 2;
