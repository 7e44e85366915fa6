//! The software GPU: a card's worth of memory made of memfds.
//!
//! A buffer is one memfd that holds its data only, rounded up to pages and sealed against shrinking and growing, so that what an
//! importer mapped stays there. Its name carries a random id, by which importers find its control block (see
//! [`dmabuf::Control`]). Descriptors survive the buffer: they keep the data alive, as dma-bufs do.

use crate::vram::Vram;
use crate::{Error, Memory, Provider, Traits};
use dmabuf::{Control, ControlBlocks, Placement, memfd_name};
use mm::{Mapping, guard, page_size};
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::io::Errno;
use rustix::rand::{GetRandomFlags, getrandom};
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// What a software GPU is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Config {
    /// Name for display.
    pub name: String,
    /// Bytes of memory.
    pub vram_bytes: u64,
    /// Bytes of it that the BAR shows to peers, from the start.
    pub bar_bytes: u64,
    /// Its place on the platform.
    pub address: pcie::Address,
}

struct Card {
    config: Config,
    controls: Arc<dyn ControlBlocks>,
    vram: Mutex<Vram>,
}

/// A GPU without a device.
#[derive(Clone)]
pub struct SoftwareGpu {
    card: Arc<Card>,
}

impl SoftwareGpu {
    /// A GPU whose buffers are made known through `controls`.
    pub fn new(config: Config, controls: Arc<dyn ControlBlocks>) -> SoftwareGpu {
        mm::guard::install();
        let vram = Mutex::new(Vram::new(config.vram_bytes));
        SoftwareGpu { card: Arc::new(Card { config, controls, vram }) }
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
        self.card.vram.lock().unwrap_or_else(PoisonError::into_inner).free_bytes()
    }

    /// Allocates `len` bytes, filled with zeroes.
    ///
    /// # Errors
    /// [`Error::BadLength`] for 0, [`Error::OutOfMemory`], [`Error::System`].
    pub fn alloc(&self, len: u64) -> Result<Buffer, Error> {
        let size =
            len.checked_next_multiple_of(page_size()).filter(|&s| s > 0 && s <= i64::MAX as u64);
        let size = size.ok_or(Error::BadLength(len))?;
        let mut vram = self.card.vram.lock().unwrap_or_else(PoisonError::into_inner);
        let free = vram.free_bytes();
        let start = vram.take(size).ok_or(Error::OutOfMemory { wanted: size, free })?;
        drop(vram);
        // from here on the reservation goes back when it is dropped
        let place = Reservation { card: self.card.clone(), range: start..start + size };
        let id = random_id()?;
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let fd = rustix::fs::memfd_create(memfd_name(id), flags).map_err(system("memfd_create"))?;
        rustix::fs::ftruncate(&fd, size).map_err(system("ftruncate"))?;
        let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
        rustix::fs::fcntl_add_seals(&fd, seals).map_err(system("sealing a memfd"))?;
        let map_error = |e: std::io::Error| {
            Error::System("mmap", Errno::from_io_error(&e).unwrap_or(Errno::NOMEM))
        };
        let mapping = Mapping::shared(fd.as_fd(), size).map_err(map_error)?;
        let control = Control::create(id, self.card.config.address, Placement::Vram)
            .map_err(system("control block"))?;
        Ok(Buffer { len, fd, mapping, control, published: OnceLock::new(), place })
    }
}

impl std::fmt::Debug for SoftwareGpu {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "SoftwareGpu {{ {:?}, free: {} }}", self.card.config, self.free_bytes())
    }
}

fn system(what: &'static str) -> impl Fn(Errno) -> Error {
    move |errno| Error::System(what, errno)
}

fn random_id() -> Result<u64, Error> {
    let mut id = [0; 8];
    getrandom(&mut id, GetRandomFlags::empty()).map_err(system("getrandom"))?;
    Ok(u64::from_le_bytes(id))
}

/// A range of the card's memory, given back when dropped.
struct Reservation {
    card: Arc<Card>,
    range: Range<u64>,
}

impl Drop for Reservation {
    fn drop(&mut self) {
        let mut vram = self.card.vram.lock().unwrap_or_else(PoisonError::into_inner);
        vram.give(self.range.start, self.range.end - self.range.start);
    }
}

/// Memory of a software GPU. The kernels over it are in the same type (`kernels.rs`).
pub struct Buffer {
    len: u64,
    fd: OwnedFd,
    mapping: Mapping,
    control: Control,
    published: OnceLock<()>,
    place: Reservation,
}

impl Buffer {
    /// Length in bytes as asked for.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether the length is 0; never true.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Length in bytes of the exported descriptor: whole pages.
    pub fn size(&self) -> u64 {
        self.mapping.len()
    }

    /// Where it lies in the GPU's memory.
    pub fn vram_range(&self) -> Range<u64> {
        self.place.range.clone()
    }

    /// The control block that importers share.
    pub fn control(&self) -> &Control {
        &self.control
    }

    /// Exports the buffer as a dma-buf descriptor, which other processes may get too. The first export makes the control block
    /// known.
    ///
    /// # Errors
    /// [`Error::OutsideBar`] if peers could not reach all of it; [`Error::System`].
    pub fn export(&self) -> Result<OwnedFd, Error> {
        let bar_bytes = self.place.card.config.bar_bytes;
        let end = self.place.range.end;
        if end > bar_bytes {
            return Err(Error::OutsideBar { end, bar_bytes });
        }
        if self.published.get().is_none() {
            let controls = &self.place.card.controls;
            controls
                .publish(self.control.id(), self.control.as_fd())
                .map_err(system("publishing a control block"))?;
            self.published.get_or_init(|| ());
        }
        rustix::io::fcntl_dupfd_cloexec(&self.fd, 0).map_err(system("dup"))
    }

    /// Copies from the GPU's memory.
    ///
    /// # Errors
    /// [`Error::OutOfRange`], [`Error::Fault`].
    pub fn read(&self, offset: u64, dst: &mut [u8]) -> Result<(), Error> {
        Ok(guard::copy_from(self.addr(offset, dst.len() as u64)?, dst)?)
    }

    /// Copies to the GPU's memory. Errors as for [`Buffer::read`].
    pub fn write(&self, offset: u64, src: &[u8]) -> Result<(), Error> {
        Ok(guard::copy_to(self.addr(offset, src.len() as u64)?, src)?)
    }

    /// Takes the buffer back from all importers: none begins an access after this.
    pub fn revoke(&self) {
        self.control.revoke();
    }

    /// Address in this process of a checked range.
    pub(crate) fn addr(&self, offset: u64, len: u64) -> Result<u64, Error> {
        match offset.checked_add(len) {
            Some(end) if end <= self.len => Ok(self.mapping.addr() + offset),
            _ => Err(Error::OutOfRange { offset, len, size: self.len }),
        }
    }
}

impl Memory for Buffer {
    fn len(&self) -> u64 {
        self.len
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
}

impl Provider for SoftwareGpu {
    fn name(&self) -> &str {
        &self.card.config.name
    }
    fn traits(&self) -> Traits {
        Traits { dynamic: false, mmap: true }
    }
    fn address(&self) -> Option<pcie::Address> {
        Some(self.card.config.address)
    }
    fn alloc(&self, len: u64) -> Result<Box<dyn Memory>, Error> {
        Ok(Box::new(SoftwareGpu::alloc(self, len)?))
    }
}

#[cfg(test)]
#[path = "software_tests.rs"]
mod tests;
