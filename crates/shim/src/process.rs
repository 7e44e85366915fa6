//! Processes that multiply: forks, and the fork inside `daemon`. Processes that end without
//! atexit(3)'s handlers. Processes that say who may trace them.

use core::cell::Cell;
use core::ffi::{c_int, c_ulong, c_void};
use core::ptr::null_mut;
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, Ordering};

use crate::errno::keeping_errno;
use crate::{memory, open};

static DAEMON: AtomicPtr<c_void> = AtomicPtr::new(null_mut());
static EXIT: AtomicPtr<c_void> = AtomicPtr::new(null_mut());
/// The process that set `EXIT`.
static ENDS: AtomicI32 = AtomicI32::new(0);
/// The program has said who may trace it.
static NAMES_TRACER: AtomicBool = AtomicBool::new(false);

thread_local! {
    /// Whether this thread is inside `daemon`, and so its copy in the child: another thread may
    /// fork at the same time.
    static IN_DAEMON: Cell<bool> = const { Cell::new(false) };
}

/// This process, whatever the C library remembers.
fn process() -> libc::pid_t {
    system!(SYS_getpid) as libc::pid_t
}

/// What came of the fork inside `daemon(3)`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Daemon {
    /// This is the new process: a fork without the parent's threads; callbacks other than this one
    /// are gone and may be set again.
    Child,
    /// There was no fork, and the process goes on as before.
    Failed,
}

/// Sets what to call after the fork inside `daemon(3)`, before the program goes on.
pub fn set_daemon(callback: fn(Daemon)) {
    DAEMON.store(callback as *mut c_void, Ordering::Release);
}

/// Sets what to call before this process ends by `_exit(2)`. It may be called in a signal handler.
pub fn set_exit(callback: fn()) {
    ENDS.store(process(), Ordering::Relaxed);
    EXIT.store(callback as *mut c_void, Ordering::Release);
}

/// Whether the program itself has said who may trace it (`PR_SET_PTRACER`), as those do that have a
/// crash reporter look at them, or share memory with others: who says so last counts.
pub fn names_tracer() -> bool {
    NAMES_TRACER.load(Ordering::Relaxed)
}

/// Whether the fork going on is `daemon`'s, for fork handlers: the parent is about to end and the
/// child carries on.
pub fn in_daemon() -> bool {
    IN_DAEMON.get()
}

/// Sees to it that a forked child forgets the callbacks. Run before anyone else can register a fork
/// handler, so that theirs, which run later in the child, may set callbacks anew.
pub(crate) fn watch_forks() {
    // SAFETY: the handler is async-signal-safe: two stores.
    unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
}

extern "C" fn in_child() {
    memory::forget_invalidate();
    open::forget_provider();
}

#[unsafe(no_mangle)]
unsafe extern "C" fn _exit(status: c_int) -> ! {
    let callback = EXIT.load(Ordering::Acquire);
    // Not in a forked child; one of vfork(2) has its parent's memory.
    if !callback.is_null() && ENDS.load(Ordering::Relaxed) == process() {
        // SAFETY: not null, so stored by `set_exit` from this type.
        unsafe { core::mem::transmute::<*mut c_void, fn()>(callback)() };
    }
    loop {
        system!(SYS_exit_group, status);
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn _Exit(status: c_int) -> ! {
    // SAFETY: it asks nothing of its caller.
    unsafe { _exit(status) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn prctl(
    option: c_int,
    arg2: c_ulong,
    arg3: c_ulong,
    arg4: c_ulong,
    arg5: c_ulong,
) -> c_int {
    if option == libc::PR_SET_PTRACER {
        NAMES_TRACER.store(true, Ordering::Relaxed);
    }
    pass!(PRCTL(option, arg2, arg3, arg4, arg5), SYS_prctl, option, arg2, arg3, arg4, arg5)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn daemon(keep_directory: c_int, keep_output: c_int) -> c_int {
    let before = process();
    IN_DAEMON.set(true);
    let code = pass_or!(DAEMON(keep_directory, keep_output), -1);
    IN_DAEMON.set(false);
    let callback = DAEMON.load(Ordering::Acquire);
    if !callback.is_null() {
        // SAFETY: not null, so stored by `set_daemon` from this type.
        let callback = unsafe { core::mem::transmute::<*mut c_void, fn(Daemon)>(callback) };
        // What fails after the fork (a new session, /dev/null) fails in the child.
        keeping_errno(|| {
            callback(if process() == before { Daemon::Failed } else { Daemon::Child });
        });
    }
    code
}
