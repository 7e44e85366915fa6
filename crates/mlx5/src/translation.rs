//! What is behind a memory key, by offset: pages of guest memory, or parts of other keys.
//!
//! A translation is a [`DmaSpace`] of its own, whose addresses count from the key's first byte; so the HCA knows nothing of page
//! lists. It may change while the key is in use: an access finds the old or the new list, entry by entry, as in hardware.

use hca::Access;
use hca::Device;
use hca::key::{MemRef, PdId};
use std::cell::Cell;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, Weak};
use umem::{AccessError, AtomicOp, DmaSpace};

/// Most entries of a list: 4 GiB in pages of 4 KiB.
pub(crate) const MAX_ENTRIES: u64 = 1 << 20;
/// Entries that are stored together.
const CHUNK: usize = 512;
/// Entries that are looked up ahead, so that a packet is copied at once where pages are neighbours.
const PACKET: u64 = 4096;
/// Keys that may stand behind each other.
const MAX_DEPTH: u32 = 4;

/// How a key finds its memory (`MLX5_MKC_ACCESS_MODE_*`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Mode {
    /// The machine's addresses.
    Physical,
    /// A list of pages (MTT), 8 bytes an entry.
    Pages,
    /// A list of parts of other keys (KLM), 16 bytes an entry.
    Keys,
}

impl Mode {
    /// Bytes of an entry of its list.
    pub(crate) fn entry_len(self) -> u64 {
        match self {
            Mode::Physical => 0,
            Mode::Pages => 8,
            Mode::Keys => 16,
        }
    }
}

/// Entries in chunks, of which only those that were written are there.
#[derive(Default)]
struct List<T>(Vec<Option<Box<[T]>>>);

impl<T: Copy> List<T> {
    fn get(&self, index: u64) -> Option<T> {
        let index = usize::try_from(index).ok()?;
        self.0.get(index / CHUNK)?.as_ref()?.get(index % CHUNK).copied()
    }

    /// `index` is below [`MAX_ENTRIES`].
    fn set(&mut self, index: u64, entry: T, absent: T) {
        let index = index as usize;
        if self.0.len() <= index / CHUNK {
            self.0.resize_with(index / CHUNK + 1, || None);
        }
        let chunk = self.0[index / CHUNK].get_or_insert_with(|| vec![absent; CHUNK].into());
        chunk[index % CHUNK] = entry;
    }
}

/// A part of another key.
#[derive(Clone, Copy, Default)]
struct Part {
    len: u32,
    key: u32,
    addr: u64,
}

/// No page is there.
const ABSENT: u64 = u64::MAX;

/// Geometry and lists.
struct Layout {
    /// Where the key begins: of physical ones its address, of pages the offset in the first.
    start: u64,
    /// Bytes of a page, as a logarithm.
    shift: u32,
    pages: List<u64>,
    parts: List<Part>,
}

/// A key's memory.
pub(crate) struct Translation {
    memory: Arc<dyn DmaSpace>,
    hca: Weak<Device>,
    mode: Mode,
    /// Entries that its list may have.
    capacity: u64,
    layout: RwLock<Layout>,
    /// The domain of the keys behind it.
    pd: RwLock<PdId>,
}

/// An entry lies beyond the list.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("beyond the end of the translation")]
pub(crate) struct Beyond;

impl Translation {
    pub(crate) fn new(
        memory: Arc<dyn DmaSpace>,
        hca: Weak<Device>,
        mode: Mode,
        capacity: u64,
        pd: PdId,
    ) -> Translation {
        let layout = Layout { start: 0, shift: 12, pages: List::default(), parts: List::default() };
        let capacity = capacity.min(MAX_ENTRIES);
        let (layout, pd) = (RwLock::new(layout), RwLock::new(pd));
        Translation { memory, hca, mode, capacity, layout, pd }
    }

    pub(crate) fn mode(&self) -> Mode {
        self.mode
    }

    fn layout(&self) -> RwLockReadGuard<'_, Layout> {
        self.layout.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// The key begins at `start` from now on, has pages of 2^`shift` bytes and is of domain `pd`.
    pub(crate) fn place(&self, start: u64, shift: u32, pd: PdId) {
        *self.pd.write().unwrap_or_else(PoisonError::into_inner) = pd;
        let mut layout = self.layout.write().unwrap_or_else(PoisonError::into_inner);
        layout.shift = shift;
        layout.start = match self.mode {
            Mode::Physical => start,
            Mode::Pages => start & ((1 << shift) - 1),
            Mode::Keys => 0,
        };
    }

    /// Bytes that all entries together could have.
    pub(crate) fn room(&self, shift: u32) -> u128 {
        match self.mode {
            Mode::Physical => u128::MAX,
            Mode::Pages => u128::from(self.capacity) << shift,
            Mode::Keys => u128::from(self.capacity) << 32,
        }
    }

    /// Stores entries as commands and requests list them, from `first` on. With `checked`, entries of pages say in their low
    /// bits whether the page is there.
    pub(crate) fn store(&self, first: u64, bytes: &[u8], checked: bool) -> Result<(), Beyond> {
        let Ok(len) = usize::try_from(self.mode.entry_len()) else { return Err(Beyond) };
        if len == 0 {
            return if bytes.is_empty() { Ok(()) } else { Err(Beyond) };
        }
        let mut layout = self.layout.write().unwrap_or_else(PoisonError::into_inner);
        for (index, entry) in (first..).zip(bytes.chunks_exact(len)) {
            if index >= self.capacity {
                // Lists are padded to whole units, of which only zeros may stick out.
                if entry.iter().all(|byte| *byte == 0) {
                    continue;
                }
                return Err(Beyond);
            }
            match entry {
                [a, b, c, d, e, f, g, h] => {
                    let page = u64::from_be_bytes([*a, *b, *c, *d, *e, *f, *g, *h]);
                    let there = !checked || page & 3 != 0;
                    layout.pages.set(index, if there { page & !0xfff } else { ABSENT }, ABSENT);
                }
                entry => {
                    let part = Part {
                        len: crate::bits::be32(entry, 0),
                        key: crate::bits::be32(entry, 4),
                        addr: crate::bits::be64(entry, 8),
                    };
                    layout.parts.set(index, part, Part::default());
                }
            }
        }
        Ok(())
    }

    /// Address of the byte at `offset`, and how many bytes follow it there at least.
    fn locate(&self, offset: u64) -> Result<(u64, u64), AccessError> {
        let layout = self.layout();
        let at = offset.checked_add(layout.start).ok_or(AccessError::OutOfRange)?;
        if self.mode == Mode::Physical {
            return Ok((at, u64::MAX));
        }
        let mut index = at >> layout.shift;
        let page = |index| layout.pages.get(index).filter(|page| *page != ABSENT);
        let first = page(index).ok_or(AccessError::Fault)?;
        let size = 1u64 << layout.shift;
        let within = at & (size - 1);
        let mut room = size - within;
        let mut end = first.wrapping_add(size);
        while room < PACKET && page(index + 1) == Some(end) {
            room += size;
            index += 1;
            end = end.wrapping_add(size);
        }
        Ok((first.checked_add(within).ok_or(AccessError::OutOfRange)?, room))
    }

    /// The part that holds the byte at `offset`: what is behind it from there on.
    fn part(&self, offset: u64, access: Access) -> Result<MemRef, AccessError> {
        let (mut begin, mut index) = (0u64, 0);
        let part = loop {
            let part = self.layout().parts.get(index).ok_or(AccessError::OutOfRange)?;
            let end = begin.saturating_add(part.len.into());
            if offset < end {
                break part;
            }
            begin = end;
            index += 1;
        };
        let within = offset - begin;
        let addr = part.addr.checked_add(within).ok_or(AccessError::OutOfRange)?;
        let hca = self.hca.upgrade().ok_or(AccessError::Revoked)?;
        let pd = *self.pd.read().unwrap_or_else(PoisonError::into_inner);
        let len = u64::from(part.len) - within;
        hca.keys().resolve(pd, part.key, addr, len, access).map_err(|_| AccessError::Revoked)
    }

    fn pieces(
        &self,
        offset: u64,
        len: usize,
        mut each: impl FnMut(u64, usize, usize) -> Result<(), AccessError>,
    ) -> Result<(), AccessError> {
        let mut from = 0;
        while from < len {
            let at = offset.checked_add(from as u64).ok_or(AccessError::OutOfRange)?;
            let (addr, room) = self.locate(at)?;
            let piece = usize::try_from(room).map_or(len - from, |room| room.min(len - from));
            each(addr, from, from + piece)?;
            from += piece;
        }
        Ok(())
    }

    /// As [`Translation::pieces`] for parts of other keys.
    fn parts(
        &self,
        offset: u64,
        len: usize,
        access: Access,
        mut each: impl FnMut(&MemRef, usize, usize) -> Result<(), AccessError>,
    ) -> Result<(), AccessError> {
        let _deeper = Depth::enter()?;
        let mut from = 0;
        while from < len {
            let at = offset.checked_add(from as u64).ok_or(AccessError::OutOfRange)?;
            let memory = self.part(at, access)?;
            let room = usize::try_from(memory.len()).unwrap_or(usize::MAX);
            let piece = room.min(len - from);
            each(&memory, from, from + piece)?;
            from += piece;
        }
        Ok(())
    }
}

thread_local! {
    static DEPTH: Cell<u32> = const { Cell::new(0) };
}

/// One key behind another; a guest may have them stand in a circle.
struct Depth;

impl Depth {
    fn enter() -> Result<Depth, AccessError> {
        let depth = DEPTH.get();
        if depth >= MAX_DEPTH {
            return Err(AccessError::OutOfRange);
        }
        DEPTH.set(depth + 1);
        Ok(Depth)
    }
}

impl Drop for Depth {
    fn drop(&mut self) {
        DEPTH.set(DEPTH.get() - 1);
    }
}

impl DmaSpace for Translation {
    fn read(&self, addr: u64, dst: &mut [u8]) -> Result<(), AccessError> {
        if self.mode == Mode::Keys {
            return self.parts(addr, dst.len(), Access::empty(), |memory, from, to| {
                memory.read(0, &mut dst[from..to])
            });
        }
        self.pieces(addr, dst.len(), |at, from, to| self.memory.read(at, &mut dst[from..to]))
    }

    fn write(&self, addr: u64, src: &[u8]) -> Result<(), AccessError> {
        if self.mode == Mode::Keys {
            return self.parts(addr, src.len(), Access::LOCAL_WRITE, |memory, from, to| {
                memory.write(0, &src[from..to])
            });
        }
        self.pieces(addr, src.len(), |at, from, to| self.memory.write(at, &src[from..to]))
    }

    fn atomic(&self, addr: u64, op: AtomicOp) -> Result<u64, AccessError> {
        if self.mode == Mode::Keys {
            let _deeper = Depth::enter()?;
            return self.part(addr, Access::LOCAL_WRITE)?.atomic(op);
        }
        let (at, room) = self.locate(addr)?;
        if room < 8 || !at.is_multiple_of(8) {
            return Err(AccessError::OutOfRange);
        }
        self.memory.atomic(at, op)
    }
}
