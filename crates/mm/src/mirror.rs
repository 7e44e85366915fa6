//! A range of an address space as a device sees it: which pages it may reach now, faults that bring pages in, and
//! invalidations that take them away before the memory goes (HMM's role, `Documentation/mm/hmm.rst`).
//!
//! A page may also be in the memory of a device that shows it to peers. Whether this one reaches it is decided page by page, when
//! the page is mapped; one that is out of reach is brought to host memory first.
//!
//! # The rule
//! A device touches memory only while [`Mirror::enter`] has let it in, which is so only if all pages of the access are mapped. An
//! invalidation first unmaps them and then waits for those inside, so that nobody touches the range when it returns. A fault
//! brings pages in without any lock and maps them only if no invalidation of the same addresses began meanwhile
//! (`mmu_interval_read_begin`, `mmu_interval_read_retry`); while one is in progress, it waits a moment for its end.
//!
//! # Turns
//! A program that changes its mappings without pause would win every time. So an access that has lost insists ([`Turn`]): changes
//! of its addresses that begin then wait for it, for two milliseconds at most, so that nobody can wait for ever for a thread that
//! waits for him.
//!
//! # Locking
//! `state` guards the decision to map. Under it nothing allocates, touches program memory, or waits for those inside.

use crate::grace::{Grace, Phase};
use crate::guard::Fault;
use crate::pages::{MOST, PageTable};
use crate::private::DevicePage;
use crate::resident::Pages;
use crate::space::{Invalidate, page_size};
use crate::sparse::Sparse;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering::*};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// Bytes after a fault that are brought in with it, if the same operation will touch them.
const AHEAD: u64 = 256 << 10;
/// Times that a fault may lose to invalidations of its addresses before it is given up for now.
const TRIES: u32 = 8;
/// How long a fault waits for invalidations in progress.
const PATIENCE: Duration = Duration::from_micros(500);
/// How long an invalidation waits for an access that insists: longer than that waits, brings its pages in and copies.
const COURTESY: Duration = Duration::from_millis(2);
/// Invalidations that are told apart by their range: in progress, and recent ones.
const RANGES: usize = 16;
/// Bytes of a snapshot that are mapped at a time.
const SNAPSHOT: u64 = 64 << 20;
/// Bytes from the start of a range that a snapshot looks at: what lies beyond is faulted in when it is touched.
const SNAPSHOT_MOST: u64 = 16 << 30;

/// What happened to the pages of a mirror, in the terms of `rdma statistic show mr`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Paging {
    /// A fault mapped so many pages (`page_faults`, and one `page_faults_handled`).
    Faulted(u64),
    /// An invalidation unmapped so many pages (`page_invalidations`, and one `page_invalidations_handled`).
    Invalidated(u64),
    /// Advice mapped so many pages (`page_prefetch`).
    Prefetched(u64),
    /// So many pages were mapped where they are, in the memory of another device (`page_peer_mapped`).
    PeerMapped(u64),
    /// So many pages in the memory of another device could not be reached there and were brought to host memory
    /// (`page_peer_fallback`).
    PeerFallback(u64),
}

/// Told what happens to the pages of a mirror, under no lock. As [`Invalidate`], it must not allocate, free or wait.
pub trait PagingWatcher: Send + Sync {
    /// Something happened.
    fn paged(&self, what: Paging);
}

/// Keeps what a mirror said about granules, numbered from the start of its range, beyond [`Inside`] (a device's address translation
/// cache).
pub trait TranslationCache: Send + Sync {
    /// Forgets granules that are mapped no more. Whoever goes inside after this returns must not find them; what those inside
    /// have found is theirs until they leave. As [`Invalidate`], it must not allocate, free or wait.
    fn invalidate(&self, granules: Range<u64>);
}

/// Counts of a mirror; the names are those of `rdma statistic show mr`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PagingCounts {
    /// Pages that faults mapped.
    pub page_faults: u64,
    /// Faults.
    pub page_faults_handled: u64,
    /// Pages that invalidations unmapped.
    pub page_invalidations: u64,
    /// Invalidations that unmapped any.
    pub page_invalidations_handled: u64,
    /// Pages that advice mapped.
    pub page_prefetch: u64,
    /// Pages that were mapped in the memory of another device.
    pub page_peer_mapped: u64,
    /// Pages that had to be brought to host memory instead.
    pub page_peer_fallback: u64,
}

/// Whether a device is reached from the mirror's, and as what number below 4095 (`hmm_dma_map_pfn`).
pub type Reach = Box<dyn Fn(pcie::Address) -> Option<u16> + Send + Sync>;

/// Below the address of a page in another device's memory: the number that [`Reach`] gave, plus 1.
const NUMBER: u64 = 0xfff;

/// How pages are to be brought in ahead of their use (`enum ib_uverbs_advise_mr_advice`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Prefetch {
    /// For reading.
    Read,
    /// For writing.
    Write,
    /// Only those that are there already.
    NoFault,
}

/// Addresses of invalidations, in a fixed place so that nothing allocates.
struct Ranges {
    at: [(u64, u64); RANGES],
    used: usize,
}

impl Ranges {
    const fn new() -> Ranges {
        Ranges { at: [(0, 0); RANGES], used: 0 }
    }

    /// `false` when full.
    fn add(&mut self, range: &Range<u64>) -> bool {
        let room = self.used < RANGES;
        if room {
            self.at[self.used] = (range.start, range.end);
            self.used += 1;
        }
        room
    }

    /// `false` when it was not there.
    fn remove(&mut self, range: &Range<u64>) -> bool {
        let place = self.at[..self.used].iter().position(|&at| at == (range.start, range.end));
        if let Some(place) = place {
            self.used -= 1;
            self.at[place] = self.at[self.used];
        }
        place.is_some()
    }

    fn overlaps(&self, range: &Range<u64>) -> bool {
        self.at[..self.used].iter().any(|&(start, end)| start < range.end && end > range.start)
    }
}

struct State {
    /// Invalidations begun.
    sequence: u64,
    /// The latest of them: that of number `n` at place `n % RANGES`.
    recent: [(u64, u64); RANGES],
    /// Those in progress, and how many more there are that found no place.
    active: Ranges,
    unplaced: u32,
    /// Accesses that insist.
    turns: Ranges,
}

impl State {
    fn busy(&self, range: &Range<u64>) -> bool {
        self.unplaced > 0 || self.active.overlaps(range)
    }

    /// Whether an invalidation of `range` may have begun since number `since`.
    fn changed(&self, range: &Range<u64>, since: u64) -> bool {
        if self.sequence - since > RANGES as u64 {
            return true;
        }
        (since..self.sequence).any(|number| {
            let (start, end) = self.recent[number as usize % RANGES];
            start < range.end && end > range.start
        })
    }
}

/// One mirrored range.
pub struct Mirror {
    source: Arc<dyn Pages>,
    range: Range<u64>,
    granule: u64,
    writable: bool,
    table: PageTable,
    /// Of mapped pages in other devices' memories, by granule: where.
    peers: Sparse,
    reach: Reach,
    inside: Grace,
    /// [`State::sequence`] when [`Mirror::is_ready`] last said no; 0 = it said yes.
    refused: AtomicU64,
    state: Mutex<State>,
    ended: Condvar,
    counts: [AtomicU64; 7],
    watcher: OnceLock<Arc<dyn PagingWatcher>>,
    cache: OnceLock<Arc<dyn TranslationCache>>,
}

/// An access to a range: its faults, and once it insists a moment without invalidations of the range.
pub struct Turn<'a> {
    mirror: &'a Mirror,
    range: Range<u64>,
    /// It stands among [`State::turns`].
    placed: bool,
}

impl Turn<'_> {
    /// From now on until this is dropped changes of the range wait for a moment before they begin.
    pub fn insist(&mut self) {
        let mut state = self.mirror.lock();
        self.place(&mut state);
    }

    fn place(&mut self, state: &mut State) {
        if !self.placed {
            self.placed = state.turns.add(&self.range);
        }
    }

    /// Brings in all of the range, and if it can up to `ahead` bytes after it. `false`: changes of it go on; the access is to come
    /// again.
    ///
    /// # Errors
    /// Part of the range is outside, not mapped, or not for this access.
    pub fn fault(&mut self, ahead: u64) -> Result<bool, Fault> {
        let mirror = self.mirror;
        let need = mirror.align(&self.range).ok_or(Fault)?;
        let upto = self.range.end.saturating_add(ahead.min(AHEAD)).min(mirror.range.end);
        let more = mirror.align(&(need.start..upto)).filter(|more| *more != need);
        let whole = more.and_then(|more| mirror.bring_at_once(&more));
        let brought = match whole {
            Some(pages) => Some(pages),
            None => mirror.bring(&need, mirror.writable, self, Some(PATIENCE))?,
        };
        if let Some(pages) = brought {
            mirror.tell(Paging::Faulted(pages));
        }
        Ok(brought.is_some())
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        if self.placed {
            self.mirror.lock().turns.remove(&self.range);
            self.mirror.ended.notify_all();
        }
    }
}

/// A device inside; the pages it asked for stay until this is dropped. Meanwhile the thread must not allocate, free or wait.
pub struct Inside<'a> {
    mirror: &'a Mirror,
    phase: Phase,
}

impl Inside<'_> {
    /// Whether all pages of `range` are mapped, for writing if `write`. They stay so while this lives.
    #[inline]
    pub fn covers(&self, range: &Range<u64>, write: bool) -> bool {
        self.mirror.pages(range).is_some_and(|pages| self.mirror.table.covers(&pages, write))
    }

    /// Whether any page of a covered range is in another device's memory.
    #[inline]
    pub fn has_peers(&self, range: &Range<u64>) -> bool {
        !self.mirror.peers.is_unused() && self.finds_peers(range)
    }

    fn finds_peers(&self, range: &Range<u64>) -> bool {
        let pages = self.mirror.pages(range).unwrap_or(0..0);
        let mut any = false;
        self.mirror.peers.each(&pages, |_, _| any = true);
        any
    }

    /// Where a covered address is: the number of a peer and the address there; `None` for host memory.
    pub fn peer(&self, addr: u64) -> Option<(u16, u64)> {
        let mirror = self.mirror;
        let granule = addr.checked_sub(mirror.range.start)? >> mirror.granule.trailing_zeros();
        let word = mirror.peers.get(granule);
        let number = u16::try_from(word & NUMBER).ok()?.checked_sub(1)?;
        Some((number, (word & !NUMBER) + addr % page_size()))
    }
}

impl Drop for Inside<'_> {
    #[inline]
    fn drop(&mut self) {
        self.mirror.inside.leave(self.phase);
    }
}

impl Mirror {
    /// Mirrors `range` of `source` in granules of `granule` bytes (a power of two, at least a page), none mapped. Pages are asked
    /// for writing if `writable`, even for an access that reads, as `ib_umem_odp_map_dma_and_lock` does.
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
            state: Mutex::new(State {
                sequence: 0,
                recent: [(0, 0); RANGES],
                active: Ranges::new(),
                unplaced: 0,
                turns: Ranges::new(),
            }),
            ended: Condvar::new(),
            counts: Default::default(),
            watcher: OnceLock::new(),
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

    /// Whether the pages of `range` are mapped, or a fault could soon bring them in: no change of their addresses is in progress
    /// that was when this was last asked in vain. Of many short ones each is waited for.
    pub fn is_ready(&self, range: &Range<u64>, write: bool) -> bool {
        self.enter().covers(range, write) || {
            let state = self.lock();
            let refused = if state.busy(range) { state.sequence } else { 0 };
            let before = self.refused.swap(refused, Relaxed);
            refused == 0 || before != 0 && before != refused
        }
    }

    /// Begins an access to `range`.
    pub fn turn(&self, range: &Range<u64>) -> Turn<'_> {
        Turn { mirror: self, range: range.clone(), placed: false }
    }

    /// [`Turn::fault`] of an access that never insists.
    ///
    /// # Errors
    /// As there.
    pub fn fault(&self, range: &Range<u64>, ahead: u64) -> Result<bool, Fault> {
        self.turn(range).fault(ahead)
    }

    /// Brings `range` in ahead of its use.
    ///
    /// # Errors
    /// As [`Mirror::fault`]; never for [`Prefetch::NoFault`] inside the range.
    pub fn prefetch(&self, range: &Range<u64>, how: Prefetch) -> Result<(), Fault> {
        let need = self.align(range).ok_or(Fault)?;
        let pages = match how {
            Prefetch::NoFault => self.take_resident(&need),
            Prefetch::Read | Prefetch::Write => {
                let (mut turn, write) = (self.turn(&need), how == Prefetch::Write);
                self.bring(&need, write, &mut turn, None)?.ok_or(Fault)?
            }
        };
        self.tell(Paging::Prefetched(pages));
        Ok(())
    }

    /// Maps for reading what is there now and brings nothing in: how a registration begins. Counted as nothing.
    pub fn snapshot(&self) {
        let end = self.range.end.min(self.range.start.saturating_add(SNAPSHOT_MOST));
        self.take_resident(&(self.range.start..end));
    }

    /// Unmaps `range`, which turned out to be gone although nobody had said so: protection was changed, a file truncated, or memory
    /// unmapped past the interposed calls.
    pub fn found_gone(&self, range: &Range<u64>) {
        if let Some(range) = self.align(range) {
            self.take_away(&range, false);
            self.invalidated(range);
        }
    }

    /// What happened so far.
    pub fn counts(&self) -> PagingCounts {
        let [
            faults,
            faults_handled,
            invalidations,
            invalidations_handled,
            prefetch,
            peer,
            fallback,
        ] = [0, 1, 2, 3, 4, 5, 6].map(|place: usize| self.counts[place].load(Relaxed));
        PagingCounts {
            page_faults: faults,
            page_faults_handled: faults_handled,
            page_invalidations: invalidations,
            page_invalidations_handled: invalidations_handled,
            page_prefetch: prefetch,
            page_peer_mapped: peer,
            page_peer_fallback: fallback,
        }
    }

    /// Asks for `watcher` to be told what happens from now on. At most one; returns whether it was taken.
    pub fn watch(&self, watcher: Arc<dyn PagingWatcher>) -> bool {
        self.watcher.set(watcher).is_ok()
    }

    /// Has `cache` told which granules are unmapped. At most one; returns whether it was taken.
    pub fn cache(&self, cache: Arc<dyn TranslationCache>) -> bool {
        self.cache.set(cache).is_ok()
    }

    /// Bytes of a granule.
    pub fn granule(&self) -> u64 {
        self.granule
    }

    fn tell(&self, what: Paging) {
        let (place, events, pages) = match what {
            Paging::Faulted(pages) => (0, Some(1), pages),
            Paging::Invalidated(pages) => (2, Some(3), pages),
            Paging::Prefetched(pages) => (4, None, pages),
            Paging::PeerMapped(pages) => (5, None, pages),
            Paging::PeerFallback(pages) => (6, None, pages),
        };
        self.counts[place].fetch_add(pages, Relaxed);
        if let Some(place) = events {
            self.counts[place].fetch_add(1, Relaxed);
        }
        if let Some(watcher) = self.watcher.get() {
            watcher.paged(what);
        }
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

    /// Faults `range` in and maps it, unless changes of it are in progress for `patience`. Gives the number of pages that could not
    /// be reached so before.
    fn bring(
        &self,
        range: &Range<u64>,
        write: bool,
        turn: &mut Turn<'_>,
        patience: Option<Duration>,
    ) -> Result<Option<u64>, Fault> {
        let pages = self.pages(range).filter(|pages| self.table.make_room(pages)).ok_or(Fault)?;
        for _ in 0..TRIES {
            let Some(since) = self.begin(range, Some(turn), patience) else { return Ok(None) };
            if let Some(new) = self.bring_once(range, &pages, write, since)? {
                return Ok(Some(new));
            }
            turn.insist();
        }
        Ok(None)
    }

    /// Brings `range` in if no change of it is in progress or comes in between.
    fn bring_at_once(&self, range: &Range<u64>) -> Option<u64> {
        let pages = self.pages(range).filter(|pages| self.table.make_room(pages))?;
        let since = self.begin(range, None, Some(Duration::ZERO))?;
        self.bring_once(range, &pages, self.writable, since).ok()?
    }

    /// Faults `range` in and maps it, unless it has changed since; a page that is out of reach is brought home first.
    fn bring_once(
        &self,
        range: &Range<u64>,
        pages: &Range<u64>,
        write: bool,
        mut since: u64,
    ) -> Result<Option<u64>, Fault> {
        for _ in 0..TRIES {
            let (mut peers, mut strangers) = (Vec::new(), Vec::new());
            let came = self.source.fault(range, write, &mut |found| match self.place(found) {
                Ok(peer) => peers.push(peer),
                Err(at) => strangers.push(at),
            })?;
            // only these: what is reached where it is stays there
            strangers.iter().for_each(|&at| self.source.to_host(&(at..at + page_size())));
            let fallback = came + strangers.len() as u64;
            if fallback > 0 {
                self.tell(Paging::PeerFallback(fallback));
                // coming home was a change
                let Some(now) = self.begin(range, None, Some(PATIENCE)) else { return Ok(None) };
                since = now;
                continue;
            }
            let new = self.map_unless_changed(range, pages, write, since, &peers);
            if new.is_some() && !peers.is_empty() {
                self.tell(Paging::PeerMapped(peers.len() as u64));
            }
            return Ok(new);
        }
        Ok(None)
    }

    /// What to map for a page in a device's memory: granule and word; or its address, if it is out of reach.
    fn place(&self, found: DevicePage) -> Result<(u64, u64), u64> {
        let (at, device, dma) = match found {
            DevicePage::Own { at, .. } => return Err(at),
            DevicePage::Peer { at, device, dma } => (at, device, dma),
        };
        let number = (self.reach)(device).map(|number| u64::from(number) + 1);
        let number = number.filter(|number| *number <= NUMBER && dma & NUMBER == 0);
        let granule = at.checked_sub(self.range.start).map(|from| from / self.granule);
        match (number, granule) {
            // a larger granule has one place only
            (Some(number), Some(granule))
                if self.granule == page_size() && self.peers.make(granule).is_some() =>
            {
                Ok((granule, dma | number))
            }
            _ => Err(at),
        }
    }

    /// Maps what of `range` is there now, for reading: whether it could be written too, only a fault finds out.
    fn take_resident(&self, range: &Range<u64>) -> u64 {
        let mut new = 0;
        let mut at = range.start;
        while at < range.end {
            let part = at..range.end.min(at.saturating_add(SNAPSHOT.max(self.granule)));
            at = part.end;
            let Some(since) = self.begin(&part, Some(&mut self.turn(&part)), None) else { break };
            let mut found: Vec<Range<u64>> = Vec::new();
            self.source.resident(&part, &mut |here| match found.last_mut() {
                Some(last) if last.end == here.start => last.end = here.end,
                _ => found.push(here),
            });
            for here in found {
                // only granules that are there as a whole
                let mask = self.granule - 1;
                let whole = (here.start + mask) & !mask..here.end & !mask;
                if let Some(pages) = self.pages(&whole)
                    && self.table.make_room(&pages)
                {
                    // what an invalidation has taken meanwhile is not there any more
                    new += self.map_unless_changed(&whole, &pages, false, since, &[]).unwrap_or(0);
                }
            }
        }
        new
    }

    /// Waits until no invalidation of `range` is in progress, for `patience` at most, and insists if one follows the other. Gives
    /// what [`State::changed`] compares with.
    fn begin(
        &self,
        range: &Range<u64>,
        mut turn: Option<&mut Turn<'_>>,
        patience: Option<Duration>,
    ) -> Option<u64> {
        let mut state = self.lock();
        if !state.busy(range) {
            return Some(state.sequence);
        }
        let deadline = patience.map(|patience| Instant::now() + patience);
        loop {
            let left = deadline.map(|at| at.saturating_duration_since(Instant::now()));
            state = match left {
                Some(Duration::ZERO) => return None,
                Some(left) => {
                    let waited = self.ended.wait_timeout(state, left);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
                None => self.ended.wait(state).unwrap_or_else(PoisonError::into_inner),
            };
            if !state.busy(range) {
                return Some(state.sequence);
            }
            if let Some(turn) = &mut turn {
                turn.place(&mut state);
            }
        }
    }

    fn map_unless_changed(
        &self,
        range: &Range<u64>,
        pages: &Range<u64>,
        write: bool,
        since: u64,
        peers: &[(u64, u64)],
    ) -> Option<u64> {
        let state = self.lock();
        if state.changed(range, since) {
            return None;
        }
        // before the page can be reached: whoever finds it mapped finds its place
        for &(granule, word) in peers {
            self.peers.word(granule)?.store(word, SeqCst);
        }
        Some(self.table.map(pages, write))
    }

    /// Under the lock, so that who finds pages unmapped already may rely on it that no cache has them.
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

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins an invalidation; a courteous one waits for who insists first.
    fn take_away(&self, range: &Range<u64>, courteous: bool) {
        let zapped = {
            let mut state = self.lock();
            if courteous && state.turns.overlaps(range) {
                let insists = |state: &mut State| state.turns.overlaps(range);
                let waited = self.ended.wait_timeout_while(state, COURTESY, insists);
                state = waited.unwrap_or_else(PoisonError::into_inner).0;
            }
            let place = state.sequence as usize % RANGES;
            state.recent[place] = (range.start, range.end);
            state.sequence += 1;
            if !state.active.add(range) {
                state.unplaced += 1;
            }
            self.inner(range).map_or(0, |pages| self.zap(&pages))
        };
        self.inside.wait();
        if let Some(pages) = self.inner(range) {
            // not before nobody can be about to look; no page is mapped here until the end of the change
            self.peers.each(&pages, |_, word| word.store(0, SeqCst));
        }
        if zapped > 0 {
            self.tell(Paging::Invalidated(zapped));
        }
    }
}

impl Invalidate for Mirror {
    fn invalidate(&self, range: Range<u64>) {
        self.take_away(&range, true);
    }

    fn invalidated(&self, range: Range<u64>) {
        let mut state = self.lock();
        if !state.active.remove(&range) {
            state.unplaced = state.unplaced.saturating_sub(1);
        }
        drop(state);
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

#[cfg(all(test, not(loom)))]
#[path = "mirror_tests.rs"]
mod tests;
