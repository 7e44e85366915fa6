//! ATS: the adapter translates addresses itself and goes the short way with the result.

use super::Pair;
use crate::acs::{Translated, translated};
use crate::conditions::{imports, not_told, rdma_device};
use crate::{Condition, ConditionState};
use pcie::{Acs, AcsBits, Function, Kind};

impl Pair<'_> {
    pub(super) fn ats(&self) -> Vec<Condition> {
        vec![
            rdma_device(self.facts, self.nic),
            imports(self.facts, self.nic),
            self.firmware_translates(),
            not_told(self.facts, "the kernel was not told to leave ATS off", &["pci=noats"]),
            not_told(
                self.facts,
                "the kernel was not told to leave the IOMMU off",
                &[
                    "iommu=off",
                    "intel_iommu=off",
                    "amd_iommu=off",
                    "iommu=pt",
                    "iommu.passthrough=1",
                ],
            ),
            self.ats_on(),
            self.translating(),
            self.ats_table(),
        ]
    }

    fn firmware_translates(&self) -> Condition {
        let answer = self.facts.probe(self.nic).and_then(|probe| probe.firmware);
        Condition::new(
            "the adapter's firmware gives keys translated addresses (HCA_CAP.ats)",
            ConditionState::of(answer.map(|firmware| firmware.ats)),
            match answer {
                Some(firmware) => format!("QUERY_HCA_CAP: ats {}", u8::from(firmware.ats)),
                None => "the firmware was not asked".into(),
            },
            "run the doctor on the host, where libmlx5 asks the firmware; enable ATS in the \
             adapter's configuration (mlxconfig ATS_ENABLED)",
        )
    }

    fn ats_on(&self) -> Condition {
        let (state, said) = match self.nic.ats {
            Some(true) => (ConditionState::Holds, "enabled"),
            Some(false) => (ConditionState::Fails, "off or absent"),
            None => (ConditionState::Unknown, "not read (needs root)"),
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
                if kind == "identity" { ConditionState::Fails } else { ConditionState::Holds },
                format!("/sys/kernel/iommu_groups/{group}/type: {kind}"),
                "without translation there is nothing to cache: ATS is not needed",
            ),
            None => Condition::new(
                what,
                ConditionState::Unknown,
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
                        ConditionState::Unknown,
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
            Translated::Works => ConditionState::Holds,
            Translated::Slow | Translated::Fails => ConditionState::Fails,
        };
        Condition::new(
            what,
            state,
            evidence,
            "set DT beside RR and CR, or none of the three, on the switch's ports",
        )
    }
}
