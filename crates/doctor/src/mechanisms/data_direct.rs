//! Data Direct: a ConnectX-8 reaches the GPU by a function of its own below the GPU's switch.
//!
//! The caller has a part too: the address that peers use (iova) must begin on a page.

use super::Pair;
use crate::acs::{data_direct, parameter};
use crate::conditions::{acs_told, core_registers, has, kernel, rdma_device, release, unencrypted};
use crate::exporter;
use crate::{Condition, ConditionState, Version};
use pcie::{Acs, AcsSetting, Function, Label, Role};

/// ConnectX-8, ConnectX-9 and BlueField-4.
const ABLE: [u16; 3] = [0x1023, 0x1025, 0xa2df];
const MELLANOX: u16 = 0x15b3;

impl Pair<'_> {
    pub(super) fn data_direct(&self) -> Vec<Condition> {
        let mut conditions = vec![self.able_adapter()];
        let side = match self.side() {
            Ok((side, belongs)) => {
                conditions.extend([
                    has_side(ConditionState::Holds, format!("15b3:2100 at {}", side.address)),
                    belongs,
                ]);
                side
            }
            Err(none) => {
                conditions.push(none);
                return conditions;
            }
        };
        conditions.extend(core_registers(self.facts, self.nic));
        conditions.extend([
            kernel(self.facts, Version(6, 12), "mlx5 has Data Direct"),
            self.key_page_size(),
            rdma_device(self.facts, self.nic),
            unencrypted(self.facts, self.nic, false),
            self.side_bound(side),
            self.bound_to_adapter(side),
            self.crosses(),
            self.library(),
            exporter::exports_pinned(self.facts, self.gpu),
            exporter::coherent(self.machine, self.gpu),
            exporter::cuda_asks_for_pcie(self.facts),
            self.near_gpu(side),
            self.one_group(side),
            self.side_acs(side),
            page_aligned(),
        ]);
        conditions
    }

    /// Only some adapters have the function.
    fn able_adapter(&self) -> Condition {
        let nic = self.nic;
        let id = nic
            .id
            .map_or("id unknown".into(), |(vendor, device)| format!("{vendor:04x}:{device:04x}"));
        let known = nic.data_direct.or_else(|| {
            let (vendor, device) = nic.id?;
            Some(vendor == MELLANOX && ABLE.contains(&device))
        });
        Condition::new(
            "the adapter is a ConnectX-8 or later",
            ConditionState::of(known),
            format!("{}: {id}", nic.address),
            "no other adapter has a Data Direct function; use dma-buf in its pinned form",
        )
    }

    /// The adapter's Data Direct function, and how sure that is; where there is none, why.
    fn side(&self) -> Result<(&Function, Condition), Condition> {
        let what = "the Data Direct function is the adapter's (equal VUIDs)";
        let all: Vec<&Function> =
            self.machine.functions().filter(|f| f.role == Role::DataDirect).collect();
        if all.is_empty() && !self.facts.sysfs {
            let evidence = "the source does not list every function";
            return Err(has_side(ConditionState::Unknown, evidence.into()));
        }
        if all.is_empty() {
            return Err(has_side(ConditionState::Fails, "no PCI function 15b3:2100".into()));
        }
        if let Some(own) = &self.nic.vuid
            && let Some(side) = all.iter().find(|side| side.vuid.as_ref() == Some(own))
        {
            return Ok((
                side,
                Condition::new(what, ConditionState::Holds, format!("both {own}"), ""),
            ));
        }
        let open: Vec<&&Function> =
            all.iter().filter(|side| side.vuid.is_none() || self.nic.vuid.is_none()).collect();
        let near = open.iter().find(|side| self.labels(side).contains(&Label::Pix));
        match near.or(open.first()) {
            Some(side) => {
                let evidence = "Vital Product Data could not be read";
                let remedy = "run the doctor as root: `vpd` in sysfs is readable to root alone";
                Ok((side, Condition::new(what, ConditionState::Unknown, evidence, remedy)))
            }
            None => {
                let evidence = "15b3:2100 is there, but with another VUID than the adapter's";
                Err(has_side(ConditionState::Fails, evidence.into()))
            }
        }
    }

    fn labels(&self, side: &Function) -> &'static [Label] {
        pcie::labels(self.machine, side, self.gpu)
    }

    /// The driver's own word: its firmware, its identity and the function fit.
    fn bound_to_adapter(&self, side: &Function) -> Condition {
        let what = "firmware offers it, and the driver gave the function to the adapter \
                    (HCA_CAP.data_direct, query_vuid)";
        let firmware = self.facts.probe(self.nic).and_then(|probe| probe.firmware);
        let answer = self.facts.probe(self.nic).and_then(|probe| probe.data_direct.as_ref());
        let at_side = |path: &str| path.ends_with(&format!("/{}", side.address));
        let (state, evidence) = match (answer, self.nic.data_direct) {
            _ if firmware.is_some_and(|caps| !caps.data_direct || !caps.query_vuid) => {
                (ConditionState::Fails, "QUERY_HCA_CAP: data_direct or query_vuid is 0".into())
            }
            (Some(Some(path)), _) if at_side(path) => (ConditionState::Holds, path.clone()),
            (Some(Some(path)), _) => (ConditionState::Fails, format!("it was given {path}")),
            (Some(None), _) => {
                (ConditionState::Fails, "mlx5dv_get_data_direct_sysfs_path says ENODEV".into())
            }
            (None, Some(may)) => (ConditionState::of(Some(may)), "the platform says so".into()),
            (None, None) => (ConditionState::Unknown, "the driver was not asked".into()),
        };
        Condition::new(
            what,
            state,
            evidence,
            "run the doctor on the host; update the adapter's firmware and enable Data Direct in \
             it",
        )
    }

    /// The key that a program gets crosses to the one that the function uses.
    fn crosses(&self) -> Condition {
        let firmware = self.facts.probe(self.nic).and_then(|probe| probe.firmware);
        Condition::new(
            "firmware lets a key stand for another one (HCA_CAP.crossing_vhca_mkey)",
            ConditionState::of(firmware.map(|caps| caps.crossing_vhca_mkey)),
            match firmware {
                Some(caps) => {
                    format!(
                        "QUERY_HCA_CAP: crossing_vhca_mkey {}",
                        u8::from(caps.crossing_vhca_mkey)
                    )
                }
                None => "the firmware was not asked".into(),
            },
            "run the doctor on the host, where libmlx5 asks the firmware; update the adapter's \
             firmware",
        )
    }

    fn near_gpu(&self, side: &Function) -> Condition {
        let labels = self.labels(side);
        let near = |label: &Label| matches!(label, Label::Pix | Label::Pxb);
        let known = match labels {
            labels if labels.iter().all(near) => Some(true),
            labels if labels.iter().any(near) => None,
            _ => Some(false),
        };
        let names: Vec<String> = labels.iter().map(ToString::to_string).collect();
        Condition::new(
            "the Data Direct function is below the GPU's switch",
            ConditionState::of(known),
            names.join("|"),
            "use the adapter whose Data Direct function is: `peerdma topo --all`",
        )
    }

    /// 6.16 and 6.17 compute the page size of its keys wrongly, which damages data.
    fn key_page_size(&self) -> Condition {
        let state = match self.facts.kernel.as_ref() {
            // both the change that brought the fault and its mend may have been taken over
            Some(kernel) if kernel.version < Version(6, 18) && kernel.backports => {
                ConditionState::Unknown
            }
            Some(kernel) if matches!(kernel.version, Version(6, 16 | 17)) => ConditionState::Fails,
            Some(_) => ConditionState::Holds,
            None => ConditionState::Unknown,
        };
        Condition::new(
            "the kernel has not the fault of 6.16 and 6.17 that gives Data Direct keys a wrong \
             page size",
            state,
            release(self.facts),
            "use 6.18 or later: with the fault data may be damaged",
        )
    }

    fn side_bound(&self, side: &Function) -> Condition {
        let (state, evidence) = match side.driver.as_deref() {
            Some("mlx5_ib") => (ConditionState::Holds, format!("{}: driver mlx5_ib", side.address)),
            Some(other) => (ConditionState::Fails, format!("{}: driver {other}", side.address)),
            None if self.facts.sysfs => {
                (ConditionState::Fails, format!("{}: no driver", side.address))
            }
            None => {
                (ConditionState::Unknown, format!("{}: driver not in the source", side.address))
            }
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
                    ConditionState::Holds
                } else {
                    ConditionState::Fails
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
                ConditionState::Unknown,
                "libmlx5.so.1 not found in the usual places",
                remedy,
            ),
        }
    }

    fn one_group(&self, side: &Function) -> Condition {
        let what = "GPU and Data Direct function are in one IOMMU group";
        let group = |function: &Function| function.iommu_group;
        let (state, evidence) = match (group(self.gpu), group(side)) {
            (Some(a), Some(b)) if a == b => (ConditionState::Holds, format!("both in group {a}")),
            (Some(a), Some(b)) => (
                ConditionState::Fails,
                format!("groups {a} and {b}: the export is refused with ENOTSUPP"),
            ),
            _ => (ConditionState::Unknown, "iommu_group could not be read".into()),
        };
        let settings = data_direct(self.machine, side, self.gpu);
        Condition::new(what, state, evidence, self.boot_with(settings))
    }

    fn side_acs(&self, side: &Function) -> Condition {
        let what = "ACS lets the two meet at their switch";
        let settings = data_direct(self.machine, side, self.gpu);
        let met: Vec<Option<bool>> = settings.iter().map(|r| r.met(self.machine)).collect();
        let state = match () {
            () if met.contains(&Some(false)) => ConditionState::Fails,
            () if met.contains(&None) => ConditionState::Unknown,
            () => ConditionState::Holds,
        };
        let bits = |r: &AcsSetting| match self.machine.function(r.at).map(|f| f.acs) {
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
            ConditionState::Unknown => {
                "run the doctor as root: ACS is beyond the 64 bytes that others may read".to_owned()
            }
            _ => self.boot_with(settings),
        };
        let evidence = format!("{}{}", evidence.join(", "), acs_told(self.facts));
        Condition::new(what, state, evidence, remedy)
    }

    /// What sets ACS so, for the kernel at hand.
    fn boot_with(&self, settings: Vec<AcsSetting>) -> String {
        let text = parameter(self.machine, settings);
        match has(self.facts, Version(6, 15), Version(6, 11)) {
            ConditionState::Holds => format!("boot with {text}"),
            ConditionState::Unknown => format!(
                "boot with {text} (6.15, or a stable kernel of April 2025 and later: before, \
                 several devices in one parameter are misread)"
            ),
            ConditionState::Fails => {
                format!("use a kernel of 6.15 or later, and boot it with {text}")
            }
        }
    }
}

/// What the caller must see to: nothing of a host fails it.
fn page_aligned() -> Condition {
    Condition::new(
        "the address that peers use (iova) is page-aligned, and the access is not on demand",
        ConditionState::Holds,
        "the caller chooses it, as NCCL and UCX do; other addresses are refused with EOPNOTSUPP",
        "",
    )
}

fn has_side(state: ConditionState, evidence: String) -> Condition {
    Condition::new(
        "the adapter has a Data Direct function",
        state,
        evidence,
        match state {
            ConditionState::Unknown => "run the doctor on the host",
            _ => {
                "needs a ConnectX-8 or later whose firmware enables it, on a platform wired for it \
                 (Grace and later)"
            }
        },
    )
}
