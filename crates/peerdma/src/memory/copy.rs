//! Copies between a region and the program.

use super::slice::resolve;
use super::{Mr, Region};
use crate::error::Result;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

impl<M: Region> Mr<M> {
    /// Copies bytes out, from `offset` on. A peer that writes meanwhile leaves a mixture of old and
    /// new.
    pub fn read(&self, offset: u64, out: &mut [u8]) -> Result<()> {
        let start = self.at(offset, out.len())?;
        let (head, words) = split(start, out.len());
        let (first, rest) = out.split_at_mut(head);
        let (middle, last) = rest.split_at_mut(words * 8);
        // SAFETY: `at` checked that the range lies in the region, which is mapped while `self`
        // lives. `split` gives a head after which the address is a multiple of 8. Shared accesses
        // elsewhere are atomic or the device's.
        unsafe {
            for (i, byte) in first.iter_mut().enumerate() {
                *byte = AtomicU8::from_ptr(start.add(i)).load(Ordering::Relaxed);
            }
            let aligned = start.add(head).cast::<u64>();
            for (i, word) in middle.chunks_exact_mut(8).enumerate() {
                word.copy_from_slice(
                    &AtomicU64::from_ptr(aligned.add(i)).load(Ordering::Relaxed).to_ne_bytes(),
                );
            }
            let tail = start.add(head + words * 8);
            for (i, byte) in last.iter_mut().enumerate() {
                *byte = AtomicU8::from_ptr(tail.add(i)).load(Ordering::Relaxed);
            }
        }
        Ok(())
    }

    /// Copies bytes in, from `offset` on.
    pub fn write(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        let start = self.at(offset, bytes.len())?;
        let (head, words) = split(start, bytes.len());
        let (first, rest) = bytes.split_at(head);
        let (middle, last) = rest.split_at(words * 8);
        // SAFETY: as in `read`.
        unsafe {
            for (i, &byte) in first.iter().enumerate() {
                AtomicU8::from_ptr(start.add(i)).store(byte, Ordering::Relaxed);
            }
            let aligned = start.add(head).cast::<u64>();
            for (i, word) in middle.as_chunks::<8>().0.iter().enumerate() {
                AtomicU64::from_ptr(aligned.add(i))
                    .store(u64::from_ne_bytes(*word), Ordering::Relaxed);
            }
            let tail = start.add(head + words * 8);
            for (i, &byte) in last.iter().enumerate() {
                AtomicU8::from_ptr(tail.add(i)).store(byte, Ordering::Relaxed);
            }
        }
        Ok(())
    }

    fn at(&self, offset: u64, len: usize) -> Result<*mut u8> {
        let (offset, _) = resolve(offset..offset.saturating_add(len as u64), self.len())?;
        // SAFETY: `resolve` checked offset + len against the length of the region.
        Ok(unsafe { self.memory.addr().as_ptr().add(offset as usize) })
    }
}

/// Bytes before the first multiple of 8 and the count of whole words after them.
fn split(start: *mut u8, len: usize) -> (usize, usize) {
    let head = ((start as usize).wrapping_neg() % 8).min(len);
    (head, (len - head) / 8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_begin_at_aligned_addresses() {
        for address in 64..72_usize {
            for len in 0..40 {
                let (head, words) = split(address as *mut u8, len);
                assert!(head + words * 8 <= len && len - head - words * 8 < 8);
                assert!(words == 0 || (address + head).is_multiple_of(8));
            }
        }
    }
}
