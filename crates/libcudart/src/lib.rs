//! `libcudart.so.12`: CUDA's runtime API, over the driver API of `libcuda.so.1`.
//!
//! An independent implementation of the documented interface. NVIDIA's own runtime refuses every
//! driver but NVIDIA's; this one asks for nothing but the functions in `driver`, and keeps little
//! of its own: each thread's device and last error (`current`, `ffi`), and the names of kernels
//! (`calls/launch.rs`). Contexts, memory and streams are the driver's, so what a program does by
//! the driver API and by the runtime's is the same.
//!
//! `calls` has a file for each kind of functions, `exports` gives them their names and their symbol
//! version. A function that no source has answers `cudaErrorNotSupported`, and says so where
//! `PEERDMA_LOG=1` asks for it.
//!
//! What a function may assume is the contract of `cuda_runtime_api.h`: a pointer is null or leads
//! to what it says. Nothing unwinds into C.
#![allow(non_snake_case, reason = "names of cuda_runtime_api.h")]
// The unit tests are built without `exports`, which is what calls most functions.
#![cfg_attr(test, allow(dead_code))]

#[macro_use]
mod ffi;
mod calls;
mod codes;
mod current;
mod driver;
mod error;
// A test program has no symbol versions.
#[cfg(not(test))]
mod exports;
mod shape;

/// What a function answers that is not there.
fn missing(name: &'static str) -> u32 {
    cuda::log::say_once(format_args!("{name} is not there: cudaErrorNotSupported"));
    ffi::contained(|| Err(error::Error::NOT_SUPPORTED))
}
