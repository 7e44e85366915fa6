//! A Peer-Direct client as `/sys/kernel/mm/memory_peers` shows it (MOFED `core/peer_mem.c`).

use crate::tree::{Builder, Entry, Node};

/// Where the clients are.
pub const PEERS: &str = "kernel/mm/memory_peers";

/// Name of the software GPU's client.
pub const PEER_CLIENT: &str = "peerdma_gpu";

/// Name of nvidia-peermem's client (`nvidia-peermem.c`), by which UCX and NCCL know that memory of
/// CUDA can be registered by its address.
pub const CUDA_PEER_CLIENT: &str = "nv_mem";

/// The software GPU's client under the name that programs of CUDA look for.
pub fn cuda_peer_entry() -> Entry {
    let path = format!("{PEERS}/{CUDA_PEER_CLIENT}");
    Entry { path, node: Node::Link(PEER_CLIENT.to_owned()) }
}

/// What a client shows before it was asked anything; `files` are the version's and the counters'
/// names.
pub fn peer_entries(client: &str, version: &str, files: &[&str]) -> Vec<Entry> {
    let mut tree = Builder::default();
    for file in files {
        let text = if *file == "version" { format!("{version}\n") } else { "0\n".to_owned() };
        tree.file(&format!("{PEERS}/{client}/{file}"), text);
    }
    tree.entries
}
