//! The edge between C and Rust as `cuda.h` has it: what pointers of the program's are, how a
//! function ends, and how one is written.

use cuda::{Error, Res};

/// A place for an answer, or null.
pub type Out<T> = cuda::sys::Out<T, Error>;
/// Values to read, or null.
pub type In<T> = cuda::sys::In<T, Error>;
/// A string of C, or null.
pub type Text = cuda::sys::Text<Error>;

/// Ends a function: its code, 0 for success.
pub fn contained(body: impl FnOnce() -> Res) -> u32 {
    cuda::sys::contained(body)
}

/// Room for a string, of `len` bytes.
///
/// # Errors
/// `CUDA_ERROR_INVALID_VALUE` for null or no room. A string that is longer is cut.
pub fn put_text(room: Out<u8>, len: i32, text: &str) -> Res {
    let len = usize::try_from(len).ok().filter(|len| *len > 0).ok_or(Error::INVALID_VALUE)?;
    let bytes = text.as_bytes();
    let cut = bytes.len().min(len - 1);
    for (index, byte) in bytes[..cut].iter().chain(&[0]).enumerate() {
        room.at(index).put(*byte)?;
    }
    Ok(())
}

/// A function that the program wants to be called on the host.
pub type HostFunction = Option<extern "C" fn(u64)>;
/// One that a runtime wants to be called at a context's end: with the context, a key and its value.
pub type ContextCallback = Option<extern "C" fn(u64, u64, u64)>;
/// One of a stream's callbacks.
pub type StreamCallback = Option<extern "C" fn(u64, u32, u64)>;

/// Functions without a stream.
macro_rules! api {
    ($($(#[$doc:meta])* fn $name:ident ($($arg:ident: $ty:ty),* $(,)?) $body:block)*) => {$(
        symbol! {
            $(#[$doc])*
            $name($($arg: $ty),*) { $crate::ffi::contained(move || -> cuda::Res { $body }) }
        }
    )*};
}

/// Functions that are there for each kind of default stream: the second name is that of programs
/// whose default stream is each thread's own. The stream is the last argument, the first, or none.
macro_rules! streamed {
    ($($(#[$doc:meta])* fn $name:ident, $other:ident
        ($($arg:ident: $ty:ty),*; $stream:ident) $body:block)*) => {$(
        symbol! {
            $(#[$doc])*
            $name($($arg: $ty,)* stream: u64) {
                $crate::ffi::contained(move || -> cuda::Res {
                    let $stream = cuda::Asked::of(stream, false)?;
                    $body
                })
            }
        }
        symbol! {
            $(#[$doc])*
            $other($($arg: $ty,)* stream: u64) {
                $crate::ffi::contained(move || -> cuda::Res {
                    let $stream = cuda::Asked::of(stream, true)?;
                    $body
                })
            }
        }
    )*};
    ($($(#[$doc:meta])* fn $name:ident, $other:ident
        ($stream:ident; $($arg:ident: $ty:ty),*) $body:block)*) => {$(
        symbol! {
            $(#[$doc])*
            $name(stream: u64 $(, $arg: $ty)*) {
                $crate::ffi::contained(move || -> cuda::Res {
                    let $stream = cuda::Asked::of(stream, false)?;
                    $body
                })
            }
        }
        symbol! {
            $(#[$doc])*
            $other(stream: u64 $(, $arg: $ty)*) {
                $crate::ffi::contained(move || -> cuda::Res {
                    let $stream = cuda::Asked::of(stream, true)?;
                    $body
                })
            }
        }
    )*};
    ($($(#[$doc:meta])* fn $name:ident, $other:ident
        ($($arg:ident: $ty:ty),*) in $stream:ident $body:block)*) => {$(
        symbol! {
            $(#[$doc])*
            $name($($arg: $ty),*) {
                $crate::ffi::contained(move || -> cuda::Res {
                    let $stream = cuda::Asked::of(0, false)?;
                    $body
                })
            }
        }
        symbol! {
            $(#[$doc])*
            $other($($arg: $ty),*) {
                $crate::ffi::contained(move || -> cuda::Res {
                    let $stream = cuda::Asked::of(0, true)?;
                    $body
                })
            }
        }
    )*};
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn panics_and_null_are_answered_with_codes() {
        assert_eq!(contained(|| panic!("as a test")), 999);
        // SAFETY: null, or a place of this function's.
        let out = |place: *mut u32| unsafe { Out::new(place) };
        assert_eq!(contained(|| out(std::ptr::null_mut()).put(1)), 1);
        let mut place = 0;
        assert_eq!(contained(|| out(&raw mut place).put(7)), 0);
        assert_eq!(place, 7);
        // SAFETY: null.
        assert_eq!(unsafe { Text::new(std::ptr::null()) }.get(), Err(Error::INVALID_VALUE));
        let mut room = [9; 4];
        // SAFETY: places of this function's.
        let bytes = unsafe { Out::new(room.as_mut_ptr()) };
        put_text(bytes, 4, "abcdef").unwrap();
        assert_eq!(&room, b"abc\0");
        assert!(put_text(bytes, 0, "a").is_err());
    }
}
