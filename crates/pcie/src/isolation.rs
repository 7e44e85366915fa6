//! IOMMU groups: which functions Linux takes for isolated from each other (`pci_device_group`). Its
//! exceptions for single devices, such as chipsets whose ports isolate without saying so, are not
//! known here.

use crate::Address;
use crate::machine::{Acs, AcsBits, Function, Kind, Machine};
use std::collections::BTreeMap;

/// The bits that isolate (`REQ_ACS_FLAGS`).
const ISOLATING: AcsBits = AcsBits::SV.union(AcsBits::RR).union(AcsBits::CR).union(AcsBits::UF);

/// The groups of a machine whose IOMMU covers all its functions, in the order in which Linux
/// numbers them.
///
/// # Errors
/// The address of a function whose ACS bits were not read and count.
pub fn iommu_groups(machine: &Machine) -> Result<Vec<Vec<Address>>, Address> {
    let mut groups: Vec<Vec<Address>> = Vec::new();
    let mut known: BTreeMap<Address, usize> = BTreeMap::new();
    // A bridge's bus has a lower number than those behind it: it comes first, as in Linux.
    for function in machine.functions() {
        let group = match shared(machine, function, &known)? {
            Some(group) => group,
            None => {
                groups.push(Vec::new());
                groups.len() - 1
            }
        };
        groups[group].push(function.address);
        known.insert(function.address, group);
    }
    Ok(groups)
}

/// The group of a function that is there already and that it must share.
fn shared(
    machine: &Machine,
    function: &Function,
    known: &BTreeMap<Address, usize>,
) -> Result<Option<usize>, Address> {
    let mut topmost = function;
    for port in machine.upwards(function).skip(1) {
        if isolates_to_the_root(machine, port)? {
            break;
        }
        topmost = port;
        if let Some(&group) = known.get(&port.address) {
            return Ok(Some(group));
        }
    }
    if siblings(machine, topmost).next().is_none() || isolates(machine, topmost)? {
        return Ok(None);
    }
    for sibling in siblings(machine, topmost) {
        if let Some(&group) = known.get(&sibling.address)
            && !isolates(machine, sibling)?
        {
            return Ok(Some(group));
        }
    }
    Ok(None)
}

/// Other functions of the same device.
fn siblings<'a>(machine: &'a Machine, of: &'a Function) -> impl Iterator<Item = &'a Function> {
    machine.functions().filter(move |function| {
        function.address != of.address && function.address.same_device(&of.address)
    })
}

/// `pci_acs_path_enabled`, up to the root bus.
fn isolates_to_the_root(machine: &Machine, port: &Function) -> Result<bool, Address> {
    for function in machine.upwards(port) {
        if !isolates(machine, function)? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// `pci_acs_enabled`: a function alone in its device that passes nothing on needs no ACS.
fn isolates(machine: &Machine, function: &Function) -> Result<bool, Address> {
    let alone = || siblings(machine, function).next().is_none();
    match function.kind {
        Kind::Bridge => return Ok(false),
        Kind::SwitchUpstream | Kind::Endpoint if alone() => return Ok(true),
        _ => {}
    }
    match function.acs {
        Acs::Unknown => Err(function.address),
        Acs::Absent => Ok(false),
        // What a function cannot do, it needs not.
        Acs::Enabled(bits) => {
            Ok(bits.contains(ISOLATING & function.acs_capable.unwrap_or(AcsBits::all())))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::{Below, HostBridge};

    const ON: Acs = Acs::Enabled(ISOLATING);

    struct Plan(Vec<Function>);

    impl Plan {
        fn with(mut self, at: &str, kind: Kind, below: &str, acs: Acs) -> Plan {
            let below = match below {
                "" => Below::Host(0),
                port => Below::Port(port.parse().unwrap()),
            };
            let function = Function::new(at.parse().unwrap(), kind, below);
            self.0.push(Function { acs, ..function });
            self
        }

        fn groups(self) -> Result<String, Address> {
            let host = HostBridge {
                name: "h".into(),
                shown: crate::Shown::Bridges,
                numa_node: None,
                root_device: None,
            };
            let machine = Machine::new(None, vec![host], self.0).unwrap();
            let words = |group: Vec<Address>| {
                let all: Vec<String> =
                    group.iter().map(|at| at.to_string()["0000:".len()..].to_owned()).collect();
                all.join(" ")
            };
            let groups: Vec<String> = iommu_groups(&machine)?.into_iter().map(words).collect();
            Ok(groups.join(", "))
        }
    }

    /// A switch below a root port, with an adapter and a GPU.
    fn switch(root: Acs, adapter: Acs, gpu: Acs) -> Plan {
        Plan(Vec::new())
            .with("00:01.0", Kind::RootPort, "", root)
            .with("01:00.0", Kind::SwitchUpstream, "00:01.0", Acs::Absent)
            .with("02:00.0", Kind::SwitchDownstream, "01:00.0", adapter)
            .with("02:01.0", Kind::SwitchDownstream, "01:00.0", gpu)
            .with("03:00.0", Kind::Endpoint, "02:00.0", Acs::Absent)
            .with("04:00.0", Kind::Endpoint, "02:01.0", Acs::Absent)
    }

    #[test]
    fn isolating_ports_give_each_its_own() {
        let expected = "00:01.0, 01:00.0, 02:00.0, 02:01.0, 03:00.0, 04:00.0";
        assert_eq!(switch(ON, ON, ON).groups().unwrap(), expected);
    }

    #[test]
    fn what_is_below_a_port_that_does_not_isolate_joins_it() {
        let expected = "00:01.0, 01:00.0, 02:00.0 03:00.0, 02:01.0, 04:00.0";
        assert_eq!(switch(ON, Acs::Absent, ON).groups().unwrap(), expected);
        let without_redirect = Acs::Enabled(AcsBits::SV | AcsBits::UF);
        assert_eq!(switch(ON, without_redirect, ON).groups().unwrap(), expected);
    }

    #[test]
    fn a_root_port_that_does_not_isolate_holds_all_together() {
        let expected = "00:01.0 01:00.0 02:00.0 02:01.0 03:00.0 04:00.0";
        assert_eq!(switch(Acs::Absent, ON, ON).groups().unwrap(), expected);
    }

    #[test]
    fn functions_of_one_device_need_acs_of_their_own() {
        let plan = |first, second| {
            Plan(Vec::new())
                .with("00:1f.0", Kind::Endpoint, "", first)
                .with("00:1f.2", Kind::Endpoint, "", second)
                .with("00:1f.3", Kind::Endpoint, "", Acs::Absent)
        };
        assert_eq!(plan(Acs::Absent, Acs::Absent).groups().unwrap(), "00:1f.0 00:1f.2 00:1f.3");
        assert_eq!(plan(Acs::Absent, ON).groups().unwrap(), "00:1f.0 00:1f.3, 00:1f.2");
        assert_eq!(plan(ON, ON).groups().unwrap(), "00:1f.0, 00:1f.2, 00:1f.3");
    }

    #[test]
    fn behind_a_bridge_to_conventional_pci_all_are_one() {
        let plan = Plan(Vec::new())
            .with("00:1e.0", Kind::Bridge, "", Acs::Absent)
            .with("05:01.0", Kind::Endpoint, "00:1e.0", Acs::Absent)
            .with("05:02.0", Kind::Endpoint, "00:1e.0", Acs::Absent);
        assert_eq!(plan.groups().unwrap(), "00:1e.0 05:01.0 05:02.0");
    }

    #[test]
    fn a_port_needs_no_bit_that_it_lacks() {
        let mut plan = switch(ON, Acs::Enabled(AcsBits::RR | AcsBits::CR), ON);
        plan.0[2].acs_capable = Some(AcsBits::RR | AcsBits::CR);
        assert_eq!(plan.groups().unwrap(), switch(ON, ON, ON).groups().unwrap());
    }

    #[test]
    fn bits_that_were_not_read_are_said_to_be() {
        assert_eq!(switch(ON, Acs::Unknown, ON).groups(), Err("02:00.0".parse().unwrap()));
    }
}
