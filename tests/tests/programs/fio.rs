//! fio's RDMA engine, unmodified: its verbs between two processes, which sleep until completions
//! come and end by `_exit(2)`.

use std::time::Duration;
use system::{Namespace, Run, is_root, port, skip};

const LIMIT: Duration = Duration::from_secs(60);
const BYTES: u64 = 8 << 20;

/// How often a job is tried whose receiver came too late.
const TRIES: u32 = 20;
/// The race is fio's own, on every device. `fio_rdmaio_connect` and `fio_rdmaio_accept`
/// (engines/rdma.c) leave `rnr_retry_count` at 0, so the first message to a receiver without a
/// buffer ends the connection, as cma's test of both ends shows that 0 means. Each end posts its
/// buffers once its job runs, and the sender does nothing to learn of that but sleep for half a
/// second (`usleep(500000)` "to avoid RNR"), which on a busy machine is too short at times.
const TOO_LATE: &str = "RNR retry counter exceeded";

/// Both ends end well, the last message included.
fn moves(verb: &str, namespace: &Namespace) {
    let tries = (1..=TRIES).any(|attempt| attempt_to_move(verb, namespace, attempt == TRIES));
    assert!(tries, "{verb}: the receiver was late each time");
}

/// Whether the receiver was in time.
fn attempt_to_move(verb: &str, namespace: &Namespace, last: bool) -> bool {
    let port = port();
    let job = |end: &str| {
        // A receiver that has fewer buffers than the sender has messages under way is not ready for
        // them, and fio tries once.
        let line = format!("fio --ioengine=rdma --port={port} --bs=64k --size={BYTES} {end}");
        Run::hca(&line).within(namespace).limit(LIMIT)
    };
    let mut server = job("--name=receiver --rw=read --iodepth=64").start();
    server.until("no server", |server| server.said().contains("waiting for connection"));
    let sender = format!("--name=sender --rw=write --iodepth=4 --hostname=127.0.0.1 --verb={verb}");
    let mut client = job(&sender).start();
    while client.alive() {
        if !last && client.said().contains(TOO_LATE) {
            return false;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    let client = client.finish().ok();
    let server = server.finish().ok();
    for end in [&client, &server] {
        assert!(!end.to_string().contains("completion status"), "{verb}: {end}");
    }
    let moved = client.stdout.contains("io=8192KiB") || client.stdout.contains("io=8.0MiB");
    assert!(moved, "{verb}: {client}");
    true
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
