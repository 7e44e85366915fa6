//! What the C library's `malloc` gives back to the kernel inside itself: `free`, `realloc` and
//! `malloc_trim`.
//!
//! A large block is a mapping of its own, which `free` unmaps and `realloc` moves by calls that no
//! symbol leads past. So a callback hears of such a block before it is freed. What `realloc` takes
//! away, and the end of the heap, is seen only afterwards: where the kernel does not report it
//! ([`watch_heap`]), these calls look before and after, and report before the program goes on.
//! Unseen then remains what the arenas of threads discard.
//!
//! Another allocator's blocks are left alone: whether the next `free` is the C library's is decided
//! once.

use core::cell::Cell;
use core::ffi::{c_int, c_void};
use core::ptr::null_mut;
use core::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

use libc::size_t;

use crate::memory::{self, Going};
use crate::next;

/// Whether blocks are the C library's.
static OURS: AtomicBool = AtomicBool::new(false);
/// Whether the end of the heap is to be looked at.
static HEAP: AtomicBool = AtomicBool::new(false);

std::thread_local! {
    /// Whether this thread looks for the next definition, which may allocate.
    static LOOKING: Cell<bool> = const { Cell::new(false) };
}

unsafe extern "C" {
    /// The end of the heap, as the C library last moved it.
    static __curbrk: AtomicPtr<c_void>;
}

// Flags in the word that holds a block's size (glibc, malloc/malloc.c).
const IS_MMAPPED: usize = 2;
const FLAGS: usize = 7;

/// From now on the callback [`crate::Invalidate::gone`] hears what `realloc` took away, and of the
/// end of the heap. For a process in which nobody else reports it.
pub fn watch_heap() {
    HEAP.store(true, Ordering::Relaxed);
}

/// Learns whose `free` follows. Run once by the constructor, after the functions were looked up.
pub(crate) fn initialise() {
    // SAFETY: NUL-terminated names and the dynamic linker's own handle.
    let libc = unsafe { libc::dlopen(c"libc.so.6".as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
    if libc.is_null() {
        return;
    }
    // SAFETY: as above.
    let own = unsafe { libc::dlsym(libc, c"free".as_ptr()) };
    let next = next::FREE.get().map_or(null_mut(), |free| free as *mut c_void);
    OURS.store(next == own && !own.is_null(), Ordering::Relaxed);
}

/// The mapping of a block that has one of its own.
fn mapping_of(block: *mut c_void) -> Option<(usize, usize)> {
    const WORD: usize = size_of::<usize>();
    let start = (block as usize).checked_sub(2 * WORD)?;
    // SAFETY: before each block of the C library's are two words: of a mapped one what lies in
    // front of it, and its size with flags. The block is live, as the program passes it to `free`
    // or `realloc`.
    let (front, size) = unsafe { (*(start as *const usize), *((start + WORD) as *const usize)) };
    if size & IS_MMAPPED == 0 {
        return None;
    }
    // Since glibc 2.43 the size leaves out the two words; a mapping ends with a page.
    let len = memory::pages(front.checked_add(size & !FLAGS)?);
    Some((start.checked_sub(front)?, len))
}

/// The mapping of a block of the C library's that has one of its own.
#[cold]
fn own_mapping(block: *mut c_void) -> Option<(usize, usize)> {
    let known = !block.is_null() && OURS.load(Ordering::Relaxed);
    known.then(|| mapping_of(block)).flatten()
}

/// Whether what is given back is to be looked for after each call.
#[inline]
fn looks() -> bool {
    HEAP.load(Ordering::Relaxed) && memory::watched()
}

/// Runs a call that may give back the end of the heap.
#[inline]
fn trimming<T>(call: impl FnOnce() -> T) -> T {
    if looks() { look_around(call) } else { call() }
}

#[cold]
fn look_around<T>(call: impl FnOnce() -> T) -> T {
    // SAFETY: the C library's word, which it changes as it moves the end of the heap.
    let end = unsafe { &__curbrk };
    let (mark, before) = (memory::mark(), end.load(Ordering::Relaxed) as usize);
    let answer = call();
    let kept = memory::pages(end.load(Ordering::Relaxed) as usize);
    memory::gone(kept, before.saturating_sub(kept), mark);
    answer
}

#[unsafe(no_mangle)]
unsafe extern "C" fn free(block: *mut c_void) {
    let Some(next) = next::FREE.get() else { return free_early(block) };
    let mapping = if memory::watched() { own_mapping(block) } else { None };
    let _going = mapping.map_or(Going::NOTHING, |(start, len)| memory::invalidate(start, len));
    // SAFETY: the caller's own argument.
    trimming(|| unsafe { next(block) });
}

/// Before the constructor ran. What the search for the next definition gives back itself is lost.
#[cold]
fn free_early(block: *mut c_void) {
    if LOOKING.replace(true) {
        return;
    }
    let next = next::FREE.resolve();
    LOOKING.set(false);
    if let Some(next) = next {
        // SAFETY: the argument of a caller of `free`.
        unsafe { next(block) };
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn realloc(block: *mut c_void, size: size_t) -> *mut c_void {
    let Some(next) = next::REALLOC.resolve() else {
        crate::errno::set_errno(libc::ENOMEM);
        return null_mut();
    };
    if looks() {
        // SAFETY: the caller's own arguments.
        return look_around(|| unsafe { look_behind(block, size, || next(block, size)) });
    }
    // SAFETY: the caller's own arguments.
    unsafe { next(block, size) }
}

/// Changes the size of a block that may be a mapping, and reports what went: a block may stay where
/// it is.
///
/// # Safety
/// `block` is null or a live block, and `change` answers where it is with its new `size`, or null:
/// with no size it is gone then, else nothing has changed.
unsafe fn look_behind(
    block: *mut c_void,
    size: size_t,
    change: impl FnOnce() -> *mut c_void,
) -> *mut c_void {
    let (mapping, mark) = (own_mapping(block), memory::mark());
    let now = change();
    if let Some((start, len)) = mapping
        && (!now.is_null() || size == 0)
    {
        let kept = own_mapping(now).filter(|kept| kept.0 == start).map_or(0, |kept| kept.1);
        memory::gone(start.saturating_add(kept), len.saturating_sub(kept), mark);
    }
    now
}

#[unsafe(no_mangle)]
unsafe extern "C" fn malloc_trim(pad: size_t) -> c_int {
    trimming(|| pass_or!(MALLOC_TRIM(pad), 0))
}
