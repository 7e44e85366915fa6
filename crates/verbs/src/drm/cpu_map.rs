//! The program's own mappings of GPU memory: while one lives, the buffer stays where it is.
//!
//! A mapping shows a place, and would show poison after a move. So the buffer is brought to the
//! place that its descriptor shows and pinned there until the last page of the mapping is gone. It
//! can be revoked nevertheless. To `ibv_reg_mr` such memory is a device's: only Peer-Direct
//! registers it.

use crate::base::ffi::{Errno, INVALID, Res, last_errno};
use crate::base::hooks;
use crate::platform::membership;
use descriptors::Kept;
use dmabuf::{ControlBlocks, Storage, Use};
use engine_thread::lock;
use mm::{AddressSpace, Invalidate, NoMemory, Registration, page_size};
use registry::{Client, Role};
use std::ffi::c_int;
use std::ops::Range;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering::*};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;
use umem::Ticket;

/// How long a new mapping waits for a buffer to come to it, and to stop moving.
pub const LIMIT: Duration = Duration::from_secs(2);

/// A mapping of the program's.
pub struct CpuMap {
    storage: Arc<Storage>,
    /// Address that the buffer's first byte would have.
    base: u64,
    pinned: AtomicBool,
    left: Mutex<Left>,
}

/// What is left of a mapping. Nothing but memory is asked for while it is locked.
struct Left {
    /// What is still mapped; the program may unmap a part in the middle.
    ranges: Vec<Range<u64>>,
    /// Registrations of parts of it, which hear when they go.
    tickets: Vec<(Range<u64>, Ticket)>,
}

fn touch(one: &Range<u64>, other: &Range<u64>) -> bool {
    one.start < other.end && other.start < one.end
}

impl Left {
    fn has(&self, wanted: &Range<u64>) -> bool {
        self.ranges.iter().any(|range| range.start <= wanted.start && wanted.end <= range.end)
    }

    fn lose(&mut self, gone: &Range<u64>) {
        let rest = |range: Range<u64>| {
            let before = range.start..range.end.min(gone.start.max(range.start));
            let after = range.start.max(gone.end.min(range.end))..range.end;
            [before, after].into_iter().filter(|range| !range.is_empty())
        };
        let touched = self.ranges.extract_if(.., |range| touch(range, gone));
        let rest: Vec<_> = touched.flat_map(rest).collect();
        self.ranges.extend(rest);
    }
}

impl CpuMap {
    fn is_gone(&self) -> bool {
        self.left().ranges.is_empty()
    }

    fn has(&self, addr: u64, end: u64) -> bool {
        self.left().has(&(addr..end))
    }

    fn left(&self) -> MutexGuard<'_, Left> {
        lock(&self.left)
    }

    pub fn storage(&self) -> &Arc<Storage> {
        &self.storage
    }

    /// Where in the buffer an address of the mapping is.
    pub fn offset_of(&self, addr: u64) -> u64 {
        addr.wrapping_sub(self.base)
    }

    /// Asks for `ticket` to be invalidated when a byte of `range` is unmapped. Answers whether it
    /// is mapped now.
    pub fn notify(&self, range: Range<u64>, ticket: Ticket) -> bool {
        let mut left = self.left();
        let is_mapped = left.has(&range);
        if is_mapped {
            left.tickets.push((range, ticket));
        }
        is_mapped
    }

    /// Takes that back.
    pub fn forget(&self, ticket: &Ticket) {
        self.left().tickets.retain(|(_, known)| known != ticket);
    }
}

impl Invalidate for CpuMap {
    /// It is no memory of `malloc`'s, so this may allocate.
    fn invalidate(&self, gone: Range<u64>) {
        let mut left = self.left();
        left.lose(&gone);
        let is_gone = left.ranges.is_empty();
        let touched = |(range, _): &mut (Range<u64>, Ticket)| touch(range, &gone);
        let touched: Vec<_> = left.tickets.extract_if(.., touched).collect();
        drop(left);
        touched.iter().for_each(|(_, ticket)| {
            ticket.invalidate();
        });
        if is_gone && self.pinned.swap(false, AcqRel) {
            self.storage.leave(Use::RevocablePin);
        }
    }
}

/// Whether there ever was one.
static ANY: AtomicBool = AtomicBool::new(false);
/// Mappings that live, and some that were.
static MAPS: Mutex<Vec<(Registration, Arc<CpuMap>)>> = Mutex::new(Vec::new());

/// The buffer behind a program's descriptor; `None` if its exporter is gone, so that it moves no
/// more.
pub fn imported(fd: c_int) -> Option<Arc<Storage>> {
    // SAFETY: the program's descriptor, for the time of its call.
    let fd = unsafe { BorrowedFd::borrow_raw(fd) };
    let id = dmabuf::id_of(fd)?;
    let import = |controls: &dyn ControlBlocks| Storage::import(&fd, id, controls).ok();
    match membership::registry_now() {
        Some(registry) => import(&*registry),
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
    hooks::watch_forks();
    // where it is pinned elsewhere, it is mapped there
    let _ = storage.move_to(storage.control().born(), None, LIMIT);
    let state =
        storage.enter_within(Use::RevocablePin, LIMIT).map_err(|error| Errno(error.errno()))?;
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
    if watch(&storage, mapped as u64, call.len as u64, offset).is_err() {
        // SAFETY: just mapped, and nobody knows of it.
        unsafe { libc::syscall(libc::SYS_munmap, mapped, call.len) };
        storage.leave(Use::RevocablePin);
        return Err(Errno(libc::ENOMEM));
    }
    Ok(mapped as *mut libc::c_void)
}

/// Keeps the pin until the mapping is gone.
fn watch(storage: &Arc<Storage>, addr: u64, len: u64, offset: u64) -> Result<(), NoMemory> {
    let len = len.next_multiple_of(page_size());
    let end = addr.saturating_add(len);
    let map = Arc::new(CpuMap {
        storage: storage.clone(),
        base: addr.wrapping_sub(offset),
        pinned: AtomicBool::new(true),
        left: Mutex::new(Left {
            ranges: std::iter::once(addr..end).collect(),
            tickets: Vec::new(),
        }),
    });
    let registration = AddressSpace::process().register(addr..end, map.clone())?;
    maps().push((registration, map));
    ANY.store(true, Release);
    forget_gone();
    Ok(())
}

/// Lets go of the buffers of mappings that are gone, and of their descriptors. What unmaps cannot:
/// it may be inside of the list.
pub fn forget_gone() {
    if ANY.load(Acquire) {
        let is_gone = |(_, map): &mut (Registration, Arc<CpuMap>)| map.is_gone();
        let gone: Vec<_> = maps().extract_if(.., is_gone).collect();
        drop(gone);
    }
}

/// Pins for a child that is about to be forked, which has the mappings too, as the kernel's DRM
/// drivers let it. It keeps them open; this process drops them after the fork. What cannot be
/// pinned, for want of a descriptor, the child may see move.
pub fn pins_for_child() -> Vec<Kept> {
    if !ANY.load(Acquire) {
        return Vec::new();
    }
    let maps = maps();
    let live = maps.iter().map(|(_, map)| map).filter(|map| !map.is_gone());
    let own = live.map(|map| map.storage()).filter(|storage| storage.is_own());
    // one for each buffer, however often it is mapped: a buffer bears so many pins
    let mut pinned: Vec<&Arc<Storage>> = Vec::new();
    for storage in own {
        if !pinned.iter().any(|other| Arc::ptr_eq(other, storage)) {
            pinned.push(storage);
        }
    }
    pinned.into_iter().filter_map(|storage| storage.pin_for_child().ok()).collect()
}

/// What a mapping shows, and a pin that outlasts it: from before `mremap(2)` to after it.
pub struct Moving {
    storage: Arc<Storage>,
    /// Where its first byte is in the buffer.
    offset: u64,
}

/// Keeps the buffer of a mapping in place while that moves. `None` for other memory, and for a
/// buffer that was revoked.
pub fn hold(addr: u64, len: u64) -> Option<Moving> {
    let map = around(addr, len.max(1))?;
    if !map.storage.is_own() || map.storage.enter_within(Use::RevocablePin, LIMIT).is_err() {
        return None;
    }
    Some(Moving { storage: map.storage.clone(), offset: map.offset_of(addr) })
}

impl Moving {
    /// The mapping is at `addr` now, and keeps the pin: for ever, if there is no memory to notice
    /// its end.
    pub fn settle(self, addr: u64, len: u64) {
        let _ = watch(&self.storage, addr, len, self.offset);
    }

    /// The mapping is as it was.
    pub fn end(self) {
        self.storage.leave(Use::RevocablePin);
    }
}

fn maps() -> MutexGuard<'static, Vec<(Registration, Arc<CpuMap>)>> {
    lock(&MAPS)
}

/// The mapping that a range lies in.
pub fn around(addr: u64, len: u64) -> Option<Arc<CpuMap>> {
    let end = addr.checked_add(len)?;
    find(|map| map.has(addr, end))
}

/// Whether a range touches memory that host pages do not back (`VM_PFNMAP`), which cannot be
/// pinned.
pub fn is_device_memory(addr: u64, len: u64) -> bool {
    let end = addr.saturating_add(len);
    find(|map| map.left().ranges.iter().any(|range| touch(range, &(addr..end)))).is_some()
}

fn find(meant: impl Fn(&CpuMap) -> bool) -> Option<Arc<CpuMap>> {
    if !ANY.load(Acquire) {
        return None;
    }
    maps().iter().map(|(_, map)| map).find(|map| !map.is_gone() && meant(map)).cloned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_unmapped_in_the_middle_is_no_part_of_it() {
        let mut left = Left { ranges: std::iter::once(100..200).collect(), tickets: Vec::new() };
        left.lose(&(300..400));
        assert!(left.has(&(100..200)));
        left.lose(&(140..160));
        assert!(left.has(&(100..140)) && left.has(&(160..200)));
        assert!(!left.has(&(139..141)) && !left.has(&(150..151)) && !left.has(&(100..200)));
        left.lose(&(90..110));
        left.lose(&(190..250));
        assert!(left.has(&(110..140)) && !left.has(&(109..140)));
        assert!(left.has(&(160..190)) && !left.has(&(160..191)));
        left.lose(&(0..1000));
        assert!(left.ranges.is_empty());
    }
}
