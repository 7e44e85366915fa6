//! What the software GPU computes over its memory: fill, copy, add, hash. Each call returns when it has finished.

use crate::{Buffer, Error};
use mm::guard;
use std::fmt;

/// Bytes that a kernel keeps at hand.
const CHUNK: usize = 64 << 10;

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
    /// Sets `len` bytes from `offset` to `byte`.
    ///
    /// # Errors
    /// [`Error::OutOfRange`], [`Error::Fault`]; for the other kernels too.
    pub fn fill(&self, offset: u64, len: u64, byte: u8) -> Result<(), Error> {
        // a checked range fits the address space
        Ok(guard::fill(self.addr(offset, len)?, byte, len as usize)?)
    }

    /// Copies `len` bytes from `offset` of this buffer to `to_offset` of another, or of this one where they do not overlap.
    pub fn copy_to(&self, offset: u64, to: &Buffer, to_offset: u64, len: u64) -> Result<(), Error> {
        let (from, to) = (self.addr(offset, len)?, to.addr(to_offset, len)?);
        Ok(guard::copy(to, from, len as usize)?)
    }

    /// Adds the bytes of `other` to those of this buffer, as little-endian 64-bit words that wrap, over the whole length of this
    /// buffer. A last piece shorter than a word is taken as if followed by zeroes.
    pub fn add(&self, other: &Buffer) -> Result<(), Error> {
        let (to, from) = (self.addr(0, self.len())?, other.addr(0, self.len())?);
        let (mut a, mut b) = (vec![0; CHUNK], vec![0; CHUNK]);
        for at in (0..self.len()).step_by(CHUNK) {
            let len = (self.len() - at).min(CHUNK as u64) as usize;
            guard::copy_from(to + at, &mut a[..len])?;
            guard::copy_from(from + at, &mut b[..len])?;
            for (x, y) in a[..len].chunks_mut(8).zip(b[..len].chunks(8)) {
                let word = |bytes: &[u8]| {
                    let mut word = [0; 8];
                    word[..bytes.len()].copy_from_slice(bytes);
                    u64::from_le_bytes(word)
                };
                let sum = word(x).wrapping_add(word(y)).to_le_bytes();
                x.copy_from_slice(&sum[..x.len()]);
            }
            guard::copy_to(to + at, &a[..len])?;
        }
        Ok(())
    }

    /// Hashes `len` bytes from `offset`.
    pub fn hash(&self, offset: u64, len: u64) -> Result<Digest, Error> {
        let from = self.addr(offset, len)?;
        let mut hasher = blake3::Hasher::new();
        let mut chunk = vec![0; CHUNK];
        for at in (0..len).step_by(CHUNK) {
            let piece = &mut chunk[..(len - at).min(CHUNK as u64) as usize];
            guard::copy_from(from + at, piece)?;
            hasher.update(piece);
        }
        Ok(Digest(*hasher.finalize().as_bytes()))
    }
}
