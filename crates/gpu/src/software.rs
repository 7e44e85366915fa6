//! The software GPU: a card's worth of memory made of memfds.
//!
//! A buffer is one memfd that holds its data only, rounded up to pages and sealed against shrinking
//! and growing, so that what an importer mapped stays there. Its name carries a random id, by which
//! importers find its control block (see [`dmabuf::Control`]). A buffer whose descriptor somebody
//! still holds outlives its handle, as a dma-buf's memory does.

use crate::buffer::Buffer;
use crate::card::{Card, Config};
use crate::private::PrivatePages;
use crate::{Error, Memory, Provider, Residence, Traits};
use dmabuf::{ControlBlocks, Placement};
use std::os::fd::OwnedFd;
use std::sync::{Arc, OnceLock};

/// A GPU without a device.
#[derive(Clone)]
pub struct SoftwareGpu {
    pub(crate) card: Arc<Card>,
    /// What holds pages of this process, once asked to.
    pub(crate) private: Arc<OnceLock<Arc<PrivatePages>>>,
}

impl SoftwareGpu {
    /// What its exports are.
    pub const TRAITS: Traits = Traits {
        dynamic: Some(true),
        mmap: Some(true),
        moves: Some(true),
        residence: Some(Residence::Device),
    };

    /// A GPU whose buffers are made known through `controls`.
    pub fn new(config: Config, controls: Arc<dyn ControlBlocks>) -> SoftwareGpu {
        mm::guard::install();
        SoftwareGpu { card: Card::new(config, controls), private: Arc::default() }
    }

    /// The GPU that a platform file describes.
    pub fn of(
        function: &pcie::Function,
        controls: Arc<dyn ControlBlocks>,
    ) -> Result<SoftwareGpu, Error> {
        let (pcie::Role::Gpu, Some(vram_bytes), Some(bar_bytes)) =
            (function.role, function.memory_bytes, function.bar_bytes)
        else {
            return Err(Error::NotAGpu(function.address));
        };
        let config = Config {
            name: function.name.clone(),
            vram_bytes,
            bar_bytes,
            address: function.address,
        };
        Ok(SoftwareGpu::new(config, controls))
    }

    /// What it is.
    pub fn config(&self) -> &Config {
        &self.card.config
    }

    /// Bytes of memory not allocated.
    pub fn free_bytes(&self) -> u64 {
        self.card.free_bytes()
    }

    /// Allocates `len` bytes of the GPU's memory, filled with zeroes.
    ///
    /// # Errors
    /// [`Error::BadLength`] for 0, [`Error::OutOfMemory`], [`Error::System`].
    pub fn alloc(&self, len: u64) -> Result<Buffer, Error> {
        self.alloc_in(len, Placement::Vram)
    }

    /// Allocates `len` bytes in the GPU's memory, or in host memory that the GPU uses. Errors as
    /// for [`SoftwareGpu::alloc`].
    pub fn alloc_in(&self, len: u64, placement: Placement) -> Result<Buffer, Error> {
        Buffer::new(&self.card, len, placement)
    }
}

impl std::fmt::Debug for SoftwareGpu {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "SoftwareGpu {{ {:?}, free: {} }}", self.card.config, self.free_bytes())
    }
}

impl Memory for Buffer {
    fn len(&self) -> u64 {
        Buffer::len(self)
    }
    fn export(&self) -> Result<OwnedFd, Error> {
        Buffer::export(self)
    }
    fn read(&self, offset: u64, dst: &mut [u8]) -> Result<(), Error> {
        Buffer::read(self, offset, dst)
    }
    fn write(&self, offset: u64, src: &[u8]) -> Result<(), Error> {
        Buffer::write(self, offset, src)
    }
    #[cfg(feature = "hash")]
    fn hash(&self) -> Result<crate::Digest, Error> {
        Buffer::hash(self, 0, self.len())
    }
}

impl Provider for SoftwareGpu {
    fn name(&self) -> &str {
        &self.card.config.name
    }
    fn traits(&self) -> Traits {
        SoftwareGpu::TRAITS
    }
    fn address(&self) -> Option<pcie::Address> {
        Some(self.card.config.address)
    }
    fn alloc(&self, len: u64) -> Result<Box<dyn Memory>, Error> {
        Ok(Box::new(SoftwareGpu::alloc(self, len)?))
    }
}

#[cfg(test)]
mod tests;
