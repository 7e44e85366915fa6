//! Errors: what they are called, and the thread's last one.

use crate::{codes, ffi};
use std::ffi::{CStr, c_char};

/// What is said of a number that is none of the codes.
const NO_CODE: &CStr = c"unrecognized error code";

pub extern "C" fn cudaGetErrorName(code: u32) -> *const c_char {
    codes::find(code).map_or(NO_CODE, |(name, _)| name).as_ptr()
}

pub extern "C" fn cudaGetErrorString(code: u32) -> *const c_char {
    codes::find(code).map_or(NO_CODE, |(_, text)| text).as_ptr()
}

pub extern "C" fn cudaGetLastError() -> u32 {
    ffi::take_last_error()
}

pub extern "C" fn cudaPeekAtLastError() -> u32 {
    ffi::last_error()
}
