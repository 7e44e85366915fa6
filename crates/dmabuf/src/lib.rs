//! Sharing buffers between devices, over real file descriptors (D9).
//!
//! [`DmaBuf::get`] takes a descriptor that a program has: a software GPU's memfd, or a kernel dma-buf. [`DmaBuf::attach`]
//! makes a PCI function an importer of it, if the platform lets it reach the memory; the attachment's extents are then
//! readable and writable by guarded copies. Calls, their order and their errors follow `drivers/dma-buf/dma-buf.c`.

mod attachment;
mod control;
mod error;
mod exporter;
mod fd;
mod gpu_memory;
mod kernel;

pub use attachment::{Attachment, DmaBuf};
pub use control::{Control, ControlBlocks, LocalControls, Placement};
pub use error::Error;
pub use exporter::{AttachRequest, Direction, Exporter, Extent, Importer, Mapped, Pinning};
pub use gpu_memory::{MEMFD_PREFIX, memfd_name};
