//! The form of a platform file, and the machine that it describes.

use super::PlatformError;
use crate::machine::{Acs, AcsBits, Below, Cpu, Function, HostBridge, Kind, Machine, Role};
use crate::{Address, Link, LinkId};
use serde::Deserialize;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct File {
    cpu: Option<Cpu>,
    host_bridge: Vec<HostEntry>,
    #[serde(default)]
    port: Vec<PortEntry>,
    #[serde(default)]
    function: Vec<FunctionEntry>,
    #[serde(default)]
    interconnect: Vec<InterconnectEntry>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct HostEntry {
    name: String,
    numa_node: Option<u32>,
    root_device: Option<String>,
    bytes_per_second: Option<u64>,
}

/// What is between the sockets of two NUMA nodes.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct InterconnectEntry {
    nodes: [u32; 2],
    bytes_per_second: u64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PortEntry {
    address: Address,
    kind: Kind,
    below: String,
    id: Option<String>,
    link: Option<Link>,
    acs: Option<Vec<String>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FunctionEntry {
    name: String,
    role: Role,
    of: Option<String>,
    address: Address,
    below: String,
    id: String,
    class: u32,
    acs: Option<Vec<String>>,
    ats: Option<bool>,
    ports: Option<u32>,
    vuid: Option<String>,
    data_direct: Option<bool>,
    interfaces: Option<Vec<String>>,
    memory_bytes: Option<u64>,
    bar_bytes: Option<u64>,
}

impl File {
    pub(super) fn machine(self) -> Result<Machine, PlatformError> {
        if self.port.len().saturating_add(self.function.len()) > MOST_FUNCTIONS {
            let reason = format!("more than {MOST_FUNCTIONS} ports and functions");
            return Err(PlatformError::Value(reason));
        }
        let mut hosts = Vec::new();
        let mut rates = Vec::new();
        for InterconnectEntry { nodes: [a, b], bytes_per_second } in self.interconnect {
            rates.push((LinkId::Sockets(a.min(b), a.max(b)), bytes_per_second));
        }
        for host in self.host_bridge {
            if hosts.iter().any(|h: &HostBridge| h.name == host.name) {
                return Err(PlatformError::Value(format!(
                    "host bridge {:?} appears twice",
                    host.name
                )));
            }
            let root_device = host.root_device.as_deref().map(id).transpose()?;
            rates
                .extend(host.bytes_per_second.map(|rate| (LinkId::RootComplex(hosts.len()), rate)));
            hosts.push(HostBridge {
                name: host.name,
                shown: crate::Shown::Bridges,
                numa_node: host.numa_node,
                root_device,
            });
        }
        let below = |text: &str| match hosts.iter().position(|h| h.name == text) {
            Some(host) => Ok(Below::Host(host)),
            None => text.parse().map(Below::Port).map_err(|_| {
                PlatformError::Value(format!(
                    "below = {text:?} is neither a host bridge nor a PCI address"
                ))
            }),
        };
        let mut functions = Vec::new();
        for port in self.port {
            if port.kind == Kind::Endpoint {
                return Err(PlatformError::Value(format!(
                    "port {} cannot be an endpoint",
                    port.address
                )));
            }
            functions.push(Function {
                id: Some(id(port.id.as_deref().unwrap_or("f0f0:0010"))?),
                class: Some(0x06_04_00),
                link: port.link,
                acs: acs(port.acs)?,
                ..Function::new(port.address, port.kind, below(&port.below)?)
            });
        }
        for entry in self.function {
            if functions.iter().any(|f| f.name == entry.name) {
                return Err(PlatformError::Value(format!(
                    "function {:?} appears twice",
                    entry.name
                )));
            }
            if entry.role == Role::Hca && !is_device_name(&entry.name) {
                return Err(PlatformError::Value(format!(
                    "an HCA cannot be called {:?}: 1 to {MAX_NAME_BYTES} letters, digits or any of \
                     _-.",
                    entry.name
                )));
            }
            let ports = ports(&entry)?;
            let (vuid, data_direct) = (vuid(&entry)?, data_direct(&entry)?);
            let interfaces = interfaces(&entry)?;
            functions.push(Function {
                name: entry.name,
                role: entry.role,
                of: entry.of,
                id: Some(id(&entry.id)?),
                class: Some(entry.class),
                acs: acs(entry.acs)?,
                ats: entry.ats,
                ports,
                vuid,
                data_direct,
                interfaces,
                memory_bytes: entry.memory_bytes,
                bar_bytes: entry.bar_bytes,
                ..Function::new(entry.address, Kind::Endpoint, below(&entry.below)?)
            });
        }
        for function in functions.iter().filter(|f| f.role == Role::DataDirect) {
            let hca = functions
                .iter()
                .any(|f| f.role == Role::Hca && Some(&f.name) == function.of.as_ref());
            if !hca {
                let name = &function.name;
                return Err(PlatformError::Value(format!(
                    "data-direct function {name:?} needs of = an HCA's name"
                )));
            }
        }
        if let Some((hop, _)) = rates.iter().find(|(_, rate)| *rate == 0) {
            return Err(PlatformError::Value(format!("bytes_per_second of {hop} is 0")));
        }
        let mut machine = Machine::new(self.cpu, hosts, functions)?;
        for (hop, bytes_per_second) in rates {
            machine.set_rate(hop, bytes_per_second);
        }
        Ok(machine)
    }
}

/// Most ports and functions of a machine: each is compared with the others.
pub(super) const MOST_FUNCTIONS: usize = 16 << 10;
/// Most ports of an HCA. InfiniBand's and sysfs's numbers go further, nobody's patience does.
const MAX_PORTS: u32 = 1024;

fn interfaces(entry: &FunctionEntry) -> Result<Vec<String>, PlatformError> {
    match &entry.interfaces {
        None => Ok(Vec::new()),
        Some(names) if entry.role == Role::Hca && !names.is_empty() => Ok(names.clone()),
        Some(names) => Err(PlatformError::Value(format!(
            "function {:?} has interfaces = {names:?}; an HCA names at least one, others none",
            entry.name
        ))),
    }
}

/// Longest name of an RDMA device (`IB_DEVICE_NAME_MAX` less the terminating NUL).
const MAX_NAME_BYTES: usize = 63;

/// Whether programs can know an HCA by this: it becomes the name of a directory.
fn is_device_name(name: &str) -> bool {
    let is_fine = |byte: u8| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte);
    (1..=MAX_NAME_BYTES).contains(&name.len())
        && name.bytes().all(is_fine)
        && !name.starts_with('.')
}

fn ports(entry: &FunctionEntry) -> Result<u32, PlatformError> {
    match entry.ports {
        None => Ok(1),
        Some(ports) if entry.role == Role::Hca && (1..=MAX_PORTS).contains(&ports) => Ok(ports),
        Some(ports) => Err(PlatformError::Value(format!(
            "function {:?} has ports = {ports}; an HCA has 1 to {MAX_PORTS}, others have none",
            entry.name
        ))),
    }
}

/// What the HCA and its Data Direct function know each other by, unless the file says otherwise.
fn vuid(entry: &FunctionEntry) -> Result<Option<String>, PlatformError> {
    let hca = match entry.role {
        Role::Hca => Some(&entry.name),
        Role::DataDirect => entry.of.as_ref(),
        _ => None,
    };
    match (&entry.vuid, hca) {
        (Some(vuid), Some(_)) => Ok(Some(vuid.clone())),
        (None, hca) => Ok(hca.map(|name| format!("peerdma-{name}"))),
        (Some(_), None) => Err(PlatformError::Value(format!(
            "function {:?} has a vuid; only HCAs and Data Direct functions have one",
            entry.name
        ))),
    }
}

/// An HCA may use Data Direct unless the file says otherwise.
fn data_direct(entry: &FunctionEntry) -> Result<Option<bool>, PlatformError> {
    match (entry.role, entry.data_direct) {
        (Role::Hca, may) => Ok(Some(may.unwrap_or(true))),
        (_, None) => Ok(None),
        (_, Some(_)) => Err(PlatformError::Value(format!(
            "function {:?} has data_direct; it is a capability of HCAs",
            entry.name
        ))),
    }
}

fn id(text: &str) -> Result<(u16, u16), PlatformError> {
    let parse = || {
        let (vendor, device) = text.split_once(':')?;
        Some((u16::from_str_radix(vendor, 16).ok()?, u16::from_str_radix(device, 16).ok()?))
    };
    parse().ok_or_else(|| PlatformError::Value(format!("{text:?} is not an id such as 8086:09a2")))
}

fn acs(bits: Option<Vec<String>>) -> Result<Acs, PlatformError> {
    let Some(names) = bits else { return Ok(Acs::Absent) };
    names
        .iter()
        .try_fold(AcsBits::empty(), |all, name| {
            let bit = AcsBits::from_name(name);
            bit.map(|b| all | b).ok_or_else(|| {
                PlatformError::Value(format!("{name:?} is not an ACS bit (SV TB RR CR UF EC DT)"))
            })
        })
        .map(Acs::Enabled)
}
