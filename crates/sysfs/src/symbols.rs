//! Functions of the kernel's RDMA core as `/proc/kallsyms` lists them: libfabric, for one, looks
//! there for what can be registered beside the host's memory.

use crate::tree::{Builder, Entry};

/// Each with the module that has it: dma-bufs are mainline's (`core/umem_dmabuf.c`), Peer-Direct is
/// MOFED's (`core/peer_mem.c`).
const FUNCTIONS: [(&str, &str); 2] =
    [("ib_umem_dmabuf_get", "ib_uverbs"), ("ib_register_peer_memory_client", "ib_core")];

/// What an RDMA core that takes dma-bufs and Peer-Direct clients adds to the machine's list. No
/// address is told, as to a program without privilege.
pub fn symbol_entries() -> Vec<Entry> {
    let mut tree = Builder::default();
    let line = |(name, module)| format!("{:016x} T {name}\t[{module}]\n", 0);
    tree.file("proc/kallsyms", FUNCTIONS.map(line).concat());
    tree.entries
}
