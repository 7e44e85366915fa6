//! Processes that multiply: forks, and the fork inside `daemon`.

use core::ffi::{c_int, c_void};
use core::ptr::null_mut;
use core::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

use crate::{memory, open};

static DAEMON: AtomicPtr<c_void> = AtomicPtr::new(null_mut());
static IN_DAEMON: AtomicBool = AtomicBool::new(false);

/// Sets what to call in a process that `daemon(3)` has just made, before the program goes on in it. The process is a
/// fork without the parent's threads; callbacks other than this one are gone and may be set again.
pub fn set_daemon(callback: fn()) {
    DAEMON.store(callback as *mut c_void, Ordering::Release);
}

/// Whether the fork going on is `daemon`'s, for fork handlers: the parent is about to end and the child carries on.
pub fn in_daemon() -> bool {
    IN_DAEMON.load(Ordering::Relaxed)
}

/// Sees to it that a forked child forgets the callbacks. Run before anyone else can register a fork handler, so that
/// theirs, which run later in the child, may set callbacks anew.
pub(crate) fn watch_forks() {
    // SAFETY: the handler is async-signal-safe: two stores.
    unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
}

extern "C" fn in_child() {
    memory::forget_invalidate();
    open::forget_provider();
}

#[unsafe(no_mangle)]
unsafe extern "C" fn daemon(keep_directory: c_int, keep_output: c_int) -> c_int {
    IN_DAEMON.store(true, Ordering::Relaxed);
    let code = pass_or!(DAEMON(keep_directory, keep_output), -1);
    IN_DAEMON.store(false, Ordering::Relaxed);
    let callback = DAEMON.load(Ordering::Acquire);
    if code == 0 && !callback.is_null() {
        // SAFETY: not null, so stored by `set_daemon` from this type.
        let callback: fn() = unsafe { core::mem::transmute::<*mut c_void, fn()>(callback) };
        callback();
    }
    code
}
