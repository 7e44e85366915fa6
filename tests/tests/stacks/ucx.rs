//! UCX, unmodified: what it says of the device, its benchmark of every operation, and its examples,
//! which compare what arrives with what was sent.

use std::time::{Duration, Instant};
use system::{
    Counters, Packets, Run, UCX_PERFTEST_ENV, c_example, c_program, lacks_ucx, pair, port, skip,
    ucx_perftest,
};

/// Transport lists of UCX that leave it nothing but our device; `rc_v` brings UD for its first
/// messages.
const OVER: [&str; 2] = ["rc_v", "ud_v"];

/// The syndrome of a NAK that says so, as tshark writes it.
const REMOTE_ACCESS_ERROR: &str = "98";

macro_rules! need_ucx {
    () => {
        if let Some(reason) = lacks_ucx() {
            skip!("{reason}");
        }
    };
}

fn ucx(line: &str, transports: &str, counters: &Counters) -> Run {
    Run::hca(line)
        .env("UCX_TLS", transports)
        .env("UCX_NET_DEVICES", "peerdma0:1")
        .env(UCX_PERFTEST_ENV.0, UCX_PERFTEST_ENV.1)
        .env("PEERDMA_COUNTERS", counters.file())
}

/// Runs a server and a client that meet at a TCP port, written PORT in `line`.
fn meet(line: &str, transports: &str, client: &str) -> String {
    let (port, counters) = (port(), Counters::new());
    let line = line.replace("PORT", &port.to_string());
    let server = ucx(&line, transports, &counters);
    let (_, client) =
        pair(server, None, ucx(&format!("{line} {client}"), transports, &counters), port);
    assert_ne!(counters.sum("sent_pkts"), 0, "{client}: nothing went over the wire");
    client.stdout
}

#[test]
fn it_finds_reliable_and_unreliable_transports() {
    need_ucx!();
    let info = Run::hca("ucx_info -d").finish().ok();
    let device = info.stdout.split("# Memory domain: ").find(|part| part.starts_with("peerdma0"));
    let device = device.unwrap_or_else(|| panic!("no memory domain peerdma0: {info}"));
    let lines: Vec<&str> = device.lines().map(|line| line.trim_start_matches(['#', ' '])).collect();
    for wanted in [
        "Transport: rc_verbs",
        "Transport: ud_verbs",
        "atomic_add: 64 bit",
        "atomic_fadd: 64 bit",
        "atomic_cswap: 64 bit",
        "Connection manager: rdmacm",
    ] {
        assert!(lines.contains(&wanted), "{wanted}: {device}");
    }
}

#[test]
fn every_operation_is_measured() {
    need_ucx!();
    for transports in OVER {
        for test in [
            "ucp_put_lat -s 8 -n 200",
            "ucp_put_bw -s 65536 -n 100",
            "ucp_get -s 100000 -n 50",
            "ucp_add -s 8 -n 200",
            "ucp_fadd -s 8 -n 100",
            "ucp_swap -s 8 -n 100",
            "ucp_cswap -s 4 -n 100",
            "tag_lat -s 8 -n 200",
            "tag_bw -s 1000000 -n 20",
            "stream_lat -s 8 -n 200",
            "stream_bw -s 65536 -n 100",
            "ucp_am_lat -s 8 -n 200",
            "ucp_am_bw -s 100000 -n 50",
        ] {
            meet(
                &format!("{} -f -p PORT", ucx_perftest()),
                transports,
                &format!("-t {test} 127.0.0.1"),
            );
        }
    }
}

/// A put of 8 bytes is a packet of its own, and UCX asks for a completion of one in many.
#[test]
fn a_flood_of_small_puts_ends() {
    need_ucx!();
    let line = format!("{} -f -p PORT", ucx_perftest());
    meet(&line, "rc_v", "-t ucp_put_bw -s 8 -n 100000 127.0.0.1");
}

#[test]
fn messages_arrive_as_sent() {
    need_ucx!();
    let program = match c_example("libucx-dev", "ucp_hello_world", &["-lucp", "-lucs"]) {
        Ok(program) => program,
        Err(reason) => skip!("{reason}"),
    };
    for transports in OVER {
        // Woken by epoll, by a descriptor, and polling.
        for how in ["-w", "-f", "-b"] {
            let line = format!("{} {how} -s 100000 -p PORT", program.display());
            meet(&line, transports, "-n 127.0.0.1");
        }
    }
}

#[test]
fn short_buffered_and_direct_sends_arrive() {
    need_ucx!();
    let program = match c_example("libucx-dev", "uct_hello_world", &["-luct", "-lucs"]) {
        Ok(program) => program,
        Err(reason) => skip!("{reason}"),
    };
    for transport in ["rc_verbs", "ud_verbs"] {
        for how in ["-i", "-b", "-z"] {
            let line =
                format!("{} -d peerdma0:1 -t {transport} {how} -s 60 -p PORT", program.display());
            let said = meet(&line, "all", "-n 127.0.0.1");
            assert!(said.contains(&format!("Using {transport}/peerdma0:1")), "{said}");
        }
    }
}

#[test]
fn connections_by_address() {
    need_ucx!();
    let program = match c_example("libucx-dev", "ucp_client_server", &["-lucp", "-lucs"]) {
        Ok(program) => program,
        Err(reason) => skip!("{reason}"),
    };
    for transports in OVER {
        for how in ["stream", "tag", "am"] {
            let counters = Counters::new();
            // One round: two active messages that arrive at once confuse the example.
            let line = format!("{} -c {how} -i 1 -s 20000 -p {}", program.display(), port());
            let mut server = ucx(&line, transports, &counters).start();
            let begun = Instant::now();
            // It listens by rdma_cm, and serves for ever.
            loop {
                let client = ucx(&format!("{line} -a 127.0.0.1"), transports, &counters).finish();
                let received = server.said();
                if client.succeeded()
                    && received.contains(&"ABCDEFGHIJKLMNOPQRSTUVWXYZ".repeat(700))
                {
                    break;
                }
                let late = begun.elapsed() > Duration::from_secs(60) || client.timed_out;
                assert!(!late && server.alive(), "{client}\nserver: {received}");
            }
        }
    }
}

/// From 1.14 on a strong fence is a READ of 8 bytes at address 0 under a key that the peer's
/// endpoint told, which only mlx5's memory domain makes. Where there is none UCX has its
/// `UCT_IB_MD_INVALID_FLUSH_RKEY` for it, and a build that leaves its checks out reads under that.
/// No region ever has that key, so the READ is refused, and nothing else is. Older releases flush.
#[test]
fn only_a_fence_without_a_key_is_refused() {
    need_ucx!();
    let program = match c_program("ucx_fence") {
        Ok(program) if system::has("tshark") => program,
        Ok(_) => skip!("tshark is not installed"),
        Err(reason) => skip!("{reason}"),
    };
    let folder = tempfile::tempdir().expect("a temporary folder");
    for mode in ["weak", "strong"] {
        let (trace, counters) = (folder.path().join(mode), Counters::new());
        let run = ucx(&program.display().to_string(), "rc_v", &counters);
        let run = run.option("--trace").option(&trace).env("UCX_FENCE_MODE", mode);
        let ended = run.finish().ok();
        assert!(ended.stdout.contains("memory: as it was put"), "{mode}: {ended}");
        let packets = Packets::of(&trace);
        let reads = packets.count_by(&[
            "infiniband.bth.opcode",
            "infiniband.reth.va",
            "infiniband.reth.r_key",
            "infiniband.reth.dmalen",
        ]);
        let keyless = reads.contains_key("12 0x0000000000000000 0x000000ff 8");
        let answers = packets.count_by(&["infiniband.aeth.syndrome"]);
        let refused = answers.keys().any(|syndrome| syndrome == REMOTE_ACCESS_ERROR);
        assert_eq!(keyless, refused, "{mode}: {reads:?} {answers:?}");
        assert_eq!(keyless, !ended.stdout.contains("flush: Success"), "{mode}: {ended}");
        assert!(mode == "strong" || !keyless, "{mode}: {ended}");
    }
}
