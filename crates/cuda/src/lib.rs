//! The model behind the software CUDA driver: GPUs of the platform, contexts, memory, streams.
//!
//! It plays the part of NVIDIA's user-space driver, and stands on the kernel's side of it as that
//! does: it opens the GPU's node below `/dev/dri` (which the preloaded library answers), asks it
//! for memory, maps that, and exports it. An address that it gives to a program is a mapping that
//! no processor may touch; the driver itself reaches the bytes through a second one. Handles are
//! numbers that are looked up, never pointers that are followed, so a wrong one is answered with an
//! error. The C functions are in the crate `libcuda`, NVML's in `libnvml`; both are thin.
//!
//! Begin at [`Driver`]. Unsafe code is in the files of `sys` only.
#![deny(unsafe_code)]

mod asked;
mod context;
mod current;
mod driver;
mod error;
pub mod gpu;
mod handles;
pub mod log;
pub mod memory;
pub mod module;
mod other_codes;
pub mod queue;
pub mod sys;

pub use asked::{Asked, new_stream};
pub use context::Context;
pub use current::{current, living, pop, push, set_current, top};
pub use driver::Driver;
pub use error::{Error, Res, may_make};
pub use handles::{Handle, Handles};
