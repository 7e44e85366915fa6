//! What errors are called.

use crate::codes::{self, Row};
use std::ffi::{CStr, c_char};

/// What is said of a number that is none of the codes.
const NO_CODE: &CStr = c"unrecognized error code";

fn find(code: u32) -> Option<&'static Row> {
    codes::find(code)
}

pub extern "C" fn cudaGetErrorName(code: u32) -> *const c_char {
    find(code).map_or(NO_CODE, |(_, name, _)| name).as_ptr()
}

pub extern "C" fn cudaGetErrorString(code: u32) -> *const c_char {
    find(code).map_or(NO_CODE, |(.., text)| text).as_ptr()
}
