//! Where queues and doorbell records are that commands name: in user memory, or else in pages and
//! at addresses of the machine.

use crate::layout::head::Status;
use crate::machine::buffer::{Buffer, DoorbellRecord};
use crate::machine::bus::Bus;
use crate::machine::table::Table;
use crate::machine::user_memory::UserMemory;
use crate::request::queue::{GuestAddress, Placement};
use std::sync::Arc;

/// Where commands find queues.
pub(crate) struct QueueMemory<'a> {
    bus: &'a dyn Bus,
    memories: &'a Table<Arc<UserMemory>>,
}

impl<'a> QueueMemory<'a> {
    pub(crate) fn new(bus: &'a dyn Bus, memories: &'a Table<Arc<UserMemory>>) -> QueueMemory<'a> {
        QueueMemory { bus, memories }
    }

    fn find(&self, place: &GuestAddress) -> Result<Option<Buffer>, Status> {
        let Some(number) = place.umem else { return Ok(None) };
        self.memories.get(number)?.buffer(place.offset).map(Some)
    }

    /// The entries of a queue.
    pub(crate) fn buffer(&self, placement: &Placement) -> Result<Buffer, Status> {
        let Placement { entries, pages, page_offset, .. } = placement;
        let found = self.find(entries)?;
        let shift = placement.page_shift();
        let given = || Buffer::new(self.bus.memory(), pages, shift, *page_offset);
        Ok(found.unwrap_or_else(given))
    }

    /// The doorbell record of a queue.
    pub(crate) fn record(&self, placement: &Placement) -> Result<DoorbellRecord, Status> {
        let place = &placement.record;
        Ok(match self.find(place)? {
            Some(words) => DoorbellRecord::within(words),
            None => DoorbellRecord::new(self.bus.memory(), place.offset),
        })
    }
}
