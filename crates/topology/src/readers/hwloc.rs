//! hwloc's XML export (`lstopo x.xml`, hwloc 1 to 3).
//!
//! hwloc leaves out devices and bridges that nobody asked for, so a host bridge's first device is
//! seldom known, and keeps a link's rate only. The kind of a bridge follows from its place.

use crate::Error;
use crate::model::distinct::Distinct;
use crate::model::{build, kinds, roles};
use pcie::{
    Address, Below, Cpu, Function, GpuLink, GpuLinkEnd, GpuLinkKind, HostBridge, Kernel, Kind,
    Link, Machine, Shown, Sockets,
};
use roxmltree::Node;
use std::collections::HashMap;

const WHAT: &str = "hwloc XML";

/// What a file names the machine.
pub(crate) struct Hwloc {
    pub(crate) machine: Machine,
    pub(crate) name: Option<String>,
    pub(crate) notes: Vec<String>,
}

/// Reads a machine from the `topology` element.
pub(crate) fn read(topology: Node<'_, '_>) -> Result<Hwloc, Error> {
    let mut reader = Reader { nodes: nodes(topology), ..Reader::default() };
    reader.objects(topology, ObjectPosition { below: None, nodes: &[] })?;
    let Reader { mut hosts, mut functions, distinct, .. } = reader;
    let bridges: Vec<Address> =
        functions.iter().filter(|f| f.kind == Kind::Bridge).map(|f| f.address).collect();
    kinds::infer(&mut functions, &bridges);
    roles::assign(&mut functions);
    for (index, host) in hosts.iter_mut().enumerate() {
        let first = functions.iter().find(|f| {
            f.below == Below::Host(index) && (f.address.device, f.address.function) == (0, 0)
        });
        host.root_device = first.and_then(|f| f.id);
    }
    let cpu = info(topology, "CPUVendor").zip(info(topology, "CPUFamilyNumber"));
    let cpu = cpu.and_then(|(vendor, family)| {
        Some(Cpu { vendor: vendor.to_owned(), family: family.parse().ok()? })
    });
    let by_id = operating_devices(topology);
    let mut machine = build::machine(WHAT, cpu, hosts, functions)?;
    machine.set_kernel(info(topology, "OSRelease").and_then(Kernel::new));
    machine.set_sockets(sockets(topology));
    machine.set_gpu_links(gpu_links(topology, &by_id));
    let name = info(topology, "DMIProductName").or_else(|| info(topology, "HostName"));
    Ok(Hwloc { machine, name: name.map(str::to_owned), notes: distinct.notes })
}

fn info<'a>(topology: Node<'a, '_>, name: &str) -> Option<&'a str> {
    let mut infos = topology.descendants().filter(|node| node.has_tag_name("info"));
    infos.find(|info| info.attribute("name") == Some(name))?.attribute("value")
}

/// NUMA nodes of main memory; a GPU's memory is also shown as a node and holds no device.
fn nodes(topology: Node<'_, '_>) -> Vec<u32> {
    topology
        .descendants()
        .filter(|node| node.attribute("type") == Some("NUMANode"))
        .filter(|node| !node.attribute("subtype").is_some_and(|of| of.contains("GPU")))
        .filter_map(|node| node.attribute("os_index")?.parse().ok())
        .collect()
}

/// Devices of the operating system by hwloc's number, with the PCI function that they are of.
fn operating_devices(topology: Node<'_, '_>) -> HashMap<u64, Address> {
    let devices = topology.descendants().filter(|node| node.attribute("type") == Some("OSDev"));
    let entry = |device: Node<'_, '_>| {
        let number = device.attribute("gp_index")?.parse().ok()?;
        let function = device.ancestors().find(|node| node.attribute("type") == Some("PCIDev"))?;
        Some((number, function.attribute("pci_busid")?.parse().ok()?))
    };
    devices.filter_map(entry).collect()
}

/// A matrix of a file: what its rows are, and its values row by row.
fn matrices<'a>(topology: Node<'a, 'a>, name: &str) -> Vec<(Vec<String>, Vec<u64>)> {
    let of = |node: &Node<'_, '_>| {
        matches!(node.tag_name().name(), "distances2" | "distances2hetero")
            && node.attribute("name") == Some(name)
    };
    let words = |node: Node<'_, '_>, tag: &str| -> Vec<String> {
        let texts = node
            .children()
            .filter(|child| child.has_tag_name(tag))
            .filter_map(|child| child.text());
        texts.flat_map(str::split_whitespace).map(str::to_owned).collect()
    };
    let matrix = |node: Node<'_, '_>| {
        let values = words(node, "u64values")
            .iter()
            .map(|word| word.parse().ok())
            .collect::<Option<Vec<u64>>>();
        let rows = words(node, "indexes");
        let values = values.filter(|values| rows.len().checked_pow(2) == Some(values.len()))?;
        Some((rows, values))
    };
    topology.children().filter(of).filter_map(matrix).collect()
}

/// Bandwidths between GPUs, in MB/s.
fn gpu_links(topology: Node<'_, '_>, by_id: &HashMap<u64, Address>) -> Vec<GpuLink> {
    let mut links = Vec::new();
    for (name, kind) in
        [("NVLinkBandwidth", GpuLinkKind::NvLink), ("XGMIBandwidth", GpuLinkKind::Xgmi)]
    {
        for (rows, values) in matrices(topology, name) {
            let end = |row: &String| match row.split_once(':') {
                Some(("OSDev", number)) => {
                    by_id.get(&number.parse().ok()?).map(|at| GpuLinkEnd::Gpu(*at))
                }
                Some(("Package", _)) => Some(GpuLinkEnd::Processor),
                Some(_) => Some(GpuLinkEnd::Switch),
                None => by_id.get(&row.parse().ok()?).map(|at| GpuLinkEnd::Gpu(*at)),
            };
            for (from, row) in rows.iter().enumerate() {
                let Some(GpuLinkEnd::Gpu(at)) = end(row) else { continue };
                for (to, other) in rows.iter().enumerate().filter(|(to, _)| *to != from) {
                    let (rate, to) = (values[from * rows.len() + to], end(other));
                    let Some(to) = to.filter(|to| rate > 0 && *to != GpuLinkEnd::Gpu(at)) else {
                        continue;
                    };
                    let bytes_per_second = rate.checked_mul(1_000_000);
                    links.push(GpuLink { kind, from: at, to, count: None, bytes_per_second });
                }
            }
        }
    }
    links
}

/// Which node is in which package, and firmware's distances.
fn sockets(topology: Node<'_, '_>) -> Sockets {
    let mut sockets = Sockets::default();
    let number = |node: Node<'_, '_>| node.attribute("os_index")?.parse::<u32>().ok();
    for node in topology.descendants().filter(|node| node.attribute("type") == Some("NUMANode")) {
        let package = node.ancestors().find(|above| above.attribute("type") == Some("Package"));
        sockets.of_node.extend(number(node).zip(package.and_then(number)));
    }
    for (rows, values) in matrices(topology, "NUMALatency") {
        let node = |row: usize| rows[row].parse::<u32>().ok();
        for (at, value) in values.iter().enumerate() {
            let pair = node(at / rows.len()).zip(node(at % rows.len()));
            sockets.distances.extend(pair.zip(u32::try_from(*value).ok()));
        }
    }
    sockets
}

/// Where an object lies.
#[derive(Clone, Copy)]
struct ObjectPosition<'a> {
    below: Option<Below>,
    /// NUMA nodes of the nearest object that has some.
    nodes: &'a [u32],
}

#[derive(Default)]
struct Reader {
    nodes: Vec<u32>,
    hosts: Vec<HostBridge>,
    functions: Vec<Function>,
    distinct: Distinct,
}

impl Reader {
    fn objects(&mut self, parent: Node<'_, '_>, place: ObjectPosition<'_>) -> Result<(), Error> {
        for object in parent.children().filter(|node| node.has_tag_name("object")) {
            match object.attribute("type") {
                Some("Bridge") if object.attribute("pci_busid").is_none() => {
                    let buses = object.attribute("bridge_pci");
                    let shown = if buses.is_some() { Shown::Bridges } else { Shown::Switches };
                    let host = self.host(buses, shown, place.nodes);
                    let place = ObjectPosition { below: Some(Below::Host(host)), ..place };
                    self.objects(object, place)?;
                }
                Some("Bridge" | "PCIDev") => self.device(object, place)?,
                _ => {
                    let own = object.attribute("nodeset").map(|set| self.main_nodes(set));
                    let nodes = own.as_deref().unwrap_or(place.nodes);
                    self.objects(object, ObjectPosition { nodes, ..place })?;
                }
            }
        }
        Ok(())
    }

    /// The nodes of main memory in a set such as `0x00000001` or `0x1,,0x3`, the highest word
    /// first.
    fn main_nodes(&self, set: &str) -> Vec<u32> {
        let words: Vec<u32> = set
            .split(',')
            .rev()
            .map(|word| u32::from_str_radix(word.trim_start_matches("0x"), 16).unwrap_or(0))
            .collect();
        let holds = |node: &u32| {
            words.get(*node as usize / 32).is_some_and(|word| word & (1 << (node % 32)) != 0)
        };
        self.nodes.iter().copied().filter(holds).collect()
    }

    fn host(&mut self, buses: Option<&str>, shown: Shown, nodes: &[u32]) -> usize {
        // 0000:[2b-3b]
        let first = buses.and_then(|text| {
            let (domain, buses) = text.split_once(":[")?;
            Some(format!("pci{domain}:{}", buses.split_once('-')?.0))
        });
        let numa_node = match (nodes, &self.nodes[..]) {
            ([only], _) | (_, [only]) => Some(*only),
            _ => None,
        };
        self.hosts.push(HostBridge {
            shown,
            name: first.unwrap_or_else(|| "unknown host bridge".into()),
            numa_node,
            root_device: None,
        });
        self.hosts.len() - 1
    }

    fn device(&mut self, object: Node<'_, '_>, place: ObjectPosition<'_>) -> Result<(), Error> {
        let text = object.attribute("pci_busid").unwrap_or_default();
        let address: Address = text.parse().map_err(|error| {
            let line = object.document().text_pos_at(object.range().start).row;
            Error::malformed(WHAT, format!("line {line}: {error}"))
        })?;
        let address = self.distinct.take(address);
        let bridge = object.attribute("type") == Some("Bridge");
        let below = match place.below {
            Some(below) => below,
            // bridges were left out of the file
            None => Below::Host(self.host(None, Shown::Nothing, place.nodes)),
        };
        let (class, id) = object.attribute("pci_type").map_or((None, None), class_and_id);
        let rate = object.attribute("pci_link_speed").and_then(|rate| rate.parse::<f64>().ok());
        let rate = rate.filter(|&rate| rate > 0.0 && rate < 1e6);
        let systems = object.children().filter(|child| child.attribute("type") == Some("OSDev"));
        let names: Vec<String> =
            systems.filter_map(|os| os.attribute("name").map(str::to_owned)).collect();
        self.functions.push(Function {
            class,
            id,
            link: rate.map(|rate| Link::Rate { bytes_per_second: (rate * 1e9) as u64 }),
            index: names.iter().find_map(|name| index(name)),
            interfaces: names,
            ..Function::new(address, if bridge { Kind::Bridge } else { Kind::Endpoint }, below)
        });
        self.objects(object, ObjectPosition { below: Some(Below::Port(address)), ..place })
    }
}

/// The number in a name that a vendor's library gave: `nvml3`, `rsmi3`.
fn index(name: &str) -> Option<u32> {
    let libraries = ["nvml", "rsmi"];
    libraries.iter().find_map(|library| name.strip_prefix(library)?.parse().ok())
}

/// `0604 [8086:2030] [8086:0000] 04 00`: class, id, subsystem, revision, programming interface.
fn class_and_id(text: &str) -> (Option<u32>, Option<(u16, u16)>) {
    let mut parts = text.split_whitespace();
    let class = parts.next().and_then(|class| u32::from_str_radix(class, 16).ok());
    let id = parts.next().and_then(|id| {
        let (vendor, device) = id.trim_matches(['[', ']']).split_once(':')?;
        Some((u16::from_str_radix(vendor, 16).ok()?, u16::from_str_radix(device, 16).ok()?))
    });
    (class.map(|class| class << 8), id)
}

#[cfg(test)]
mod tests {
    use super::*;
    use pcie::{Label, Role, labels};

    const FILE: &str = concat!(
        r#"<topology version="2.0"><object type="Machine" nodeset="0x8000,,,,,,,0x3">
      <info name="DMIProductName" value="Box"/><info name="CPUVendor" value="GenuineIntel"/>"#,
        r#"<info name="CPUFamilyNumber" value="6"/>
      <object type="Package" nodeset="0x8000,,,,,,,0x1">"#,
        r#"<object type="NUMANode" os_index="0" nodeset="0x1"/>
       <object type="NUMANode" os_index="239" subtype="GPUMemory"/>
       <object type="Bridge" bridge_type="0-1" bridge_pci="0000:[17-3b]">
        <object type="Bridge" bridge_type="1-1" pci_busid="0000:17:00.0" "#,
        r#"pci_type="0604 [8086:2030] [8086:0000] 04 00" pci_link_speed="15.753846">
         <object type="PCIDev" pci_busid="0000:18:00.0" "#,
        r#"pci_type="0302 [10de:20b0] [10de:1234] a1 00" pci_link_speed="15.753846">
          <object type="OSDev" name="cuda0" osdev_type="5"/></object></object>
        <object type="Bridge" bridge_type="1-1" pci_busid="0000:17:02.0" "#,
        r#"pci_type="0604 [8086:2031] [8086:0000] 04 00" pci_link_speed="0.000000">
         <object type="PCIDev" pci_busid="0000:19:00.0" "#,
        r#"pci_type="0207 [15b3:101b] [15b3:0007] 00 00"/></object></object></object>
      <object type="Package" nodeset="0x2">"#,
        r#"<object type="NUMANode" os_index="1" nodeset="0x2"/></object>
      <object type="Bridge" bridge_type="0-1" bridge_pci="0000:[80-81]">
        <object type="PCIDev" pci_busid="0000:80:04.0" "#,
        r#"pci_type="0207 [15b3:101b] [15b3:0007] 00 00"/></object>
    </object></topology>"#
    );

    #[test]
    fn objects_become_functions() {
        let file = roxmltree::Document::parse(FILE).unwrap();
        let Hwloc { machine, name, .. } = read(file.root_element()).unwrap();
        assert_eq!(name.as_deref(), Some("Box"));
        let of = |at: &str| machine.function(at.parse().unwrap()).unwrap();
        let gpu = of("18:00.0");
        assert_eq!(
            (gpu.role, gpu.id, gpu.class),
            (Role::Gpu, Some((0x10de, 0x20b0)), Some(0x030200))
        );
        assert_eq!(gpu.interfaces, ["cuda0"]);
        assert_eq!(gpu.link.unwrap().bytes_per_second(), 15_753_846_000);
        assert_eq!(of("17:00.0").kind, Kind::RootPort);
        assert_eq!(of("17:02.0").link, None);
        assert_eq!(machine.hosts()[0].name, "pci0000:17");
        assert_eq!(machine.hosts()[0].root_device, Some((0x8086, 0x2030)));
        assert_eq!(machine.hosts()[1].root_device, None);
        // a GPU's memory is no place for a device, and a bridge below the machine may be on either
        // node
        assert_eq!(machine.numa_node_of(gpu), Some(0));
        assert_eq!(machine.numa_node_of(of("80:04.0")), None);
        assert_eq!(labels(&machine, gpu, of("19:00.0")), [Label::Phb]);
        assert_eq!(labels(&machine, gpu, of("80:04.0")), [Label::Node, Label::Sys]);
    }

    /// Two packages with two GPUs that NVLink connects, one of them through a switch too.
    const LINKED: &str = concat!(
        r#"<topology version="2.0"><object type="Machine">
      <info name="OSRelease" value="6.18.2-local"/>
      <object type="Package" os_index="0"><object type="NUMANode" os_index="0"/>
       <object type="Bridge" bridge_type="0-1" bridge_pci="0000:[17-3b]">
        <object type="PCIDev" pci_busid="0000:18:00.0" "#,
        r#"pci_type="0302 [10de:20b0] [10de:1234] a1 00">
         <object type="OSDev" name="nvml0" gp_index="41"/></object></object></object>
      <object type="Package" os_index="1"><object type="NUMANode" os_index="1"/>
       <object type="Bridge" bridge_type="0-1" bridge_pci="0000:[80-9b]">
        <object type="PCIDev" pci_busid="0000:81:00.0" "#,
        r#"pci_type="0302 [10de:20b0] [10de:1234] a1 00">
         <object type="OSDev" name="nvml1" gp_index="42"/></object></object></object></object>
      <distances2 type="NUMANode" nbobjs="2" kind="5" name="NUMALatency" indexing="os">
       <indexes length="4">0 1 </indexes>"#,
        r#"<u64values length="12">10 21 22 10 </u64values></distances2>
      <distances2hetero nbobjs="4" kind="9" name="NVLinkBandwidth" indexing="gp">
       <indexes length="40">OSDev:41 OSDev:42 Group:7 Package:3 </indexes>
       <u64values length="70">1000000 50000 25000 0  50000 1000000 0 900000</u64values>
       <u64values length="30">25000 0 1000000 0  0 900000 0 1000000</u64values></distances2hetero>
      <distances2 type="NUMANode" nbobjs="2" kind="5" name="NUMALatency" indexing="os">
       <indexes length="4">0 1 </indexes><u64values length="12">11 </u64values></distances2>
    </topology>"#
    );

    #[test]
    fn what_connects_gpus_and_sockets_is_read() {
        let file = roxmltree::Document::parse(LINKED).unwrap();
        let machine = read(file.root_element()).unwrap().machine;
        let (first, second): (Address, Address) =
            ("18:00.0".parse().unwrap(), "81:00.0".parse().unwrap());
        let link = |from, to, rate| GpuLink {
            kind: GpuLinkKind::NvLink,
            from,
            to,
            count: None,
            bytes_per_second: Some(rate),
        };
        assert_eq!(
            machine.gpu_links(),
            [
                link(first, GpuLinkEnd::Gpu(second), 50_000_000_000),
                link(first, GpuLinkEnd::Switch, 25_000_000_000),
                link(second, GpuLinkEnd::Gpu(first), 50_000_000_000),
                link(second, GpuLinkEnd::Processor, 900_000_000_000),
            ]
        );
        let expected = Sockets {
            of_node: [(0, 0), (1, 1)].into(),
            // a matrix whose size is not that of its rows is none
            distances: [((0, 0), 10), ((0, 1), 21), ((1, 0), 22), ((1, 1), 10)].into(),
        };
        assert_eq!(machine.sockets(), &expected);
        assert_eq!(machine.kernel(), Kernel::new("6.18.2-local").as_ref());
        let indices: Vec<_> = machine.functions().filter_map(|f| f.index).collect();
        assert_eq!(indices, [0, 1]);
    }

    #[test]
    fn a_file_without_devices_is_a_machine_without() {
        let file =
            roxmltree::Document::parse(r#"<topology><object type="Machine"/></topology>"#).unwrap();
        assert_eq!(read(file.root_element()).unwrap().machine.functions().count(), 0);
        let broken = "<topology>\n<object type=\"PCIDev\" pci_busid=\"x\"/></topology>";
        let file = roxmltree::Document::parse(broken).unwrap();
        let error = read(file.root_element()).err().unwrap().to_string();
        assert!(error.contains("line 2"), "{error}");
    }
}
