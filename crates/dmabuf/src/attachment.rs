//! The importer's handles: the buffer behind a descriptor, and one function's attachment to it.

use crate::control::ControlBlocks;
use crate::exporter::{AttachRequest, Direction, Exporter, Importer, Mapped};
use crate::gpu_memory::{self, GpuMemory};
use crate::kernel::KernelBuffer;
use crate::{Error, fd};
use descriptors::Kept;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// A buffer; keeps its own reference, so the program may close its descriptor.
pub struct DmaBuf {
    size: u64,
    exporter: Box<dyn Exporter>,
    importers: Mutex<Vec<Weak<dyn Importer>>>,
}

impl std::fmt::Debug for DmaBuf {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "DmaBuf {{ exporter: {:?}, size: {} }}", self.exporter.name(), self.size)
    }
}

impl DmaBuf {
    /// The buffer behind a program's descriptor (`dma_buf_get`).
    ///
    /// # Errors
    /// [`Error::NoSuchFd`] for a number that is not open, [`Error::NotDmaBuf`] for any other kind of file. That a buffer cannot be
    /// mapped shows at [`DmaBuf::attach`], after the caller has checked its size.
    pub fn get(fd: RawFd, controls: &dyn ControlBlocks) -> Result<Arc<DmaBuf>, Error> {
        let fd = Arc::new(Kept::new(fd::duplicate(fd).map_err(|_| Error::NoSuchFd)?));
        if fd::is_kernel_dmabuf(fd.as_fd()) {
            let buffer = KernelBuffer::open(fd)?;
            return Ok(DmaBuf::new(buffer.size(), Box::new(buffer)));
        }
        if let Some(id) = gpu_memory::id_of(fd.as_fd()) {
            let buffer = GpuMemory::open(fd, id, controls)?;
            return Ok(DmaBuf::new(buffer.size(), Box::new(buffer)));
        }
        let name = fd::name(fd.as_fd()).unwrap_or_else(|| format!("descriptor {}", fd.as_raw_fd()));
        Err(Error::NotDmaBuf(name))
    }

    /// A buffer of an exporter in this process.
    pub fn new(size: u64, exporter: Box<dyn Exporter>) -> Arc<DmaBuf> {
        Arc::new(DmaBuf { size, exporter, importers: Mutex::default() })
    }

    /// Size in bytes (`lseek(SEEK_END)`).
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Name of the exporter.
    pub fn exporter_name(&self) -> &str {
        self.exporter.name()
    }

    /// Whether the exporter may move the buffer.
    pub fn is_dynamic(&self) -> bool {
        self.exporter.pinning().is_some()
    }

    /// Attaches a function and maps the whole buffer for it. A static attachment (no `importer`) is pinned first, if the
    /// exporter can move the buffer; a dynamic one is told before it moves.
    pub fn attach(
        self: &Arc<Self>,
        request: &AttachRequest<'_>,
        importer: Option<&Arc<dyn Importer>>,
    ) -> Result<Attachment, Error> {
        self.exporter.attach(request)?;
        // from here on dropping undoes what was done
        let mut attachment =
            Attachment { dmabuf: self.clone(), mapped: None, pinned: false, importer: None };
        match importer {
            Some(importer) => {
                let mut importers = self.importers.lock().unwrap_or_else(PoisonError::into_inner);
                importers.push(Arc::downgrade(importer));
                attachment.importer = Some(Arc::downgrade(importer));
            }
            None => {
                if let Some(pinning) = self.exporter.pinning() {
                    pinning.pin()?;
                    attachment.pinned = true;
                }
            }
        }
        attachment.mapped = Some(self.exporter.map(request)?);
        Ok(attachment)
    }

    /// Tells every dynamic importer that its mapping is no longer valid (`dma_buf_invalidate_mappings`); for the exporter.
    pub fn invalidate_mappings(&self) {
        let importers = self.importers.lock().unwrap_or_else(PoisonError::into_inner).clone();
        for importer in importers.iter().filter_map(Weak::upgrade) {
            importer.invalidate_mappings();
        }
    }
}

/// One function's use of a buffer; detached when dropped.
pub struct Attachment {
    dmabuf: Arc<DmaBuf>,
    mapped: Option<Mapped>,
    pinned: bool,
    importer: Option<Weak<dyn Importer>>,
}

impl Attachment {
    /// The bytes and the route to them.
    pub fn mapped(&self) -> &Mapped {
        self.mapped.as_ref().expect("an attachment is handed out mapped")
    }

    /// The buffer.
    pub fn dmabuf(&self) -> &Arc<DmaBuf> {
        &self.dmabuf
    }

    /// Opens an access to the bytes; close it with [`Attachment::leave`]. Never allocates.
    ///
    /// # Errors
    /// [`Error::Revoked`], or what the exporter says.
    #[inline]
    pub fn enter(&self) -> Result<(), Error> {
        self.dmabuf.exporter.begin_cpu_access(Direction::Bidirectional)
    }

    /// Closes an access.
    #[inline]
    pub fn leave(&self) {
        self.dmabuf.exporter.end_cpu_access(Direction::Bidirectional);
    }
}

impl std::fmt::Debug for Attachment {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Attachment {{ {:?}, {:?} }}", self.dmabuf, self.mapped)
    }
}

impl Drop for Attachment {
    fn drop(&mut self) {
        let exporter = &self.dmabuf.exporter;
        if let Some(mapped) = self.mapped.take() {
            exporter.unmap(&mapped);
        }
        if self.pinned
            && let Some(pinning) = exporter.pinning()
        {
            pinning.unpin();
        }
        if let Some(importer) = self.importer.take() {
            let mut importers =
                self.dmabuf.importers.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(at) = importers.iter().position(|i| i.ptr_eq(&importer)) {
                importers.swap_remove(at);
            }
        }
        exporter.detach();
    }
}

#[cfg(test)]
#[path = "attachment_tests.rs"]
mod tests;
