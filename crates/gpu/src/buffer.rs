//! Memory of a software GPU. The kernels over it are in the same type (`kernels.rs`, `hash.rs`).

use crate::Error;
use crate::card::{Card, Reservation, system};
use crate::lease;
use descriptors::Kept;
use dmabuf::{Control, Placement, memfd_name};
use mm::{Mapping, guard, page_size};
use rustix::fs::{MemfdFlags, Mode, OFlags, SealFlags};
use rustix::io::Errno;
use rustix::rand::{GetRandomFlags, getrandom};
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::{Arc, OnceLock};

/// What a buffer consists of; a handle and the card's list of abandoned ones share it.
pub(crate) struct Body {
    fd: Kept,
    mapping: Mapping,
    control: Control,
    published: OnceLock<()>,
    place: Option<Reservation>,
    card: Arc<Card>,
}

impl Body {
    /// Whether another process, or the program, holds a descriptor or a mapping. Where the kernel does not tell, yes.
    pub(crate) fn is_open_elsewhere(&self) -> bool {
        self.published.get().is_some() && !lease::is_sole_opener(self.fd.as_fd())
    }
}

impl Drop for Body {
    fn drop(&mut self) {
        if self.published.get().is_some() {
            self.card.controls.withdraw(self.control.id());
        }
    }
}

/// Memory of a software GPU.
pub struct Buffer {
    len: u64,
    body: Arc<Body>,
}

impl Buffer {
    pub(crate) fn new(card: &Arc<Card>, len: u64, placement: Placement) -> Result<Buffer, Error> {
        let size =
            len.checked_next_multiple_of(page_size()).filter(|&s| s > 0 && s <= i64::MAX as u64);
        let size = size.ok_or(Error::BadLength(len))?;
        // from here on the reservation goes back when it is dropped
        let place = match placement {
            Placement::Vram => Some(card.reserve(size)?),
            Placement::Host => None,
        };
        let id = random_id()?;
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let fd = rustix::fs::memfd_create(memfd_name(id), flags).map_err(system("memfd_create"))?;
        rustix::fs::ftruncate(&fd, size).map_err(system("ftruncate"))?;
        let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
        rustix::fs::fcntl_add_seals(&fd, seals).map_err(system("sealing a memfd"))?;
        // Opened anew: only so does the kernel count who has it open.
        let fd = Kept::new(reopen(&fd, true)?);
        let map_error = |e: std::io::Error| {
            Error::System("mmap", Errno::from_io_error(&e).unwrap_or(Errno::NOMEM))
        };
        let mapping = Mapping::shared(fd.as_fd(), size).map_err(map_error)?;
        let control =
            Control::create(id, card.config.address, placement).map_err(system("control block"))?;
        let (card, published) = (card.clone(), OnceLock::new());
        Ok(Buffer { len, body: Arc::new(Body { fd, mapping, control, published, place, card }) })
    }

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
        self.body.mapping.len()
    }

    /// Where it lies in the GPU's memory; `None` for one in host memory.
    pub fn vram_range(&self) -> Option<Range<u64>> {
        self.body.place.as_ref().map(|place| place.range.clone())
    }

    /// The control block that importers share.
    pub fn control(&self) -> &Control {
        &self.body.control
    }

    /// Exports the buffer as a dma-buf descriptor, which other processes may get too. The first export makes the control block
    /// known.
    ///
    /// # Errors
    /// [`Error::OutsideBar`] if peers could not reach all of it; [`Error::System`].
    pub fn export(&self) -> Result<OwnedFd, Error> {
        self.export_for(true)
    }

    /// As [`Buffer::export`]; unless `writes`, the descriptor is one that can only be read.
    pub fn export_for(&self, writes: bool) -> Result<OwnedFd, Error> {
        let body = &self.body;
        let bar_bytes = body.card.config.bar_bytes;
        if let Some(Range { end, .. }) = self.vram_range()
            && end > bar_bytes
        {
            return Err(Error::OutsideBar { end, bar_bytes });
        }
        if body.published.get().is_none() {
            body.card
                .controls
                .publish(body.control.id(), body.control.as_fd())
                .map_err(system("publishing a control block"))?;
            body.published.get_or_init(|| ());
        }
        reopen(&body.fd, writes)
    }

    /// A descriptor for the program to map: of the bytes where they are now.
    pub(crate) fn cpu_descriptor(&self) -> Result<OwnedFd, Error> {
        reopen(&self.body.fd, true)
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
        self.body.control.revoke();
    }

    /// Address in this process of a checked range.
    pub(crate) fn addr(&self, offset: u64, len: u64) -> Result<u64, Error> {
        match offset.checked_add(len) {
            Some(end) if end <= self.len => Ok(self.body.mapping.addr() + offset),
            _ => Err(Error::OutOfRange { offset, len, size: self.len }),
        }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        self.body.card.abandon(self.body.clone());
    }
}

/// The file behind a descriptor, opened once more.
fn reopen(fd: &impl AsRawFd, writes: bool) -> Result<OwnedFd, Error> {
    let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
    let flags = if writes { OFlags::RDWR } else { OFlags::RDONLY } | OFlags::CLOEXEC;
    rustix::fs::open(path, flags, Mode::empty()).map_err(system("opening a buffer's file"))
}

fn random_id() -> Result<u64, Error> {
    let mut id = [0; 8];
    getrandom(&mut id, GetRandomFlags::empty()).map_err(system("getrandom"))?;
    Ok(u64::from_le_bytes(id))
}
