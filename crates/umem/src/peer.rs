//! Peer-Direct: memory behind no host page, registered by its address. Clients are asked in the order in which they came whether
//! a range is theirs (MOFED `core/peer_mem.c`, `rdma/peer_mem.h`).
//!
//! A registration is `acquire`, `get_pages`, `dma_map`, and back `dma_unmap`, `put_pages`, `release`. In between the owner may
//! take the memory away by its [`Ticket`]: the region stops at once, and what was mapped and got is given back then; a
//! ticket that comes too late does nothing.

use crate::register::{check_pages, pages, translations};
use crate::umem::{Keep, Shared, Umem};
use crate::{AccessFlags, RegError};
use dmabuf::{AttachRequest, Attachment};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

/// Knows some addresses of this process as its own (`struct peer_memory_client`).
pub trait PeerClient: Send + Sync {
    /// Its name in `/sys/kernel/mm/memory_peers`.
    fn name(&self) -> &str;

    /// Its version, likewise.
    fn version(&self) -> &str;

    /// Claims a range, or leaves it to the next client.
    fn acquire(&self, addr: u64, len: u64) -> Option<Box<dyn PeerMemory>>;
}

/// A range that a client claimed. To drop it is `release`.
pub trait PeerMemory: Send + Sync {
    /// Keeps the pages until `put_pages`, or until the owner invalidates the ticket.
    fn get_pages(&self, ticket: Ticket) -> Result<(), RegError>;

    /// Makes the pages reachable for a function.
    fn dma_map(&self, request: &AttachRequest<'_>) -> Result<PeerMapping, RegError>;

    /// The function reaches them no more.
    fn dma_unmap(&self) {}

    /// Nobody needs the pages any more.
    fn put_pages(&self) {}

    /// Size of its pages in bytes, by which they are counted.
    fn page_size(&self) -> u64 {
        mm::page_size()
    }
}

/// Whole pages as a function reaches them.
#[derive(Debug)]
pub struct PeerMapping {
    /// The pages.
    pub attachment: Attachment,
    /// Bytes of them before the range.
    pub offset: u64,
}

/// The owner's handle for taking memory away from a region (`core_context` and the invalidate callback).
#[derive(Clone, Debug)]
pub struct Ticket(Weak<PeerHold>);

impl PartialEq for Ticket {
    fn eq(&self, other: &Ticket) -> bool {
        self.0.ptr_eq(&other.0)
    }
}

impl Ticket {
    /// Stops the region; when this returns nobody accesses the memory through it. Answers whether there was one to stop.
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

/// What is counted for a client, in the order of [`PeerClients::FILES`] from `num_alloc_mrs` on.
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
struct Listed {
    client: Box<dyn PeerClient>,
    counts: [AtomicU64; 7],
    regions: Mutex<u64>,
    idle: Condvar,
}

impl Listed {
    fn count(&self, what: Count, more: u64) {
        self.counts[what as usize].fetch_add(more, Relaxed);
    }

    fn regions(&self) -> MutexGuard<'_, u64> {
        self.regions.lock().unwrap_or_else(PoisonError::into_inner)
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

/// The clients of a process.
#[derive(Default)]
pub struct PeerClients {
    list: Mutex<Vec<Arc<Listed>>>,
}

impl PeerClients {
    /// Files of a client below `/sys/kernel/mm/memory_peers`.
    pub const FILES: [&str; 8] = [
        "version",
        "num_alloc_mrs",
        "num_dealloc_mrs",
        "num_reg_pages",
        "num_dereg_pages",
        "num_reg_bytes",
        "num_dereg_bytes",
        "num_free_callbacks",
    ];

    /// Those of this process.
    pub fn process() -> &'static PeerClients {
        static PROCESS: PeerClients = PeerClients { list: Mutex::new(Vec::new()) };
        &PROCESS
    }

    fn list(&self) -> MutexGuard<'_, Vec<Arc<Listed>>> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a client, which is asked after those that are there (`ib_register_peer_memory_client`). Answers whether its name was
    /// free.
    pub fn register(&self, client: Box<dyn PeerClient>) -> bool {
        let mut list = self.list();
        let is_new = list.iter().all(|listed| listed.client.name() != client.name());
        if is_new {
            let (regions, idle) = (Mutex::new(0), Condvar::new());
            list.push(Arc::new(Listed { client, counts: Default::default(), regions, idle }));
        }
        is_new
    }

    /// Removes a client, and waits until its last region is gone (`ib_unregister_peer_memory_client`).
    pub fn unregister(&self, name: &str) {
        let mut list = self.list();
        let Some(at) = list.iter().position(|listed| listed.client.name() == name) else { return };
        let listed = list.remove(at);
        drop(list);
        let mut regions = listed.regions();
        while *regions > 0 {
            regions = listed.idle.wait(regions).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Content of a client's file, if there are such.
    pub fn attribute(&self, name: &str, file: &str) -> Option<String> {
        let list = self.list();
        let listed = list.iter().find(|listed| listed.client.name() == name)?;
        match Self::FILES.iter().position(|known| *known == file)?.checked_sub(1) {
            None => Some(format!("{}\n", listed.client.version())),
            Some(count) => Some(format!("{}\n", listed.counts[count].load(Relaxed))),
        }
    }

    /// Registers memory that a client claims, as `function` reaches it; `None` if none does.
    ///
    /// # Errors
    /// [`RegError::Overflow`], [`RegError::Pages`], and what the client says.
    pub fn from_user(
        &self,
        addr: u64,
        len: u64,
        access: AccessFlags,
        function: &pcie::Function,
        platform: &pcie::Platform,
    ) -> Option<Result<Arc<Umem>, RegError>> {
        if let Err(error) = pages(addr, len).and_then(check_pages) {
            return Some(Err(error));
        }
        let (listed, memory) = self.acquire(addr, len)?;
        let request = AttachRequest { function, platform };
        Some(register(listed, memory, (addr, len), access, &request))
    }

    fn acquire(&self, addr: u64, len: u64) -> Option<(Arc<Listed>, Box<dyn PeerMemory>)> {
        let list = self.list();
        let (listed, memory) =
            list.iter().find_map(|l| l.client.acquire(addr, len).map(|memory| (l, memory)))?;
        // under the list's lock: who removes the client waits for this region
        *listed.regions() += 1;
        listed.count(Count::AllocMrs, 1);
        Some((listed.clone(), memory))
    }
}

fn register(
    listed: Arc<Listed>,
    memory: Box<dyn PeerMemory>,
    (addr, len): (u64, u64),
    access: AccessFlags,
    request: &AttachRequest<'_>,
) -> Result<Arc<Umem>, RegError> {
    let page = memory.page_size();
    let end = addr.checked_add(len).and_then(|end| end.checked_next_multiple_of(page));
    let pages = (end.ok_or(RegError::Overflow)? - addr / page * page) / page;
    let (has_pages, is_mapped) = (AtomicBool::new(true), AtomicBool::new(false));
    let (shared, attachment) = (Shared::new(), OnceLock::new());
    let hold = {
        let shared = shared.clone();
        PeerHold { memory, listed, shared, has_pages, is_mapped, attachment, pages }
    };
    // from here on dropping undoes what was done
    let hold = Arc::new(hold);
    hold.memory.get_pages(Ticket(Arc::downgrade(&hold))).inspect_err(|_| {
        hold.has_pages.store(false, Release);
    })?;
    let PeerMapping { attachment, offset } = hold.memory.dma_map(request)?;
    let attachment = Arc::new(attachment);
    let _ = hold.attachment.set(attachment.clone());
    hold.is_mapped.store(true, Release);
    hold.listed.count(Count::RegPages, pages);
    hold.listed.count(Count::RegBytes, pages * page);
    if shared.gate.is_shut() {
        // invalidated before there was a mapping to give back
        hold.unmap_and_put();
    }
    let end = offset.checked_add(len).ok_or(RegError::Overflow)?;
    let translations = translations(&attachment, offset, end)?;
    let keep = Keep { attachment: Some(attachment), peer: Some(hold), ..Keep::default() };
    let umem = Umem::assemble(shared, translations, access.wants_write(), keep);
    if umem.len() != len {
        return Err(RegError::BeyondBuffer { size: umem.len() + offset, end });
    }
    Ok(Arc::new(umem))
}

#[cfg(all(test, not(loom)))]
#[path = "peer_tests.rs"]
mod tests;
