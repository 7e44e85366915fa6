//! Locks on bytes of a file, also beyond its end (fcntl(2), "Open file description locks"). They
//! belong to one opening of the file and end with its last descriptor: with its process, and at
//! exec(3).

use rustix::io::{Errno, Result};
use std::os::fd::{AsFd, AsRawFd};

fn lock(fd: impl AsFd, command: i32, kind: i32, byte: u64) -> Result<libc::flock> {
    let mut lock = libc::flock {
        l_type: kind as i16,
        l_whence: libc::SEEK_SET as i16,
        l_start: byte.cast_signed(),
        l_len: 1,
        l_pid: 0,
    };
    let fd = fd.as_fd().as_raw_fd();
    // SAFETY: the structure that the command reads and writes.
    let code = unsafe { libc::syscall(libc::SYS_fcntl, fd, command, &raw mut lock) };
    if code == 0 {
        return Ok(lock);
    }
    Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO))
}

/// Has a byte for this opening of the file alone.
///
/// # Errors
/// AGAIN where another has or holds it; NOLCK where the system has no more locks.
pub fn lock_byte(fd: impl AsFd, byte: u64) -> Result<()> {
    lock(fd, libc::F_OFD_SETLK, libc::F_WRLCK, byte).map(drop)
}

/// Holds a byte, as others may too.
///
/// # Errors
/// As [`lock_byte`].
pub fn hold_byte(fd: impl AsFd, byte: u64) -> Result<()> {
    lock(fd, libc::F_OFD_SETLK, libc::F_RDLCK, byte).map(drop)
}

/// Gives a byte back.
pub fn unlock_byte(fd: impl AsFd, byte: u64) {
    let _ = lock(fd, libc::F_OFD_SETLK, libc::F_UNLCK, byte);
}

/// Whether another opening of the file has or holds a byte.
///
/// # Errors
/// fcntl(2)'s.
pub fn is_byte_locked(fd: impl AsFd, byte: u64) -> Result<bool> {
    let found = lock(fd, libc::F_OFD_GETLK, libc::F_WRLCK, byte)?;
    Ok(i32::from(found.l_type) != libc::F_UNLCK)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;

    #[test]
    fn a_byte_is_held_until_the_last_of_its_openings_ends() {
        let (_, kept) = crate::Shm::create("peerdma-test", 64).unwrap();
        let open = || {
            let path = format!("/proc/self/fd/{}", kept.as_raw_fd());
            File::options().read(true).write(true).open(path).unwrap()
        };
        let (one, two, three) = (open(), open(), open());
        let is_held = |byte| is_byte_locked(&three, byte).unwrap();
        let far = (1 << 62) | 7;
        assert!(!is_held(far));
        hold_byte(&one, far).unwrap();
        hold_byte(&two, far).unwrap();
        let copy = one.try_clone().unwrap();
        drop((one, two));
        assert!(is_held(far) && !is_held(far - 1));
        drop(copy);
        assert!(!is_held(far));
    }

    #[test]
    fn one_opening_has_a_byte_alone() {
        let (_, kept) = crate::Shm::create("peerdma-test", 64).unwrap();
        let open = || {
            let path = format!("/proc/self/fd/{}", kept.as_raw_fd());
            File::options().read(true).write(true).open(path).unwrap()
        };
        let (one, two) = (open(), open());
        lock_byte(&one, 1).unwrap();
        assert_eq!(
            (lock_byte(&two, 1), hold_byte(&two, 1)),
            (Err(Errno::AGAIN), Err(Errno::AGAIN))
        );
        unlock_byte(&one, 1);
        lock_byte(&two, 1).unwrap();
    }
}
