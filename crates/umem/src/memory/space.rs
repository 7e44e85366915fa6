//! Memory that DMA addresses name (D5).

use mm::guard::fold::Fold;
use mm::{AtomicOp, Sink, guard};
use std::sync::Arc;

/// Why an access through a registration failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum AccessError {
    /// The registration was revoked, deregistered or its pages were unmapped.
    #[error("the registration is revoked")]
    Revoked,
    /// The bytes lie outside the registration.
    #[error("outside the registration")]
    OutOfRange,
    /// The memory is gone or may not be written: the guarded copy faulted.
    #[error("the memory faulted")]
    Fault,
    /// A page of an on-demand registration is not mapped. Out of [`crate::Umem`]'s own copies:
    /// there is no page for this access, or not for writing.
    #[error("no page is mapped there")]
    Unmapped,
    /// Nothing is there now: whoever keeps the memory under `key` can bring it in. No byte of the
    /// access, or only some of them, were moved; it may be done again.
    #[error("no page is there yet")]
    NotPresent {
        /// The key whose memory it is.
        key: u32,
        /// Bytes from `addr` on that the access touches; 65535 stands for any more.
        len: u16,
        /// Address under that key.
        addr: u64,
        /// The access came to the key by a list in another one, which may change.
        below: bool,
    },
    /// The buffer is being moved, or the program changes its mappings there just now. No byte of
    /// the access, or only some of them, were moved; it is to be done again a little later, and
    /// nobody tells when.
    #[error("the memory is being moved")]
    Moving,
    /// The platform offers no path from the function to the memory.
    #[error("no path to the memory")]
    Unreachable,
}

impl From<mm::Fault> for AccessError {
    fn from(_: mm::Fault) -> AccessError {
        AccessError::Fault
    }
}

impl From<mm::LoadFault> for AccessError {
    fn from(_: mm::LoadFault) -> AccessError {
        AccessError::Fault
    }
}

impl From<mm::StoreFault> for AccessError {
    fn from(_: mm::StoreFault) -> AccessError {
        AccessError::Fault
    }
}

/// Memory that a front end supplies DMA addresses for (D5): this process, a GPU, later a guest.
///
/// Bytes may be written by others at any time; an implementation never forms a reference to them,
/// and answers [`AccessError::Fault`] instead of faulting. It must not allocate or free: see
/// [`crate::Umem::enter`].
pub trait DmaSpace: Send + Sync {
    /// Copies out of memory at `addr`.
    fn read(&self, addr: u64, dst: &mut [u8]) -> Result<(), AccessError>;
    /// As `read`; where it can, folds the bytes into `fold` on the way, else leaves that at no
    /// bytes.
    fn read_folding(&self, addr: u64, dst: &mut [u8], fold: &mut Fold) -> Result<(), AccessError> {
        *fold = Fold::off();
        self.read(addr, dst)
    }
    /// Copies into memory at `addr`, in ascending order, the last byte last. Any address may come:
    /// a space changes only what is its own, or was vouched for when the space was made.
    fn write(&self, addr: u64, src: &[u8]) -> Result<(), AccessError>;
    /// One atomic operation on the 8-byte aligned word at `addr`, as to which the same holds;
    /// returns the old value.
    fn atomic(&self, addr: u64, op: AtomicOp) -> Result<u64, AccessError>;
    /// Where in this process the `len` bytes at `addr` are, if they are memory of its.
    fn in_place(&self, addr: u64, len: u64) -> Option<Sink<'_>> {
        let _ = (addr, len);
        None
    }
}

/// One run of DMA-contiguous bytes and the route by which the HCA function reaches it.
#[derive(Clone)]
pub struct Segment {
    /// Space the address belongs to.
    pub space: Arc<dyn DmaSpace>,
    /// DMA address of the first byte.
    pub addr: u64,
    /// Length in bytes.
    pub len: u64,
    /// The way that the bytes take, which counts them.
    pub route: Arc<pcie::Route>,
}

impl Segment {
    /// All of a memory of this process.
    pub fn of_process(memory: Sink<'static>, route: Arc<pcie::Route>) -> Segment {
        Segment { space: process_space(memory), addr: memory.addr(), len: memory.len(), route }
    }
}

/// Memory of this process: DMA addresses are virtual addresses, touched by guarded copies.
struct ProcessSpace(Sink<'static>);

impl DmaSpace for ProcessSpace {
    #[inline]
    fn read(&self, addr: u64, dst: &mut [u8]) -> Result<(), AccessError> {
        Ok(self.0.at(addr, dst.len() as u64)?.source().read(dst)?)
    }
    #[inline]
    fn read_folding(&self, addr: u64, dst: &mut [u8], fold: &mut Fold) -> Result<(), AccessError> {
        Ok(self.0.at(addr, dst.len() as u64)?.source().read_folding(dst, fold)?)
    }
    #[inline]
    fn write(&self, addr: u64, src: &[u8]) -> Result<(), AccessError> {
        Ok(self.0.at(addr, src.len() as u64)?.write(src)?)
    }
    #[inline]
    fn atomic(&self, addr: u64, op: AtomicOp) -> Result<u64, AccessError> {
        Ok(self.0.at(addr, 8)?.atomic_u64(op)?)
    }
    #[inline]
    fn in_place(&self, addr: u64, len: u64) -> Option<Sink<'_>> {
        self.0.at(addr, len).ok()
    }
}

/// The memory of this process that may be written in `memory`, under its virtual addresses.
/// Installs the fault guard.
pub fn process_space(memory: Sink<'static>) -> Arc<dyn DmaSpace> {
    guard::install();
    Arc::new(ProcessSpace(memory))
}
