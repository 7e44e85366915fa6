//! How many pages a process has pinned, and the limit on that (RLIMIT_MEMLOCK).

use super::AddressSpace;
use crate::page_size;
use std::sync::Arc;
use std::sync::atomic::Ordering::*;

/// Why pages could not be accounted as pinned.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum PinError {
    /// RLIMIT_MEMLOCK is 0 and the process lacks CAP_IPC_LOCK (`can_do_mlock`).
    #[error("locking memory is not permitted: raise RLIMIT_MEMLOCK (ulimit -l)")]
    NotPermitted,
    /// The pages would exceed RLIMIT_MEMLOCK.
    #[error("RLIMIT_MEMLOCK exceeded: raise it (ulimit -l)")]
    Limit,
}

impl AddressSpace {
    /// Whether locking memory is permitted at all (`can_do_mlock`). Refused only if enforcement is
    /// on.
    pub fn may_pin(&self) -> Result<(), PinError> {
        let refused = self.memlock.load(Relaxed) && memlock_limit_bytes() == 0 && !may_lock_any();
        if refused { Err(PinError::NotPermitted) } else { Ok(()) }
    }

    /// Accounts `pages` as pinned (`mm->pinned_vm`). Refused only if enforcement is on.
    pub fn pin(self: &Arc<Self>, pages: u64) -> Result<Pinned, PinError> {
        let limited = self.memlock.load(Relaxed) && !may_lock_any();
        let limit_pages = if limited { memlock_limit_bytes() / page_size() } else { u64::MAX };
        let grown = self.pinned_pages.fetch_update(AcqRel, Acquire, |now| {
            now.checked_add(pages).filter(|&sum| sum <= limit_pages)
        });
        grown.map_err(|_| PinError::Limit)?;
        Ok(Pinned { space: self.clone(), pages })
    }

    /// Pages accounted as pinned now.
    pub fn pinned_pages(&self) -> u64 {
        self.pinned_pages.load(Acquire)
    }

    /// Makes RLIMIT_MEMLOCK a limit (`--memlock enforce`); by default pages are only counted, since
    /// ours cannot be pinned.
    pub fn enforce_memlock(&self, on: bool) {
        self.memlock.store(on, Relaxed);
    }
}

/// Pages accounted as pinned until dropped.
#[must_use = "the account is settled when this is dropped"]
pub struct Pinned {
    space: Arc<AddressSpace>,
    pages: u64,
}

impl Drop for Pinned {
    fn drop(&mut self) {
        self.space.pinned_pages.fetch_sub(self.pages, AcqRel);
    }
}

pub(super) fn memlock_limit_bytes() -> u64 {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is ours.
    if unsafe { libc::getrlimit(libc::RLIMIT_MEMLOCK, &mut limit) } == 0 {
        limit.rlim_cur
    } else {
        u64::MAX
    }
}

/// Whether the process has CAP_IPC_LOCK (`capability.h`), which lifts the limit.
pub(super) fn may_lock_any() -> bool {
    const VERSION_3: u32 = 0x2008_0522;
    const CAP_IPC_LOCK: u32 = 14;
    let mut header = [VERSION_3, 0];
    let mut data = [[0u32; 3]; 2];
    // SAFETY: the header names version 3, whose data is two triples of 32-bit words.
    let code = unsafe { libc::syscall(libc::SYS_capget, header.as_mut_ptr(), data.as_mut_ptr()) };
    code == 0 && data[0][0] & (1 << CAP_IPC_LOCK) != 0
}
