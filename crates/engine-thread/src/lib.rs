//! Threads that live in other people's processes.
//!
//! They promise to take none of the program's signals, and to be served soon after they wake. A
//! program that spins on memory until a peer's write lands keeps its processor busy, and it is our
//! thread that must place the write. So a thread asks the scheduler for short slices (Linux 6.12: a
//! waking thread with a shorter slice preempts); it gets no more of the processor for it. Older
//! kernels ignore the wish. The synchronous signals (SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP,
//! SIGSYS) stay unblocked: they belong to the thread that causes them, and the guarded copies need
//! them.
//!
//! Start at [`spawn`]; [`lock`] and its kin take a lock whatever became of its last holder.

mod file_limit;
mod kept_signal;
mod lock;
mod memory;
mod say;
mod spare;
mod uncancelled;

pub use file_limit::growing_files;
pub use lock::{lock, read, try_lock, try_read, wait, wait_timeout, write};
pub use memory::{ROOM_BYTES, has_memory};
pub use say::say;
pub use spare::{Sparing, may_make};
pub use uncancelled::Uncancelled;

use std::ffi::{CStr, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::{io, ptr};

/// A thread that was started. It goes on without this.
#[derive(Debug)]
pub struct Thread(libc::pthread_t);

impl Thread {
    /// Waits for its end.
    pub fn join(self) {
        // SAFETY: joined here only, and not detached: the drop is left out.
        unsafe { libc::pthread_join(self.0, ptr::null_mut()) };
        std::mem::forget(self);
    }
}

impl Drop for Thread {
    fn drop(&mut self) {
        // SAFETY: neither joined nor detached before.
        unsafe { libc::pthread_detach(self.0) };
    }
}

/// What a thread begins with.
struct Start<F> {
    name: &'static CStr,
    body: F,
}

/// Starts a thread that blocks every asynchronous signal from its first instruction on. A panic in
/// it ends it and nothing else.
///
/// It is not std's way to start one, which ends the program where there is no memory for the
/// thread's description.
///
/// # Errors
/// When the system has no thread, or no stack of this size, to give.
pub fn spawn(
    name: &'static CStr,
    stack_bytes: usize,
    body: impl FnOnce() + Send + 'static,
) -> io::Result<Thread> {
    // A thread inherits the mask, so it is set around the start: there is no moment with the
    // program's mask.
    let program = block_asynchronous()?;
    let started = start(stack_bytes, Box::new(Start { name, body }));
    restore(&program);
    started
}

fn start<F: FnOnce() + Send + 'static>(
    stack_bytes: usize,
    start: Box<Start<F>>,
) -> io::Result<Thread> {
    let argument = Box::into_raw(start);
    let mut thread = 0;
    // SAFETY: the attributes live on this stack from init to destroy; the new thread takes the
    // argument over, of the type that its function expects. Where none was started it is still
    // ours.
    let errno = unsafe {
        let mut attributes = std::mem::zeroed();
        let mut errno = libc::pthread_attr_init(&mut attributes);
        if errno == 0 {
            errno = libc::pthread_attr_setstacksize(&mut attributes, stack_bytes);
            if errno == 0 {
                errno = libc::pthread_create(&mut thread, &attributes, run::<F>, argument.cast());
            }
            libc::pthread_attr_destroy(&mut attributes);
        }
        if errno != 0 {
            drop(Box::from_raw(argument));
        }
        errno
    };
    if errno == 0 { Ok(Thread(thread)) } else { Err(io::Error::from_raw_os_error(errno)) }
}

extern "C" fn run<F: FnOnce()>(argument: *mut c_void) -> *mut c_void {
    // SAFETY: from `start`, which gave it up.
    let Start { name, body } = *unsafe { Box::from_raw(argument.cast::<Start<F>>()) };
    // SAFETY: names this thread; the text lives for ever.
    unsafe { libc::pthread_setname_np(libc::pthread_self(), name.as_ptr()) };
    ask_for_short_slices();
    ask_for_exact_timeouts();
    // What it says of itself the panic hook has written.
    let _ = catch_unwind(AssertUnwindSafe(body));
    ptr::null_mut()
}

/// `struct sched_attr`, first version (sched_setattr(2)).
#[repr(C)]
#[derive(Default)]
struct SchedAttr {
    size: u32,
    policy: u32,
    flags: u64,
    nice: i32,
    priority: u32,
    runtime_ns: u64,
    deadline_ns: u64,
    period_ns: u64,
}

/// The shortest slice the kernel grants.
const SLICE_NS: u64 = 100_000;

fn ask_for_short_slices() {
    /// Leaves policy and nice value as they are.
    const SCHED_FLAG_KEEP_POLICY: u64 = 0x08;
    let attr = SchedAttr {
        size: size_of::<SchedAttr>() as u32,
        flags: SCHED_FLAG_KEEP_POLICY,
        nice: nice(),
        runtime_ns: SLICE_NS,
        ..SchedAttr::default()
    };
    // SAFETY: the kernel reads `size` bytes of a live structure of that size; it changes this
    // thread's scheduling only. A refusal leaves it as it was.
    unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attr, 0) };
}

/// The default slack of 50 microseconds is longer than a packet's round trip.
fn ask_for_exact_timeouts() {
    const SLACK_NS: libc::c_ulong = 1000;
    // SAFETY: sets this thread's timer slack; no pointers are involved.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, SLACK_NS) };
}

fn nice() -> i32 {
    // SAFETY: reads this thread's nice value; no pointers are involved.
    unsafe { libc::getpriority(libc::PRIO_PROCESS, 0) }
}

/// Raised by what a thread itself does: SIGSYS is how a seccomp filter traps a system call.
const SYNCHRONOUS: [libc::c_int; 6] =
    [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGTRAP, libc::SIGSYS];

fn block_asynchronous() -> io::Result<libc::sigset_t> {
    // SAFETY: an all-zero sigset_t is a valid value, and each call gets pointers to live local
    // sets.
    unsafe {
        let mut all: libc::sigset_t = std::mem::zeroed();
        let mut before: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&mut all);
        for signal in SYNCHRONOUS {
            libc::sigdelset(&mut all, signal);
        }
        match libc::pthread_sigmask(libc::SIG_SETMASK, &all, &mut before) {
            0 => Ok(before),
            errno => Err(io::Error::from_raw_os_error(errno)),
        }
    }
}

fn restore(mask: &libc::sigset_t) {
    // SAFETY: the set came from pthread_sigmask; setting a valid set cannot fail.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, mask, std::ptr::null_mut()) };
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

    #[test]
    fn no_memory_for_its_stack_is_an_error() {
        let refused = super::spawn(c"huge", 1 << 46, || unreachable!()).unwrap_err();
        assert!(matches!(refused.raw_os_error(), Some(libc::EAGAIN | libc::ENOMEM)), "{refused}");
        assert!(super::spawn(c"small", 1, || unreachable!()).is_err());
    }

    #[test]
    fn a_panic_ends_the_thread_only() {
        super::spawn(c"panics", 256 << 10, || panic!("as it should")).unwrap().join();
    }

    #[test]
    fn the_thread_blocks_signals_and_the_caller_does_not() {
        let mask = |thread: &str| {
            let status = std::fs::read_to_string(format!("/proc/{thread}/status")).unwrap();
            let line = status.lines().find_map(|l| l.strip_prefix("SigBlk:")).unwrap().trim();
            u64::from_str_radix(line, 16).unwrap()
        };
        let usr1 = 1 << (libc::SIGUSR1 - 1);
        let segv = 1 << (libc::SIGSEGV - 1);
        let inside = Arc::new(AtomicU64::new(0));
        let told = inside.clone();
        let thread = super::spawn(c"quiet", 64 << 10, move || {
            assert_eq!(std::fs::read_to_string("/proc/thread-self/comm").unwrap(), "quiet\n");
            told.store(mask("thread-self"), SeqCst);
        });
        thread.unwrap().join();
        let inside = inside.load(SeqCst);
        assert!(inside & usr1 != 0 && inside & segv == 0);
        assert_eq!(mask("thread-self") & usr1, 0);
    }
}
