//! What a thread drops at its end.
//!
//! std has the C library note which of a thread's own values to drop when it ends, by
//! `__cxa_thread_atexit_impl`. Where glibc has no memory for such a note it ends the program. So
//! for this library std finds the function below, which notes it in this library's allocator; what
//! it cannot note is never dropped. Nobody else finds it: the symbol is hidden.

use std::alloc::{Layout, alloc, dealloc};
use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::atomic::{AtomicI64, Ordering::AcqRel, Ordering::Acquire};

std::arch::global_asm!(
    ".pushsection .text.peerdma_thread_end,\"ax\"",
    ".p2align 4",
    ".globl __cxa_thread_atexit_impl",
    ".hidden __cxa_thread_atexit_impl",
    "__cxa_thread_atexit_impl:",
    #[cfg(target_arch = "x86_64")]
    "endbr64",
    #[cfg(target_arch = "x86_64")]
    "jmp {note}",
    #[cfg(target_arch = "aarch64")]
    "hint #34", // bti c
    #[cfg(target_arch = "aarch64")]
    "b {note}",
    ".popsection",
    note = sym note,
);

/// Drops the value that it is given.
type Drops = unsafe extern "C" fn(*mut c_void);

/// One value of a thread; the latest is dropped first.
struct Note {
    drops: Drops,
    value: *mut c_void,
    before: *mut Note,
}

const NO_KEY: i64 = -1;
/// Where each thread's latest note is.
static KEY: AtomicI64 = AtomicI64::new(NO_KEY);

fn key() -> Option<libc::pthread_key_t> {
    if let Ok(key) = KEY.load(Acquire).try_into() {
        return Some(key);
    }
    let mut made = 0;
    // SAFETY: `made` is live, and the function stays loaded: the library is linked with `nodelete`.
    if unsafe { libc::pthread_key_create(&mut made, Some(drop_all)) } != 0 {
        return None;
    }
    match KEY.compare_exchange(NO_KEY, made.into(), AcqRel, Acquire) {
        Ok(_) => Some(made),
        Err(earlier) => {
            // SAFETY: just made, and nobody has seen it.
            unsafe { libc::pthread_key_delete(made) };
            earlier.try_into().ok()
        }
    }
}

/// Has `drops` called with `value` when the calling thread ends. Answers 0, or -1 where there is no
/// memory for the note.
extern "C" fn note(drops: Drops, value: *mut c_void, _library: *mut c_void) -> c_int {
    let (layout, Some(key)) = (Layout::new::<Note>(), key()) else { return -1 };
    // SAFETY: the layout is not empty; a block that is given is ours to fill, and goes back if no
    // thread takes it; the key is one of ours and is never deleted.
    unsafe {
        let note: *mut Note = alloc(layout).cast();
        if note.is_null() {
            return -1;
        }
        note.write(Note { drops, value, before: libc::pthread_getspecific(key).cast() });
        if libc::pthread_setspecific(key, note.cast()) == 0 {
            return 0;
        }
        dealloc(note.cast(), layout);
    }
    -1
}

/// The end of a thread whose latest note is `latest`. What the values note while they are dropped,
/// the C library has dropped by another call.
extern "C" fn drop_all(latest: *mut c_void) {
    let mut note: *mut Note = latest.cast();
    while !note.is_null() {
        // SAFETY: notes come from `note` above, each is of this thread and taken once; std promises
        // that `drops` may be called with the value at the thread's end.
        unsafe {
            let Note { drops, value, before } = ptr::read(note);
            dealloc(note.cast(), Layout::new::<Note>());
            drops(value);
            note = before;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::sync::mpsc::{Sender, channel};

    /// Tells its number when it is dropped.
    struct Teller(u32, Sender<u32>);

    impl Drop for Teller {
        fn drop(&mut self) {
            let Teller(number, to) = self;
            to.send(*number).unwrap();
            if *number == 2 {
                LATE.with_borrow_mut(|late| *late = Some(Teller(3, to.clone())));
            }
        }
    }

    thread_local! {
        static EARLY: RefCell<Vec<Teller>> = const { RefCell::new(Vec::new()) };
        static LATE: RefCell<Option<Teller>> = const { RefCell::new(None) };
    }

    #[test]
    fn a_thread_drops_its_values_at_its_end() {
        let (to, told) = channel();
        let thread = std::thread::spawn(move || {
            EARLY.with_borrow_mut(|early| early.extend([1, 2].map(|n| Teller(n, to.clone()))));
            to.send(0).unwrap();
        });
        thread.join().unwrap();
        assert_eq!(told.iter().collect::<Vec<_>>(), [0, 1, 2, 3]);
        assert_ne!(super::KEY.load(super::Acquire), super::NO_KEY, "std noted them elsewhere");
    }
}
