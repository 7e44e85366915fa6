//! The memory that a program gives its queues, and how large a slot of each queue is.

use crate::values::QpCap;
use std::sync::Arc;
use umem::{AccessError, DmaSpace};

/// Alignment that slots are made for, in bytes: a cache line.
pub const SLOT_ALIGN: u64 = 64;
/// Bytes of one scatter/gather entry in a slot.
pub(super) const SGE_BYTES: usize = 16;
/// Bytes before a receive request's list: identifier and number of entries.
const RECV_HEAD_BYTES: usize = 16;
/// Bytes of a completion in a slot.
pub(super) const COMPLETION_BYTES: usize = 8 + 8 + 4 + 8 + 7 * 4;

/// Memory for one queue, or for both queues of a QP. Whoever provides it keeps it until the object
/// is destroyed.
#[derive(Clone)]
pub struct QueueMemory {
    space: Arc<dyn DmaSpace>,
    addr: u64,
    len: u64,
}

impl std::fmt::Debug for QueueMemory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "QueueMemory {{ {:#x}+{:#x} }}", self.addr, self.len)
    }
}

impl QueueMemory {
    /// `len` bytes at `addr` of `space`.
    pub fn new(space: Arc<dyn DmaSpace>, addr: u64, len: u64) -> QueueMemory {
        QueueMemory { space, addr, len }
    }

    /// Bytes that the queues of a QP take: the send queue's slots, then the receive queue's.
    pub fn bytes_of_qp(cap: &QpCap) -> u64 {
        send_queue_bytes(cap) + u64::from(cap.max_recv_wr) * recv_slot(cap.max_recv_sge)
    }

    /// Bytes that a shared receive queue takes.
    pub fn bytes_of_srq(max_wr: u32, max_sge: u32) -> u64 {
        u64::from(max_wr) * recv_slot(max_sge)
    }

    /// Bytes that a completion queue of `cqe` entries takes.
    pub fn bytes_of_cq(cqe: u32) -> u64 {
        places(cqe) as u64 * whole_slot(COMPLETION_BYTES)
    }

    /// What follows the first `at` bytes.
    pub(super) fn after(&self, at: u64) -> QueueMemory {
        let at = at.min(self.len);
        QueueMemory { space: self.space.clone(), addr: self.addr + at, len: self.len - at }
    }

    fn check(&self, at: u64, len: usize) -> Result<u64, AccessError> {
        match at.checked_add(len as u64) {
            Some(end) if end <= self.len => Ok(self.addr + at),
            _ => Err(AccessError::OutOfRange),
        }
    }

    pub(super) fn read(&self, at: u64, dst: &mut [u8]) -> Result<(), AccessError> {
        self.space.read(self.check(at, dst.len())?, dst)
    }

    pub(super) fn write(&self, at: u64, src: &[u8]) -> Result<(), AccessError> {
        self.space.write(self.check(at, src.len())?, src)
    }
}

/// Places of a completion queue of `cqe` entries: drivers round up to a power of two with one to
/// spare, and programs that ask for the bare minimum live on it (perftest's latency tests ask for 1
/// and let 2 completions wait).
pub fn places(cqe: u32) -> usize {
    (cqe as usize + 1).next_power_of_two()
}

pub(super) fn whole_slot(bytes: usize) -> u64 {
    (bytes as u64).max(1).next_multiple_of(SLOT_ALIGN)
}

pub(super) fn recv_slot(max_sge: u32) -> u64 {
    whole_slot(RECV_HEAD_BYTES + max_sge as usize * SGE_BYTES)
}

pub(super) fn send_slot(cap: &QpCap) -> u64 {
    whole_slot((cap.max_send_sge as usize * SGE_BYTES).max(cap.max_inline_data as usize))
}

pub(super) fn send_queue_bytes(cap: &QpCap) -> u64 {
    u64::from(cap.max_send_wr) * send_slot(cap)
}
