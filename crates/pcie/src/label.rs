//! NVIDIA's words for how near two functions are (`nvidia-smi topo -m`, NCCL's path types).

use crate::machine::{Function, Machine, Shown};
use crate::{Address, Kind};
use std::fmt;

/// How near two functions are. The order is from near to far.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Label {
    /// The same function.
    Same,
    /// One PCIe switch, or one port, between them.
    Pix,
    /// Several PCIe switches, and no host bridge.
    Pxb,
    /// The host bridge.
    Phb,
    /// Host bridges of one NUMA node.
    Node,
    /// NUMA nodes.
    Sys,
}

impl fmt::Display for Label {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Label::Same => "X",
            Label::Pix => "PIX",
            Label::Pxb => "PXB",
            Label::Phb => "PHB",
            Label::Node => "NODE",
            Label::Sys => "SYS",
        })
    }
}

/// The label of a pair; several, from near to far, where what decides between them is not known.
pub fn labels(machine: &Machine, a: &Function, b: &Function) -> &'static [Label] {
    if a.address == b.address {
        return &[Label::Same];
    }
    match meeting(machine, a, b) {
        Some(bridge)
            if crosses_switch(machine, a, bridge) || crosses_switch(machine, b, bridge) =>
        {
            &[Label::Pxb]
        }
        Some(_) => &[Label::Pix],
        None => above_the_roots(machine, a, b),
    }
}

/// The lowest bridge that is above both.
fn meeting(machine: &Machine, a: &Function, b: &Function) -> Option<Address> {
    machine
        .upwards(a)
        .skip(1)
        .find(|upper| machine.upwards(b).skip(1).any(|other| other.address == upper.address))
        .map(|bridge| bridge.address)
}

/// Whether a whole switch lies between a function and a bridge above it.
fn crosses_switch(machine: &Machine, function: &Function, bridge: Address) -> bool {
    machine
        .upwards(function)
        .skip(1)
        .take_while(|upper| upper.address != bridge)
        .any(|upper| matches!(upper.kind, Kind::SwitchUpstream | Kind::Bridge))
}

fn above_the_roots(machine: &Machine, a: &Function, b: &Function) -> &'static [Label] {
    let hosts = (machine.host_of(a), machine.host_of(b));
    let nodes = (machine.numa_node_of(a), machine.numa_node_of(b));
    let certain = |host: Option<usize>| {
        host.is_some_and(|host| machine.hosts()[host].shown == Shown::Bridges)
    };
    if !machine.shows_bridges_above(a) || !machine.shows_bridges_above(b) {
        let bus = |function: &Function| (function.address.domain, function.address.bus);
        return match nodes {
            _ if bus(a) == bus(b) => &[Label::Pix, Label::Phb],
            (Some(a), Some(b)) if a != b => &[Label::Sys],
            (Some(_), Some(_)) => &[Label::Pix, Label::Pxb, Label::Phb, Label::Node],
            _ => &[Label::Pix, Label::Pxb, Label::Phb, Label::Node, Label::Sys],
        };
    }
    if hosts.0 == hosts.1 && certain(hosts.0) {
        return &[Label::Phb];
    }
    let apart = certain(hosts.0) && certain(hosts.1) && hosts.0 != hosts.1;
    match nodes {
        (Some(a), Some(b)) if a != b => &[Label::Sys],
        (Some(_), Some(_)) if apart => &[Label::Node],
        (Some(_), Some(_)) => &[Label::Phb, Label::Node],
        _ if apart => &[Label::Node, Label::Sys],
        _ => &[Label::Phb, Label::Node, Label::Sys],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Below, HostBridge};

    /// Two sockets: on node 0 the bridges `a` and `b`, on node 1 `c`, on no known node `d`, and `?`
    /// for a processor whose bridges are not shown; `!` and `!!` are buses above which nothing is
    /// shown. Below `a` a switch with a nested one.
    fn machine() -> Machine {
        use Kind::*;
        let host = |name: &str, numa_node, shown| HostBridge {
            name: name.into(),
            shown,
            numa_node,
            root_device: None,
        };
        let hosts = vec![
            host("a", Some(0), Shown::Bridges),
            host("b", Some(0), Shown::Bridges),
            host("c", Some(1), Shown::Bridges),
            host("d", None, Shown::Bridges),
            host("?", Some(0), Shown::Switches),
            host("!", Some(0), Shown::Nothing),
            host("!!", None, Shown::Nothing),
        ];
        let port = |at: &str| Below::Port(at.parse().unwrap());
        let functions = [
            ("00:01.0", RootPort, Below::Host(0)),
            ("01:00.0", SwitchUpstream, port("00:01.0")),
            ("02:00.0", SwitchDownstream, port("01:00.0")),
            ("02:01.0", SwitchDownstream, port("01:00.0")),
            ("02:02.0", SwitchDownstream, port("01:00.0")),
            ("03:00.0", Endpoint, port("02:00.0")),
            ("03:00.1", Endpoint, port("02:00.0")),
            ("04:00.0", Endpoint, port("02:01.0")),
            ("05:00.0", SwitchUpstream, port("02:02.0")),
            ("06:00.0", SwitchDownstream, port("05:00.0")),
            ("07:00.0", Endpoint, port("06:00.0")),
            ("00:02.0", RootPort, Below::Host(0)),
            ("08:00.0", Endpoint, port("00:02.0")),
            ("00:03.0", Endpoint, Below::Host(0)),
            ("40:00.0", Endpoint, Below::Host(1)),
            ("80:00.0", Endpoint, Below::Host(2)),
            ("c0:00.0", Endpoint, Below::Host(3)),
            ("e0:00.0", Endpoint, Below::Host(4)),
            ("e1:00.0", Endpoint, Below::Host(4)),
            ("f0:00.0", Endpoint, Below::Host(5)),
            ("f0:00.1", Endpoint, Below::Host(5)),
            ("f1:00.0", Endpoint, Below::Host(6)),
        ];
        let functions = functions
            .map(|(at, kind, below)| Function::new(at.parse().unwrap(), kind, below))
            .to_vec();
        Machine::new(None, hosts, functions).unwrap()
    }

    #[test]
    fn every_label_and_every_doubt() {
        let machine = machine();
        for (a, b, expected) in [
            ("03:00.0", "03:00.0", &[Label::Same][..]),
            ("03:00.0", "03:00.1", &[Label::Pix]),
            ("03:00.0", "04:00.0", &[Label::Pix]),
            ("03:00.0", "07:00.0", &[Label::Pxb]),
            ("07:00.0", "03:00.0", &[Label::Pxb]),
            ("03:00.0", "08:00.0", &[Label::Phb]),
            ("08:00.0", "00:03.0", &[Label::Phb]),
            ("03:00.0", "40:00.0", &[Label::Node]),
            ("03:00.0", "80:00.0", &[Label::Sys]),
            ("03:00.0", "c0:00.0", &[Label::Node, Label::Sys]),
            ("e0:00.0", "e1:00.0", &[Label::Phb, Label::Node]),
            ("e0:00.0", "03:00.0", &[Label::Phb, Label::Node]),
            ("e0:00.0", "80:00.0", &[Label::Sys]),
            ("e0:00.0", "c0:00.0", &[Label::Phb, Label::Node, Label::Sys]),
            ("f0:00.0", "f0:00.1", &[Label::Pix, Label::Phb]),
            ("f0:00.0", "03:00.0", &[Label::Pix, Label::Pxb, Label::Phb, Label::Node]),
            ("f0:00.0", "80:00.0", &[Label::Sys]),
            ("f0:00.0", "f1:00.0", &[Label::Pix, Label::Pxb, Label::Phb, Label::Node, Label::Sys]),
        ] {
            let of = |at: &str| machine.function(at.parse().unwrap()).unwrap();
            assert_eq!(labels(&machine, of(a), of(b)), expected, "{a} {b}");
        }
    }
}
