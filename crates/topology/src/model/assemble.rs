//! From devices with their sysfs paths to a machine: the tree is in the paths.

use super::config::Config;
use super::{build, kinds, roles};
use crate::Error;
use pcie::{Acs, Address, Below, Cpu, Function, HostBridge, Kind, Link, Machine, Shown};
use std::collections::{BTreeMap, HashMap, HashSet};

/// One device as sysfs shows it.
#[derive(Default)]
pub(crate) struct Device {
    /// `/sys/devices/pci0000:17/0000:17:00.0/0000:18:00.0`.
    pub path: String,
    /// Configuration space, as far as it was read.
    pub config: Vec<u8>,
    pub id: Option<(u16, u16)>,
    pub class: Option<u32>,
    pub numa_node: Option<u32>,
    pub iommu_group: Option<u32>,
    pub driver: Option<String>,
    pub interfaces: Vec<String>,
    pub link: Option<Link>,
    pub best_link: Option<Link>,
    pub largest_bar_bytes: Option<u64>,
    /// The size of a GPU's memory, where its driver says it.
    pub memory_bytes: Option<u64>,
    pub vuid: Option<String>,
    pub virtual_of: Option<Address>,
}

/// Where a path puts a device: its host bridge, the bridge above it, its address.
struct DevicePosition<'a> {
    host: &'a str,
    parent: Option<Address>,
    address: Address,
}

fn place(path: &str) -> Option<DevicePosition<'_>> {
    let (above, own) = path.rsplit_once('/')?;
    let address = own.parse().ok()?;
    // a host bridge may lie behind a function of another (VMD): the last one counts
    let mut host = None;
    let mut parent = None;
    for part in above.split('/') {
        if part.strip_prefix("pci").is_some_and(|name| name.contains(':')) {
            (host, parent) = (Some(part), None);
        } else if host.is_some()
            && let Ok(bridge) = part.parse()
        {
            parent = Some(bridge);
        }
    }
    Some(DevicePosition { host: host?, parent, address })
}

/// Puts devices together. `nodes` is the number of NUMA nodes, if known: on a machine with one,
/// everything is on it.
pub(crate) fn assemble(
    what: &'static str,
    cpu: Option<Cpu>,
    nodes: Option<u32>,
    devices: &[Device],
) -> Result<Machine, Error> {
    let mut hosts: Vec<HostBridge> = Vec::new();
    let mut by_name: HashMap<&str, usize> = HashMap::new();
    let mut functions = Vec::new();
    let mut guess = Vec::new();
    for device in devices {
        let Some(place) = place(&device.path) else { continue };
        let host = *by_name.entry(place.host).or_insert_with(|| {
            hosts.push(HostBridge {
                name: place.host.to_owned(),
                shown: Shown::Bridges,
                numa_node: None,
                root_device: None,
            });
            hosts.len() - 1
        });
        let below = place.parent.map_or(Below::Host(host), Below::Port);
        let function = function(device, place.address, below, nodes);
        if function.kind == Kind::Bridge && Config(&device.config).kind().is_none() {
            guess.push(function.address);
        }
        functions.push(function);
    }
    add_missing_bridges(devices, &by_name, &mut functions, &mut guess);
    kinds::infer(&mut functions, &guess);
    links_from_below(&mut functions);
    for (index, host) in hosts.iter_mut().enumerate() {
        let mut roots: Vec<&Function> =
            functions.iter().filter(|f| f.below == Below::Host(index)).collect();
        roots.sort_by_key(|f| f.address);
        host.numa_node = roots.iter().find_map(|f| f.numa_node);
        host.root_device = root_device(&roots);
    }
    roles::assign(&mut functions);
    build::machine(what, cpu, hosts, functions)
}

/// Captures leave devices out; the bridges above those that are there stand in their paths.
fn add_missing_bridges(
    devices: &[Device],
    hosts: &HashMap<&str, usize>,
    functions: &mut Vec<Function>,
    guess: &mut Vec<Address>,
) {
    let mut known: HashSet<Address> = functions.iter().map(|f| f.address).collect();
    for device in devices {
        let mut path = device.path.as_str();
        while let Some((above, _)) = path.rsplit_once('/') {
            path = above;
            let Some(place) = place(path) else { continue };
            let Some(&host) = hosts.get(place.host) else { continue };
            if known.insert(place.address) {
                let below = place.parent.map_or(Below::Host(host), Below::Port);
                functions.push(Function::new(place.address, Kind::Bridge, below));
                guess.push(place.address);
            }
        }
    }
}

fn function(device: &Device, address: Address, below: Below, nodes: Option<u32>) -> Function {
    let config = Config(&device.config);
    let class = device.class.or_else(|| config.class());
    let bridge = class.is_some_and(|class| class >> 8 == 0x0604);
    let inferred = if bridge { Kind::Bridge } else { Kind::Endpoint };
    let (link, best_link) = config.links();
    Function {
        id: device.id.or_else(|| config.id()),
        class,
        link: device.link.or(link),
        best_link: device.best_link.or(best_link),
        acs: if device.config.is_empty() { Acs::Unknown } else { config.acs() },
        acs_capable: config.acs_capable(),
        ats: config.ats(),
        numa_node: device.numa_node.or((nodes == Some(1)).then_some(0)),
        iommu_group: device.iommu_group,
        driver: device.driver.clone(),
        interfaces: device.interfaces.clone(),
        bar_bytes: device.largest_bar_bytes,
        memory_bytes: device.memory_bytes,
        vuid: device.vuid.clone(),
        virtual_of: device.virtual_of,
        ..Function::new(address, config.kind().unwrap_or(inferred), below)
    }
}

/// A port that does not say how the link below it runs: the device below does.
fn links_from_below(functions: &mut [Function]) {
    let known: BTreeMap<Address, (Option<Link>, Option<Link>)> = functions
        .iter()
        .filter(|f| !f.is_downstream_port())
        .filter_map(|f| match f.below {
            Below::Port(port) if f.link.is_some() => Some((port, (f.link, f.best_link))),
            _ => None,
        })
        .collect();
    for port in functions.iter_mut().filter(|f| f.is_downstream_port() && f.link.is_none()) {
        if let Some(&(link, best)) = known.get(&port.address) {
            (port.link, port.best_link) = (link, port.best_link.or(best));
        }
    }
}

/// What P2PDMA looks up in its list: the first device of the root bus if it is 00.0 or a root port
/// (`pci_host_bridge_dev`).
fn root_device(roots: &[&Function]) -> Option<(u16, u16)> {
    let first = roots.first()?;
    let counts =
        (first.address.device, first.address.function) == (0, 0) || first.kind == Kind::RootPort;
    if counts { first.id } else { Some(HostBridge::NO_DEVICE) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_come_from_paths() {
        let at = |path| {
            let place = place(path)?;
            Some((
                place.host.to_owned(),
                place.parent.map(|p| p.to_string()),
                place.address.to_string(),
            ))
        };
        let some = |host: &str, parent: Option<&str>, own: &str| {
            Some((host.to_owned(), parent.map(str::to_owned), own.to_owned()))
        };
        assert_eq!(
            at("/sys/devices/pci0000:17/0000:17:00.0/0000:18:00.0"),
            some("pci0000:17", Some("0000:17:00.0"), "0000:18:00.0")
        );
        assert_eq!(
            at("/sys/devices/platform/soc/pci0002:00/0002:00:00.0"),
            some("pci0002:00", None, "0002:00:00.0")
        );
        // a VMD's own domain
        assert_eq!(
            at("/sys/devices/pci0000:00/0000:00:0e.0/pci10000:00/10000:00:02.0"),
            some("pci10000:00", None, "10000:00:02.0")
        );
        assert_eq!(at("/sys/devices/virtual/net/lo"), None);
        assert_eq!(at("/sys/bus/pci/devices/0000:18:00.0"), None);
    }

    #[test]
    fn bridges_that_a_capture_left_out_are_in_the_paths() {
        let path = "/sys/devices/pci0000:17/0000:17:00.0/0000:18:00.0/0000:19:08.0/0000:1a:00.0";
        let devices = [Device { path: path.into(), ..Device::default() }];
        let machine = assemble("test", None, None, &devices).unwrap();
        let kinds: Vec<Kind> = machine.functions().map(|f| f.kind).collect();
        use Kind::*;
        assert_eq!(kinds, [RootPort, SwitchUpstream, SwitchDownstream, Endpoint]);
    }

    #[test]
    fn a_machine_with_one_node_has_everything_on_it() {
        let device =
            Device { path: "/sys/devices/pci0000:00/0000:00:01.0".into(), ..Device::default() };
        let devices = [device];
        let node = |nodes| {
            let machine = assemble("test", None, nodes, &devices).unwrap();
            machine.numa_node_of(machine.functions().next().unwrap())
        };
        assert_eq!(node(Some(1)), Some(0));
        assert_eq!(node(Some(2)), None);
        assert_eq!(node(None), None);
        assert_eq!(assemble("test", None, None, &[]).unwrap().functions().count(), 0);
    }
}
