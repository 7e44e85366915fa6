//! Asking for RDMA devices over netlink: `rdma` of iproute2, unmodified, and what other programs do
//! with such a socket.

use system::{Namespace, Run, c_program, has, is_root, judged, skip};

macro_rules! network {
    () => {{
        if !has("rdma") {
            skip!("rdma is not installed (package iproute2)");
        }
        if !is_root() {
            skip!("a network namespace needs root");
        }
        Namespace::new("rdma")
    }};
}

/// What `rdma -j` said.
fn json(network: &Namespace, line: &str) -> serde_json::Value {
    let ended = Run::hca(line).within(network).finish().ok();
    serde_json::from_str(&ended.stdout).unwrap_or_else(|error| panic!("{error}: {ended}"))
}

#[test]
fn devices_and_links_are_shown() {
    let network = network!();
    let devices = Run::hca("rdma dev").within(&network).finish().ok();
    assert!(devices.stdout.starts_with("0: peerdma0: node_type ca"), "{devices}");
    let links = json(&network, "rdma link show -j");
    let link = &links[0];
    assert_eq!(links.as_array().map(Vec::len), Some(1), "{links}");
    assert_eq!((&link["ifname"], &link["port"]), (&"peerdma0".into(), &1.into()), "{link}");
    assert_eq!((&link["state"], &link["netdev"]), (&"ACTIVE".into(), &"lo".into()), "{link}");
    let one = Run::hca("rdma link show peerdma0/1").within(&network).finish().ok();
    assert!(one.stdout.contains("physical_state LINK_UP"), "{one}");
    let others = Run::hca("rdma link show peerdma7/1").within(&network).finish();
    assert!(!others.succeeded() || others.stderr.contains("Wrong device name"), "{others}");
}

#[test]
fn who_uses_a_device_is_shown() {
    let network = network!();
    if !has("ibv_rc_pingpong") {
        skip!("ibv_rc_pingpong is not installed (package ibverbs-utils)");
    }
    let idle = json(&network, "rdma resource show -j");
    assert_eq!(idle[0]["qp"], 0, "{idle}");
    let mut server = Run::hca("ibv_rc_pingpong -g 0").within(&network).start();
    let asked = || json(&network, "rdma resource show -j");
    server.until("it has a queue pair", |_| asked()[0]["qp"] == 1);
    let summary = asked();
    assert_eq!([&summary[0]["qp"], &summary[0]["mr"], &summary[0]["ctx"]], [1, 1, 1], "{summary}");
    let qps = json(&network, "rdma resource show qp -j");
    assert_eq!(qps.as_array().map(Vec::len), Some(1), "{qps}");
    assert_eq!((&qps[0]["type"], &qps[0]["state"]), (&"RC".into(), &"INIT".into()), "{qps}");
    assert_eq!(qps[0]["comm"], "ibv_rc_pingpong", "{qps}");
    let regions = json(&network, "rdma resource show mr -j");
    assert_eq!((&regions[0]["mrlen"], &regions[0]["pdn"]), (&4096.into(), &qps[0]["pdn"]));
    let details = json(&network, "rdma -dd resource show mr -j");
    assert_eq!(details[0]["drv_page_size"], 4096, "{details}");
    let counters = json(&network, "rdma statistic show link peerdma0/1 -j");
    assert_eq!(
        (&counters[0]["ifname"], &counters[0]["sent_pkts"]),
        (&"peerdma0".into(), &0.into())
    );
    server.signal(rustix::process::Signal::TERM);
    server.finish();
}

#[test]
fn what_a_software_device_does_not_do_is_refused_with_the_reason() {
    let network = network!();
    let add = Run::hca("rdma link add more type rxe netdev lo").within(&network).finish();
    assert!(!add.succeeded() && add.stderr.contains("does not do or tell this"), "{add}");
    let queues = Run::hca("rdma resource show cq").within(&network).finish();
    assert!(!queues.succeeded() && queues.stderr.contains("does not do or tell this"), "{queues}");
}

#[test]
fn sockets_behave_as_the_kernels() {
    let program = match c_program("netlink") {
        Ok(program) => program,
        Err(reason) => skip!("{reason}"),
    };
    judged(Run::hca(&program.display().to_string()), 41);
}
