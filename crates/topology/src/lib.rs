//! Machines as other tools describe them.
//!
//! [`read`] takes whatever a person has: this machine (`/`), a folder or archive with a `/sys` in
//! it, the text of `lspci`, NCCL's or hwloc's XML, a dump of rdma-core's `rdma_topo`, a platform
//! file. All become one [`Capture`] around a [`pcie::Machine`]. What a source does not say stays
//! unknown; it is never taken for off. A source may be hostile: it costs bounded time and memory,
//! and its names hold nothing that a terminal obeys.
//!
//! Three rooms, each above the next: `readers` has one for each form, `model` makes the machine of
//! what they find, `source` holds files and text. `detect` chooses the reader, `capture` takes a
//! machine home.
#![forbid(unsafe_code)]

mod capture;
mod detect;
mod model;
mod readers;
mod source;

pub use capture::{CONFIDENTIAL, LIBMLX5, take, take_with};
pub use detect::{Capture, Format, dump_file, of_tree, parse, read, take_file, this_machine, tree};
pub use model::roles::{accelerators, adapters, is_rdma_name};
pub use readers::rdma_topo::dump;
pub use readers::sysfs::release;
pub use source::bounds::printable;
pub use source::error::Error;
pub use source::tree::{Folder, Tree};
