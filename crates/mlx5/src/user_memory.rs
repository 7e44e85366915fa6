//! User memory (PRM "UMEM", `create_umem_in`): a program's pages, which its driver names to the device once. Commands that make
//! queues then name the object and an offset in it, in the place of pages and of a doorbell record's address.

use crate::bits::{Field, be64};
use crate::buffer::{Buffer, DoorbellRecord};
use crate::bus::Bus;
use crate::command::{Commands, done, number};
use crate::function::Shared;
use crate::objects::Table;
use crate::opcode::{Answer, Status};
use std::sync::Arc;
use umem::DmaSpace;

const LOG_PAGE_SIZE: Field = Field::new(0x11b, 5);
const OFFSET: Field = Field::new(0x120, 32);
const PAGES: Field = Field::new(0x140, 64);
const LIST: usize = 0x180 / 8;
/// In a page's entry, besides that it may be read.
const WRITABLE: u64 = 2;
/// Objects that there can be, as a logarithm.
pub(crate) const LOG_MAX: u64 = 14;

/// A program's pages.
pub(crate) struct UserMemory {
    memory: Arc<dyn DmaSpace>,
    pages: Arc<[u64]>,
    page_shift: u32,
    /// Of its first byte, in the first page.
    offset: u64,
    writable: bool,
}

impl UserMemory {
    fn new(memory: Arc<dyn DmaSpace>, input: &[u8]) -> Result<UserMemory, Status> {
        let page_shift = LOG_PAGE_SIZE.get32(input) + 12;
        let list = input.get(LIST..).unwrap_or_default();
        let len = usize::try_from(PAGES.get(input)).ok().and_then(|pages| pages.checked_mul(8));
        let list = len.and_then(|len| list.get(..len)).ok_or(Status::BadInputLength)?;
        let offset = OFFSET.get(input);
        if list.is_empty() || offset >> page_shift != 0 {
            return Err(Status::BadParameter);
        }
        let entries = || list.chunks_exact(8).map(|entry| be64(entry, 0));
        let pages = entries().map(|entry| entry & !0xfff).collect();
        let writable = entries().all(|entry| entry & WRITABLE != 0);
        Ok(UserMemory { memory, pages, page_shift, offset, writable })
    }

    /// Its bytes from `at` on.
    fn buffer(self: &Arc<UserMemory>, at: u64) -> Result<Buffer, Status> {
        let offset = self.offset.checked_add(at).ok_or(Status::BadParameter)?;
        let pages = (self.pages.clone(), self.page_shift);
        Ok(Buffer::over(self.memory.clone(), pages, offset, self.clone()))
    }

    pub(crate) fn is_writable(&self) -> bool {
        self.writable
    }
}

/// Where a command names such memory: whether it does, which, and where in it.
pub(crate) struct Place {
    valid: Field,
    number: Field,
    offset: Field,
}

impl Place {
    pub(crate) const fn new(valid: Field, number: Field, offset: Field) -> Place {
        Place { valid, number, offset }
    }

    /// Behind the context of `create_cq_in` and `create_xrc_srq_in`, `bits` from the start.
    pub(crate) const fn behind_context(bits: usize) -> Place {
        Place {
            offset: Field::new(bits, 64),
            number: Field::new(bits + 0x40, 32),
            valid: Field::new(bits + 0x60, 1),
        }
    }

    /// The queue of a work queue (`wq`) that is `bits` from the start.
    pub(crate) const fn of_work_queue(bits: usize) -> Place {
        Place {
            valid: Field::new(bits + 0x121, 1),
            number: Field::new(bits + 0x160, 32),
            offset: Field::new(bits + 0x180, 64),
        }
    }

    /// The doorbell record of such a work queue.
    pub(crate) const fn of_work_queue_record(bits: usize) -> Place {
        Place {
            valid: Field::new(bits + 0x120, 1),
            number: Field::new(bits + 0x140, 32),
            offset: Field::new(bits + 0x80, 64),
        }
    }

    /// The object that a command names, if it does.
    pub(crate) fn number(&self, input: &[u8]) -> Option<u32> {
        self.valid.is_set(input).then(|| self.number.get32(input))
    }
}

/// Where commands find queues.
pub(crate) struct Places<'a> {
    bus: &'a dyn Bus,
    memories: &'a Table<Arc<UserMemory>>,
}

impl<'a> Places<'a> {
    pub(crate) fn new(shared: &'a Shared) -> Places<'a> {
        Places { bus: &*shared.bus, memories: &shared.objects.user_memories }
    }

    fn find(&self, input: &[u8], place: &Place) -> Result<Option<Buffer>, Status> {
        let Some(number) = place.number(input) else { return Ok(None) };
        self.memories.get(number)?.buffer(place.offset.get(input)).map(Some)
    }

    /// The queue at `place`, or else of `pages` of 2^`page_shift` bytes, `offset` 64ths of one into the first.
    pub(crate) fn buffer(
        &self,
        input: &[u8],
        place: &Place,
        (pages, page_shift, offset): (&[u8], u32, u64),
    ) -> Result<Buffer, Status> {
        let found = self.find(input, place)?;
        let given = || Buffer::new(self.bus.memory(), pages, page_shift, offset);
        Ok(found.unwrap_or_else(given))
    }

    /// The doorbell record at `place`, or else at its offset as an address.
    pub(crate) fn record(&self, input: &[u8], place: &Place) -> Result<DoorbellRecord, Status> {
        Ok(match self.find(input, place)? {
            Some(words) => DoorbellRecord::within(words),
            None => DoorbellRecord::new(self.bus.memory(), place.offset.get(input)),
        })
    }
}

/// `CREATE_UMEM`.
pub(crate) fn create(commands: &mut Commands, shared: &Shared, input: &[u8]) -> Answer {
    let memory = Arc::new(UserMemory::new(shared.bus.memory(), input)?);
    let new = commands.user_memories.take()?;
    shared.objects.user_memories.insert(new, memory);
    number(new)
}

/// `DESTROY_UMEM`, not while a queue is there.
pub(crate) fn destroy(commands: &mut Commands, shared: &Shared, number: u32) -> Answer {
    let memory = shared.objects.user_memories.get(number)?;
    // The table has one, and this is the other.
    if Arc::strong_count(&memory) > 2 {
        return Err(Status::Busy);
    }
    shared.objects.user_memories.remove(number)?;
    commands.user_memories.give_back(number)?;
    done()
}
