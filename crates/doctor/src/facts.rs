//! What a host says of itself, read once.

use crate::Probe;
use flate2::read::GzDecoder;
use std::fmt;
use std::io::Read;
use topology::Tree;

/// A kernel's version, as far as conditions ask.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Version(pub u32, pub u32);

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.0, self.1)
    }
}

/// What a host says of itself. `None` is unknown.
#[derive(Clone, Debug, Default)]
pub struct Facts {
    /// Whether the source is a live or captured `/sys`: then what is absent there is absent.
    pub(crate) sysfs: bool,
    /// `uname -r`.
    pub release: Option<String>,
    /// Its version.
    pub version: Option<Version>,
    /// The kernel's configuration, and the file it is in.
    config: Option<(String, String)>,
    /// The kernel's command line.
    pub(crate) command_line: Option<String>,
    /// Loaded modules.
    modules: Option<Vec<String>>,
    /// Clients in `/sys/kernel/mm/memory_peers`; `None` if there is no such directory.
    pub(crate) memory_peers: Option<Vec<String>>,
    /// `/proc/driver/nvidia/version`, first line.
    pub(crate) nvidia: Option<String>,
    /// Versions of symbols in libmlx5, newest last, and the file.
    pub(crate) libmlx5: Option<(String, Vec<String>)>,
    /// What the host's RDMA devices answered, where they were asked.
    pub probes: Vec<Probe>,
    /// Whether the software HCA proved itself, or why it could not; `None` if it was not asked to.
    pub software_hca: Option<Result<(), String>>,
    /// IOMMU group types by number.
    iommu_types: Vec<(u32, String)>,
}

/// Where distributions keep rdma-core's libmlx5.
const LIBRARIES: [&str; 5] = [
    "/usr/lib/x86_64-linux-gnu/libmlx5.so.1",
    "/usr/lib/aarch64-linux-gnu/libmlx5.so.1",
    "/usr/lib64/libmlx5.so.1",
    "/usr/lib/libmlx5.so.1",
    "/lib64/libmlx5.so.1",
];

impl Facts {
    /// Reads a tree.
    pub fn read(tree: &dyn Tree) -> Facts {
        let release = tree
            .line("/proc/sys/kernel/osrelease")
            .or_else(|| Some(tree.line("/proc/version")?.split_whitespace().nth(2)?.to_owned()));
        let numbered = |name: String| {
            let kind = tree.line(&format!("/sys/kernel/iommu_groups/{name}/type"))?;
            Some((name.parse().ok()?, kind))
        };
        let groups = tree.list("/sys/kernel/iommu_groups");
        Facts {
            sysfs: !tree.list("/sys/bus/pci/devices").is_empty(),
            version: release.as_deref().and_then(version),
            config: release.as_deref().and_then(|release| config(tree, release)),
            command_line: tree.line("/proc/cmdline"),
            modules: tree.read("/proc/modules").map(|bytes| {
                let text = String::from_utf8_lossy(&bytes).into_owned();
                let names = text.lines().filter_map(|line| line.split(' ').next());
                names.map(str::to_owned).collect()
            }),
            memory_peers: tree
                .list("/sys/kernel/mm")
                .iter()
                .any(|name| name == "memory_peers")
                .then(|| tree.list("/sys/kernel/mm/memory_peers")),
            nvidia: tree.line("/proc/driver/nvidia/version"),
            libmlx5: LIBRARIES
                .iter()
                .find_map(|path| Some(((*path).to_owned(), symbol_versions(&tree.read(path)?)))),
            iommu_types: groups.into_iter().filter_map(numbered).collect(),
            release,
            probes: Vec::new(),
            software_hca: None,
        }
    }

    /// Whether a module is loaded. One that is built in is not listed.
    pub(crate) fn module(&self, name: &str) -> Option<bool> {
        Some(self.modules.as_ref()?.iter().any(|module| module == name))
    }

    /// A setting of the kernel's configuration: `Some(Some("y"))`, `Some(None)` if it is not set, `None` if not known.
    pub(crate) fn config(&self, name: &str) -> Option<Option<&str>> {
        let (_, text) = self.config.as_ref()?;
        let start = format!("CONFIG_{name}=");
        Some(text.lines().find_map(|line| line.strip_prefix(start.as_str())))
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

/// `6.12.48+deb13-amd64`
fn version(release: &str) -> Option<Version> {
    let mut numbers = release.split(['.', '-', '+', '_']);
    Some(Version(numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
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
    fn versions_of_distributions() {
        for (release, expected) in [
            ("6.12.48+deb13-amd64", Some(Version(6, 12))),
            ("5.14.0-427.el9.x86_64", Some(Version(5, 14))),
            ("7.2", Some(Version(7, 2))),
            ("6.8.0-1015-nvidia-64k", Some(Version(6, 8))),
            ("next", None),
            ("", None),
        ] {
            assert_eq!(version(release), expected, "{release}");
        }
        assert!(Version(6, 9) < Version(6, 12) && Version(6, 18) < Version(7, 0));
    }

    #[test]
    fn symbol_versions_of_a_library() {
        let library = b"\0MLX5_1.0\0MLX5_1.25\0x\0MLX5_1.24\0MLX5_1.25\0      ";
        assert_eq!(symbol_versions(library), ["MLX5_1.0", "MLX5_1.24", "MLX5_1.25"]);
        assert!(symbol_versions(b"short").is_empty());
    }
}
