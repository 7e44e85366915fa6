//! The software GPU's Peer-Direct client: a program that registers an address inside its mapping of
//! a GPU's buffer gets the GPU's memory (nvidia-peermem's role). Unmapping it invalidates the
//! region.

use super::cpu_map::{self, CpuMap};
use dmabuf::{AttachRequest, DmaBuf, Hold};
use engine_thread::lock;
use std::sync::{Arc, Mutex};
use umem::{PeerClient, PeerMapping, PeerMemory, RegError, Ticket};

pub struct GpuPeer;

/// A range inside a mapping.
struct Claim {
    map: Arc<CpuMap>,
    addr: u64,
    len: u64,
    ticket: Mutex<Option<Ticket>>,
}

impl PeerClient for GpuPeer {
    fn name(&self) -> &str {
        sysfs::PEER_CLIENT
    }

    fn version(&self) -> &str {
        env!("CARGO_PKG_VERSION")
    }

    fn acquire(&self, addr: u64, len: u64) -> Option<Box<dyn PeerMemory>> {
        let map = cpu_map::around(addr, len)?;
        Some(Box::new(Claim { map, addr, len, ticket: Mutex::new(None) }))
    }
}

impl PeerMemory for Claim {
    fn get_pages(&self, ticket: Ticket) -> Result<(), RegError> {
        *lock(&self.ticket) = Some(ticket.clone());
        if self.map.notify(self.addr..self.addr + self.len, ticket) {
            return Ok(());
        }
        Err(RegError::Fault)
    }

    /// Pinned where it is; it may still be revoked, which ends the region too.
    fn dma_map(&self, request: &AttachRequest<'_>) -> Result<PeerMapping, RegError> {
        let buffer = DmaBuf::of_gpu(self.map.storage().clone());
        let attachment = buffer.attach(request, Hold::PinnedRevocable)?;
        Ok(PeerMapping { attachment, offset: self.map.offset_of(self.addr) })
    }

    fn put_pages(&self) {
        let ticket = lock(&self.ticket).take();
        ticket.inspect(|ticket| self.map.forget(ticket));
    }
}
