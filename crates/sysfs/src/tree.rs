//! The tree: which directories, files and links a device has, and writing them below a folder.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

use crate::attributes::{DEVICE_FILES, PORT_FILES, content};
use crate::description::{DeviceDescription, STANDARD_COUNTERS};
use crate::pci::PciFunction;
use crate::{
    MISC_MAJOR, RDMA_CM_ABI_VERSION, RDMA_CM_MINOR, UMAD_ABI_VERSION, UVERBS_ABI_VERSION,
    UVERBS_BASE_MINOR, UVERBS_MAJOR,
};

/// Mode of every attribute: readable by all, writable by none, as the kernel's read-only
/// attributes.
const FILE_MODE: u32 = 0o444;

/// Something in the tree.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Entry {
    /// Path relative to the tree's root.
    pub path: String,
    /// What is there.
    pub node: Node,
}

/// What stands at a path.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Node {
    /// A directory.
    Directory,
    /// A read-only attribute and its text.
    File(String),
    /// A symbolic link and its target.
    Link(String),
}

/// Everything `device` shows, parents before children.
pub fn entries(device: &DeviceDescription) -> Vec<Entry> {
    let mut tree = Builder::default();
    tree.pci_function(&device.pci);
    tree.infiniband(device);
    tree.uverbs(device);
    let function = device.pci.directory();
    tree.directory(&format!("{function}/net"));
    for ifname in &device.netdevs {
        tree.link(&format!("{function}/net/{ifname}"), format!("/sys/class/net/{ifname}"));
    }
    tree.file("class/infiniband_mad/abi_version", format!("{UMAD_ABI_VERSION}\n"));
    tree.rdma_cm();
    tree.entries
}

/// Everything a PCI function without an RDMA device shows, such as a GPU beside the HCA.
pub fn pci_entries(function: &PciFunction) -> Vec<Entry> {
    let mut tree = Builder::default();
    tree.pci_function(function);
    tree.entries
}

/// Writes `device` below `root`. Several devices may share a root.
pub fn write_tree(root: &Path, device: &DeviceDescription) -> io::Result<()> {
    write_entries(root, &entries(device))
}

/// Writes `entries` below `root`, which is created when missing. An entry already there is
/// replaced.
pub fn write_entries(root: &Path, entries: &[Entry]) -> io::Result<()> {
    fs::create_dir_all(root)?;
    for entry in entries {
        let path = root.join(&entry.path);
        match &entry.node {
            Node::Directory => fs::create_dir_all(&path)?,
            Node::File(text) => {
                remove_if_there(&path)?;
                fs::write(&path, text)?;
                fs::set_permissions(&path, fs::Permissions::from_mode(FILE_MODE))?;
            }
            Node::Link(target) => {
                remove_if_there(&path)?;
                symlink(target, &path)?;
            }
        }
    }
    Ok(())
}

fn remove_if_there(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

#[derive(Default)]
pub(crate) struct Builder {
    pub(crate) entries: Vec<Entry>,
    directories: BTreeSet<String>,
}

impl Builder {
    fn directory(&mut self, path: &str) {
        if path.is_empty() || self.directories.contains(path) {
            return;
        }
        self.parents(path);
        self.directories.insert(path.into());
        self.entries.push(Entry { path: path.into(), node: Node::Directory });
    }

    fn parents(&mut self, path: &str) {
        if let Some((parent, _)) = path.rsplit_once('/') {
            self.directory(parent);
        }
    }

    pub(crate) fn file(&mut self, path: &str, text: String) {
        self.parents(path);
        self.entries.push(Entry { path: path.into(), node: Node::File(text) });
    }

    pub(crate) fn link(&mut self, path: &str, target: String) {
        self.parents(path);
        self.entries.push(Entry { path: path.into(), node: Node::Link(target) });
    }

    /// A link at `path` to `target`, both relative to the root, written relative to the link as in
    /// sysfs.
    pub(crate) fn link_inside(&mut self, path: &str, target: &str) {
        let up = "../".repeat(path.matches('/').count());
        self.link(path, format!("{up}{target}"));
    }

    fn pci_function(&mut self, function: &PciFunction) {
        let directory = function.directory();
        for (name, text) in function.attributes() {
            self.file(&format!("{directory}/{name}"), text);
        }
        for (depth, _) in function.bridges.iter().enumerate() {
            let bridge = function.directory_above(depth);
            for (name, text) in function.bridge_attributes() {
                self.file(&format!("{bridge}/{name}"), text);
            }
        }
        self.directory("bus/pci");
        self.link_inside(&format!("{directory}/subsystem"), "bus/pci");
        self.link_inside(&format!("bus/pci/devices/{}", function.bdf), &directory);
    }

    fn infiniband(&mut self, device: &DeviceDescription) {
        let function = device.pci.directory();
        let directory = format!("{function}/infiniband/{}", device.name);
        let attribute = |tree: &mut Builder, name: &str| {
            if let Some(text) = content(device, &format!("class/infiniband/{}/{name}", device.name))
            {
                tree.file(&format!("{directory}/{name}"), text);
            }
        };
        for name in DEVICE_FILES {
            attribute(self, name);
        }
        for (number, port) in (1..).zip(&device.ports) {
            let base = format!("ports/{number}");
            for name in PORT_FILES {
                attribute(self, &format!("{base}/{name}"));
            }
            for index in 0..port.gid_table_len {
                attribute(self, &format!("{base}/gids/{index}"));
                attribute(self, &format!("{base}/gid_attrs/ndevs/{index}"));
                attribute(self, &format!("{base}/gid_attrs/types/{index}"));
            }
            for index in 0..port.pkeys.len() {
                attribute(self, &format!("{base}/pkeys/{index}"));
            }
            for name in STANDARD_COUNTERS {
                attribute(self, &format!("{base}/counters/{name}"));
            }
            let extra = port.counters.iter().map(|counter| counter.name.as_str());
            for name in extra.filter(|name| !STANDARD_COUNTERS.contains(name)) {
                attribute(self, &format!("{base}/counters/{name}"));
            }
            for name in
                port.hw_counters.iter().map(|counter| counter.name.as_str()).chain(["lifespan"])
            {
                attribute(self, &format!("{base}/hw_counters/{name}"));
            }
            for empty in ["gids", "gid_attrs/ndevs", "gid_attrs/types", "pkeys"] {
                self.directory(&format!("{directory}/{base}/{empty}"));
            }
        }
        let last = device.ports.len();
        for twin in last + 1..=last + device.twin_ports as usize {
            self.link(&format!("{directory}/ports/{twin}"), last.to_string());
        }
        self.link_inside(&format!("class/infiniband/{}", device.name), &directory);
        self.link_inside(&format!("{directory}/subsystem"), "class/infiniband");
        self.link(&format!("{directory}/device"), format!("../../../{}", device.pci.bdf));
    }

    /// The connection manager, one for all devices.
    fn rdma_cm(&mut self) {
        let directory = "class/misc/rdma_cm";
        self.file(&format!("{directory}/abi_version"), format!("{RDMA_CM_ABI_VERSION}\n"));
        self.file(&format!("{directory}/dev"), format!("{MISC_MAJOR}:{RDMA_CM_MINOR}\n"));
        let uevent = format!(
            "MAJOR={MISC_MAJOR}\nMINOR={RDMA_CM_MINOR}\nDEVNAME=infiniband/rdma_cm\nDEVMODE=0666\n"
        );
        self.file(&format!("{directory}/uevent"), uevent);
        self.link("dev/infiniband/rdma_cm", "/dev/null".into());
    }

    fn uverbs(&mut self, device: &DeviceDescription) {
        let name = format!("uverbs{}", device.uverbs_index);
        let numbers =
            format!("{UVERBS_MAJOR}:{}", UVERBS_BASE_MINOR.saturating_add(device.uverbs_index));
        let directory = format!("{}/infiniband_verbs/{name}", device.pci.directory());
        self.file(&format!("{directory}/ibdev"), format!("{}\n", device.name));
        self.file(&format!("{directory}/abi_version"), "1\n".into());
        self.file(&format!("{directory}/dev"), format!("{numbers}\n"));
        let (major, minor) = numbers.split_once(':').unwrap_or_default();
        let uevent =
            format!("MAJOR={major}\nMINOR={minor}\nDEVNAME=infiniband/{name}\nDEVMODE=0666\n");
        self.file(&format!("{directory}/uevent"), uevent);
        self.link(&format!("{directory}/device"), format!("../../../{}", device.pci.bdf));
        self.link_inside(&format!("class/infiniband_verbs/{name}"), &directory);
        self.link_inside(&format!("{directory}/subsystem"), "class/infiniband_verbs");
        self.file("class/infiniband_verbs/abi_version", format!("{UVERBS_ABI_VERSION}\n"));
        self.link(&format!("dev/infiniband/{name}"), "/dev/null".into());
    }
}
