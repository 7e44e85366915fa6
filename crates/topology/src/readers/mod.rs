//! One reader for each form in which a machine is described. A reader takes text or a tree and
//! answers what it says of the machine; which reader a file is for, `detect` finds out.

pub mod hwloc;
pub mod lspci;
mod lspci_mm;
pub mod lspci_tree;
pub mod nccl;
pub mod rdma_topo;
pub mod smi;
pub mod sysfs;
pub mod xml;
