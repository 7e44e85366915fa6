//! What a GPU's driver exports (`nv-dmabuf.c`, `amdgpu_dma_buf.c`, `xe_dma_buf.c`, `i915_gem_dmabuf.c`).

use crate::conditions::{has, release};
use crate::{Condition, Facts, State, Version};
use pcie::Function;

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
                State::Fails,
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
            State::Unknown,
            gpu.driver.as_ref().map_or("driver unknown".into(), |name| format!("driver {name}")),
            "ask the driver's maker, or register a buffer and see",
        ),
    }
}

fn nvidia_exports(facts: &Facts, what: &str) -> Condition {
    let Some(text) = &facts.nvidia else {
        let (state, evidence) = if facts.sysfs {
            (State::Fails, "/proc/driver/nvidia/version is absent: no NVIDIA driver is loaded")
        } else {
            (State::Unknown, "/proc/driver/nvidia/version is not in the source")
        };
        return Condition::new(
            what,
            state,
            evidence,
            "load the open kernel modules of 515 or later",
        );
    };
    let number = text.split_whitespace().find_map(|word| {
        word.split('.').next()?.parse::<u32>().ok().filter(|_| word.contains('.'))
    });
    let open = text.contains("Open Kernel Module");
    let state = match number {
        Some(number) if open && number >= 515 => State::Holds,
        Some(_) => State::Fails,
        None => State::Unknown,
    };
    let remedy = "install the open kernel modules of 515 or later (Turing and newer GPUs); the closed ones do not export dma-bufs";
    Condition::new(what, state, format!("/proc/driver/nvidia/version: {text}"), remedy)
}

/// Whether the exporter may move a buffer that is registered, which needs an adapter that follows.
pub(crate) fn moves(facts: &Facts, gpu: &Function) -> Condition {
    let what = "the GPU's driver moves exported buffers and tells importers";
    match maker(gpu) {
        Maker::Nvidia => Condition::new(
            what,
            State::Fails,
            "NVIDIA's exporter is static: it never moves a buffer",
            "nothing to do: on this GPU the pinned way is all there is, and it suffices",
        ),
        Maker::Amd => since(facts, what, "amdgpu", Version(5, 12), "use a kernel of 5.12 or later"),
        Maker::Intel if gpu.driver.as_deref() != Some("i915") => {
            since(facts, what, "xe", Version(6, 8), "use a kernel of 6.8 or later")
        }
        Maker::Intel => {
            Condition::new(what, State::Fails, "driver i915 is static", "use the xe driver")
        }
        Maker::Other => Condition::new(
            what,
            State::Unknown,
            gpu.driver.as_ref().map_or("driver unknown".into(), |name| format!("driver {name}")),
            "ask the driver's maker",
        ),
    }
}

fn since(facts: &Facts, what: &str, driver: &str, least: Version, remedy: &str) -> Condition {
    let state = has(facts, least, least);
    Condition::new(what, state, format!("driver {driver}, {}", release(facts)), remedy)
}
