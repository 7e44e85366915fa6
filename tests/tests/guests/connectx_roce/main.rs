//! The RoCE port of the software ConnectX: stock mlx5e makes a network interface of it and mlx5_ib
//! a RoCE v2 device, within a guest, between two, and with a program on the host.

mod addresses;

use system::lab::{Booted, Lab};
use system::{Namespace, serve_connectx, skip};
use vm::Machine;

const NEAR: &str = "198.18.7.1";
const FAR: &str = "198.18.7.2";
const HOST: &str = "198.18.7.9";

fn machine(lab: &Lab, end: &str) -> Result<Machine, String> {
    let mut machine = lab.rdma_machine().map_err(|error| format!("{error:#}"))?;
    machine.root_port("root");
    machine.function(&lab.socket(&format!("roce-{end}")), "root");
    Ok(machine)
}

/// What Linux says of the adapter, without a warning of its drivers'.
fn looks_right(guest: &Booted, address: &str) {
    guest.output(&format!("ip link set eth0 up; ip addr replace {address}/24 dev eth0"));
    // Its GIDs follow the addresses.
    guest.output(&format!(
        "until ibv_devinfo -v | grep -q 'GID.*::ffff:{address}'; do usleep 50000; done"
    ));
    let info = guest.output("ibv_devinfo -v");
    for expected in ["PORT_ACTIVE", "link_layer:\t\tEthernet", "RoCE v2"] {
        assert!(info.contains(expected), "{expected}\n{info}");
    }
    let class = guest.output("lspci -n -s 01:00.0");
    assert!(class.contains(" 0200: 15b3:1023"), "{class}");
    let link = guest.output("rdma link");
    assert!(link.contains("state ACTIVE") && link.contains("netdev eth0"), "{link}");
    guest.assert_drivers_quiet();
}

/// Runs `line` in one guest, and with the first's address behind it in another; both must succeed.
fn converse(first: &Booted, second: &Booted, line: &str, port: u16) -> String {
    let waiting = format!("until netstat -ltn | grep -q :{port}; do usleep 50000; done");
    first.output(&format!("({line} > /tmp/first 2>&1; echo ended=$? >> /tmp/first) & {waiting}"));
    let said = second.output(&format!("{line} {NEAR}"));
    let ended =
        first.output("until grep -q ended= /tmp/first; do usleep 50000; done; cat /tmp/first");
    assert!(ended.contains("ended=0"), "{line}: {ended}");
    said
}

/// A counter of `ethtool -S`.
fn counter(guest: &Booted, name: &str) -> u64 {
    let line = guest.output(&format!("ethtool -S eth0 | grep -w {name}"));
    let value = line.rsplit(':').next().and_then(|value| value.trim().parse().ok());
    value.unwrap_or_else(|| panic!("{line}"))
}

fn frames_are_carried(near: &Booted, far: &Booted) {
    let said = near.output(&format!("ping -c 3 -s 1400 {FAR}"));
    assert!(said.contains("3 packets received"), "{said}");
    let said = far.output(&format!("ping -c 1 -s 3000 {NEAR}"));
    assert!(said.contains("1 packets received"), "{said}");
    // A stream that the adapter cuts into segments, and whose checksums the receiver's kernel
    // verifies.
    let sent = far.output(
        "dd if=/dev/urandom of=/tmp/stream bs=64k count=32 2> /dev/null; httpd -p 7000 -h /tmp; \
         md5sum < /tmp/stream",
    );
    let got = near.output(&format!("wget -q -O - http://{FAR}:7000/stream | md5sum"));
    assert_eq!(got.split_whitespace().next(), sent.split_whitespace().next());
    assert!(counter(far, "tx_tso_packets") > 0, "large sends");
    // Frames without IP have no checksum to be right.
    assert!(counter(near, "rx_csum_complete") > 1000);
    assert!(counter(near, "rx_csum_none") < 16);
    for (guest, way) in [(near, "rx"), (far, "tx")] {
        assert!(counter(guest, &format!("{way}_vport_unicast_packets")) > 32);
        assert!(counter(guest, &format!("{way}_vport_unicast_bytes")) > 2 << 20);
    }
    // The same stream as the port's registers count it.
    assert!(counter(near, "rx_packets_phy") > 32);
    assert!(counter(far, "tx_bytes_phy") > 2 << 20);
    let link = near.output("cat /sys/class/net/eth0/statistics/rx_bytes");
    assert!(link.trim().parse::<u64>().unwrap() > 2 << 20, "{link}");
}

/// A client of rping's. Nobody sees when its server listens; before, it is refused, and comes
/// again.
fn rping(server: &str) -> String {
    format!("until rping -c -C 10 -a {server}; do usleep 100000; done")
}

fn serve_rping(guest: &Booted, address: &str) {
    let line = format!("rping -s -C 10 -a {address}");
    guest.output(&format!("({line} > /tmp/rping 2>&1; echo ended=$? >> /tmp/rping) &"));
}

/// rping's server ends with an error of its own when its client leaves; it has to end, without one
/// of the adapter's.
fn ended_well(guest: &Booted) {
    let said =
        guest.output("until grep -q ended= /tmp/rping; do usleep 50000; done; cat /tmp/rping");
    assert!(!said.contains("status") && !said.contains("failed"), "{said}");
}

#[test]
fn guests_and_programs_meet_over_roce() {
    let lab = match Lab::for_adapters() {
        Ok(lab) => lab,
        Err(reason) => skip!("{reason:#}"),
    };
    let machines = match ["near", "far"].map(|end| machine(&lab, end)) {
        [Ok(near), Ok(far)] => [near, far],
        [Err(reason), _] | [_, Err(reason)] => skip!("{reason}"),
    };
    let namespace = Namespace::new("roce");
    addresses::of_host(&namespace);
    let adapters = ["near", "far"].map(|end| {
        let socket = lab.socket(&format!("roce-{end}"));
        let mut options = vec!["--port", "roce"];
        addresses::SHARED.iter().for_each(|address| options.extend(["--address", address]));
        serve_connectx(&namespace, &socket, &options)
    });
    let [near, far] = std::thread::scope(|scope| {
        let boots = machines.each_ref().map(|machine| scope.spawn(|| lab.boot(machine)));
        boots.map(|boot| boot.join().expect("a guest"))
    });
    looks_right(&near, NEAR);
    looks_right(&far, FAR);
    addresses::take(&near, true);
    addresses::take(&far, false);
    for service in ["rc", "uc", "ud"] {
        let said = converse(&near, &near, &format!("ibv_{service}_pingpong -g 1 -n 50"), 18515);
        assert!(said.contains("50 iters"), "{service}: {said}");
    }
    frames_are_carried(&near, &far);
    for line in [
        "ibv_rc_pingpong -g 1 -n 100",
        "ibv_uc_pingpong -g 1 -n 100",
        "ibv_ud_pingpong -g 1 -n 100",
        "ib_write_bw -x 1 -F -n 50 -s 65536",
        "ib_read_bw -x 1 -F -n 50 -s 65536",
        "ib_send_bw -x 1 -F -n 50 -c UD -s 1024",
    ] {
        converse(&near, &far, line, 18515);
    }
    serve_rping(&near, NEAR);
    far.output(&rping(NEAR));
    ended_well(&near);
    addresses::meet_by_rdma_cm(&namespace, &near, &far);
    addresses::meet_over_ipv6(&namespace, &near, &far);
    addresses::meet_in_a_vlan(&near, &far);
    addresses::meet_in_groups(&namespace, &near, &far);
    near.assert_drivers_quiet();
    far.assert_drivers_quiet();
    // The driver goes and comes back, and so does the interface.
    near.output("echo 0000:01:00.0 > /sys/bus/pci/drivers/mlx5_core/unbind");
    near.output("echo 1 > /sys/bus/pci/devices/0000:01:00.0/reset");
    near.output("echo 0000:01:00.0 > /sys/bus/pci/drivers/mlx5_core/bind");
    near.output("until test -e /sys/class/net/eth0; do usleep 50000; done");
    looks_right(&near, NEAR);
    for mut adapter in adapters {
        assert!(adapter.alive(), "{}", adapter.said());
    }
}
