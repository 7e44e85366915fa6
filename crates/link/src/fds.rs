//! Descriptors that stay out of the host program's way.
//!
//! Programs exist that close, duplicate or count the low descriptors, so every descriptor of ours
//! moves to a high number when it is made.

use rustix::process::{Resource, getrlimit};
use std::os::fd::OwnedFd;

/// Preferred lowest number for our descriptors.
const FLOOR: u64 = 512;

/// Moves `fd` to a number of 512 or more (half the descriptor limit where that is less), with
/// close-on-exec set. Where the kernel has no free number there, `fd` comes back as it was.
pub fn raise(fd: OwnedFd) -> OwnedFd {
    let floor = soft_limit().map_or(FLOOR, |limit| FLOOR.min(limit / 2));
    match rustix::io::fcntl_dupfd_cloexec(&fd, floor as i32) {
        Ok(high) => high,
        Err(_) => fd,
    }
}

/// How many descriptors the process may have, `None` for no limit.
pub(crate) fn soft_limit() -> Option<u64> {
    getrlimit(Resource::Nofile).current
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::io::FdFlags;
    use std::os::fd::AsRawFd;

    #[test]
    fn raised_descriptors_are_high_and_close_on_exec() {
        let low = std::fs::File::open("/dev/null").unwrap();
        let high = raise(low.into());
        let limit = soft_limit().unwrap_or(u64::MAX);
        assert!(high.as_raw_fd() as u64 >= FLOOR.min(limit / 2));
        assert!(rustix::io::fcntl_getfd(&high).unwrap().contains(FdFlags::CLOEXEC));
    }
}
