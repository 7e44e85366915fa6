//! How rings come to be: made by who sends, offered in the registry, announced to who reads, and
//! attached there. See [`rings`](super::rings) for what they are.

use super::rings::{RingFrom, RingTo};
use super::{Adapter, control_id};
use engine_thread::lock;
use link::Path;
use registry::QPN_INDEX_BITS;
use rustix::fd::OwnedFd;
use shm::RingReader;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// Name under which the process with slot `from` publishes its ring to the one with slot `to`.
fn ring_id(from: u16, to: u16) -> String {
    format!("ring-{from}-{to}")
}

impl Adapter {
    /// The ring to the process that owns QP `dest_qpn` at the end of `path`, if there can be one.
    /// Asks the registry, so no lock that receiving needs may be held.
    pub(crate) fn ring(&self, path: &Path, dest_qpn: u32) -> Option<Arc<RingTo>> {
        let rings = self.rings()?;
        let here = path.ethernet.is_none() && self.port.known().gids.is_here(path.dst);
        if !here {
            return None;
        }
        let slot = (dest_qpn >> QPN_INDEX_BITS) as u16;
        // Locked all the while: a second ring to the same process would end the first.
        let mut to = lock(&rings.to);
        if let Some(known) = to.get(&slot).filter(|known| known.is_there()) {
            return Some(known.clone());
        }
        to.try_reserve(1).ok()?;
        let kick = self.registry.lookup(&control_id(slot)).ok()?;
        let ring = Arc::new(RingTo::new(self.registry.directory(slot).ok()?, kick)?);
        if slot == self.slot {
            rings.add(self.ring_from(slot, ring.fd(|fd| fd.try_clone_to_owned()).ok()?)?);
        } else {
            ring.fd(|fd| self.registry.publish(&ring_id(self.slot, slot), fd)).ok()?;
            ring.announce(self.slot);
        }
        // The registry's process has a descriptor of each that is not withdrawn.
        for (slot, attached) in to.iter().filter(|(_, ring)| ring.need_not_be_offered()) {
            self.registry.withdraw(&ring_id(self.slot, *slot));
            attached.note_withdrawn();
        }
        to.insert(slot, ring.clone());
        Some(ring)
    }

    /// Takes back what was offered: nobody can attach it any more.
    pub(super) fn withdraw_rings(&self) {
        let Some(rings) = self.rings() else { return };
        let slots: Vec<u16> = lock(&rings.to).keys().copied().collect();
        slots.into_iter().for_each(|slot| self.registry.withdraw(&ring_id(self.slot, slot)));
    }

    /// Attaches the rings that were announced since the last time. Asks the registry.
    pub(crate) fn attach_rings(&self) {
        let Some(rings) = self.rings() else { return };
        let announced = self.directory().announced();
        if rings.seen.swap(announced, Relaxed) == announced {
            return;
        }
        for slot in self.directory().take_announced() {
            if let Some(ring) = self.announced_ring(slot) {
                rings.add(ring);
            }
        }
    }

    fn announced_ring(&self, slot: u16) -> Option<RingFrom> {
        self.ring_from(slot, self.registry.lookup(&ring_id(slot, self.slot)).ok()?)
    }

    fn ring_from(&self, slot: u16, ring: OwnedFd) -> Option<RingFrom> {
        let directory = self.registry.directory(slot).ok()?;
        RingFrom::new(slot, directory, RingReader::open(ring).ok()?)
    }
}
