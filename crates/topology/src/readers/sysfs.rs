//! `/sys` and `/proc` of a machine, this one or a captured one
//! (Documentation/ABI/testing/sysfs-bus-pci).

use crate::Error;
use crate::model::assemble::{Device, assemble};
use crate::model::{build, config};
use crate::source::tree::Tree;
use pcie::{Cpu, Kernel, Link, Machine, Sockets};

const DEVICES: &str = "/sys/bus/pci/devices";

/// Reads a machine.
pub(crate) fn read(tree: &dyn Tree) -> Result<Machine, Error> {
    let nodes = Nodes::read(tree);
    let names = tree.list(DEVICES);
    build::few_enough("sysfs", names.len())?;
    let devices: Vec<Device> = names.iter().map(|name| device(tree, name, &nodes)).collect();
    let mut machine = assemble("sysfs", cpu(tree), nodes.count(), &devices)?;
    machine.set_sockets(nodes.sockets(tree));
    machine.set_kernel(release(tree).as_deref().and_then(Kernel::new));
    Ok(machine)
}

/// `uname -r` of the tree's machine.
pub fn release(tree: &dyn Tree) -> Option<String> {
    let version = || Some(tree.line("/proc/version")?.split_whitespace().nth(2)?.to_owned());
    tree.line("/proc/sys/kernel/osrelease").or_else(version)
}

fn device(tree: &dyn Tree, name: &str, nodes: &Nodes) -> Device {
    let path = tree.real(&format!("{DEVICES}/{name}"));
    let line = |attribute: &str| tree.line(&format!("{path}/{attribute}"));
    let hex = |attribute: &str| {
        let text = line(attribute)?;
        u32::from_str_radix(text.strip_prefix("0x").unwrap_or(&text), 16).ok()
    };
    let id = |attribute: &str| u16::try_from(hex(attribute)?).ok();
    let link = |which: &str| {
        parse_link(&line(&format!("{which}_link_speed"))?, &line(&format!("{which}_link_width"))?)
    };
    Device {
        config: tree.start(&format!("{path}/config"), 4096).unwrap_or_default(),
        id: id("vendor").zip(id("device")),
        class: hex("class"),
        numa_node: line("numa_node")
            .and_then(|node| node.parse().ok())
            .or_else(|| nodes.holding(&line("local_cpus")?)),
        iommu_group: tree.link_name(&format!("{path}/iommu_group")).and_then(|n| n.parse().ok()),
        driver: tree.link_name(&format!("{path}/driver")),
        interfaces: interfaces(tree, &path),
        link: link("current"),
        best_link: link("max"),
        largest_bar_bytes: tree
            .start(&format!("{path}/resource"), 4096)
            .and_then(|text| largest_bar(&String::from_utf8_lossy(&text))),
        memory_bytes: line("mem_info_vram_total").and_then(|bytes| bytes.parse().ok()),
        vuid: tree.start(&format!("{path}/vpd"), 1 << 15).and_then(|vpd| config::vpd(&vpd, b"VU")),
        virtual_of: tree.link_name(&format!("{path}/physfn")).and_then(|at| at.parse().ok()),
        path,
    }
}

/// What drivers made of a device, RDMA devices first.
fn interfaces(tree: &dyn Tree, path: &str) -> Vec<String> {
    let mut names = Vec::new();
    for class in ["infiniband", "net", "drm", "nvme", "mem"] {
        let of = tree.list(&format!("{path}/{class}"));
        names.extend(of.into_iter().filter(|name| class != "drm" || name.starts_with("card")));
    }
    names
}

/// A link as sysfs and NCCL write it: `16.0 GT/s PCIe` and `16`. Unknown speeds and widths are 0,
/// 63, 255 or words.
pub(crate) fn parse_link(speed: &str, width: &str) -> Option<Link> {
    let speed_gts = speed.split_whitespace().next()?.trim_end_matches("GT/s").parse().ok()?;
    Link::lanes(speed_gts, width.trim_start_matches('x').parse().ok()?).ok()
}

/// The largest of the six memory BARs: a line of `resource` is start, end and flags.
fn largest_bar(text: &str) -> Option<u64> {
    const IORESOURCE_MEM: u64 = 0x200;
    text.lines()
        .take(6)
        .filter_map(|line| {
            let mut numbers = line
                .split_whitespace()
                .map(|n| u64::from_str_radix(n.trim_start_matches("0x"), 16).ok());
            let (start, end, flags) = (numbers.next()??, numbers.next()??, numbers.next()??);
            (flags & IORESOURCE_MEM != 0).then(|| end.checked_sub(start)?.checked_add(1))?
        })
        .max()
}

/// The NUMA nodes and their processors.
struct Nodes {
    /// Node number and `cpumap` as words, the lowest first.
    maps: Vec<(u32, Vec<u32>)>,
    known: bool,
}

impl Nodes {
    fn read(tree: &dyn Tree) -> Nodes {
        let names = tree.list("/sys/devices/system/node");
        let number = |name: &str| name.strip_prefix("node")?.parse::<u32>().ok();
        let maps: Vec<(u32, Vec<u32>)> = names
            .iter()
            .filter_map(|name| {
                let map = tree.line(&format!("/sys/devices/system/node/{name}/cpumap"));
                Some((number(name)?, mask(&map.unwrap_or_default())))
            })
            .collect();
        Nodes { known: !maps.is_empty(), maps }
    }

    /// How many there are that have processors; memory alone (a GPU's, CXL) holds no device.
    fn count(&self) -> Option<u32> {
        let with_processors =
            self.maps.iter().filter(|(_, map)| map.iter().any(|&word| word != 0)).count();
        self.known.then(|| u32::try_from(with_processors).ok())?
    }

    /// Which node is in which socket, by its first processor, and firmware's distances.
    fn sockets(&self, tree: &dyn Tree) -> Sockets {
        let mut sockets = Sockets::default();
        let mut numbers: Vec<u32> = self.maps.iter().map(|(node, _)| *node).collect();
        numbers.sort_unstable();
        for (node, map) in &self.maps {
            let word = map.iter().position(|&word| word != 0);
            let processor = word.map(|at| at as u32 * 32 + map[at].trailing_zeros());
            let package = processor.and_then(|number| {
                let folder = format!("/sys/devices/system/cpu/cpu{number}/topology");
                tree.line(&format!("{folder}/physical_package_id"))?.parse().ok()
            });
            sockets.of_node.extend(package.map(|package| (*node, package)));
            let distances = tree.line(&format!("/sys/devices/system/node/node{node}/distance"));
            let distances = distances.unwrap_or_default();
            let distances = distances.split_whitespace().map_while(|word| word.parse().ok());
            sockets.distances.extend(numbers.iter().map(|to| (*node, *to)).zip(distances));
        }
        sockets
    }

    /// The one node that has all processors of a map.
    fn holding(&self, map: &str) -> Option<u32> {
        let wanted = mask(map);
        wanted.iter().any(|&word| word != 0).then_some(())?;
        let inside = |node: &Vec<u32>| {
            wanted
                .iter()
                .enumerate()
                .all(|(i, word)| word & !node.get(i).copied().unwrap_or(0) == 0)
        };
        Some(self.maps.iter().find(|(_, map)| inside(map))?.0)
    }
}

/// A processor map, `00000000,000000ff`, as words with the lowest first.
fn mask(text: &str) -> Vec<u32> {
    text.split(',').rev().map(|word| u32::from_str_radix(word.trim(), 16).unwrap_or(0)).collect()
}

/// The processor by `/proc/cpuinfo`. Other architectures have no such line and are on no list of
/// P2PDMA's by processor.
pub(crate) fn cpu(tree: &dyn Tree) -> Option<Cpu> {
    let bytes = tree.read("/proc/cpuinfo")?;
    let text = String::from_utf8_lossy(&bytes);
    let first: Vec<(&str, &str)> = text
        .lines()
        .take_while(|line| !line.trim().is_empty())
        .filter_map(|line| line.split_once(':'))
        .map(|(key, value)| (key.trim(), value.trim()))
        .collect();
    let value = |key: &str| first.iter().find(|(k, _)| *k == key).map(|(_, v)| *v);
    match (value("vendor_id"), value("cpu family")) {
        (Some(vendor), Some(family)) => {
            Some(Cpu { vendor: vendor.to_owned(), family: family.parse().ok()? })
        }
        _ if first.is_empty() => None,
        _ => {
            let vendor = value("CPU implementer").or_else(|| value("cpu")).unwrap_or("other");
            Some(Cpu { vendor: vendor.to_owned(), family: 0 })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    /// Files, and links by their target.
    #[derive(Default)]
    struct Fake(BTreeMap<String, Result<Vec<u8>, String>>);

    impl Fake {
        fn put(&mut self, path: &str, content: &[u8]) {
            self.0.insert(path.into(), Ok(content.to_vec()));
        }
        fn put_link(&mut self, path: &str, target: &str) {
            self.0.insert(path.into(), Err(target.into()));
        }
    }

    impl Tree for Fake {
        fn read(&self, path: &str) -> Option<Vec<u8>> {
            self.0.get(path)?.as_ref().ok().cloned()
        }
        fn list(&self, path: &str) -> Vec<String> {
            let start = format!("{path}/");
            let mut names: Vec<String> = self
                .0
                .keys()
                .filter_map(|p| Some(p.strip_prefix(&start)?.split('/').next()?.to_owned()))
                .collect();
            names.dedup();
            names
        }
        fn link(&self, path: &str) -> Option<String> {
            self.0.get(path)?.as_ref().err().cloned()
        }
        fn real(&self, path: &str) -> String {
            self.link(path).unwrap_or_else(|| path.to_owned())
        }
        fn start(&self, path: &str, most: usize) -> Option<Vec<u8>> {
            self.read(path).map(|bytes| bytes.into_iter().take(most).collect())
        }
        fn has_folder(&self, path: &str) -> bool {
            !self.list(path).is_empty()
        }
    }

    #[test]
    fn attributes_become_a_function() {
        let mut tree = Fake::default();
        let dir = "/sys/devices/pci0000:17/0000:17:00.0";
        let card = format!("{dir}/0000:18:00.0");
        tree.put_link(&format!("{DEVICES}/0000:17:00.0"), dir);
        tree.put_link(&format!("{DEVICES}/0000:18:00.0"), &card);
        tree.put(&format!("{dir}/class"), b"0x060400\n");
        tree.put(&format!("{dir}/vendor"), b"0x8086\n");
        tree.put(&format!("{dir}/device"), b"0x09a2\n");
        for (attribute, value) in [
            ("vendor", "0x15b3\n"),
            ("device", "0x1021\n"),
            ("class", "0x020700\n"),
            ("numa_node", "-1\n"),
            ("local_cpus", "00000000,0000ff00\n"),
            ("current_link_speed", "32.0 GT/s PCIe\n"),
            ("current_link_width", "16\n"),
            ("max_link_speed", "Unknown\n"),
            ("max_link_width", "255\n"),
            ("infiniband/mlx5_0/fw_ver", "28.1\n"),
            ("net/ib0/mtu", "4092\n"),
        ] {
            tree.put(&format!("{card}/{attribute}"), value.as_bytes());
        }
        tree.put(
            &format!("{card}/resource"),
            b"0x0000000000000000 0x0000000001ffffff 0x000000000014220c\n0x10 0x1f 0x101\n",
        );
        tree.put_link(&format!("{card}/driver"), "../../../bus/pci/drivers/mlx5_core");
        tree.put_link(&format!("{card}/iommu_group"), "../../../kernel/iommu_groups/35");
        tree.put("/sys/devices/system/node/node0/cpumap", b"000000ff\n");
        tree.put("/sys/devices/system/node/node1/cpumap", b"0000ff00\n");
        tree.put(
            "/proc/cpuinfo",
            b"processor : 0\nvendor_id : GenuineIntel\ncpu family : 6\n\nprocessor : 1\n",
        );
        let machine = read(&tree).unwrap();
        let hca = machine.function("0000:18:00.0".parse().unwrap()).unwrap();
        assert_eq!(hca.role, pcie::Role::Hca);
        assert_eq!(hca.id, Some((0x15b3, 0x1021)));
        assert_eq!(hca.numa_node, Some(1));
        assert_eq!(hca.iommu_group, Some(35));
        assert_eq!(hca.driver.as_deref(), Some("mlx5_core"));
        assert_eq!(hca.interfaces, ["mlx5_0", "ib0"]);
        assert_eq!(hca.bar_bytes, Some(0x200_0000));
        assert_eq!(hca.best_link, None);
        assert_eq!(hca.acs, pcie::Acs::Unknown);
        // the port did not say how its link runs, the card did
        let port = machine.function("0000:17:00.0".parse().unwrap()).unwrap();
        assert_eq!(port.kind, pcie::Kind::RootPort);
        assert_eq!(port.link, Link::lanes(32.0, 16).ok());
        assert_eq!(machine.hosts()[0].root_device, Some((0x8086, 0x09a2)));
        assert_eq!(machine.cpu().unwrap().family, 6);
    }

    #[test]
    fn nodes_tell_their_sockets_and_distances() {
        let mut tree = Fake::default();
        let node = "/sys/devices/system/node/node";
        // node 2 has memory alone; numbers need not be without gaps
        for (number, map, distance) in [
            (0, "00000000,0000000f\n", "10 21 17\n"),
            (1, "00000003,00000000\n", "21 10 28\n"),
            (2, "00000000,00000000\n", "17 28 10\n"),
        ] {
            tree.put(&format!("{node}{number}/cpumap"), map.as_bytes());
            tree.put(&format!("{node}{number}/distance"), distance.as_bytes());
        }
        for (processor, package) in [(0, "0\n"), (1, "7\n"), (32, "1\n"), (33, "7\n")] {
            let folder = format!("/sys/devices/system/cpu/cpu{processor}/topology");
            tree.put(&format!("{folder}/physical_package_id"), package.as_bytes());
        }
        let nodes = Nodes::read(&tree);
        let sockets = nodes.sockets(&tree);
        assert_eq!(sockets.of_node, [(0, 0), (1, 1)].into(), "by the first processor");
        assert_eq!(sockets.distances[&(0, 1)], 21);
        assert_eq!(sockets.distances[&(2, 1)], 28);
        assert_eq!(sockets.distances.len(), 9);
        assert_eq!(nodes.count(), Some(2));
    }

    #[test]
    fn links_as_people_write_them() {
        for (speed, width, expected) in [
            ("16.0 GT/s PCIe", "16", Link::lanes(16.0, 16).ok()),
            ("8 GT/s", "8", Link::lanes(8.0, 8).ok()),
            ("8GT/s", "x4", Link::lanes(8.0, 4).ok()),
            ("Unknown", "16", None),
            ("Unknown speed", "255", None),
            ("2.5 GT/s", "0", None),
            ("", "", None),
        ] {
            assert_eq!(parse_link(speed, width), expected, "{speed} {width}");
        }
    }
}
