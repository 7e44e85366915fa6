//! Machines as other tools describe them.
//!
//! [`read`] takes whatever a person has: this machine (`/`), a folder or archive with a `/sys` in it, the text of `lspci`,
//! NCCL's or hwloc's XML, a dump of rdma-core's `rdma_topo`, a platform file. All become one [`Capture`] around a
//! [`pcie::Machine`]. What a source does not say stays unknown; it is never taken for off.
#![forbid(unsafe_code)]

mod archive;
mod assemble;
mod config;
mod detect;
mod distinct;
mod error;
mod hwloc;
mod kinds;
mod lspci;
mod lspci_tree;
mod nccl;
mod rdma_topo;
mod roles;
mod smi;
mod source;
mod sysfs;
mod take;

pub use detect::{Capture, Format, of_tree, parse, read, take_file, this_machine, tree};
pub use error::Error;
pub use rdma_topo::dump;
pub use roles::{accelerators, adapters};
pub use source::{Folder, Tree};
pub use take::take;
