//! How rings come to be: made by who sends, announced to who reads, and attached there. See
//! [`rings`](super::rings) for what they are.

use super::directory::{Announced, Reader};
use super::rings::{RingFrom, RingTo};
use super::{Adapter, control_id};
use engine_thread::lock;
use link::Path;
use registry::SLOTS;
use rustix::fd::{AsFd, AsRawFd};
use shm::{Between, RingReader};
use std::sync::{Arc, Weak};

/// Rings of one device up to which datagrams get one of their own: a ring takes memory, and there
/// is no connection whose end would end it, only that of the address handles.
const MAX_DATAGRAM_RINGS: usize = 64;

impl Adapter {
    /// The ring to the process that owns QP `dest_qpn` at the end of `path`, if there can be one.
    /// Asks the registry, so no lock that receiving needs may be held.
    pub(crate) fn ring(&self, path: &Path, dest_qpn: u32) -> Option<Arc<RingTo>> {
        self.ring_among(usize::MAX, path, dest_qpn)
    }

    /// [`Adapter::ring`] for datagrams.
    pub(crate) fn ring_for_datagrams(&self, path: &Path, dest_qpn: u32) -> Option<Arc<RingTo>> {
        self.ring_among(MAX_DATAGRAM_RINGS, path, dest_qpn)
    }

    /// The same; one more is made only where there are fewer than `most`.
    fn ring_among(&self, most: usize, path: &Path, dest_qpn: u32) -> Option<Arc<RingTo>> {
        let rings = self.rings()?;
        let slot = self.slot_here(path, dest_qpn)?;
        // Locked all the while: a second ring to the same process would end the first.
        let mut to = lock(&rings.to);
        let known = to.get(&slot).and_then(Weak::upgrade);
        if let Some(known) = known.filter(|known| known.is_there()) {
            return Some(known);
        }
        // An address handle that is not used any more keeps the ring to a process that has ended.
        to.retain(|_, known| known.upgrade().is_some_and(|known| known.is_there()));
        if to.len() >= most {
            return None;
        }
        to.try_reserve(1).ok()?;
        // In this order: where the slot has become another's meanwhile, the directory says that its
        // device is gone.
        let there = Reader::open(self.registry.directory(slot).ok()?).ok()?;
        let kick = self.registry.lookup(&control_id(slot)).ok()?;
        let token = self.directory().token();
        let between = between((self.slot, token), there.token());
        let ring = Arc::new(RingTo::new(between, there, kick)?);
        let directory = self.directory().as_fd().as_raw_fd().cast_unsigned();
        let announced = Announced { pid: std::process::id(), ring: ring.fd(), directory };
        if slot == self.slot {
            rings.add(ring_from(slot, token, announced)?);
        } else {
            ring.announce(self.slot, announced);
        }
        to.insert(slot, Arc::downgrade(&ring));
        Some(ring)
    }

    /// Attaches the rings that were announced since the last time, and forgets those that are over.
    pub(crate) fn attach_rings(&self) {
        let Some(rings) = self.rings() else { return };
        rings.forget_those_over();
        let announced = self.directory().announced();
        if rings.has_seen(announced) {
            return;
        }
        let mut took_all = true;
        for slot in (0..SLOTS).filter(|slot| self.directory().has_announced(*slot)) {
            // Before it is taken: from then on only the new one counts.
            if !rings.doubt(slot) {
                took_all = false;
                continue;
            }
            let (announced, to) = (self.directory().take_announced(slot), self.directory().token());
            if let Some(ring) = announced.and_then(|announced| ring_from(slot, to, announced)) {
                rings.add(ring);
            }
        }
        if took_all {
            rings.saw(announced);
        }
    }

    /// Whether what the device at `slot` has to answer can come by its ring: this one reads it, and
    /// knows of no newer one.
    pub(crate) fn reads_ring_from(&self, slot: u16) -> bool {
        let reads = self.rings().is_some_and(|rings| rings.is_read_from(slot));
        reads && !self.directory().has_announced(slot)
    }
}

/// Whose a ring is: that of the device with this slot and token, to the one with the other token. A
/// process may have several devices, and a slot's device another one after it.
pub(super) fn between((slot, token): (u16, u64), to: u64) -> Between {
    Between { from: token ^ u64::from(slot), to }
}

/// The ring that the device at `slot` announced to the one with a token. `None` also where the
/// descriptors have become others' since: then there is a newer one.
pub(super) fn ring_from(slot: u16, to: u64, announced: Announced) -> Option<RingFrom> {
    let Announced { pid, ring, directory } = announced;
    let directory = Reader::open(shm::memfd_of_process(pid, directory).ok()?).ok()?;
    let ring = shm::memfd_of_process(pid, ring).ok()?;
    let ring = RingReader::open(ring, between((slot, directory.token()), to)).ok()?;
    Some(RingFrom::new(slot, directory, ring))
}
