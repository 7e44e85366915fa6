//! What every source of device memory offers, whatever it is made of.

use crate::Error;
use std::os::fd::OwnedFd;

/// Where memory is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Residence {
    /// The host's memory.
    Host,
    /// The device's own.
    Device,
}

/// What a provider's exports are, as its driver has them (the exporter table of the kernel facts).
/// `None`: not known, for a driver that is not in that table.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Traits {
    /// Dynamic: the exporter has `pin`, and tells importers that can let go of the memory when it
    /// must move. The others are static: the memory stays where it is from the first import to the
    /// last.
    pub dynamic: Option<bool>,
    /// The CPU may map an export.
    pub mmap: Option<bool>,
    /// The bytes may change place while they are exported and imported.
    pub moves: Option<bool>,
    /// Where the memory is when it is allocated.
    pub residence: Option<Residence>,
}

/// A source of device memory.
pub trait Provider: Send + Sync {
    /// Name for display.
    fn name(&self) -> &str;
    /// What its exports are.
    fn traits(&self) -> Traits;
    /// PCI address of the device, if it is one.
    fn address(&self) -> Option<pcie::Address>;
    /// Allocates at least `len` bytes.
    fn alloc(&self, len: u64) -> Result<Box<dyn Memory>, Error>;
}

/// Allocated device memory; freed when dropped.
pub trait Memory: Send + Sync {
    /// Length in bytes as asked for.
    fn len(&self) -> u64;
    /// Whether the length is 0.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// A dma-buf descriptor of the memory, rounded up to pages.
    fn export(&self) -> Result<OwnedFd, Error>;
    /// Copies from the device.
    fn read(&self, offset: u64, dst: &mut [u8]) -> Result<(), Error>;
    /// Copies to the device.
    fn write(&self, offset: u64, src: &[u8]) -> Result<(), Error>;
    /// Hashes the whole: on the device if it computes, else by the CPU from what it reads.
    #[cfg(feature = "hash")]
    fn hash(&self) -> Result<crate::Digest, Error> {
        let mut hasher = blake3::Hasher::new();
        let mut chunk = vec![0; crate::kernels::CHUNK];
        for at in (0..self.len()).step_by(chunk.len()) {
            let len = (self.len() - at).min(chunk.len() as u64) as usize;
            self.read(at, &mut chunk[..len])?;
            hasher.update(&chunk[..len]);
        }
        Ok(crate::Digest(*hasher.finalize().as_bytes()))
    }
}

/// That `len` bytes from `offset` are within `size`.
#[cfg(feature = "providers")]
pub(crate) fn check_range(offset: u64, len: usize, size: u64) -> Result<(), Error> {
    let len = len as u64;
    match offset.checked_add(len) {
        Some(end) if end <= size => Ok(()),
        _ => Err(Error::OutOfRange { offset, len, size }),
    }
}
