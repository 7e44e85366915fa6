//! What an exporter does (`struct dma_buf_ops` in `include/linux/dma-buf.h`).

use crate::Error;
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

/// A whole buffer, mapped for one importer. Always the whole: importers trim (`ib_umem_dmabuf_map_pages`).
#[derive(Clone, Debug)]
pub struct Mapped {
    /// The bytes in order.
    pub extents: Vec<Extent>,
    /// How the importing function reaches them.
    pub route: Arc<pcie::Route>,
}

/// Where a buffer is during an access. A static exporter's is always the same.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Place {
    /// Which of the exporter's places, below [`Place::COUNT`].
    pub index: usize,
    /// Number of moves so far.
    pub generation: u64,
}

impl Place {
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

    /// A function wants to import. Memory that it cannot reach is refused here ([`Error::Unreachable`]).
    fn attach(&self, request: &AttachRequest<'_>) -> Result<(), Error> {
        let _ = request;
        Ok(())
    }

    /// The function has gone.
    fn detach(&self) {}

    /// The place that the buffer is at now; where it moves, a moment later perhaps another.
    fn place(&self) -> Place {
        Place::default()
    }

    /// Makes the whole buffer reachable for the function at the place of an index, be it there now or not.
    fn map(&self, request: &AttachRequest<'_>, place: usize) -> Result<Mapped, Error>;

    /// Ends a mapping.
    fn unmap(&self, mapped: &Mapped);

    /// Pin and unpin, if the exporter can move the buffer.
    fn pinning(&self) -> Option<&dyn Pinning> {
        None
    }

    /// The CPU is about to access the mapped bytes; they stay where the answer says until the end. The software HCA's DMA is
    /// CPU access, so this opens every access. Must not allocate or wait: a buffer that is moving is [`Error::Moving`].
    fn begin_cpu_access(&self, direction: Direction) -> Result<Place, Error> {
        let _ = direction;
        Ok(Place::default())
    }

    /// Ends a move whose mover is gone. Never waits: [`Error::Moving`] while a move goes on.
    fn settle_move(&self) -> Result<(), Error> {
        Ok(())
    }

    /// The CPU has finished. Must not allocate.
    fn end_cpu_access(&self, direction: Direction) {
        let _ = direction;
    }
}
