//! A dma-buf of the kernel (udmabuf, dma-heap, DRM): mapped, with every access inside a DMA_BUF_IOCTL_SYNC bracket.
//!
//! Where its exporter keeps the bytes is not told to user space; they count as host memory, since that is how this process
//! reaches them.

use crate::exporter::{AttachRequest, Direction, Exporter, Extent, Mapped, Place};
use crate::{Error, fd};
use descriptors::Kept;
use mm::Mapping;
use rustix::io::Errno;
use std::os::fd::AsFd;
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

    /// Maps the whole buffer once; importers of this process share the mapping.
    fn map_once(&self) -> Result<&Mapping, Error> {
        if let Some(mapping) = self.mapping.get() {
            return Ok(mapping);
        }
        let errno = |e: std::io::Error| {
            Error::NotMappable(Errno::from_io_error(&e).unwrap_or(Errno::NODEV))
        };
        let mapping = Mapping::shared(self.fd.as_fd(), self.size).map_err(errno)?;
        Ok(self.mapping.get_or_init(|| mapping))
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

    fn map(&self, request: &AttachRequest<'_>, _place: usize) -> Result<Mapped, Error> {
        let route = request.platform.route(request.function, pcie::Target::HOST)?;
        let mapping = self.map_once()?;
        Ok(Mapped { extents: vec![Extent { addr: mapping.addr(), len: self.size }], route })
    }

    fn unmap(&self, _mapped: &Mapped) {
        // the mapping is shared by all importers of this process and goes with the buffer
    }

    fn begin_cpu_access(&self, direction: Direction) -> Result<Place, Error> {
        fd::sync(&*self.fd, flags(direction)).map_err(Error::Sync)?;
        Ok(Place::default())
    }

    fn end_cpu_access(&self, direction: Direction) {
        // nothing can be done about a failure here: the bytes have been copied
        let _ = fd::sync(&*self.fd, flags(direction) | fd::SYNC_END);
    }
}
