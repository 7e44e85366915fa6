//! The functions, by what they are about. `fn NAME(…)` in the macros of `ffi` defines one; the
//! build scripts of the libraries read these names. Those that CUDA 13 changed are in the folders
//! of the versions.

pub mod copy;
pub mod device;
pub mod entry;
pub mod errors;
pub mod event;
pub mod fill;
pub mod host;
pub mod launch;
pub mod memory;
pub mod of_12;
pub mod of_13;
pub mod peer;
pub mod pointer;
pub mod pool;
pub mod properties;
pub mod stream;
