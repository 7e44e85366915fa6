//! What a region has of the client that claimed its memory, and the owner's ticket to take it away.
//! What was mapped and got is given back once, whoever ends the region.

use crate::peer::{PeerClient, PeerMapping, PeerMemory};
use crate::request::error::RegError;
use crate::revoke::Shared;
use dmabuf::{AttachRequest, Attachment};
use engine_thread::{lock, wait};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, Weak};

/// The owner's handle for taking memory away from a region (`core_context` and the invalidate
/// callback).
#[derive(Clone, Debug)]
pub struct Ticket(Weak<PeerHold>);

impl PartialEq for Ticket {
    fn eq(&self, other: &Ticket) -> bool {
        self.0.ptr_eq(&other.0)
    }
}

impl Ticket {
    /// Stops the region; when this returns nobody accesses the memory through it. Answers whether
    /// there was one to stop.
    pub fn invalidate(&self) -> bool {
        let Some(hold) = self.0.upgrade() else { return false };
        if hold.shared.gate.is_shut() {
            return false;
        }
        hold.listed.count(Count::FreeCallbacks, 1);
        hold.shared.revoke();
        hold.unmap_and_put();
        true
    }
}

/// What is counted for a client, in the order of [`crate::PeerClients::FILES`] from `num_alloc_mrs`
/// on.
#[derive(Clone, Copy)]
enum Count {
    AllocMrs,
    DeallocMrs,
    RegPages,
    DeregPages,
    RegBytes,
    DeregBytes,
    FreeCallbacks,
}

/// A client in the list.
pub(crate) struct Listed {
    pub(crate) client: Box<dyn PeerClient>,
    pub(crate) counts: [AtomicU64; 7],
    regions: Mutex<u64>,
    idle: Condvar,
}

impl Listed {
    pub(crate) fn new(client: Box<dyn PeerClient>) -> Arc<Listed> {
        let (regions, idle) = (Mutex::new(0), Condvar::new());
        Arc::new(Listed { client, counts: Default::default(), regions, idle })
    }

    /// One region more.
    pub(crate) fn begin(&self) {
        *self.regions() += 1;
        self.count(Count::AllocMrs, 1);
    }

    /// Returns once the last region is gone.
    pub(crate) fn wait_idle(&self) {
        let mut regions = self.regions();
        while *regions > 0 {
            regions = wait(&self.idle, regions);
        }
    }

    fn count(&self, what: Count, more: u64) {
        self.counts[what as usize].fetch_add(more, Relaxed);
    }

    fn regions(&self) -> MutexGuard<'_, u64> {
        lock(&self.regions)
    }
}

/// What a region has of its client.
pub(crate) struct PeerHold {
    memory: Box<dyn PeerMemory>,
    listed: Arc<Listed>,
    shared: Arc<Shared>,
    has_pages: AtomicBool,
    is_mapped: AtomicBool,
    attachment: OnceLock<Arc<Attachment>>,
    pages: u64,
}

impl std::fmt::Debug for PeerHold {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "PeerHold {{ {}, pages: {} }}", self.listed.client.name(), self.pages)
    }
}

impl PeerHold {
    /// Gets the pages of what a client claimed. To drop the answer undoes what was done.
    ///
    /// # Errors
    /// What the client says.
    pub(crate) fn get(
        listed: Arc<Listed>,
        memory: Box<dyn PeerMemory>,
        shared: Arc<Shared>,
        pages: u64,
    ) -> Result<Arc<PeerHold>, RegError> {
        let (has_pages, is_mapped) = (AtomicBool::new(true), AtomicBool::new(false));
        let attachment = OnceLock::new();
        let hold = PeerHold { memory, listed, shared, has_pages, is_mapped, attachment, pages };
        let hold = Arc::new(hold);
        hold.memory.get_pages(Ticket(Arc::downgrade(&hold))).inspect_err(|_| {
            hold.has_pages.store(false, Release);
        })?;
        Ok(hold)
    }

    /// Makes the pages reachable for a function: gives them, and how many bytes of them come before
    /// the range.
    ///
    /// # Errors
    /// What the client says.
    pub(crate) fn map(
        &self,
        request: &AttachRequest<'_>,
    ) -> Result<(Arc<Attachment>, u64), RegError> {
        let PeerMapping { attachment, offset } = self.memory.dma_map(request)?;
        let attachment = Arc::new(attachment);
        let _ = self.attachment.set(attachment.clone());
        self.is_mapped.store(true, Release);
        self.listed.count(Count::RegPages, self.pages);
        self.listed.count(Count::RegBytes, self.pages * self.memory.page_size());
        if self.shared.gate.is_shut() {
            // invalidated before there was a mapping to give back
            self.unmap_and_put();
        }
        Ok((attachment, offset))
    }

    fn unmap_and_put(&self) {
        if self.is_mapped.swap(false, AcqRel) {
            if let Some(attachment) = self.attachment.get() {
                // the owner may move the pages from here on
                attachment.detach();
            }
            self.memory.dma_unmap();
            self.listed.count(Count::DeregPages, self.pages);
            self.listed.count(Count::DeregBytes, self.pages * self.memory.page_size());
        }
        if self.has_pages.swap(false, AcqRel) {
            self.memory.put_pages();
        }
    }
}

impl Drop for PeerHold {
    fn drop(&mut self) {
        self.unmap_and_put();
        self.listed.count(Count::DeallocMrs, 1);
        *self.listed.regions() -= 1;
        self.listed.idle.notify_all();
    }
}
