//! The codes that CUDA's functions answer (`CUresult` of `cuda.h`).

use crate::other_codes::OTHERS;
use crate::sys::Code;
use std::ffi::CStr;

/// A refused call, as the code that its function returns: never 0.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Error(u32);

/// Result of a call.
pub type Res<T = ()> = Result<T, Error>;

macro_rules! codes {
    ($($value:literal $name:ident $full:literal $text:literal;)*) => {
        impl Error {
            $(
                #[doc = concat!("`", $full, "`: ", $text, ".")]
                pub const $name: Error = Error($value);
            )*
        }

        /// Code, name and description of all.
        const CODES: &[(u32, &str, &str)] = &[
            (0, "CUDA_SUCCESS\0", "no error\0"),
            $(($value, concat!($full, "\0"), concat!($text, "\0")),)*
        ];
    };
}

codes! {
    1 INVALID_VALUE "CUDA_ERROR_INVALID_VALUE" "invalid argument";
    2 OUT_OF_MEMORY "CUDA_ERROR_OUT_OF_MEMORY" "out of memory";
    3 NOT_INITIALIZED "CUDA_ERROR_NOT_INITIALIZED" "initialization error";
    4 DEINITIALIZED "CUDA_ERROR_DEINITIALIZED" "driver shutting down";
    5 PROFILER_DISABLED "CUDA_ERROR_PROFILER_DISABLED" "profiler disabled";
    34 STUB_LIBRARY "CUDA_ERROR_STUB_LIBRARY" "the library is a stub";
    46 DEVICE_UNAVAILABLE "CUDA_ERROR_DEVICE_UNAVAILABLE" "device busy or unavailable";
    100 NO_DEVICE "CUDA_ERROR_NO_DEVICE" "no CUDA-capable device is detected";
    101 INVALID_DEVICE "CUDA_ERROR_INVALID_DEVICE" "invalid device ordinal";
    200 INVALID_IMAGE "CUDA_ERROR_INVALID_IMAGE" "device kernel image is invalid";
    201 INVALID_CONTEXT "CUDA_ERROR_INVALID_CONTEXT" "invalid device context";
    205 MAP_FAILED "CUDA_ERROR_MAP_FAILED" "mapping of buffer object failed";
    206 UNMAP_FAILED "CUDA_ERROR_UNMAP_FAILED" "unmapping of buffer object failed";
    208 ALREADY_MAPPED "CUDA_ERROR_ALREADY_MAPPED" "resource already mapped";
    209 NO_BINARY_FOR_GPU "CUDA_ERROR_NO_BINARY_FOR_GPU"
        "no kernel image is available for execution on the device";
    211 NOT_MAPPED "CUDA_ERROR_NOT_MAPPED" "resource not mapped";
    215 UNSUPPORTED_LIMIT "CUDA_ERROR_UNSUPPORTED_LIMIT" "limit is not supported on this device";
    216 CONTEXT_ALREADY_IN_USE "CUDA_ERROR_CONTEXT_ALREADY_IN_USE"
        "exclusive context is already in use";
    217 PEER_ACCESS_UNSUPPORTED "CUDA_ERROR_PEER_ACCESS_UNSUPPORTED"
        "peer access is not supported between these two devices";
    218 INVALID_PTX "CUDA_ERROR_INVALID_PTX" "a PTX JIT compilation failed";
    300 INVALID_SOURCE "CUDA_ERROR_INVALID_SOURCE" "device kernel image is invalid";
    301 FILE_NOT_FOUND "CUDA_ERROR_FILE_NOT_FOUND" "file not found";
    302 SHARED_OBJECT_SYMBOL_NOT_FOUND "CUDA_ERROR_SHARED_OBJECT_SYMBOL_NOT_FOUND"
        "shared object symbol not found";
    303 SHARED_OBJECT_INIT_FAILED "CUDA_ERROR_SHARED_OBJECT_INIT_FAILED"
        "shared object initialization failed";
    304 OPERATING_SYSTEM "CUDA_ERROR_OPERATING_SYSTEM" "OS call failed or operation not supported";
    400 INVALID_HANDLE "CUDA_ERROR_INVALID_HANDLE" "invalid resource handle";
    401 ILLEGAL_STATE "CUDA_ERROR_ILLEGAL_STATE" "the operation cannot be performed in this state";
    500 NOT_FOUND "CUDA_ERROR_NOT_FOUND" "named symbol not found";
    600 NOT_READY "CUDA_ERROR_NOT_READY" "device not ready";
    700 ILLEGAL_ADDRESS "CUDA_ERROR_ILLEGAL_ADDRESS" "an illegal memory access was encountered";
    701 LAUNCH_OUT_OF_RESOURCES "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES"
        "too many resources requested for launch";
    704 PEER_ACCESS_ALREADY_ENABLED "CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED"
        "peer access is already enabled";
    705 PEER_ACCESS_NOT_ENABLED "CUDA_ERROR_PEER_ACCESS_NOT_ENABLED"
        "peer access has not been enabled";
    708 PRIMARY_CONTEXT_ACTIVE "CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE"
        "cannot set while device is active in this process";
    709 CONTEXT_IS_DESTROYED "CUDA_ERROR_CONTEXT_IS_DESTROYED" "context is destroyed";
    712 HOST_MEMORY_ALREADY_REGISTERED "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED"
        "part or all of the requested memory range is already mapped";
    713 HOST_MEMORY_NOT_REGISTERED "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED"
        "pointer does not correspond to a registered memory region";
    719 LAUNCH_FAILED "CUDA_ERROR_LAUNCH_FAILED" "unspecified launch failure";
    800 NOT_PERMITTED "CUDA_ERROR_NOT_PERMITTED" "operation not permitted";
    801 NOT_SUPPORTED "CUDA_ERROR_NOT_SUPPORTED" "operation not supported";
    802 SYSTEM_NOT_READY "CUDA_ERROR_SYSTEM_NOT_READY" "system not yet initialized";
    900 STREAM_CAPTURE_UNSUPPORTED "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED"
        "operation not permitted when stream is capturing";
    909 TIMEOUT "CUDA_ERROR_TIMEOUT" "wait operation timed out";
    999 UNKNOWN "CUDA_ERROR_UNKNOWN" "unknown error";
}

impl Code for Error {
    const INVALID: Error = Error::INVALID_VALUE;
    const UNKNOWN: Error = Error::UNKNOWN;

    fn code(self) -> u32 {
        self.0
    }
}

impl Error {
    /// As a function returns it.
    pub fn code(self) -> u32 {
        self.0
    }

    /// The error of a code; `None` for success and for codes that the driver never answers.
    pub fn of(code: u32) -> Option<Error> {
        let known = code != 0 && CODES.iter().any(|(value, ..)| *value == code);
        known.then_some(Error(code))
    }

    /// `CUDA_ERROR_OUT_OF_MEMORY` where the system refused for want of memory or of descriptors.
    pub fn of_want(error: &std::io::Error) -> Option<Error> {
        let number = error.raw_os_error()?;
        let lacks = [libc::ENOMEM, libc::EMFILE, libc::ENFILE, libc::ENOSPC].contains(&number);
        lacks.then_some(Error::OUT_OF_MEMORY)
    }

    /// Name of a code, such as `CUDA_ERROR_INVALID_VALUE`.
    pub fn name(code: u32) -> Option<&'static CStr> {
        entry(code).and_then(|(_, name, _)| CStr::from_bytes_until_nul(name.as_bytes()).ok())
    }

    /// Description of a code.
    pub fn text(code: u32) -> Option<&'static CStr> {
        entry(code).and_then(|(.., text)| CStr::from_bytes_until_nul(text.as_bytes()).ok())
    }
}

fn entry(code: u32) -> Option<&'static (u32, &'static str, &'static str)> {
    CODES.iter().chain(OTHERS).find(|(value, ..)| *value == code)
}

impl std::fmt::Debug for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match Error::name(self.0) {
            Some(name) => f.write_str(&name.to_string_lossy()),
            None => write!(f, "CUresult {}", self.0),
        }
    }
}

impl std::fmt::Display for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Debug::fmt(self, f)
    }
}

/// For calls that make something, or queue work: what they keep is small, and asked for in a way
/// that may not fail.
///
/// # Errors
/// `CUDA_ERROR_OUT_OF_MEMORY` where the system has none.
pub fn may_make() -> Res {
    if engine_thread::may_make() { Ok(()) } else { Err(Error::OUT_OF_MEMORY) }
}

/// Only the system refuses here: no memory, no descriptor, or something that is not foreseen.
impl From<std::io::Error> for Error {
    fn from(error: std::io::Error) -> Error {
        crate::log::say(format_args!("the system refused: {error}"));
        Error::of_want(&error).unwrap_or(Error::OPERATING_SYSTEM)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_code_has_its_name_and_an_unknown_one_has_none() {
        assert_eq!(Error::name(0), Some(c"CUDA_SUCCESS"));
        assert_eq!(Error::name(201), Some(c"CUDA_ERROR_INVALID_CONTEXT"));
        assert_eq!(Error::text(2), Some(c"out of memory"));
        assert_eq!((Error::name(12345), Error::of(0), Error::of(77)), (None, None, None));
        assert_eq!(format!("{:?}", Error::INVALID_VALUE), "CUDA_ERROR_INVALID_VALUE");
    }
}
