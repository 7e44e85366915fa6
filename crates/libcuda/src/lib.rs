//! `libcuda.so.1`: the functions of NVIDIA's driver API over the software GPU.
//!
//! The model is in the crate `cuda`; here are the C functions, each a few lines: `calls` has a file
//! for each kind of them, `ffi` what turns pointers of C into values, `symbol` what is at a symbol,
//! `entries` the table of all names that the headers have. A function that no source has answers
//! `CUDA_ERROR_NOT_SUPPORTED`, and says so where `PEERDMA_LOG=1` asks for it.
//!
//! What a function may assume is the contract of `cuda.h`: a pointer is null or leads to what it
//! says. Handles are looked up. Nothing unwinds into C.
#![allow(non_snake_case, reason = "names of cuda.h")]

/// What the library does where the system has no memory.
#[global_allocator]
static ALLOCATOR: engine_thread::Sparing = engine_thread::Sparing;

#[macro_use]
mod symbol;
#[macro_use]
mod ffi;
mod calls;
mod entries;
mod export_table;

/// What a function answers that is not there.
fn missing(name: &'static str) -> u32 {
    cuda::log::say_once(format_args!("{name} is not there: CUDA_ERROR_NOT_SUPPORTED"));
    cuda::Error::NOT_SUPPORTED.code()
}
