//! The virtual GPU in a machine with our adapter: its own driver, built for the machine's kernel, exports its memory, and stock
//! mlx5_ib registers that. Whether the adapter reaches the GPU directly the kernel decides, and we foretell.

use serde_json::Value;
use system::lab::{Booted, Lab};
use system::{Namespace, Running, c_program, peerdma, serve_connectx, skip};
use vm::Machine;

const MEMORY_MIB: &str = "64";
const NODE: &str = "/dev/dri/renderD128";
/// A processor whose host bridges pass peer traffic on.
const ZEN: &str = "max,vendor=AuthenticAMD,family=25";

struct Stage {
    lab: Lab,
    machine: Machine,
    _namespace: Namespace,
    serving: Running,
    /// The functions in the guest.
    adapter: &'static str,
    gpu: &'static str,
}

/// A machine with both functions behind one switch, or below root ports of their own.
fn stage(name: &str, behind_a_switch: bool) -> Result<Stage, String> {
    let said = |error: anyhow::Error| format!("{error:#}");
    if !system::is_root() {
        return Err("a namespace for the functions needs root".to_owned());
    }
    let lab = Lab::new().map_err(said)?;
    let programs = [c_program("vram")?, c_program("bad_memory")?, c_program("moving_gpu")?];
    let [vram, bad_memory, moving] = programs.each_ref().map(|program| program.as_path());
    let own = [vram, bad_memory, moving, peerdma()];
    let mut machine = lab.gpu_machine(&own).map_err(said)?;
    let (socket, gpu) = (lab.socket("connectx"), lab.socket("gpu"));
    let (ports, addresses) = if behind_a_switch {
        machine.root_port("root");
        machine.switch("switch", "root", 2);
        (["switch0", "switch1"], ["0000:03:00.0", "0000:04:00.0"])
    } else {
        machine.root_port("near");
        machine.root_port("far");
        (["near", "far"], ["0000:01:00.0", "0000:02:00.0"])
    };
    machine.function(&socket, ports[0]);
    machine.function(&gpu, ports[1]);
    let namespace = Namespace::new(name);
    let gpu = gpu.to_string_lossy().into_owned();
    let options = ["--gpu-socket", &gpu, "--gpu-memory", MEMORY_MIB];
    let serving = serve_connectx(&namespace, &socket, &options);
    let [adapter, gpu] = addresses;
    Ok(Stage { lab, machine, _namespace: namespace, serving, adapter, gpu })
}

/// What Linux says of the GPU.
fn looks_right(guest: &Booted, gpu: &str) {
    let bus = guest.output(&format!("lspci -nnvvv -s {gpu}"));
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

/// A program whose rows are all right.
fn passes(guest: &Booted, line: &str) {
    let (status, said) = guest.script(line);
    let wrong: Vec<&str> = said.lines().filter(|line| line.starts_with("NOT")).collect();
    assert!(status == 0 && wrong.is_empty(), "{line}: {wrong:#?}\n{said}\n{}", guest.0.log());
}

/// mlx5_ib registers no dma-buf where the adapter has no on-demand paging.
fn takes_dmabufs(guest: &Booted) -> bool {
    guest.output("ibv_devinfo -v").contains("ODP_SUPPORT")
}

/// What we say of the way from the adapter to the GPU, and whether the kernel agrees: only a GPU that the adapter reaches
/// keeps a buffer that is registered.
fn verdict(guest: &Booted, stage: &Stage) -> String {
    let pair = format!("{},{}", stage.gpu, stage.adapter);
    let said = guest.output(&format!("peerdma topo --json --pair {pair}"));
    let topo: Value = serde_json::from_str(&said).unwrap_or_else(|error| panic!("{error}\n{said}"));
    let ours = topo["pairs"][0]["p2pdma"].as_str().expect("a verdict").to_owned();
    if takes_dmabufs(guest) {
        let expected = if ours == "NOT_SUPPORTED" { "refused" } else { "direct" };
        passes(guest, &format!("vram {NODE} {expected}"));
    }
    ours
}

#[test]
fn a_guest_drives_the_gpu_beside_the_adapter() {
    let mut stage = match stage("vgpu", true) {
        Ok(stage) => stage,
        Err(reason) => skip!("{reason}"),
    };
    let guest = stage.lab.boot(&stage.machine);
    looks_right(&guest, stage.gpu);
    passes(&guest, &format!("vram {NODE} alone"));
    assert_eq!(verdict(&guest, &stage), "BUS_ADDR");
    if takes_dmabufs(&guest) {
        // The table that the library in a process is judged by.
        passes(&guest, &format!("bad_memory {NODE} dmabufs"));
        // Atomics, too, and a program that knows nothing of this driver.
        let said = guest.output(&format!(
            "moving_gpu alone {NODE} 100000 > /tmp/said & until grep -q rounds /tmp/said; do \
             usleep 50000; done; kill -USR1 $!; wait $!; cat /tmp/said"
        ));
        assert!(said.contains("good end"), "{said}");
    }
    // The driver goes and comes back, and so does the function.
    let gpu = stage.gpu;
    guest.output(&format!("echo {gpu} > /sys/bus/pci/drivers/peerdma_gpu/unbind"));
    guest.output(&format!("echo 1 > /sys/bus/pci/devices/{gpu}/reset"));
    guest.output(&format!("echo {gpu} > /sys/bus/pci/drivers/peerdma_gpu/bind"));
    looks_right(&guest, gpu);
    passes(&guest, &format!("vram {NODE} alone"));
    guest.output("rmmod peerdma_gpu");
    guest.assert_quiet();
    drop(guest);
    assert!(stage.serving.alive(), "{}", stage.serving.said());
}

#[test]
fn what_passes_between_root_ports_depends_on_the_processor() {
    let mut stage = match stage("vgpu-ports", false) {
        Ok(stage) => stage,
        Err(reason) => skip!("{reason}"),
    };
    let guest = stage.lab.boot(&stage.machine);
    assert_eq!(verdict(&guest, &stage), "NOT_SUPPORTED", "QEMU's host bridge is on no list");
    drop(guest);
    ZEN.clone_into(&mut stage.machine.processor);
    let guest = stage.lab.boot(&stage.machine);
    assert_eq!(verdict(&guest, &stage), "THRU_HOST_BRIDGE");
    drop(guest);
    assert!(stage.serving.alive(), "{}", stage.serving.said());
}
