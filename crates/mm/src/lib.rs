//! The memory of one process as a DMA engine sees it: guarded touches, populated ranges, notifiers of unmapping.
#![cfg(target_os = "linux")]

pub mod guard;

pub use guard::{AtomicOp, Fault};
