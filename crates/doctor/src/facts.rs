//! What a host says of itself, read once.

use crate::{ConditionState, Probe, confidential};
use flate2::read::GzDecoder;
use pcie::{Address, Kernel};
use std::io::Read;
use topology::Tree;

/// What a host says of itself. `None` is unknown.
#[derive(Clone, Debug, Default)]
pub struct Facts {
    /// Whether the source is a live or captured `/sys`: then what is absent there is absent.
    pub(crate) sysfs: bool,
    /// `uname -r`.
    pub release: Option<String>,
    /// Its version, and whether it carries later features.
    pub(crate) kernel: Option<Kernel>,
    /// `x86_64`, `aarch64`, `ppc64le`, …
    pub(crate) architecture: Option<String>,
    /// The kernel's configuration, and the file it is in.
    config: Option<(String, String)>,
    /// The kernel's command line.
    pub(crate) command_line: Option<String>,
    /// Loaded modules.
    modules: Option<Vec<String>>,
    /// Whether the kernel has the RDMA core now, without which there is no Soft-RoCE; `None` if
    /// nobody looked.
    pub rdma_core: Option<bool>,
    /// Clients in `/sys/kernel/mm/memory_peers`; `None` if there is no such directory.
    pub(crate) memory_peers: Option<Vec<String>>,
    /// Version of the loaded nvidia-peermem.
    pub(crate) peermem: Option<String>,
    /// `/proc/driver/nvidia/version`, first line.
    pub(crate) nvidia: Option<String>,
    /// Versions of symbols in libmlx5, newest last, and the file.
    pub(crate) libmlx5: Option<(String, Vec<String>)>,
    /// What the host's RDMA devices answered, where they were asked.
    pub probes: Vec<Probe>,
    /// Whether the software HCA proved itself, or why it could not; `None` if it was not asked to.
    pub software_hca: Option<Result<(), String>>,
    /// Memory that this process may lock: `None` within if there is no limit.
    pub(crate) locked_bytes: Option<Option<u64>>,
    /// Functions whose memory is published as p2pmem.
    pub(crate) published: Vec<Address>,
    /// Firmware of RDMA devices by name: version, type and board.
    pub(crate) firmware: Vec<(String, String)>,
    /// The device files of adapters: function, and name below `/dev/infiniband`.
    pub(crate) uverbs: Vec<(Address, String)>,
    /// Device files and folders, and whether this user may open them for reading and writing, or
    /// why not; empty if nobody tried.
    pub nodes: Vec<(String, Result<(), String>)>,
    /// Ways to a GPU's memory (`drm`, `cuda`) that were tried for a buffer to register, and why one
    /// gave none.
    pub unexported: Vec<(String, String)>,
    /// Whether the machine is no confidential guest, and by what that is known; `None` if nothing
    /// was read.
    pub(crate) plain_memory: Option<(ConditionState, String)>,
    /// Whether the kernel tells the software HCA when registered memory goes (userfaultfd), or why
    /// not; `None` if it was not asked.
    pub kernel_watches: Option<Result<(), String>>,
    /// IOMMU group types by number.
    iommu_types: Vec<(u32, String)>,
}

impl Facts {
    /// Reads a tree.
    pub fn read(tree: &dyn Tree) -> Facts {
        let release = topology::release(tree);
        let numbered = |name: String| {
            let kind = tree.line(&format!("/sys/kernel/iommu_groups/{name}/type"))?;
            Some((name.parse().ok()?, kind))
        };
        let groups = tree.list("/sys/kernel/iommu_groups");
        let mut facts = Facts {
            sysfs: !tree.list("/sys/bus/pci/devices").is_empty(),
            kernel: release.as_deref().and_then(Kernel::new),
            architecture: architecture(tree),
            config: release.as_deref().and_then(|release| config(tree, release)),
            command_line: tree.line("/proc/cmdline"),
            modules: tree.read("/proc/modules").map(|bytes| {
                let text = String::from_utf8_lossy(&bytes).into_owned();
                let names = text.lines().filter_map(|line| line.split(' ').next());
                names.map(str::to_owned).collect()
            }),
            memory_peers: tree
                .has_folder("/sys/kernel/mm/memory_peers")
                .then(|| tree.list("/sys/kernel/mm/memory_peers")),
            peermem: tree.line("/sys/module/nvidia_peermem/version"),
            nvidia: tree.line("/proc/driver/nvidia/version"),
            libmlx5: topology::LIBMLX5
                .iter()
                .find_map(|path| Some(((*path).to_owned(), symbol_versions(&tree.read(path)?)))),
            iommu_types: groups.into_iter().filter_map(numbered).collect(),
            locked_bytes: locked_bytes(tree),
            published: published(tree),
            firmware: firmware(tree),
            uverbs: uverbs(tree),
            nodes: Vec::new(),
            unexported: Vec::new(),
            plain_memory: Some(confidential::plain(tree)),
            release,
            probes: Vec::new(),
            software_hca: None,
            kernel_watches: None,
            rdma_core: None,
        };
        if let Some(answers) = tree.read(crate::PROBES) {
            facts.take_answers(&String::from_utf8_lossy(&answers));
        }
        facts
    }

    /// Whether a module is loaded. One that is built in is not listed.
    pub(crate) fn module(&self, name: &str) -> Option<bool> {
        Some(self.modules.as_ref()?.iter().any(|module| module == name))
    }

    /// A setting of the kernel's configuration: `Some(Some("y"))`, `Some(None)` if it is not set,
    /// `None` if not known.
    pub(crate) fn config(&self, name: &str) -> Option<Option<&str>> {
        let (_, text) = self.config.as_ref()?;
        let start = format!("CONFIG_{name}=");
        Some(text.lines().find_map(|line| line.strip_prefix(start.as_str())))
    }

    /// Whether this user may open a device file, or why not; `None` if nobody tried.
    pub(crate) fn opens(&self, node: &str) -> Option<&Result<(), String>> {
        self.nodes.iter().find(|(path, _)| path == node).map(|(_, result)| result)
    }

    /// The file of the configuration.
    pub(crate) fn config_file(&self) -> &str {
        self.config.as_ref().map_or("/boot/config-*, /proc/config.gz", |(file, _)| file)
    }

    /// How an IOMMU group translates: `identity`, `DMA`, `DMA-FQ`.
    pub(crate) fn iommu_type(&self, group: u32) -> Option<&str> {
        Some(self.iommu_types.iter().find(|(number, _)| *number == group)?.1.as_str())
    }
}

/// The machine's architecture, by what its kernel says of its processors.
fn architecture(tree: &dyn Tree) -> Option<String> {
    let bytes = tree.read("/proc/cpuinfo")?;
    let text = String::from_utf8_lossy(&bytes);
    let has = |key: &str| {
        text.lines().any(|line| line.split(':').next().is_some_and(|k| k.trim() == key))
    };
    let value = |key: &str| {
        let mut lines = text.lines().filter_map(|line| line.split_once(':'));
        lines.find(|(k, _)| k.trim() == key).map(|(_, value)| value.trim())
    };
    let name = match () {
        () if has("cpu family") => "x86_64",
        () if has("CPU implementer") => "aarch64",
        () if value("cpu").is_some_and(|cpu| cpu.starts_with("POWER")) => "ppc64le",
        () if value("vendor_id") == Some("IBM/S390") => "s390x",
        () if has("isa") && has("hart") => "riscv64",
        () => return None,
    };
    Some(name.to_owned())
}

/// Memory that the process that reads, or that captured, may lock: without limit for who has
/// CAP_IPC_LOCK.
fn locked_bytes(tree: &dyn Tree) -> Option<Option<u64>> {
    const CAP_IPC_LOCK: u64 = 1 << 14;
    let text = |path| Some(String::from_utf8_lossy(&tree.start(path, 16 << 10)?).into_owned());
    let status = text("/proc/self/status").unwrap_or_default();
    let capable = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let capable = capable.and_then(|bits| u64::from_str_radix(bits.trim(), 16).ok());
    if capable.is_some_and(|bits| bits & CAP_IPC_LOCK != 0) {
        return Some(None);
    }
    let limits = text("/proc/self/limits")?;
    let line = limits.lines().find_map(|line| line.strip_prefix("Max locked memory"))?;
    match line.split_whitespace().next()? {
        "unlimited" => Some(None),
        bytes => Some(Some(bytes.parse().ok()?)),
    }
}

/// Functions whose driver publishes memory for peers.
fn published(tree: &dyn Tree) -> Vec<Address> {
    let devices = tree.list("/sys/bus/pci/devices").into_iter();
    let real = |name: &String| tree.real(&format!("/sys/bus/pci/devices/{name}"));
    let has = |name: &String| tree.has_folder(&format!("{}/p2pmem", real(name)));
    devices.filter(has).filter_map(|name| name.parse().ok()).collect()
}

fn firmware(tree: &dyn Tree) -> Vec<(String, String)> {
    let mut found = Vec::new();
    for name in tree.list("/sys/bus/pci/devices") {
        let folder = format!("{}/infiniband", tree.real(&format!("/sys/bus/pci/devices/{name}")));
        for device in tree.list(&folder) {
            let words = ["fw_ver", "hca_type", "board_id"];
            let said = words.map(|word| tree.line(&format!("{folder}/{device}/{word}")));
            let said: Vec<String> =
                said.into_iter().flatten().filter(|word| !word.is_empty()).collect();
            if !said.is_empty() {
                found.push((topology::printable(&device), said.join(", ")));
            }
        }
    }
    found
}

/// The device file by which programs reach each adapter.
fn uverbs(tree: &dyn Tree) -> Vec<(Address, String)> {
    let mut found = Vec::new();
    for name in tree.list("/sys/bus/pci/devices") {
        let real = tree.real(&format!("/sys/bus/pci/devices/{name}"));
        let Ok(address) = name.parse() else { continue };
        let nodes = tree.list(&format!("{real}/infiniband_verbs")).into_iter();
        found.extend(nodes.map(|node| (address, topology::printable(&node))));
    }
    found
}

fn config(tree: &dyn Tree, release: &str) -> Option<(String, String)> {
    let file = format!("/boot/config-{release}");
    if let Some(bytes) = tree.read(&file) {
        return Some((file, String::from_utf8_lossy(&bytes).into_owned()));
    }
    let packed = tree.read("/proc/config.gz")?;
    let mut text = String::new();
    GzDecoder::new(&packed[..]).take(4 << 20).read_to_string(&mut text).ok()?;
    Some(("/proc/config.gz".to_owned(), text))
}

/// The `MLX5_1.x` versions that a library defines, in order of x. They stand in its string table.
fn symbol_versions(library: &[u8]) -> Vec<String> {
    const START: &[u8] = b"MLX5_1.";
    let mut minors: Vec<u32> = library
        .windows(START.len() + 3)
        .filter(|window| window.starts_with(START))
        .filter_map(|window| {
            let tail = &window[START.len()..];
            let digits = tail.iter().take_while(|byte| byte.is_ascii_digit()).count();
            std::str::from_utf8(&tail[..digits]).ok()?.parse().ok()
        })
        .collect();
    minors.sort_unstable();
    minors.dedup();
    minors.into_iter().map(|minor| format!("MLX5_1.{minor}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn symbol_versions_of_a_library() {
        let library = b"\0MLX5_1.0\0MLX5_1.25\0x\0MLX5_1.24\0MLX5_1.25\0      ";
        assert_eq!(symbol_versions(library), ["MLX5_1.0", "MLX5_1.24", "MLX5_1.25"]);
        assert!(symbol_versions(b"short").is_empty());
    }
}
