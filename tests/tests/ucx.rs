//! UCX, unmodified: what it says of the device, its benchmark of every operation, and its examples, which compare what
//! arrives with what was sent.

use std::time::{Duration, Instant};
use system::{Counters, Run, UCX_PERFTEST_ENV, c_example, pair, port, skip, ucx_perftest};

/// Transport lists of UCX that leave it nothing but our device; `rc_v` brings UD for its first messages.
const OVER: [&str; 2] = ["rc_v", "ud_v"];

macro_rules! need_ucx {
    () => {
        if !system::has("ucx_perftest") {
            skip!("UCX is not installed (package ucx-utils)");
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
                let late = begun.elapsed() > Duration::from_secs(20) || client.timed_out;
                assert!(!late && server.alive(), "{client}\nserver: {received}");
            }
        }
    }
}
