//! Whole frames: flow rules, their counters and indirection tables within a process, and perftest's
//! raw Ethernet programs, unmodified, between hosts.

use std::time::Duration;
use system::{Namespace, Run, Running, c_program, is_root, skip, veth_pair};

#[test]
fn rules_take_and_count_what_they_ask_for_and_tables_spread_it() {
    if !is_root() {
        skip!("network namespaces need root");
    }
    let program = match c_program("flows") {
        Ok(program) => format!("{} defaults", program.display()),
        Err(reason) => skip!("{reason}"),
    };
    system::judged(Run::hca(&program).within(&Namespace::new("flows")), 160);
}

/// Waits until a packet socket of `namespace` takes frames of every kind: a flow rule is there.
#[track_caller]
fn until_tapped(namespace: &Namespace, program: &mut Running) {
    program.until("no flow rule", |_| {
        namespace.output("cat /proc/net/packet").lines().any(|socket| {
            // Socket, references, type, protocol.
            socket.split_whitespace().nth(3) == Some("0003")
        })
    });
}

#[test]
fn perftest_sends_frames_between_hosts() {
    if !is_root() {
        skip!("network namespaces need root");
    }
    if !system::has("raw_ethernet_bw") {
        skip!("perftest is not installed");
    }
    let (left, right) = veth_pair("raw", 1500);
    let mac = |host: &Namespace| host.output("cat /sys/class/net/wire/address").trim().to_owned();
    let (server_mac, client_mac) = (mac(&left), mac(&right));
    let udp = "-J 198.18.9.1 -j 198.18.9.2 -K 1000 -k 1000";
    for switches in ["-s 1500", &format!("-s 200 {udp}"), &format!("-s 200 {udp} --tcp")] {
        // What leaves before the server's receives are posted is lost, so the client sends many
        // more than it counts.
        let line = |role: &str, own: &str, other: &str, count: u32| {
            let line = "raw_ethernet_bw -d peerdma0 -F --mtu 1500 -r 512 --noPeak";
            format!("{line} --{role} -B {own} -E {other} -n {count} {switches}")
        };
        let server = Run::hca(&line("server", &server_mac, &client_mac, 500)).within(&left);
        let mut server = server.limit(Duration::from_secs(60)).start();
        until_tapped(&left, &mut server);
        let client = line("client", &client_mac, &server_mac, 20_000);
        Run::hca(&client).within(&right).limit(Duration::from_secs(60)).finish().ok();
        let server = server.finish().ok();
        assert!(server.stdout.contains("#bytes"), "{server}");
    }
}
