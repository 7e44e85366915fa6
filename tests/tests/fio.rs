//! fio's RDMA engine, unmodified: its verbs between two processes, which sleep until completions come and end by `_exit(2)`.

use std::time::Duration;
use system::{Namespace, Run, is_root, port, skip};

const LIMIT: Duration = Duration::from_secs(60);
const BYTES: u64 = 8 << 20;

/// Both ends end well, the last message included.
fn moves(verb: &str, namespace: &Namespace) {
    let port = port();
    let job = |end: &str| {
        // A receiver that has fewer buffers than the sender has messages under way is not ready for them, and fio tries once.
        let line = format!("fio --ioengine=rdma --port={port} --bs=64k --size={BYTES} {end}");
        Run::hca(&line).within(namespace).limit(LIMIT)
    };
    let mut server = job("--name=receiver --rw=read --iodepth=64").start();
    server.until("no server", |server| server.said().contains("waiting for connection"));
    let sender = format!("--name=sender --rw=write --iodepth=4 --hostname=127.0.0.1 --verb={verb}");
    let client = job(&sender).finish().ok();
    let server = server.finish().ok();
    for end in [&client, &server] {
        assert!(!end.to_string().contains("completion status"), "{verb}: {end}");
    }
    let moved = client.stdout.contains("io=8192KiB") || client.stdout.contains("io=8.0MiB");
    assert!(moved, "{verb}: {client}");
}

#[test]
fn every_verb_moves_all_bytes_and_ends_well() {
    if !system::has("fio") {
        skip!("fio is not installed");
    }
    if !is_root() {
        skip!("network namespaces need root");
    }
    let namespace = Namespace::new("fio");
    for verb in ["write", "read", "send"] {
        moves(verb, &namespace);
    }
}
