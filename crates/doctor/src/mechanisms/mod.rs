//! The conditions of each mechanism, in the order in which a registration meets them.

mod ats;
mod data_direct;
mod dmabuf;
mod peer_direct;
mod software;

use crate::conditions::{configured, release};
use crate::{Condition, ConditionState, Facts, Finding, Mechanism};
use pcie::{Function, Machine};
use software::software_hca;

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

    fn device_private(&self) -> Vec<Condition> {
        let published = self.facts.published.contains(&self.gpu.address);
        let note = if published { ", though the GPU publishes p2pmem" } else { "" };
        let mut conditions = vec![Condition::new(
            "the kernel gives peers the address of a device-private page (the patch series of 2024 \
             and 2025)",
            ConditionState::Fails,
            format!("{}: no released kernel has it{note}", release(self.facts)),
            "nothing to do: on-demand paging works by migrating the page to host memory",
        )];
        let names = [
            "INFINIBAND_ON_DEMAND_PAGING",
            "HMM_MIRROR",
            "DEVICE_PRIVATE",
            "ZONE_DEVICE",
            "PCI_P2PDMA",
        ];
        conditions.extend(names.map(|name| configured(self.facts, name)));
        conditions
    }
}
