//! A dma-buf of the kernel (udmabuf, dma-heap, DRM): mapped, with every access inside a
//! DMA_BUF_IOCTL_SYNC bracket.
//!
//! [`KernelBuffer::read`] and [`KernelBuffer::write`] are the CPU's own; the software HCA comes by
//! the [`Exporter`]'s operations. Where its exporter keeps the bytes is not told to user space;
//! they count as host memory, since that is how this process reaches them.

use crate::exporter::{AttachRequest, BufferLocation, Direction, Exporter, Extent, Mapped};
use crate::{Error, fd};
use descriptors::Kept;
use mm::{Mapping, Sink};
use rustix::io::Errno;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, OnceLock};

/// A dma-buf of the kernel's.
pub struct KernelBuffer {
    fd: Arc<Kept>,
    size: u64,
    mapping: OnceLock<Mapping>,
}

impl KernelBuffer {
    /// The buffer behind a descriptor of the caller's own.
    ///
    /// # Errors
    /// [`Error::NotDmaBuf`] for any other kind of file.
    pub fn import(fd: OwnedFd) -> Result<KernelBuffer, Error> {
        if !fd::is_kernel_dmabuf(fd.as_fd()) {
            let name = fd::name(fd.as_fd());
            return Err(Error::NotDmaBuf(name.unwrap_or_else(|| "a descriptor".to_owned())));
        }
        KernelBuffer::open(Arc::new(Kept::new(fd)))
    }

    pub(crate) fn open(fd: Arc<Kept>) -> Result<KernelBuffer, Error> {
        // a dma-buf tells its size by lseek only; st_size is 0
        let size =
            rustix::fs::seek(&*fd, rustix::fs::SeekFrom::End(0)).map_err(Error::NotMappable)?;
        Ok(KernelBuffer { fd, size, mapping: OnceLock::new() })
    }

    /// Size in bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Copies bytes out, inside a bracket of CPU access.
    ///
    /// # Errors
    /// [`Error::NotMappable`] where the exporter does not let the CPU map, [`Error::Sync`], and
    /// [`Error::OutOfMemory`] where a page cannot be had. Bytes beyond the end are
    /// [`Error::NotMappable`], EINVAL as `mmap` answers.
    pub fn read(&self, offset: u64, dst: &mut [u8]) -> Result<(), Error> {
        let from = self.at(offset, dst.len())?;
        self.begin_cpu_access(Direction::Read)?;
        let copied = from.source().read(dst);
        self.end_cpu_access(Direction::Read);
        copied.map_err(|_| Error::OutOfMemory)
    }

    /// Copies bytes in. Errors as for [`KernelBuffer::read`].
    pub fn write(&self, offset: u64, src: &[u8]) -> Result<(), Error> {
        let to = self.at(offset, src.len())?;
        self.begin_cpu_access(Direction::Write)?;
        let copied = to.write(src);
        self.end_cpu_access(Direction::Write);
        copied.map_err(|_| Error::OutOfMemory)
    }

    /// A range that is within the buffer.
    fn at(&self, offset: u64, len: usize) -> Result<Sink<'_>, Error> {
        let end = offset.checked_add(len as u64);
        if end.is_none_or(|end| end > self.size) {
            return Err(Error::NotMappable(Errno::INVAL));
        }
        let bytes = self.map_once()?.sink().part(offset, len as u64);
        bytes.map_err(|_| Error::NotMappable(Errno::INVAL))
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

impl AsFd for KernelBuffer {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
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
        // SAFETY: the mapping goes with this exporter, which importers keep; only guarded copies
        // reach it.
        let memory = unsafe { Sink::vouched(mapping.addr(), self.size) };
        Ok(Mapped { extents: vec![Extent { memory }], block: mm::page_size(), route })
    }

    fn unmap(&self, _mapped: &Mapped) {
        // the mapping is shared by all importers of this process and goes with the buffer
    }

    fn begin_cpu_access(&self, direction: Direction) -> Result<BufferLocation, Error> {
        fd::sync(&*self.fd, flags(direction)).map_err(Error::Sync)?;
        Ok(BufferLocation::default())
    }

    fn end_cpu_access(&self, direction: Direction) {
        // nothing can be done about a failure here: the bytes have been copied
        let _ = fd::sync(&*self.fd, flags(direction) | fd::SYNC_END);
    }
}
