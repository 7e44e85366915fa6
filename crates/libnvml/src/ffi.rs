//! The edge between C and Rust as `nvml.h` has it: the codes that functions return, what pointers
//! of the program's are, and how a function is written.

/// `nvmlReturn_t`, but for success.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Error {
    Uninitialized = 1,
    InvalidArgument = 2,
    NotSupported = 3,
    NotFound = 6,
    InsufficientSize = 7,
    DriverNotLoaded = 9,
    ArgumentVersionMismatch = 25,
    Unknown = 999,
}

/// Result of a call.
pub type Res<T = ()> = Result<T, Error>;

impl cuda::sys::Code for Error {
    const INVALID: Error = Error::InvalidArgument;
    const UNKNOWN: Error = Error::Unknown;

    fn code(self) -> u32 {
        self as u32
    }
}

/// A place for an answer, or null.
pub type Out<T> = cuda::sys::Out<T, Error>;
/// A string of C, or null.
pub type Text = cuda::sys::Text<Error>;

/// Ends a function: its code, 0 for success.
pub fn contained(body: impl FnOnce() -> Res) -> u32 {
    cuda::sys::contained(body)
}

/// Writes a string into room for `len` bytes, all of it or nothing.
pub fn put_text(room: Out<u8>, len: u32, text: &str) -> Res {
    if text.len() >= len as usize {
        return Err(Error::InsufficientSize);
    }
    for (index, byte) in text.bytes().chain([0]).enumerate() {
        room.at(index).put(byte)?;
    }
    Ok(())
}

/// A string in an array of a structure, cut to fit.
pub fn text<const N: usize>(value: &str) -> [u8; N] {
    let mut bytes = [0; N];
    for (to, from) in bytes.iter_mut().zip(value.bytes()).take(N - 1) {
        *to = from;
    }
    bytes
}

/// Functions of the library.
macro_rules! api {
    ($($(#[$doc:meta])* fn $name:ident ($($arg:ident: $ty:ty),* $(,)?) $body:block)*) => {$(
        $(#[$doc])*
        // SAFETY: the one function of this name in the library, which is that of NVML's ABI.
        #[unsafe(no_mangle)]
        extern "C" fn $name($($arg: $ty),*) -> u32 {
            $crate::ffi::contained(move || -> $crate::ffi::Res { $body })
        }
    )*};
}
