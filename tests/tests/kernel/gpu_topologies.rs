//! The kernel as judge of the way from the adapter to the GPU: for each machine
//! we foretell what Linux allows, and then its drivers try.
//!
//! That the GPU's buffer stays in its memory when the adapter registers it says that the kernel
//! allows peer-to-peer. Where it does not for access control's sake, it names the ports in its log,
//! and we the parameter that frees them.

use std::collections::BTreeSet;
use system::gpu_guest::{GPU_NODE, GpuGuest, Placed, ZEN};
use system::lab::Booted;
use system::skip;

/// No processor whose host bridges pass peer traffic on.
const OTHER: &str = "max";
const PASS_THROUGH: Option<&str> = Some("iommu=pt");
const TRANSLATING: Option<&str> = Some("iommu=nopt iommu.strict=1");

/// A machine, and what it has to come to.
struct Case {
    placed: Placed,
    /// The kernel's options for an IOMMU; none without one.
    iommu: Option<&'static str>,
    processor: &'static str,
    /// Our verdict.
    verdict: &'static str,
    /// What the guest's drivers come to, in the words of `tests/c/gpu/vram.c`.
    found: &'static str,
}

/// Behind a switch without IOMMU: `virtual_gpu.rs`.
const CASES: [Case; 5] = [
    Case {
        placed: Placed::Ports,
        iommu: None,
        processor: OTHER,
        verdict: "NOT_SUPPORTED",
        found: "refused",
    },
    Case {
        placed: Placed::Ports,
        iommu: None,
        processor: ZEN,
        verdict: "THRU_HOST_BRIDGE",
        found: "direct",
    },
    // The adapter gets addresses of the IOMMU's for the GPU's memory.
    Case {
        placed: Placed::Ports,
        iommu: TRANSLATING,
        processor: ZEN,
        verdict: "THRU_HOST_BRIDGE",
        found: "direct",
    },
    // It gets addresses of the bus, which a switch would not pass up. QEMU sends all to the IOMMU.
    Case {
        placed: Placed::Switch,
        iommu: TRANSLATING,
        processor: OTHER,
        verdict: "BUS_ADDR",
        found: "unreachable",
    },
    // Access control sends all traffic up, where it is let through.
    Case {
        placed: Placed::IsolatingSwitch,
        iommu: PASS_THROUGH,
        processor: ZEN,
        verdict: "THRU_HOST_BRIDGE",
        found: "direct",
    },
];

/// Boots the machine with more kernel options.
fn boot(stage: &mut GpuGuest, case: &Case, options: &str) -> Booted {
    stage.plug(case.placed, case.iommu);
    case.processor.clone_into(&mut stage.machine.processor);
    let line = format!("{} {options}", stage.machine.kernel_options);
    stage.machine.kernel_options = line;
    stage.lab.boot(&stage.machine)
}

#[test]
fn linux_reaches_the_gpu_as_we_foretell() {
    let new = || GpuGuest::new("vgpu-ways", &["vram"]);
    let mut stages = match (new(), new()) {
        (Ok(one), Ok(other)) => [one, other],
        (Err(reason), _) | (_, Err(reason)) => skip!("{reason}"),
    };
    // Two machines at once, of 1 GiB each: for most of a boot one processor is busy.
    let halves = CASES.chunks(CASES.len().div_ceil(stages.len()));
    std::thread::scope(|scope| {
        for (stage, cases) in stages.iter_mut().zip(halves) {
            scope.spawn(move || cases.iter().for_each(|case| is_as_foretold(stage, case)));
        }
    });
}

fn is_as_foretold(stage: &mut GpuGuest, case: &Case) {
    let guest = boot(stage, case, "");
    let name = format!("{:?}, {:?}, {}", case.placed, case.iommu, case.processor);
    assert_eq!(stage.verdict(&guest), case.verdict, "{name}");
    guest.passes(&format!("vram {GPU_NODE} {}", case.found));
    guest.assert_quiet();
    drop(guest);
    assert!(stage.serving.alive(), "{name}: {}", stage.serving.said());
}

/// The ports in a parameter of the kernel's: `…@PORT;…@PORT`, or `PORT;PORT`.
fn ports(parameter: &str) -> BTreeSet<String> {
    let part = |part: &str| part.rsplit('@').next().unwrap_or(part).to_owned();
    parameter.split(';').map(part).collect()
}

/// Those that Linux says are in the way.
fn in_the_way(guest: &Booted) -> BTreeSet<String> {
    let log = guest.output("dmesg");
    let advice = log.lines().find_map(|line| line.split_once("pci=disable_acs_redir="));
    let (_, list) = advice.unwrap_or_else(|| panic!("Linux blames no port:\n{log}"));
    ports(list.trim())
}

#[test]
fn our_parameter_frees_the_way_behind_a_switch() {
    let case = Case {
        placed: Placed::IsolatingSwitch,
        iommu: PASS_THROUGH,
        processor: OTHER,
        verdict: "NOT_SUPPORTED",
        found: "refused",
    };
    let mut stage = match GpuGuest::new("vgpu-acs", &["vram"]) {
        Ok(stage) => stage,
        Err(reason) => skip!("{reason}"),
    };
    let guest = boot(&mut stage, &case, "");
    let now = stage.way(&guest, "");
    assert_eq!(now["p2pdma"], case.verdict);
    let parameter = now["config_acs"].as_str().unwrap_or_else(|| panic!("no remedy in {now}"));
    assert_eq!(stage.way(&guest, &format!("--acs '{parameter}'"))["p2pdma"], "BUS_ADDR");
    guest.passes(&format!("vram {GPU_NODE} {}", case.found));
    assert_eq!(ports(parameter), in_the_way(&guest), "{parameter}");
    drop(guest);
    let guest = boot(&mut stage, &case, &format!("pci=config_acs={parameter}"));
    assert_eq!(stage.verdict(&guest), "BUS_ADDR");
    guest.passes(&format!("vram {GPU_NODE} direct"));
    guest.assert_quiet();
    drop(guest);
    assert!(stage.serving.alive(), "{}", stage.serving.said());
}
