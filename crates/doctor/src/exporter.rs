//! What a GPU's driver exports (`nv-dmabuf.c`, `amdgpu_dma_buf.c`, `xe_dma_buf.c`,
//! `i915_gem_dmabuf.c`).

use crate::conditions::{configured, has, kernel, release};
use crate::importer;
use crate::{Condition, ConditionState, Facts, Version};
use pcie::{Function, Machine};

/// Makers whose drivers are known.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Maker {
    Nvidia,
    Amd,
    Intel,
    Other,
}

pub(crate) fn maker(gpu: &Function) -> Maker {
    match gpu.id.map(|id| id.0) {
        Some(0x10de) => Maker::Nvidia,
        Some(0x1002) => Maker::Amd,
        Some(0x8086) => Maker::Intel,
        _ => Maker::Other,
    }
}

/// Whether the driver exports its memory as a dma-buf that an adapter can pin where it is.
pub(crate) fn exports_pinned(facts: &Facts, gpu: &Function) -> Condition {
    let what = "the GPU's driver exports video memory that stays there when pinned";
    if let Some(condition) = driven_by_other(facts, gpu, what) {
        return condition;
    }
    match maker(gpu) {
        Maker::Nvidia => nvidia_exports(facts, what),
        Maker::Amd => since(
            facts,
            what,
            "amdgpu",
            Version(6, 15),
            "a pin moves the buffer to host memory: use a kernel of 6.15 or later",
        ),
        Maker::Intel => match gpu.driver.as_deref() {
            Some("i915") => Condition::new(
                what,
                ConditionState::Fails,
                "driver i915: an attachment moves the buffer to host memory",
                "use the xe driver of a kernel of 7.3 or later",
            ),
            _ => since(
                facts,
                what,
                "xe",
                Version(7, 3),
                "a pin moves the buffer to host memory: use a kernel of 7.3 or later",
            ),
        },
        Maker::Other => Condition::new(
            what,
            ConditionState::Unknown,
            gpu.driver.as_ref().map_or("driver unknown".into(), |name| format!("driver {name}")),
            "ask the driver's maker, or register a buffer and see",
        ),
    }
}

fn nvidia_exports(facts: &Facts, what: &str) -> Condition {
    let Some(text) = &facts.nvidia else {
        let (state, evidence) = if facts.sysfs {
            (
                ConditionState::Fails,
                "/proc/driver/nvidia/version is absent: no NVIDIA driver is loaded",
            )
        } else {
            (ConditionState::Unknown, "/proc/driver/nvidia/version is not in the source")
        };
        return Condition::new(
            what,
            state,
            evidence,
            "load the open kernel modules of 515 or later",
        );
    };
    let number = nvidia_version(text).map(|version| version.0);
    let open = text.contains("Open Kernel Module");
    let state = match number {
        Some(number) if open && number >= 515 => ConditionState::Holds,
        Some(_) => ConditionState::Fails,
        None => ConditionState::Unknown,
    };
    let remedy = "install the open kernel modules of 515 or later (Turing and newer GPUs); the \
                  closed ones do not export dma-bufs";
    Condition::new(what, state, format!("/proc/driver/nvidia/version: {text}"), remedy)
}

/// A GPU without a driver, or held for a guest.
fn driven_by_other(facts: &Facts, gpu: &Function, what: &str) -> Option<Condition> {
    match gpu.driver.as_deref() {
        None if facts.sysfs => Some(Condition::new(
            what,
            ConditionState::Fails,
            format!("/sys/bus/pci/devices/{}/driver is absent", gpu.address),
            "load the GPU's driver (nvidia, amdgpu, xe)",
        )),
        Some("vfio-pci") => Some(Condition::new(
            what,
            ConditionState::Fails,
            "driver vfio-pci: the GPU is held for a guest, and its exports can only be revoked",
            "run the doctor in the guest, bind the GPU to its own driver, or use the dynamic way",
        )),
        _ => None,
    }
}

/// `NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.105.08` as numbers.
fn nvidia_version(text: &str) -> Option<(u32, u32)> {
    text.split_whitespace().find_map(|word| {
        let mut numbers = word.split('.');
        Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
    })
}

/// The driver that CUDA 12.8 needs, the first with the flag that asks for a mapping through PCIe.
pub(crate) fn cuda_asks_for_pcie(facts: &Facts) -> Condition {
    let least = (570, 26);
    let version = facts.nvidia.as_deref().and_then(nvidia_version);
    let evidence = match version {
        Some((major, minor)) => format!("NVIDIA driver {major}.{minor}"),
        None => "/proc/driver/nvidia/version tells no version".into(),
    };
    Condition::new(
        "CUDA exports buffers through PCIe (12.8, driver 570.26)",
        ConditionState::of(version.map(|version| version >= least)),
        evidence,
        "install a driver of 570.26 or later and CUDA 12.8 or later",
    )
}

/// Whether the GPU shares memory coherently with the processor: only then the driver exports
/// through PCIe on request.
pub(crate) fn coherent(machine: &Machine, gpu: &Function) -> Condition {
    let chips = ["GH200", "GB200", "GB300", "GB10]", "Grace"];
    let ids = [0x2342, 0x2345, 0x2348, 0x2941, 0x31c2, 0x2e12];
    let x86 =
        machine.cpu().map(|cpu| matches!(cpu.vendor.as_str(), "GenuineIntel" | "AuthenticAMD"));
    let by_id = gpu.id.is_some_and(|(vendor, device)| vendor == 0x10de && ids.contains(&device));
    let by_name =
        gpu.product.as_deref().is_some_and(|name| chips.iter().any(|chip| name.contains(chip)));
    let id =
        gpu.id.map_or("id unknown".into(), |(vendor, device)| format!("{vendor:04x}:{device:04x}"));
    let (known, evidence) = match x86 {
        Some(true) => (Some(false), format!("{id} beside an x86 processor")),
        _ if by_id || by_name => (Some(true), id),
        _ => (None, id),
    };
    Condition::new(
        "the GPU's memory is coherent with the processor's (Grace)",
        ConditionState::of(known),
        evidence,
        "on other machines dma-buf in its pinned form is the way",
    )
}

/// Whether the GPU's BAR shows its memory to others.
pub(crate) fn shown_by_bar(gpu: &Function) -> Condition {
    let mib = |bytes: u64| format!("{} MiB", bytes >> 20);
    let (known, evidence) = match (gpu.bar_bytes, gpu.memory_bytes) {
        (Some(bar), Some(memory)) => {
            (Some(bar >= memory), format!("BAR {}, memory {}", mib(bar), mib(memory)))
        }
        // the window of a GPU whose BAR was not resized
        (Some(bar), None) if bar <= 256 << 20 => (None, format!("largest BAR {}", mib(bar))),
        (Some(bar), None) => (Some(true), format!("largest BAR {}", mib(bar))),
        (None, _) => (None, "no BAR in the source".into()),
    };
    // NVIDIA's driver moves its window to what is exported, as far as there is room
    let state = match ConditionState::of(known) {
        ConditionState::Fails if maker(gpu) == Maker::Nvidia => ConditionState::Unknown,
        state => state,
    };
    Condition::new(
        "a BAR shows the GPU's memory",
        state,
        format!("{}: {evidence}", gpu.address),
        "enable Above 4G Decoding and Resizable BAR in the firmware, large BAR1 in the GPU's",
    )
}

/// What exports a BAR of a GPU that is held for a guest: its holder, from `/dev/vfio`.
pub(crate) fn vfio_exports(facts: &Facts, nic: &Function) -> [Condition; 3] {
    let revoked = ["mlx5_core", "irdma", "ice", "i40e"];
    let driver = importer::of(nic).map(|importer| importer.driver);
    [
        kernel(facts, Version(6, 19), "vfio-pci exports a BAR as a dma-buf to who holds the GPU"),
        configured(facts, "VFIO_PCI_DMABUF"),
        Condition::new(
            "the adapter's driver gives a buffer back when it is revoked",
            ConditionState::of(driver.map(|driver| revoked.contains(&driver))),
            driver.map_or("driver unknown".into(), |driver| format!("driver {driver}")),
            "use an adapter of mlx5's or irdma's: others are refused with EOPNOTSUPP",
        ),
    ]
}

/// Whether the exporter may move a buffer that is registered, which needs an adapter that follows.
pub(crate) fn moves(facts: &Facts, gpu: &Function) -> Condition {
    let what = "the GPU's driver moves exported buffers and tells importers";
    if let Some(condition) = driven_by_other(facts, gpu, what) {
        return condition;
    }
    match maker(gpu) {
        Maker::Nvidia => Condition::new(
            what,
            ConditionState::Fails,
            "NVIDIA's exporter is static: it never moves a buffer",
            "nothing to do: on this GPU the pinned way is all there is, and it suffices",
        ),
        Maker::Amd => since(facts, what, "amdgpu", Version(5, 12), "use a kernel of 5.12 or later"),
        Maker::Intel if gpu.driver.as_deref() != Some("i915") => {
            since(facts, what, "xe", Version(6, 8), "use a kernel of 6.8 or later")
        }
        Maker::Intel => Condition::new(
            what,
            ConditionState::Fails,
            "driver i915 is static",
            "use the xe driver",
        ),
        Maker::Other => Condition::new(
            what,
            ConditionState::Unknown,
            gpu.driver.as_ref().map_or("driver unknown".into(), |name| format!("driver {name}")),
            "ask the driver's maker",
        ),
    }
}

fn since(facts: &Facts, what: &str, driver: &str, least: Version, remedy: &str) -> Condition {
    let state = has(facts, least, least);
    Condition::new(what, state, format!("driver {driver}, {}", release(facts)), remedy)
}
