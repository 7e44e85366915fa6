//! Queues whose waiting entries live in memory that a front end provides.
//!
//! A program may bring the memory of its queues (ibv_alloc_parent_domain(3)). What waits is then
//! encoded there, in slots of fixed size, and nowhere else: receive requests and completions whole,
//! of a send request its gather list or inline data. The program may overwrite or unmap it at any
//! time, so what comes back is checked like anything from outside and a slot that does not make
//! sense is [`SlotLost`]. Integers are in the order of the host; the form of a slot is ours and
//! promised to nobody.

mod entry;
mod fifo;
mod memory;
mod send;

pub use entry::{Entry, Lists};
pub use fifo::Fifo;
pub use memory::{QueueMemory, SLOT_ALIGN, places};
pub(crate) use send::{SendSlot, SendSlots};

use self::memory::send_queue_bytes;
use crate::error::Result as HcaResult;
use crate::values::{QpCap, RecvWr};

/// A slot is unreadable, unwritable or holds what was never put there.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the queue's memory is gone or was overwritten")]
pub struct SlotLost;

/// Both queues of a QP in one piece of memory.
pub(crate) fn split(memory: QueueMemory, cap: &QpCap) -> HcaResult<(SendSlots, Fifo<RecvWr>)> {
    let receives = memory.after(send_queue_bytes(cap));
    Ok((
        SendSlots::new(memory, cap)?,
        Fifo::of_receives(cap.max_recv_wr, cap.max_recv_sge, Some(receives))?,
    ))
}

#[cfg(test)]
mod tests;
