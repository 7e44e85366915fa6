//! The size of this system's pages, asked for once.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Bytes of a page.
pub fn page_size() -> u64 {
    static SIZE: AtomicU64 = AtomicU64::new(0);
    match SIZE.load(Relaxed) {
        0 => {
            // SAFETY: a plain query.
            let size = unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as u64;
            SIZE.store(size, Relaxed);
            size
        }
        size => size,
    }
}
