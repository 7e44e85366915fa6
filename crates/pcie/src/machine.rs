//! The tree: host bridges, ports and functions.

use crate::{Address, GpuLink, Kernel, Link, LinkId, Sockets};
use serde::Deserialize;
use std::collections::BTreeMap;

bitflags::bitflags! {
    /// Bits of the ACS capability and control registers (PCIe Base 7.7.11), in the order of
    /// `pci=config_acs=`.
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
    /// Any other bridge: to conventional PCI, or one that did not say what it is.
    Bridge,
    /// Endpoint.
    Endpoint,
}

/// What a function serves as.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Role {
    /// A port, or a device of no interest to us.
    Other,
    /// A network adapter that does RDMA, or on a real machine may.
    Hca,
    /// The Data Direct function of an HCA.
    DataDirect,
    /// A GPU or other accelerator with memory of its own.
    Gpu,
    /// An NVMe drive.
    Nvme,
    /// A programmable accelerator: what it is depends on what is loaded.
    Fpga,
    /// A switch of NVLink, which is a PCIe endpoint without memory for others.
    NvSwitch,
    /// A function by which a card or machine is managed.
    Management,
}

/// What a function hangs below.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Below {
    /// The root bus of a host bridge, by index.
    Host(usize),
    /// A bridge.
    Port(Address),
}

/// How much a source shows above functions.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Shown {
    /// Nothing (nvidia-smi, lspci without its bridges): functions here may share a bridge, or be
    /// below different processors.
    Nothing,
    /// Every switch, and the processor at most (NCCL): what hangs here may be below several host
    /// bridges.
    Switches,
    /// The host bridge and every bridge below it.
    Bridges,
}

/// A host bridge and its root bus.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HostBridge {
    /// Name, unique in the machine.
    pub name: String,
    /// How much the source shows of what is between it and the functions below.
    pub shown: Shown,
    /// NUMA node, if known.
    pub numa_node: Option<u32>,
    /// Vendor and device id of the first device on the root bus, if known: what P2PDMA's list is
    /// about ([`HostBridge::NO_DEVICE`] if that is neither device 00.0 nor a root port).
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

/// A PCI function: port or device. What was not read is `None`.
#[derive(Clone, PartialEq, Debug)]
pub struct Function {
    /// Address.
    pub address: Address,
    /// Name on a software platform, else empty.
    pub name: String,
    /// Purpose.
    pub role: Role,
    /// For a Data Direct function, the name of its HCA.
    pub of: Option<String>,
    /// Port or endpoint.
    pub kind: Kind,
    /// Vendor and device id.
    pub id: Option<(u16, u16)>,
    /// Class code, 24 bits.
    pub class: Option<u32>,
    /// What it hangs below.
    pub below: Below,
    /// For a root port or switch downstream port the link below it, for any other function the one
    /// above it, as it runs.
    pub link: Option<Link>,
    /// The same link at its best, as this end could run it.
    pub best_link: Option<Link>,
    /// ACS.
    pub acs: Acs,
    /// Bits of its ACS capability register: those that can be set at all.
    pub acs_capable: Option<AcsBits>,
    /// Whether Address Translation Services are on.
    pub ats: Option<bool>,
    /// NUMA node that firmware names for it.
    pub numa_node: Option<u32>,
    /// IOMMU group.
    pub iommu_group: Option<u32>,
    /// Driver bound to it.
    pub driver: Option<String>,
    /// The number by which its vendor's tools know a GPU.
    pub index: Option<u32>,
    /// Names that drivers gave it: RDMA devices, network interfaces, DRM cards, block devices. On a
    /// software platform the host's network interfaces that an HCA has for itself.
    pub interfaces: Vec<String>,
    /// What the source calls it, where it gives no id.
    pub product: Option<String>,
    /// The physical function of which it is a virtual one, if that is on the machine.
    pub virtual_of: Option<Address>,
    /// The unique id by which a Data Direct function and its HCA know each other (keyword `VU` of
    /// the Vital Product Data).
    pub vuid: Option<String>,
    /// `HCA_CAP.data_direct` of an HCA: whether it may use a Data Direct function.
    pub data_direct: Option<bool>,
    /// Ports of an HCA, on a software platform.
    pub ports: u32,
    /// Bytes of device memory, on a software platform.
    pub memory_bytes: Option<u64>,
    /// Bytes of it that the BAR shows; on a real machine the largest BAR.
    pub bar_bytes: Option<u64>,
}

impl Function {
    /// A function of which no more is known.
    pub fn new(address: Address, kind: Kind, below: Below) -> Function {
        Function {
            address,
            name: String::new(),
            role: Role::Other,
            of: None,
            kind,
            id: None,
            class: None,
            below,
            link: None,
            best_link: None,
            acs: Acs::Unknown,
            acs_capable: None,
            ats: None,
            numa_node: None,
            iommu_group: None,
            driver: None,
            index: None,
            interfaces: Vec::new(),
            product: None,
            virtual_of: None,
            vuid: None,
            data_direct: None,
            ports: 1,
            memory_bytes: None,
            bar_bytes: None,
        }
    }

    /// Whether a link hangs below this function.
    pub fn is_downstream_port(&self) -> bool {
        matches!(self.kind, Kind::RootPort | Kind::SwitchDownstream)
    }
}

impl HostBridge {
    /// The root device of a bridge whose first device is none that counts: on no list.
    pub const NO_DEVICE: (u16, u16) = (0xffff, 0xffff);
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
    kernel: Option<Kernel>,
    hosts: Vec<HostBridge>,
    functions: BTreeMap<Address, Function>,
    /// Bytes per second of hops inside processors, where somebody knows.
    rates: BTreeMap<LinkId, u64>,
    sockets: Sockets,
    gpu_links: Vec<GpuLink>,
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
        Ok(Machine {
            cpu,
            kernel: None,
            hosts,
            functions: by_address,
            rates: BTreeMap::new(),
            sockets: Sockets::default(),
            gpu_links: Vec::new(),
        })
    }

    /// The processor, if known.
    pub fn cpu(&self) -> Option<&Cpu> {
        self.cpu.as_ref()
    }

    /// The kernel that runs on it, if known: which rules it has, and which options it takes at
    /// boot. Without one the newest rules count.
    pub fn kernel(&self) -> Option<&Kernel> {
        self.kernel.as_ref()
    }

    /// Says what kernel runs on it.
    pub fn set_kernel(&mut self, kernel: Option<Kernel>) {
        self.kernel = kernel;
    }

    /// Its sockets, as far as they are known.
    pub fn sockets(&self) -> &Sockets {
        &self.sockets
    }

    /// Says what is known of its sockets.
    pub fn set_sockets(&mut self, sockets: Sockets) {
        self.sockets = sockets;
    }

    /// Links of GPUs beside PCIe, as far as they are known.
    pub fn gpu_links(&self) -> &[GpuLink] {
        &self.gpu_links
    }

    /// Says what links GPUs have beside PCIe; those of functions that are not here are left out.
    pub fn set_gpu_links(&mut self, links: Vec<GpuLink>) {
        let links = links.into_iter().filter(|link| self.functions.contains_key(&link.from));
        self.gpu_links = links.collect();
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

    /// The same, to be changed in what does not make the tree.
    pub(crate) fn function_mut(&mut self, address: Address) -> Option<&mut Function> {
        self.functions.get_mut(&address)
    }

    /// The bridges above a function, the topmost first.
    pub fn bridges(&self, function: &Function) -> Vec<Address> {
        let mut bridges: Vec<Address> = self.upwards(function).skip(1).map(|f| f.address).collect();
        bridges.reverse();
        bridges
    }

    /// The function itself, its upstream bridge, that one's, … up to the root bus
    /// (`pci_upstream_bridge`).
    pub fn upwards<'a>(&'a self, function: &'a Function) -> impl Iterator<Item = &'a Function> {
        std::iter::successors(Some(function), |f| match f.below {
            Below::Port(port) => self.functions.get(&port),
            Below::Host(_) => None,
        })
    }

    /// A hop's PCIe link, or the rate of one inside a processor, if known.
    pub fn link(&self, hop: LinkId) -> Option<Link> {
        match hop {
            LinkId::Below(function) | LinkId::Above(function) => self.function(function)?.link,
            LinkId::RootComplex(_) | LinkId::Sockets(..) => {
                self.rates.get(&hop).map(|&bytes_per_second| Link::Rate { bytes_per_second })
            }
        }
    }

    /// Says the rate of a hop inside a processor, in bytes per second.
    pub fn set_rate(&mut self, hop: LinkId, bytes_per_second: u64) {
        self.rates.insert(hop, bytes_per_second);
    }

    /// The NUMA node of a function: its own, else that of the nearest bridge above that has one.
    pub fn numa_node_of(&self, function: &Function) -> Option<u32> {
        self.upwards(function)
            .find_map(|f| f.numa_node)
            .or_else(|| self.hosts[self.host_of(function)?].numa_node)
    }

    /// Whether every bridge above a function is known.
    pub fn shows_bridges_above(&self, function: &Function) -> bool {
        self.host_of(function).is_some_and(|host| self.hosts[host].shown > Shown::Nothing)
    }

    /// Index of the host bridge above a function.
    pub fn host_of(&self, function: &Function) -> Option<usize> {
        self.upwards(function).find_map(|f| match f.below {
            Below::Host(host) => Some(host),
            Below::Port(_) => None,
        })
    }
}
