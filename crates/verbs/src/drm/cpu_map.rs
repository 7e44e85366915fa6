//! The program's own mappings of GPU memory: while one lives, the buffer stays where it is.
//!
//! A mapping shows a place, and would show poison after a move. So the buffer is brought to the place that its descriptor
//! shows and pinned there until the last page of the mapping is gone. It can be revoked nevertheless.

use crate::engine;
use crate::ffi::{INVALID, Res, last_errno};
use dmabuf::{ControlBlocks, Storage, Use};
use mm::{AddressSpace, Invalidate, Registration, page_size};
use registry::{Client, Role};
use std::ffi::c_int;
use std::ops::Range;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// How long a new mapping waits for a buffer to come to it, and to stop moving.
const LIMIT: Duration = Duration::from_secs(2);

/// A mapping of the program's.
struct CpuMap {
    storage: Arc<Storage>,
    /// First byte that is still mapped, and the end.
    start: AtomicU64,
    end: AtomicU64,
    pinned: AtomicBool,
}

impl CpuMap {
    fn is_gone(&self) -> bool {
        self.start.load(Acquire) >= self.end.load(Acquire)
    }
}

impl Invalidate for CpuMap {
    /// Unmapped in the middle, the rest counts as whole.
    fn invalidate(&self, gone: Range<u64>) {
        let (start, end) = (self.start.load(Acquire), self.end.load(Acquire));
        if start >= end {
            return;
        }
        if gone.start <= start {
            self.start.store(gone.end.max(start), Release);
        } else if gone.end >= end {
            self.end.store(gone.start.min(end), Release);
        }
        if self.is_gone() && self.pinned.swap(false, AcqRel) {
            self.storage.leave(Use::RevocablePin);
        }
    }
}

/// Mappings that live, and some that were.
static MAPS: Mutex<Vec<(Registration, Arc<CpuMap>)>> = Mutex::new(Vec::new());

/// The buffer behind a program's descriptor; `None` if its exporter is gone, so that it moves no more.
pub fn imported(fd: c_int) -> Option<Arc<Storage>> {
    // SAFETY: the program's descriptor, for the time of its call.
    let fd = unsafe { BorrowedFd::borrow_raw(fd) };
    let id = dmabuf::id_of(fd)?;
    let import = |controls: &dyn ControlBlocks| Storage::import(&fd, id, controls).ok();
    match engine::running_now() {
        Some(engine) => import(&*engine.registry),
        None => import(&*Client::connect(Role::Observer).ok()?),
    }
}

/// Carries out `mmap(2)` over a buffer's bytes from `offset`.
///
/// # Safety
/// As for `mmap(2)`.
pub unsafe fn map(
    storage: Arc<Storage>,
    call: &shim::MapCall,
    offset: u64,
) -> Res<*mut libc::c_void> {
    if call.flags & libc::MAP_TYPE == libc::MAP_PRIVATE {
        return Err(INVALID);
    }
    crate::start();
    // where it is pinned elsewhere, it is mapped there
    let _ = storage.move_to(storage.control().born(), None, LIMIT);
    let state = storage
        .enter_within(Use::RevocablePin, LIMIT)
        .map_err(|error| crate::ffi::Errno(error.errno()))?;
    let (file, start) = storage.file(state.placement());
    let from = start.checked_add(offset).ok_or(INVALID)?;
    // SAFETY: the program's own arguments, but for what is mapped.
    let mapped = unsafe {
        libc::syscall(
            libc::SYS_mmap,
            call.address,
            call.len,
            call.protection,
            call.flags,
            file.as_raw_fd(),
            from,
        )
    };
    if mapped == -1 {
        let errno = last_errno();
        storage.leave(Use::RevocablePin);
        return Err(errno);
    }
    watch(storage, mapped as u64, call.len as u64);
    Ok(mapped as *mut libc::c_void)
}

/// Keeps the pin until the mapping is gone.
fn watch(storage: Arc<Storage>, addr: u64, len: u64) {
    let len = len.next_multiple_of(page_size());
    let range = addr..addr.saturating_add(len);
    let (start, end) = (AtomicU64::new(range.start), AtomicU64::new(range.end));
    let map = Arc::new(CpuMap { storage, start, end, pinned: AtomicBool::new(true) });
    let registration = AddressSpace::process().register_amid(range, map.clone());
    let mut maps = MAPS.lock().unwrap_or_else(PoisonError::into_inner);
    maps.push((registration, map));
    let is_gone = |(_, map): &mut (Registration, Arc<CpuMap>)| map.is_gone();
    let gone: Vec<_> = maps.extract_if(.., is_gone).collect();
    drop(maps);
    drop(gone);
}
