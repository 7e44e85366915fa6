//! Which process and which thread this is, without allocating.

/// This process.
pub(super) fn pid() -> i32 {
    // SAFETY: always succeeds.
    unsafe { libc::getpid() }
}

/// This thread.
pub(super) fn tid() -> i32 {
    // SAFETY: always succeeds.
    unsafe { libc::syscall(libc::SYS_gettid) as i32 }
}
