//! rdma-core's example programs, unmodified: device listings and the four pingpongs with their
//! switches.

use system::{Namespace, Run, User, is_root, pair, port, skip};

/// Server and client of one pingpong on this host.
fn pingpong(program: &str, switches: &str) {
    if !system::has(program) {
        skip!("{program} is not installed (package ibverbs-utils)");
    }
    pingpong_at(program, switches, None);
}

/// Server and client of one pingpong, as a plain user in a namespace of its own (UDP port 4791 is
/// one user's).
fn pingpong_at(program: &str, switches: &str, plain_user: Option<&Namespace>) {
    let port = port();
    let line = format!("{program} -g 0 -p {port} {switches}");
    let place = |run: Run| match plain_user {
        Some(namespace) => run.user(User::Nobody).within(namespace),
        None => run,
    };
    let server = place(Run::hca(&line));
    let client = place(Run::hca(&line).arg("127.0.0.1"));
    let (server, client) = pair(server, plain_user, client, port);
    for said in [&server.stdout, &client.stdout] {
        assert!(said.contains("iters in"), "no result line: {said}");
    }
}

#[test]
fn devices_are_listed() {
    if !system::has("ibv_devices") {
        skip!("ibv_devices is not installed (package ibverbs-utils)");
    }
    let devices = Run::hca("ibv_devices").finish().ok();
    assert!(devices.stdout.contains("peerdma0"), "{devices}");
    let info = Run::hca("ibv_devinfo -v").finish().ok();
    for expected in
        ["hca_id:\tpeerdma0", "PORT_ACTIVE (4)", "link_layer:\t\tEthernet", "RoCE v2", "max_qp_wr"]
    {
        assert!(info.stdout.contains(expected), "{expected} is missing: {info}");
    }
    assert!(info.stderr.is_empty(), "{info}");
}

#[test]
fn rc() {
    pingpong("ibv_rc_pingpong", "-n 2000 -c");
}

#[test]
fn rc_event_driven() {
    pingpong("ibv_rc_pingpong", "-n 500 -e -c");
}

#[test]
fn rc_sizes_and_mtus() {
    for switches in
        ["-s 1 -n 200", "-s 65536 -n 200 -c", "-s 1000003 -n 20 -m 256 -c", "-m 1024 -s 8191 -c"]
    {
        pingpong("ibv_rc_pingpong", switches);
    }
}

#[test]
fn rc_with_timestamps_and_new_post_calls() {
    pingpong("ibv_rc_pingpong", "-n 500 -t");
    pingpong("ibv_rc_pingpong", "-n 500 -N -c");
}

#[test]
fn uc() {
    pingpong("ibv_uc_pingpong", "-n 2000 -c");
    pingpong("ibv_uc_pingpong", "-n 500 -e");
}

#[test]
fn ud() {
    pingpong("ibv_ud_pingpong", "-n 2000 -s 1024 -c");
    pingpong("ibv_ud_pingpong", "-n 500 -s 512 -e");
}

#[test]
fn srq() {
    pingpong("ibv_srq_pingpong", "-n 1000 -q 16 -c");
    pingpong("ibv_srq_pingpong", "-n 500 -q 4 -e");
}

/// It measures nothing: it says that every message came right.
#[test]
fn xrc() {
    if !system::has("ibv_xsrq_pingpong") {
        skip!("ibv_xsrq_pingpong is not installed (package ibverbs-utils)");
    }
    for switches in ["-n 200", "-n 50 -e", "-n 50 -s 65536 -m 1024"] {
        let port = port();
        let line = format!("ibv_xsrq_pingpong -g 0 -p {port} {switches}");
        let (server, client) = pair(Run::hca(&line), None, Run::hca(&line).arg("127.0.0.1"), port);
        for said in [&server.stdout, &client.stdout] {
            assert!(said.contains("success"), "not all messages came: {said}");
        }
    }
}

/// Whoever looks for defects of a program with valgrind finds those of the program.
#[test]
fn under_valgrind_nothing_of_ours_is_reported() {
    if !system::has("valgrind") || !system::has("ibv_rc_pingpong") {
        skip!("valgrind or ibv_rc_pingpong is not installed (packages valgrind, ibverbs-utils)");
    }
    let port = port();
    let checker = "valgrind --quiet --leak-check=full --show-leak-kinds=definite \
                   --errors-for-leak-kinds=definite --error-exitcode=99";
    let line = format!("{checker} ibv_rc_pingpong -g 0 -p {port} -n 100 -c");
    let (server, client) = pair(Run::hca(&line), None, Run::hca(&line).arg("127.0.0.1"), port);
    for said in [&server.stdout, &client.stdout] {
        assert!(said.contains("iters in"), "no result line: {said}");
    }
}

#[test]
fn as_a_plain_user() {
    if !is_root() {
        skip!("already a plain user: the other tests show it");
    }
    if !system::has("ibv_rc_pingpong") {
        skip!("ibv_rc_pingpong is not installed (package ibverbs-utils)");
    }
    let own = Namespace::new("user");
    pingpong_at("ibv_rc_pingpong", "-n 500 -c", Some(&own));
    pingpong_at("ibv_ud_pingpong", "-n 500 -s 1024 -e", Some(&own));
}
