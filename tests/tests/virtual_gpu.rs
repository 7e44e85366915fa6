//! The virtual GPU in a machine with our adapter: its own driver, built for the machine's kernel, binds to it.

use std::path::Path;
use std::time::{Duration, Instant};
use system::lab::{Booted, Lab};
use system::{Namespace, Run, Running, c_program, peerdma, skip};
use vm::Machine;

/// The GPU's bytes of memory.
const MEMORY_MIB: u64 = 64;
const NODE: &str = "/dev/dri/renderD128";
/// The functions behind one switch.
const GPU: &str = "0000:04:00.0";

/// `peerdma connectx` with both functions, once it serves.
fn served(namespace: &Namespace, adapter: &Path, gpu: &Path) -> Running {
    let mut serving = Run::program(peerdma())
        .args(&["connectx", "--socket"])
        .arg(adapter)
        .arg("--gpu-socket")
        .arg(gpu)
        .args(&["--gpu-memory", &MEMORY_MIB.to_string()])
        .within(namespace)
        .limit(Duration::from_secs(600))
        .start();
    let deadline = Instant::now() + Duration::from_secs(20);
    while !serving.said().contains("serving a ConnectX") {
        assert!(serving.alive() && Instant::now() < deadline, "{}", serving.said());
        std::thread::yield_now();
    }
    serving
}

/// Both functions behind one switch.
fn behind_a_switch(lab: &Lab) -> Result<Machine, String> {
    let vram = c_program("vram")?;
    let machine = lab.gpu_machine(&[&vram]);
    let mut machine = machine.map_err(|error| format!("{error:#}"))?;
    machine.root_port("root");
    machine.switch("switch", "root", 2);
    machine.function(&lab.socket("connectx"), "switch0");
    machine.function(&lab.socket("gpu"), "switch1");
    Ok(machine)
}

/// What Linux says of the GPU.
fn looks_right(guest: &Booted) {
    let bus = guest.output(&format!("lspci -nnvvv -s {GPU}"));
    for expected in [
        "3D controller [0302]: Device [1234:7067]",
        &format!("[size={MEMORY_MIB}M]"),
        "64-bit, prefetchable",
        "MSI-X: Enable+ Count=1",
        "Kernel driver in use: peerdma_gpu",
    ] {
        assert!(bus.contains(expected), "{expected}\n{bus}");
    }
}

#[test]
fn a_guest_drives_the_gpu_beside_the_adapter() {
    let lab = match Lab::new() {
        Ok(lab) => lab,
        Err(reason) => skip!("{reason:#}"),
    };
    if !system::is_root() {
        skip!("a namespace for the functions needs root");
    }
    let machine = match behind_a_switch(&lab) {
        Ok(machine) => machine,
        Err(reason) => skip!("{reason}"),
    };
    let namespace = Namespace::new("vgpu");
    let mut serving = served(&namespace, &lab.socket("connectx"), &lab.socket("gpu"));
    let guest = lab.boot(&machine);
    looks_right(&guest);
    guest.output(&format!("vram {NODE} alone"));
    // The driver goes and comes back, and so does the function.
    guest.output(&format!("echo {GPU} > /sys/bus/pci/drivers/peerdma_gpu/unbind"));
    guest.output(&format!("echo 1 > /sys/bus/pci/devices/{GPU}/reset"));
    guest.output(&format!("echo {GPU} > /sys/bus/pci/drivers/peerdma_gpu/bind"));
    looks_right(&guest);
    guest.output(&format!("vram {NODE} alone"));
    guest.output("rmmod peerdma_gpu");
    guest.assert_quiet();
    drop(guest);
    assert!(serving.alive(), "{}", serving.said());
}
