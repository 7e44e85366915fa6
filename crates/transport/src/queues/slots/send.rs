//! The slots of a send queue: the gather list or the inline data of each request.

use super::SlotLost;
use super::entry::{Reader, put_list};
use super::memory::{QueueMemory, SGE_BYTES, send_slot};
use crate::error::Result as HcaResult;
use crate::shelf::list_of;
use crate::values::{Payload, QpCap, SendWr, SgList, Sge};
use smallvec::SmallVec;
use umem::AccessError;

/// Entries of the longest gather list that is read without asking for memory: what a device allows.
const LONGEST_LIST: usize = 32;

/// The send queue's slots: each holds the gather list or the inline data of one request.
pub(crate) struct SendSlots {
    memory: QueueMemory,
    slot_bytes: u64,
    places: u64,
    /// Requests stored so far. They leave in order, and no more than `places` are in the queue.
    stored: u64,
    scratch: Vec<u8>,
}

impl SendSlots {
    pub(super) fn new(memory: QueueMemory, cap: &QpCap) -> HcaResult<SendSlots> {
        let (places, slot_bytes) = (u64::from(cap.max_send_wr), send_slot(cap));
        let scratch = list_of(slot_bytes as usize)?;
        Ok(SendSlots { memory, slot_bytes, places, stored: 0, scratch })
    }

    /// Moves a request's payload into the next slot.
    pub fn store(&mut self, wr: &mut SendWr) -> Result<SendSlot, SlotLost> {
        let bytes = &mut self.scratch;
        bytes.clear();
        let kind = match &wr.payload {
            Payload::Inline(data) => {
                bytes.extend_from_slice(data);
                SlotKind::Inline
            }
            Payload::Gather(list) => {
                put_list(list, bytes);
                SlotKind::Gather(list.len())
            }
        };
        if bytes.len() as u64 > self.slot_bytes {
            return Err(SlotLost);
        }
        let at = self.stored % self.places.max(1) * self.slot_bytes;
        self.memory.write(at, bytes).map_err(|_| SlotLost)?;
        self.stored += 1;
        wr.payload = Payload::Gather(SgList::new());
        Ok(SendSlot { memory: self.memory.clone(), at, len: bytes.len(), kind })
    }
}

enum SlotKind {
    Inline,
    Gather(usize),
}

/// Where the payload of one send request is described.
pub(crate) struct SendSlot {
    memory: QueueMemory,
    at: u64,
    len: usize,
    kind: SlotKind,
}

impl SendSlot {
    /// The gather list; `None` where the data is inline.
    pub fn gather(&self) -> Option<Result<SmallVec<[Sge; LONGEST_LIST]>, SlotLost>> {
        let SlotKind::Gather(entries) = self.kind else { return None };
        let mut bytes: SmallVec<[u8; LONGEST_LIST * SGE_BYTES]> = SmallVec::new();
        bytes.resize(self.len, 0);
        let mut list = SmallVec::new();
        let read = self.memory.read(self.at, &mut bytes).ok();
        let read = read.and_then(|()| Reader(&bytes).list(entries, &mut list));
        Some(read.map(|()| list).ok_or(SlotLost))
    }

    /// Copies inline data out, from `at` on.
    pub fn inline(&self, at: u64, dst: &mut [u8]) -> Result<(), AccessError> {
        match at.checked_add(dst.len() as u64) {
            Some(end) if end <= self.len as u64 => self.memory.read(self.at + at, dst),
            _ => Err(AccessError::OutOfRange),
        }
    }

    /// Whether it brings its bytes along.
    pub fn is_inline(&self) -> bool {
        matches!(self.kind, SlotKind::Inline)
    }
}
