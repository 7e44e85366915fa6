//! A queue of values, in the engine's own memory or in slots of a program's.

use super::SlotLost;
use super::entry::{Entry, Lists};
use super::memory::{COMPLETION_BYTES, QueueMemory, places, recv_slot, whole_slot};
use crate::error::Result as HcaResult;
use crate::shelf::{Shelf, list_of, queue_of};
use crate::values::{Completion, RecvWr};
use std::collections::VecDeque;
use std::marker::PhantomData;

/// Lists of requests that were taken from a queue and are not done: a message that fills one, and
/// what follows it.
const LISTS_OUT: usize = 4;

/// A queue of values: in the engine's own memory, or in slots.
pub struct Fifo<T>(Store<T>);

enum Store<T> {
    Own(VecDeque<T>),
    Slots(Slots<T>),
}

struct Slots<T> {
    memory: QueueMemory,
    slot_bytes: u64,
    places: usize,
    /// The oldest entry's place.
    head: usize,
    len: usize,
    scratch: Vec<u8>,
    lists: Lists,
    holds: PhantomData<T>,
}

impl<T> Default for Fifo<T> {
    fn default() -> Fifo<T> {
        Fifo(Store::Own(VecDeque::new()))
    }
}

impl<T: Entry> Fifo<T> {
    /// A queue of `places` in `memory`, which is large enough for slots of `slot_bytes`; its
    /// entries have lists of `max_sge`.
    fn in_memory(
        memory: QueueMemory,
        slot_bytes: u64,
        places: usize,
        max_sge: u32,
    ) -> HcaResult<Fifo<T>> {
        Ok(Fifo(Store::Slots(Slots {
            memory,
            slot_bytes,
            places,
            head: 0,
            len: 0,
            scratch: list_of(slot_bytes as usize)?,
            lists: Shelf::new(LISTS_OUT, max_sge as usize)?,
            holds: PhantomData,
        })))
    }

    /// A queue of `places` in the engine's own memory.
    pub fn own(places: usize) -> HcaResult<Fifo<T>> {
        Ok(Fifo(Store::Own(queue_of(places)?)))
    }

    /// Entries that wait.
    pub fn len(&self) -> usize {
        match &self.0 {
            Store::Own(own) => own.len(),
            Store::Slots(slots) => slots.len,
        }
    }

    /// Whether none waits.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Appends an entry, for which the caller knows room.
    ///
    /// # Errors
    /// [`SlotLost`] when the memory is gone.
    pub fn push_back(&mut self, entry: T) -> Result<(), SlotLost> {
        match &mut self.0 {
            Store::Own(own) => {
                own.push_back(entry);
                Ok(())
            }
            Store::Slots(slots) => slots.push_back(&entry),
        }
    }

    /// The oldest entry, where it is in the engine's own memory.
    pub fn front(&self) -> Option<&T> {
        match &self.0 {
            Store::Own(own) => own.front(),
            Store::Slots(_) => None,
        }
    }

    /// Takes the oldest entry; a lost one is taken as well.
    pub fn pop_front(&mut self) -> Option<Result<T, SlotLost>> {
        match &mut self.0 {
            Store::Own(own) => {
                let entry = own.pop_front();
                if own.is_empty() {
                    // It begins anew at its first place, so that a queue that is never full touches
                    // little memory.
                    own.clear();
                }
                entry.map(Ok)
            }
            Store::Slots(slots) => slots.pop_front(),
        }
    }

    /// The same, and hands it to `take` where it is.
    pub fn take_front(&mut self, take: impl FnOnce(&T)) -> Option<Result<(), SlotLost>> {
        let Store::Own(own) = &mut self.0 else {
            return Some(self.pop_front()?.map(|entry| take(&entry)));
        };
        take(own.front()?);
        match own.len() {
            // As when it is popped.
            1 => own.clear(),
            _ => drop(own.pop_front()),
        }
        Some(Ok(()))
    }

    /// Forgets all.
    pub fn clear(&mut self) {
        match &mut self.0 {
            Store::Own(own) => own.clear(),
            Store::Slots(slots) => (slots.head, slots.len) = (0, 0),
        }
    }

    /// Keeps the entries that `keep` is for, in their order.
    ///
    /// # Errors
    /// [`SlotLost`].
    pub fn retain(&mut self, keep: impl Fn(&T) -> bool) -> Result<(), SlotLost> {
        match &mut self.0 {
            Store::Own(own) => {
                own.retain(|entry| keep(entry));
                Ok(())
            }
            Store::Slots(slots) => {
                for _ in 0..slots.len {
                    match slots.pop_front() {
                        Some(Ok(entry)) if keep(&entry) => slots.push_back(&entry)?,
                        Some(Ok(_)) | None => {}
                        Some(Err(lost)) => return Err(lost),
                    }
                }
                Ok(())
            }
        }
    }

    /// Moves everything into `to`.
    ///
    /// # Errors
    /// [`SlotLost`].
    pub fn move_to(&mut self, mut to: Fifo<T>) -> Result<(), SlotLost> {
        while let Some(entry) = self.pop_front() {
            to.push_back(entry?)?;
        }
        *self = to;
        Ok(())
    }
}

impl Fifo<Completion> {
    /// The ring of a completion queue of `cqe` entries.
    ///
    /// # Errors
    /// [`Error::NoMemory`](crate::Error::NoMemory).
    pub fn of_cq(cqe: u32, memory: Option<QueueMemory>) -> HcaResult<Fifo<Completion>> {
        let places = places(cqe);
        match memory {
            Some(memory) => Fifo::in_memory(memory, whole_slot(COMPLETION_BYTES), places, 0),
            None => Fifo::own(places),
        }
    }
}

impl Fifo<RecvWr> {
    /// The requests of a receive queue.
    ///
    /// # Errors
    /// [`Error::NoMemory`](crate::Error::NoMemory).
    pub fn of_receives(
        max_wr: u32,
        max_sge: u32,
        memory: Option<QueueMemory>,
    ) -> HcaResult<Fifo<RecvWr>> {
        match memory {
            Some(memory) => Fifo::in_memory(memory, recv_slot(max_sge), max_wr as usize, max_sge),
            None => Fifo::own(max_wr as usize),
        }
    }
}

impl<T: Entry> Slots<T> {
    fn at(&self, index: usize) -> u64 {
        ((self.head + index) % self.places.max(1)) as u64 * self.slot_bytes
    }

    fn push_back(&mut self, entry: &T) -> Result<(), SlotLost> {
        self.scratch.clear();
        entry.encode(&mut self.scratch);
        if self.len >= self.places || self.scratch.len() as u64 > self.slot_bytes {
            return Err(SlotLost);
        }
        self.memory.write(self.at(self.len), &self.scratch).map_err(|_| SlotLost)?;
        self.len += 1;
        Ok(())
    }

    fn pop_front(&mut self) -> Option<Result<T, SlotLost>> {
        if self.len == 0 {
            return None;
        }
        self.scratch.resize(self.slot_bytes as usize, 0);
        let read = self.memory.read(self.at(0), &mut self.scratch);
        self.head = (self.head + 1) % self.places;
        self.len -= 1;
        Some(read.ok().and_then(|()| T::decode(&self.scratch, &self.lists)).ok_or(SlotLost))
    }
}
