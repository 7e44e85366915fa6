//! What happened to a mirror's pages: who hears of it, and how often it did.

use std::sync::atomic::{AtomicU64, Ordering::*};
use std::sync::{Arc, OnceLock};

/// What happened to the pages of a mirror, in the terms of `rdma statistic show mr`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Paging {
    /// A fault mapped so many pages (`page_faults`, and one `page_faults_handled`).
    Faulted(u64),
    /// An invalidation unmapped so many pages (`page_invalidations`, and one
    /// `page_invalidations_handled`).
    Invalidated(u64),
    /// Advice mapped so many pages (`page_prefetch`).
    Prefetched(u64),
    /// So many pages were mapped where they are, in the memory of another device
    /// (`page_peer_mapped`).
    PeerMapped(u64),
    /// So many pages in the memory of another device could not be reached there and were brought to
    /// host memory (`page_peer_fallback`).
    PeerFallback(u64),
}

/// Told what happens to the pages of a mirror, under no lock. As [`Invalidate`](crate::Invalidate),
/// it must not allocate, free or wait.
pub trait PagingWatcher: Send + Sync {
    /// Something happened.
    fn paged(&self, what: Paging);
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

/// Counts what happens, and tells the watcher.
#[derive(Default)]
pub(super) struct Tally {
    counts: [AtomicU64; 7],
    watcher: OnceLock<Arc<dyn PagingWatcher>>,
}

impl Tally {
    /// Reports to `watcher` what happens from now on. At most one; returns whether it was taken.
    pub(super) fn watch(&self, watcher: Arc<dyn PagingWatcher>) -> bool {
        self.watcher.set(watcher).is_ok()
    }

    /// What happened so far.
    pub(super) fn counts(&self) -> PagingCounts {
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

    /// Counts and reports what happened.
    pub(super) fn add(&self, what: Paging) {
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
}
