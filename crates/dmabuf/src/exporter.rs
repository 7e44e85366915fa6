//! What an exporter does (`struct dma_buf_ops` in `include/linux/dma-buf.h`).

use crate::Error;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

/// Which way a CPU access goes (`enum dma_data_direction`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Direction {
    /// Reading.
    Read,
    /// Writing.
    Write,
    /// Both.
    Bidirectional,
}

/// Who wants to import: a PCI function on a platform.
#[derive(Clone, Copy, Debug)]
pub struct AttachRequest<'a> {
    /// The function that will issue the DMA.
    pub function: &'a pcie::Function,
    /// The machine it lives in.
    pub platform: &'a pcie::Platform,
}

/// A run of bytes in this process's address space.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Extent {
    /// The bytes, to be reached until [`Exporter::unmap`].
    pub memory: mm::Sink<'static>,
}

/// A whole buffer, mapped for one importer. Always the whole: importers trim
/// (`ib_umem_dmabuf_map_pages`).
#[derive(Clone, Debug)]
pub struct Mapped {
    /// The bytes in order.
    pub extents: Vec<Extent>,
    /// Bytes, a power of two, that lie together in the exporter's memory: each block of so many,
    /// counted from the buffer's start, is at DMA addresses that follow each other and begin at a
    /// multiple of it. What lies where beyond that is unknown.
    pub block: u64,
    /// How the importing function reaches them.
    pub route: Arc<pcie::Route>,
}

impl Mapped {
    /// Brings pages of a range of the bytes in; answers whether all of them are there. Device
    /// mappings cannot be populated and need it not.
    ///
    /// The mapping is shared, so a page that is brought in for reading may be written too, and of
    /// those that exist the kernel maps many at once, where it takes a fault for each that is to be
    /// written.
    pub(crate) fn bring_in(&self, range: &Range<u64>) -> bool {
        let mut at = 0u64;
        self.extents.iter().all(|Extent { memory }| {
            let (start, end) = (at, at.saturating_add(memory.len()));
            at = end;
            let (first, last) = (start.max(range.start), end.min(range.end));
            let Some(len) = last.checked_sub(first).filter(|len| *len > 0) else { return true };
            let part = memory.part(first - start, len);
            part.is_ok_and(|part| mm::populate(part.addr(), part.len(), false).is_ok())
        })
    }
}

/// Where a buffer is during an access. A static exporter's is always the same.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct BufferLocation {
    /// Which of the exporter's places, below [`BufferLocation::COUNT`].
    pub index: usize,
    /// Number of moves so far.
    pub generation: u64,
}

impl BufferLocation {
    /// Places that a buffer may be at.
    pub const COUNT: usize = 2;
}

/// Pin and unpin: an exporter has both or neither, and is dynamic if it has them.
pub trait Pinning: Send + Sync {
    /// Keeps the buffer where it is; if `revocable`, only until it is revoked.
    fn pin(&self, revocable: bool) -> Result<(), Error>;
    /// Lets it move again.
    fn unpin(&self, revocable: bool);
}

/// The exporter's side of a buffer. Mandatory: `map`, `unmap`; release is the exporter's `Drop`.
pub trait Exporter: Send + Sync {
    /// Name of the exporter (`exp_name`).
    fn name(&self) -> &str;

    /// A function wants to import. Memory that it cannot reach is refused here
    /// ([`Error::Unreachable`]).
    fn attach(&self, request: &AttachRequest<'_>) -> Result<(), Error> {
        let _ = request;
        Ok(())
    }

    /// The function has gone.
    fn detach(&self) {}

    /// The place that the buffer is at now; where it moves, a moment later perhaps another.
    fn place(&self) -> BufferLocation {
        BufferLocation::default()
    }

    /// Makes the whole buffer reachable for the function at the place of an index, be it there now
    /// or not.
    fn map(&self, request: &AttachRequest<'_>, place: usize) -> Result<Mapped, Error>;

    /// Brings the pages of a range of the mapped bytes in, which saves the first accesses their
    /// faults. What cannot be brought in shows as a fault of the access.
    fn bring_in(&self, mapped: &Mapped, place: usize, range: Range<u64>) {
        let _ = place;
        mapped.bring_in(&range);
    }

    /// Ends a mapping.
    fn unmap(&self, mapped: &Mapped);

    /// Pin and unpin, if the exporter can move the buffer.
    fn pinning(&self) -> Option<&dyn Pinning> {
        None
    }

    /// The CPU is about to access the mapped bytes; they stay where the answer says until the end.
    /// The software HCA's DMA is CPU access, so this opens every access. Must not allocate or wait:
    /// a buffer that is moving is [`Error::Moving`].
    fn begin_cpu_access(&self, direction: Direction) -> Result<BufferLocation, Error> {
        let _ = direction;
        Ok(BufferLocation::default())
    }

    /// Ends a move whose mover is gone. Never waits: [`Error::Moving`] while a move goes on.
    fn settle_move(&self) -> Result<(), Error> {
        Ok(())
    }

    /// The control block by which others keep the buffer in its place ([`crate::Outsider`]), if it
    /// has one.
    fn control(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// The CPU has finished. Must not allocate.
    fn end_cpu_access(&self, direction: Direction) {
        let _ = direction;
    }
}
