//! Taking a machine home: the part of `/sys` and `/proc` that readers look at, in one compressed archive.

use crate::source::Tree;
use flate2::Compression;
use flate2::write::GzEncoder;
use std::io::{self, Write};

/// Attributes of a device that are kept.
const ATTRIBUTES: &[&str] = &[
    "class",
    "config",
    "current_link_speed",
    "current_link_width",
    "device",
    "local_cpus",
    "max_link_speed",
    "max_link_width",
    "modalias",
    "numa_node",
    "resource",
    "subsystem_device",
    "subsystem_vendor",
    "vendor",
    "vpd",
];

/// What an RDMA device says of itself.
const RDMA_ATTRIBUTES: &[&str] = &["board_id", "fw_ver", "hca_type", "node_guid"];

/// Files of the machine that verdicts rest on.
const FILES: &[&str] = &[
    "/proc/cmdline",
    "/proc/cpuinfo",
    "/proc/driver/nvidia/version",
    "/proc/modules",
    "/proc/config.gz",
    "/proc/version",
    "/sys/class/dmi/id/product_name",
    "/sys/class/dmi/id/sys_vendor",
];

/// Writes a `tar.gz` of what [`crate::read`] and the doctor look at. Names of hosts and users are not in it; serial numbers of devices
/// are, where Vital Product Data could be read.
///
/// # Errors
/// Those of `out`.
pub fn take(tree: &dyn Tree, out: impl Write) -> io::Result<()> {
    let mut archive = tar::Builder::new(GzEncoder::new(out, Compression::default()));
    for path in FILES {
        file(&mut archive, tree, path)?;
    }
    for config in tree.list("/boot").iter().filter(|name| name.starts_with("config-")) {
        file(&mut archive, tree, &format!("/boot/{config}"))?;
    }
    for node in tree.list("/sys/devices/system/node") {
        file(&mut archive, tree, &format!("/sys/devices/system/node/{node}/cpumap"))?;
    }
    for group in tree.list("/sys/kernel/iommu_groups") {
        file(&mut archive, tree, &format!("/sys/kernel/iommu_groups/{group}/type"))?;
    }
    for client in tree.list("/sys/kernel/mm/memory_peers") {
        file(&mut archive, tree, &format!("/sys/kernel/mm/memory_peers/{client}/version"))?;
    }
    for name in tree.list("/sys/bus/pci/devices") {
        device(&mut archive, tree, &name)?;
    }
    archive.into_inner()?.finish()?.flush()
}

fn device(archive: &mut tar::Builder<impl Write>, tree: &dyn Tree, name: &str) -> io::Result<()> {
    let by_bus = format!("/sys/bus/pci/devices/{name}");
    let real = tree.real(&by_bus);
    link(archive, &by_bus, &real)?;
    for attribute in ATTRIBUTES {
        file(archive, tree, &format!("{real}/{attribute}"))?;
    }
    for target in ["driver", "iommu_group"] {
        let path = format!("{real}/{target}");
        if let Some(to) = tree.link(&path) {
            link(archive, &path, &to)?;
        }
    }
    for class in ["infiniband", "net", "drm", "nvme", "p2pmem"] {
        for interface in tree.list(&format!("{real}/{class}")) {
            let at = format!("{real}/{class}/{interface}");
            if class == "infiniband" {
                for attribute in RDMA_ATTRIBUTES {
                    file(archive, tree, &format!("{at}/{attribute}"))?;
                }
            }
            // keeps the name, where nothing else of it is kept
            append(archive, &format!("{at}/uevent"), b"")?;
        }
    }
    Ok(())
}

fn file(archive: &mut tar::Builder<impl Write>, tree: &dyn Tree, path: &str) -> io::Result<()> {
    match tree.read(path) {
        Some(content) => append(archive, path, &content),
        None => Ok(()),
    }
}

fn append(archive: &mut tar::Builder<impl Write>, path: &str, content: &[u8]) -> io::Result<()> {
    let mut header = tar::Header::new_gnu();
    header.set_size(content.len() as u64);
    header.set_mode(0o644);
    archive.append_data(&mut header, path.trim_start_matches('/'), content)
}

fn link(archive: &mut tar::Builder<impl Write>, path: &str, target: &str) -> io::Result<()> {
    let mut header = tar::Header::new_gnu();
    header.set_entry_type(tar::EntryType::Symlink);
    header.set_size(0);
    header.set_mode(0o777);
    archive.append_link(&mut header, path.trim_start_matches('/'), target)
}
