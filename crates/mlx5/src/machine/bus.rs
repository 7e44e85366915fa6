//! What a function sees of the machine it is plugged into.

use pcie::Route;
use std::sync::Arc;
use umem::DmaSpace;

/// How one PCI function reaches memory.
#[derive(Clone)]
pub struct Dma {
    /// Memory as the function addresses it (guest-physical addresses, or those of its IOMMU).
    pub memory: Arc<dyn DmaSpace>,
    /// The way of the bytes, which counts them. Of the driver's queues and lists nothing is
    /// counted.
    pub route: Arc<Route>,
}

/// The machine around a PCI function.
pub trait Bus: Send + Sync {
    /// How the function itself reaches memory.
    fn dma(&self) -> Dma;
    /// How its Data Direct function does, if it has one.
    fn data_direct(&self) -> Option<Dma> {
        None
    }
    /// Whether some memory is reached by messages to the machine: it takes no answer in the thread
    /// that it writes registers by.
    fn by_messages(&self) -> bool {
        false
    }
    /// Raises an MSI-X vector. Called with locks held: it must only signal.
    fn interrupt(&self, vector: u16);
    /// The function's own memory.
    fn memory(&self) -> Arc<dyn DmaSpace> {
        self.dma().memory
    }
}
