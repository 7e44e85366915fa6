//! `libnvidia-ml.so.1`: the functions of NVIDIA's management library (NVML) that tell of GPUs, over
//! the software GPUs of the platform.
//!
//! What the platform has is told: names, places, links, memory. Of what it has not (sensors, ECC,
//! NVLink, MIG), a function answers `NVML_ERROR_NOT_SUPPORTED`, as on a GPU without it; so do all
//! that no source here has, which the build script makes. The device handles are numbers that are
//! looked up.
#![allow(non_snake_case, reason = "names of nvml.h")]

/// What the library does where the system has no memory.
#[global_allocator]
static ALLOCATOR: engine_thread::Sparing = engine_thread::Sparing;

#[macro_use]
mod ffi;
mod device;
mod session;
mod topology;

#[allow(clippy::undocumented_unsafe_blocks, reason = "made by the build script")]
mod made {
    include!(concat!(env!("OUT_DIR"), "/entries.rs"));
}

/// What a function answers that is not there.
fn missing(name: &'static str) -> u32 {
    if !session::is_begun() {
        return ffi::Error::Uninitialized as u32;
    }
    cuda::log::say_once(format_args!("{name} is not there: NVML_ERROR_NOT_SUPPORTED"));
    ffi::Error::NotSupported as u32
}
