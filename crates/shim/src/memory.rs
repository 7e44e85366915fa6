//! Memory the program takes away: `munmap`, `mremap`, `mmap` over something, `remap_file_pages`,
//! `madvise`, `shmdt`, `brk`; and `mprotect`.
//!
//! A real HCA has pinned what is registered. Ours has not, so the registration must be revoked
//! before the pages go, or a later mapping at the same address would receive what was meant for
//! this one. And one whose pages come on demand must let go of them, and look again only when the
//! kernel is done. So one callback runs before the system call and another after it, and neither
//! for calls that the kernel refuses by their arguments alone.

use core::cell::Cell;
use core::ffi::{c_int, c_void};
use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

use libc::{MAP_FAILED, off_t, size_t};

use crate::drm::{self, MapCall, RemapCall};
use crate::errno::keeping_errno;

in_front! {
    "munmap" peerdma_shim_munmap = munmap;
    "mmap" peerdma_shim_mmap = mmap;
    "mmap64" peerdma_shim_mmap64 = mmap;
    "mremap" peerdma_shim_mremap = mremap;
    "madvise" peerdma_shim_madvise = madvise;
    "shmdt" peerdma_shim_shmdt = shmdt;
    "shmat" peerdma_shim_shmat = shmat;
    "brk" peerdma_shim_brk = brk;
    "sbrk" peerdma_shim_sbrk = sbrk;
}

/// MADV_DONTNEED_LOCKED, not in every C library's headers.
const MADV_DONTNEED_LOCKED: c_int = 24;
/// MADV_GUARD_INSTALL, from Linux 6.13 on: of all that takes pages away the kernel tells nobody of
/// this.
const MADV_GUARD_INSTALL: c_int = 102;
/// MAP_FIXED_NOREPLACE wins over MAP_FIXED in the kernel.
const MAP_FIXED_NOREPLACE: c_int = 0x10_0000;

static BEGIN: AtomicPtr<c_void> = AtomicPtr::new(null_mut());
static END: AtomicPtr<c_void> = AtomicPtr::new(null_mut());
static MARK: AtomicPtr<c_void> = AtomicPtr::new(null_mut());
static GONE: AtomicPtr<c_void> = AtomicPtr::new(null_mut());
static PROTECT: AtomicPtr<c_void> = AtomicPtr::new(null_mut());
static PROTECTED: AtomicPtr<c_void> = AtomicPtr::new(null_mut());

type Begin = fn(usize, usize) -> u64;
type End = fn(usize, usize, u64);
type Protect = fn(usize, usize);
type Mark = fn() -> u64;
type Gone = fn(usize, usize, u64);

std::thread_local! {
    /// Whether this thread is inside the callback.
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// What to call with (address, length in bytes) of memory that goes. The range is page-aligned.
///
/// Both are called in the thread that gives the memory away. An allocator inside the process may
/// unmap too, in any place where it is entered: so a callback must not wait for a lock under which
/// anyone allocates or frees. Should it unmap itself, it is not called again.
#[derive(Clone, Copy)]
pub struct Invalidate {
    /// Before the memory goes; returns once nothing of the engine's can touch it any more. What it
    /// answers goes to `end`.
    pub begin: fn(usize, usize) -> u64,
    /// When the kernel is done.
    pub end: fn(usize, usize, u64),
    /// Before the rights to memory change, which keeps its content: pages in a device's memory come
    /// home, where they have rights.
    pub protect: fn(usize, usize),
    /// After they have changed: who acts by the rights of before does so no more when it returns.
    pub protected: fn(usize, usize),
    /// What was registered so far, for `gone`.
    pub mark: fn() -> u64,
    /// After memory went in a call that is not over yet. What was registered after the mark is
    /// another's.
    pub gone: fn(usize, usize, u64),
}

/// Sets what to call around calls that take memory away.
pub fn set_invalidate(callbacks: Invalidate) {
    let Invalidate { begin, end, protect, protected, mark, gone } = callbacks;
    MARK.store(mark as *mut c_void, Ordering::Release);
    GONE.store(gone as *mut c_void, Ordering::Release);
    PROTECTED.store(protected as *mut c_void, Ordering::Release);
    PROTECT.store(protect as *mut c_void, Ordering::Release);
    END.store(end as *mut c_void, Ordering::Release);
    BEGIN.store(begin as *mut c_void, Ordering::Release);
}

/// In a forked child: the engine is not here, and its locks may be held for ever.
pub(crate) fn forget_invalidate() {
    BEGIN.store(null_mut(), Ordering::Relaxed);
}

#[inline]
pub(crate) fn watched() -> bool {
    !BEGIN.load(Ordering::Relaxed).is_null()
}

/// A range that goes: one callback has run, and the other runs when this is dropped after the
/// system call.
#[must_use = "the second callback runs when this is dropped"]
pub(crate) struct Going {
    start: usize,
    len: usize,
    change: u64,
}

impl Drop for Going {
    #[inline]
    fn drop(&mut self) {
        if self.len > 0 {
            self.end();
        }
    }
}

impl Going {
    pub(crate) const NOTHING: Going = Going { start: 0, len: 0, change: 0 };

    #[cold]
    fn end(&self) {
        let end = END.load(Ordering::Acquire);
        // SAFETY: stored by `set_invalidate` from this type before any `begin` ran.
        let end: End = unsafe { core::mem::transmute::<*mut c_void, End>(end) };
        keeping_errno(|| end(self.start, self.len, self.change));
    }
}

/// Runs the callback, with the range widened to pages. A range the kernel would refuse is left to
/// the kernel.
#[inline]
pub(crate) fn invalidate(start: usize, len: usize) -> Going {
    if watched() { invalidate_watched(start, len) } else { Going::NOTHING }
}

#[cold]
fn invalidate_watched(start: usize, len: usize) -> Going {
    let begin = BEGIN.load(Ordering::Acquire);
    let mask = page_size() - 1;
    let end = start.checked_add(len).and_then(|end| end.checked_add(mask));
    let (Some(end), false) = (end, begin.is_null() || len == 0 || start & mask != 0) else {
        return Going::NOTHING;
    };
    // SAFETY: not null, so stored by `set_invalidate` from this type.
    let begin: Begin = unsafe { core::mem::transmute::<*mut c_void, Begin>(begin) };
    // A thread that is being torn down has no cell any more; it cannot be inside the callback
    // either.
    if INSIDE.try_with(|inside| inside.replace(true)).unwrap_or(false) {
        return Going::NOTHING;
    }
    let len = (end & !mask) - start;
    let mut change = 0;
    keeping_errno(|| change = begin(start, len));
    let _ = INSIDE.try_with(|inside| inside.set(false));
    Going { start, len, change }
}

/// What was registered so far, for [`gone`]. Something is watched.
pub(crate) fn mark() -> u64 {
    let mark = MARK.load(Ordering::Acquire);
    if mark.is_null() {
        return 0;
    }
    // SAFETY: not null, so stored by `set_invalidate` from this type.
    let mark = unsafe { core::mem::transmute::<*mut c_void, Mark>(mark) };
    mark()
}

/// Reports that memory went since the mark.
pub(crate) fn gone(start: usize, len: usize, mark: u64) {
    let gone = GONE.load(Ordering::Acquire);
    if len == 0 || gone.is_null() || INSIDE.try_with(|inside| inside.replace(true)).unwrap_or(false)
    {
        return;
    }
    // SAFETY: not null, so stored by `set_invalidate` from this type.
    let gone = unsafe { core::mem::transmute::<*mut c_void, Gone>(gone) };
    keeping_errno(|| gone(start, len, mark));
    let _ = INSIDE.try_with(|inside| inside.set(false));
}

/// `len` widened to whole pages.
pub(crate) fn pages(len: usize) -> usize {
    len.checked_next_multiple_of(page_size()).unwrap_or(usize::MAX)
}

fn page_size() -> usize {
    static SIZE: AtomicUsize = AtomicUsize::new(0);
    match SIZE.load(Ordering::Relaxed) {
        0 => {
            // SAFETY: sysconf has no preconditions.
            let size =
                usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096);
            SIZE.store(size, Ordering::Relaxed);
            size
        }
        size => size,
    }
}

unsafe extern "C" fn munmap(address: *mut c_void, len: size_t) -> c_int {
    let _going = invalidate(address as usize, len);
    pass!(MUNMAP(address, len), SYS_munmap, address, len)
}

unsafe extern "C" fn mmap(
    address: *mut c_void,
    len: size_t,
    protection: c_int,
    flags: c_int,
    fd: c_int,
    offset: off_t,
) -> *mut c_void {
    let _going = if flags & (libc::MAP_FIXED | MAP_FIXED_NOREPLACE) == libc::MAP_FIXED {
        invalidate(address as usize, len)
    } else {
        Going::NOTHING
    };
    let call = MapCall { address, len, protection, flags, fd, offset };
    if let Some(mapped) = drm::map(&call) {
        return mapped;
    }
    pass!(
        MMAP(address, len, protection, flags, fd, offset),
        SYS_mmap,
        address,
        len,
        protection,
        flags,
        fd,
        offset
    )
}

/// Variadic in C: the new address counts with MREMAP_FIXED or MREMAP_DONTUNMAP only.
unsafe extern "C" fn mremap(
    old: *mut c_void,
    old_len: size_t,
    new_len: size_t,
    flags: c_int,
    new: *mut c_void,
) -> *mut c_void {
    let keeps_old = flags & libc::MREMAP_DONTUNMAP != 0;
    let call = RemapCall { old, old_len, new_len, keeps_old };
    drm::remap(&call, &|| remap(old, old_len, new_len, flags, new))
}

fn remap(
    old: *mut c_void,
    old_len: size_t,
    new_len: size_t,
    flags: c_int,
    new: *mut c_void,
) -> *mut c_void {
    let (mut _covered, mut _going) = (Going::NOTHING, Going::NOTHING);
    if watched() {
        let moves = flags & (libc::MREMAP_FIXED | libc::MREMAP_DONTUNMAP) != 0;
        if flags & libc::MREMAP_FIXED != 0 {
            _covered = invalidate(new as usize, new_len);
        }
        if moves {
            _going = invalidate(old as usize, old_len);
        } else if new_len < old_len {
            let kept = new_len.next_multiple_of(page_size());
            _going = invalidate((old as usize).saturating_add(kept), old_len.saturating_sub(kept));
        } else if flags & libc::MREMAP_MAYMOVE != 0 {
            // Only a move takes anything away, so growing in place is tried first.
            let stay = flags & !libc::MREMAP_MAYMOVE;
            let grown: *mut c_void = pass!(
                MREMAP(old, old_len, new_len, stay, null_mut::<c_void>()),
                SYS_mremap,
                old,
                old_len,
                new_len,
                stay
            );
            if grown != MAP_FAILED {
                return grown;
            }
            _going = invalidate(old as usize, old_len);
        }
    }
    pass!(MREMAP(old, old_len, new_len, flags, new), SYS_mremap, old, old_len, new_len, flags, new)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn mprotect(address: *mut c_void, len: size_t, protection: c_int) -> c_int {
    tell_protection(&PROTECT, address as usize, len);
    let code = pass!(MPROTECT(address, len, protection), SYS_mprotect, address, len, protection);
    tell_protection(&PROTECTED, address as usize, len);
    code
}

/// Runs a callback that hears of rights, if anything is watched.
#[inline]
fn tell_protection(callback: &AtomicPtr<c_void>, start: usize, len: usize) {
    if watched() {
        let callback = callback.load(Ordering::Acquire);
        // SAFETY: both are stored by `set_invalidate` from this type before there was anything to
        // watch for.
        let callback: Protect = unsafe { core::mem::transmute::<*mut c_void, Protect>(callback) };
        keeping_errno(|| callback(start, len));
    }
}

unsafe extern "C" fn madvise(address: *mut c_void, len: size_t, advice: c_int) -> c_int {
    let takes = matches!(
        advice,
        libc::MADV_DONTNEED
            | libc::MADV_FREE
            | libc::MADV_REMOVE
            | MADV_DONTNEED_LOCKED
            | MADV_GUARD_INSTALL
    );
    let _going = if takes { invalidate(address as usize, len) } else { Going::NOTHING };
    pass!(MADVISE(address, len, advice), SYS_madvise, address, len, advice)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn remap_file_pages(
    address: *mut c_void,
    len: size_t,
    protection: c_int,
    page: size_t,
    flags: c_int,
) -> c_int {
    let mask = page_size() - 1;
    // The kernel takes whole pages, and refuses any protection.
    let len_of_pages = if protection == 0 { len & !mask } else { 0 };
    let _going = invalidate(address as usize & !mask, len_of_pages);
    pass!(
        REMAP_FILE_PAGES(address, len, protection, page, flags),
        SYS_remap_file_pages,
        address,
        len,
        protection,
        page,
        flags
    )
}

unsafe extern "C" fn shmdt(address: *const c_void) -> c_int {
    let _going = if watched() {
        invalidate(address as usize, attached_len(address as usize))
    } else {
        Going::NOTHING
    };
    pass!(SHMDT(address), SYS_shmdt, address)
}

unsafe extern "C" fn shmat(id: c_int, address: *const c_void, flags: c_int) -> *mut c_void {
    let mut going = Going::NOTHING;
    if watched() && flags & libc::SHM_REMAP != 0 && !address.is_null() {
        // SAFETY: all-zero bytes are a valid shmid_ds, which the call fills.
        let (code, segment) = unsafe {
            let mut segment: libc::shmid_ds = core::mem::zeroed();
            (libc::shmctl(id, libc::IPC_STAT, &mut segment), segment)
        };
        if code == 0 {
            going = invalidate(address as usize, segment.shm_segsz);
        }
    }
    let mark = if going.len > 0 { mark() } else { 0 };
    let attached: *mut c_void = pass!(SHMAT(id, address, flags), SYS_shmat, id, address, flags);
    if going.len > 0 && attached != MAP_FAILED {
        // One of huge pages is as long as these, which nobody says before.
        let mut len = 0;
        keeping_errno(|| len = attached_len(going.start));
        gone(going.start + going.len, len.saturating_sub(going.len), mark);
    }
    attached
}

/// Length of the System V segment attached at `address`, 0 when there is none.
///
/// The kernel says so only in `maps`: lines of `start-end perms offset dev inode /SYSVkkkkkkkk`, in
/// ascending order.
fn attached_len(address: usize) -> usize {
    let Ok(maps) = std::fs::read_to_string("/proc/self/maps") else { return 0 };
    let hex = |word: Option<&str>| usize::from_str_radix(word?, 16).ok();
    let (mut end, mut segment) = (address, None);
    for line in maps.lines().filter(|line| line.contains("/SYSV")) {
        let mut words = line.split_ascii_whitespace();
        let range = words.next().and_then(|range| range.split_once('-'));
        let (first, last) = range.unzip();
        let (offset, inode) = (hex(words.nth(1)), words.nth(1));
        // Another one may be attached right behind it.
        let is_it = offset == Some(end - address) && segment.is_none_or(|it| it == inode);
        if hex(first) == Some(end)
            && is_it
            && let Some(last) = hex(last)
        {
            (end, segment) = (last, Some(inode));
        }
    }
    end.saturating_sub(address)
}

unsafe extern "C" fn brk(end: *mut c_void) -> c_int {
    let _going = if watched() { given_back(end as usize) } else { Going::NOTHING };
    pass_or!(BRK(end), -1)
}

unsafe extern "C" fn sbrk(increment: isize) -> *mut c_void {
    let mut _going = Going::NOTHING;
    if watched() && increment < 0 {
        let now = system!(SYS_brk, 0) as usize;
        _going = given_back(now.saturating_add_signed(increment));
    }
    pass_or!(SBRK(increment), MAP_FAILED)
}

/// The heap is about to end at `end`; whole pages above it go. It never ends before it begins: who
/// asks for that, as UCX does with null, changes nothing.
fn given_back(end: usize) -> Going {
    let now = system!(SYS_brk, 0) as usize;
    match end.checked_next_multiple_of(page_size()) {
        Some(kept) if end >= heap_begin() => invalidate(kept, now.saturating_sub(kept)),
        _ => Going::NOTHING,
    }
}

/// Where the heap begins; where that is not told, behind null.
fn heap_begin() -> usize {
    static HEAP: AtomicUsize = AtomicUsize::new(0);
    let known = HEAP.load(Ordering::Relaxed);
    if known != 0 {
        return known;
    }
    let mut found = None;
    keeping_errno(|| found = start_brk());
    let found = found.filter(|begin| *begin != 0).unwrap_or(1);
    HEAP.store(found, Ordering::Relaxed);
    found
}

/// The word `start_brk` of `/proc/self/stat`. Whoever moves the heap's end may be an allocator, so
/// nothing is allocated.
fn start_brk() -> Option<usize> {
    /// Its place among the words behind the program's name, which has parentheses around it and may
    /// have spaces in it.
    const PLACE: usize = 47 - 2;
    let mut text = [0_u8; 1024];
    let flags = libc::O_RDONLY | libc::O_CLOEXEC;
    let file = system!(SYS_openat, libc::AT_FDCWD, c"/proc/self/stat".as_ptr(), flags);
    if file < 0 {
        return None;
    }
    let len = system!(SYS_read, file, text.as_mut_ptr(), text.len());
    system!(SYS_close, file);
    let text = text.get(..usize::try_from(len).ok()?)?;
    let name_end = text.iter().rposition(|byte| *byte == b')')?;
    let word = text[name_end..].split(|byte| *byte == b' ').nth(PLACE)?;
    core::str::from_utf8(word).ok()?.parse().ok()
}
