//! The SIGSEGV/SIGBUS handler and the program's own action behind it.
//!
//! Everything here is async-signal-safe: no allocation, no lock, raw system calls only (the C
//! library's functions are interposed by the shim and would come back to us).

use super::arch;
use core::cell::Cell;
use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::*};
use libc::{c_int, c_void, siginfo_t, ucontext_t};
use std::sync::Once;
use std::time::{Duration, Instant};

// SAFETY (of the declarations): labels in this room's assembly; only their addresses are used.
unsafe extern "C" {
    static peerdma_guard_begin: u8;
    static peerdma_guard_end: u8;
    static peerdma_guard_fixup: u8;
    #[cfg(target_arch = "x86_64")]
    static peerdma_guard_restorer: u8;
}

/// `struct sigaction` as the kernel knows it (`arch/x86/include/uapi/asm/signal.h`,
/// `asm-generic/signal.h`).
#[repr(C)]
#[derive(Clone, Copy)]
struct KernelAction {
    handler: usize,
    flags: u64,
    restorer: usize,
    mask: u64,
}

const SA_RESTORER: u64 = 0x0400_0000;
/// Bytes in the kernel's signal set.
const SIGSET_BYTES: usize = 8;

/// The program's action for one signal. `sigaction` is async-signal-safe and a fork may happen at
/// any time, so there is no lock: a writer fills the next slot of a ring and then makes it current.
/// A reader would be misled only if 63 changes happened while it read four words.
struct Chained {
    current: AtomicUsize,
    next: AtomicUsize,
    slots: [Slot; SLOTS],
}

const SLOTS: usize = 64;

struct Slot {
    handler: AtomicUsize,
    flags: AtomicU64,
    mask: AtomicU64,
    restorer: AtomicUsize,
}

impl Chained {
    const fn new() -> Chained {
        Chained {
            current: AtomicUsize::new(0),
            next: AtomicUsize::new(1),
            slots: [const {
                Slot {
                    handler: AtomicUsize::new(libc::SIG_DFL),
                    flags: AtomicU64::new(0),
                    mask: AtomicU64::new(0),
                    restorer: AtomicUsize::new(0),
                }
            }; SLOTS],
        }
    }

    fn load(&self, slot: usize) -> KernelAction {
        let s = &self.slots[slot % SLOTS];
        KernelAction {
            handler: s.handler.load(Relaxed),
            flags: s.flags.load(Relaxed),
            mask: s.mask.load(Relaxed),
            restorer: s.restorer.load(Relaxed),
        }
    }

    fn get(&self) -> KernelAction {
        self.load(self.current.load(Acquire))
    }

    /// Makes `action` current and returns the one before it.
    fn swap(&self, action: KernelAction) -> KernelAction {
        let slot = self.next.fetch_add(1, Relaxed) % SLOTS;
        let s = &self.slots[slot];
        s.handler.store(action.handler, Relaxed);
        s.flags.store(action.flags, Relaxed);
        s.mask.store(action.mask, Relaxed);
        s.restorer.store(action.restorer, Relaxed);
        self.load(self.current.swap(slot, AcqRel))
    }
}

static SEGV: Chained = Chained::new();
static BUS: Chained = Chained::new();
static ONCE: Once = Once::new();
/// Read in signal handlers, where `ONCE` may not be.
static INSTALLED: AtomicBool = AtomicBool::new(false);

fn chained(signal: c_int) -> Option<&'static Chained> {
    match signal {
        libc::SIGSEGV => Some(&SEGV),
        libc::SIGBUS => Some(&BUS),
        _ => None,
    }
}

/// `rt_sigaction(2)` itself. Returns 0 or a negative errno.
fn kernel_sigaction(
    signal: c_int,
    new: Option<&KernelAction>,
    old: Option<&mut KernelAction>,
) -> i64 {
    let new = new.map_or(core::ptr::null(), |a| a as *const KernelAction);
    let old = old.map_or(core::ptr::null_mut(), |a| a as *mut KernelAction);
    // SAFETY: both are null or valid for the call, and the layout is the kernel's.
    unsafe {
        raw_syscall(
            libc::SYS_rt_sigaction,
            signal as usize,
            new as usize,
            old as usize,
            SIGSET_BYTES,
        )
    }
}

/// `rt_sigprocmask(2)` itself.
fn kernel_sigprocmask(how: c_int, set: u64, old: Option<&mut u64>) {
    let old = old.map_or(core::ptr::null_mut(), |o| o as *mut u64);
    // SAFETY: `set` lives on this stack, `old` is null or valid.
    unsafe {
        raw_syscall(
            libc::SYS_rt_sigprocmask,
            how as usize,
            &raw const set as usize,
            old as usize,
            SIGSET_BYTES,
        )
    };
}

/// One system call without the C library, whose `errno` an interrupted function may be about to
/// read.
///
/// # Safety
/// The arguments must be valid for the call.
unsafe fn raw_syscall(number: i64, a: usize, b: usize, c: usize, d: usize) -> i64 {
    let result: i64;
    // SAFETY: the kernel's calling convention; what the call does is the caller's statement.
    unsafe {
        #[cfg(target_arch = "x86_64")]
        core::arch::asm!(
            "syscall",
            inlateout("rax") number => result,
            in("rdi") a, in("rsi") b, in("rdx") c, in("r10") d,
            lateout("rcx") _, lateout("r11") _,
            options(nostack),
        );
        #[cfg(target_arch = "aarch64")]
        core::arch::asm!(
            "svc 0",
            in("x8") number,
            inlateout("x0") a => result,
            in("x1") b, in("x2") c, in("x3") d,
            options(nostack),
        );
    }
    result
}

/// Our action in the kernel. SA_RESTART follows the program's wish: it matters to a system call
/// that an asynchronous signal interrupts.
fn ours(program: &KernelAction) -> KernelAction {
    #[cfg(target_arch = "x86_64")]
    let (restorer, extra) = (&raw const peerdma_guard_restorer as usize, SA_RESTORER);
    #[cfg(target_arch = "aarch64")]
    let (restorer, extra) = (0, 0);
    KernelAction {
        handler: on_fault as *const () as usize,
        flags: (libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_NODEFER) as u64
            | extra
            | (program.flags & libc::SA_RESTART as u64),
        restorer,
        mask: 0,
    }
}

/// Takes SIGSEGV and SIGBUS over, remembering the program's actions. Idempotent, and cheap once
/// done.
///
/// Without an interposed `sigaction` that calls [`chain`], a program that sets its own action later
/// takes the signals back; guarded touches then fault for real.
pub fn install() {
    ONCE.call_once(|| {
        for (signal, chained) in [(libc::SIGSEGV, &SEGV), (libc::SIGBUS, &BUS)] {
            let mut program = KernelAction { handler: 0, flags: 0, restorer: 0, mask: 0 };
            if kernel_sigaction(signal, None, Some(&mut program)) == 0 {
                chained.swap(program);
                kernel_sigaction(signal, Some(&ours(&program)), None);
            }
        }
        unblock_signals();
        INSTALLED.store(true, Release);
    });
}

thread_local! {
    /// Whether this thread has unblocked the signals since it began. Threads inherit masks, also
    /// from before [`install`].
    static UNBLOCKED: Cell<bool> = const { Cell::new(false) };
}

/// Before a thread's first touch, [`unblock_signals`].
#[inline]
pub(super) fn ensure_unblocked() {
    if !UNBLOCKED.replace(true) {
        unblock_signals();
    }
}

/// How long a look at a thread's mask and the actions counts: it takes as long as a short copy.
const COUNTS_FOR: Duration = Duration::from_micros(50);

thread_local! {
    /// When this thread was last made ready for faults, and whether they then come to `on_fault`.
    static LOOKED: Cell<(Option<Instant>, bool)> = const { Cell::new((None, false)) };
}

/// Whether the calling thread may touch, `now`, what others can take from under it at any moment: a
/// fault would come to the handler, as of a moment ago at most. A thread's mask comes back with a
/// saved context or the end of a handler, and a bare system call may set either.
#[inline]
pub fn would_catch(now: Instant) -> bool {
    match LOOKED.get() {
        (Some(at), would) if now.saturating_duration_since(at) < COUNTS_FOR => would,
        _ => look(now),
    }
}

#[cold]
fn look(now: Instant) -> bool {
    unblock_signals();
    let is_ours = |signal| {
        let mut action = KernelAction { handler: 0, flags: 0, restorer: 0, mask: 0 };
        let told = kernel_sigaction(signal, None, Some(&mut action)) == 0;
        told && action.handler == on_fault as *const () as usize
    };
    let would = is_ours(libc::SIGBUS) && is_ours(libc::SIGSEGV);
    LOOKED.set((Some(now), would));
    would
}

/// Unblocks SIGSEGV and SIGBUS in the calling thread, as every thread needs that touches guarded
/// memory.
#[cold]
pub fn unblock_signals() {
    kernel_sigprocmask(libc::SIG_UNBLOCK, bit(libc::SIGSEGV) | bit(libc::SIGBUS), None);
}

fn bit(signal: c_int) -> u64 {
    1 << (signal - 1)
}

/// `sigaction(2)` of the program for SIGSEGV or SIGBUS: records `new`, returns the program's
/// previous action in `old`, and leaves ours in the kernel. Returns whether it was handled: `false`
/// for any other signal and before [`install`], where the caller goes to the kernel itself.
/// Async-signal-safe.
pub fn chain(
    signal: c_int,
    new: Option<&libc::sigaction>,
    old: Option<&mut libc::sigaction>,
) -> bool {
    let Some(chained) = chained(signal).filter(|_| INSTALLED.load(Acquire)) else {
        return false;
    };
    let previous = match new {
        Some(new) => {
            let action = KernelAction {
                handler: new.sa_sigaction,
                flags: new.sa_flags as u32 as u64,
                restorer: 0,
                mask: first_word(&new.sa_mask),
            };
            let previous = chained.swap(action);
            kernel_sigaction(signal, Some(&ours(&action)), None);
            previous
        }
        None => chained.get(),
    };
    if let Some(old) = old {
        old.sa_sigaction = previous.handler;
        old.sa_flags = (previous.flags & !SA_RESTORER) as u32 as c_int;
        old.sa_restorer = None;
        set_first_word(&mut old.sa_mask, previous.mask);
    }
    true
}

/// The kernel's 64 signals out of the C library's larger set.
fn first_word(set: &libc::sigset_t) -> u64 {
    // SAFETY: sigset_t is an array of at least one 64-bit word, aligned as such.
    unsafe { (set as *const libc::sigset_t).cast::<u64>().read() }
}

fn set_first_word(set: &mut libc::sigset_t, word: u64) {
    // SAFETY: all-zero bytes are a valid sigset_t, whose first word is the kernel's set.
    unsafe {
        *set = core::mem::zeroed();
        (set as *mut libc::sigset_t).cast::<u64>().write(word);
    }
}

unsafe extern "C" fn on_fault(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel passes both, valid and exclusive for the duration of the handler.
    let (code, ucontext) = unsafe { ((*info).si_code, &mut *context.cast::<ucontext_t>()) };
    // a positive code is a fault of this instruction; others were sent by kill(2) and the like
    if code > 0 {
        let pc = arch::pc(ucontext);
        let begin = &raw const peerdma_guard_begin as usize;
        let end = &raw const peerdma_guard_end as usize;
        if (begin..end).contains(&pc) {
            arch::set_pc(ucontext, &raw const peerdma_guard_fixup as usize);
            return;
        }
    }
    forward(signal, code, info, context);
}

/// Does what the kernel would have done with the program's own action.
fn forward(signal: c_int, code: c_int, info: *mut siginfo_t, context: *mut c_void) {
    let Some(chained) = chained(signal) else { return };
    let action = chained.get();
    let synchronous = code > 0;
    match action.handler {
        libc::SIG_IGN if !synchronous => {}
        // an ignored synchronous fault kills (force_sig in kernel/signal.c)
        libc::SIG_DFL | libc::SIG_IGN => {
            let default = KernelAction { handler: libc::SIG_DFL, flags: 0, restorer: 0, mask: 0 };
            kernel_sigaction(signal, Some(&default), None);
            if !synchronous {
                // SAFETY: `info` is the kernel's; a process may queue any siginfo to itself.
                unsafe {
                    let pid = raw_syscall(libc::SYS_getpid, 0, 0, 0, 0);
                    let tid = raw_syscall(libc::SYS_gettid, 0, 0, 0, 0);
                    raw_syscall(
                        libc::SYS_rt_tgsigqueueinfo,
                        pid as usize,
                        tid as usize,
                        signal as usize,
                        info as usize,
                    );
                }
            }
            // the instruction faults again, now with the default action: same signal, address and
            // core as without us
        }
        handler => {
            let flags = action.flags as c_int;
            if flags & libc::SA_RESETHAND != 0 {
                chained.swap(KernelAction {
                    handler: libc::SIG_DFL,
                    flags: 0,
                    restorer: 0,
                    mask: 0,
                });
            }
            let own = if flags & libc::SA_NODEFER != 0 { 0 } else { bit(signal) };
            let mut before = 0;
            kernel_sigprocmask(libc::SIG_BLOCK, action.mask | own, Some(&mut before));
            // SAFETY: the program registered this address as a handler of this form. It may leave
            // by siglongjmp, as it may from any handler: nothing here needs to run after it.
            unsafe {
                if flags & libc::SA_SIGINFO != 0 {
                    let f: unsafe extern "C" fn(c_int, *mut siginfo_t, *mut c_void) =
                        core::mem::transmute::<usize, _>(handler);
                    f(signal, info, context);
                } else {
                    let f: unsafe extern "C" fn(c_int) = core::mem::transmute::<usize, _>(handler);
                    f(signal);
                }
            }
            kernel_sigprocmask(libc::SIG_SETMASK, before, None);
        }
    }
}
