//! Buffers that are made once and keep their size. Without memory they are refused, where `vec!`
//! would end the program.

use std::alloc::{Layout, alloc_zeroed};
use std::io;
use std::ptr;

fn no_memory() -> io::Error {
    io::Error::from_raw_os_error(libc::ENOMEM)
}

/// `len` bytes of zeroes, of which the system gives only as many as are touched.
///
/// # Errors
/// ENOMEM; also for a length of 0, which no buffer has.
pub(crate) fn zeroed(len: usize) -> io::Result<Box<[u8]>> {
    let layout = Layout::array::<u8>(len).map_err(|_| no_memory())?;
    if len == 0 {
        return Err(no_memory());
    }
    // SAFETY: the layout is of at least one byte.
    let start = unsafe { alloc_zeroed(layout) };
    if start.is_null() {
        return Err(no_memory());
    }
    // SAFETY: `len` initialised bytes that nobody else has, from the allocator and with the layout
    // of a boxed slice.
    Ok(unsafe { Box::from_raw(ptr::slice_from_raw_parts_mut(start, len)) })
}

/// `count` copies of `value`.
///
/// # Errors
/// ENOMEM.
pub(crate) fn filled<T: Clone>(value: T, count: usize) -> io::Result<Box<[T]>> {
    let mut values = empty(count)?;
    values.resize(count, value);
    Ok(values.into())
}

/// An empty list with room for `count` values.
///
/// # Errors
/// ENOMEM.
pub(crate) fn empty<T>(count: usize) -> io::Result<Vec<T>> {
    let mut values = Vec::new();
    values.try_reserve_exact(count).map_err(|_| no_memory())?;
    Ok(values)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_system_does_not_have_is_refused() {
        let of = |error: io::Error| error.raw_os_error();
        assert_eq!(zeroed(1 << 60).map_err(of).err(), Some(Some(libc::ENOMEM)));
        assert_eq!(zeroed(usize::MAX).map_err(of).err(), Some(Some(libc::ENOMEM)));
        assert_eq!(filled(0u64, 1 << 60).map_err(of).err(), Some(Some(libc::ENOMEM)));
        assert_eq!(zeroed(3).unwrap()[..], [0; 3]);
        assert_eq!(filled(7u16, 2).unwrap()[..], [7; 2]);
    }
}
