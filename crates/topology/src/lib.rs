//! Machines as other tools describe them.
//!
//! [`read`] takes whatever a person has: this machine (`/`), a folder or archive with a `/sys` in it, the text of `lspci`,
//! NCCL's or hwloc's XML, a dump of rdma-core's `rdma_topo`, a platform file. All become one [`Capture`] around a
//! [`pcie::Machine`]. What a source does not say stays unknown; it is never taken for off. A source may be hostile: it costs bounded
//! time and memory, and its names hold nothing that a terminal obeys.
#![forbid(unsafe_code)]

mod archive;
mod assemble;
mod bounds;
mod capture;
mod config;
mod detect;
mod distinct;
mod error;
mod hwloc;
mod kinds;
mod lspci;
mod lspci_mm;
mod lspci_tree;
mod nccl;
mod products;
mod rdma_topo;
mod roles;
mod smi;
mod source;
mod sysfs;
mod xml;

pub use bounds::printable;
pub use capture::{CONFIDENTIAL, LIBMLX5, take, take_with};
pub use detect::{Capture, Format, dump_file, of_tree, parse, read, take_file, this_machine, tree};
pub use error::Error;
pub use rdma_topo::dump;
pub use roles::{accelerators, adapters, is_rdma_name};
pub use source::{Folder, Tree};
pub use sysfs::release;
