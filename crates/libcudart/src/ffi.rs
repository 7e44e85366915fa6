//! The edge between C and Rust as `cuda_runtime_api.h` has it: what pointers of the program's are,
//! how a function ends, and how one is written.

use crate::error::{Error, Res};
use std::cell::Cell;

/// A place for an answer, or null.
pub type Out<T> = cuda::sys::Out<T, Error>;
/// Values to read, or null.
pub type In<T> = cuda::sys::In<T, Error>;
/// A string of C, or null.
pub type Text = cuda::sys::Text<Error>;

/// A function that the program wants to be called on the host.
pub type HostFunction = Option<extern "C" fn(u64)>;
/// One of a stream's callbacks.
pub type StreamCallback = Option<extern "C" fn(u64, u32, u64)>;

thread_local! {
    /// The code of the last call of this thread's that was refused, until somebody asks for it.
    static LAST: Cell<u32> = const { Cell::new(0) };
}

/// Ends a function: its code, 0 for success. One that is not 0 is kept as the thread's last error.
pub fn contained(body: impl FnOnce() -> Res) -> u32 {
    let code = cuda::sys::contained(body);
    if code != 0 {
        LAST.set(code);
    }
    code
}

/// The thread's last error.
pub fn last_error() -> u32 {
    LAST.get()
}

/// The thread's last error, which is then none.
pub fn take_last_error() -> u32 {
    LAST.replace(0)
}

/// `cudaStreamPerThread`.
pub const PER_THREAD: u64 = 2;

/// The stream that functions of the second kind mean: where none is named, the thread's own.
pub fn own(stream: u64) -> u64 {
    if stream == 0 { PER_THREAD } else { stream }
}

/// How a copy or a fill is made.
#[derive(Clone, Copy)]
pub enum Way {
    /// Waited for, by the default stream that all threads share.
    Legacy,
    /// Waited for, by the thread's own default stream.
    Own,
    /// Queued to a stream.
    Queued(u64),
}

/// Functions without a stream.
macro_rules! api {
    ($($(#[$doc:meta])* fn $name:ident ($($arg:ident: $ty:ty),* $(,)?) $body:block)*) => {$(
        $(#[$doc])*
        pub extern "C" fn $name($($arg: $ty),*) -> u32 {
            $crate::ffi::contained(move || -> $crate::error::Res { $body })
        }
    )*};
}

/// Functions that are there for each kind of default stream: the second name is that of programs
/// whose default stream is each thread's own. Which argument is the stream is said behind them.
macro_rules! streamed {
    ($($(#[$doc:meta])* fn $name:ident, $other:ident
        ($($arg:ident: $ty:ty),* $(,)?) on $stream:ident $body:block)*) => {$(
        $(#[$doc])*
        pub extern "C" fn $name($($arg: $ty),*) -> u32 {
            $crate::ffi::contained(move || -> $crate::error::Res { $body })
        }
        $(#[$doc])*
        pub extern "C" fn $other($($arg: $ty),*) -> u32 {
            $crate::ffi::contained(move || -> $crate::error::Res {
                let $stream = $crate::ffi::own($stream);
                $body
            })
        }
    )*};
}

/// Functions that wait for what they do, for each kind of default stream as above.
macro_rules! waiting {
    ($($(#[$doc:meta])* fn $name:ident, $other:ident
        ($($arg:ident: $ty:ty),* $(,)?) by $way:ident $body:block)*) => {$(
        $(#[$doc])*
        pub extern "C" fn $name($($arg: $ty),*) -> u32 {
            $crate::ffi::contained(move || -> $crate::error::Res {
                let $way = $crate::ffi::Way::Legacy;
                $body
            })
        }
        $(#[$doc])*
        pub extern "C" fn $other($($arg: $ty),*) -> u32 {
            $crate::ffi::contained(move || -> $crate::error::Res {
                let $way = $crate::ffi::Way::Own;
                $body
            })
        }
    )*};
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_error_stays_until_somebody_asks() {
        assert_eq!(contained(|| Err(Error::INVALID_PITCH)), 12);
        assert_eq!(contained(|| Ok(())), 0);
        assert_eq!(last_error(), 12);
        std::thread::spawn(|| assert_eq!(last_error(), 0)).join().unwrap();
        assert_eq!((take_last_error(), take_last_error()), (12, 0));
        assert_eq!((own(0), own(1), own(77)), (2, 1, 77));
    }
}
