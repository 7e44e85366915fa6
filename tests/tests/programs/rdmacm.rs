//! librdmacm, unmodified, and its programs: connections made by address, by streams, by files, a
//! thousand at a time.

use std::time::{Duration, Instant};
use system::{Counters, Namespace, Run, User, c_program, is_root, port, skip, veth_pair};

/// Where both ends run.
#[derive(Clone, Copy)]
struct Ends<'a> {
    server: Option<&'a Namespace>,
    client: Option<&'a Namespace>,
    user: User,
}

const HERE: Ends<'static> = Ends { server: None, client: None, user: User::Same };

impl Ends<'_> {
    fn run(&self, line: &str, at: Option<&Namespace>) -> Run {
        let run = Run::hca(line).user(self.user);
        match at {
            Some(namespace) => run.within(namespace),
            None => run,
        }
    }

    /// Runs a server and its client, whose lines say PORT.
    #[track_caller]
    fn converse(&self, server: &str, client: &str, ends: bool) -> String {
        system::converse(ends, |port| {
            let fill = |line: &str| line.replace("PORT", &port.to_string());
            (self.run(&fill(server), self.server), self.run(&fill(client), self.client))
        })
    }
}

macro_rules! need {
    ($program:literal) => {
        if !system::has($program) {
            skip!("{} is not installed", $program);
        }
    };
}

/// One end of ten messages that are looked at, and shown at once.
fn rping(end: &str) -> String {
    format!("stdbuf -oL rping {end} -p PORT -C 10 -v -V")
}

#[test]
fn rping_by_every_kind_of_address() {
    need!("rping");
    for (listen, connect) in [
        ("-a 127.0.0.1", "127.0.0.1"),
        ("", "127.0.0.1"),
        ("-a ::1", "::1"),
        ("-a ::", "::1"),
        ("-a ::", "127.0.0.1"),
    ] {
        let server = rping(&format!("-s {listen}"));
        HERE.converse(&server, &rping(&format!("-c -a {connect}")), true);
    }
}

#[test]
fn rdma_cm_programs() {
    need!("ucmatose");
    for (server, client) in [
        ("ucmatose -p PORT -c 20 -C 10", "ucmatose -s 127.0.0.1 -p PORT -c 20 -C 10"),
        ("udaddy -c 5", "udaddy -s 127.0.0.1 -c 5"),
        ("rdma_server -p PORT", "rdma_client -s 127.0.0.1 -p PORT"),
        ("rdma_xserver -p PORT -c r", "rdma_xclient -s 127.0.0.1 -p PORT -c r"),
        ("rdma_xserver -p PORT -c x", "rdma_xclient -s 127.0.0.1 -p PORT -c x"),
        ("rstream -p PORT -S 4096 -I 100", "rstream -s 127.0.0.1 -p PORT -S 4096 -I 100"),
        ("riostream -p PORT -S 64 -I 5", "riostream -s 127.0.0.1 -p PORT -S 64 -I 5"),
    ] {
        HERE.converse(server, client, true);
    }
}

#[test]
fn perftest_by_address() {
    need!("ib_write_bw");
    for line in [
        "ib_write_bw -n 500",
        "ib_write_lat -n 200",
        "ib_write_bw -q 4 -n 200",
        "ib_read_bw -n 500",
        "ib_send_bw -n 500",
        "ib_send_bw -e -n 500",
        "ib_send_lat -c UD -n 200",
        "ib_atomic_bw -n 200",
    ] {
        let server = format!("{line} -R -F -p PORT");
        HERE.converse(&server, &format!("{server} 127.0.0.1"), true);
    }
}

/// Between hosts packets are no longer than the interface lets them be, and within one they are as
/// long as loopback does, though the address is of that interface.
#[test]
fn a_connection_has_the_mtu_of_its_route() {
    need!("ib_send_bw");
    if !is_root() {
        skip!("namespaces need root");
    }
    const MESSAGES: u64 = 100;
    let (left, right) = veth_pair("mtu", 1500);
    for (host, packets) in [(&right, 64), (&left, 16)] {
        let counters = Counters::new();
        let line = format!("ib_send_bw -R -F -s 65536 -n {MESSAGES}");
        let end = |at: &Namespace, line: &str| Run::hca(line).option("--link=roce").within(at);
        system::converse(true, |port| {
            let line = format!("{line} -p {port}");
            let client = end(host, &format!("{line} 198.18.9.1"));
            (end(&left, &line), client.env("PEERDMA_COUNTERS", counters.file()))
        });
        let sent = counters.sum("sent_pkts");
        // Some may have left twice.
        let expected = MESSAGES * packets;
        assert!((expected..2 * expected).contains(&sent), "{sent} packets, not {expected}");
    }
}

#[test]
fn a_file_is_copied() {
    need!("rcopy");
    let folder = tempfile::tempdir().unwrap();
    let (from, to) = (folder.path().join("from"), folder.path().join("to"));
    let bytes: Vec<u8> =
        (0..5_000_000u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    std::fs::write(&from, &bytes).unwrap();
    // Its server serves for ever.
    let client = format!("rcopy {} 127.0.0.1:{} -p PORT", from.display(), to.display());
    HERE.converse("rcopy -p PORT", &client, false);
    assert!(std::fs::read(&to).unwrap() == bytes, "the copy differs");
}

#[test]
fn a_thousand_connections() {
    need!("cmtime");
    let help = Run::plain("cmtime -h").finish();
    // Newer ones meet at a controller, which the first of them is.
    let (server, client) = if format!("{}{}", help.stdout, help.stderr).contains("-C controller") {
        ("-L -C 127.0.0.1 -b 127.0.0.1", "-C 127.0.0.1 -b 127.0.0.1")
    } else {
        ("", "-s 127.0.0.1")
    };
    let [server, client] = [server, client].map(|end| format!("cmtime {end} -p PORT -c 1000"));
    // Its server serves for ever in some releases.
    let said = HERE.converse(&server, &client, false);
    assert!(said.contains("disconnect"), "{said}");
}

/// Messages of the program's own to a group that it joined by address, and from one process to
/// another.
#[test]
fn a_group_is_joined_by_address() {
    need!("mckey");
    let run = |sends: &str| Run::hca(&format!("mckey {sends} -m 239.7.7.7 -b 127.0.0.1"));
    let mut hearing = run("").start();
    // Nobody sees from outside when it has joined.
    let begun = Instant::now();
    while hearing.alive() {
        assert!(begun.elapsed() < Duration::from_secs(40), "it hears nothing: {}", hearing.said());
        run("-s").finish().ok();
    }
    let said = hearing.finish().ok();
    assert!(said.stdout.contains("receiving data transfers"), "{said}");
}

#[test]
fn nobody_listens() {
    need!("rping");
    let begun = Instant::now();
    let client = Run::hca(&format!("rping -c -a 127.0.0.1 -p {} -C 1", port())).finish();
    assert!(!client.succeeded() && !client.timed_out, "{client}");
    assert!(begun.elapsed() < Duration::from_secs(5), "refused at once, not given up on");
    assert!(client.stderr.contains("REJECTED") || client.stdout.contains("REJECTED"), "{client}");
}

#[test]
fn between_namespaces() {
    need!("rping");
    if !is_root() {
        skip!("network namespaces need root");
    }
    let (left, right) = veth_pair("cm", 1500);
    let place = Ends { server: Some(&left), client: Some(&right), user: User::Same };
    for address in ["198.18.9.1", "fd09::1"] {
        let server = rping(&format!("-s -a {address}"));
        place.converse(&server, &rping(&format!("-c -a {address}")), true);
    }
    place.converse("udaddy", "udaddy -s 198.18.9.1", true);
}

#[test]
fn as_a_plain_user() {
    need!("rping");
    if !is_root() {
        skip!("already a plain user: the other tests show it");
    }
    // UDP port 4791 is one user's in a namespace.
    let own = Namespace::new("cmuser");
    let place = Ends { server: Some(&own), client: Some(&own), user: User::Nobody };
    place.converse(&rping("-s"), &rping("-c -a 127.0.0.1"), true);
    place.converse("udaddy", "udaddy -s 127.0.0.1", true);
}

/// One subcommand of a C program (`cm_ids` or `cm_options`), which says what differs from Linux.
macro_rules! ids {
    ($program:literal, $run:expr, $line:expr) => {{
        let program = match c_program($program) {
            Ok(program) => program,
            Err(reason) => skip!("{reason}"),
        };
        $run(&format!("{} {} {}", program.display(), $line, port())).finish().ok()
    }};
}

#[test]
fn identifiers_move_to_other_channels() {
    for address in ["127.0.0.1", "::1"] {
        ids!("cm_ids", Run::hca, format!("migrate {address}"));
    }
}

#[test]
fn identifiers_take_options() {
    ids!("cm_options", Run::hca, "options 127.0.0.1");
}

#[test]
fn vendor_options_cross() {
    ids!("cm_options", Run::hca, "ece 127.0.0.1");
}

#[test]
fn a_childs_copies_do_no_harm() {
    ids!("cm_ids", Run::hca, "fork 127.0.0.1");
}

#[test]
fn who_does_not_answer_has_no_address() {
    if !is_root() {
        skip!("network namespaces need root");
    }
    let (left, _right) = veth_pair("hop", 1500);
    for line in ["198.18.9.2 198.18.9.77 203.0.113.1", "fd09::2 fd09::77 2001:db8::1"] {
        let run = |line: &str| Run::hca(line).within(&left);
        ids!("cm_ids", run, format!("unreachable {line}"));
    }
}
