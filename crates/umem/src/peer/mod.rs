//! What a Peer-Direct client is asked for: memory behind no host page, claimed by its address
//! (MOFED `rdma/peer_mem.h`).
//!
//! A registration is `acquire`, `get_pages`, `dma_map`, and back `dma_unmap`, `put_pages`,
//! `release`. In between the owner may take the memory away by its [`Ticket`]: the region stops at
//! once, and what was mapped and got is given back then; a ticket that comes too late does nothing.

pub(crate) mod hold;

use crate::request::error::RegError;
use dmabuf::{AttachRequest, Attachment};
use hold::Ticket;

/// Knows some addresses of this process as its own (`struct peer_memory_client`).
pub trait PeerClient: Send + Sync {
    /// The client's name in `/sys/kernel/mm/memory_peers`.
    fn name(&self) -> &str;

    /// The client's version, which is shown there too.
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
