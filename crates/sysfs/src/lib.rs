//! The sysfs face of a software HCA: what Linux shows under `/sys/class/infiniband`.
//!
//! A pure generator. Given a [`DeviceDescription`] it says which directories, files and links the
//! kernel would show ([`entries`]), writes them as a tree below a folder ([`write_tree`]), and
//! answers the content of one attribute again whenever it is read ([`content`], [`port_content`]),
//! so that GIDs and counters can change while a program runs. What ports of a software HCA have in
//! common is said once ([`Port::roce`]). Names and formats are those of
//! `drivers/infiniband/core/sysfs.c`, `uverbs_main.c` and `drivers/pci/pci-sysfs.c`.
//!
//! A software GPU's DRM nodes are shown too ([`drm_entries`]), its Peer-Direct client
//! ([`peer_entries`]), and functions of an RDMA core that programs look for ([`symbol_entries`]).
//!
//! The tree has the kernel's shape: real directories below `devices/pci…`, links to them from
//! `class/…` and `bus/pci/devices`. Beside it, `dev/infiniband/` holds one link to `/dev/null` for
//! each uverbs node and one for `rdma_cm`, and `dev/dri/` one for each node of a GPU: a program
//! that only asks whether the node is a character device it may open gets the answer it would get
//! from the kernel, without privilege.
#![forbid(unsafe_code)]

mod attributes;
mod description;
mod drm;
mod pci;
mod peers;
mod roce;
mod symbols;
mod tree;

pub use attributes::{content, identity, is_answered, node_desc, port_content};
pub use description::{
    Counter, DeviceDescription, Gid, LaneSpeed, LinkLayer, PhysState, Port, PortState, Rate,
    STANDARD_COUNTERS,
};
pub use drm::{DRM_MAJOR, DRM_RENDER_BASE_MINOR, DrmMemory, DrmNodes, drm_entries, drm_node};
pub use pci::{PciFunction, pci_directory};
pub use peers::{CUDA_PEER_CLIENT, PEER_CLIENT, PEERS, cuda_peer_entry, peer_entries};
pub use symbols::symbol_entries;
pub use tree::{Entry, Node, entries, pci_entries, write_entries, write_tree};

/// The environment variable that names the tree's root for the interposition layer.
pub const ROOT_VARIABLE: &str = "PEERDMA_SYSFS";

/// Version of the uverbs command ABI as `class/infiniband_verbs/abi_version` shows it.
pub const UVERBS_ABI_VERSION: u32 = 6;

/// Version of the umad ABI; `ibstat` refuses to list devices without it.
pub const UMAD_ABI_VERSION: u32 = 5;

/// Version of the connection manager's command ABI as `class/misc/rdma_cm/abi_version` shows it.
pub const RDMA_CM_ABI_VERSION: u32 = 4;

/// Major device number of miscellaneous devices, of which the connection manager's is one.
pub const MISC_MAJOR: u32 = 10;

/// Minor device number of `rdma_cm`, which the kernel hands out dynamically.
pub const RDMA_CM_MINOR: u32 = 122;

/// Major device number of uverbs nodes.
pub const UVERBS_MAJOR: u32 = 231;

/// Minor device number of `uverbs0`.
pub const UVERBS_BASE_MINOR: u32 = 192;
