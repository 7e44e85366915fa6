//! Conditions that several mechanisms share.

use crate::importer::{self, Mode};
use crate::{Condition, Facts, State, Version};
use pcie::{Function, Machine, MapType, Verdict, verdict};

/// The kernel's release, for evidence.
pub(crate) fn release(facts: &Facts) -> String {
    facts.release.as_ref().map_or("kernel unknown".into(), |release| format!("kernel {release}"))
}

/// Whether the kernel has something that came with `since`, and not before `not_before`. Enterprise kernels carry later features under
/// old numbers, so there an old number says nothing.
pub(crate) fn has(facts: &Facts, since: Version, not_before: Version) -> State {
    State::of(facts.kernel.as_ref().and_then(|kernel| kernel.has(since, not_before)))
}

fn backports(facts: &Facts) -> bool {
    facts.kernel.as_ref().is_some_and(|kernel| kernel.backports)
}

/// What to do about a feature that came with `since`.
fn newer(facts: &Facts, state: State, since: Version) -> String {
    match state {
        State::Unknown if backports(facts) => {
            "this distribution backports: `ibv_reg_dmabuf_mr` with descriptor -1 says EBADF if it has it".into()
        }
        State::Unknown => "`ibv_reg_dmabuf_mr` with descriptor -1 says EBADF if it has it".into(),
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

/// The kernel's RDMA core registers dma-bufs: the device's own answer, else the version and the configuration.
pub(crate) fn core_registers(facts: &Facts, nic: &Function) -> Vec<Condition> {
    let what = "the RDMA core registers dma-bufs";
    let answer = facts.probe(nic).and_then(|probe| probe.registers_dmabuf.as_ref());
    if let Some((true, evidence)) = answer {
        return vec![Condition::new(what, State::Holds, evidence.clone(), "")];
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
        return Condition::new(
            format!("{what} that this user may open"),
            State::Fails,
            format!("{device}: {why}"),
            "let the user open /dev/infiniband/uverbs* (a udev rule or group of rdma-core's), in a container pass them in",
        );
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
            State::Fails,
            format!("/sys/bus/pci/devices/{}/infiniband is absent; driver {driver}", nic.address),
            "load the driver's RDMA part (mlx5_ib, bnxt_re, irdma, efa, …)",
        ),
        None => Condition::new(
            what,
            State::Unknown,
            "the source does not tell",
            "run the doctor on the host",
        ),
    }
}

/// A device that is there; where it was asked to write to itself, it must have done so.
fn moves_bytes(facts: &Facts, nic: &Function, what: &str, evidence: String) -> Condition {
    match facts.probe(nic).and_then(|probe| probe.loopback.as_ref()) {
        None => Condition::new(what, State::Holds, evidence, ""),
        Some(Ok(bytes)) => Condition::new(
            what,
            State::Holds,
            format!("{evidence}, wrote {bytes} bytes to itself"),
            "",
        ),
        Some(Err(why)) => Condition::new(
            format!("{what} that moves bytes"),
            State::Fails,
            format!("{evidence}, could not write to itself: {why}"),
            "see that a port is active and has an address (ibv_devinfo -v), and that this user may open /dev/infiniband/uverbs*",
        ),
    }
}

/// The adapter's driver takes dma-bufs.
pub(crate) fn imports(facts: &Facts, nic: &Function) -> Condition {
    let what = "the adapter's driver registers dma-bufs";
    if let Some((device, (registers, evidence))) =
        facts.probe(nic).and_then(|probe| Some((&probe.device, probe.registers_dmabuf.as_ref()?)))
    {
        let state = if *registers { State::Holds } else { State::Fails };
        let remedy = "use a kernel and driver that do, or Peer-Direct";
        return Condition::new(what, state, format!("{device}: {evidence}"), remedy);
    }
    let Some(importer) = importer::of(nic) else {
        let evidence =
            nic.driver.as_ref().map_or("driver unknown".into(), |d| format!("driver {d}"));
        return Condition::new(
            what,
            State::Unknown,
            evidence,
            "`ibv_reg_dmabuf_mr` with descriptor -1 says EBADF if it does",
        );
    };
    let evidence = format!("driver {}, {}", importer.driver, release(facts));
    if importer.mode == Mode::None {
        return Condition::new(
            what,
            State::Fails,
            evidence,
            "this driver has none; use Peer-Direct or another adapter",
        );
    }
    let state = has(facts, importer.since, importer.not_before);
    let remedy = newer(facts, state, importer.since);
    Condition::new(what, state, evidence, remedy)
}

/// PCIe carries requests from the adapter to the GPU, as the kernel judges it before it maps a dma-buf.
pub(crate) fn reaches(machine: &Machine, gpu: &Function, nic: &Function) -> Condition {
    let what = "PCIe carries the adapter's requests to the GPU";
    let verdict = verdict(machine, gpu, nic);
    let evidence = way(machine, gpu, nic, &verdict);
    match (verdict.map_type, pcie::without_redirect(machine, &verdict.redirects)) {
        (MapType::NotSupported, Some(parameter)) => Condition::new(
            what,
            State::Fails,
            format!("{evidence}: {}", verdict.reason.split("; ").next().unwrap_or_default()),
            format!("boot with {parameter}"),
        ),
        (MapType::NotSupported, None) => Condition::new(
            what,
            State::Fails,
            format!("{evidence}: {}", verdict.reason),
            "move one of the cards below the other's switch or host bridge",
        ),
        (MapType::Unknown, _) => Condition::new(
            what,
            State::Unknown,
            format!("{evidence}: {}", verdict.reason),
            "run the doctor as root on the host",
        ),
        _ => Condition::new(what, State::Holds, evidence, ""),
    }
}

/// The same for Peer-Direct, whose modules ask nobody: what P2PDMA would refuse may still work, and only a transfer tells.
pub(crate) fn carries(machine: &Machine, gpu: &Function, nic: &Function) -> Condition {
    let verdict = verdict(machine, gpu, nic);
    let evidence = way(machine, gpu, nic, &verdict);
    let (state, evidence) = match verdict.map_type {
        MapType::NotSupported => (
            State::Unknown,
            format!("{evidence}, which Peer-Direct does not ask: {}", verdict.reason),
        ),
        MapType::Unknown => (State::Unknown, format!("{evidence}: {}", verdict.reason)),
        _ => (State::Holds, evidence),
    };
    Condition::new(
        "PCIe carries the adapter's requests to the GPU",
        state,
        evidence,
        "transfer into a GPU's buffer and compare (ib_write_bw --use_cuda): nothing refuses what the root complex may drop",
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
        Some(Some(value)) => (State::Holds, format!("={value}")),
        Some(None) => (State::Fails, " is not set".into()),
        None => (State::Unknown, " could not be read".into()),
    };
    let evidence = format!("{}: CONFIG_{name}{value}", facts.config_file());
    let remedy = match state {
        State::Fails => format!("use a kernel built with CONFIG_{name}"),
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
        Some("") => (State::Holds, format!("/proc/cmdline: no {}", words.join(", no "))),
        Some(told) => (State::Fails, format!("/proc/cmdline: {told}")),
        None => (State::Unknown, "/proc/cmdline could not be read".into()),
    };
    Condition::new(what, state, evidence, format!("boot without {}", told.unwrap_or_default()))
}
