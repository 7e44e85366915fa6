//! The InfiniBand subnet of software ConnectX: stock IPoIB, rdma_cm and infiniband-diags find its
//! manager, within a guest and between two.

use system::lab::{Booted, Lab};
use system::{Namespace, serve_connectx, skip};
use vm::Machine;

const NEAR: &str = "198.18.6.1";
const FAR: &str = "198.18.6.2";
const GROUP: &str = "239.3.2.1";

fn machine(lab: &Lab, end: &str) -> Result<Machine, String> {
    let mut machine = lab.rdma_machine().map_err(|error| format!("{error:#}"))?;
    machine.root_port("root");
    machine.function(&lab.socket(&format!("subnet-{end}")), "root");
    Ok(machine)
}

/// IPoIB comes up: it has joined the group that every interface is in.
fn comes_up(guest: &Booted, address: &str) {
    guest.output(&format!("ip link set ib0 up && ip addr add {address}/24 dev ib0"));
    guest.output("until grep -q 1 /sys/class/net/ib0/carrier; do usleep 50000; done");
}

fn packets_are_carried(near: &Booted, far: &Booted) {
    let said = near.output(&format!("ping -c 3 -s 4000 {FAR}"));
    assert!(said.contains("3 packets received"), "{said}");
    let said = far.output(&format!("ping -c 1 -s 9000 {NEAR}"));
    assert!(said.contains("1 packets received"), "{said}");
    // A group that both have joined answers twice.
    let said = near.output("ping -6 -c 10 -I ib0 ff02::1");
    assert!(said.contains("duplicates"), "{said}");
}

/// Both ends of a program of librdmacm: one is up when it listens, which no table shows.
fn connect(first: &Booted, second: &Booted, server: &str, client: &str) -> String {
    let line = format!("({server} > /tmp/first 2>&1; echo ended=$? >> /tmp/first) &");
    first.output(&format!(
        "{line} until rdma resource show cm_id | grep -q LISTEN; do usleep 50000; done"
    ));
    let said = second.output(client);
    let ended =
        first.output("until grep -q ended= /tmp/first; do usleep 50000; done; cat /tmp/first");
    assert!(ended.contains("ended=0"), "{server}: {ended}");
    said
}

fn programs_connect(first: &Booted, second: &Booted) {
    let said = connect(
        first,
        second,
        &format!("rping -s -a {NEAR} -C 10 -v"),
        &format!("rping -c -a {NEAR} -C 10 -v"),
    );
    assert!(said.contains("ping data: rdma-ping-9"), "{said}");
    for program in ["ucmatose", "udaddy"] {
        let said = connect(
            first,
            second,
            &format!("{program} -b {NEAR}"),
            &format!("{program} -s {NEAR}"),
        );
        assert!(said.contains("return status 0"), "{program}: {said}");
    }
}

/// A group of librdmacm's: the messages of one guest reach the other.
fn groups_are_joined(near: &Booted, far: &Booted) {
    near.output(&format!(
        "(mckey -m {GROUP} -b {NEAR} > /tmp/first 2>&1; echo ended=$? >> /tmp/first) &"
    ));
    // The address is in the group's name.
    let groups = far
        .output("until saquery -g | grep -q 'ffff::f03:201$'; do usleep 50000; done; saquery -g");
    assert!(groups.contains("ff12:401b:ffff::ffff:ffff"), "IPoIB's: {groups}");
    let said = far.output(&format!("mckey -m {GROUP} -b {FAR} -s"));
    assert!(said.contains("return status 0"), "{said}");
    let ended =
        near.output("until grep -q ended= /tmp/first; do usleep 50000; done; cat /tmp/first");
    assert!(ended.contains("receiving data transfers") && ended.contains("ended=0"), "{ended}");
}

/// What programs that look at subnets find here.
fn looks_right(guest: &Booted) {
    let manager = guest.output("sminfo");
    assert!(manager.contains("sm lid 1024") && manager.contains("SMINFO_MASTER"), "{manager}");
    let nodes = guest.output("saquery");
    assert_eq!(nodes.matches("peerdma software ConnectX").count(), 2, "{nodes}");
    assert_eq!(nodes.matches("peerdma software switch").count(), 1, "{nodes}");
    let fabric = guest.output("ibnetdiscover");
    assert_eq!(fabric.matches("\nCa\t1 ").count(), 2, "{fabric}");
    assert!(fabric.contains("Switch\t2 "), "{fabric}");
    let switch = guest.output("smpquery nodedesc 1024");
    assert!(switch.contains("peerdma software switch"), "{switch}");
}

#[test]
fn a_subnet_has_a_manager() {
    if !system::has("saquery") {
        skip!("infiniband-diags is not installed");
    }
    let lab = match Lab::new() {
        Ok(lab) => lab,
        Err(reason) => skip!("{reason:#}"),
    };
    if !system::is_root() {
        skip!("a namespace for the adapters needs root");
    }
    let ends = ["near", "far"];
    let machines = match ends.map(|end| machine(&lab, end)) {
        [Ok(near), Ok(far)] => [near, far],
        [Err(reason), _] | [_, Err(reason)] => skip!("{reason}"),
    };
    let namespace = Namespace::new("subnet");
    let _adapters =
        ends.map(|end| serve_connectx(&namespace, &lab.socket(&format!("subnet-{end}")), &[]));
    let [near, far] = std::thread::scope(|scope| {
        let boots = machines.each_ref().map(|machine| scope.spawn(|| lab.boot(machine)));
        boots.map(|boot| boot.join().expect("a guest"))
    });
    comes_up(&near, NEAR);
    comes_up(&far, FAR);
    packets_are_carried(&near, &far);
    looks_right(&near);
    programs_connect(&near, &near);
    programs_connect(&near, &far);
    groups_are_joined(&near, &far);
    near.assert_drivers_quiet();
    far.assert_drivers_quiet();
}
