//! The engine's descriptors survive a program that closes what it did not open.
//!
//! Daemons and Python close every descriptor they can name. Those registered here are skipped in the process that
//! registered them: for the program they are not open (EBADF). A child closes and replaces its copies freely; they
//! are close-on-exec, so an executed program never sees them.

use core::ffi::{c_int, c_uint};
use core::sync::atomic::{AtomicI32, AtomicU64, Ordering};

use libc::pid_t;

use crate::{drm, fail, rdma_cm};

const BITS: usize = u64::BITS as usize;
const WORDS: usize = 1024;

/// One bit for each protected descriptor.
static PROTECTED: [AtomicU64; WORDS] = [const { AtomicU64::new(0) }; WORDS];
/// The process whose descriptors these are.
static OWNER: AtomicI32 = AtomicI32::new(0);

fn bit(fd: c_int) -> Option<(&'static AtomicU64, u64)> {
    let fd = usize::try_from(fd).ok()?;
    Some((PROTECTED.get(fd / BITS)?, 1 << (fd % BITS)))
}

/// This process, whatever the C library remembers.
pub(crate) fn process() -> pid_t {
    system!(SYS_getpid) as pid_t
}

/// Keeps the program from closing or replacing `fd` in this process. False for a descriptor of 65536 or above, which
/// stays unprotected. [`unprotect_fd`] goes before the engine's own `close`.
pub fn protect_fd(fd: c_int) -> bool {
    let owner = process();
    if OWNER.swap(owner, Ordering::Relaxed) != owner {
        // What a parent registered is not ours.
        PROTECTED.iter().for_each(|word| word.store(0, Ordering::Relaxed));
    }
    bit(fd).map(|(word, bit)| word.fetch_or(bit, Ordering::Relaxed)).is_some()
}

/// Gives `fd` back to the ordinary rules.
pub fn unprotect_fd(fd: c_int) {
    if let Some((word, bit)) = bit(fd) {
        word.fetch_and(!bit, Ordering::Relaxed);
    }
}

#[inline]
fn protected(fd: c_int) -> bool {
    bit(fd).is_some_and(|(word, bit)| word.load(Ordering::Relaxed) & bit != 0)
        && OWNER.load(Ordering::Relaxed) == process()
}

/// The first protected descriptor from `first` on.
fn next_protected(first: c_uint) -> Option<c_uint> {
    let start = first as usize;
    let words = PROTECTED.iter().enumerate().skip(start / BITS);
    let found = words.map(|(index, word)| {
        let word = word.load(Ordering::Relaxed);
        let above = if index == start / BITS { u64::MAX << (start % BITS) } else { u64::MAX };
        (index, word & above)
    });
    let (index, word) = found.into_iter().find(|(_, word)| *word != 0)?;
    (OWNER.load(Ordering::Relaxed) == process())
        .then_some((index * BITS) as c_uint + word.trailing_zeros())
}

/// A device of ours that a descriptor is of, by inode number.
struct Device {
    channel: Option<u64>,
    node: Option<u64>,
}

impl Device {
    #[inline]
    fn of(fd: c_int) -> Device {
        Device { channel: rdma_cm::channel(fd), node: drm::node(fd) }
    }

    /// Tells that the descriptor was closed.
    #[inline]
    fn closed(self) {
        self.channel.inspect(|inode| rdma_cm::closed(*inode));
        self.node.inspect(|inode| drm::closed(*inode));
    }
}

/// Tells that many descriptors were closed.
fn many_closed() {
    rdma_cm::many_closed();
    drm::many_closed();
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn close(fd: c_int) -> c_int {
    if protected(fd) {
        return fail(libc::EBADF);
    }
    let device = Device::of(fd);
    let code = pass!(CLOSE(fd), SYS_close, fd);
    device.closed();
    code
}

#[unsafe(no_mangle)]
unsafe extern "C" fn dup2(old: c_int, new: c_int) -> c_int {
    if protected(new) {
        return fail(libc::EBADF);
    }
    let device = Device::of(new);
    let code = pass_or!(DUP2(old, new), -1);
    device.closed();
    code
}

#[unsafe(no_mangle)]
unsafe extern "C" fn dup3(old: c_int, new: c_int, flags: c_int) -> c_int {
    if protected(new) {
        return fail(libc::EBADF);
    }
    let device = Device::of(new);
    let code = pass!(DUP3(old, new, flags), SYS_dup3, old, new, flags);
    device.closed();
    code
}

#[unsafe(no_mangle)]
unsafe extern "C" fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
    let code = close_unprotected(first, last, flags);
    many_closed();
    code
}

fn close_unprotected(first: c_uint, last: c_uint, flags: c_int) -> c_int {
    let mut from = first;
    let mut flags_left = flags as c_uint;
    while let Some(skipped) = next_protected(from).filter(|&fd| fd <= last) {
        if from < skipped {
            let code = system!(SYS_close_range, from, skipped - 1, flags_left);
            if code != 0 {
                return code as c_int;
            }
            flags_left &= !libc::CLOSE_RANGE_UNSHARE;
        }
        from = skipped + 1;
        if from > last {
            return 0;
        }
    }
    system!(SYS_close_range, from, last, flags_left) as c_int
}

#[unsafe(no_mangle)]
unsafe extern "C" fn closefrom(first: c_int) {
    let first = first.max(0) as c_uint;
    if next_protected(first).is_none() {
        pass_or!(CLOSEFROM(first as c_int), ());
        return many_closed();
    }
    // SAFETY: closing what the caller asked to close.
    if unsafe { close_range(first, c_uint::MAX, 0) } != 0 {
        close_listed(first);
        many_closed();
    }
}

/// Without the system call (old kernels, strict sandboxes): one by one, as `/proc` lists them.
fn close_listed(first: c_uint) {
    let Ok(listing) = std::fs::read_dir("/proc/self/fd") else { return };
    let numbers =
        listing.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<c_int>().ok());
    // Collected first, because the listing has a descriptor of its own.
    for fd in numbers.collect::<Vec<_>>() {
        if fd as c_uint >= first && !protected(fd) {
            system!(SYS_close, fd);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_are_found_in_order_and_by_process() {
        // Far above any descriptor of the test's, in a block of its own.
        assert!(protect_fd(60_000));
        assert!(protect_fd(60_063));
        assert!(protect_fd(65_535));
        assert!(!protect_fd(65_536));
        assert!(!protect_fd(-1));
        assert_eq!(next_protected(50_000), Some(60_000));
        assert_eq!(next_protected(60_001), Some(60_063));
        assert_eq!(next_protected(60_064), Some(65_535));
        assert_eq!(next_protected(65_536), None);
        assert_eq!(next_protected(c_uint::MAX), None);
        assert!(protected(60_000) && !protected(60_001) && !protected(70_000) && !protected(-1));
        unprotect_fd(60_000);
        assert_eq!(next_protected(50_000), Some(60_063));
        unprotect_fd(60_063);
        unprotect_fd(65_535);
    }
}
