//! What a function sees of the machine it is plugged into.

use std::sync::Arc;
use umem::DmaSpace;

/// The machine around a PCI function.
pub trait Bus: Send + Sync {
    /// Memory as the function addresses it (guest-physical addresses, or those of its IOMMU).
    fn memory(&self) -> Arc<dyn DmaSpace>;
    /// Raises an MSI-X vector. Called with locks held: it must only signal.
    fn interrupt(&self, vector: u16);
}
