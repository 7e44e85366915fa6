//! The engine's descriptors in the host program's table: high, and known.
//!
//! Programs count, duplicate and close the low descriptors, so the engine's move to high numbers
//! ([`raise`]). Daemons and interpreters close every descriptor they can name; so each of the
//! engine's, a [`Kept`], is also entered in a table, by which interposed `close` calls spare it
//! ([`is_kept`], [`next_kept`]). The table is of one process: a forked child closes and replaces
//! its copies freely. They are close-on-exec, so an executed program never sees them.
//!
//! Nothing here allocates or locks. Only the threads that keep the first descriptors of a process
//! wait for one another, while one of them empties the table of what a parent entered.
#![forbid(unsafe_code)]

mod table;

pub use table::{adopt, is_alone, is_kept, next_inherited, next_kept};

use rustix::process::{Resource, getrlimit};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

/// Preferred lowest number for our descriptors.
const FLOOR: u64 = 512;

/// Moves `fd` to a number of 512 or more (half the descriptor limit where that is less), with
/// close-on-exec set. Where the kernel has no free number there, `fd` comes back as it was.
pub fn raise(fd: OwnedFd) -> OwnedFd {
    let floor = soft_limit().map_or(FLOOR, |limit| FLOOR.min(limit / 2));
    rustix::io::fcntl_dupfd_cloexec(&fd, floor as i32).unwrap_or(fd)
}

/// How many descriptors the process may have, `None` for no limit.
pub fn soft_limit() -> Option<u64> {
    getrlimit(Resource::Nofile).current
}

/// A descriptor of the engine, which the program's own closing spares while this value lives. One
/// of 65536 or above is not spared.
#[derive(Debug)]
pub struct Kept(OwnedFd);

impl Kept {
    /// Keeps `fd` at a high number.
    pub fn new(fd: OwnedFd) -> Kept {
        Kept::here(raise(fd))
    }

    /// Keeps `fd` where it is: for one that the program waits on, perhaps with `select(2)`.
    pub fn here(fd: OwnedFd) -> Kept {
        table::enter(fd.as_raw_fd());
        Kept(fd)
    }

    /// Keeps `fd` at a high number, and from a forked child: what the file stands for (a lock, this
    /// process's memory) is this process's, and is to end with it. The child lets its copy go
    /// ([`is_alone`]).
    pub fn alone(fd: OwnedFd) -> Kept {
        let kept = Kept::new(fd);
        table::enter_alone(kept.as_raw_fd());
        kept
    }

    /// The number alone. The descriptor stays open and spared until [`Kept::here`] takes it up
    /// again.
    pub fn into_raw_fd(self) -> RawFd {
        let fd = self.as_raw_fd();
        std::mem::forget(self);
        fd
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        // Our own close follows, which goes through the interposed one.
        table::leave(self.0.as_raw_fd());
    }
}

impl AsFd for Kept {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl AsRawFd for Kept {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

impl io::Write for Kept {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Ok(rustix::io::write(&self.0, bytes)?)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::io::FdFlags;
    use std::fs::File;
    use std::io::Read;

    fn null() -> OwnedFd {
        File::open("/dev/null").unwrap().into()
    }

    #[test]
    fn raised_descriptors_are_high_and_close_on_exec() {
        let high = raise(null());
        let limit = soft_limit().unwrap_or(u64::MAX);
        assert!(high.as_raw_fd() as u64 >= FLOOR.min(limit / 2));
        assert!(rustix::io::fcntl_getfd(&high).unwrap().contains(FdFlags::CLOEXEC));
    }

    #[test]
    fn a_descriptor_is_spared_while_it_is_kept_and_closed_then() {
        let (mut near, far) = io::pipe().unwrap();
        let number = far.as_raw_fd();
        let kept = Kept::here(far.into());
        assert_eq!(kept.as_raw_fd(), number);
        assert!(is_kept(number));
        assert_eq!(next_kept(number as u32), Some(number as u32));
        let again = Kept::new(kept.as_fd().try_clone_to_owned().unwrap());
        assert!(is_kept(again.as_raw_fd()));
        drop((kept, again));
        assert_eq!(near.read(&mut [0]).unwrap(), 0, "both are closed");
        assert!(!is_kept(number));
    }
}
