//! The tree as people look at it: a port and the link below it are drawn as the line to what hangs
//! there, and branches without anything of interest are left out.

use pcie::{Address, Below, Function, Kind, Link, LinkId, Machine, Role};
use std::collections::BTreeMap;

/// Something that is drawn: a host bridge, a switch, a device.
pub struct Node<'a> {
    pub what: What<'a>,
    /// The hop from the node above, if it is a link.
    pub hop: Option<LinkId>,
    /// The port above, where it is a function of its own.
    pub port: Option<&'a Function>,
    pub children: Vec<Node<'a>>,
    /// Devices that it stands for besides its own.
    pub equals: Vec<&'a Function>,
}

/// What a node stands for.
#[derive(Clone, Copy)]
pub enum What<'a> {
    /// A host bridge by its index.
    Host(usize),
    /// A switch or bridge, by its upstream side.
    Switch(&'a Function),
    /// A device.
    Device(&'a Function),
}

impl Node<'_> {
    /// The link from the node above.
    pub fn link(&self, machine: &Machine) -> Option<Link> {
        machine.link(self.hop?)
    }

    /// The same link at its best, if both ends are known to do better than it runs.
    pub fn better_link(&self, machine: &Machine) -> Option<Link> {
        let own = match self.what {
            What::Host(_) => return None,
            What::Switch(function) | What::Device(function) => function.best_link,
        };
        let ends = [own?, self.port?.best_link?];
        let best = ends.into_iter().min_by_key(Link::bytes_per_second)?;
        (best.bytes_per_second() > self.link(machine)?.bytes_per_second()).then_some(best)
    }
}

/// Whether a device is drawn unless everything is.
fn interesting(function: &Function) -> bool {
    !matches!(function.role, Role::Other | Role::Management) && function.virtual_of.is_none()
}

/// The host bridges with what hangs below them; `all` keeps every device.
pub fn nodes(machine: &Machine, all: bool) -> Vec<Node<'_>> {
    let mut below: BTreeMap<Option<Address>, Vec<&Function>> = BTreeMap::new();
    let mut roots: BTreeMap<usize, Vec<&Function>> = BTreeMap::new();
    for function in machine.functions() {
        match function.below {
            Below::Host(host) => roots.entry(host).or_default().push(function),
            Below::Port(port) => below.entry(Some(port)).or_default().push(function),
        }
    }
    let builder = Builder { below, all };
    let mut hosts: Vec<Node<'_>> = Vec::new();
    for (host, functions) in roots {
        let children: Vec<Node<'_>> =
            functions.into_iter().flat_map(|function| builder.nodes(function, None)).collect();
        if !children.is_empty() {
            hosts.push(Node {
                what: What::Host(host),
                hop: None,
                port: None,
                children,
                equals: Vec::new(),
            });
        }
    }
    hosts.sort_by_key(|node| match node.what {
        What::Host(host) => machine.hosts()[host].numa_node.unwrap_or(u32::MAX),
        _ => 0,
    });
    hosts
}

struct Builder<'a> {
    below: BTreeMap<Option<Address>, Vec<&'a Function>>,
    all: bool,
}

impl<'a> Builder<'a> {
    /// What is drawn for a function and all below it; `port` is the port above it.
    fn nodes(&self, function: &'a Function, port: Option<&'a Function>) -> Vec<Node<'a>> {
        let inside = self.below.get(&Some(function.address)).map_or(&[][..], Vec::as_slice);
        let hop = match port {
            Some(port) => Some(LinkId::Below(port.address)),
            None if !function.is_downstream_port() => Some(LinkId::Above(function.address)),
            None => None,
        };
        if function.is_downstream_port() {
            return inside.iter().flat_map(|child| self.nodes(child, Some(function))).collect();
        }
        if matches!(function.kind, Kind::SwitchUpstream | Kind::Bridge) {
            let children: Vec<Node<'a>> =
                inside.iter().flat_map(|child| self.nodes(child, None)).collect();
            if children.is_empty() && !self.all {
                return Vec::new();
            }
            return vec![Node {
                what: What::Switch(function),
                hop,
                port,
                children,
                equals: Vec::new(),
            }];
        }
        if !self.all && !interesting(function) {
            return Vec::new();
        }
        vec![Node {
            what: What::Device(function),
            hop,
            port,
            children: Vec::new(),
            equals: Vec::new(),
        }]
    }
}
