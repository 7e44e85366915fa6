//! The address translation cache of a function (Address Translation Services, PCIe Base 10): a
//! bounded number of translations of regions whose memory moves, kept from one access to the next.
//!
//! Without it an access to such a region asks the owner of the memory where its bytes are: the
//! mirror of an on-demand region, the place of a dma-buf. With it the owner is asked once per unit
//! (a page; 64 KiB of a dma-buf), and the answer is used until the owner takes it back: the mirror
//! before it waits for those inside, a dma-buf's attachment before the next access after a move. It
//! is allowed for regions with `IBV_ACCESS_RELAXED_ORDERING` on a function whose ATS is on
//! (`mlx5_umem_needs_ats`), since translated requests may overtake others.

pub(crate) mod pieces;
mod sabotage;
mod slot;

use slot::{Key, Missed, Slot};
use std::collections::TryReserveError;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Entries of a cache.
const ENTRIES: usize = 4096;
/// An entry's bits below the address: whether the memory may be written, and which way leads there.
const WRITABLE: u64 = 1;
const PAGE_BITS: u64 = 0xfff;

/// Bytes of a dma-buf's memory that one translation is for.
pub fn translation_unit() -> u64 {
    dmabuf::VRAM_PAGE.max(mm::page_size())
}

/// What happened in a cache.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Lookup {
    /// So many units were found.
    Hit(u64),
    /// So many were not, and the owner gave them.
    Miss(u64),
    /// The owner took so many back.
    Invalidated(u64),
}

/// Hears of what happens in a cache. It must not allocate, free or wait.
pub trait LookupWatcher: Send + Sync {
    /// Something happened.
    fn looked_up(&self, what: Lookup);
}

/// Translations of one function, of all its regions.
pub struct TranslationCache {
    slots: Box<[Slot]>,
    watcher: Box<dyn LookupWatcher>,
    regions: AtomicU64,
}

impl std::fmt::Debug for TranslationCache {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "TranslationCache {{ entries: {} }}", self.slots.len())
    }
}

impl TranslationCache {
    /// An empty cache.
    ///
    /// # Errors
    /// When the system has no memory for it.
    pub fn new(watcher: Box<dyn LookupWatcher>) -> Result<Arc<TranslationCache>, TryReserveError> {
        let mut slots = Vec::new();
        slots.try_reserve_exact(ENTRIES)?;
        slots.resize_with(ENTRIES, Slot::new);
        let slots = slots.into();
        Ok(Arc::new(TranslationCache { slots, watcher, regions: AtomicU64::new(0) }))
    }

    #[inline]
    fn slot(&self, key: Key) -> &Slot {
        // units that follow each other lie in places that do; regions begin anywhere
        let first = key.region.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        &self.slots[first.wrapping_add(key.unit) as usize % ENTRIES]
    }
}

/// Where a unit is: the address of its first byte, and the number of the way there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Located {
    pub(crate) addr: u64,
    pub(crate) number: u16,
    pub(crate) writable: bool,
}

impl Located {
    /// `None` if it does not fit.
    fn pack(self) -> Option<u64> {
        let low = u64::from(self.number) << 1 | u64::from(self.writable);
        (self.addr & PAGE_BITS == 0 && low <= PAGE_BITS).then_some(self.addr | low)
    }

    #[inline]
    fn unpack(word: u64) -> Located {
        Located {
            addr: word & !PAGE_BITS,
            number: (word & PAGE_BITS) as u16 >> 1,
            writable: word & WRITABLE != 0,
        }
    }
}

/// A region's share in a cache.
pub(crate) struct Translations {
    cache: Arc<TranslationCache>,
    region: u64,
    /// Added to an offset from the start of the region, gives whole units.
    origin: u64,
    unit_shift: u32,
}

impl Translations {
    /// For a region with units of `unit` bytes (a power of two); `origin` is the place of its first
    /// byte in its first unit.
    pub(crate) fn new(cache: &Arc<TranslationCache>, origin: u64, unit: u64) -> Translations {
        // numbers are not used again, so that nobody asks for what a region leaves behind
        let region = cache.regions.fetch_add(1, Relaxed);
        Translations { cache: cache.clone(), region, origin, unit_shift: unit.trailing_zeros() }
    }

    /// The unit that holds the byte at `offset`, and its place in there.
    #[inline]
    pub(crate) fn unit(&self, offset: u64) -> Option<(u64, u64)> {
        let at = offset.checked_add(self.origin)?;
        Some((at >> self.unit_shift, at & (self.unit_bytes() - 1)))
    }

    pub(crate) fn unit_bytes(&self) -> u64 {
        1 << self.unit_shift
    }

    /// Where a unit is, by the cache; otherwise what [`Translations::fill`] needs once the owner
    /// has been asked.
    #[inline]
    pub(crate) fn look(&self, unit: u64, write: bool) -> Result<Located, Missed> {
        let key = Key { region: self.region, unit };
        let need = if write { WRITABLE } else { 0 };
        self.cache.slot(key).look(key, need).map(Located::unpack)
    }

    /// Keeps the owner's answer, unless the owner took it back since the look.
    pub(crate) fn fill(&self, unit: u64, located: Located, missed: Missed) {
        let key = Key { region: self.region, unit };
        if let Some(word) = located.pack() {
            self.cache.slot(key).fill(key, word, missed);
        }
    }

    pub(crate) fn tell(&self, what: Lookup) {
        self.cache.watcher.looked_up(what);
    }

    /// The owner takes all back of a region of `len` bytes.
    pub(crate) fn invalidate_all(&self, len: u64) {
        let last = self.unit(len.saturating_sub(1)).map_or(u64::MAX, |(unit, _)| unit + 1);
        self.invalidate(0..last);
    }

    /// The owner takes units back: from here on nobody finds them, and what is found by those
    /// inside is theirs until they leave.
    pub(crate) fn invalidate(&self, units: Range<u64>) {
        if sabotage::is_on() {
            return;
        }
        // a longer range meets every place once
        let last = units.end.min(units.start.saturating_add(ENTRIES as u64));
        let dropped = (units.start..last)
            .filter(|&unit| {
                let slot = self.cache.slot(Key { region: self.region, unit });
                slot.invalidate(self.region, &units)
            })
            .count();
        if dropped > 0 {
            self.tell(Lookup::Invalidated(dropped as u64));
        }
    }
}

impl mm::TranslationCache for Translations {
    fn invalidate(&self, granules: Range<u64>) {
        Translations::invalidate(self, granules);
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
