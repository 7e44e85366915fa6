//! The Peer-Direct clients of a process. They are asked in the order in which they came whether a
//! range is theirs (MOFED `core/peer_mem.c`).

use crate::peer::hold::{Listed, PeerHold};
use crate::peer::{PeerClient, PeerMemory};
use crate::region::backing::Backing;
use crate::region::umem::Umem;
use crate::register::dmabuf::translations;
use crate::register::pages::{check_pages, pages};
use crate::request::error::RegError;
use crate::request::rights::AccessFlags;
use crate::revoke::Shared;
use dmabuf::AttachRequest;
use engine_thread::lock;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, MutexGuard};

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

    /// The clients of this process.
    pub fn process() -> &'static PeerClients {
        static PROCESS: PeerClients = PeerClients { list: Mutex::new(Vec::new()) };
        &PROCESS
    }

    fn list(&self) -> MutexGuard<'_, Vec<Arc<Listed>>> {
        lock(&self.list)
    }

    /// Adds a client, which is asked after those that are there (`ib_register_peer_memory_client`).
    /// Answers whether its name was free.
    pub fn register(&self, client: Box<dyn PeerClient>) -> bool {
        let mut list = self.list();
        let is_new = list.iter().all(|listed| listed.client.name() != client.name());
        if is_new {
            list.push(Listed::new(client));
        }
        is_new
    }

    /// Removes a client, and waits until its last region is gone
    /// (`ib_unregister_peer_memory_client`).
    pub fn unregister(&self, name: &str) {
        let mut list = self.list();
        let Some(at) = list.iter().position(|listed| listed.client.name() == name) else { return };
        let listed = list.remove(at);
        drop(list);
        listed.wait_idle();
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
        listed.begin();
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
    let shared = Shared::new();
    let hold = PeerHold::get(listed, memory, shared.clone(), pages)?;
    let (attachment, offset) = hold.map(request)?;
    let end = offset.checked_add(len).ok_or(RegError::Overflow)?;
    let translations = translations(&attachment, offset, end)?;
    let backing = Backing::Peer { attachment, _hold: hold };
    let umem = Umem::assemble(shared, translations, access.wants_write(), backing);
    if umem.len() != len {
        return Err(RegError::BeyondBuffer { size: umem.len() + offset, end });
    }
    Ok(Arc::new(umem))
}

#[cfg(all(test, not(loom)))]
mod tests;
