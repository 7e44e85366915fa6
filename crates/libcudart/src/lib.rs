//! CUDA's runtime API, over the driver API of `libcuda.so.1`: what `libcudart.so.12` and
//! `libcudart.so.13` are made of, which are crates beside this one.
//!
//! An independent implementation of the documented interface. NVIDIA's own runtime refuses every
//! driver but NVIDIA's; this one asks for nothing but the functions in `driver`, and keeps little
//! of its own: each thread's device and last error (`current`, `ffi`), and the names of kernels
//! (`calls/launch.rs`). Contexts, memory and streams are the driver's, so what a program does by
//! the driver API and by the runtime's is the same, and so is what it does by both libraries.
//!
//! [`calls`] has a file for each kind of functions, and a folder of those that one version of CUDA
//! has otherwise than the other; `exports` gives them their names and their symbol version. A
//! function that no source has answers `cudaErrorNotSupported`, and says so where `PEERDMA_LOG=1`
//! asks for it.
//!
//! What a function may assume is the contract of `cuda_runtime_api.h`: a pointer is null or leads
//! to what it says. Nothing unwinds into C.
#![allow(non_snake_case, reason = "names of cuda_runtime_api.h")]

#[macro_use]
mod ffi;
mod batch;
#[allow(missing_docs, reason = "cuda_runtime_api.h says what functions do")]
pub mod calls;
mod codes;
mod current;
mod driver;
mod error;
mod exports;
mod shape;

/// What a function answers that is not there.
pub fn missing(name: &'static str) -> u32 {
    cuda::log::say_once(format_args!("{name} is not there: cudaErrorNotSupported"));
    ffi::contained(|| Err(error::Error::NOT_SUPPORTED))
}
