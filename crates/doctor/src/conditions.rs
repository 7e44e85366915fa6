//! Conditions that several mechanisms share.

use crate::importer::{self, Mode};
use crate::{Condition, ConditionState, Facts, Version};
use pcie::{Function, Machine, MapType, Verdict, verdict};

/// The kernel's release, for evidence.
pub(crate) fn release(facts: &Facts) -> String {
    facts.release.as_ref().map_or("kernel unknown".into(), |release| format!("kernel {release}"))
}

/// Whether the kernel has something that came with `since`, and not before `not_before`. Enterprise
/// kernels carry later features under old numbers, so there an old number says nothing.
pub(crate) fn has(facts: &Facts, since: Version, not_before: Version) -> ConditionState {
    ConditionState::of(facts.kernel.as_ref().and_then(|kernel| kernel.has(since, not_before)))
}

fn backports(facts: &Facts) -> bool {
    facts.kernel.as_ref().is_some_and(|kernel| kernel.backports)
}

/// What to do about a feature that came with `since`.
fn newer(facts: &Facts, state: ConditionState, since: Version) -> String {
    match state {
        ConditionState::Unknown if backports(facts) => {
            "this distribution backports: `ibv_reg_dmabuf_mr` with descriptor -1 says EBADF if it \
             has it"
                .into()
        }
        ConditionState::Unknown => {
            "`ibv_reg_dmabuf_mr` with descriptor -1 says EBADF if it has it".into()
        }
        _ => format!("use a kernel of {since} or later"),
    }
}

/// A kernel at least this new.
pub(crate) fn kernel(facts: &Facts, least: Version, what: &str) -> Condition {
    let state = has(facts, least, least);
    Condition::new(
        format!("{what} (kernel {least})"),
        state,
        release(facts),
        newer(facts, state, least),
    )
}

/// The kernel's RDMA core registers dma-bufs: the device's own answer, else the version and the
/// configuration.
pub(crate) fn core_registers(facts: &Facts, nic: &Function) -> Vec<Condition> {
    let what = "the RDMA core registers dma-bufs";
    let answer = facts.probe(nic).and_then(|probe| probe.registers_dmabuf.as_ref());
    if let Some((true, evidence)) = answer {
        return vec![Condition::new(what, ConditionState::Holds, evidence.clone(), "")];
    }
    let mut conditions = vec![kernel(facts, Version(5, 12), what)];
    conditions
        .extend(["INFINIBAND_USER_MEM", "DMA_SHARED_BUFFER"].map(|name| configured(facts, name)));
    conditions
}

/// The adapter shows an RDMA device.
pub(crate) fn rdma_device(facts: &Facts, nic: &Function) -> Condition {
    let what = "the adapter shows an RDMA device";
    let known = [
        "mlx", "bnxt_re", "irdma", "rdmap", "rocep", "ibp", "ibs", "efa", "mana", "ionic", "hns_",
        "erdma",
    ];
    let name = nic.interfaces.iter().find(|name| known.iter().any(|start| name.starts_with(start)));
    let driver = nic.driver.as_deref().unwrap_or("none");
    if let Some((device, why)) =
        facts.probe(nic).and_then(|probe| Some((&probe.device, probe.unopened.as_ref()?)))
    {
        return unopened(what, format!("{device}: {why}"));
    }
    if let Some((path, why)) = closed_node(facts, nic) {
        return unopened(what, format!("{path}: {why}"));
    }
    match name {
        Some(name) => {
            let firmware = facts.firmware.iter().find(|(device, _)| device == name);
            let firmware = firmware.map(|(_, version)| format!(", firmware {version}"));
            let evidence = format!("{name} at {}{}", nic.address, firmware.unwrap_or_default());
            moves_bytes(facts, nic, what, evidence)
        }
        None if facts.sysfs => Condition::new(
            what,
            ConditionState::Fails,
            format!("/sys/bus/pci/devices/{}/infiniband is absent; driver {driver}", nic.address),
            "load the driver's RDMA part (mlx5_ib, bnxt_re, irdma, efa, …)",
        ),
        None => Condition::new(
            what,
            ConditionState::Unknown,
            "the source does not tell",
            "run the doctor on the host",
        ),
    }
}

fn unopened(what: &str, evidence: String) -> Condition {
    Condition::new(
        format!("{what} that this user may open"),
        ConditionState::Fails,
        evidence,
        "let the user open /dev/infiniband/uverbs* (a udev rule or group of rdma-core's), in a \
         container pass them in",
    )
}

/// The adapter's device file, if this user may not open it.
fn closed_node<'a>(facts: &'a Facts, nic: &Function) -> Option<(String, &'a str)> {
    let (_, name) = facts.uverbs.iter().find(|(address, _)| *address == nic.address)?;
    let path = format!("/dev/infiniband/{name}");
    let why = facts.opens(&path)?.as_ref().err()?;
    Some((path, why))
}

/// A device that is there; where it was asked to write to itself, it must have done so.
fn moves_bytes(facts: &Facts, nic: &Function, what: &str, evidence: String) -> Condition {
    match facts.probe(nic).and_then(|probe| probe.loopback.as_ref()) {
        None => Condition::new(what, ConditionState::Holds, evidence, ""),
        Some(Ok(bytes)) => Condition::new(
            what,
            ConditionState::Holds,
            format!("{evidence}, wrote {bytes} bytes to itself"),
            "",
        ),
        Some(Err(why)) => Condition::new(
            format!("{what} that moves bytes"),
            ConditionState::Fails,
            format!("{evidence}, could not write to itself: {why}"),
            "see that a port is active and has an address (ibv_devinfo -v), and that this user may \
             open /dev/infiniband/uverbs*",
        ),
    }
}

/// The adapter's driver takes dma-bufs.
pub(crate) fn imports(facts: &Facts, nic: &Function) -> Condition {
    let what = "the adapter's driver registers dma-bufs";
    if let Some((device, (registers, evidence))) =
        facts.probe(nic).and_then(|probe| Some((&probe.device, probe.registers_dmabuf.as_ref()?)))
    {
        let state = if *registers { ConditionState::Holds } else { ConditionState::Fails };
        let remedy = "use a kernel and driver that do, or Peer-Direct";
        return Condition::new(what, state, format!("{device}: {evidence}"), remedy);
    }
    let Some(importer) = importer::of(nic) else {
        let evidence =
            nic.driver.as_ref().map_or("driver unknown".into(), |d| format!("driver {d}"));
        return Condition::new(
            what,
            ConditionState::Unknown,
            evidence,
            "`ibv_reg_dmabuf_mr` with descriptor -1 says EBADF if it does",
        );
    };
    let evidence = format!("driver {}, {}", importer.driver, release(facts));
    if importer.mode == Mode::None {
        return Condition::new(
            what,
            ConditionState::Fails,
            evidence,
            "this driver has none; use Peer-Direct or another adapter",
        );
    }
    let state = has(facts, importer.since, importer.not_before);
    let remedy = newer(facts, state, importer.since);
    Condition::new(what, state, evidence, remedy)
}

/// The device pages on demand: a buffer that moved is found again by a page fault of RC's
/// operations.
pub(crate) fn pages_on_demand(facts: &Facts, nic: &Function) -> Condition {
    const WRITE_AND_READ: u32 = 4 | 8;
    let what = "the adapter's hardware and firmware page on demand (odp_caps)";
    let answer = facts.probe(nic).and_then(|probe| probe.on_demand);
    let (state, evidence) = match answer {
        Some(odp) => (
            ConditionState::of(Some(odp.supported && odp.rc & WRITE_AND_READ == WRITE_AND_READ)),
            format!(
                "`ibv_query_device_ex`: {}, RC {:#x}",
                if odp.supported { "IBV_ODP_SUPPORT" } else { "no IBV_ODP_SUPPORT" },
                odp.rc
            ),
        ),
        None => (ConditionState::Unknown, "the device was not asked".into()),
    };
    let remedy = match state {
        ConditionState::Fails => {
            "enable on-demand paging in the adapter's firmware, or use an adapter that has it"
        }
        _ => "run the doctor on the host, where the adapter answers",
    };
    Condition::new(what, state, evidence, remedy)
}

/// In a guest whose memory is encrypted, DMA bounces, and the kernel registers no plain memory
/// (`ib_umem_get` says EOPNOTSUPP). `plain` is whether the mechanism takes that way; a dma-buf does
/// not, but its queues lie in plain memory.
pub(crate) fn unencrypted(facts: &Facts, nic: &Function, plain: bool) -> Condition {
    const TOLD: Version = Version(7, 3);
    let what = "the machine is no guest with encrypted memory (SEV, TDX, CCA), or the adapter \
                reaches it nevertheless";
    let told = has(facts, TOLD, Version(7, 2)) == ConditionState::Holds;
    let answer = facts.probe(nic).and_then(|probe| probe.bounces);
    let said = |answer: &str| format!("`ibv_query_device_ex`: {answer} CC_DMA_BOUNCE");
    let (state, evidence) = match (answer, &facts.plain_memory) {
        (Some(true), _) if plain => (ConditionState::Fails, said("has")),
        (Some(true), _) => (ConditionState::Unknown, said("has")),
        (Some(false), _) if told => (ConditionState::Holds, said("no")),
        (_, Some((ConditionState::Holds, sign))) => (ConditionState::Holds, sign.clone()),
        (_, Some((_, sign))) => (ConditionState::Unknown, sign.clone()),
        (_, None) => (ConditionState::Unknown, "the source does not tell".into()),
    };
    let remedy = match state {
        ConditionState::Fails => {
            "register dma-bufs: the GPU's, and of /dev/dma_heap/system_cc_shared for host memory"
        }
        _ => {
            "register a buffer and see (`peerdma doctor --probe`); queues need rdma-core 65 and \
             /dev/dma_heap/system_cc_shared where DMA bounces"
        }
    };
    Condition::new(what, state, evidence, remedy)
}

/// PCIe carries requests from the adapter to the GPU, as the kernel judges it before it maps a
/// dma-buf.
pub(crate) fn reaches(
    facts: &Facts,
    machine: &Machine,
    gpu: &Function,
    nic: &Function,
) -> Condition {
    let what = "PCIe carries the adapter's requests to the GPU";
    let verdict = verdict(machine, gpu, nic);
    let evidence = format!("{}{}", way(machine, gpu, nic, &verdict), acs_told(facts));
    match (verdict.map_type, pcie::without_redirect(machine, &verdict.redirects)) {
        (MapType::NotSupported, Some(parameter)) => Condition::new(
            what,
            ConditionState::Fails,
            format!("{evidence}: {}", verdict.reason.split("; ").next().unwrap_or_default()),
            format!("boot with {parameter}"),
        ),
        (MapType::NotSupported, None) => Condition::new(
            what,
            ConditionState::Fails,
            format!("{evidence}: {}", verdict.reason),
            "move one of the cards below the other's switch or host bridge",
        ),
        (MapType::Unknown, _) => Condition::new(
            what,
            ConditionState::Unknown,
            format!("{evidence}: {}{}", verdict.reason, group_hint(gpu, nic)),
            "run the doctor as root on the host",
        ),
        _ => Condition::new(what, ConditionState::Holds, evidence, ""),
    }
}

/// The same for Peer-Direct, whose modules ask nobody: what P2PDMA would refuse may still work, and
/// only a transfer tells.
pub(crate) fn carries(machine: &Machine, gpu: &Function, nic: &Function) -> Condition {
    let verdict = verdict(machine, gpu, nic);
    let evidence = way(machine, gpu, nic, &verdict);
    let (state, evidence) = match verdict.map_type {
        MapType::NotSupported => (
            ConditionState::Unknown,
            format!("{evidence}, which Peer-Direct does not ask: {}", verdict.reason),
        ),
        MapType::Unknown => (ConditionState::Unknown, format!("{evidence}: {}", verdict.reason)),
        _ => (ConditionState::Holds, evidence),
    };
    Condition::new(
        "PCIe carries the adapter's requests to the GPU",
        state,
        evidence,
        "transfer into a GPU's buffer and compare (ib_write_bw --use_cuda): nothing refuses what \
         the root complex may drop",
    )
}

/// The kernel's boot parameters for ACS, which a new parameter would replace.
pub(crate) fn acs_told(facts: &Facts) -> String {
    let line = facts.command_line.as_deref().unwrap_or_default();
    let options = line.split_whitespace().filter_map(|word| word.strip_prefix("pci="));
    let starts = ["config_acs=", "disable_acs_redir="];
    let told = options.filter(|option| starts.iter().any(|start| option.contains(start)));
    told.map(|option| format!(", booted with pci={option}")).collect()
}

/// What IOMMU groups suggest of bits that could not be read: Linux puts functions that may reach
/// each other past the IOMMU together.
fn group_hint(gpu: &Function, nic: &Function) -> String {
    match (gpu.iommu_group, nic.iommu_group) {
        (Some(a), Some(b)) if a == b => {
            format!("; both in IOMMU group {a}, which suggests no redirect")
        }
        (Some(a), Some(b)) => format!("; IOMMU groups {a} and {b}, which suggest redirect"),
        _ => String::new(),
    }
}

/// What a setting means for programs, where it decides nothing here.
pub(crate) fn setting(facts: &Facts, name: &str) -> Option<String> {
    let value = facts.config(name)?;
    Some(
        value.map_or(format!("CONFIG_{name} is not set"), |value| format!("CONFIG_{name}={value}")),
    )
}

fn way(machine: &Machine, gpu: &Function, nic: &Function, verdict: &Verdict) -> String {
    let label: Vec<String> =
        pcie::labels(machine, gpu, nic).iter().map(ToString::to_string).collect();
    format!("P2PDMA {}, {}", verdict.map_type, label.join("|"))
}

/// A setting of the kernel's configuration.
pub(crate) fn configured(facts: &Facts, name: &str) -> Condition {
    let what = format!("CONFIG_{name} is set");
    let (state, value) = match facts.config(name) {
        Some(Some(value)) => (ConditionState::Holds, format!("={value}")),
        Some(None) => (ConditionState::Fails, " is not set".into()),
        None => (ConditionState::Unknown, " could not be read".into()),
    };
    let evidence = format!("{}: CONFIG_{name}{value}", facts.config_file());
    let remedy = match state {
        ConditionState::Fails => format!("use a kernel built with CONFIG_{name}"),
        _ => "keep the kernel's configuration readable (/boot/config-* or CONFIG_IKCONFIG_PROC)"
            .into(),
    };
    Condition::new(what, state, evidence, remedy)
}

/// A word of the kernel's command line that must not be there.
pub(crate) fn not_told(facts: &Facts, what: &str, words: &[&str]) -> Condition {
    let line = facts.command_line.as_deref();
    let told = line.map(|line| {
        let options = line.split_whitespace().flat_map(|word| {
            let (name, values) = word.split_once('=').unwrap_or((word, ""));
            values.split(',').map(move |value| format!("{name}={value}"))
        });
        options.filter(|option| words.contains(&option.as_str())).collect::<Vec<_>>().join(" ")
    });
    let (state, evidence) = match told.as_deref() {
        Some("") => (ConditionState::Holds, format!("/proc/cmdline: no {}", words.join(", no "))),
        Some(told) => (ConditionState::Fails, format!("/proc/cmdline: {told}")),
        None => (ConditionState::Unknown, "/proc/cmdline could not be read".into()),
    };
    Condition::new(what, state, evidence, format!("boot without {}", told.unwrap_or_default()))
}
