//! Who else has a file open: the kernel grants a write lease to a file's sole opener only
//! (fcntl(2), F_SETLEASE).

use std::os::fd::{AsRawFd, BorrowedFd};

/// Whether `fd`, which was opened by open(2), is the file's only open file description. Nobody may
/// be opening it at the same time: that would raise SIGIO here.
#[allow(unsafe_code, reason = "a system call that rustix does not have")]
pub(crate) fn is_sole_opener(fd: BorrowedFd<'_>) -> bool {
    // SAFETY: no pointer is passed; the lease is given back at once.
    unsafe {
        let set =
            |lease: i32| libc::syscall(libc::SYS_fcntl, fd.as_raw_fd(), libc::F_SETLEASE, lease);
        let granted = set(libc::F_WRLCK) == 0;
        if granted {
            set(libc::F_UNLCK);
        }
        granted
    }
}
