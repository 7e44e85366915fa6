//! Memory regions: a registration under a key of one protection domain.

use crate::adapter::Adapter;
use crate::adapter::directory::Directory;
use crate::adapter::directory::shown::ShownKey;
use crate::memory::pd::Pd;
use engine_thread::lock;
use std::collections::TryReserveError;
use std::sync::{Arc, Mutex, PoisonError};
use transport::keys::Mkey;
use transport::values::Access;
use transport::{Count, Counter};
use transport::{Error, Result};
use umem::{Lookup, LookupWatcher, PageSizes, Paging, PagingWatcher, TranslationCache, Umem};

/// Adds what happens to the pages of on-demand regions to the counters of the adapter.
struct CountPaging(Arc<Directory>);

impl PagingWatcher for CountPaging {
    fn paged(&self, what: Paging) {
        let (pages, events, number) = match what {
            Paging::Faulted(number) => {
                (Counter::PageFaults, Some(Counter::PageFaultsHandled), number)
            }
            Paging::Invalidated(number) => {
                (Counter::PageInvalidations, Some(Counter::PageInvalidationsHandled), number)
            }
            Paging::Prefetched(number) => (Counter::PagePrefetch, None, number),
            Paging::PeerMapped(number) => (Counter::PagePeerMapped, None, number),
            Paging::PeerFallback(number) => (Counter::PagePeerFallback, None, number),
        };
        self.0.count(pages, number);
        if let Some(events) = events {
            self.0.count(events, 1);
        }
    }
}

/// Adds what happens in the address translation cache to the counters of the adapter.
struct CountLookups(Arc<Directory>);

impl LookupWatcher for CountLookups {
    #[inline]
    fn looked_up(&self, what: Lookup) {
        let (counter, number) = match what {
            Lookup::Hit(number) => (Counter::AtsHits, number),
            Lookup::Miss(number) => (Counter::AtsMisses, number),
            Lookup::Invalidated(number) => (Counter::AtsInvalidations, number),
        };
        self.0.count(counter, number);
    }
}

/// An empty cache that counts in `directory`.
pub(crate) fn translation_cache(
    directory: Arc<Directory>,
) -> std::result::Result<Arc<TranslationCache>, TryReserveError> {
    TranslationCache::new(Box::new(CountLookups(directory)))
}

/// Has a new region's memory counted by the device, and its translations cached where ATS is on and
/// they may overtake each other (`mlx5_umem_needs_ats`).
fn settle(adapter: &Adapter, umem: &Umem, access: Access) {
    if umem.is_on_demand() {
        umem.watch_paging(Arc::new(CountPaging(adapter.shared_directory())));
    }
    if access.contains(Access::RELAXED_ORDERING)
        && let Some(cache) = adapter.translation_cache()
    {
        umem.translate_by(cache);
    }
}

/// The page size by which the device translates `umem` at `iova` (`mlx5_umem_mkc_find_best_pgsz`),
/// where it needs pages.
fn page_size(umem: &Umem, iova: u64, sizes: PageSizes) -> Result<Option<u64>> {
    umem.best_page_size(iova, sizes).map_err(|_| Error::Invalid("no page size suits"))
}

/// A memory region. Dropping it deregisters it.
pub struct Mr {
    adapter: Arc<Adapter>,
    key: u32,
    /// Key of the Data Direct function that `key` is stacked on.
    below: Option<u32>,
    /// What re-registration may change.
    now: Mutex<Now>,
}

/// The present domain of a region, and its entry in the directory.
struct Now {
    pd: Arc<Pd>,
    shown: Arc<ShownKey>,
}

impl std::fmt::Debug for Mr {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Mr {{ key: {:#x} }}", self.key)
    }
}

impl Mr {
    pub(crate) fn new(
        adapter: &Arc<Adapter>,
        pd: &Arc<Pd>,
        umem: Arc<Umem>,
        iova: u64,
        access: Access,
    ) -> Result<Arc<Mr>> {
        let page_size = page_size(&umem, iova, PageSizes::CONNECTX)?;
        settle(adapter, &umem, access);
        let mkey = Mkey::new(pd.id(), iova, access, umem);
        let key = adapter.keys().insert(mkey.pd, mkey.umem.clone(), iova, access)?;
        let open = adapter.has_neighbours();
        let shown = ShownKey::new(&adapter.shared_directory(), key, &mkey.umem, open);
        shown.publish(&mkey, page_size);
        pd.add_user();
        let now = Mutex::new(Now { pd: pd.clone(), shown });
        Ok(Arc::new(Mr { adapter: adapter.clone(), key, below: None, now }))
    }

    /// A region whose two keys are in the table: the program's, and the one of the Data Direct
    /// function below it.
    pub(crate) fn stacked(
        adapter: Arc<Adapter>,
        pd: &Arc<Pd>,
        (key, below): (u32, u32),
        umem: Arc<Umem>,
        iova: u64,
        access: Access,
    ) -> Arc<Mr> {
        let sizes = PageSizes::CONNECTX.starting_at(iova);
        let page_size = umem.best_page_size(iova, sizes).unwrap_or_default();
        let mkey = Mkey::new(pd.id(), iova, access, umem);
        let shown = ShownKey::new(&adapter.shared_directory(), key, &mkey.umem, false);
        shown.publish(&mkey, page_size);
        pd.add_user();
        let now = Mutex::new(Now { pd: pd.clone(), shown });
        Arc::new(Mr { adapter, key, below: Some(below), now })
    }

    /// Ends the region's life: nothing reaches its memory through the key any more when this
    /// returns.
    ///
    /// # Errors
    /// [`Error::Busy`] while a memory window is bound to it.
    pub fn dereg(&self) -> Result<()> {
        let now = lock(&self.now);
        let retract = || now.shown.retract();
        match self.below {
            Some(below) => self.adapter.keys().remove_stacked((self.key, below), retract),
            None => self.adapter.keys().remove_unbound(self.key, retract),
        }
    }

    /// lkey and rkey.
    pub fn key(&self) -> u32 {
        self.key
    }

    /// Changes domain, memory or rights in place; the key stays. `None` keeps what is.
    ///
    /// # Errors
    /// [`Error::Busy`] while a memory window is bound to it, [`Error::Invalid`] when the key is
    /// gone or no page size suits.
    pub fn rereg(
        &self,
        pd: Option<&Arc<Pd>>,
        translation: Option<(Arc<Umem>, u64)>,
        access: Option<Access>,
    ) -> Result<()> {
        let mut now = lock(&self.now);
        let mut mkey = self.adapter.keys().get(self.key).ok_or(Error::Invalid("no such key"))?;
        if let Some(pd) = pd {
            mkey.pd = pd.id();
        }
        if let Some(access) = access {
            mkey.access = access;
        }
        let moved = translation.is_some();
        if let Some((umem, iova)) = translation {
            mkey.umem = umem;
            mkey.iova = iova;
        }
        let sizes = match self.below {
            Some(_) => PageSizes::CONNECTX.starting_at(mkey.iova),
            None => PageSizes::CONNECTX,
        };
        let page_size = page_size(&mkey.umem, mkey.iova, sizes)?;
        if moved {
            settle(&self.adapter, &mkey.umem, mkey.access);
        }
        let old = self.adapter.keys().replace(self.key, mkey.clone())?;
        if moved {
            old.umem.revoke();
            let open = self.below.is_none() && self.adapter.has_neighbours();
            let directory = self.adapter.shared_directory();
            now.shown = ShownKey::new(&directory, self.key, &mkey.umem, open);
        }
        now.shown.publish(&mkey, page_size);
        now.shown.wait_for_visitors();
        if let Some(pd) = pd {
            pd.add_user();
            std::mem::replace(&mut now.pd, pd.clone()).drop_user();
        }
        Ok(())
    }

    /// The memory behind the key.
    pub fn umem(&self) -> Option<Arc<Umem>> {
        self.adapter.keys().get(self.key).map(|mkey| mkey.umem)
    }
}

impl Drop for Mr {
    fn drop(&mut self) {
        let now = self.now.get_mut().unwrap_or_else(PoisonError::into_inner);
        // Refused after `dereg`.
        let retract = || now.shown.retract();
        let _ = match self.below {
            Some(below) => self.adapter.keys().remove_stacked((self.key, below), retract),
            None => self.adapter.keys().remove(self.key, retract),
        };
        now.pd.drop_user();
    }
}
