//! The conditions of each mechanism, in the order in which a registration meets them.

use crate::acs::{Translated, data_direct, parameter, translated};
use crate::conditions::{configured, imports, kernel, rdma_device, reaches, release};
use crate::exporter::{self, Maker};
use crate::importer::{self, Mode};
use crate::{Condition, Facts, Finding, Mechanism, State, Version};
use pcie::{Acs, AcsBits, Function, Kind, Machine, Role};

/// Examines a host: every mechanism for every GPU and adapter, and the software HCA.
pub fn examine(facts: &Facts, machine: &Machine) -> Vec<Finding> {
    let nics = topology::adapters(machine);
    let mut findings = Vec::new();
    for gpu in topology::accelerators(machine) {
        for &nic in &nics {
            let pair = Pair { facts, machine, gpu, nic };
            findings.extend(Mechanism::ALL.iter().filter_map(|&mechanism| {
                let conditions = pair.conditions(mechanism)?;
                Some(Finding { mechanism, pair: Some((gpu.address, nic.address)), conditions })
            }));
        }
    }
    findings.push(Finding {
        mechanism: Mechanism::SoftwareHca,
        pair: None,
        conditions: software_hca(facts),
    });
    findings
}

struct Pair<'a> {
    facts: &'a Facts,
    machine: &'a Machine,
    gpu: &'a Function,
    nic: &'a Function,
}

impl Pair<'_> {
    fn conditions(&self, mechanism: Mechanism) -> Option<Vec<Condition>> {
        match mechanism {
            Mechanism::PeerDirect => Some(self.peer_direct()),
            Mechanism::PinnedDmaBuf => Some(self.pinned()),
            Mechanism::DynamicDmaBuf => Some(self.dynamic()),
            Mechanism::DataDirect => Some(self.data_direct()),
            Mechanism::DevicePrivate => Some(self.device_private()),
            Mechanism::Ats => Some(self.ats()),
            Mechanism::SoftwareHca => None,
        }
    }

    fn peer_direct(&self) -> Vec<Condition> {
        vec![
            rdma_device(self.facts, self.nic),
            self.peer_core(),
            self.peer_client(),
            reaches(self.machine, self.gpu, self.nic),
        ]
    }

    fn peer_core(&self) -> Condition {
        let (state, evidence) = match (&self.facts.memory_peers, self.facts.sysfs) {
            (Some(_), _) => (State::Holds, "/sys/kernel/mm/memory_peers exists"),
            (None, true) => (State::Fails, "/sys/kernel/mm/memory_peers is absent"),
            (None, false) => (State::Unknown, "the source does not tell"),
        };
        Condition::new(
            "the kernel's RDMA core takes peer memory clients (no released kernel does)",
            state,
            evidence,
            "install NVIDIA's DOCA-OFED, whose RDMA core does; or use dma-buf, which needs no patch",
        )
    }

    fn peer_client(&self) -> Condition {
        let what = "a peer memory client knows the GPU";
        let loaded = self.facts.module("nvidia_peermem");
        let clients = self.facts.memory_peers.as_deref().unwrap_or_default();
        let evidence = match clients {
            [] => "no client in /sys/kernel/mm/memory_peers".to_owned(),
            clients => format!("/sys/kernel/mm/memory_peers: {}", clients.join(", ")),
        };
        if exporter::maker(self.gpu) != Maker::Nvidia {
            let state =
                if clients.is_empty() && self.facts.sysfs { State::Fails } else { State::Unknown };
            return Condition::new(
                what,
                state,
                evidence,
                "use dma-buf: this GPU's maker has no client of its own any more",
            );
        }
        if clients.iter().any(|client| client.starts_with("nv_mem")) {
            return Condition::new(what, State::Holds, evidence, "");
        }
        match loaded {
            Some(true) => Condition::new(
                what,
                State::Fails,
                format!(
                    "{evidence}, though nvidia_peermem is loaded: it was built without the peer symbols"
                ),
                "install DOCA-OFED first, then rebuild the NVIDIA modules against it",
            ),
            Some(false) => Condition::new(
                what,
                State::Fails,
                format!("{evidence}; nvidia_peermem is not loaded"),
                "modprobe nvidia-peermem",
            ),
            None => Condition::new(
                what,
                State::Unknown,
                "/proc/modules could not be read",
                "modprobe nvidia-peermem",
            ),
        }
    }

    fn pinned(&self) -> Vec<Condition> {
        vec![
            kernel(self.facts, Version(5, 12), "the RDMA core registers dma-bufs"),
            rdma_device(self.facts, self.nic),
            imports(self.facts, self.nic),
            exporter::exports_pinned(self.facts, self.gpu),
            reaches(self.machine, self.gpu, self.nic),
        ]
    }

    fn dynamic(&self) -> Vec<Condition> {
        let mut conditions = vec![
            kernel(self.facts, Version(5, 12), "the RDMA core registers dma-bufs"),
            rdma_device(self.facts, self.nic),
            self.imports_dynamic(),
            configured(self.facts, "INFINIBAND_ON_DEMAND_PAGING"),
            exporter::moves(self.facts, self.gpu),
        ];
        if self.facts.version.is_some_and(|version| version < Version(7, 1)) {
            conditions.push(configured(self.facts, "DMABUF_MOVE_NOTIFY"));
        }
        conditions.push(reaches(self.machine, self.gpu, self.nic));
        conditions
    }

    fn imports_dynamic(&self) -> Condition {
        let what = "the adapter's driver lets a registered buffer move (mlx5 does)";
        match importer::of(self.nic) {
            Some(driver) if driver.mode == Mode::Dynamic => {
                Condition::new(what, State::Holds, format!("driver {}", driver.driver), "")
            }
            Some(driver) => Condition::new(
                what,
                State::Fails,
                format!("driver {} pins or takes none", driver.driver),
                "use the pinned way, or a ConnectX",
            ),
            None => {
                Condition::new(what, State::Unknown, "driver unknown", "run the doctor on the host")
            }
        }
    }

    fn data_direct(&self) -> Vec<Condition> {
        let Some(side) = self.side() else {
            let has_others = self.machine.functions().any(|f| f.role == Role::DataDirect);
            let evidence = if has_others {
                "a function 15b3:2100 is there, but the adapter's VUID is not that one's"
            } else {
                "no PCI function 15b3:2100"
            };
            let what = "the adapter has a Data Direct function";
            let remedy = "needs a ConnectX-8 or later whose firmware enables it, on a platform wired for it (Grace and later)";
            return vec![Condition::new(what, State::Fails, evidence, remedy)];
        };
        vec![
            Condition::new(
                "the adapter has a Data Direct function",
                State::Holds,
                format!("15b3:2100 at {}", side.address),
                "",
            ),
            kernel(self.facts, Version(6, 12), "mlx5 has Data Direct"),
            self.key_page_size(),
            self.side_bound(side),
            self.library(),
            exporter::exports_pinned(self.facts, self.gpu),
            self.one_group(side),
            self.side_acs(side),
        ]
    }

    /// The Data Direct function below the switch that the GPU is below too.
    fn side(&self) -> Option<&Function> {
        let sides = self.machine.functions().filter(|f| f.role == Role::DataDirect);
        let near = |side: &&Function| {
            matches!(
                pcie::labels(self.machine, side, self.gpu),
                [pcie::Label::Pix | pcie::Label::Pxb]
            )
        };
        let of_nic = |side: &&Function| match (&side.vuid, &self.nic.vuid) {
            (Some(side), Some(nic)) => side == nic,
            // without Vital Product Data the place decides
            _ => true,
        };
        sides.filter(of_nic).find(near)
    }

    /// 6.16 and 6.17 compute the page size of its keys wrongly, which damages data.
    fn key_page_size(&self) -> Condition {
        let state = match self.facts.version {
            Some(version) if version == Version(6, 16) || version == Version(6, 17) => State::Fails,
            Some(_) => State::Holds,
            None => State::Unknown,
        };
        Condition::new(
            "the kernel has not the fault of 6.16 and 6.17 that gives Data Direct keys a wrong page size",
            state,
            release(self.facts),
            "use 6.18 or later: with these two kernels data may be damaged",
        )
    }

    fn side_bound(&self, side: &Function) -> Condition {
        let (state, evidence) = match side.driver.as_deref() {
            Some("mlx5_ib") => (State::Holds, format!("{}: driver mlx5_ib", side.address)),
            Some(other) => (State::Fails, format!("{}: driver {other}", side.address)),
            None if self.facts.sysfs => (State::Fails, format!("{}: no driver", side.address)),
            None => (State::Unknown, format!("{}: driver not in the source", side.address)),
        };
        let remedy = format!(
            "echo {} > /sys/bus/pci/drivers_probe, with mlx5_ib of 6.12 or later loaded",
            side.address
        );
        Condition::new("mlx5_ib drives the Data Direct function", state, evidence, remedy)
    }

    fn library(&self) -> Condition {
        let what = "rdma-core offers it (libmlx5 with MLX5_1.25)";
        let remedy = "install rdma-core 54 or later, also in containers";
        match &self.facts.libmlx5 {
            Some((file, versions)) => {
                let newest = versions.last().map_or("none", String::as_str);
                let state = if versions.iter().any(|v| v == "MLX5_1.25") {
                    State::Holds
                } else {
                    State::Fails
                };
                Condition::new(
                    what,
                    state,
                    format!("{file}: newest symbol version {newest}"),
                    remedy,
                )
            }
            None => Condition::new(
                what,
                State::Unknown,
                "libmlx5.so.1 not found in the usual places",
                remedy,
            ),
        }
    }

    fn one_group(&self, side: &Function) -> Condition {
        let what = "GPU and Data Direct function are in one IOMMU group";
        let group = |function: &Function| function.iommu_group;
        let (state, evidence) = match (group(self.gpu), group(side)) {
            (Some(a), Some(b)) if a == b => (State::Holds, format!("both in group {a}")),
            (Some(a), Some(b)) => {
                (State::Fails, format!("groups {a} and {b}: the export is refused with ENOTSUPP"))
            }
            _ => (State::Unknown, "iommu_group could not be read".into()),
        };
        let settings = data_direct(self.machine, side, self.gpu);
        Condition::new(
            what,
            state,
            evidence,
            format!("boot with {}", parameter(self.machine, settings)),
        )
    }

    fn side_acs(&self, side: &Function) -> Condition {
        let what = "ACS lets the two meet at their switch";
        let settings = data_direct(self.machine, side, self.gpu);
        let met: Vec<Option<bool>> = settings.iter().map(|r| r.met(self.machine)).collect();
        let state = match () {
            () if met.contains(&Some(false)) => State::Fails,
            () if met.contains(&None) => State::Unknown,
            () => State::Holds,
        };
        let bits = |r: &pcie::AcsSetting| match self.machine.function(r.at).map(|f| f.acs) {
            Some(Acs::Enabled(bits)) => {
                let names: Vec<&str> = bits.iter_names().map(|(name, _)| name).collect();
                format!(
                    "{} {}",
                    r.at,
                    if names.is_empty() { "none".into() } else { names.join(" ") }
                )
            }
            Some(Acs::Absent) => format!("{} has no ACS", r.at),
            _ => format!("{} not read", r.at),
        };
        let evidence: Vec<String> = settings.iter().map(bits).collect();
        let remedy = match state {
            State::Unknown => {
                "run the doctor as root: ACS is beyond the 64 bytes that others may read".to_owned()
            }
            _ => format!(
                "boot with {} (6.15 or later, or a stable kernel with the fix of its list)",
                parameter(self.machine, settings)
            ),
        };
        Condition::new(what, state, evidence.join(", "), remedy)
    }

    fn device_private(&self) -> Vec<Condition> {
        vec![Condition::new(
            "the kernel gives peers the address of a device-private page (the patch series of 2024 and 2025)",
            State::Fails,
            format!("{}: no released kernel has it", release(self.facts)),
            "nothing to do: on-demand paging works by migrating the page to host memory",
        )]
    }

    fn ats(&self) -> Vec<Condition> {
        vec![
            rdma_device(self.facts, self.nic),
            self.ats_allowed(),
            self.ats_on(),
            self.translating(),
            self.ats_table(),
        ]
    }

    fn ats_allowed(&self) -> Condition {
        let line = self.facts.command_line.as_deref();
        let off = line.map(|line| {
            line.split_whitespace().any(|word| word.starts_with("pci=") && word.contains("noats"))
        });
        let (state, evidence) = match off {
            Some(true) => (State::Fails, "/proc/cmdline: pci=noats"),
            Some(false) => (State::Holds, "/proc/cmdline: no pci=noats"),
            None => (State::Unknown, "/proc/cmdline could not be read"),
        };
        Condition::new(
            "the kernel was not told to leave ATS off",
            state,
            evidence,
            "boot without pci=noats",
        )
    }

    fn ats_on(&self) -> Condition {
        let (state, said) = match self.nic.ats {
            Some(true) => (State::Holds, "enabled"),
            Some(false) => (State::Fails, "off or absent"),
            None => (State::Unknown, "not read (needs root)"),
        };
        Condition::new(
            "Address Translation Services are on in the adapter",
            state,
            format!("{}: ATS {said}", self.nic.address),
            "enable the IOMMU, and ATS in the adapter's firmware",
        )
    }

    fn translating(&self) -> Condition {
        let what = "an IOMMU translates for the adapter";
        let kind =
            self.nic.iommu_group.and_then(|group| Some((group, self.facts.iommu_type(group)?)));
        match kind {
            Some((group, kind)) => Condition::new(
                what,
                if kind == "identity" { State::Fails } else { State::Holds },
                format!("/sys/kernel/iommu_groups/{group}/type: {kind}"),
                "without translation there is nothing to cache: ATS is not needed",
            ),
            None => Condition::new(
                what,
                State::Unknown,
                "the adapter's IOMMU group or its type could not be read",
                "run the doctor as root on the host",
            ),
        }
    }

    fn ats_table(&self) -> Condition {
        let what = "ACS of the switch between suits translated requests with relaxed ordering";
        let ports: Vec<&Function> = [self.gpu, self.nic]
            .iter()
            .filter_map(|function| {
                self.machine.upwards(function).skip(1).find(|f| f.kind == Kind::SwitchDownstream)
            })
            .collect();
        let mut bits = AcsBits::empty();
        for port in &ports {
            match port.acs {
                Acs::Enabled(set) => bits |= set,
                Acs::Absent => {}
                Acs::Unknown => {
                    return Condition::new(
                        what,
                        State::Unknown,
                        format!("{}: ACS not read", port.address),
                        "run the doctor as root on the host",
                    );
                }
            }
        }
        let names: Vec<&str> = bits.iter_names().map(|(name, _)| name).collect();
        let evidence = match (ports.as_slice(), names.as_slice()) {
            ([], _) => "no switch between".to_owned(),
            (_, []) => "no bit is set".to_owned(),
            (_, names) => format!("set: {}", names.join(" ")),
        };
        let state = match translated(bits, true, true) {
            Translated::Works => State::Holds,
            Translated::Slow | Translated::Fails => State::Fails,
        };
        Condition::new(
            what,
            state,
            evidence,
            "set DT beside RR and CR, or none of the three, on the switch's ports",
        )
    }
}

fn software_hca(facts: &Facts) -> Vec<Condition> {
    let rxe = match facts.module("rdma_rxe") {
        Some(true) => (State::Unknown, "rdma_rxe is loaded"),
        Some(false) => (State::Holds, "rdma_rxe is not loaded"),
        None => (State::Holds, "nothing is known to hold it"),
    };
    let mut conditions = vec![
        Condition::new("Linux", State::Holds, release(facts), ""),
        Condition::new(
            "UDP port 4791 is free",
            rxe.0,
            rxe.1,
            "if an rxe link exists in this network namespace, delete it (rdma link delete) or take a namespace of your own (unshare -rn)",
        ),
    ];
    let proof = "two programs exchange GPU memory over it";
    match &facts.software_hca {
        None => {}
        Some(Ok(())) => {
            // What was proven is not in doubt for a module that is loaded.
            conditions[1].state = State::Holds;
            let evidence = "`peerdma demo --size 256K` proved it";
            conditions.push(Condition::new(proof, State::Holds, evidence, ""));
        }
        Some(Err(why)) => {
            let remedy = "`peerdma demo` says more";
            conditions.push(Condition::new(proof, State::Fails, why.clone(), remedy));
        }
    }
    conditions
}
