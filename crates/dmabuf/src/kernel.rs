//! A dma-buf of the kernel (udmabuf, dma-heap, DRM): mapped, with every access inside a DMA_BUF_IOCTL_SYNC bracket.
//!
//! Where its exporter keeps the bytes is not told to user space; they count as host memory, since that is how this process
//! reaches them.

use crate::exporter::{AttachRequest, Direction, Exporter, Extent, Mapped};
use crate::gpu_memory::map_once;
use crate::{Error, fd};
use descriptors::Kept;
use mm::Mapping;
use std::sync::{Arc, OnceLock};

pub(crate) struct KernelBuffer {
    fd: Arc<Kept>,
    size: u64,
    mapping: OnceLock<Mapping>,
}

impl KernelBuffer {
    pub(crate) fn open(fd: Arc<Kept>) -> Result<KernelBuffer, Error> {
        // a dma-buf tells its size by lseek only; st_size is 0
        let size =
            rustix::fs::seek(&*fd, rustix::fs::SeekFrom::End(0)).map_err(Error::NotMappable)?;
        Ok(KernelBuffer { fd, size, mapping: OnceLock::new() })
    }

    pub(crate) fn size(&self) -> u64 {
        self.size
    }
}

fn flags(direction: Direction) -> u64 {
    match direction {
        Direction::Read => fd::SYNC_READ,
        Direction::Write => fd::SYNC_WRITE,
        Direction::Bidirectional => fd::SYNC_READ | fd::SYNC_WRITE,
    }
}

impl Exporter for KernelBuffer {
    fn name(&self) -> &str {
        "kernel"
    }

    fn map(&self, request: &AttachRequest<'_>) -> Result<Mapped, Error> {
        let route = request.platform.route(request.function, pcie::Target::HOST)?;
        let mapping = map_once(&self.mapping, &self.fd, self.size)?;
        Ok(Mapped { extents: vec![Extent { addr: mapping.addr(), len: self.size }], route })
    }

    fn unmap(&self, _mapped: &Mapped) {
        // the mapping is shared by all importers of this process and goes with the buffer
    }

    fn begin_cpu_access(&self, direction: Direction) -> Result<(), Error> {
        fd::sync(&*self.fd, flags(direction)).map_err(Error::Sync)
    }

    fn end_cpu_access(&self, direction: Direction) {
        // nothing can be done about a failure here: the bytes have been copied
        let _ = fd::sync(&*self.fd, flags(direction) | fd::SYNC_END);
    }
}
