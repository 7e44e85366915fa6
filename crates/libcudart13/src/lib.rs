//! `libcudart.so.13` of CUDA 13.5: the functions of the crate `libcudart`, under the names and the
//! symbol version that programs of CUDA 13 ask for.
#![allow(non_snake_case, reason = "names of cuda_runtime_api.h")]

/// What the library does where the system has no memory.
#[global_allocator]
static ALLOCATOR: engine_thread::Sparing = engine_thread::Sparing;

include!(concat!(env!("OUT_DIR"), "/exports.rs"));
