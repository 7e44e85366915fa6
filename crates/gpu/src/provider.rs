//! What every source of device memory offers, whatever it is made of.

use crate::Error;
use std::os::fd::OwnedFd;

/// What a provider's exports can do (`reference`: the exporter table of the kernel facts).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Traits {
    /// Exports have pin and invalidate: the buffer may move while it is registered.
    pub dynamic: bool,
    /// Exports can be mapped by the CPU.
    pub mmap: bool,
}

/// A source of device memory.
pub trait Provider: Send + Sync {
    /// Name for display.
    fn name(&self) -> &str;
    /// What its exports can do.
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
}
