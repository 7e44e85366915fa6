//! The PCI function: its BARs, doorbell pages and the initialization segment.

pub(crate) mod connectx;
pub(crate) mod data_direct;
pub(crate) mod doorbells;
pub(crate) mod init_segment;
pub(crate) mod pci;
