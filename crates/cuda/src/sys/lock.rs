//! Locks on bytes of a file that many may hold (fcntl(2), "Open file description locks"). They end
//! with the last descriptor of one opening of the file: with its process, and at exec(3).
#![allow(unsafe_code, reason = "fcntl(2)")]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

fn lock(fd: BorrowedFd<'_>, command: i32, kind: i32, byte: u64) -> io::Result<libc::flock> {
    let mut lock = libc::flock {
        l_type: kind as i16,
        l_whence: libc::SEEK_SET as i16,
        l_start: byte.cast_signed(),
        l_len: 1,
        l_pid: 0,
    };
    // SAFETY: the structure that the command reads and writes.
    let code = unsafe { libc::syscall(libc::SYS_fcntl, fd.as_raw_fd(), command, &raw mut lock) };
    if code == 0 { Ok(lock) } else { Err(io::Error::last_os_error()) }
}

/// Holds a byte, as others may too, from now on.
///
/// # Errors
/// ENOLCK where the system has no more locks.
pub fn hold(fd: BorrowedFd<'_>, byte: u64) -> io::Result<()> {
    lock(fd, libc::F_OFD_SETLK, libc::F_RDLCK, byte).map(drop)
}

/// Whether another opening of the file holds a byte.
///
/// # Errors
/// fcntl(2)'s.
pub fn is_held(fd: BorrowedFd<'_>, byte: u64) -> io::Result<bool> {
    let found = lock(fd, libc::F_OFD_GETLK, libc::F_WRLCK, byte)?;
    Ok(i32::from(found.l_type) != libc::F_UNLCK)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::os::fd::AsFd;

    #[test]
    fn a_byte_is_held_until_the_last_of_its_openings_ends() {
        let (_, kept) = shm::Shm::create("peerdma-test", 64).unwrap();
        let open = || {
            let path = format!("/proc/self/fd/{}", kept.as_raw_fd());
            File::options().read(true).write(true).open(path).unwrap()
        };
        let (one, two, three) = (open(), open(), open());
        let is_held = |byte| is_held(three.as_fd(), byte).unwrap();
        let far = (1 << 62) | 7;
        assert!(!is_held(far));
        hold(one.as_fd(), far).unwrap();
        hold(two.as_fd(), far).unwrap();
        let copy = one.try_clone().unwrap();
        drop((one, two));
        assert!(is_held(far) && !is_held(far - 1));
        drop(copy);
        assert!(!is_held(far));
    }
}
