//! NCCL's and RCCL's topology XML (`NCCL_TOPO_DUMP_FILE`, `NCCL_TOPO_FILE`; NCCL's
//! `src/graph/xml.cc`).
//!
//! NCCL keeps one element for a whole switch and none for root ports, and puts everything below a
//! processor, so host bridges are not known. Files for virtual machines are written by hand and may
//! show a tree that is not there.

use super::sysfs::parse_link;
use crate::Error;
use crate::model::distinct::Distinct;
use crate::model::{build, roles};
use pcie::{
    Address, Below, Cpu, Function, GpuLink, GpuLinkEnd, GpuLinkKind, HostBridge, Kind, Machine,
    Role, Shown,
};
use roxmltree::Node;

const WHAT: &str = "NCCL topology XML";

/// Reads a machine from the `system` element.
pub(crate) fn read(system: Node<'_, '_>) -> Result<(Machine, Vec<String>), Error> {
    let mut hosts = Vec::new();
    let mut found = Found::default();
    let mut cpu = None;
    for socket in system.children().filter(|node| node.has_tag_name("cpu")) {
        cpu = cpu.or_else(|| processor(socket));
        let numa_node = number(socket, "numaid");
        let index = hosts.len();
        hosts.push(HostBridge {
            name: format!("processor {}", socket.attribute("numaid").unwrap_or("?")),
            shown: Shown::Switches,
            numa_node,
            root_device: None,
        });
        found.devices(socket, Below::Host(index))?;
    }
    let Found { mut functions, distinct, links, direct } = found;
    let given: Vec<Role> = functions.iter().map(|f: &Function| f.role).collect();
    roles::assign(&mut functions);
    for (function, role) in functions.iter_mut().zip(given) {
        if role != Role::Other {
            function.role = role;
        }
    }
    let mut machine = build::machine(WHAT, cpu, hosts, functions)?;
    machine.set_gpu_links(links);
    let mut notes = distinct.notes;
    let (able, all) = (direct.iter().filter(|able| **able).count(), direct.len());
    if all > 0 {
        notes.push(format!("NCCL found GPUDirect RDMA at {able} of {all} network devices"));
    }
    Ok((machine, notes))
}

#[derive(Default)]
struct Found {
    functions: Vec<Function>,
    distinct: Distinct,
    links: Vec<GpuLink>,
    /// Whether NCCL found each network device able of GPUDirect RDMA.
    direct: Vec<bool>,
}

impl Found {
    fn devices(&mut self, parent: Node<'_, '_>, below: Below) -> Result<(), Error> {
        for node in parent.children().filter(|node| node.has_tag_name("pci")) {
            let text = node.attribute("busid").unwrap_or_default();
            let address: Address = text.parse().map_err(|error| {
                let line = node.document().text_pos_at(node.range().start).row;
                Error::malformed(WHAT, format!("line {line}: {error}"))
            })?;
            let address = self.distinct.take(address);
            self.functions.push(function(node, address, below));
            self.links.extend(links(node, address));
            let nets = node.descendants().filter(|net| net.has_tag_name("net"));
            let nets =
                nets.filter(|net| net.ancestors().find(|n| n.has_tag_name("pci")) == Some(node));
            self.direct.extend(nets.filter_map(|net| Some(net.attribute("gdr")? == "1")));
            self.devices(node, Below::Port(address))?;
        }
        Ok(())
    }
}

/// A GPU's links beside PCIe.
fn links(node: Node<'_, '_>, from: Address) -> Vec<GpuLink> {
    let gpus = node.children().filter(|child| child.has_tag_name("gpu"));
    let link = |link: Node<'_, '_>| {
        let kind = match link.tag_name().name() {
            "nvlink" => GpuLinkKind::NvLink,
            "xgmi" => GpuLinkKind::Xgmi,
            "c2c" => GpuLinkKind::C2c,
            _ => return None,
        };
        let class = hex(link, "tclass").map(|class| class >> 8);
        let to = match (kind, class) {
            (GpuLinkKind::C2c, _) => GpuLinkEnd::Processor,
            // a bridge of another kind than PCI's is a switch of NVLink, POWER's processors show as
            // host bridge or PCI bridge
            (_, Some(0x0680)) => GpuLinkEnd::Switch,
            (_, Some(0x0600 | 0x0604)) => GpuLinkEnd::Processor,
            _ => GpuLinkEnd::Gpu(link.attribute("target")?.parse().ok()?),
        };
        Some(GpuLink { kind, from, to, count: number(link, "count"), bytes_per_second: None })
    };
    gpus.flat_map(|gpu| gpu.children()).filter_map(link).collect()
}

fn function(node: Node<'_, '_>, address: Address, below: Below) -> Function {
    let class = hex(node, "class");
    let child = |name: &str| node.children().find(|child| child.has_tag_name(name));
    let switch = class.map(|class| class >> 8) == Some(0x0604) || child("pci").is_some();
    let vendor = hex(node, "vendor").and_then(|id| u16::try_from(id).ok());
    let device = hex(node, "device").and_then(|id| u16::try_from(id).ok());
    // files that people wrote have ids of nobody
    let id = vendor.zip(device).filter(|&(vendor, _)| vendor != 0 && vendor != 0xffff);
    let nets = child("nic").into_iter().flat_map(|nic| nic.children());
    let nets = nets.filter(|net| net.has_tag_name("net")).filter_map(|net| net.attribute("name"));
    let link = node.attribute("link_speed").zip(node.attribute("link_width"));
    Function {
        id,
        class,
        role: match () {
            () if child("gpu").is_some() => Role::Gpu,
            () if child("nic").is_some() => Role::Hca,
            () => Role::Other,
        },
        index: child("gpu").and_then(|gpu| number(gpu, "dev")),
        link: link.and_then(|(speed, width)| parse_link(speed, width)),
        interfaces: nets.map(str::to_owned).collect(),
        ..Function::new(address, if switch { Kind::SwitchUpstream } else { Kind::Endpoint }, below)
    }
}

/// NCCL writes family + 16 * extended family; CPUID's rule adds the extended one to family 15 only.
fn processor(socket: Node<'_, '_>) -> Option<Cpu> {
    let family = number(socket, "familyid")?;
    let family = if family & 0xf == 0xf { 0xf + (family >> 4) } else { family };
    let vendor = socket.attribute("vendor").filter(|vendor| !vendor.is_empty())?;
    Some(Cpu { vendor: vendor.to_owned(), family })
}

fn number(node: Node<'_, '_>, name: &str) -> Option<u32> {
    node.attribute(name)?.parse().ok()
}

fn hex(node: Node<'_, '_>, name: &str) -> Option<u32> {
    u32::from_str_radix(node.attribute(name)?.trim_start_matches("0x"), 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use pcie::{Label, Link, labels};

    const FILE: &str = concat!(
        r#"<system version="1">
      <cpu numaid="0" arch="x86_64" vendor="AuthenticAMD" familyid="143" modelid="49">
        <pci busid="0000:01:00.0" class="0x060400" vendor="0xffff" device="0xffff" "#,
        r#"link_speed="16.0 GT/s PCIe" link_width="16">
          <pci busid="0000:03:00.0" class="0x030200" link_speed="16.0 GT/s PCIe" link_width="16"/>
          <pci busid="0000:04:00.0" class="0x020700" link_speed="8 GT/s" link_width="8">"#,
        r#"<nic><net name="mlx5_0"/></nic></pci>
          <pci busid="0000:05:00.0" class="0x060400" link_speed="" link_width="0">
            <pci busid="0000:07:00.0" class="0x020000" link_speed="" link_width="0"/>
          </pci>
        </pci>
        <pci busid="0000:21:00.0"><gpu dev="1"/></pci>
      </cpu>
      <cpu numaid="1"><pci busid="0000:81:00.0" class="0x020000"/></cpu>
    </system>"#
    );

    fn machine() -> Machine {
        read(roxmltree::Document::parse(FILE).unwrap().root_element()).unwrap().0
    }

    #[test]
    fn devices_links_and_roles() {
        let machine = machine();
        let of = |at: &str| machine.function(at.parse().unwrap()).unwrap();
        assert_eq!(machine.cpu().unwrap().family, 0x17);
        assert_eq!(of("01:00.0").id, None);
        assert_eq!(of("01:00.0").kind, Kind::SwitchUpstream);
        assert_eq!(of("04:00.0").link, Link::lanes(8.0, 8).ok());
        assert_eq!(of("07:00.0").link, None);
        assert_eq!((of("21:00.0").role, of("21:00.0").class), (Role::Gpu, None));
        assert_eq!(of("04:00.0").interfaces, ["mlx5_0"]);
    }

    #[test]
    fn labels_are_as_sure_as_the_file() {
        let machine = machine();
        let of = |a: &str, b: &str| {
            let of = |at: &str| machine.function(at.parse().unwrap()).unwrap();
            labels(&machine, of(a), of(b))
        };
        assert_eq!(of("03:00.0", "04:00.0"), [Label::Pix]);
        assert_eq!(of("03:00.0", "07:00.0"), [Label::Pxb]);
        assert_eq!(of("03:00.0", "21:00.0"), [Label::Phb, Label::Node]);
        assert_eq!(of("03:00.0", "81:00.0"), [Label::Sys]);
    }

    #[test]
    fn links_beside_pcie_and_what_nccl_found() {
        let text = concat!(
            r#"<system version="1"><cpu numaid="0" arch="x86_64">
          <pci busid="0000:01:00.0" class="0x030200"><gpu dev="1" gdr="1">
            <nvlink target="0000:09:00.0" count="5" tclass="0x068000"/>"#,
            r#"<nvlink target="0000:02:00.0" count="2" tclass="0x030200"/>
            <c2c bw="450" count="10"/></gpu></pci>
          <pci busid="0000:02:00.0" class="0x030200"><gpu dev="0"/></pci>
          <pci busid="0000:03:00.0" class="0x020700"><nic><net name="mlx5_0" gdr="1"/>"#,
            r#"<net name="mlx5_1" gdr="0"/></nic></pci>
          </cpu></system>"#
        );
        let document = roxmltree::Document::parse(text).unwrap();
        let (machine, notes) = read(document.root_element()).unwrap();
        let ends: Vec<_> =
            machine.gpu_links().iter().map(|link| (link.kind, link.to, link.count)).collect();
        let other = GpuLinkEnd::Gpu("02:00.0".parse().unwrap());
        assert_eq!(
            ends,
            [
                (GpuLinkKind::NvLink, GpuLinkEnd::Switch, Some(5)),
                (GpuLinkKind::NvLink, other, Some(2)),
                (GpuLinkKind::C2c, GpuLinkEnd::Processor, Some(10)),
            ]
        );
        assert_eq!(notes, ["NCCL found GPUDirect RDMA at 1 of 2 network devices"]);
        let index = |at: &str| machine.function(at.parse().unwrap()).unwrap().index;
        assert_eq!((index("01:00.0"), index("02:00.0")), (Some(1), Some(0)));
    }

    #[test]
    fn broken_files_say_where() {
        let document =
            roxmltree::Document::parse("<system><cpu>\n<pci busid=\"x\"/></cpu></system>").unwrap();
        let error = read(document.root_element()).unwrap_err().to_string();
        assert!(error.contains("line 2"), "{error}");
    }

    #[test]
    fn what_repeats_is_kept_and_noted() {
        let text = concat!(
            r#"<system><cpu><pci busid="1:0.0"><pci busid="2:0.0"/></pci>"#,
            r#"<pci busid="1:0.0"><pci busid="3:0.0"/></pci></cpu></system>"#
        );
        let document = roxmltree::Document::parse(text).unwrap();
        let (machine, notes) = read(document.root_element()).unwrap();
        assert_eq!((machine.functions().count(), notes.len()), (4, 1));
        let of = |at: &str| machine.function(at.parse().unwrap()).unwrap();
        assert_ne!(of("2:0.0").below, of("3:0.0").below);
    }
}
