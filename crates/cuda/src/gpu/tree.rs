//! What the tree says of the platform's GPUs (`PEERDMA_SYSFS`; `sysfs::drm_entries` wrote it).
//! Nodes of the machine's own lie outside of the tree and are left out.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// Names the folder of the tree.
const ROOT: &str = "PEERDMA_SYSFS";

/// A function's place on the PCI bus.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Address {
    /// Domain (segment).
    pub domain: u32,
    /// Bus.
    pub bus: u8,
    /// Device, below 32.
    pub device: u8,
    /// Function, below 8.
    pub function: u8,
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Address { domain, bus, device, function } = self;
        write!(f, "{domain:04x}:{bus:02x}:{device:02x}.{function:x}")
    }
}

impl FromStr for Address {
    type Err = ();

    /// `domain:bus:device.function`, or without domain or function, which are 0 then.
    fn from_str(text: &str) -> Result<Address, ()> {
        let (place, function) = text.rsplit_once('.').unwrap_or((text, "0"));
        let parts: Vec<&str> = place.split(':').collect();
        let (domain, bus, device) = match parts.as_slice() {
            [domain, bus, device] => (*domain, *bus, *device),
            [bus, device] => ("0", *bus, *device),
            _ => return Err(()),
        };
        let hex = |text: &str| u32::from_str_radix(text, 16).map_err(drop);
        let byte = |text: &str, most: u32| match hex(text)? {
            value if value <= most => Ok(value as u8),
            _ => Err(()),
        };
        Ok(Address {
            domain: hex(domain)?,
            bus: byte(bus, 255)?,
            device: byte(device, 31)?,
            function: byte(function, 7)?,
        })
    }
}

/// A GPU as the tree shows it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Found {
    /// Its number among all, in the order of their addresses.
    pub number: u32,
    /// Its place.
    pub address: Address,
    /// The bridges above it, root port first.
    pub bridges: Vec<Address>,
    /// Name on the platform.
    pub name: String,
    /// The node that programs open.
    pub node: PathBuf,
    /// Bytes of memory.
    pub memory_bytes: u64,
    /// Bytes of it that peers reach.
    pub bar_bytes: u64,
    /// NUMA node, −1 when the machine does not say.
    pub numa_node: i32,
    /// Vendor and device id.
    pub id: (u16, u16),
    /// Subsystem's vendor and device id.
    pub subsystem: (u16, u16),
    /// Link speed in GT/s, rounded down, and its lanes; 0 where the machine does not say.
    pub link: (u32, u32),
}

/// The GPUs in the order of their addresses; none without a tree.
pub fn found() -> Vec<Found> {
    std::env::var_os(ROOT).map(|root| found_below(Path::new(&root))).unwrap_or_default()
}

fn found_below(root: &Path) -> Vec<Found> {
    let Ok(root) = root.canonicalize() else { return Vec::new() };
    let nodes = fs::read_dir(root.join("class/drm")).into_iter().flatten().flatten();
    let render = nodes.filter(|node| node.file_name().to_string_lossy().starts_with("renderD"));
    let found = render.filter_map(|node| {
        let directory = node.path().canonicalize().ok().filter(|path| path.starts_with(&root))?;
        // <function>/drm/renderD128
        let function = directory.ancestors().nth(2)?;
        read(function, Path::new("/dev/dri").join(node.file_name()))
    });
    let by_address: BTreeMap<Address, Found> = found.map(|gpu| (gpu.address, gpu)).collect();
    (0..).zip(by_address.into_values()).map(|(number, gpu)| Found { number, ..gpu }).collect()
}

fn read(function: &Path, node: PathBuf) -> Option<Found> {
    let name_of = |path: &Path| path.file_name()?.to_str()?.parse().ok();
    let text = |file: &str| {
        let text = fs::read_to_string(function.join(file)).ok()?;
        Some(text.trim().to_owned())
    };
    let decimal = |file: &str| text(file)?.parse::<u64>().ok();
    let hex = |file: &str| u16::from_str_radix(text(file)?.strip_prefix("0x")?, 16).ok();
    let speed = text("current_link_speed").and_then(|speed| {
        let whole = speed.split(['.', ' ']).next()?.parse::<u32>();
        whole.ok()
    });
    let mut bridges: Vec<Address> = function.ancestors().skip(1).map_while(name_of).collect();
    bridges.reverse();
    let memory_bytes = decimal("mem_info_vram_total")?;
    Some(Found {
        number: 0,
        address: name_of(function)?,
        bridges,
        name: text("product_name")?,
        node,
        memory_bytes,
        bar_bytes: decimal("mem_info_vis_vram_total").unwrap_or(memory_bytes),
        numa_node: text("numa_node").and_then(|node| node.parse().ok()).unwrap_or(-1),
        id: (hex("vendor").unwrap_or(0), hex("device").unwrap_or(0)),
        subsystem: (hex("subsystem_vendor").unwrap_or(0), hex("subsystem_device").unwrap_or(0)),
        link: (speed.unwrap_or(0), decimal("current_link_width").unwrap_or(0) as u32),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn addresses_are_read_with_and_without_domain_and_function() {
        let full: Address = "0001:9a:1f.7".parse().unwrap();
        assert_eq!(full.to_string(), "0001:9a:1f.7");
        assert_eq!("9a:0".parse::<Address>().unwrap().to_string(), "0000:9a:00.0");
        for wrong in ["", "1", "0:0:20.0", "0:100:0", "0:0:0.8", "a:b:c:d", "pci0000:00"] {
            assert!(wrong.parse::<Address>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn gpus_of_the_tree_are_found_and_others_are_not() {
        let root = std::env::temp_dir().join(format!("peerdma-cuda-tree-{}", std::process::id()));
        let function = root.join("devices/pci0000:15/0000:15:01.0/0000:1a:00.0");
        for (file, text) in [
            ("drm/renderD129/dev", "226:129\n"),
            ("mem_info_vram_total", "4096\n"),
            ("mem_info_vis_vram_total", "1024\n"),
            ("product_name", "gpu0\n"),
            ("numa_node", "1\n"),
            ("vendor", "0xf0f0\n"),
            ("device", "0x0100\n"),
            ("current_link_speed", "32.0 GT/s PCIe\n"),
            ("current_link_width", "16\n"),
        ] {
            let path = function.join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        fs::create_dir_all(root.join("class/drm")).unwrap();
        let link = |name: &str, to: &Path| symlink(to, root.join("class/drm").join(name)).unwrap();
        link("renderD129", &function.join("drm/renderD129"));
        link("renderD128", Path::new("/proc"));
        link("card1", &function.join("drm/renderD129"));
        let found = found_below(&root);
        fs::remove_dir_all(&root).unwrap();
        let [gpu] = found.try_into().unwrap();
        assert_eq!(gpu.address.to_string(), "0000:1a:00.0");
        assert_eq!(gpu.bridges, ["0000:15:01.0".parse().unwrap()]);
        assert_eq!(gpu.node, Path::new("/dev/dri/renderD129"));
        assert_eq!((gpu.memory_bytes, gpu.bar_bytes, gpu.numa_node), (4096, 1024, 1));
        assert_eq!((gpu.id, gpu.subsystem, gpu.link), ((0xf0f0, 0x100), (0, 0), (32, 16)));
    }
}
