//! What a function reaches: its machine's memory and interrupts.

use crate::interrupts::Interrupts;
use crate::map::DmaMap;
use crate::neighbours::{Neighbours, Windows};
use std::sync::Arc;
use umem::DmaSpace;

/// The machine that a function is plugged into, as the function sees it. Made before the function,
/// which keeps a clone; it stays the same through reboots and clients, and while there is no client
/// nothing is mapped and interrupts are dropped.
#[derive(Clone, Debug, Default)]
pub struct Host {
    pub(crate) map: Arc<DmaMap>,
    pub(crate) interrupts: Arc<Interrupts>,
    pub(crate) windows: Arc<Windows>,
}

impl Host {
    /// A host without a machine yet.
    pub fn new() -> Host {
        Host::default()
    }

    /// A host without a machine yet. Once that is the machine of `neighbours` too, this function
    /// reaches the BARs of theirs that are plain memory as it reaches the machine's own, without a
    /// message.
    pub fn beside(neighbours: &Neighbours) -> Host {
        let map = Arc::new(DmaMap::beside(neighbours.clone()));
        Host { map, interrupts: Arc::default(), windows: neighbours.join() }
    }

    /// Memory under the addresses that the guest's driver hands to the device: guest-physical ones,
    /// or an IOMMU's.
    ///
    /// An access that lies in several mapped ranges is split at their borders; one that leaves them
    /// fails with [`umem::AccessError::Fault`], and bytes before that place may have been moved. So
    /// does every access while the driver has not made the function a bus master. Once the guest is
    /// told that a range is unmapped, no access to it is under way.
    ///
    /// Memory that came without a descriptor is reached by messages to the client, which answers
    /// none to the thread that serves it: from [`crate::Function`]'s calls such an access is a
    /// fault, but for writes that [take time](crate::Function::takes_time), and atomic operations
    /// there always are.
    pub fn memory(&self) -> Arc<dyn DmaSpace> {
        self.map.clone()
    }

    /// Whether memory that the function may write is reached by messages now: BARs of functions
    /// that somebody else serves.
    pub fn writes_by_messages(&self) -> bool {
        self.map.writes_by_messages()
    }

    /// Raises interrupt `vector`. Dropped where the driver has none there.
    pub fn interrupt(&self, vector: u16) {
        self.interrupts.raise(vector);
    }
}
