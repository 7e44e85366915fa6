//! Address handles: a datagram destination, resolved once.

use crate::device::{Device, Way};
use crate::pd::{Belonging, Pd};
use link::{Losses, Path};
use smallvec::SmallVec;
use std::any::Any;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use transport::Result;
use transport::values::PdId;
use transport::values::{AhAttr, Destination};

/// Ways that a handle keeps. A host has more slots than one program sends to by turns.
const KEPT_WAYS: usize = 16;

/// A resolved datagram destination.
pub struct AddressHandle {
    pd: Belonging,
    attr: AhAttr,
    path: Path,
    /// One way for each slot of the destination host that was sent to, the oldest first: a GSO train must not mix slots (D6).
    ways: Mutex<SmallVec<[(u32, Way); 1]>>,
}

impl std::fmt::Debug for AddressHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "AddressHandle {{ {} -> {} }}", self.path.src, self.path.dst)
    }
}

impl AddressHandle {
    pub(crate) fn new(device: &Device, pd: &Arc<Pd>, attr: AhAttr) -> Result<Arc<AddressHandle>> {
        let path = device.path(&attr)?;
        let pd = Belonging::new(pd);
        Ok(Arc::new(AddressHandle { pd, attr, path, ways: Mutex::default() }))
    }

    /// Ends the handle's life for the program: its domain may go. Requests already posted keep the destination.
    pub fn destroy(&self) {
        self.pd.end();
    }

    /// The way to the process that owns a QP. The first to a process takes long: see [`Device::way`].
    pub(crate) fn way(&self, device: &Device, dest_qpn: u32) -> Result<Way> {
        let slot = dest_qpn >> 14;
        if let Some((_, way)) = self.ways().iter().find(|(known, _)| *known == slot) {
            return Ok(way.clone());
        }
        let way = device.way(self.path, dest_qpn, Losses::Final)?;
        let mut ways = self.ways();
        if ways.len() >= KEPT_WAYS {
            ways.remove(0);
        }
        ways.push((slot, way.clone()));
        Ok(way)
    }

    /// Whether the way there was taken before.
    pub(crate) fn knows_way(&self, dest_qpn: u32) -> bool {
        self.ways().iter().any(|(known, _)| *known == dest_qpn >> 14)
    }

    fn ways(&self) -> MutexGuard<'_, SmallVec<[(u32, Way); 1]>> {
        self.ways.lock().unwrap_or_else(PoisonError::into_inner)
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
