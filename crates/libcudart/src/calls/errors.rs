//! The thread's last error.

use crate::ffi;

pub extern "C" fn cudaGetLastError() -> u32 {
    ffi::take_last_error()
}

pub extern "C" fn cudaPeekAtLastError() -> u32 {
    ffi::last_error()
}
