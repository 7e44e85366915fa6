//! The importer's handles: the buffer behind a descriptor, and one function's attachment to it.

use crate::control::ControlBlocks;
use crate::exporter::{AttachRequest, BufferLocation, Direction, Exporter, Mapped};
use crate::gpu_memory::{self, GpuMemory, MOVE_LIMIT};
use crate::kernel::KernelBuffer;
use crate::sabotage::{self, Sabotage};
use crate::storage::own_exports;
use crate::storage::part;
use crate::{Error, Storage, fd};
use descriptors::Kept;
use engine_thread::lock;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::Instant;

/// A buffer; keeps its own reference, so the program may close its descriptor.
pub struct DmaBuf {
    /// What of the exporter's buffer it is, in bytes.
    part: Range<u64>,
    exporter: Box<dyn Exporter>,
    /// What the dynamic attachments are mapped for.
    dynamic: Mutex<Vec<Weak<AtomicU64>>>,
}

impl std::fmt::Debug for DmaBuf {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "DmaBuf {{ exporter: {:?}, size: {} }}", self.exporter.name(), self.size())
    }
}

impl DmaBuf {
    /// The buffer behind a program's descriptor (`dma_buf_get`).
    ///
    /// # Errors
    /// [`Error::NoSuchFd`] for a number that is not open, [`Error::NotDmaBuf`] for any other kind
    /// of file. That a buffer cannot be mapped shows at [`DmaBuf::attach`], after the caller has
    /// checked its size.
    pub fn get(fd: RawFd, controls: &dyn ControlBlocks) -> Result<Arc<DmaBuf>, Error> {
        let fd = Arc::new(Kept::new(fd::duplicate(fd).map_err(|_| Error::NoSuchFd)?));
        if let Some(export) = own_exports::find(&fd) {
            return DmaBuf::of_descriptor(fd.as_fd(), GpuMemory::own(export));
        }
        if fd::is_kernel_dmabuf(fd.as_fd()) {
            let buffer = KernelBuffer::open(fd)?;
            return Ok(DmaBuf::new(buffer.size(), Box::new(buffer)));
        }
        if let Some(id) = gpu_memory::id_of(fd.as_fd()) {
            return DmaBuf::of_descriptor(fd.as_fd(), GpuMemory::open(&*fd, id, controls)?);
        }
        let name = fd::name(fd.as_fd()).unwrap_or_else(|| format!("descriptor {}", fd.as_raw_fd()));
        Err(Error::NotDmaBuf(name))
    }

    /// What of a software GPU's buffer a descriptor stands for.
    fn of_descriptor(fd: BorrowedFd<'_>, buffer: GpuMemory) -> Result<Arc<DmaBuf>, Error> {
        let part = part::stands_for(fd, buffer.size())?;
        Ok(DmaBuf::of_part(part, Box::new(buffer)))
    }

    fn of_part(part: Range<u64>, exporter: Box<dyn Exporter>) -> Arc<DmaBuf> {
        Arc::new(DmaBuf { part, exporter, dynamic: Mutex::default() })
    }

    /// A software GPU's buffer that this process has open already.
    pub fn of_gpu(storage: Arc<Storage>) -> Arc<DmaBuf> {
        DmaBuf::new(storage.size(), Box::new(GpuMemory::of(storage)))
    }

    /// A buffer of an exporter in this process.
    pub fn new(size: u64, exporter: Box<dyn Exporter>) -> Arc<DmaBuf> {
        DmaBuf::of_part(0..size, exporter)
    }

    /// Size in bytes, of the part where it is one. lseek(2) to the end of a part's descriptor tells
    /// that of the whole buffer.
    pub fn size(&self) -> u64 {
        self.part.end - self.part.start
    }

    /// Where a place in it is in the buffer that is attached, by bytes: it may be a part of that.
    ///
    /// # Errors
    /// [`Error::NoSuchPart`] beyond its end.
    pub fn in_buffer(&self, at: u64) -> Result<u64, Error> {
        let inside = self.part.start.checked_add(at).filter(|at| *at <= self.part.end);
        inside.ok_or(Error::NoSuchPart)
    }

    /// Index of the place that the buffer is at now.
    pub fn place(&self) -> usize {
        self.exporter.place().index
    }

    /// Name of the exporter.
    pub fn exporter_name(&self) -> &str {
        self.exporter.name()
    }

    /// Whether the exporter may move the buffer.
    pub fn is_dynamic(&self) -> bool {
        self.exporter.pinning().is_some()
    }

    /// Attaches a function and maps the exporter's whole buffer for it, see [`DmaBuf::in_buffer`].
    /// Unless the hold is dynamic the buffer is pinned first, if its exporter can move it.
    pub fn attach(
        self: &Arc<Self>,
        request: &AttachRequest<'_>,
        hold: Hold,
    ) -> Result<Attachment, Error> {
        self.exporter.attach(request)?;
        // from here on dropping undoes what was done
        let mut attachment = Attachment {
            dmabuf: self.clone(),
            mapped: [const { None }; BufferLocation::COUNT],
            generation: Arc::default(),
            awaited_since: AtomicU64::new(0),
            awaited: AtomicU64::new(u64::MAX),
            faults: AtomicU64::new(0),
            pinned: None,
            detached: AtomicBool::new(false),
        };
        match hold {
            Hold::Dynamic => {
                let mut dynamic = lock(&self.dynamic);
                dynamic.push(Arc::downgrade(&attachment.generation));
            }
            Hold::Pinned | Hold::PinnedRevocable => {
                let revocable = matches!(hold, Hold::PinnedRevocable);
                if let Some(pinning) = self.exporter.pinning() {
                    pinning.pin(revocable)?;
                    attachment.pinned = Some(revocable);
                }
            }
        }
        let now = self.exporter.place();
        attachment.generation.store(now.generation, Relaxed);
        if matches!(hold, Hold::Dynamic) && self.is_dynamic() {
            // a place that the function does not reach is no error until the buffer is there
            let places = attachment.mapped.iter_mut().enumerate();
            places.for_each(|(place, mapped)| *mapped = Some(self.exporter.map(request, place)));
        } else if let Some(mapped) = attachment.mapped.get_mut(now.index) {
            *mapped = Some(self.exporter.map(request, now.index));
        }
        attachment.mapped_at(now.index)?;
        Ok(attachment)
    }

    /// Makes the next access of every dynamic importer find no mapping
    /// (`dma_buf_invalidate_mappings`); for an exporter that does not count its moves.
    pub fn invalidate_mappings(&self) {
        let dynamic = lock(&self.dynamic);
        for generation in dynamic.iter().filter_map(Weak::upgrade) {
            generation.store(ZAPPED, Relaxed);
        }
    }
}

/// How an importer keeps the buffer from moving, or lives with it.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Hold {
    /// Pinned for as long as it is attached; such a buffer cannot be revoked either
    /// (`ib_umem_dmabuf_get_pinned`).
    Pinned,
    /// Pinned until it is revoked (`ib_umem_dmabuf_get_pinned_revocable_and_lock`).
    PinnedRevocable,
    /// Not pinned: maps again after each move (`ib_umem_dmabuf_get`).
    #[default]
    Dynamic,
}

/// One function's use of a buffer; detached when dropped.
pub struct Attachment {
    dmabuf: Arc<DmaBuf>,
    /// The mappings by the index of the place.
    mapped: [Option<Result<Mapped, Error>>; BufferLocation::COUNT],
    /// Move after which the mapping in use was made.
    generation: Arc<AtomicU64>,
    /// When accesses first found the buffer in the move that still goes on, as [`now_ms`] tells; 0
    /// = none did.
    awaited_since: AtomicU64,
    /// Which move that was.
    awaited: AtomicU64,
    faults: AtomicU64,
    pinned: Option<bool>,
    detached: AtomicBool,
}

/// No generation: nothing is mapped.
const ZAPPED: u64 = u64::MAX;

/// Milliseconds of this process's life, from 1.
fn now_ms() -> u64 {
    static EPOCH: OnceLock<Instant> = OnceLock::new();
    EPOCH.get_or_init(Instant::now).elapsed().as_millis() as u64 + 1
}

impl Attachment {
    /// The bytes and the route to them, at the place of an index.
    ///
    /// # Errors
    /// What the exporter said; [`Error::NotMapped`] for a place at which the buffer never is.
    pub fn mapped_at(&self, place: usize) -> Result<&Mapped, Error> {
        match self.mapped.get(place) {
            Some(Some(Ok(mapped))) => Ok(mapped),
            Some(Some(Err(error))) => Err(error.clone()),
            _ => Err(Error::NotMapped),
        }
    }

    /// Brings the pages of `range` in where the buffer is now, which saves the first accesses their
    /// faults. What cannot be brought in shows as a fault of the access.
    pub fn bring_in(&self, range: Range<u64>) {
        let place = self.dmabuf.place();
        if let Ok(mapped) = self.mapped_at(place) {
            self.dmabuf.exporter.bring_in(mapped, place, range);
        }
    }

    /// The control block by which others keep the buffer in its place, if it has one.
    pub fn control(&self) -> Option<BorrowedFd<'_>> {
        self.dmabuf.exporter.control()
    }

    /// Number of the buffer's moves, if it is mapped as it is after these.
    pub fn moves(&self) -> Option<u64> {
        let now = self.dmabuf.exporter.place().generation;
        (self.generation.load(Relaxed) == now).then_some(now)
    }

    /// The buffer.
    pub fn dmabuf(&self) -> &Arc<DmaBuf> {
        &self.dmabuf
    }

    /// How often [`Attachment::fault`] mapped it again.
    pub fn faults(&self) -> u64 {
        self.faults.load(Relaxed)
    }

    /// Opens an access to the bytes, which are at the place of the index answered until
    /// [`Attachment::leave`]. Never allocates or waits.
    ///
    /// # Errors
    /// [`Error::Revoked`]; [`Error::NotMapped`] and [`Error::Moving`], after which
    /// [`Attachment::fault`] helps; or what the exporter says.
    #[inline]
    pub fn enter(&self) -> Result<usize, Error> {
        let place = self.dmabuf.exporter.begin_cpu_access(Direction::Bidirectional)?;
        let known = self.generation.load(Relaxed);
        if self.awaited_since.load(Relaxed) != 0 {
            self.awaited_since.store(0, Relaxed);
        }
        if place.generation == known {
            return Ok(place.index);
        }
        if sabotage::on(Sabotage::LoseInvalidation) && known != ZAPPED {
            // each move goes to the other place
            return Ok(place.index ^ ((place.generation ^ known) & 1) as usize);
        }
        self.leave();
        Err(Error::NotMapped)
    }

    /// Closes an access.
    #[inline]
    pub fn leave(&self) {
        self.dmabuf.exporter.end_cpu_access(Direction::Bidirectional);
    }

    /// Maps the buffer again after a move. Answers the index of its place; `None` while the move
    /// goes on, for which nobody waits here: the access comes again. `invalidate` is called before
    /// the new mapping is used by anyone, while the old one is not any more
    /// (`struct dma_buf_attach_ops`).
    ///
    /// # Errors
    /// [`Error::Revoked`]; [`Error::Moving`] when the move takes too long; [`Error::Unreachable`]
    /// if the function does not reach the new place.
    pub fn fault(&self, invalidate: impl FnOnce()) -> Result<Option<usize>, Error> {
        match self.dmabuf.exporter.settle_move() {
            Err(Error::Moving(_)) if self.is_patient() => return Ok(None),
            settled => settled?,
        }
        let place = self.dmabuf.exporter.place();
        self.mapped_at(place.index)?;
        if self.generation.load(Relaxed) != place.generation {
            invalidate();
        }
        if self.generation.swap(place.generation, Relaxed) != place.generation {
            self.faults.fetch_add(1, Relaxed);
        }
        Ok(Some(place.index))
    }

    /// Whether a move that goes on may take a little longer still.
    fn is_patient(&self) -> bool {
        let now = now_ms();
        let moves = self.dmabuf.exporter.place().generation;
        // Whoever awaited an earlier move may never have come back.
        if self.awaited.swap(moves, Relaxed) != moves {
            self.awaited_since.store(now, Relaxed);
            return true;
        }
        let first = self.awaited_since.compare_exchange(0, now, Relaxed, Relaxed);
        let since = first.err().unwrap_or(now);
        u128::from(now.saturating_sub(since)) < MOVE_LIMIT.as_millis()
    }
}

impl std::fmt::Debug for Attachment {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Attachment {{ {:?}, {:?} }}", self.dmabuf, self.mapped)
    }
}

impl Attachment {
    /// Unmaps, unpins and detaches, now instead of when this is dropped. The caller sees to it that
    /// nobody is inside, or goes inside afterwards.
    pub fn detach(&self) {
        if self.detached.swap(true, AcqRel) {
            return;
        }
        let exporter = &self.dmabuf.exporter;
        self.mapped.iter().flatten().flatten().for_each(|mapped| exporter.unmap(mapped));
        if let Some(revocable) = self.pinned
            && let Some(pinning) = exporter.pinning()
        {
            pinning.unpin(revocable);
        }
        let mut dynamic = lock(&self.dmabuf.dynamic);
        dynamic.retain(|generation| generation.as_ptr() != Arc::as_ptr(&self.generation));
        drop(dynamic);
        exporter.detach();
    }
}

impl Drop for Attachment {
    fn drop(&mut self) {
        self.detach();
    }
}

#[cfg(test)]
#[path = "attachment_tests.rs"]
mod tests;
