//! Memory of this program that a region can own.

use crate::error::{Error, Result};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;

/// Memory that can be registered and that nothing else in the program refers to.
///
/// # Safety
/// From the first call of these functions until the value is dropped: `addr` and `len` are always
/// the same, all bytes are mapped, readable and writable, nobody else in the program reads or
/// writes them except through the [`Mr`](crate::Mr) that owns the value, and they stay in place
/// when the value moves.
pub unsafe trait Region: Send + Sync {
    /// First byte.
    fn addr(&self) -> NonNull<u8>;
    /// Length in bytes.
    fn len(&self) -> usize;
    /// Whether there is no byte.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Page-aligned host memory, zeroed.
#[derive(Debug)]
pub struct HostBuffer {
    addr: NonNull<u8>,
    len: usize,
}

// SAFETY: the buffer is its own mapping; nothing in it belongs to a thread.
unsafe impl Send for HostBuffer {}
// SAFETY: a shared buffer offers no access to the bytes.
unsafe impl Sync for HostBuffer {}

impl HostBuffer {
    /// Maps `len` bytes, at least one.
    pub fn new(len: usize) -> Result<HostBuffer> {
        HostBuffer::map(len, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1)
    }

    fn map(len: usize, flags: libc::c_int, fd: libc::c_int) -> Result<HostBuffer> {
        if len == 0 {
            return Err(Error::Argument("a buffer holds at least one byte"));
        }
        // SAFETY: a mapping at an address of the kernel's choice touches no existing memory.
        let addr = unsafe {
            libc::mmap(std::ptr::null_mut(), len, libc::PROT_READ | libc::PROT_WRITE, flags, fd, 0)
        };
        match NonNull::new(addr.cast::<u8>()) {
            Some(addr) if addr.as_ptr().cast() != libc::MAP_FAILED => Ok(HostBuffer { addr, len }),
            _ => Err(Error::last("mmap")),
        }
    }
}

impl Drop for HostBuffer {
    fn drop(&mut self) {
        // SAFETY: the mapping made in `new`, which nobody uses after its owner is dropped.
        unsafe { libc::munmap(self.addr.as_ptr().cast(), self.len) };
    }
}

// SAFETY: the mapping is private to the value, fixed, readable and writable until the drop.
unsafe impl Region for HostBuffer {
    fn addr(&self) -> NonNull<u8> {
        self.addr
    }
    fn len(&self) -> usize {
        self.len
    }
}

/// A mapping of a descriptor's bytes, such as a GPU's memory. Whoever else has the descriptor may
/// write them at any time, as a peer may write registered memory.
#[derive(Debug)]
pub struct MappedBuffer(HostBuffer);

impl MappedBuffer {
    /// Maps `len` bytes, at least one, from the start.
    pub fn new(fd: BorrowedFd<'_>, len: u64) -> Result<MappedBuffer> {
        let len =
            usize::try_from(len).map_err(|_| Error::Argument("longer than the address space"))?;
        HostBuffer::map(len, libc::MAP_SHARED, fd.as_raw_fd()).map(MappedBuffer)
    }
}

// SAFETY: as for HostBuffer; what others do to the bytes by the descriptor is of the same kind as
// what peers do.
unsafe impl Region for MappedBuffer {
    fn addr(&self) -> NonNull<u8> {
        self.0.addr
    }
    fn len(&self) -> usize {
        self.0.len
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_buffer_is_refused() {
        assert!(HostBuffer::new(0).is_err());
    }
}
