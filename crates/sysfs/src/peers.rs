//! A Peer-Direct client as `/sys/kernel/mm/memory_peers` shows it (MOFED `core/peer_mem.c`).

use crate::tree::{Builder, Entry};

/// Where the clients are.
pub const PEERS: &str = "kernel/mm/memory_peers";

/// Name of the software GPU's client.
pub const PEER_CLIENT: &str = "peerdma_gpu";

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
