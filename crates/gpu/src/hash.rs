//! A hash over the software GPU's memory: what proves a transfer.

use crate::kernels::CHUNK;
use crate::{Buffer, Error};
use std::fmt;

/// A hash of a range (BLAKE3).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Digest(pub [u8; 32]);

impl Digest {
    /// The first 64 bits, for places where collisions need not be excluded.
    pub fn short(&self) -> u64 {
        let [a, b, c, d, e, f, g, h, ..] = self.0;
        u64::from_le_bytes([a, b, c, d, e, f, g, h])
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl Buffer {
    /// Hashes `len` bytes from `offset`. Errors as for [`Buffer::fill`].
    pub fn hash(&self, offset: u64, len: u64) -> Result<Digest, Error> {
        let bytes = self.bytes(offset, len)?;
        let from = bytes.memory.source();
        let mut hasher = blake3::Hasher::new();
        let mut chunk = vec![0; CHUNK];
        for at in (0..len).step_by(CHUNK) {
            let piece = &mut chunk[..(len - at).min(CHUNK as u64) as usize];
            from.part(at, piece.len() as u64)?.read(piece)?;
            hasher.update(piece);
        }
        Ok(Digest(*hasher.finalize().as_bytes()))
    }
}
