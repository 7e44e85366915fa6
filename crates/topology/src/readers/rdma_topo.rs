//! The dump of rdma-core's `rdma_topo dump`: a JSON list of devices with their sysfs path and,
//! compressed with zlib and in base64, their configuration space and Vital Product Data.

use crate::Error;
use crate::model::assemble::{Device, assemble};
use crate::model::build;
use crate::model::config::vpd;
use crate::source::tree::Tree;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use pcie::Machine;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io::{Read, Write};

const WHAT: &str = "rdma_topo dump";

/// Longest space after decompression, and longest product data.
const LONGEST_SPACE: u64 = 4096;
const LONGEST_PRODUCT_DATA: u64 = 1 << 15;

#[derive(Serialize, Deserialize)]
struct Entry {
    realpath: String,
    config: String,
    iommu_group: Option<u32>,
    modalias: String,
    numa_node: Option<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    vpd: Option<String>,
    #[serde(default)]
    subsystems: Option<BTreeMap<String, Vec<String>>>,
}

/// Reads a machine. The processor is not in it.
pub(crate) fn read(text: &str) -> Result<Machine, Error> {
    let entries: Vec<Entry> =
        serde_json::from_str(text).map_err(|error| Error::malformed(WHAT, error))?;
    build::few_enough(WHAT, entries.len())?;
    let devices = entries.into_iter().map(device).collect::<Result<Vec<_>, _>>()?;
    assemble(WHAT, None, None, &devices)
}

fn device(entry: Entry) -> Result<Device, Error> {
    let config = unpack(&entry.config, LONGEST_SPACE).ok_or_else(|| {
        Error::malformed(WHAT, format!("{}: config is not zlib in base64", entry.realpath))
    })?;
    let subsystems = entry.subsystems.unwrap_or_default();
    let names = |class: &str| subsystems.get(class).cloned().unwrap_or_default();
    let drm = names("drm").into_iter().filter(|name| name.starts_with("card"));
    let data = entry.vpd.as_deref().and_then(|text| unpack(text, LONGEST_PRODUCT_DATA));
    let vuid = data.and_then(|bytes| vpd(&bytes, b"VU"));
    Ok(Device {
        path: entry.realpath,
        config,
        vuid,
        numa_node: entry.numa_node.and_then(|node| node.try_into().ok()),
        iommu_group: entry.iommu_group,
        interfaces: [names("infiniband"), names("net"), drm.collect(), names("nvme")].concat(),
        ..Device::default()
    })
}

/// Writes the dump of a tree, as `rdma_topo` reads it. Read as root, configuration space is whole;
/// without, its first 64 bytes are written.
pub fn dump(tree: &dyn Tree) -> String {
    const DEVICES: &str = "/sys/bus/pci/devices";
    let entries: Vec<Entry> = tree
        .list(DEVICES)
        .iter()
        .filter_map(|name| {
            let realpath = tree.real(&format!("{DEVICES}/{name}"));
            let at = |name: &str| format!("{realpath}/{name}");
            let subsystems = ["drm", "infiniband", "net", "nvme"]
                .iter()
                .map(|class| ((*class).to_owned(), tree.list(&at(class))))
                .filter(|(_, names)| !names.is_empty())
                .collect();
            Some(Entry {
                config: pack(&tree.read(&at("config"))?),
                iommu_group: tree.link_name(&at("iommu_group")).and_then(|n| n.parse().ok()),
                modalias: tree.line(&at("modalias"))?,
                numa_node: tree.line(&at("numa_node")).and_then(|node| node.parse().ok()),
                vpd: tree.read(&at("vpd")).map(|bytes| pack(&bytes)),
                subsystems: Some(subsystems),
                realpath,
            })
        })
        .collect();
    // plain data: a list of strings and numbers always has a text
    serde_json::to_string_pretty(&entries).unwrap_or_default()
}

fn unpack(text: &str, longest: u64) -> Option<Vec<u8>> {
    let packed = STANDARD.decode(text.trim()).ok()?;
    let mut bytes = Vec::new();
    flate2::read::ZlibDecoder::new(&packed[..]).take(longest).read_to_end(&mut bytes).ok()?;
    Some(bytes)
}

fn pack(bytes: &[u8]) -> String {
    let mut encoder = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::default());
    // writing into memory does not fail
    let packed = encoder.write_all(bytes).and_then(|()| encoder.finish()).unwrap_or_default();
    STANDARD.encode(packed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dump_is_a_machine() {
        let space = crate::model::config::tests::root_port(4096);
        let text = serde_json::json!([{
            "realpath": "/sys/devices/pci0000:17/0000:17:01.0",
            "config": pack(&space),
            "iommu_group": 7,
            "modalias": "pci:v00008086d00002030",
            "numa_node": 1,
            "subsystems": {},
        }])
        .to_string();
        let machine = read(&text).unwrap();
        let port = machine.functions().next().unwrap();
        assert_eq!(port.kind, pcie::Kind::RootPort);
        assert_eq!((port.iommu_group, port.numa_node), (Some(7), Some(1)));
        assert!(matches!(port.acs, pcie::Acs::Enabled(bits) if !bits.is_empty()));
        assert_eq!(machine.cpu(), None);
    }

    #[test]
    fn broken_dumps_say_where() {
        let missing = r#"[{"realpath": "/sys/devices/pci0000:17/0000:17:01.0"}]"#;
        let garbled = concat!(
            r#"[{"realpath": "/sys/x/1", "config": "!", "modalias": "", "iommu_group": null, "#,
            r#""numa_node": null}]"#
        );
        for (text, reason) in
            [("[", "EOF"), ("{}", "expected"), (missing, "config"), (garbled, "/sys/x/1")]
        {
            let error = read(text).unwrap_err().to_string();
            assert!(error.contains(reason), "{error}");
        }
    }
}
