//! errno, by which the functions here fail as the C library's do, and which they otherwise leave as
//! it was.

/// Sets errno and returns −1, as a failing C function does.
pub(crate) fn fail<T: From<i8>>(errno: libc::c_int) -> T {
    set_errno(errno);
    T::from(-1)
}

/// The calling thread's errno.
pub(crate) fn errno() -> libc::c_int {
    // SAFETY: errno is this thread's own.
    unsafe { *libc::__errno_location() }
}

/// Sets the calling thread's errno.
pub(crate) fn set_errno(errno: libc::c_int) {
    // SAFETY: errno is this thread's own.
    unsafe { *libc::__errno_location() = errno };
}

/// Runs what the program knows nothing of, and whose errno is none of its.
pub(crate) fn keeping_errno<T>(work: impl FnOnce() -> T) -> T {
    let before = errno();
    let done = work();
    set_errno(before);
    done
}
