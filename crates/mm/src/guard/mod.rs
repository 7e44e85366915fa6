//! Fault-guarded access to memory that may vanish at any moment.
//!
//! The engine touches memory that belongs to the program, which may unmap or truncate it meanwhile (D4). Every touch is one of
//! the few routines here. When one of their instructions faults, the SIGSEGV/SIGBUS handler sends it to a fix-up that
//! returns [`Fault`], like the kernel's exception table does for `copy_from_user`. A fault anywhere else goes to the
//! program's own action as if this handler did not exist.
//!
//! Memory reached here is never behind a reference: others write it concurrently, and a copy then holds a mixture of old
//! and new bytes, as a DMA engine's would. Aligned words of up to 8 bytes are never torn, and the last byte of a
//! [`copy_to`] changes last.
//!
//! [`install`] must have run before the first guarded touch. A thread that touches must not block the two signals, since the
//! kernel kills a process whose blocked synchronous fault arrives: a thread's first touch unblocks them
//! ([`unblock_signals`]), and the interposed `sigprocmask` keeps them so. What remains are masks that come with a signal
//! handler, a saved context or a bare system call.

#[cfg(target_arch = "aarch64")]
mod aarch64;
pub mod fold;
mod handler;
#[cfg(target_arch = "x86_64")]
mod x86_64;

#[cfg(target_arch = "aarch64")]
use aarch64 as arch;
#[cfg(target_arch = "x86_64")]
use x86_64 as arch;

pub use handler::{chain, install, unblock_signals};

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

// SAFETY (of the declarations): defined in this room's assembly with these signatures; each returns 0, or non-zero after
// a fault.
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

/// Begins every touch: its thread takes the signals. Refuses ranges that no user mapping can have: they would wrap, or
/// reach the kernel's half.
#[inline]
fn range(addr: u64, len: usize) -> Result<usize, Fault> {
    handler::ensure_unblocked();
    match addr.checked_add(len as u64) {
        Some(end) if end <= 1 << 63 => Ok(addr as usize),
        _ => Err(Fault),
    }
}

/// Copies `dst.len()` bytes from `addr`. After a fault, a prefix of unknown length of `dst` has been written.
#[inline]
pub fn copy_from(addr: u64, dst: &mut [u8]) -> Result<(), Fault> {
    let src = range(addr, dst.len())?;
    // SAFETY: `dst` is ours for the whole length; every load from `src` is guarded.
    done(unsafe { peerdma_guard_copy_from(dst.as_mut_ptr(), src, dst.len()) })
}

/// Copies `src` to `addr`, in ascending order, the last byte last. After a fault, a prefix of unknown length has been written.
///
/// # Soundness
/// The caller vouches that `[addr, addr + src.len())` is memory that the program (or a device's owner) registered for
/// writing, never memory that Rust code holds references to.
#[inline]
pub fn copy_to(addr: u64, src: &[u8]) -> Result<(), Fault> {
    let dst = range(addr, src.len())?;
    // SAFETY: `src` is readable for the whole length; every store to `dst` is guarded; that `dst` is registered memory is
    // the caller's statement above.
    done(unsafe { peerdma_guard_copy_to(dst, src.as_ptr(), src.len()) })
}

/// Copies between two places that may both vanish. The ranges must not overlap, else bytes mix.
pub fn copy(dst: u64, src: u64, len: usize) -> Result<(), Fault> {
    let (dst, src) = (range(dst, len)?, range(src, len)?);
    // SAFETY: loads and stores of the routine are both guarded; as for `copy_to`.
    done(unsafe { peerdma_guard_copy_to(dst, src as *const u8, len) })
}

/// Fills `len` bytes at `addr`. The same statement as for [`copy_to`] holds.
pub fn fill(addr: u64, byte: u8, len: usize) -> Result<(), Fault> {
    let addr = range(addr, len)?;
    // SAFETY: every store is guarded; as for `copy_to`.
    done(unsafe { peerdma_guard_fill(addr, byte.into(), len) })
}

/// Reads one byte of the page at `addr`, so that it becomes resident.
pub fn touch_read(addr: u64) -> Result<(), Fault> {
    let addr = range(addr, 1)?;
    // SAFETY: the load is guarded.
    done(unsafe { peerdma_guard_touch_read(addr) })
}

/// Makes the page at `addr` resident and writable without changing its content.
pub fn touch_write(addr: u64) -> Result<(), Fault> {
    let addr = range(addr, 1)?;
    // SAFETY: the access is guarded and adds 0 atomically.
    done(unsafe { peerdma_guard_touch_write(addr) })
}

/// One atomic operation on the 8-byte aligned word at `addr`; returns its old value. A misaligned address is a [`Fault`].
/// The same statement as for [`copy_to`] holds.
pub fn atomic_u64(addr: u64, op: AtomicOp) -> Result<u64, Fault> {
    let word = range(addr, 8)?;
    if word % 8 != 0 {
        return Err(Fault);
    }
    let mut old = 0;
    // SAFETY: the access to `word` is guarded, `old` is ours; as for `copy_to`.
    let code = unsafe {
        match op {
            AtomicOp::CompareSwap { compare, swap } => {
                peerdma_guard_compare_swap(word, compare, swap, &raw mut old)
            }
            AtomicOp::FetchAdd { add } => peerdma_guard_fetch_add(word, add, &raw mut old),
        }
    };
    done(code).map(|()| old)
}

#[cfg(test)]
mod tests;
