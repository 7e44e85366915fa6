//! `nvidia-smi -q -x`: the GPUs of a machine, as their driver reports them. What they hang below is
//! not in it.

use crate::Error;
use crate::model::{build, roles};
use pcie::{Address, Below, Function, HostBridge, Kind, Link, Machine, Role, Shown};
use roxmltree::Node;

const WHAT: &str = "nvidia-smi XML";

/// Reads a machine from the `nvidia_smi_log` element.
pub(crate) fn read(log: Node<'_, '_>) -> Result<Machine, Error> {
    let host = HostBridge {
        name: "unknown host bridge".into(),
        shown: Shown::Nothing,
        numa_node: None,
        root_device: None,
    };
    let mut functions = Vec::new();
    for gpu in log.children().filter(|node| node.has_tag_name("gpu")) {
        let text = gpu.attribute("id").or_else(|| value(gpu, &["pci", "pci_bus_id"]));
        let address: Address =
            text.unwrap_or_default().parse().map_err(|error| Error::malformed(WHAT, error))?;
        functions.push(function(gpu, address));
    }
    roles::assign(&mut functions);
    for function in &mut functions {
        function.role = Role::Gpu;
    }
    build::machine(WHAT, None, vec![host], functions)
}

fn function(gpu: Node<'_, '_>, address: Address) -> Function {
    let link = |which: &str| {
        let generation =
            value(gpu, &["pci", "pci_gpu_link_info", "pcie_gen", &format!("{which}_link_gen")])?;
        let width = value(
            gpu,
            &["pci", "pci_gpu_link_info", "link_widths", &format!("{which}_link_width")],
        )?;
        let speed_gts = match generation {
            "1" => 2.5,
            "2" => 5.0,
            "3" => 8.0,
            "4" => 16.0,
            "5" => 32.0,
            "6" => 64.0,
            _ => return None,
        };
        Link::lanes(speed_gts, width.trim_end_matches('x').parse().ok()?).ok()
    };
    // device id in the upper half, vendor in the lower
    let id = value(gpu, &["pci", "pci_device_id"])
        .and_then(|id| u32::from_str_radix(id.trim_start_matches("0x"), 16).ok())
        .map(|id| (id as u16, (id >> 16) as u16));
    let classes = value(gpu, &["pci", "pci_base_class"]).zip(value(gpu, &["pci", "pci_sub_class"]));
    let class = classes.and_then(|(base, sub)| {
        let hex = |text| u32::from_str_radix(text, 16).ok();
        Some(hex(base)? << 16 | hex(sub)? << 8)
    });
    Function {
        id,
        class,
        link: link("current"),
        best_link: link("max"),
        memory_bytes: bytes(value(gpu, &["fb_memory_usage", "total"])),
        bar_bytes: bytes(value(gpu, &["bar1_memory_usage", "total"])),
        product: value(gpu, &["product_name"]).map(str::to_owned),
        driver: Some("nvidia".into()),
        ..Function::new(address, Kind::Endpoint, Below::Host(0))
    }
}

fn value<'a>(node: Node<'a, '_>, path: &[&str]) -> Option<&'a str> {
    let mut at = node;
    for name in path {
        at = at.children().find(|child| child.has_tag_name(*name))?;
    }
    at.text().map(str::trim)
}

/// `131072 MiB`
fn bytes(text: Option<&str>) -> Option<u64> {
    text?.strip_suffix(" MiB")?.parse::<u64>().ok()?.checked_mul(1 << 20)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gpu_with_its_memory_and_link() {
        let text = concat!(
            r#"<nvidia_smi_log><gpu id="00000000:53:00.0"><product_name>NVIDIA H100</product_name>
          <pci><pci_base_class>3</pci_base_class><pci_sub_class>2</pci_sub_class>"#,
            r#"<pci_device_id>233010DE</pci_device_id>
          <pci_gpu_link_info><pcie_gen><max_link_gen>5</max_link_gen>"#,
            r#"<current_link_gen>1</current_link_gen></pcie_gen>
          <link_widths><max_link_width>16x</max_link_width>"#,
            r#"<current_link_width>8x</current_link_width></link_widths></pci_gpu_link_info></pci>
          <fb_memory_usage><total>81559 MiB</total></fb_memory_usage>
          <bar1_memory_usage><total>N/A</total></bar1_memory_usage></gpu></nvidia_smi_log>"#
        );
        let document = roxmltree::Document::parse(text).unwrap();
        let machine = read(document.root_element()).unwrap();
        let gpu = machine.functions().next().unwrap();
        assert_eq!(gpu.address.to_string(), "0000:53:00.0");
        assert_eq!((gpu.id, gpu.class), (Some((0x10de, 0x2330)), Some(0x030200)));
        assert_eq!(
            (gpu.link, gpu.best_link),
            (Link::lanes(2.5, 8).ok(), Link::lanes(32.0, 16).ok())
        );
        assert_eq!((gpu.memory_bytes, gpu.bar_bytes), (Some(81559 << 20), None));
    }
}
