//! Address handles: a datagram destination, resolved once.

use crate::adapter::Adapter;
use crate::adapter::management::ManagementInterface;
use crate::adapter::paths::PeerPath;
use crate::adapter::rings::{Ends, RingTo};
use crate::fabric::multicast::MULTICAST_QPN;
use crate::memory::pd::{Belonging, Pd};
use engine_thread::lock;
use link::{Losses, Path};
use smallvec::SmallVec;
use std::any::Any;
use std::sync::{Arc, Mutex, MutexGuard};
use transport::values::PdId;
use transport::values::{AhAttr, Destination};
use transport::{Error, Result};

/// Ways that a handle keeps. A host has more slots than one program sends to by turns.
const KEPT_WAYS: usize = 16;

/// A resolved datagram destination.
pub struct AddressHandle {
    pd: Belonging,
    attr: AhAttr,
    path: Path,
    /// One way for each slot of the destination host that was sent to, the oldest first: a GSO
    /// train must not mix slots (D6).
    ways: Mutex<SmallVec<[Way; 1]>>,
}

/// The way to one process.
struct Way {
    slot: u32,
    path: PeerPath,
    /// What packets may pass through instead of the wire, where the process is a neighbour, and
    /// whether they do.
    ring: Option<Arc<RingTo>>,
    by_ring: bool,
    /// It was found where no ring could be made.
    is_makeshift: bool,
}

impl Way {
    /// The ring, once packets pass through it: it is read, and `none_waits` to be sent by the wire,
    /// or to be taken from there, that they would overtake.
    fn ring(&mut self, none_waits: bool) -> Option<&Arc<RingTo>> {
        let ring = self.ring.as_ref()?;
        if !ring.is_there() {
            (self.ring, self.by_ring) = (None, false);
            return None;
        }
        if !self.by_ring {
            let taken = || self.path.backlog.as_ref().is_some_and(|backlog| backlog.is_empty());
            self.by_ring = none_waits && ring.is_open() && taken();
        }
        self.ring.as_ref().filter(|_| self.by_ring)
    }
}

impl std::fmt::Debug for AddressHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "AddressHandle {{ {} -> {} }}", self.path.src, self.path.dst)
    }
}

impl AddressHandle {
    pub(crate) fn new(adapter: &Adapter, pd: &Arc<Pd>, attr: AhAttr) -> Result<Arc<AddressHandle>> {
        let path = adapter.path(&attr)?;
        let pd = Belonging::new(pd);
        Ok(Arc::new(AddressHandle { pd, attr, path, ways: Mutex::default() }))
    }

    /// Ends the handle's life for the program: its domain may go. Requests already posted keep the
    /// destination.
    pub fn destroy(&self) {
        self.pd.end();
    }

    /// The way to the process that owns a QP. The first to a process takes long: see
    /// [`Adapter::way`].
    pub(crate) fn way(&self, adapter: &Adapter, dest_qpn: u32) -> Result<PeerPath> {
        self.way_found(adapter, dest_qpn, true)
    }

    /// The same where locks are held under which no ring can be made: receiving needs them, and so
    /// does the making of a ring to the own process. One that was known and has been forgotten
    /// since is by the wire, until [`AddressHandle::way`].
    pub(crate) fn way_by_wire(&self, adapter: &Adapter, dest_qpn: u32) -> Result<PeerPath> {
        self.way_found(adapter, dest_qpn, false)
    }

    fn way_found(&self, adapter: &Adapter, dest_qpn: u32, may_make: bool) -> Result<PeerPath> {
        let slot = slot_of(dest_qpn);
        let is_it = |known: &&Way| known.slot == slot && !(known.is_makeshift && may_make);
        if let Some(known) = self.ways().iter().find(is_it) {
            return Ok(known.path.clone());
        }
        let path = adapter.way(self.path, dest_qpn, Losses::Final)?;
        let has_ring = may_make && has_ring(dest_qpn);
        let ring = has_ring.then(|| adapter.ring_for_datagrams(&self.path, dest_qpn)).flatten();
        let mut ways = self.ways();
        // Another thread may have found one meanwhile.
        if !may_make && ways.iter().any(|known| known.slot == slot) {
            return Ok(path);
        }
        ways.retain(|known| known.slot != slot);
        if ways.len() >= KEPT_WAYS {
            ways.remove(0);
        }
        // Most handles need the one place that they have.
        let no_memory = |_| Error::NoMemory("no memory for the way to another process");
        ways.try_reserve(1).map_err(no_memory)?;
        let way = Way { slot, path: path.clone(), ring, by_ring: false, is_makeshift: !may_make };
        ways.push(way);
        Ok(path)
    }

    /// The ring that packets to a QP pass through instead of the wire, and what they say in front,
    /// if they do; `none_waits` says that none waits to be sent by the wire.
    pub(crate) fn ring(&self, dest_qpn: u32, none_waits: bool) -> Option<(Arc<RingTo>, Ends)> {
        if !has_ring(dest_qpn) {
            return None;
        }
        let slot = slot_of(dest_qpn);
        let mut ways = self.ways();
        let ring = ways.iter_mut().find(|known| known.slot == slot)?.ring(none_waits)?.clone();
        let Path { src, dst, traffic_class, hop_limit, .. } = self.path;
        let (src, dst) = (src.to_canonical(), dst.to_canonical());
        Some((ring, Ends { src, dst, traffic_class, hop_limit }))
    }

    /// A packet went by the wire because its ring was full: those that follow do not overtake it.
    #[cold]
    pub(crate) fn leave_ring(&self, dest_qpn: u32) {
        let slot = slot_of(dest_qpn);
        if let Some(way) = self.ways().iter_mut().find(|known| known.slot == slot) {
            way.by_ring = false;
        }
    }

    /// Whether the way there was taken before, and found as [`AddressHandle::way`] does.
    pub(crate) fn knows_way(&self, dest_qpn: u32) -> bool {
        let slot = slot_of(dest_qpn);
        self.ways().iter().any(|known| known.slot == slot && !known.is_makeshift)
    }

    fn ways(&self) -> MutexGuard<'_, SmallVec<[Way; 1]>> {
        lock(&self.ways)
    }
}

fn slot_of(dest_qpn: u32) -> u32 {
    dest_qpn >> registry::QPN_INDEX_BITS
}

/// What is for a host's management, or for many, goes by the wire.
fn has_ring(dest_qpn: u32) -> bool {
    ManagementInterface::of(dest_qpn).is_none() && dest_qpn != MULTICAST_QPN
}

impl Destination for AddressHandle {
    fn attr(&self) -> &AhAttr {
        &self.attr
    }

    fn pd_id(&self) -> Option<PdId> {
        Some(self.pd.id())
    }
}

/// The handle that a destination is: every one of a device is.
pub(crate) fn handle_of(to: &dyn Destination) -> Option<&AddressHandle> {
    (to as &dyn Any).downcast_ref()
}
