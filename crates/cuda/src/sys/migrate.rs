//! Pages between the host's memory and a GPU's: functions of the preloaded library (`peerdma.h`),
//! if it is there.
#![allow(unsafe_code, reason = "functions of another library")]

use std::ffi::c_void;
use std::mem::transmute;

/// Moves whole pages to the memory of the platform's GPU of a number, or home for `None`.
pub fn migrate(addr: u64, len: u64, gpu: Option<u32>) {
    let name = if gpu.is_some() { c"peerdma_migrate_to_gpu" } else { c"peerdma_migrate_to_host" };
    // SAFETY: a name, looked up among the program's libraries.
    let function = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    if function.is_null() {
        return;
    }
    let (addr, len) = (addr as *mut c_void, len as usize);
    // What does not move stays where it is, and remains as good.
    let _ = match gpu {
        Some(gpu) => {
            type ToGpu = unsafe extern "C" fn(u32, *mut c_void, usize) -> isize;
            // SAFETY: the function of this name, as its header has it; it moves pages, which leaves
            // every byte what it is.
            unsafe { transmute::<*mut c_void, ToGpu>(function)(gpu, addr, len) }
        }
        None => {
            type ToHost = unsafe extern "C" fn(*mut c_void, usize) -> isize;
            // SAFETY: as above.
            unsafe { transmute::<*mut c_void, ToHost>(function)(addr, len) }
        }
    };
}
