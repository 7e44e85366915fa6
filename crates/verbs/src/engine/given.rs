//! The device memory of an HCA: how much of it programs have.

use crate::base::ffi::{Errno, Res};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst};
use umem::DeviceMemory;

/// All device memory of one HCA, as much as a ConnectX shows.
pub const MAX_BYTES: u64 = 256 << 10;

/// Bytes that an HCA has given out.
#[derive(Default)]
pub struct Given(AtomicU64);

/// One allocation.
pub struct Memory {
    pub bytes: DeviceMemory,
    pub len: u64,
    given: Arc<Given>,
    pub regions: AtomicUsize,
}

impl Memory {
    pub fn new(given: &Arc<Given>, len: u64) -> Res<Memory> {
        let charged = given.0.fetch_update(SeqCst, SeqCst, |used| {
            used.checked_add(len).filter(|&total| total <= MAX_BYTES)
        });
        charged.map_err(|_| Errno(libc::ENOMEM))?;
        match DeviceMemory::new(len) {
            Ok(bytes) => {
                Ok(Memory { bytes, len, given: given.clone(), regions: AtomicUsize::new(0) })
            }
            Err(error) => {
                given.0.fetch_sub(len, SeqCst);
                Err(Errno(error.raw_os_error().unwrap_or(libc::ENOMEM)))
            }
        }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        self.given.0.fetch_sub(self.len, SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_memory_is_bounded_and_comes_back() {
        let given = Arc::default();
        let first = Memory::new(&given, MAX_BYTES / 2).unwrap();
        let second = Memory::new(&given, MAX_BYTES / 2).unwrap();
        assert!(Memory::new(&given, 4).is_err());
        assert!(Memory::new(&Arc::default(), MAX_BYTES).is_ok(), "another HCA has its own");
        drop(first);
        assert!(Memory::new(&given, 4).is_ok());
        drop(second);
    }
}
