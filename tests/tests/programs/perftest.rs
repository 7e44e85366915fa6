//! perftest, unmodified: every program over every transport it supports, on one address, between
//! namespaces, as a plain user. What it says it moved, the devices counted.

use system::{Counters, Namespace, Run, User, is_root, note_skip, pair, port, skip, veth_pair};

struct Ends<'a> {
    server: Option<&'a Namespace>,
    client: Option<&'a Namespace>,
    address: &'a str,
    user: User,
}

const HERE: Ends<'static> =
    Ends { server: None, client: None, address: "127.0.0.1", user: User::Same };

fn run(program: &str, switches: &str, place: &Ends<'_>) {
    let (port, counters) = (port(), Counters::new());
    let line = format!("{program} -d peerdma0 -x 0 -F -p {port} {switches}");
    let end = || Run::hca(&line).user(place.user).env("PEERDMA_COUNTERS", counters.file());
    let (mut server, mut client) = (end(), end().arg(place.address));
    if let Some(namespace) = place.server {
        server = server.within(namespace);
    }
    if let Some(namespace) = place.client {
        client = client.within(namespace);
    }
    let (_, client) = pair(server, place.server, client, port);
    let said = told(&client.stdout);
    assert_ne!(said, 0, "{client}");
    // Of an atomic the eight bytes are in its header; what counts is that each was a packet.
    let counter = if program.starts_with("ib_atomic") { "sent_pkts" } else { "sent_bytes" };
    let wanted = if program.starts_with("ib_atomic") { said / 8 } else { said };
    let counted = counters.sum(counter);
    assert!(counted >= wanted, "{counter} {counted}, not {wanted}: {client}");
}

/// Bytes that perftest's table says it moved: the first columns of each row are the bytes of a
/// message and their number.
fn told(table: &str) -> u64 {
    let rows = table.lines().skip_while(|line| !line.contains("#bytes"));
    rows.filter_map(|row| {
        let mut numbers = row.split_whitespace().map(str::parse::<u64>);
        let (bytes, messages) = (numbers.next()?.ok()?, numbers.next()?.ok()?);
        bytes.checked_mul(messages)
    })
    .sum()
}

#[test]
fn rows_of_a_table_are_added_up() {
    let table = " Dct key 7\n #bytes     #iterations    BW peak[MB/sec]\n \
                 2          500   1.2  3.4\n 4  500  1 2\n---\n";
    assert_eq!(told(table), 3000);
    assert_eq!(told("nothing 5 6\n"), 0);
}

macro_rules! need_perftest {
    () => {
        if !system::has("ib_write_bw") {
            skip!("perftest is not installed");
        }
    };
}

/// perftest keeps its XRC domains in two files, which it leaves behind. Where another user has run
/// it before, nobody else can.
fn may_use_xrc() -> bool {
    let others = ["server", "client"].map(|end| format!("/tmp/xrc_domain_{end}")).into_iter();
    let others: Vec<_> = others
        .filter(|file| {
            let removed = std::fs::remove_file(file);
            removed.is_err_and(|error| error.kind() != std::io::ErrorKind::NotFound)
        })
        .collect();
    if !others.is_empty() {
        note_skip(&format!("XRC: {} of another user", others.join(" and ")));
    }
    others.is_empty()
}

#[test]
fn every_program_over_every_transport() {
    need_perftest!();
    let xrc = may_use_xrc();
    for (programs, transports) in [
        (["ib_write_bw", "ib_write_lat"], &["RC", "UC", "XRC"][..]),
        (["ib_send_bw", "ib_send_lat"], &["RC", "UC", "UD", "XRC"][..]),
        (["ib_read_bw", "ib_read_lat"], &["RC", "XRC"][..]),
        (["ib_atomic_bw", "ib_atomic_lat"], &["RC", "XRC"][..]),
    ] {
        for program in programs {
            for transport in transports.iter().filter(|transport| xrc || **transport != "XRC") {
                run(program, &format!("-c {transport} -n 500"), &HERE);
            }
        }
    }
    run("ib_atomic_bw", "-A CMP_AND_SWAP -n 500", &HERE);
    // Another user of the machine finds none.
    may_use_xrc();
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

/// An idle fabric loses nothing, and a message of which one packet is late is lost here.
#[test]
fn unreliable_messages_of_many_packets_all_arrive() {
    need_perftest!();
    run("ib_send_bw", "-c UC -s 8388608 -n 50", &HERE);
    run("ib_send_bw", "-c UC -a -n 50", &HERE);
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
    let place =
        Ends { server: Some(&left), client: Some(&right), address: "198.18.9.1", user: User::Same };
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
    let place = Ends { server: Some(&own), client: Some(&own), user: User::Nobody, ..HERE };
    run("ib_write_bw", "-n 500", &place);
    run("ib_read_bw", "-n 500", &place);
    run("ib_send_lat", "-n 500 -c UD", &place);
}
