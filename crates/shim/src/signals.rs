//! The program's actions for SIGSEGV and SIGBUS stand behind the engine's handler.
//!
//! Once `mm::guard` is installed, its handler stays in the kernel; what the program sets is
//! recorded there and called for every fault that is not the engine's. The program reads back what
//! it set. The two signals also stay unblocked: the kernel kills a process whose blocked
//! synchronous fault arrives, and the engine's touches run in the program's threads. Before the
//! guard is installed nothing is changed.

use core::ffi::c_int;
use core::mem::zeroed;

use libc::{SIG_ERR, SIGBUS, SIGSEGV, sighandler_t, sigset_t};
use mm::guard::chain;

use crate::errno::fail;

/// sigset(3)'s disposition that adds the signal to the mask.
const SIG_HOLD: sighandler_t = 2;

fn guarded(signal: c_int) -> bool {
    signal == SIGSEGV || signal == SIGBUS
}

#[unsafe(no_mangle)]
unsafe extern "C" fn sigaction(
    signal: c_int,
    new: *const libc::sigaction,
    old: *mut libc::sigaction,
) -> c_int {
    if guarded(signal) {
        // Copied, because a program may pass one structure for both.
        // SAFETY: null or valid by the function's contract.
        let action = unsafe { new.as_ref().copied() };
        // SAFETY: likewise, and not aliased by the copy.
        if chain(signal, action.as_ref(), unsafe { old.as_mut() }) {
            return 0;
        }
    }
    pass_or!(SIGACTION(signal, new, old), -1)
}

/// Sets a handler with `flags`, the signal itself in the mask if `masked`. None before the guard is
/// installed.
fn chain_handler(
    signal: c_int,
    handler: sighandler_t,
    flags: c_int,
    masked: bool,
) -> Option<sighandler_t> {
    // SAFETY: all-zero bytes are a valid sigaction with an empty mask.
    let (mut new, mut old): (libc::sigaction, libc::sigaction) = unsafe { (zeroed(), zeroed()) };
    new.sa_sigaction = handler;
    new.sa_flags = flags;
    if masked {
        // SAFETY: a valid set and a valid signal.
        unsafe { libc::sigaddset(&mut new.sa_mask, signal) };
    }
    if handler == SIG_ERR {
        return chain(signal, None, None).then(|| {
            fail::<i64>(libc::EINVAL);
            SIG_ERR
        });
    }
    chain(signal, Some(&new), Some(&mut old)).then_some(old.sa_sigaction)
}

macro_rules! signal_functions {
    ($($name:ident $next:ident $flags:expr, $masked:expr;)*) => {$(
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(signal: c_int, handler: sighandler_t) -> sighandler_t {
            let chained = if guarded(signal) {
                chain_handler(signal, handler, $flags, $masked)
            } else {
                None
            };
            match chained {
                Some(old) => old,
                None => pass_or!($next(signal, handler), SIG_ERR),
            }
        }
    )*};
}

signal_functions! {
    signal SIGNAL libc::SA_RESTART, true;
    bsd_signal SIGNAL libc::SA_RESTART, true;
    ssignal SIGNAL libc::SA_RESTART, true;
    __sysv_signal SYSV_SIGNAL libc::SA_RESETHAND | libc::SA_NODEFER, false;
    sysv_signal SYSV_SIGNAL libc::SA_RESETHAND | libc::SA_NODEFER, false;
}

#[unsafe(no_mangle)]
unsafe extern "C" fn sigset(signal: c_int, disposition: sighandler_t) -> sighandler_t {
    if guarded(signal)
        && disposition != SIG_HOLD
        && let Some(old) = chain_handler(signal, disposition, 0, false)
    {
        return old;
    }
    pass_or!(SIGSET(signal, disposition), SIG_ERR)
}

/// `set` without the guarded signals, if it would block them while the guard needs them.
///
/// # Safety
/// `set` is null or valid.
unsafe fn without_guarded(how: c_int, set: *const sigset_t) -> Option<sigset_t> {
    if how == libc::SIG_UNBLOCK {
        return None;
    }
    // SAFETY: as the caller promises.
    let mut set = unsafe { set.as_ref() }.copied()?;
    // SAFETY: a valid set and valid signals.
    let blocks =
        unsafe { libc::sigismember(&set, SIGSEGV) == 1 || libc::sigismember(&set, SIGBUS) == 1 };
    if !blocks || !chain(SIGSEGV, None, None) {
        return None;
    }
    // SAFETY: as above.
    unsafe {
        libc::sigdelset(&mut set, SIGSEGV);
        libc::sigdelset(&mut set, SIGBUS);
    }
    Some(set)
}

macro_rules! sigmask_functions {
    ($($name:ident $next:ident $otherwise:expr;)*) => {$(
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(how: c_int, set: *const sigset_t, old: *mut sigset_t) -> c_int {
            // SAFETY: null or valid by the function's contract.
            match unsafe { without_guarded(how, set) } {
                Some(set) => pass_or!($next(how, &set, old), $otherwise),
                None => pass_or!($next(how, set, old), $otherwise),
            }
        }
    )*};
}

sigmask_functions! {
    sigprocmask SIGPROCMASK -1;
    pthread_sigmask PTHREAD_SIGMASK libc::ENOSYS;
}
