//! qperf, unmodified: its tests over reliable connections made by rdma_cm, the atomics that check
//! what they count among them.

use std::time::Duration;
use system::{Counters, Namespace, Run, is_root, listening, port, skip};

/// qperf measures each for a second.
const ROWS: [&str; 7] = [
    "rc_bw",
    "rc_bi_bw",
    "rc_lat",
    "rc_rdma_write_bw",
    "rc_rdma_read_lat",
    "ver_rc_compare_swap",
    "ver_rc_fetch_add",
];

macro_rules! network {
    () => {{
        if !system::has("qperf") {
            skip!("qperf is not installed");
        }
        if !is_root() {
            skip!("network namespaces need root");
        }
        Namespace::new("qperf")
    }};
}

/// What a client says of `rows`, asking for rdma_cm to connect or not.
fn ask(rows: &[&str], by_cm: bool, network: &Namespace, counters: &Counters) -> system::Finished {
    let port = port();
    let run = |line: &str| {
        let run = Run::hca(&format!("qperf --listen_port {port} {line}")).within(network);
        run.env("PEERDMA_COUNTERS", counters.file()).limit(Duration::from_secs(60))
    };
    let mut server = run("").start();
    listening(port, Some(network), &mut server);
    let cm = u32::from(by_cm);
    run(&format!("-cm {cm} --time 1 127.0.0.1 {}", rows.join(" "))).finish()
}

/// What a client says of `row`. qperf's server tells its port before it listens there, so a client
/// may come early, is rejected as by any adapter, and does not try again.
fn ask_by_cm(row: &str, network: &Namespace, counters: &Counters) -> system::Finished {
    let came_early = |said: &system::Finished| said.stdout.contains("Event rejected");
    let mut tries = (0..10).map(|_| ask(&[row], true, network, counters));
    tries.find(|said| !came_early(said)).expect("a client that did not come early").ok()
}

#[test]
fn reliable_connections_are_measured() {
    let network = network!();
    let counters = Counters::new();
    for row in ROWS {
        let said = ask_by_cm(row, &network, &counters);
        assert!(said.stdout.contains(&format!("{row}:\n")), "{row}: {said}");
        let measured = |line: &&str| line.contains(" =  ") && !line.contains(" =  0 ");
        assert_eq!(said.stdout.lines().filter(measured).count(), 1, "{said}");
    }
    assert!(counters.sum("sent_bytes") + counters.sum("rcvd_bytes") > 1 << 20);
}

/// Without rdma_cm qperf names its peer by LID, which no RoCE port has: the address lacks its GRH,
/// and adapters refuse it as this one does. Its tests of datagrams know no other way.
#[test]
fn addresses_without_a_gid_are_refused() {
    let network = network!();
    for (row, refusal) in [
        ("rc_lat", "failed to modify QP to RTR: Invalid argument"),
        ("ud_lat", "failed to create address handle: Invalid argument"),
    ] {
        let said = ask(&[row], false, &network, &Counters::new());
        assert!(!said.succeeded() && said.to_string().contains(refusal), "{row}: {said}");
    }
}
