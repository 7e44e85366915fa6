//! The software ConnectX in machines: stock Linux drivers bind to it, and programs of rdma-core and perftest run on it.

use std::path::Path;
use std::time::{Duration, Instant};
use system::lab::{Booted, Lab};
use system::{Namespace, Run, Running, peerdma, skip};
use vm::Machine;

const DEVICE: &str = "/sys/bus/pci/devices/0000:01:00.0";

/// `peerdma connectx` at `socket`, once it serves.
fn adapter(namespace: &Namespace, socket: &Path) -> Running {
    let mut serving = Run::program(peerdma())
        .args(&["connectx", "--socket"])
        .arg(socket)
        .within(namespace)
        .limit(Duration::from_secs(600))
        .start();
    let deadline = Instant::now() + Duration::from_secs(20);
    while !serving.said().contains("serving") {
        assert!(serving.alive() && Instant::now() < deadline, "{}", serving.said());
        std::thread::yield_now();
    }
    serving
}

fn machine(lab: &Lab, socket: &Path) -> Result<Machine, String> {
    let mut machine = lab.rdma_machine().map_err(|error| format!("{error:#}"))?;
    machine.root_port("root");
    machine.function(socket, "root");
    Ok(machine)
}

/// Both ends of a program in one guest: the second is told where the first is.
fn converse(guest: &Booted, line: &str) -> String {
    guest.output(&format!(
        "{line} > /tmp/first 2>&1 & \
         until netstat -ltn | grep -q :18515; do usleep 50000; done; \
         {line} localhost && wait $! && cat /tmp/first || {{ cat /tmp/first; exit 1; }}"
    ))
}

/// What Linux says of the adapter, without a warning of its drivers'.
fn looks_right(guest: &Booted) {
    let info = guest.output("ibv_devinfo -v");
    for expected in ["PORT_ACTIVE", "link_layer:\t\tInfiniBand", "vendor_part_id:\t\t\t4131"] {
        assert!(info.contains(expected), "{expected}\n{info}");
    }
    let bus = guest.output("lspci -vvv -s 01:00.0");
    for expected in ["Kernel driver in use: mlx5_core", "MSI-X: Enable+", "BusMaster+"] {
        assert!(bus.contains(expected), "{expected}\n{bus}");
    }
    let log = guest.output("dmesg --level=err,warn 2>/dev/null || dmesg | grep -i 'mlx5.*\\(fail\\|error\\|timeout\\)' || true");
    let bad: Vec<&str> = log
        .lines()
        // There is no vendor-specific capability, as on functions behind a hypervisor.
        .filter(|line| line.contains("mlx5") && !line.contains("vendor specific"))
        .collect();
    assert!(bad.is_empty(), "{bad:?}");
    guest.assert_quiet();
}

#[test]
fn stock_drivers_run_programs_on_the_adapter() {
    let lab = match Lab::new() {
        Ok(lab) => lab,
        Err(reason) => skip!("{reason:#}"),
    };
    if !system::is_root() {
        skip!("a namespace for the adapter needs root");
    }
    let socket = lab.socket("connectx");
    let machine = match machine(&lab, &socket) {
        Ok(machine) => machine,
        Err(reason) => skip!("{reason}"),
    };
    let namespace = Namespace::new("connectx");
    let mut adapter = adapter(&namespace, &socket);
    let guest = lab.boot(&machine);
    looks_right(&guest);
    for program in ["rc", "uc", "ud", "srq"] {
        let said = converse(&guest, &format!("ibv_{program}_pingpong -n 100"));
        assert!(said.contains("100 iters"), "{program}: {said}");
    }
    // The driver goes and comes back, and so does the function.
    guest.output("echo 0000:01:00.0 > /sys/bus/pci/drivers/mlx5_core/unbind");
    assert!(!guest.output("ls /sys/class/infiniband").contains("mlx5"));
    guest.output(&format!("echo 1 > {DEVICE}/reset"));
    guest.output("echo 0000:01:00.0 > /sys/bus/pci/drivers/mlx5_core/bind");
    looks_right(&guest);
    // Killed in the middle, and another machine after it.
    guest.output(
        "(ibv_rc_pingpong -n 1000000 & ibv_rc_pingpong -n 1000000 localhost) > /dev/null 2>&1 &",
    );
    drop(guest);
    let guest = lab.boot(&machine);
    looks_right(&guest);
    let said = converse(&guest, "ibv_rc_pingpong -n 100");
    assert!(said.contains("100 iters"), "{said}");
    drop(guest);
    assert!(adapter.alive(), "{}", adapter.said());
    adapter.signal(rustix::process::Signal::TERM);
    adapter.finish().ok();
    assert!(!socket.exists(), "its socket goes with it");
}

#[test]
fn a_command_in_a_machine_gives_its_output_and_status() {
    if let Err(reason) = Lab::new() {
        skip!("{reason:#}");
    }
    if !system::is_root() {
        skip!("a namespace for the adapter needs root");
    }
    let namespace = Namespace::new("vm");
    let cache = Lab::as_cache();
    let vm = |words: &[&str]| {
        let run = Run::program(peerdma()).arg("vm").args(words).env("XDG_CACHE_HOME", cache.path());
        run.within(&namespace).limit(Duration::from_secs(200)).finish()
    };
    let printed = vm(&["--print"]).ok();
    assert!(printed.stdout.contains("vfio-user-pci") && printed.stdout.contains("share=on"));
    let ran = vm(&["--", "sh", "-c", "ibv_devices; echo 'two  words'; exit 7"]);
    assert_eq!(ran.status.code(), Some(7), "{ran}");
    assert!(ran.stdout.contains("mlx5_0") && ran.stdout.ends_with("two  words\n"), "{ran}");
}
