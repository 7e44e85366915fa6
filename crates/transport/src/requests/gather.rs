//! The memory that a send request's list names: where its payload is read, or an answer lands.

use crate::executor::Arriving;
use crate::keys::{Alarm, KeyError, KeyTable, MemRef};
use crate::shelf::{Lent, Shelf};
use crate::values::{Access, PdId, Sge};
use std::ops::Range;
use umem::{AccessError, Fold, Sink, Source};

/// Stores of resolved lists.
pub(crate) type RangeShelf = Shelf<[MemRef; 2]>;

/// A resolved scatter/gather list, read or written mostly in order.
#[derive(Default)]
pub(crate) struct SgMemory {
    entries: Lent<[MemRef; 2]>,
    /// Entry of the last access and the offset at which it begins.
    entry: usize,
    begin: u64,
}

impl SgMemory {
    /// One entry.
    pub(crate) fn of(memory: MemRef) -> SgMemory {
        SgMemory { entries: [memory].into_iter().collect(), ..SgMemory::default() }
    }

    /// Bytes of all.
    pub(super) fn len(&self) -> u64 {
        self.entries.iter().map(MemRef::len).sum()
    }

    /// Has `alarm` set when the signature of a block fails its check.
    pub(crate) fn watch(&mut self, alarm: &Alarm) {
        self.entries.iter_mut().for_each(|memory| memory.watch(Some(alarm)));
    }

    /// Becomes the memory of `list`, of which every entry is checked once; entries of length 0 name
    /// no memory.
    ///
    /// # Errors
    /// Why an entry is refused, or [`KeyError::NoMemory`].
    pub(crate) fn resolve(
        &mut self,
        keys: &KeyTable,
        pd: PdId,
        list: &[Sge],
        access: Access,
        stores: &RangeShelf,
    ) -> Result<(), KeyError> {
        if !self.entries.is_empty() {
            *self = SgMemory::default();
        }
        if !self.entries.has_room(list.len()) {
            self.entries = stores.lend(list.len()).map_err(|_| KeyError::NoMemory)?;
        }
        for sge in list.iter().filter(|sge| sge.length > 0) {
            self.entries.push(keys.resolve(pd, sge.lkey, sge.addr, sge.length.into(), access)?);
        }
        Ok(())
    }

    fn for_each_part(
        &mut self,
        at: u64,
        len: usize,
        mut part: impl FnMut(&MemRef, u64, Range<usize>) -> Result<(), AccessError>,
    ) -> Result<(), AccessError> {
        if at < self.begin {
            self.entry = 0;
            self.begin = 0;
        }
        let mut done = 0;
        while done < len {
            let Some(memory) = self.entries.get(self.entry) else {
                return Err(AccessError::OutOfRange);
            };
            let within = at + done as u64 - self.begin;
            if within >= memory.len() {
                self.begin += memory.len();
                self.entry += 1;
                continue;
            }
            let here = usize::try_from(memory.len() - within).unwrap_or(usize::MAX).min(len - done);
            part(memory, within, done..done + here)?;
            done += here;
        }
        Ok(())
    }

    /// Whether some of it may be at these addresses of this process.
    pub(crate) fn may_lie_over(&self, range: &Range<u64>) -> bool {
        self.entries.iter().any(|memory| memory.may_lie_over(range))
    }

    /// Copies payload out; folds it on the way where it can, else `fold` is left off.
    pub(crate) fn read(
        &mut self,
        at: u64,
        dst: &mut [u8],
        fold: &mut Fold,
    ) -> Result<(), AccessError> {
        self.for_each_part(at, dst.len(), |memory, within, range| {
            memory.read_folding(within, &mut dst[range], fold)
        })
    }

    /// Places payload.
    pub(crate) fn place(&mut self, at: u64, bytes: Arriving<'_>) -> Result<(), AccessError> {
        self.for_each_part(at, bytes.bytes(), |memory, within, range| {
            bytes.place(range, memory, within)
        })
    }

    /// Has `each` read bytes where they are.
    pub(crate) fn read_in_place(
        &mut self,
        at: u64,
        len: usize,
        each: &mut dyn FnMut(Source<'_>) -> Result<(), AccessError>,
    ) -> Result<(), AccessError> {
        self.for_each_part(at, len, |memory, within, range| {
            memory.read_in_place(within, range.len(), each)
        })
    }

    /// Has `each` write bytes where they are.
    pub(crate) fn write_in_place(
        &mut self,
        at: u64,
        len: usize,
        each: &mut dyn FnMut(Sink<'_>) -> Result<(), AccessError>,
    ) -> Result<(), AccessError> {
        self.for_each_part(at, len, |memory, within, range| {
            memory.write_in_place(within, range.len(), each)
        })
    }
}
