//! The edge between C and Rust that the libraries have in common: pointers of the program's, and
//! the ways a function ends. A pointer comes in as an argument of a function whose contract in C
//! says what is behind it; null is answered with the library's own code for a wrong argument.
#![allow(unsafe_code, reason = "pointers that are arguments of C functions")]

use std::ffi::{CStr, c_char};
use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// What a library's functions answer when they fail.
pub trait Code: Copy {
    /// An argument is wrong, or null.
    const INVALID: Self;
    /// A fault of ours.
    const UNKNOWN: Self;

    /// As a function returns it; never 0.
    fn code(self) -> u32;
}

/// Ends a function: its code, 0 for success. A panic, which is a fault of ours, becomes
/// [`Code::UNKNOWN`].
pub fn contained<E: Code>(body: impl FnOnce() -> Result<(), E>) -> u32 {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => 0,
        Ok(Err(error)) => error.code(),
        Err(_) => E::UNKNOWN.code(),
    }
}

/// A place for an answer, or null.
#[repr(transparent)]
#[derive(Debug)]
pub struct Out<T, E>(*mut T, PhantomData<E>);

impl<T, E> Clone for Out<T, E> {
    fn clone(&self) -> Out<T, E> {
        *self
    }
}

impl<T, E> Copy for Out<T, E> {}

impl<T: Copy, E: Code> Out<T, E> {
    /// The place at an address.
    ///
    /// # Safety
    /// Null, or a place for such a value as long as the answer or a copy of it is used.
    pub unsafe fn new(place: *mut T) -> Out<T, E> {
        Out(place, PhantomData)
    }

    /// Answers.
    ///
    /// # Errors
    /// [`Code::INVALID`] for null.
    pub fn put(self, value: T) -> Result<(), E> {
        if self.0.is_null() {
            return Err(E::INVALID);
        }
        // SAFETY: the function's contract: a place for such a value.
        unsafe { self.0.write_unaligned(value) };
        Ok(())
    }

    /// Answers unless nobody asked.
    pub fn put_if_asked(self, value: T) {
        let _ = self.put(value);
    }

    /// Whether there is no place.
    pub fn is_null(self) -> bool {
        self.0.is_null()
    }

    /// Refuses null before anything is done.
    ///
    /// # Errors
    /// [`Code::INVALID`].
    pub fn checked(self) -> Result<Out<T, E>, E> {
        if self.0.is_null() { Err(E::INVALID) } else { Ok(self) }
    }

    /// What is at the place now.
    ///
    /// # Errors
    /// [`Code::INVALID`] for null.
    pub fn now(self) -> Result<T, E> {
        In(self.0.cast_const(), PhantomData).get()
    }

    /// The place as one for another type of answer.
    pub fn as_other<U>(self) -> Out<U, E> {
        Out(self.0.cast(), PhantomData)
    }

    /// The place of the answer of this index.
    pub fn at(self, index: usize) -> Out<T, E> {
        Out(self.0.wrapping_add(index), PhantomData)
    }
}

/// Values to read, or null.
#[repr(transparent)]
#[derive(Debug)]
pub struct In<T, E>(*const T, PhantomData<E>);

impl<T, E> Clone for In<T, E> {
    fn clone(&self) -> In<T, E> {
        *self
    }
}

impl<T, E> Copy for In<T, E> {}

impl<T: Copy, E: Code> In<T, E> {
    /// The value.
    ///
    /// # Errors
    /// [`Code::INVALID`] for null.
    pub fn get(self) -> Result<T, E> {
        if self.0.is_null() {
            return Err(E::INVALID);
        }
        // SAFETY: the function's contract: such a value is there, whose bits are all valid.
        Ok(unsafe { self.0.read_unaligned() })
    }

    /// The values of an array.
    ///
    /// # Errors
    /// [`Code::INVALID`] for null, unless it is one of none.
    pub fn array(self, len: usize) -> Result<Vec<T>, E> {
        (0..len).map(|index| In(self.0.wrapping_add(index), PhantomData).get()).collect()
    }

    /// Its address.
    pub fn addr(self) -> u64 {
        self.0 as u64
    }

    /// The value there as one of another type.
    pub fn as_other<U>(self) -> In<U, E> {
        In(self.0.cast(), PhantomData)
    }
}

/// A string of C, or null.
#[repr(transparent)]
#[derive(Clone, Copy, Debug)]
pub struct Text<E>(*const c_char, PhantomData<E>);

impl<E: Code> Text<E> {
    /// The string at an address.
    ///
    /// # Safety
    /// Null, or a string of C as long as the answer or a copy of it is used.
    pub unsafe fn new(text: *const c_char) -> Text<E> {
        Text(text, PhantomData)
    }

    /// The string.
    ///
    /// # Errors
    /// [`Code::INVALID`] for null, and for one that is no UTF-8.
    pub fn get(self) -> Result<String, E> {
        if self.0.is_null() {
            return Err(E::INVALID);
        }
        // SAFETY: the function's contract: a string of C.
        let text = unsafe { CStr::from_ptr(self.0) };
        text.to_str().map(str::to_owned).map_err(|_| E::INVALID)
    }
}
