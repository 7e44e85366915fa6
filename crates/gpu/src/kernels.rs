//! What the software GPU computes over its memory: fill, copy, add; the hash is in `hash.rs`. Each
//! call returns when it has finished.

use crate::{Buffer, Error};

/// Bytes that a kernel keeps at hand.
pub(crate) const CHUNK: usize = 64 << 10;

impl Buffer {
    /// Sets `len` bytes from `offset` to `byte`.
    ///
    /// # Errors
    /// [`Error::OutOfRange`], [`Error::Fault`]; for the other kernels too.
    pub fn fill(&self, offset: u64, len: u64, byte: u8) -> Result<(), Error> {
        Ok(self.bytes(offset, len)?.memory.fill(byte)?)
    }

    /// Copies `len` bytes from `offset` of this buffer to `to_offset` of another, or of this one
    /// where they do not overlap.
    pub fn copy_to(&self, offset: u64, to: &Buffer, to_offset: u64, len: u64) -> Result<(), Error> {
        let (from, to) = (self.bytes(offset, len)?, to.bytes(to_offset, len)?);
        Ok(to.memory.copy_from(from.memory.source())?)
    }

    /// Adds the bytes of `other` to those of this buffer, as little-endian 64-bit words that wrap,
    /// over the whole length of this buffer. A last piece shorter than a word is taken as if
    /// followed by zeroes.
    pub fn add(&self, other: &Buffer) -> Result<(), Error> {
        let (sum, addend) = (self.bytes(0, self.len())?, other.bytes(0, self.len())?);
        let (to, from) = (sum.memory, addend.memory.source());
        let (mut a, mut b) = (vec![0; CHUNK], vec![0; CHUNK]);
        for at in (0..self.len()).step_by(CHUNK) {
            let len = (self.len() - at).min(CHUNK as u64) as usize;
            to.source().part(at, len as u64)?.read(&mut a[..len])?;
            from.part(at, len as u64)?.read(&mut b[..len])?;
            for (x, y) in a[..len].chunks_mut(8).zip(b[..len].chunks(8)) {
                let word = |bytes: &[u8]| {
                    let mut word = [0; 8];
                    word[..bytes.len()].copy_from_slice(bytes);
                    u64::from_le_bytes(word)
                };
                let sum = word(x).wrapping_add(word(y)).to_le_bytes();
                x.copy_from_slice(&sum[..x.len()]);
            }
            to.part(at, len as u64)?.write(&a[..len])?;
        }
        Ok(())
    }
}
