//! rdma-core's example programs, unmodified: device listings and the four pingpongs with their switches.

use system::{Run, User, is_root, pair, port, skip};

/// Server and client of one pingpong on this host.
fn pingpong(program: &str, switches: &str, user: User) {
    if !system::has(program) {
        skip!("{program} is not installed (package ibverbs-utils)");
    }
    let port = port();
    let line = format!("{program} -g 0 -p {port} {switches}");
    let server = Run::hca(&line).user(user);
    let client = Run::hca(&line).user(user).arg("127.0.0.1");
    let (server, client) = pair(server, None, client, port);
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
    pingpong("ibv_rc_pingpong", "-n 2000 -c", User::Same);
}

#[test]
fn rc_event_driven() {
    pingpong("ibv_rc_pingpong", "-n 500 -e -c", User::Same);
}

#[test]
fn rc_sizes_and_mtus() {
    for switches in
        ["-s 1 -n 200", "-s 65536 -n 200 -c", "-s 1000003 -n 20 -m 256 -c", "-m 1024 -s 8191 -c"]
    {
        pingpong("ibv_rc_pingpong", switches, User::Same);
    }
}

#[test]
fn rc_with_timestamps_and_new_post_calls() {
    pingpong("ibv_rc_pingpong", "-n 500 -t", User::Same);
    pingpong("ibv_rc_pingpong", "-n 500 -N -c", User::Same);
}

#[test]
fn uc() {
    pingpong("ibv_uc_pingpong", "-n 2000 -c", User::Same);
    pingpong("ibv_uc_pingpong", "-n 500 -e", User::Same);
}

#[test]
fn ud() {
    pingpong("ibv_ud_pingpong", "-n 2000 -s 1024 -c", User::Same);
    pingpong("ibv_ud_pingpong", "-n 500 -s 512 -e", User::Same);
}

#[test]
fn srq() {
    pingpong("ibv_srq_pingpong", "-n 1000 -q 16 -c", User::Same);
    pingpong("ibv_srq_pingpong", "-n 500 -q 4 -e", User::Same);
}

#[test]
fn as_a_plain_user() {
    if !is_root() {
        skip!("already a plain user: the other tests show it");
    }
    pingpong("ibv_rc_pingpong", "-n 500 -c", User::Nobody);
    pingpong("ibv_ud_pingpong", "-n 500 -s 1024 -e", User::Nobody);
}
