//! Fault-guarded access to memory that may vanish at any moment.
//!
//! The engine touches memory that belongs to the program, which may unmap or truncate it meanwhile
//! (D4). Every touch is one of the few routines here. When one of their instructions faults, the
//! SIGSEGV/SIGBUS handler sends it to a fix-up that returns [`Fault`], like the kernel's exception
//! table does for `copy_from_user`. A fault anywhere else goes to the program's own action as if
//! this handler did not exist.
//!
//! Memory reached here is never behind a reference: others write it concurrently, and a copy then
//! holds a mixture of old and new bytes, as a DMA engine's would. Aligned words of up to 8 bytes
//! are never torn, and the last byte of a [`Sink::write`] changes last. What is written must be
//! vouched for, which is a [`Sink`], and so must what is read, which is a [`Source`].
//!
//! [`install`] must have run before the first guarded touch. A thread that touches must not block
//! the two signals, since the kernel kills a process whose blocked synchronous fault arrives: a
//! thread's first touch unblocks them ([`unblock_signals`]), and the interposed `sigprocmask` keeps
//! them so. What remains are masks that come with a signal handler, a saved context or a bare
//! system call: who touches what another process can take away at any moment asks [`would_catch`].

#[cfg(target_arch = "aarch64")]
mod aarch64;
pub mod fold;
mod handler;
mod span;
#[cfg(target_arch = "x86_64")]
mod x86_64;

#[cfg(target_arch = "aarch64")]
use aarch64 as arch;
#[cfg(target_arch = "x86_64")]
use x86_64 as arch;

pub use handler::{chain, install, unblock_signals, would_catch};
pub use span::{Direction, Load, LoadFault, Sink, Source, Span, Store, StoreFault};

/// The memory is not there, or not for this kind of access.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the memory faulted")]
pub struct Fault;

/// An atomic operation on a 64-bit word in host byte order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AtomicOp {
    /// Store `swap` if the word equals `compare`.
    CompareSwap {
        /// Expected value.
        compare: u64,
        /// New value.
        swap: u64,
    },
    /// Add, wrapping.
    FetchAdd {
        /// Addend.
        add: u64,
    },
}

// SAFETY (of the declarations): defined in this room's assembly with these signatures; each returns
// 0, or non-zero after a fault.
unsafe extern "C" {
    fn peerdma_guard_copy_to(dst: usize, src: *const u8, len: usize) -> u32;
    fn peerdma_guard_copy_from(dst: *mut u8, src: usize, len: usize) -> u32;
    fn peerdma_guard_fill(addr: usize, byte: u32, len: usize) -> u32;
    fn peerdma_guard_touch_read(addr: usize) -> u32;
    fn peerdma_guard_touch_write(addr: usize) -> u32;
    fn peerdma_guard_compare_swap(addr: usize, compare: u64, swap: u64, old: *mut u64) -> u32;
    fn peerdma_guard_fetch_add(addr: usize, add: u64, old: *mut u64) -> u32;
}

fn done(code: u32) -> Result<(), Fault> {
    if code == 0 { Ok(()) } else { Err(Fault) }
}

/// Begins every touch: its thread takes the signals. Refuses ranges that no user mapping can have:
/// they would wrap, or reach the kernel's half.
#[inline]
fn range(addr: u64, len: usize) -> Result<usize, Fault> {
    handler::ensure_unblocked();
    match addr.checked_add(len as u64) {
        Some(end) if end <= 1 << 63 => Ok(addr as usize),
        _ => Err(Fault),
    }
}

/// Reads one byte of the page at `addr`, so that it becomes resident.
pub fn touch_read(addr: u64) -> Result<(), Fault> {
    let addr = range(addr, 1)?;
    // SAFETY: the load is guarded.
    done(unsafe { peerdma_guard_touch_read(addr) })
}

/// Makes the page at `addr` resident and writable without changing its content.
pub(crate) fn touch_write(addr: u64) -> Result<(), Fault> {
    let addr = range(addr, 1)?;
    // SAFETY: the access is guarded and adds 0 atomically.
    done(unsafe { peerdma_guard_touch_write(addr) })
}

#[cfg(test)]
mod tests;
