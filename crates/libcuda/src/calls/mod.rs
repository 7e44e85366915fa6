//! The functions, by what they are about. `fn NAME(…)` in the macros of `ffi` defines one; the
//! build script reads these names.

pub mod context;
mod copy;
mod device;
mod export;
mod init;
mod ipc;
mod memory;
pub mod modules;
mod pointer;
mod pool;
mod queue;
mod vmm;
