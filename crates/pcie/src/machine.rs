//! The tree: host bridges, ports and functions.

use crate::{Address, Link};
use serde::Deserialize;
use std::collections::BTreeMap;

bitflags::bitflags! {
    /// Bits of the ACS capability and control registers (PCIe Base 7.7.11), in the order of `pci=config_acs=`.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub struct AcsBits: u8 {
        /// Source Validation.
        const SV = 1;
        /// Translation Blocking.
        const TB = 1 << 1;
        /// P2P Request Redirect.
        const RR = 1 << 2;
        /// P2P Completion Redirect.
        const CR = 1 << 3;
        /// Upstream Forwarding.
        const UF = 1 << 4;
        /// P2P Egress Control.
        const EC = 1 << 5;
        /// Direct Translated P2P.
        const DT = 1 << 6;
    }
}

/// ACS of one function.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Acs {
    /// Not read: configuration space beyond 64 bytes needs root.
    Unknown,
    /// The function has no ACS capability.
    Absent,
    /// The capability exists and these bits of its control register are set.
    Enabled(AcsBits),
}

/// What kind of function it is, by its PCIe capability.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// Root port.
    RootPort,
    /// Upstream port of a switch.
    SwitchUpstream,
    /// Downstream port of a switch.
    SwitchDownstream,
    /// Endpoint.
    Endpoint,
}

/// What a function serves as on a software platform.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Role {
    /// A port, or a device of no interest to us.
    Other,
    /// A software HCA.
    Hca,
    /// The Data Direct function of an HCA.
    DataDirect,
    /// A software GPU.
    Gpu,
}

/// What a function hangs below.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Below {
    /// The root bus of a host bridge, by index.
    Host(usize),
    /// A bridge.
    Port(Address),
}

/// A host bridge and its root bus.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HostBridge {
    /// Name, unique in the machine.
    pub name: String,
    /// NUMA node, if known.
    pub numa_node: Option<u32>,
    /// Vendor and device id of the first device on the root bus, if known: what P2PDMA's list is about.
    pub root_device: Option<(u16, u16)>,
}

/// The processor, as far as P2PDMA asks.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cpu {
    /// CPUID vendor, `AuthenticAMD`, `GenuineIntel`, …; anything else on other architectures.
    pub vendor: String,
    /// CPUID family (base and extended).
    pub family: u32,
}

/// A PCI function: port or device.
#[derive(Clone, PartialEq, Debug)]
pub struct Function {
    /// Address.
    pub address: Address,
    /// Name on a software platform, else empty.
    pub name: String,
    /// Purpose on a software platform.
    pub role: Role,
    /// For a Data Direct function, the name of its HCA.
    pub of: Option<String>,
    /// Port or endpoint.
    pub kind: Kind,
    /// Vendor id.
    pub vendor: u16,
    /// Device id.
    pub device: u16,
    /// Class code, 24 bits.
    pub class: u32,
    /// What it hangs below.
    pub below: Below,
    /// For a root port or switch downstream port, the link below it, if known.
    pub link: Option<Link>,
    /// ACS.
    pub acs: Acs,
    /// Whether Address Translation Services are on, if known.
    pub ats: Option<bool>,
    /// Bytes of device memory, on a software platform.
    pub memory_bytes: Option<u64>,
    /// Bytes of it that the BAR shows, on a software platform.
    pub bar_bytes: Option<u64>,
}

/// Why functions do not form a tree.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum TreeError {
    /// Two functions have one address.
    #[error("{0} appears twice")]
    Twice(Address),
    /// A function hangs below one that does not exist.
    #[error("{0} hangs below {1}, which does not exist")]
    NoParent(Address, Address),
    /// A function hangs below an endpoint.
    #[error("{0} hangs below {1}, which is an endpoint")]
    ParentIsEndpoint(Address, Address),
    /// A function hangs below a host bridge that does not exist.
    #[error("{0} hangs below host bridge {1}, which does not exist")]
    NoHost(Address, usize),
    /// Functions hang below each other in a circle.
    #[error("{0} hangs below itself")]
    Circle(Address),
}

/// A machine: every function hangs below a host bridge.
#[derive(Clone, PartialEq, Debug)]
pub struct Machine {
    cpu: Option<Cpu>,
    hosts: Vec<HostBridge>,
    functions: BTreeMap<Address, Function>,
}

impl Machine {
    /// Puts a machine together; `cpu` is `None` if unknown.
    pub fn new(
        cpu: Option<Cpu>,
        hosts: Vec<HostBridge>,
        functions: Vec<Function>,
    ) -> Result<Machine, TreeError> {
        let mut by_address = BTreeMap::new();
        for function in functions {
            let address = function.address;
            if by_address.insert(address, function).is_some() {
                return Err(TreeError::Twice(address));
            }
        }
        for function in by_address.values() {
            let address = function.address;
            let mut at = function;
            // a path longer than the number of functions goes in a circle
            let mut steps = by_address.len();
            while let Below::Port(port) = at.below {
                at = by_address.get(&port).ok_or(TreeError::NoParent(at.address, port))?;
                if at.kind == Kind::Endpoint {
                    return Err(TreeError::ParentIsEndpoint(address, port));
                }
                steps = steps.checked_sub(1).ok_or(TreeError::Circle(address))?;
            }
            if let Below::Host(host) = at.below
                && host >= hosts.len()
            {
                return Err(TreeError::NoHost(at.address, host));
            }
        }
        Ok(Machine { cpu, hosts, functions: by_address })
    }

    /// The processor, if known.
    pub fn cpu(&self) -> Option<&Cpu> {
        self.cpu.as_ref()
    }

    /// The host bridges; indices of [`Below::Host`] and [`crate::LinkId::RootComplex`] count here.
    pub fn hosts(&self) -> &[HostBridge] {
        &self.hosts
    }

    /// All functions in order of their address.
    pub fn functions(&self) -> impl Iterator<Item = &Function> {
        self.functions.values()
    }

    /// The function at an address.
    pub fn function(&self, address: Address) -> Option<&Function> {
        self.functions.get(&address)
    }

    /// The function itself, its upstream bridge, that one's, … up to the root bus (`pci_upstream_bridge`).
    pub fn upwards<'a>(&'a self, function: &'a Function) -> impl Iterator<Item = &'a Function> {
        std::iter::successors(Some(function), |f| match f.below {
            Below::Port(port) => self.functions.get(&port),
            Below::Host(_) => None,
        })
    }

    /// Index of the host bridge above a function.
    pub fn host_of(&self, function: &Function) -> Option<usize> {
        self.upwards(function).find_map(|f| match f.below {
            Below::Host(host) => Some(host),
            Below::Port(_) => None,
        })
    }
}
