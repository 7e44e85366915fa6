//! Registered memory: turns (address or descriptor, length, access) into DMA segments with a route.
//!
//! One [`Umem`] is one registration of any kind. It knows nothing of queues, packets or keys. The HCA
//! reaches the memory only inside [`Umem::enter`], so that a revoke, an unmap or a move waits for exactly those
//! who are inside.
#![forbid(unsafe_code)]
// SKELETON: the memory room's owner replaces the bodies; the signatures are what `hca` and `verbs` use.

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
    /// The platform offers no path from the function to the memory.
    #[error("no path to the memory")]
    Unreachable,
}

/// Atomic operations on an aligned 64-bit word, in host byte order.
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

/// Memory that a front end supplies DMA addresses for (D5): this process, a GPU, later a guest.
///
/// Bytes may be written by others at any time; an implementation never forms a reference to them, and answers
/// [`AccessError::Fault`] instead of faulting.
pub trait DmaSpace: Send + Sync {
    /// Copies out of memory at `addr`.
    fn read(&self, addr: u64, dst: &mut [u8]) -> Result<(), AccessError>;
    /// Copies into memory at `addr`.
    fn write(&self, addr: u64, src: &[u8]) -> Result<(), AccessError>;
    /// One atomic operation on the 8-byte aligned word at `addr`; returns the old value.
    fn atomic(&self, addr: u64, op: AtomicOp) -> Result<u64, AccessError>;
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
    /// How the bytes travel; counts them.
    pub route: Arc<pcie::Route>,
}

/// One registration.
pub struct Umem;

impl Umem {
    /// A registration over fixed segments (tests, device memory, a guest's page list).
    pub fn from_segments(segments: Vec<Segment>, writable: bool) -> Arc<Umem> {
        let _ = (segments, writable);
        todo!()
    }
    /// Length in bytes.
    pub fn len(&self) -> u64 {
        todo!()
    }
    /// Whether the length is 0.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// Whether local and remote writes are possible.
    pub fn writable(&self) -> bool {
        todo!()
    }
    /// Begins an access; the mapping stays as it is until the guard is dropped.
    pub fn enter(&self) -> Result<Access<'_>, AccessError> {
        todo!()
    }
    /// Refuses further accesses and returns once those inside have left. Idempotent.
    pub fn revoke(&self) {
        todo!()
    }
}

/// An access in progress. Offsets count from the start of the registration.
pub struct Access<'a>(std::marker::PhantomData<&'a Umem>);

impl Access<'_> {
    /// Copies `dst.len()` bytes out.
    pub fn read(&self, offset: u64, dst: &mut [u8]) -> Result<(), AccessError> {
        let _ = (offset, dst);
        todo!()
    }
    /// Copies `src` in.
    pub fn write(&self, offset: u64, src: &[u8]) -> Result<(), AccessError> {
        let _ = (offset, src);
        todo!()
    }
    /// One atomic operation on an aligned word.
    pub fn atomic(&self, offset: u64, op: AtomicOp) -> Result<u64, AccessError> {
        let _ = (offset, op);
        todo!()
    }
}
