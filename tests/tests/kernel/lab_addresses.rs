//! The kernel's own drivers as the judges of the connection manager and of addresses: rxe,
//! `rdma_cm` and `8021q` in the lab's guest on the one end, the software HCA on the other.

use std::time::{Duration, Instant};
use system::lab::{GUEST_V4, GUEST_V6, Guest, HOST_V4, HOST_V6};
use system::{Counters, Run, peerdma, perftest_came_early, port, skip};

const LIMIT: Duration = Duration::from_secs(60);

/// How long a server may take until it listens.
const STARTING: Duration = Duration::from_secs(30);

/// Server and client. They say DEVICE, PORT and the server's ADDRESS where these belong.
const PROGRAMS: [(&str, &str); 6] = [
    ("rping -s -a ADDRESS -p PORT -C 10 -V", "rping -c -a ADDRESS -p PORT -C 10 -V"),
    (
        "rping -s -a ADDRESS -p PORT -C 5 -S 60000 -V",
        "rping -c -a ADDRESS -p PORT -C 5 -S 60000 -V",
    ),
    (
        "ib_write_bw -R -n 20 -d DEVICE -F -p PORT",
        "ib_write_bw -R -n 20 -d DEVICE -F -p PORT ADDRESS",
    ),
    (
        "ib_read_bw -R -o 16 -n 20 -d DEVICE -F -p PORT",
        "ib_read_bw -R -o 16 -n 20 -d DEVICE -F -p PORT ADDRESS",
    ),
    (
        "ib_send_bw -R -n 20 -d DEVICE -F -p PORT",
        "ib_send_bw -R -n 20 -d DEVICE -F -p PORT ADDRESS",
    ),
    (
        "ib_send_lat -R -c UD -s 1000 -n 20 -d DEVICE -F -p PORT",
        "ib_send_lat -R -c UD -s 1000 -n 20 -d DEVICE -F -p PORT ADDRESS",
    ),
];

/// Where the server runs; the client is on the other end.
#[derive(Clone, Copy, Debug)]
enum Server {
    Here,
    InGuest,
}

fn fill(line: &str, device: &str, address: &str, port: u16) -> String {
    let line = line.replace("DEVICE", device).replace("ADDRESS", address);
    line.replace("PORT", &port.to_string())
}

/// Runs a server here and its client in the guest, or the other way round. Nobody sees from outside
/// when a server listens by rdma_cm: before, the client is refused, and tries again.
fn connect(guest: &Guest, programs: (&str, &str), address: &str, at: Server) {
    for _ in 0..10 {
        if attempt(guest, programs, address, at).is_some() {
            return;
        }
    }
    panic!("{} always came early", programs.1);
}

/// As above; `None` where both ends have to start anew.
fn attempt(guest: &Guest, (server, client): (&str, &str), address: &str, at: Server) -> Option<()> {
    let (port, counters) = (port(), Counters::new());
    let here = |line: &str| {
        Run::hca(&fill(line, "peerdma0", address, port))
            .within(guest.namespace())
            .env("PEERDMA_COUNTERS", counters.file())
            .limit(LIMIT)
    };
    let there = |line: &str| fill(line, "rxe0", address, port);
    eprintln!("server {at:?}: {}", there(client));
    let deadline = Instant::now() + STARTING;
    match at {
        Server::Here => {
            let mut server = here(server).start();
            loop {
                let (status, said) = guest.script(&there(client), LIMIT).unwrap();
                if status == 0 {
                    break;
                }
                if perftest_came_early(&said) {
                    return None;
                }
                let late = Instant::now() > deadline;
                assert!(!late && server.alive(), "guest: {said}\nhere: {}", server.said());
            }
            server.finish().ok();
        }
        Server::InGuest => {
            let server = guest.start(&there(server));
            loop {
                let client = here(client).finish();
                if client.succeeded() {
                    break;
                }
                if perftest_came_early(&client.stderr) {
                    return None;
                }
                let late = Instant::now() > deadline || client.timed_out;
                assert!(!late && !server.ended(), "{client}\nguest: {}", server.said());
            }
            let (succeeded, said) = server.finish();
            assert!(succeeded, "guest: {said}");
        }
    }
    assert_ne!(counters.sum("sent_pkts"), 0, "{client}: nothing went over the wire");
    for name in ["rx_icrc_encapsulated", "rx_malformed"] {
        assert_eq!(counters.sum(name), 0, "{client}: {name}\n{}", counters.text());
    }
    Some(())
}

#[test]
fn connections_with_the_kernel() {
    if !system::has("rping") || !system::has("ib_write_bw") {
        skip!("rping or perftest are not installed (packages rdmacm-utils, perftest)");
    }
    let guest = match Guest::boot(&[]) {
        Ok(guest) => guest,
        Err(error) => skip!("{error:#}"),
    };
    for (at, v4, v6) in [(Server::Here, HOST_V4, HOST_V6), (Server::InGuest, GUEST_V4, GUEST_V6)] {
        for programs in PROGRAMS {
            connect(&guest, programs, v4, at);
        }
        // perftest takes no IPv6 address without a switch of its own.
        for programs in &PROGRAMS[..2] {
            connect(&guest, *programs, v6, at);
        }
    }
}

/// rxe in the guest's own namespace, the software HCA in namespace `far`, between them a wire that
/// carries a VLAN.
const VLAN: &str = "
    rdma link delete rxe0
    $IP netns add far && $IP -n far link set lo up
    $IP link add wire type veth peer name wire netns far
    join() {
        $1 addr add 198.18.5.$2/24 dev wire
        $1 link set wire up
        $1 link add link wire name wire.7 type vlan id 7
        $1 addr add 198.18.8.$2/24 dev wire.7
        $1 -6 addr add fd08::$2/64 dev wire.7 nodad
        $1 link set wire.7 up
    }
    join $IP 1 && join \"$IP -n far\" 2
    rdma link add rxe0 type rxe netdev wire";

/// Index of the GID that ends with `end`, of a device in the guest; it must be on interface
/// `wire.7`.
fn vlan_gid(guest: &Guest, on: &str, device: &str, end: &str) -> usize {
    let port = format!("/sys/class/infiniband/{device}/ports/1");
    let files: String = (0..16).map(|index| format!(" {port}/gids/{index}")).collect();
    let gids = guest.output(&format!("{on} /usr/bin/cat {files} || true"));
    let index = gids.lines().position(|line| line.ends_with(end));
    let index = index.unwrap_or_else(|| panic!("no GID ends with {end}:\n{gids}"));
    let interface = guest.output(&format!("{on} /usr/bin/cat {port}/gid_attrs/ndevs/{index}"));
    assert_eq!(interface.trim(), "wire.7", "interface of GID {index} of {device}:\n{gids}");
    index
}

/// Bytes that an interface of the guest's own namespace sent and received.
fn bytes(guest: &Guest, interface: &str) -> u64 {
    let said = guest.output(&format!("cd /sys/class/net/{interface}/statistics && cat ?x_bytes"));
    said.lines().map(|line| line.trim().parse::<u64>().unwrap()).sum()
}

/// Runs a server and its client, both in the guest; the client tries until the server listens.
fn meet_in_guest(guest: &Guest, server: &str, client: &str, address: &str) {
    let port = port();
    let (server, client) = (fill(server, "", address, port), fill(client, "", address, port));
    eprintln!("{server}; {client}");
    let server = guest.start(&server);
    let deadline = Instant::now() + STARTING;
    loop {
        let (status, said) = guest.script(&client, LIMIT).unwrap();
        if status == 0 {
            break;
        }
        let late = Instant::now() > deadline;
        assert!(!late && !server.ended(), "client: {said}\nserver: {}", server.said());
    }
    let (succeeded, said) = server.finish();
    assert!(succeeded, "server: {said}");
}

fn crosscheck_over(transport: &str) -> (String, String) {
    let server = format!("crosscheck -p PORT -t {transport} -g GID");
    let client = format!("{server} ADDRESS");
    (server, client)
}

#[test]
fn traffic_on_a_vlan_and_a_port_of_the_kernels() {
    let crosscheck = match system::c_program("crosscheck") {
        Ok(program) => program,
        Err(reason) => skip!("{reason}"),
    };
    let guest = match Guest::boot(&[&crosscheck, peerdma()]) {
        Ok(guest) => guest,
        Err(error) => skip!("{error:#}"),
    };
    // In one namespace the two cannot be: the port is the kernel's.
    let (status, said) = guest.script("peerdma run -- ibv_devinfo", LIMIT).unwrap();
    assert_ne!(status, 0, "{said}");
    for words in ["UDP port 4791 is taken by the kernel's Soft-RoCE driver", "`rdma link delete`"] {
        assert!(said.contains(words), "{words}: {said}");
    }
    guest.output(VLAN);
    let far = "$IP netns exec far peerdma run --";
    let (rc, ud) = (crosscheck_over("RC"), crosscheck_over("UD"));
    let (rc, ud) = ((&*rc.0, &*rc.1), (&*ud.0, &*ud.1));
    for (end, near_address, far_address, programs) in [
        ("c612:080", "198.18.8.1", "198.18.8.2", &[rc, ud, PROGRAMS[0]][..]),
        (":000", "fd08::1", "fd08::2", &[rc]),
    ] {
        let near_gid = vlan_gid(&guest, "", "rxe0", &format!("{end}1"));
        let far_gid = vlan_gid(&guest, far, "peerdma0", &format!("{end}2"));
        let near = |line: &str| line.replace("GID", &near_gid.to_string());
        let far = |line: &str| format!("{far} {}", line.replace("GID", &far_gid.to_string()));
        for (server, client) in programs {
            let before = bytes(&guest, "wire.7");
            meet_in_guest(&guest, &near(server), &far(client), near_address);
            meet_in_guest(&guest, &far(server), &near(client), far_address);
            let moved = bytes(&guest, "wire.7") - before;
            assert!(moved > 2_000, "{client}: only {moved} bytes went over the VLAN");
        }
    }
}
