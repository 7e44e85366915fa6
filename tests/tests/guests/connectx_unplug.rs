//! A guest that takes its adapter away from under running programs: removed and found again, its
//! drivers unloaded, unbound, the function reset. Each time the kernel warns of nothing and the
//! adapter works afterwards. On the way what others see of it by `peerdma ps` and `top`.

use serde_json::Value;
use system::lab::{Booted, Lab};
use system::{Namespace, Run, peerdma, serve_connectx, skip};

const DEVICE: &str = "/sys/bus/pci/devices/0000:01:00.0";
const FUNCTION: &str = "0000:01:00.0";
const DRIVER: &str = "/sys/bus/pci/drivers/mlx5_core";

/// What `peerdma` prints in the adapter's network, in JSON.
fn look(namespace: &Namespace, line: &str) -> Vec<Value> {
    let line = format!("{} {line}", peerdma().display());
    let output = Run::plain(&line).within(namespace).finish().ok();
    let values = serde_json::Deserializer::from_str(&output.stdout).into_iter();
    values.map(|value| value.expect("JSON")).collect()
}

/// Two programs that move data until they are killed; they have begun.
fn begin_traffic(guest: &Booted) {
    let line = "ib_write_bw -F -n 5000000 -s 65536";
    guest.output(&format!(
        "{line} > /tmp/far 2>&1 & \
         until netstat -ltn | grep -q :18515; do usleep 50000; done; \
         {line} localhost > /tmp/near 2>&1 & \
         until rdma resource show qp | grep -q 'type RC state RTS'; do \
           kill -0 $! || {{ cat /tmp/near; exit 1; }}; usleep 50000; \
         done"
    ));
}

/// The programs can be killed, and the adapter works.
fn works_again(guest: &Booted, after: &str) {
    guest.output(
        "killall -9 ib_write_bw; while pidof ib_write_bw; do usleep 50000; done; \
         for i in $(seq 600); do ibv_devinfo | grep -q PORT_ACTIVE && break; usleep 100000; done; \
         ibv_devinfo | grep PORT_ACTIVE",
    );
    let said = guest.converse("ibv_rc_pingpong -n 50");
    assert!(said.contains("50 iters"), "{after}: {said}");
    guest.assert_quiet();
}

#[test]
fn an_adapter_is_taken_away_under_traffic_and_comes_back() {
    let lab = match Lab::for_adapters() {
        Ok(lab) => lab,
        Err(reason) => skip!("{reason:#}"),
    };
    let socket = lab.socket("connectx");
    let mut machine = match lab.rdma_machine() {
        Ok(machine) => machine,
        Err(reason) => skip!("{reason:#}"),
    };
    machine.root_port("root");
    machine.function(&socket, "root");
    let namespace = Namespace::new("unplug");
    let mut adapter = serve_connectx(&namespace, &socket, &[]);
    let guest = lab.boot(&machine);

    begin_traffic(&guest);
    let processes = look(&namespace, "ps --json");
    let rows = processes[0]["processes"].as_array().expect("processes");
    assert!(rows.iter().any(|row| row["queue_pairs"].as_u64() >= Some(4)), "{rows:?}");
    let moves = |sample: &Value| {
        let devices = sample["devices"].as_array().expect("devices");
        devices.iter().any(|device| device["sent_bytes_per_second"].as_f64() > Some(1e4))
    };
    let samples = look(&namespace, "top --json --interval 1 --count 3");
    assert!(samples.iter().any(moves), "{samples:?}");

    guest.output(&format!("echo 1 > {DEVICE}/remove && echo 1 > /sys/bus/pci/rescan"));
    works_again(&guest, "remove and rescan");

    begin_traffic(&guest);
    guest.output(
        "rmmod mlx5_ib && rmmod mlx5_core && \
         insmod /lib/modules/mlx5_core.ko && insmod /lib/modules/mlx5_ib.ko",
    );
    works_again(&guest, "rmmod");

    begin_traffic(&guest);
    guest.output(&format!("echo {FUNCTION} > {DRIVER}/unbind && echo {FUNCTION} > {DRIVER}/bind"));
    works_again(&guest, "unbind and bind");
    // Of what comes next the driver does warn.
    guest.assert_drivers_quiet();

    begin_traffic(&guest);
    // Behind the driver's back: it finds out by the function's health, and starts it anew.
    guest.output(&format!("echo 1 > {DEVICE}/reset"));
    works_again(&guest, "reset");
    assert!(adapter.alive(), "{}", adapter.said());
}
