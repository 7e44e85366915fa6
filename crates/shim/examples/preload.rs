//! The interposition layer as a library of its own, with callbacks that tests can observe.
//!
//! `PEERDMA_TEST_GID`, if set, is what every `gids/0` reads; `peerdma_test_*` are for C programs
//! that load symbols.

use std::ffi::c_int;
use std::os::fd::{FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

/// What every `gids/0` reads.
const GID: &str = "PEERDMA_TEST_GID";

static CALLS: AtomicUsize = AtomicUsize::new(0);
static START: AtomicUsize = AtomicUsize::new(0);
static LEN: AtomicUsize = AtomicUsize::new(0);
static DAEMONS: AtomicUsize = AtomicUsize::new(0);

fn on_begin(start: usize, len: usize) -> u64 {
    START.store(start, SeqCst);
    LEN.store(len, SeqCst);
    start as u64 ^ len as u64
}

/// Counts the end only, of what began: so a call that begins and does not end is seen as missing.
fn on_end(start: usize, len: usize, change: u64) {
    if change == start as u64 ^ len as u64 {
        CALLS.fetch_add(1, SeqCst);
    }
}

fn on_daemon(outcome: shim::Daemon) {
    DAEMONS.fetch_add(if outcome == shim::Daemon::Child { 1 } else { 100 }, SeqCst);
}

fn attribute(path: &str) -> Option<Vec<u8>> {
    let gid = std::env::var_os(GID).filter(|_| path.ends_with("/ports/1/gids/0"))?;
    Some(gid.into_encoded_bytes())
}

extern "C" fn start() {
    if std::env::var_os(GID).is_some() {
        shim::set_provider(attribute);
    }
    if std::env::var_os("PEERDMA_TEST_ANNOUNCE").is_some() {
        shim::announce_uverbs(3);
    }
    shim::set_daemon(on_daemon);
}

#[used]
#[unsafe(link_section = ".init_array")]
static START_FUNCTION: extern "C" fn() = start;

/// Begins to watch memory.
#[unsafe(no_mangle)]
extern "C" fn peerdma_test_watch() {
    shim::set_invalidate(shim::Invalidate {
        begin: on_begin,
        end: on_end,
        protect: |_, _| (),
        protected: |_, _| (),
        mark: || 7,
        gone: |start, len, mark| {
            assert_eq!(mark, 7);
            on_end(start, len, on_begin(start, len));
        },
    });
}

/// Has what the C library gives back looked for.
#[unsafe(no_mangle)]
extern "C" fn peerdma_test_watch_heap() {
    shim::watch_heap();
}

/// How often memory was invalidated since the last call, and the last range.
///
/// # Safety
/// The pointers are writable.
#[unsafe(no_mangle)]
unsafe extern "C" fn peerdma_test_invalidated(start: *mut usize, len: *mut usize) -> usize {
    // SAFETY: as the caller promises.
    unsafe {
        *start = START.load(SeqCst);
        *len = LEN.load(SeqCst);
    }
    CALLS.swap(0, SeqCst)
}

/// How often `daemon` called back, with a hundred for each time that it failed.
#[unsafe(no_mangle)]
extern "C" fn peerdma_test_daemons() -> usize {
    DAEMONS.load(SeqCst)
}

/// Makes a descriptor the engine's.
///
/// # Safety
/// It is open, and the program gives it up.
#[unsafe(no_mangle)]
unsafe extern "C" fn peerdma_test_keep(fd: c_int) {
    // SAFETY: as the caller promises.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    descriptors::Kept::here(fd).into_raw_fd();
}

/// Closes a descriptor of the engine's.
///
/// # Safety
/// It was given to [`peerdma_test_keep`].
#[unsafe(no_mangle)]
unsafe extern "C" fn peerdma_test_let_go(fd: c_int) {
    // SAFETY: as the caller promises.
    drop(descriptors::Kept::here(unsafe { OwnedFd::from_raw_fd(fd) }));
}

/// Installs the fault guard.
#[unsafe(no_mangle)]
extern "C" fn peerdma_test_guard() {
    mm::guard::install();
}

/// A guarded load from `address`: 0, or −1 when it faulted.
#[unsafe(no_mangle)]
extern "C" fn peerdma_test_touch(address: u64) -> c_int {
    match mm::guard::touch_read(address) {
        Ok(()) => 0,
        Err(_) => -1,
    }
}
