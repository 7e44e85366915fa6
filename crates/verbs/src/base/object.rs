//! C objects with our part behind them.
//!
//! The pointer a program holds is to the C struct at the beginning of ours. The C part lies in an
//! `UnsafeCell`: the program may read (and, for the `_ex` objects, write) it at any time, so we
//! touch it through raw pointers only.

use crate::base::ffi::{INVALID, Res};

/// A struct that begins with the C struct `C`.
///
/// # Safety
/// The implementor is `repr(C)` and its first field is `UnsafeCell<Self::C>` or larger, beginning
/// with a `Self::C`.
pub unsafe trait Object: Sized {
    /// The C struct programs know.
    type C;
}

/// The object behind a C pointer.
///
/// # Safety
/// `c` is null or came from [`give`] for the same `T` and was not taken back.
pub unsafe fn object<'a, T: Object>(c: *mut T::C) -> Res<&'a T> {
    // SAFETY: by the caller's promise and the trait's layout rule, `c` points to a live `T` if it
    // is not null.
    unsafe { c.cast::<T>().as_ref() }.ok_or(INVALID)
}

/// Hands an object to the program.
pub fn give<T: Object>(object: Box<T>) -> *mut T::C {
    Box::into_raw(object).cast()
}

/// Takes an object back, to drop it.
///
/// # Safety
/// `c` came from [`give`] for the same `T` and is not used afterwards.
pub unsafe fn take_back<T: Object>(c: *mut T::C) -> Box<T> {
    // SAFETY: the caller's promise.
    unsafe { Box::from_raw(c.cast::<T>()) }
}
