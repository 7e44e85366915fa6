//! The memory of one process as a DMA engine sees it: guarded touches, populated ranges, notifiers of unmapping.
#![cfg(target_os = "linux")]

pub mod guard;
mod interval;
mod map;
mod space;

pub use guard::{AtomicOp, Fault};
pub use map::{Mapping, populate};
pub use space::{AddressSpace, Invalidate, PinError, Pinned, Registration, invalidate, page_size};
