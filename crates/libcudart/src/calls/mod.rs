//! The functions, by what they are about. `fn NAME(…)` in the macros of `ffi` defines one; the
//! build script reads these names.

pub mod copy;
pub mod device;
pub mod entry;
pub mod errors;
pub mod event;
pub mod fill;
pub mod host;
pub mod launch;
pub mod memory;
pub mod peer;
pub mod pointer;
pub mod pool;
pub mod properties;
pub mod stream;
