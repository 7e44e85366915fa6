//! Addresses of every kind on the RoCE port: those that the host's programs meet by rdma_cm in both
//! directions, IPv6, those in a VLAN, and groups.

use super::{FAR, HOST, NEAR, ended_well, rping, serve_rping};
use std::time::Duration;
use system::lab::Booted;
use system::{Namespace, Run, Running};

const NEAR_V6: &str = "fd07::1";
const FAR_V6: &str = "fd07::2";
const HOST_V6: &str = "fd07::9";
const NEAR_VLAN: &str = "198.18.5.1";
const FAR_VLAN: &str = "198.18.5.2";
const GROUP: &str = "239.77.1.2";
/// Addresses of the host that a guest has as well.
pub const SHARED: [&str; 3] = [NEAR, FAR, NEAR_V6];
/// How often who comes before the other is there comes again.
const TRIES: usize = 50;

/// Gives the host an address.
fn add(namespace: &Namespace, address: &str) {
    let whole = if address.contains(':') { 128 } else { 32 };
    namespace.output(&format!("ip addr add {address}/{whole} dev lo"));
}

/// Gives the host its own addresses, and the near guest's, so that answers find their way.
pub fn of_host(namespace: &Namespace) {
    [NEAR, HOST, NEAR_V6, HOST_V6].iter().for_each(|address| add(namespace, address));
}

/// The guests' addresses beside the plain ones: IPv6, and in VLAN 5.
pub fn take(guest: &Booted, is_near: bool) {
    let (v6, vlan) = if is_near { (NEAR_V6, NEAR_VLAN) } else { (FAR_V6, FAR_VLAN) };
    guest.output(&format!(
        "echo 0 > /proc/sys/net/ipv6/conf/eth0/accept_dad; ip -6 addr add {v6}/64 dev eth0"
    ));
    guest.output("ip link add link eth0 name eth0.5 type vlan id 5; ip link set eth0.5 up");
    guest.output(&format!("ip addr add {vlan}/24 dev eth0.5"));
}

/// Index of the GID that an address is.
fn gid(guest: &Booted, address: &str) -> String {
    let name = if address.contains(':') { address.to_owned() } else { format!("::ffff:{address}") };
    let info = guest.output(&format!(
        "until ibv_devinfo -v | grep 'GID.*[^0-9a-f:]{name},'; do usleep 50000; done"
    ));
    let index = info.split(['[', ']']).nth(1).map(str::trim);
    index.unwrap_or_else(|| panic!("{info}")).to_owned()
}

/// A pingpong of two guests at their addresses.
fn pingpong(near: &Booted, far: &Booted, service: &str, addresses: [&str; 2]) {
    let line = |guest, address| format!("ibv_{service}_pingpong -n 50 -g {}", gid(guest, address));
    let waiting = "until netstat -ltn | grep -q :18515; do usleep 50000; done";
    let server = line(near, addresses[0]);
    near.output(&format!("({server} > /tmp/pong 2>&1; echo ended=$? >> /tmp/pong) & {waiting}"));
    // They meet by IPv4, where the server listens.
    let said = far.output(&format!("{} {NEAR}", line(far, addresses[1])));
    assert!(said.contains("50 iters"), "{said}");
    let said = near.output("until grep -q ended= /tmp/pong; do usleep 50000; done; cat /tmp/pong");
    assert!(said.contains("ended=0"), "{said}");
}

fn on_host(namespace: &Namespace, line: &str) -> Run {
    Run::hca(line).within(namespace).limit(Duration::from_secs(60))
}

/// Runs a client until its server is there.
fn again(client: Run) {
    for _ in 0..TRIES {
        let said = client.clone().finish();
        if said.succeeded() {
            return;
        }
        assert!(!said.timed_out, "{said}");
    }
    panic!("its server never came: {}", client.finish());
}

/// rping's of the connection manager's requests for a guest, and for a program of the host.
fn rping_both_ways(namespace: &Namespace, guest: &Booted, address: &str, host: &str) {
    serve_rping(guest, address);
    again(on_host(namespace, &format!("rping -c -C 10 -a {address}")));
    ended_well(guest);
    let server = on_host(namespace, &format!("rping -s -C 10 -a {host}")).start();
    guest.output(&rping(host));
    server.finish().ok();
}

/// Programs on the host and in guests meet by rdma_cm, whoever asks.
pub fn meet_by_rdma_cm(namespace: &Namespace, near: &Booted, far: &Booted) {
    rping_both_ways(namespace, near, NEAR, HOST);
    // The far guest had its address before the host has it too.
    add(namespace, FAR);
    serve_rping(far, FAR);
    again(on_host(namespace, &format!("rping -c -C 10 -a {FAR}")));
    ended_well(far);
    // Datagrams find each other by requests of another kind.
    near.output("(udaddy > /tmp/udaddy 2>&1; echo ended=$? >> /tmp/udaddy) &");
    again(on_host(namespace, &format!("udaddy -s {NEAR}")));
    let said =
        near.output("until grep -q ended= /tmp/udaddy; do usleep 50000; done; cat /tmp/udaddy");
    assert!(said.contains("ended=0"), "{said}");
    let server = on_host(namespace, "udaddy").start();
    near.output(&format!("until udaddy -s {HOST}; do usleep 100000; done"));
    server.finish().ok();
}

/// IPv6, between guests and with the host.
pub fn meet_over_ipv6(namespace: &Namespace, near: &Booted, far: &Booted) {
    for service in ["rc", "ud"] {
        pingpong(near, far, service, [NEAR_V6, FAR_V6]);
    }
    serve_rping(near, NEAR_V6);
    far.output(&rping(NEAR_V6));
    ended_well(near);
    rping_both_ways(namespace, near, NEAR_V6, HOST_V6);
}

/// A VLAN of the guests: frames with tags, which the connection manager sees too.
pub fn meet_in_a_vlan(near: &Booted, far: &Booted) {
    let said = near.output(&format!("ping -c 2 {FAR_VLAN}"));
    assert!(said.contains("2 packets received"), "{said}");
    for service in ["rc", "ud"] {
        pingpong(near, far, service, [NEAR_VLAN, FAR_VLAN]);
    }
    serve_rping(near, NEAR_VLAN);
    far.output(&rping(NEAR_VLAN));
    ended_well(near);
    let (status, said) = near.script(&format!("ping -c 1 -W 1 {HOST} -I eth0.5"));
    assert_ne!(status, 0, "the host is in no VLAN: {said}");
}

/// A receiver of a group's in a guest, until it has what it waits for.
fn listen(guest: &Booted, address: &str) {
    let line = format!("timeout 60 mckey -m {GROUP} -b {address}");
    guest.output(&format!(
        "rm -f /tmp/mckey; ({line} > /tmp/mckey 2>&1; echo ended=$? >> /tmp/mckey) &"
    ));
}

fn has_heard(guest: &Booted) -> bool {
    let said = guest.output("cat /tmp/mckey");
    assert!(!said.contains("ended=") || said.contains("ended=0"), "{said}");
    said.contains("ended=0")
}

/// Sends to a group until it was heard: nobody sees who has joined.
fn tell(mut send: impl FnMut(), mut is_heard: impl FnMut() -> bool) {
    for _ in 0..TRIES {
        send();
        if is_heard() {
            return;
        }
    }
    panic!("the group hears nothing");
}

fn sends(guest: &Booted, address: &str) {
    guest.output(&format!("mckey -s -m {GROUP} -b {address}"));
}

/// Groups: within a guest, between two, with a program on the host. Linux joins none of IPv6 over
/// RoCE v2 (ENOTSUPP).
pub fn meet_in_groups(namespace: &Namespace, near: &Booted, far: &Booted) {
    listen(near, NEAR);
    tell(|| sends(near, NEAR), || has_heard(near));
    listen(near, NEAR);
    tell(|| sends(far, FAR), || has_heard(near));
    // A guest's are heard by a program on the host, and its by a guest.
    let mut hearing: Running = on_host(namespace, &format!("mckey -m {GROUP} -b {HOST}")).start();
    tell(|| sends(near, NEAR), || !hearing.alive());
    hearing.finish().ok();
    listen(far, FAR);
    let sender = on_host(namespace, &format!("mckey -s -m {GROUP} -b {HOST}"));
    tell(|| drop(sender.clone().finish().ok()), || has_heard(far));
}
