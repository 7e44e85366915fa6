//! Who else has a file open: the kernel grants a write lease to a file's sole opener only
//! (fcntl(2), F_SETLEASE).

use std::os::fd::{AsRawFd, BorrowedFd};

/// Which signal tells of an opening (`include/uapi/asm-generic/fcntl.h`).
const F_SETSIG: i32 = 10;

/// Whether `fd`, which was opened by open(2), is the file's only open file description. Whoever
/// opens it at the same time raises a signal here: SIGURG, which by default is ignored, and not
/// SIGIO, which ends the process.
#[allow(unsafe_code, reason = "a system call that rustix does not have")]
pub(crate) fn is_sole_opener(fd: BorrowedFd<'_>) -> bool {
    // SAFETY: no pointer is passed; the lease is given back at once.
    unsafe {
        let set = |what: i32, to: i32| libc::syscall(libc::SYS_fcntl, fd.as_raw_fd(), what, to);
        set(F_SETSIG, libc::SIGURG);
        let granted = set(libc::F_SETLEASE, libc::F_WRLCK) == 0;
        if granted {
            set(libc::F_SETLEASE, libc::F_UNLCK);
        }
        granted
    }
}
