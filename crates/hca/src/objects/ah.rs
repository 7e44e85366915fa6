//! Address handles: a datagram destination, resolved once.

use crate::adapter::Adapter;
use crate::adapter::paths::PeerPath;
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
    ways: Mutex<SmallVec<[(u32, PeerPath); 1]>>,
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
        let slot = dest_qpn >> registry::QPN_INDEX_BITS;
        if let Some((_, way)) = self.ways().iter().find(|(known, _)| *known == slot) {
            return Ok(way.clone());
        }
        let way = adapter.way(self.path, dest_qpn, Losses::Final)?;
        let mut ways = self.ways();
        if ways.len() >= KEPT_WAYS {
            ways.remove(0);
        }
        // Most handles need the one place that they have.
        let no_memory = |_| Error::NoMemory("no memory for the way to another process");
        ways.try_reserve(1).map_err(no_memory)?;
        ways.push((slot, way.clone()));
        Ok(way)
    }

    /// Whether the way there was taken before.
    pub(crate) fn knows_way(&self, dest_qpn: u32) -> bool {
        self.ways().iter().any(|(known, _)| *known == dest_qpn >> registry::QPN_INDEX_BITS)
    }

    fn ways(&self) -> MutexGuard<'_, SmallVec<[(u32, PeerPath); 1]>> {
        lock(&self.ways)
    }
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
