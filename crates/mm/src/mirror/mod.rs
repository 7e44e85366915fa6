//! A range of an address space as a device sees it: which pages it may reach now, faults that bring
//! pages in, and invalidations that take them away before the memory goes (HMM's role,
//! `Documentation/mm/hmm.rst`).
//!
//! A page may also be in the memory of a device that shows it to peers. Whether this one reaches it
//! is decided page by page, when the page is mapped; one that is out of reach is brought to host
//! memory first.
//!
//! # The rule
//! A device touches memory only while [`Mirror::enter`] has let it in, which is so only if all
//! pages of the access are mapped. An invalidation first unmaps them and then waits for those
//! inside, so that nobody touches the range when it returns. A fault brings pages in without any
//! lock and maps them only if no invalidation of the same addresses began meanwhile
//! (`mmu_interval_read_begin`, `mmu_interval_read_retry`); while one is in progress, it waits a
//! moment for its end.
//!
//! # Turns
//! A program that changes its mappings without pause would win every time. So an access that has
//! lost insists ([`Turn`]): changes of its addresses that begin then wait for it, for two
//! milliseconds at most, so that nobody can wait for ever for a thread that waits for him.
//!
//! # Locking
//! `state` guards the decision to map. Under it nothing allocates, touches program memory, or waits
//! for those inside.

mod counts;
mod fault;
mod inside;
mod page_table;
mod ranges;
mod resident;
#[cfg(all(test, not(loom)))]
mod tests;

use crate::grace::Grace;
use crate::page_size;
use crate::space::Invalidate;
use crate::sparse::Sparse;
use counts::Tally;
use engine_thread::lock;
use page_table::{MOST, PageTable};
use ranges::MirrorState;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering::*};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

pub use counts::{Paging, PagingCounts, PagingWatcher};
pub use fault::{Prefetch, Turn};
pub use inside::Inside;
pub use resident::{Pages, ProcessPages};

/// How long an invalidation waits for an access that insists: longer than that waits, brings its
/// pages in and copies.
const COURTESY: Duration = Duration::from_millis(2);

/// Keeps what a mirror said about granules, numbered from the start of its range, beyond [`Inside`]
/// (a device's address translation cache).
pub trait TranslationCache: Send + Sync {
    /// Forgets granules that are mapped no more. Whoever goes inside after this returns must not
    /// find them; what those inside have found is theirs until they leave. As [`Invalidate`], it
    /// must not allocate, free or wait.
    fn invalidate(&self, granules: Range<u64>);
}

/// Whether a device is reached from the mirror's, and as what number below 4095
/// (`hmm_dma_map_pfn`).
pub type Reach = Box<dyn Fn(pcie::Address) -> Option<u16> + Send + Sync>;

/// Below the address of a page in another device's memory: the number that [`Reach`] gave, plus 1.
const NUMBER: u64 = 0xfff;

/// One mirrored range.
pub struct Mirror {
    source: Arc<dyn Pages>,
    range: Range<u64>,
    granule: u64,
    writable: bool,
    table: PageTable,
    /// Where mapped pages in other devices' memories are, by granule.
    peers: Sparse,
    reach: Reach,
    inside: Grace,
    /// [`MirrorState::sequence`] when [`Mirror::is_ready`] last said no; 0 = it said yes.
    refused: AtomicU64,
    state: Mutex<MirrorState>,
    ended: Condvar,
    tally: Tally,
    cache: OnceLock<Arc<dyn TranslationCache>>,
}

impl Mirror {
    /// Mirrors `range` of `source` in granules of `granule` bytes (a power of two, at least a
    /// page), none mapped. Pages are asked for writing if `writable`, even for an access that
    /// reads, as `ib_umem_odp_map_dma_and_lock` does.
    pub fn new(
        source: Arc<dyn Pages>,
        range: &Range<u64>,
        granule: u64,
        writable: bool,
        reach: Reach,
    ) -> Arc<Mirror> {
        let granule = granule.max(page_size()).next_power_of_two();
        let start = range.start & !(granule - 1);
        let most = MOST.saturating_mul(granule);
        let end = range.end.min(start.saturating_add(most));
        let end = end.checked_next_multiple_of(granule).unwrap_or(!(granule - 1));
        Arc::new(Mirror {
            source,
            range: start..end,
            granule,
            writable,
            table: PageTable::new((end - start) / granule),
            peers: Sparse::new(),
            reach,
            inside: Grace::new(),
            refused: AtomicU64::new(0),
            state: Mutex::new(MirrorState::new()),
            ended: Condvar::new(),
            tally: Tally::default(),
            cache: OnceLock::new(),
        })
    }

    /// The mirrored addresses, widened to granules.
    pub fn range(&self) -> Range<u64> {
        self.range.clone()
    }

    /// Goes inside. What [`Inside::covers`] says holds until the guard is dropped.
    #[inline]
    pub fn enter(&self) -> Inside<'_> {
        Inside { mirror: self, phase: self.inside.enter() }
    }

    /// Whether the pages of `range` are mapped, or a fault could soon bring them in: no change of
    /// their addresses is in progress that was when this was last asked in vain. Of many short ones
    /// each is waited for.
    pub fn is_ready(&self, range: &Range<u64>, write: bool) -> bool {
        self.enter().covers(range, write) || {
            let state = self.lock();
            let refused = if state.busy(range) { state.sequence } else { 0 };
            let before = self.refused.swap(refused, Relaxed);
            refused == 0 || before != 0 && before != refused
        }
    }

    /// Unmaps `range`, which turned out to be gone although nobody had said so: protection was
    /// changed, a file truncated, or memory unmapped past the interposed calls.
    pub fn found_gone(&self, range: &Range<u64>) {
        if let Some(range) = self.align(range) {
            self.take_away(&range, false);
            self.invalidated(range);
        }
    }

    /// What happened so far.
    pub fn counts(&self) -> PagingCounts {
        self.tally.counts()
    }

    /// Reports to `watcher` what happens from now on. At most one; returns whether it was taken.
    pub fn watch(&self, watcher: Arc<dyn PagingWatcher>) -> bool {
        self.tally.watch(watcher)
    }

    /// Has `cache` told which granules are unmapped. At most one; returns whether it was taken.
    pub fn cache(&self, cache: Arc<dyn TranslationCache>) -> bool {
        self.cache.set(cache).is_ok()
    }

    /// Bytes of a granule.
    pub fn granule(&self) -> u64 {
        self.granule
    }

    /// `range` widened to granules; `None` if it is empty or leaves the mirror.
    #[inline]
    fn align(&self, range: &Range<u64>) -> Option<Range<u64>> {
        let mask = self.granule - 1;
        let start = range.start & !mask;
        let end = range.end.checked_add(mask)? & !mask;
        (start < end && start >= self.range.start && end <= self.range.end).then_some(start..end)
    }

    /// The granules that `range` touches, counted from the start.
    #[inline]
    fn pages(&self, range: &Range<u64>) -> Option<Range<u64>> {
        let range = self.align(range)?;
        let shift = self.granule.trailing_zeros();
        let first = self.range.start;
        Some((range.start - first) >> shift..(range.end - first) >> shift)
    }

    /// Under the lock, so that who finds pages unmapped already may rely on it that no cache has
    /// them.
    fn zap(&self, pages: &Range<u64>) -> u64 {
        let zapped = self.table.zap(pages);
        if zapped > 0
            && let Some(cache) = self.cache.get()
        {
            cache.invalidate(pages.clone());
        }
        zapped
    }

    /// The granules of the part of `range` that is mirrored.
    fn inner(&self, range: &Range<u64>) -> Option<Range<u64>> {
        self.pages(&(range.start.max(self.range.start)..range.end.min(self.range.end)))
    }

    fn lock(&self) -> MutexGuard<'_, MirrorState> {
        lock(&self.state)
    }

    /// Begins an invalidation; a courteous one waits for who insists first.
    fn take_away(&self, range: &Range<u64>, courteous: bool) {
        let zapped = {
            let mut state = self.lock();
            if courteous && state.turns.overlaps(range) {
                let insists = |state: &mut MirrorState| state.turns.overlaps(range);
                let waited = self.ended.wait_timeout_while(state, COURTESY, insists);
                state = waited.unwrap_or_else(PoisonError::into_inner).0;
            }
            state.begin(range);
            self.inner(range).map_or(0, |pages| self.zap(&pages))
        };
        self.inside.wait();
        if let Some(pages) = self.inner(range) {
            // not before nobody can be about to look; no page is mapped here until the end of the
            // change
            self.peers.each(&pages, |_, word| word.store(0, SeqCst));
        }
        if zapped > 0 {
            self.tally.add(Paging::Invalidated(zapped));
        }
    }
}

impl Invalidate for Mirror {
    fn invalidate(&self, range: Range<u64>) {
        self.take_away(&range, true);
    }

    fn invalidated(&self, range: Range<u64>) {
        self.lock().end(&range);
        self.ended.notify_all();
    }

    fn moving(&self, range: Range<u64>) {
        // who insists may be waiting for just this move
        self.take_away(&range, false);
    }

    fn moved(&self, range: Range<u64>) {
        self.invalidated(range);
    }
}
