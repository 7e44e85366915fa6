//! Memory regions: a registration under a key of one protection domain.

use crate::device::Device;
use crate::directory::Directory;
use crate::pd::Pd;
use std::collections::TryReserveError;
use std::sync::{Arc, Mutex, PoisonError};
use transport::keys::Mkey;
use transport::values::Access;
use transport::{Count, Counter};
use transport::{Error, Result};
use umem::{Lookup, LookupWatcher, Paging, PagingWatcher, TranslationCache, Umem};

/// Adds what happens to the pages of on-demand regions to the counters of the device.
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

/// Adds what happens in the address translation cache to the counters of the device.
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

/// Has a new region's memory counted by the device, and its translations cached where ATS is on and they may overtake each
/// other (`mlx5_umem_needs_ats`).
fn settle(device: &Device, umem: &Umem, access: Access) {
    umem.watch_paging(Arc::new(CountPaging(device.shared_directory())));
    if access.contains(Access::RELAXED_ORDERING)
        && let Some(cache) = device.translation_cache()
    {
        umem.translate_by(cache);
    }
}

/// A memory region. Dropping it deregisters it.
pub struct Mr {
    device: Arc<Device>,
    key: u32,
    /// Key of the Data Direct function that `key` is stacked on.
    ksm: Option<u32>,
    /// The present domain; re-registration may change it.
    pd: Mutex<Arc<Pd>>,
}

impl std::fmt::Debug for Mr {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Mr {{ key: {:#x} }}", self.key)
    }
}

impl Mr {
    pub(crate) fn new(
        device: &Arc<Device>,
        pd: &Arc<Pd>,
        umem: Arc<Umem>,
        iova: u64,
        access: Access,
    ) -> Result<Arc<Mr>> {
        settle(device, &umem, access);
        let mkey = Mkey::new(pd.id(), iova, access, umem);
        let key = device.keys().insert(mkey.pd, mkey.umem.clone(), iova, access)?;
        device.directory().publish_key(key, &mkey);
        pd.add_user();
        Ok(Arc::new(Mr { device: device.clone(), key, ksm: None, pd: Mutex::new(pd.clone()) }))
    }

    /// A region whose two keys are in the table: the program's, and the one of the Data Direct function below it.
    pub(crate) fn stacked(
        device: Arc<Device>,
        pd: &Arc<Pd>,
        (key, ksm): (u32, u32),
        umem: Arc<Umem>,
        iova: u64,
        access: Access,
    ) -> Arc<Mr> {
        device.directory().publish_key(key, &Mkey::new(pd.id(), iova, access, umem));
        pd.add_user();
        Arc::new(Mr { device, key, ksm: Some(ksm), pd: Mutex::new(pd.clone()) })
    }

    /// Ends the region's life: nothing reaches its memory through the key any more when this returns.
    ///
    /// # Errors
    /// [`Error::Busy`] while a memory window is bound to it.
    pub fn dereg(&self) -> Result<()> {
        let retract = || self.device.directory().remove_key(self.key);
        match self.ksm {
            Some(ksm) => self.device.keys().remove_stacked((self.key, ksm), retract),
            None => self.device.keys().remove_unbound(self.key, retract),
        }
    }

    /// lkey and rkey.
    pub fn key(&self) -> u32 {
        self.key
    }

    /// Changes domain, memory or rights in place; the key stays. `None` keeps what is.
    ///
    /// # Errors
    /// [`Error::Busy`] while a memory window is bound to it, [`Error::Invalid`] when the key is gone.
    pub fn rereg(
        &self,
        pd: Option<&Arc<Pd>>,
        translation: Option<(Arc<Umem>, u64)>,
        access: Option<Access>,
    ) -> Result<()> {
        let mut holder = self.pd.lock().unwrap_or_else(PoisonError::into_inner);
        let mut mkey = self.device.keys().get(self.key).ok_or(Error::Invalid("no such key"))?;
        if let Some(pd) = pd {
            mkey.pd = pd.id();
        }
        if let Some(access) = access {
            mkey.access = access;
        }
        let moved = translation.is_some();
        if let Some((umem, iova)) = translation {
            settle(&self.device, &umem, mkey.access);
            mkey.umem = umem;
            mkey.iova = iova;
        }
        let old = self.device.keys().replace(self.key, mkey.clone())?;
        if moved {
            old.umem.revoke();
        }
        self.device.directory().publish_key(self.key, &mkey);
        if let Some(pd) = pd {
            pd.add_user();
            std::mem::replace(&mut *holder, pd.clone()).drop_user();
        }
        Ok(())
    }

    /// The memory behind the key.
    pub fn umem(&self) -> Option<Arc<Umem>> {
        self.device.keys().get(self.key).map(|mkey| mkey.umem)
    }
}

impl Drop for Mr {
    fn drop(&mut self) {
        // Refused after `dereg`.
        let retract = || self.device.directory().remove_key(self.key);
        let _ = match self.ksm {
            Some(ksm) => self.device.keys().remove_stacked((self.key, ksm), retract),
            None => self.device.keys().remove(self.key, retract),
        };
        self.pd.lock().unwrap_or_else(PoisonError::into_inner).drop_user();
    }
}
