//! Memory that is nothing but a dma-buf of the kernel's, which the CPU maps.

use crate::provider::check_range;
use crate::{Error, Memory};
use dmabuf::KernelBuffer;
use rustix::io::Errno;
use std::os::fd::{AsFd, OwnedFd};

/// A dma-buf, read and written through its mapping.
pub struct Exported {
    buffer: KernelBuffer,
    len: u64,
}

impl Exported {
    /// Takes the dma-buf, of which `len` bytes are used.
    pub(super) fn new(fd: OwnedFd, len: u64) -> Result<Exported, Error> {
        let buffer = KernelBuffer::import(fd)?;
        if buffer.size() < len {
            return Err(Error::OutOfRange { offset: 0, len, size: buffer.size() });
        }
        Ok(Exported { buffer, len })
    }
}

impl Memory for Exported {
    fn len(&self) -> u64 {
        self.len
    }
    fn export(&self) -> Result<OwnedFd, Error> {
        let copy = rustix::io::fcntl_dupfd_cloexec(self.buffer.as_fd(), 0);
        copy.map_err(|errno: Errno| Error::System("F_DUPFD_CLOEXEC", errno))
    }
    fn read(&self, offset: u64, dst: &mut [u8]) -> Result<(), Error> {
        check_range(offset, dst.len(), self.len)?;
        Ok(self.buffer.read(offset, dst)?)
    }
    fn write(&self, offset: u64, src: &[u8]) -> Result<(), Error> {
        check_range(offset, src.len(), self.len)?;
        Ok(self.buffer.write(offset, src)?)
    }
}

/// `len` rounded up to pages.
pub(super) fn whole_pages(len: u64) -> Result<u64, Error> {
    let rounded = len.checked_next_multiple_of(mm::page_size());
    rounded.filter(|&len| len > 0).ok_or(Error::BadLength(len))
}
