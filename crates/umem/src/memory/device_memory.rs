//! Memory of a device itself, which its registrations reach without crossing any link
//! (`ibv_alloc_dm(3)`).
//!
//! It is a [`DmaSpace`] whose addresses are offsets. Peers write it at any time, so its bytes are
//! reached by guarded copies only.

use crate::memory::space::{AccessError, DmaSpace};
use mm::{AtomicOp, Mapping, Sink, guard};
use std::io;

/// Bytes of device memory, all zero at first. After a fork both processes see the same ones, as
/// those of a real device.
#[derive(Debug)]
pub struct DeviceMemory(Mapping);

impl DeviceMemory {
    /// `len` bytes. The error is `mmap(2)`'s.
    pub fn new(len: u64) -> io::Result<DeviceMemory> {
        guard::install();
        Mapping::anonymous_shared(len).map(DeviceMemory)
    }

    /// Whether `[offset, offset + len)` is inside.
    pub fn holds(&self, offset: u64, len: u64) -> bool {
        offset.checked_add(len).is_some_and(|end| end <= self.0.len())
    }

    /// A range, as it lies in this process.
    ///
    /// # Errors
    /// [`AccessError::OutOfRange`] if it is not inside.
    pub fn at(&self, offset: u64, len: u64) -> Result<Sink<'_>, AccessError> {
        self.0.sink().part(offset, len).map_err(|_| AccessError::OutOfRange)
    }
}

impl DmaSpace for DeviceMemory {
    fn read(&self, addr: u64, dst: &mut [u8]) -> Result<(), AccessError> {
        Ok(self.at(addr, dst.len() as u64)?.source().read(dst)?)
    }

    fn write(&self, addr: u64, src: &[u8]) -> Result<(), AccessError> {
        Ok(self.at(addr, src.len() as u64)?.write(src)?)
    }

    fn atomic(&self, addr: u64, op: AtomicOp) -> Result<u64, AccessError> {
        Ok(self.at(addr, 8)?.atomic_u64(op)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_reached_by_offset_and_nothing_is_beyond_it() {
        let memory = DeviceMemory::new(4096).unwrap();
        assert_eq!(memory.at(0, 0).unwrap().addr() % 4096, 0);
        memory.write(8, &7u64.to_ne_bytes()).unwrap();
        assert_eq!(memory.atomic(8, AtomicOp::FetchAdd { add: 1 }), Ok(7));
        let mut word = [0; 8];
        memory.read(8, &mut word).unwrap();
        assert_eq!(u64::from_ne_bytes(word), 8);
        assert_eq!(memory.write(4092, &[0; 8]), Err(AccessError::OutOfRange));
        assert_eq!(memory.read(u64::MAX, &mut word), Err(AccessError::OutOfRange));
        assert!(memory.holds(0, 4096) && !memory.holds(4, 4096) && !memory.holds(u64::MAX, 2));
    }
}
