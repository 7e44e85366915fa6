//! perftest, unmodified: every program over every transport it supports, on one address, between namespaces, as a plain
//! user.

use system::{Namespace, Run, User, is_root, pair, port, skip, veth_pair};

struct Place<'a> {
    server: Option<&'a Namespace>,
    client: Option<&'a Namespace>,
    address: &'a str,
    user: User,
}

const HERE: Place<'static> =
    Place { server: None, client: None, address: "127.0.0.1", user: User::Same };

fn run(program: &str, switches: &str, place: &Place<'_>) {
    let port = port();
    let line = format!("{program} -d peerdma0 -x 0 -F -p {port} {switches}");
    let mut server = Run::hca(&line).user(place.user);
    let mut client = Run::hca(&line).user(place.user).arg(place.address);
    if let Some(namespace) = place.server {
        server = server.within(namespace);
    }
    if let Some(namespace) = place.client {
        client = client.within(namespace);
    }
    let (_, client) = pair(server, place.server, client, port);
    assert!(client.stdout.contains("#bytes"), "{client}");
}

macro_rules! need_perftest {
    () => {
        if !system::has("ib_write_bw") {
            skip!("perftest is not installed");
        }
    };
}

#[test]
fn every_program_over_every_transport() {
    need_perftest!();
    for (programs, transports) in [
        (["ib_write_bw", "ib_write_lat"], &["RC", "UC", "XRC"][..]),
        (["ib_send_bw", "ib_send_lat"], &["RC", "UC", "UD", "XRC"][..]),
        (["ib_read_bw", "ib_read_lat"], &["RC", "XRC"][..]),
        (["ib_atomic_bw", "ib_atomic_lat"], &["RC", "XRC"][..]),
    ] {
        for program in programs {
            for transport in transports {
                run(program, &format!("-c {transport} -n 500"), &HERE);
            }
        }
    }
    run("ib_atomic_bw", "-A CMP_AND_SWAP -n 500", &HERE);
}

#[test]
fn all_sizes() {
    need_perftest!();
    for program in ["ib_write_bw", "ib_send_bw", "ib_read_bw"] {
        run(program, "-a -n 100", &HERE);
    }
    run("ib_send_lat", "-a -n 100", &HERE);
}

#[test]
fn both_directions_many_queues_events_inline() {
    need_perftest!();
    run("ib_write_bw", "-b -n 1000", &HERE);
    run("ib_send_bw", "-b -n 1000", &HERE);
    run("ib_write_bw", "-q 16 -n 500", &HERE);
    run("ib_send_bw", "-q 16 -n 500", &HERE);
    run("ib_send_bw", "-e -n 1000", &HERE);
    run("ib_send_lat", "-e -n 500", &HERE);
    run("ib_write_lat", "--inline_size 64 -s 64 -n 1000", &HERE);
    run("ib_send_lat", "--inline_size 128 -s 100 -n 1000", &HERE);
    run("ib_send_bw", "-r 64 --use-srq -q 4 -n 500", &HERE);
}

#[test]
fn a_long_run() {
    need_perftest!();
    run("ib_write_bw", "-D 5 -s 65536", &HERE);
}

#[test]
fn between_namespaces() {
    need_perftest!();
    if !is_root() {
        skip!("network namespaces need root");
    }
    let (left, right) = veth_pair("perf", 1500);
    let place = Place {
        server: Some(&left),
        client: Some(&right),
        address: "198.18.9.1",
        user: User::Same,
    };
    for line in [
        "ib_write_bw -n 500",
        "ib_read_bw -n 500",
        "ib_send_bw -n 500 -c UD -s 1024",
        "ib_atomic_bw -n 200",
    ] {
        let (program, switches) = line.split_once(' ').unwrap();
        run(program, switches, &place);
    }
    run("ib_send_lat", "-n 500", &place);
}

#[test]
fn as_a_plain_user() {
    need_perftest!();
    if !is_root() {
        skip!("already a plain user: the other tests show it");
    }
    // UDP port 4791 is one user's in a namespace.
    let own = Namespace::new("user");
    let place = Place { server: Some(&own), client: Some(&own), user: User::Nobody, ..HERE };
    run("ib_write_bw", "-n 500", &place);
    run("ib_read_bw", "-n 500", &place);
    run("ib_send_lat", "-n 500 -c UD", &place);
}
