//! Device memory: one memfd, which the machine maps as BAR 2.

use mm::{Mapping, guard};
use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

/// Least and most bytes of device memory.
const LEAST: u64 = 1 << 20;
const MOST: u64 = 1 << 36;

/// A size that a BAR cannot have.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{0} bytes of device memory: a power of two from 1 MiB to 64 GiB is needed")]
pub struct SizeError(pub u64);

/// The memory. What nobody has written takes no space on this machine.
#[derive(Debug)]
pub(crate) struct Vram {
    fd: Arc<OwnedFd>,
    mapping: Mapping,
}

impl Vram {
    /// # Errors
    /// `InvalidInput` with a [`SizeError`], or what memfd_create and mmap say.
    pub(crate) fn new(bytes: u64) -> io::Result<Vram> {
        if !bytes.is_power_of_two() || !(LEAST..=MOST).contains(&bytes) {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, SizeError(bytes)));
        }
        guard::install();
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let fd = rustix::fs::memfd_create("vgpu", flags)?;
        rustix::fs::ftruncate(&fd, bytes)?;
        // What the machine mapped stays there.
        let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
        rustix::fs::fcntl_add_seals(&fd, seals)?;
        let mapping = Mapping::shared(fd.as_fd(), bytes)?;
        Ok(Vram { fd: Arc::new(fd), mapping })
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.mapping.len()
    }

    pub(crate) fn fd(&self) -> Arc<OwnedFd> {
        self.fd.clone()
    }

    /// Whether `[offset, offset + len)` lies in it.
    pub(crate) fn holds(&self, offset: u64, len: u64) -> bool {
        offset.checked_add(len).is_some_and(|end| end <= self.bytes())
    }

    /// Copies out; `None` for what is not there.
    pub(crate) fn read(&self, offset: u64, data: &mut [u8]) -> Option<()> {
        self.mapping.source().part(offset, data.len() as u64).ok()?.read(data).ok()
    }

    /// Copies in; `None` for what is not there.
    pub(crate) fn write(&self, offset: u64, data: &[u8]) -> Option<()> {
        self.mapping.sink().part(offset, data.len() as u64).ok()?.write(data).ok()
    }

    /// Zeroes it and gives its pages back.
    pub(crate) fn clear(&self) {
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        if rustix::fs::fallocate(&*self.fd, flags, 0, self.bytes()).is_err() {
            // Every memfd has holes; were there one that has none, its bytes still must not reach
            // the next driver.
            let _ = self.mapping.sink().fill(0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_those_of_bars() {
        for bytes in [0, 4096, 3 << 20, LEAST - 1, MOST * 2] {
            let error = Vram::new(bytes).unwrap_err();
            let inner = error.into_inner().unwrap();
            assert_eq!(inner.downcast_ref(), Some(&SizeError(bytes)));
        }
    }

    #[test]
    fn holds_bytes_until_it_is_cleared() {
        let vram = Vram::new(LEAST).unwrap();
        let end = LEAST - 3;
        assert_eq!(vram.write(end, b"abc"), Some(()));
        assert_eq!(vram.write(end, b"abcd"), None);
        assert_eq!(vram.write(u64::MAX, b"a"), None);
        let mut found = [0; 3];
        assert_eq!(vram.read(end, &mut found), Some(()));
        assert_eq!(&found, b"abc");
        vram.clear();
        assert_eq!(vram.read(end, &mut found), Some(()));
        assert_eq!(found, [0; 3]);
        assert_eq!(vram.read(end + 1, &mut found), None);
    }
}
