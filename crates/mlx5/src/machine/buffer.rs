//! Queues in guest memory: pages of one size at any addresses, read and written as one run of
//! bytes.

use crate::machine::user_memory::UserMemory;
use std::sync::Arc;
use umem::{AccessError, DmaSpace};

/// A run of bytes over pages.
#[derive(Clone)]
pub(crate) struct Buffer {
    memory: Arc<dyn DmaSpace>,
    pages: Arc<[u64]>,
    page_shift: u32,
    /// Where its first byte is, from the first page on.
    offset: u64,
    /// The user memory that the pages are of, if they are.
    of: Option<Arc<UserMemory>>,
}

impl Buffer {
    /// `pages` as commands list them: addresses of pages of 2^`page_shift` bytes, 12 at least. The
    /// first byte is `offset` 64ths of a page into the first.
    pub(crate) fn new(
        memory: Arc<dyn DmaSpace>,
        pages: &[u64],
        page_shift: u32,
        offset: u64,
    ) -> Buffer {
        let pages = pages.iter().map(|page| page & !0xfff);
        let page_shift = page_shift.clamp(12, 63);
        let offset = (offset & 63) << (page_shift - 6);
        Buffer { memory, pages: pages.collect(), page_shift, offset, of: None }
    }

    /// The bytes from `offset` on of pages of `of`, which have a size of 2 to the power of the
    /// second.
    pub(crate) fn over(
        memory: Arc<dyn DmaSpace>,
        (pages, page_shift): (Arc<[u64]>, u32),
        offset: u64,
        of: Arc<UserMemory>,
    ) -> Buffer {
        Buffer { memory, pages, page_shift, offset, of: Some(of) }
    }

    /// Whether `len` bytes are there.
    pub(crate) fn holds(&self, len: u64) -> bool {
        let bytes = u128::from(self.pages.len() as u64) << self.page_shift;
        u128::from(self.offset) + u128::from(len) <= bytes
    }

    pub(crate) fn read(&self, at: u64, dst: &mut [u8]) -> Result<(), AccessError> {
        self.pieces(at, dst.len(), |addr, from, to| self.memory.read(addr, &mut dst[from..to]))
    }

    pub(crate) fn write(&self, at: u64, src: &[u8]) -> Result<(), AccessError> {
        if self.of.as_ref().is_some_and(|of| !of.is_writable()) {
            return Err(AccessError::Fault);
        }
        self.pieces(at, src.len(), |addr, from, to| self.memory.write(addr, &src[from..to]))
    }

    /// Calls `each(address, from, to)` for what of the `len` bytes lies in one page each.
    fn pieces(
        &self,
        at: u64,
        len: usize,
        mut each: impl FnMut(u64, usize, usize) -> Result<(), AccessError>,
    ) -> Result<(), AccessError> {
        let mut at = at.checked_add(self.offset).ok_or(AccessError::OutOfRange)?;
        let mut from = 0;
        while from < len {
            let page = usize::try_from(at >> self.page_shift).ok().and_then(|n| self.pages.get(n));
            let page = *page.ok_or(AccessError::OutOfRange)?;
            let within = at & ((1 << self.page_shift) - 1);
            let room = (1u64 << self.page_shift) - within;
            let piece = usize::try_from(room).map_or(len - from, |room| room.min(len - from));
            let addr = page.checked_add(within).ok_or(AccessError::OutOfRange)?;
            each(addr, from, from + piece)?;
            from += piece;
            at += piece as u64;
        }
        Ok(())
    }
}

/// A doorbell record: two big-endian counters that the driver keeps in its memory, of receives and
/// of sends for a work queue (PRM "Doorbell Record").
#[derive(Clone)]
pub(crate) struct DoorbellRecord(Words);

#[derive(Clone)]
enum Words {
    At(Arc<dyn DmaSpace>, u64),
    Within(Buffer),
}

impl DoorbellRecord {
    pub(crate) fn new(memory: Arc<dyn DmaSpace>, addr: u64) -> DoorbellRecord {
        DoorbellRecord(Words::At(memory, addr))
    }

    /// At the beginning of `words`.
    pub(crate) fn within(words: Buffer) -> DoorbellRecord {
        DoorbellRecord(Words::Within(words))
    }

    fn word(&self, at: u64) -> Result<u32, AccessError> {
        let mut bytes = [0; 4];
        match &self.0 {
            Words::At(memory, addr) => {
                memory.read(addr.checked_add(at).ok_or(AccessError::OutOfRange)?, &mut bytes)?;
            }
            Words::Within(words) => words.read(at, &mut bytes)?,
        }
        Ok(u32::from_be_bytes(bytes))
    }

    /// Receive requests posted, of a completion queue those consumed.
    pub(crate) fn first(&self) -> Result<u32, AccessError> {
        self.word(0)
    }

    /// Basic blocks of send requests posted.
    pub(crate) fn sends(&self) -> Result<u32, AccessError> {
        self.word(4)
    }
}
