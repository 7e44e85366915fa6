//! The virtual GPU in a machine with our adapter: its own driver, built for the machine's kernel,
//! exports its memory, and stock mlx5_ib registers that. Whether the adapter reaches the GPU
//! directly the kernel decides, and we foretell.

use serde_json::Value;
use system::gpu_guest::{GPU_MEMORY_MIB, GPU_NODE, GpuGuest, Placed};
use system::lab::Booted;
use system::skip;

/// What Linux says of the GPU.
fn looks_right(guest: &Booted, gpu: &str) {
    let bus = guest.output(&format!("lspci -nnvvv -s {gpu}"));
    for expected in [
        "3D controller [0302]: Device [1234:7067]",
        &format!("[size={GPU_MEMORY_MIB}M]"),
        "64-bit, prefetchable",
        "MSI-X: Enable+ Count=1",
        "Kernel driver in use: peerdma_gpu",
    ] {
        assert!(bus.contains(expected), "{expected}\n{bus}");
    }
}

/// What no file tells the doctor has from the driver and, through libmlx5, from the firmware.
fn doctor_asks_the_adapter(guest: &Booted) {
    let (_, said) = guest.script("peerdma doctor --probe --json");
    let told: Value = serde_json::from_str(&said).unwrap_or_else(|error| panic!("{error}\n{said}"));
    let of = |mechanism: &str, what: &str| {
        let findings = told["findings"].as_array().expect("findings").iter();
        let mut of = findings.filter(|finding| finding["mechanism"] == mechanism);
        let conditions = of.next().expect("a pair")["conditions"].as_array().cloned().unwrap();
        let has = |condition: &&Value| condition["what"].as_str().is_some_and(|w| w.contains(what));
        let found = conditions.iter().find(has).cloned();
        found.unwrap_or_else(|| panic!("{mechanism}, {what}: {said}"))
    };
    for (mechanism, what, holds, evidence) in [
        ("dma-buf-dynamic", "page on demand", true, "IBV_ODP_SUPPORT, RC 0x3f"),
        ("dma-buf-dynamic", "the RDMA core registers dma-bufs", true, "EBADF"),
        ("dma-buf-pinned", "shows an RDMA device", true, "wrote 65536 bytes to itself"),
        ("ats", "HCA_CAP.ats", false, "QUERY_HCA_CAP: ats 0"),
        ("dma-buf-pinned", "a buffer of this GPU was registered", true, "took 2097152 bytes"),
    ] {
        let condition = of(mechanism, what);
        assert_eq!(condition["holds"], holds, "{condition}");
        assert!(condition["evidence"].to_string().contains(evidence), "{condition}");
    }
}

#[test]
fn a_guest_drives_the_gpu_beside_the_adapter() {
    let programs = ["vram", "vram_pages", "bad_memory", "moving_gpu"];
    let mut stage = match GpuGuest::new("vgpu", &programs) {
        Ok(stage) => stage,
        Err(reason) => skip!("{reason}"),
    };
    stage.plug(Placed::Switch, None);
    let guest = stage.lab.boot(&stage.machine);
    looks_right(&guest, stage.gpu);
    guest.passes(&format!("vram {GPU_NODE} alone"));
    assert_eq!(stage.verdict(&guest), "BUS_ADDR");
    doctor_asks_the_adapter(&guest);
    guest.passes(&format!("vram {GPU_NODE} moving"));
    // The table that the library in a process is judged by.
    guest.passes(&format!("bad_memory {GPU_NODE} dmabufs"));
    // Atomics, too, and a program that knows nothing of this driver.
    let said = guest.output(&format!(
        "moving_gpu alone {GPU_NODE} 100000 > /tmp/said & until grep -q rounds /tmp/said; do \
         usleep 50000; done; kill -USR1 $!; wait $!; cat /tmp/said"
    ));
    assert!(said.contains("good end"), "{said}");
    // Pages of programs, also those that an on-demand region covers; at the end the driver goes and
    // comes back.
    guest.passes(&format!("vram_pages {GPU_NODE} adapter"));
    // The driver again, and the function.
    let gpu = stage.gpu;
    guest.output(&format!("echo {gpu} > /sys/bus/pci/drivers/peerdma_gpu/unbind"));
    guest.output(&format!("echo 1 > /sys/bus/pci/devices/{gpu}/reset"));
    guest.output(&format!("echo {gpu} > /sys/bus/pci/drivers/peerdma_gpu/bind"));
    looks_right(&guest, gpu);
    guest.passes(&format!("vram {GPU_NODE} alone"));
    guest.output("rmmod peerdma_gpu");
    guest.assert_quiet();
    drop(guest);
    assert!(stage.serving.alive(), "{}", stage.serving.said());
}
