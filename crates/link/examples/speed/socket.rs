//! The two socket options that the bare pair and the gathering sender need beyond the standard
//! library.

use std::io;
use std::os::fd::AsRawFd;

/// Sets an option whose value is a C `int`.
pub fn set_option(socket: &impl AsRawFd, level: i32, option: i32, value: i32) -> io::Result<()> {
    // SAFETY: the pointer is to an int that lives through the call, and the length is its.
    let rc = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            level,
            option,
            (&raw const value).cast(),
            size_of::<i32>() as libc::socklen_t,
        )
    };
    if rc == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
