//! libfabric's verbs provider, unmodified: its ping-pong over every kind of endpoint, every message
//! compared.
//!
//! The provider passes over the loopback interface, so two namespaces joined by a wire are the
//! least it takes.

use system::{Counters, Namespace, Run, is_root, pair, port, skip, veth_pair};

macro_rules! need_libfabric {
    () => {
        if !system::has("fi_pingpong") {
            skip!("libfabric is not installed (package libfabric-bin)");
        }
        if !is_root() {
            skip!("network namespaces need root");
        }
    };
}

fn pingpong(endpoint: &str, sizes: &[u32], ends: &(Namespace, Namespace)) {
    for size in sizes {
        let (port, counters) = (port(), Counters::new());
        let run = |line: String| Run::hca(&line).env("PEERDMA_COUNTERS", counters.file());
        let line = format!("fi_pingpong -c -I 20 -S {size} {endpoint}");
        let server = run(format!("{line} -B {port}")).within(&ends.0);
        let client = run(format!("{line} -P {port} 198.18.9.1")).within(&ends.1);
        let (_, client) = pair(server, Some(&ends.0), client, port);
        assert!(client.stdout.contains("=20"), "{client}");
        assert_ne!(counters.sum("sent_pkts"), 0, "{client}: nothing went over the wire");
    }
}

#[test]
fn it_finds_every_kind_of_endpoint() {
    need_libfabric!();
    let (here, _there) = veth_pair("fi", 1500);
    let info = Run::hca("fi_info -p verbs").within(&here).finish().ok();
    for wanted in [
        "protocol: FI_PROTO_RDMA_CM_IB_RC",
        "protocol: FI_PROTO_IB_UD",
        "protocol: FI_PROTO_RXM",
        "protocol: FI_PROTO_RXD",
    ] {
        assert!(info.stdout.contains(wanted), "{wanted}: {info}");
    }
}

#[test]
fn messages() {
    need_libfabric!();
    pingpong("-p verbs -e msg", &[64, 1000, 1_000_000], &veth_pair("fi", 1500));
}

#[test]
fn reliable_datagrams_over_connections() {
    need_libfabric!();
    pingpong("-p verbs;ofi_rxm -e rdm", &[64, 20_000, 1_000_000], &veth_pair("fi", 1500));
}

#[test]
fn reliable_datagrams_over_unreliable_ones() {
    need_libfabric!();
    // In packets of 1 KiB a message is longer than the receive queue. What finds it empty is lost,
    // as on every adapter, and ofi_rxd of libfabric 2.1 does not always send it again.
    pingpong("-p verbs;ofi_rxd -e rdm", &[64, 100_000], &veth_pair("fi", 9000));
}

#[test]
fn datagrams() {
    need_libfabric!();
    pingpong("-p verbs -e dgram", &[64, 1000], &veth_pair("fi", 1500));
}
