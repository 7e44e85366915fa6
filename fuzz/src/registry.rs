//! Targets of the crate `registry`.

/// Messages between a member and the host of the registry.
pub fn messages(data: &[u8]) {
    registry::decode_anything(data);
}

/// One byte of each kind after a sequence number.
pub fn message_seeds() -> Vec<Vec<u8>> {
    (0..24u8).map(|kind| [&[1, 0, 0, 0, kind], &[2u8; 40][..]].concat()).collect()
}
