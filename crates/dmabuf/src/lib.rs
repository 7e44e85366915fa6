//! Sharing buffers between devices, over real file descriptors (D9).
//!
//! [`DmaBuf::get`] takes a descriptor that a program has: a software GPU's memfd, or a kernel
//! dma-buf. [`DmaBuf::attach`] makes a PCI function an importer of it, if the platform lets it
//! reach the memory; the attachment's extents are then readable and writable by guarded copies. A
//! software GPU's buffer may move, also while it is used, and be taken back: see [`Storage`].
//! Calls, their order and their errors follow `drivers/dma-buf/dma-buf.c`.

mod attachment;
mod control;
mod error;
mod exporter;
mod fd;
mod gpu_memory;
mod kernel;
mod outsider;
mod relocate;
pub mod sabotage;
mod storage;
mod turnstile;

pub use attachment::{Attachment, DmaBuf, Hold};
pub use control::{Control, ControlBlocks, LocalControls, Placement};
pub use error::{Error, Refused};
pub use exporter::{AttachRequest, BufferLocation, Direction, Exporter, Extent, Mapped, Pinning};
pub use gpu_memory::{MEMFD_MODE, MEMFD_PREFIX, VRAM_PAGE, exported_name, id_of, memfd_name};
pub use kernel::KernelBuffer;
pub use outsider::Outsider;
pub use relocate::POISON;
pub use storage::part::export_part;
pub use storage::{Storage, User};
pub use turnstile::{TurnstileState, Use};
