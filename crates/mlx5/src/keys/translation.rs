//! What is behind a memory key over memory, by offset: the machine's addresses, or a list of pages.
//!
//! A translation is a [`DmaSpace`] of its own, whose addresses count from the key's first byte; so
//! the HCA knows nothing of page lists. It may change while the key is in use: an access finds the
//! old or the new list, entry by entry, as in hardware, and once an entry was changed nothing
//! reaches the page that it named. A page that a list says is not there, or not for writing, is a
//! page fault ([`AccessError::NotPresent`]).

use crate::layout::head::Status;
use crate::machine::budget::Budget;
use crate::machine::sparse::Sparse;
use engine_thread::{read, write};
use std::sync::{Arc, RwLock, RwLockReadGuard};
use umem::{AccessError, AtomicOp, DmaSpace, Fold};

/// Entries that are looked up ahead, so that a packet is copied at once where pages are neighbours.
const PACKET: u64 = 4096;
/// Bytes of an entry of the list (MTT).
pub(crate) const ENTRY_LEN: u64 = 8;
/// In an entry: what the page is there for.
const READABLE: u64 = 1;
const WRITABLE: u64 = 2;
const RIGHTS: u64 = READABLE | WRITABLE;
/// No page is there.
const ABSENT: u64 = 0;

/// Geometry and pages.
struct Layout {
    /// Where the key begins: its address, or of pages the offset in the first.
    start: u64,
    /// The same as a whole address, for reports of faults.
    iova: u64,
    /// The whole key, once it has a number.
    key: u32,
    /// Bytes of a page, as a logarithm.
    shift: u32,
    pages: Sparse<u64>,
}

/// Why a byte is not found.
enum Miss {
    Beyond,
    NotPresent,
}

impl Miss {
    /// The error of an access whose `len` bytes from `offset` on are not moved.
    fn told(self, layout: &Layout, offset: u64, len: usize) -> AccessError {
        match self {
            Miss::Beyond => AccessError::OutOfRange,
            Miss::NotPresent => AccessError::NotPresent {
                key: layout.key,
                len: u16::try_from(len).unwrap_or(u16::MAX),
                addr: layout.iova.wrapping_add(offset),
                below: false,
            },
        }
    }
}

/// A key's memory.
pub(crate) struct Translation {
    memory: Arc<dyn DmaSpace>,
    /// Entries that its list may have; none for a key of the machine's addresses.
    capacity: Option<u64>,
    layout: RwLock<Layout>,
}

impl Translation {
    /// The addresses of `memory`.
    pub(crate) fn physical(
        memory: Arc<dyn DmaSpace>,
        budget: &Arc<Budget>,
    ) -> Result<Translation, Status> {
        Translation::new(memory, None, budget)
    }

    /// Pages of `memory`, `capacity` at most.
    pub(crate) fn pages(
        memory: Arc<dyn DmaSpace>,
        capacity: u64,
        budget: &Arc<Budget>,
    ) -> Result<Translation, Status> {
        Translation::new(memory, Some(capacity), budget)
    }

    fn new(
        memory: Arc<dyn DmaSpace>,
        capacity: Option<u64>,
        budget: &Arc<Budget>,
    ) -> Result<Translation, Status> {
        let pages = Sparse::new(ABSENT, budget)?;
        let layout = Layout { start: 0, iova: 0, key: 0, shift: 12, pages };
        Ok(Translation { memory, capacity, layout: RwLock::new(layout) })
    }

    fn layout(&self) -> RwLockReadGuard<'_, Layout> {
        read(&self.layout)
    }

    /// Whether it has a list.
    pub(crate) fn has_pages(&self) -> bool {
        self.capacity.is_some()
    }

    /// The key begins at `start` from now on and has pages of 2^`shift` bytes.
    pub(crate) fn place(&self, start: u64, shift: u32) {
        let mut layout = write(&self.layout);
        layout.shift = shift;
        layout.iova = start;
        layout.start = match self.capacity {
            None => start,
            Some(_) => start & ((1 << shift) - 1),
        };
    }

    /// What the driver calls the key.
    pub(crate) fn name(&self, key: u32) {
        write(&self.layout).key = key;
    }

    /// Whether `len` bytes that begin at `start` fit into a full list.
    pub(crate) fn holds(&self, start: u64, len: u64, shift: u32) -> bool {
        self.capacity.is_none_or(|capacity| {
            let first = start & ((1 << shift) - 1);
            u128::from(first) + u128::from(len) <= u128::from(capacity) << shift
        })
    }

    /// Stores entries as commands and requests list them, from `first` on. With `checked` they say
    /// in their low bits what the page is there for. No access to the pages that were listed is in
    /// progress when it returns.
    ///
    /// # Errors
    /// [`Status::BadParameter`] beyond its end, [`Status::NoResources`].
    pub(crate) fn store(&self, first: u64, bytes: &[u8], checked: bool) -> Result<(), Status> {
        let Some(capacity) = self.capacity else {
            return if bytes.is_empty() { Ok(()) } else { Err(Status::BadParameter) };
        };
        let mut layout = write(&self.layout);
        for (index, entry) in (first..).zip(bytes.chunks_exact(ENTRY_LEN as usize)) {
            let page = crate::layout::bits::be64(entry, 0);
            let rights = if checked { page & RIGHTS } else { RIGHTS };
            let entry = if rights == 0 { ABSENT } else { page & !0xfff | rights };
            // Lists are padded to whole units, of which only zeros may stick out.
            if index < capacity {
                layout.pages.set(index, entry)?;
            } else if page != 0 {
                return Err(Status::BadParameter);
            }
        }
        Ok(())
    }

    /// The first entries as they are stored, `most` at most.
    pub(crate) fn entries(&self, most: u64) -> Vec<u8> {
        let layout = self.layout();
        let listed = 0..self.capacity.unwrap_or(0).min(most);
        listed.flat_map(|index| layout.pages.get(index).to_be_bytes()).collect()
    }

    /// Address of the byte at `offset`, and how many bytes follow it there at least.
    fn locate(&self, layout: &Layout, offset: u64, right: u64) -> Result<(u64, u64), Miss> {
        let at = offset.checked_add(layout.start).ok_or(Miss::Beyond)?;
        let Some(capacity) = self.capacity else { return Ok((at, u64::MAX)) };
        let mut index = at >> layout.shift;
        if index >= capacity {
            return Err(Miss::Beyond);
        }
        let page = |index| {
            let entry = layout.pages.get(index);
            (entry & right != 0).then_some(entry & !RIGHTS)
        };
        let first = page(index).ok_or(Miss::NotPresent)?;
        let size = 1u64 << layout.shift;
        let within = at & (size - 1);
        let mut room = size - within;
        let mut end = first.wrapping_add(size);
        while room < PACKET && page(index + 1) == Some(end) {
            room += size;
            index += 1;
            end = end.wrapping_add(size);
        }
        Ok((first.checked_add(within).ok_or(Miss::Beyond)?, room))
    }

    /// Calls `each` with the pages that an access falls into, which stay listed meanwhile.
    fn pieces(
        &self,
        offset: u64,
        len: usize,
        right: u64,
        mut each: impl FnMut(u64, usize, usize) -> Result<(), AccessError>,
    ) -> Result<(), AccessError> {
        let layout = self.layout();
        let mut from = 0;
        while from < len {
            let at = offset.checked_add(from as u64).ok_or(AccessError::OutOfRange)?;
            let located = self.locate(&layout, at, right);
            let (addr, room) = located.map_err(|miss| miss.told(&layout, at, len - from))?;
            let piece = usize::try_from(room).map_or(len - from, |room| room.min(len - from));
            each(addr, from, from + piece)?;
            from += piece;
        }
        Ok(())
    }
}

impl DmaSpace for Translation {
    fn read(&self, addr: u64, dst: &mut [u8]) -> Result<(), AccessError> {
        self.pieces(addr, dst.len(), READABLE, |at, from, to| {
            self.memory.read(at, &mut dst[from..to])
        })
    }

    fn read_folding(&self, addr: u64, dst: &mut [u8], fold: &mut Fold) -> Result<(), AccessError> {
        self.pieces(addr, dst.len(), READABLE, |at, from, to| {
            self.memory.read_folding(at, &mut dst[from..to], fold)
        })
    }

    fn write(&self, addr: u64, src: &[u8]) -> Result<(), AccessError> {
        self.pieces(addr, src.len(), WRITABLE, |at, from, to| self.memory.write(at, &src[from..to]))
    }

    fn atomic(&self, addr: u64, op: AtomicOp) -> Result<u64, AccessError> {
        let layout = self.layout();
        let located = self.locate(&layout, addr, WRITABLE);
        let (at, room) = located.map_err(|miss| miss.told(&layout, addr, 8))?;
        if room < 8 || !at.is_multiple_of(8) {
            return Err(AccessError::OutOfRange);
        }
        self.memory.atomic(at, op)
    }
}
