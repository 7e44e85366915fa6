//! The byte that makes a channel readable while it has events.

use std::os::fd::RawFd;

/// Makes the program's end readable.
pub fn put_token(ours: RawFd) {
    // SAFETY: one live byte. A full socket is readable anyhow.
    unsafe { libc::send(ours, [0u8].as_ptr().cast(), 1, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) };
}

/// Takes the token if nobody else did.
pub fn take_token(theirs: RawFd) -> bool {
    let mut token = [0u8; 1];
    // SAFETY: one byte of a live local.
    unsafe { libc::recv(theirs, token.as_mut_ptr().cast(), 1, libc::MSG_DONTWAIT) == 1 }
}
