//! The sysfs tree that a program under `run` sees: the software HCA on its platform, with this
//! host's addresses as GIDs. The library in the program answers what changes while it runs; this is
//! what holds before and around it.

use super::drm;
use crate::args::device::{Device, GpuInterface, Model};
use crate::console::failure::{Context, Failure, Outcome};
use hca::identity;
use pcie::{Below, Function, Link, Platform, PlatformError, Role};
use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};
use sysfs::{DeviceDescription, DrmMemory, Entry, Gid, Node, PciFunction, Port};

/// What helps with a platform file.
pub const FORM: &str = "`peerdma platforms default` prints one to start from, with comments";

/// The platform a program runs on.
pub fn platform(device: &Device) -> Outcome<Platform> {
    match &device.platform {
        None => Ok(Platform::default()),
        Some(path) => Platform::load(path).map_err(|error| {
            let remedy = match error {
                PlatformError::Read(_) => {
                    "check the path; `peerdma platforms` lists the ready-made ones"
                }
                _ => FORM,
            };
            Failure::new(format_args!("cannot use the platform {}", path.display()))
                .because(error)
                .remedy(remedy)
        }),
    }
}

/// Writes the tree below `root`.
pub fn write(device: &Device, root: &Path) -> Outcome<()> {
    sysfs::write_entries(root, &entries(device)?)
        .what(format_args!("cannot write {}", root.display()))
}

/// A tree in `folder` that stays, named by its content: the same settings give the same tree,
/// whoever makes it first. What the library in a program answers by itself makes no difference, so
/// that a container finds the tree that was made as its image was.
pub fn persistent(device: &Device, folder: &Path) -> Outcome<PathBuf> {
    let entries = entries(device)?;
    let root = folder.join(format!("sysfs-{}", digest(&entries)));
    if root.is_dir() {
        return Ok(root);
    }
    let temporary = folder.join(format!(".sysfs-{}", std::process::id()));
    let failure = format!("cannot write {}", root.display());
    sysfs::write_entries(&temporary, &entries).what(&failure)?;
    if let Err(error) = fs::rename(&temporary, &root) {
        // Either way ours is not needed any more.
        drop(fs::remove_dir_all(&temporary));
        if !root.is_dir() {
            return Err(error).what(&failure);
        }
    }
    Ok(root)
}

fn digest(entries: &[Entry]) -> String {
    let mut hasher = blake3::Hasher::new();
    for entry in entries.iter().filter(|entry| !sysfs::is_answered(&entry.path)) {
        let (kind, text) = match &entry.node {
            Node::Directory => ("d", ""),
            Node::File(text) => ("f", text.as_str()),
            Node::Link(target) => ("l", target.as_str()),
        };
        for part in [kind, &entry.path, text] {
            hasher.update(&(part.len() as u64).to_le_bytes()).update(part.as_bytes());
        }
    }
    hasher.finalize().to_hex()[..16].to_owned()
}

fn entries(device: &Device) -> Outcome<Vec<Entry>> {
    let (platform, model) = (platform(device)?, device.model);
    if platform.with_role(Role::Hca).next().is_none() {
        return Err(Failure::new("the platform has no HCA")
            .because("no [[function]] has role = \"hca\"")
            .remedy(FORM));
    }
    let mut tree = Tree::default();
    for (index, hca) in (0..).zip(platform.with_role(Role::Hca)) {
        tree.add(sysfs::entries(&description(&platform, hca, model, index)?));
    }
    // The functions beside the HCAs, so that programs find the GPU next to one.
    for function in
        platform.machine().functions().filter(|f| matches!(f.role, Role::Gpu | Role::DataDirect))
    {
        tree.add(sysfs::pci_entries(&pci_function(&platform, function, model)));
    }
    let gpus = platform.with_role(Role::Gpu).filter(|gpu| gpu.memory_bytes.is_some());
    for (function, nodes) in gpus.zip(drm::free_nodes()) {
        let total_bytes = function.memory_bytes.unwrap_or_default();
        let memory = DrmMemory {
            product: function.name.clone(),
            total_bytes,
            visible_bytes: function.bar_bytes.unwrap_or_default().min(total_bytes),
        };
        tree.add(sysfs::drm_entries(&pci_function(&platform, function, model), nodes, &memory));
    }
    tree.add(drm::machines_own());
    let version = env!("CARGO_PKG_VERSION");
    let files = &umem::PeerClients::FILES;
    tree.add(sysfs::peer_entries(sysfs::PEER_CLIENT, version, files));
    if device.gpu == GpuInterface::Cuda {
        tree.add(vec![sysfs::cuda_peer_entry()]);
    }
    tree.add(sysfs::symbol_entries());
    Ok(tree.entries)
}

/// Entries in the order they came; what devices share, such as the bridges above them, is there
/// once.
#[derive(Default)]
struct Tree {
    entries: Vec<Entry>,
    paths: HashSet<String>,
}

impl Tree {
    fn add(&mut self, more: Vec<Entry>) {
        let new = more.into_iter().filter(|entry| self.paths.insert(entry.path.clone()));
        self.entries.extend(new);
    }
}

fn description(
    platform: &Platform,
    hca: &Function,
    model: Model,
    index: u32,
) -> Outcome<DeviceDescription> {
    let guid = identity::node_guid(&hca.name);
    let gids = link::GidTable::of(identity::interfaces(platform, hca)).map_err(|error| {
        Failure::new("cannot list the addresses of this host")
            .because(error)
            .remedy("allow AF_NETLINK sockets")
    })?;
    let port = Port::closed_roce(
        link::GID_TABLE_LEN as u32,
        gids.iter()
            .map(|(index, entry)| (Gid::roce_v2(index as u32, entry.gid, &entry.ifname), entry.up)),
        hca::DEFAULT_PKEY,
        // The library in the program answers their values.
        hca::Counter::ALL.iter().map(|counter| counter.name()),
    );
    Ok(DeviceDescription {
        name: hca.name.clone(),
        node_guid: guid,
        sys_image_guid: guid,
        node_desc: sysfs::node_desc(&hca.name),
        board_id: "peerdma".to_owned(),
        fw_ver: env!("CARGO_PKG_VERSION").to_owned(),
        hca_type: hca_type(model).to_owned(),
        hw_rev: 0,
        uverbs_index: index,
        ports: vec![port],
        twin_ports: hca.ports - 1,
        pci: pci_function(platform, hca, model),
        netdevs: netdevs(gids.iter().map(|(_, entry)| (entry.ifname.as_str(), entry.loopback))),
    })
}

/// Device type: `MT` and the PCI device id, of a ConnectX.
fn hca_type(model: Model) -> &'static str {
    match model {
        Model::Software => "peerdma",
        Model::Connectx => "MT4131",
    }
}

/// PCI ids of a ConnectX-8 and of its Data Direct function.
const CONNECTX_8: (u16, u16) = (0x15b3, 0x1023);
const CONNECTX_8_DATA_DIRECT: (u16, u16) = (0x15b3, 0x2100);

/// Vendor and device id: of the model, or what the platform file gives.
fn ids(function: &Function, model: Model) -> (u16, u16) {
    match (model, function.role) {
        (Model::Connectx, Role::Hca) => CONNECTX_8,
        (Model::Connectx, Role::DataDirect) => CONNECTX_8_DATA_DIRECT,
        _ => function.id.unwrap_or_default(),
    }
}

/// Interfaces of the device, each by name and whether it is loopback. A NIC has none such, and
/// programs connect to the address of the first one, which on loopback binds to no device; so
/// loopback is there only by itself.
fn netdevs<'a>(interfaces: impl Iterator<Item = (&'a str, bool)>) -> Vec<String> {
    let (loopback, others): (Vec<_>, Vec<_>) = interfaces.partition(|(_, loopback)| *loopback);
    let shown = if others.is_empty() { loopback } else { others };
    let mut names: Vec<String> = shown.into_iter().map(|(name, _)| name.to_owned()).collect();
    names.sort();
    names.dedup();
    names
}

fn pci_function(platform: &Platform, function: &Function, model: Model) -> PciFunction {
    let machine = platform.machine();
    let numa_node = machine.host_of(function).and_then(|host| machine.hosts()[host].numa_node);
    let link = match function.below {
        Below::Port(port) => machine.function(port).and_then(|port| port.link),
        Below::Host(_) => None,
    };
    let (speed_gts, width) = match link {
        Some(Link::Lanes { speed_gts, width }) => (speed_gts, width),
        _ => (0.0, 0),
    };
    let (vendor, device) = ids(function, model);
    PciFunction {
        bdf: function.address.to_string(),
        bridges: machine.bridges(function).iter().map(ToString::to_string).collect(),
        vendor,
        device,
        subsystem_vendor: vendor,
        subsystem_device: 0,
        revision: 0,
        class: function.class.unwrap_or_default(),
        numa_node: numa_node.and_then(|node| i32::try_from(node).ok()).unwrap_or(-1),
        local_cpus: (0..std::thread::available_parallelism().map_or(1, |n| n.get() as u32))
            .collect(),
        bars: bars(function),
        link_speed_tenth_gt_s: (speed_gts * 10.0) as u32,
        link_width: width.min(255) as u8,
    }
}

/// The BAR that shows a GPU's memory. Its address is made up; it only has to be aligned and
/// distinct.
fn bars(function: &Function) -> Vec<(u64, u64)> {
    let Some(bytes) = function.bar_bytes.and_then(u64::checked_next_power_of_two) else {
        return Vec::new();
    };
    vec![(bytes.saturating_mul(u64::from(function.address.bus) + 1), bytes)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_tree_has_the_hca_and_the_gpus() {
        let entries = entries(&Device::default()).unwrap();
        let has = |path: &str| entries.iter().any(|entry| entry.path == path);
        assert!(has("class/infiniband/peerdma0"));
        assert!(has("bus/pci/devices/0000:18:00.0"));
        assert!(has("bus/pci/devices/0000:1a:00.0"));
        let nodes = entries.iter().filter(|entry| entry.path.starts_with("dev/dri/renderD"));
        assert!(nodes.filter(|node| node.node == Node::Link("/dev/null".into())).count() >= 2);
        let total = entries.iter().find(|entry| entry.path.ends_with("mem_info_vram_total"));
        assert_eq!(total.unwrap().node, Node::File("4294967296\n".into()));
        let mut paths: Vec<_> = entries.iter().map(|entry| &entry.path).collect();
        paths.sort();
        let count = paths.len();
        paths.dedup();
        assert_eq!(count, paths.len(), "a path appears twice");
    }

    #[test]
    fn loopback_is_an_interface_of_the_device_only_by_itself() {
        let names = |interfaces: &[(&'static str, bool)]| netdevs(interfaces.iter().copied());
        assert_eq!(names(&[("lo", true), ("lo", true)]), ["lo"]);
        assert_eq!(
            names(&[("wire", false), ("eth1", false), ("wire", false), ("lo", true)]),
            ["eth1", "wire"]
        );
        assert!(names(&[]).is_empty());
    }

    #[test]
    fn who_the_device_is_on_a_host_does_not_name_the_tree() {
        let mut tree = entries(&Device::default()).unwrap();
        let before = digest(&tree);
        let mut change = |file: &str| {
            let entry = tree.iter_mut().find(|entry| entry.path.ends_with(file));
            entry.expect(file).node = Node::File("another\n".to_owned());
            digest(&tree)
        };
        let own = ["/node_guid", "/sys_image_guid", "/node_desc", "/ports/1/state", "/1/gids/0"];
        assert!(own.iter().all(|file| change(file) == before));
        assert_ne!(change("/fw_ver"), before);
    }

    #[test]
    fn a_platform_without_hca_is_refused_with_a_remedy() {
        let path = std::env::temp_dir().join(format!("peerdma-tree-{}.toml", std::process::id()));
        fs::write(&path, "[[host_bridge]]\nname = \"a\"\n").unwrap();
        let device = Device { platform: Some(path.clone()), ..Device::default() };
        let failure = entries(&device).unwrap_err();
        assert!(failure.into_parts().0.contains("hca"));
        fs::remove_file(path).unwrap();
    }
}
