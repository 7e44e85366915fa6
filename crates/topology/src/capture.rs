//! Taking a machine home: the part of `/sys` and `/proc` that readers look at, in one compressed
//! archive.

use crate::readers::sysfs::release;
use crate::source::tree::Tree;
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
    "mem_info_vram_total",
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
    "/peerdma/probes",
    "/proc/cmdline",
    "/proc/cpuinfo",
    "/proc/driver/nvidia/version",
    "/proc/modules",
    "/proc/self/limits",
    "/proc/sys/kernel/osrelease",
    "/proc/version",
    "/sys/devices/system/cpu/sev/vmpl",
    "/sys/class/dmi/id/product_name",
    "/sys/class/dmi/id/sys_vendor",
    "/sys/module/nvidia_peermem/version",
];

/// Folders that only guests with encrypted memory have.
pub const CONFIDENTIAL: [&str; 3] = [
    "/sys/devices/platform/arm-cca-dev",
    "/sys/devices/platform/sev-guest",
    "/sys/devices/virtual/misc/tdx_guest",
];

/// Where distributions keep rdma-core's libmlx5.
pub const LIBMLX5: [&str; 5] = [
    "/usr/lib/x86_64-linux-gnu/libmlx5.so.1",
    "/usr/lib/aarch64-linux-gnu/libmlx5.so.1",
    "/usr/lib64/libmlx5.so.1",
    "/usr/lib/libmlx5.so.1",
    "/lib64/libmlx5.so.1",
];

/// Writes a `tar.gz` of what [`crate::read`] and the doctor look at. Names of hosts and users are
/// not in it; serial numbers of devices are, where Vital Product Data could be read.
///
/// # Errors
/// Those of `out`.
pub fn take(tree: &dyn Tree, out: impl Write) -> io::Result<()> {
    take_with(tree, &[], out)
}

/// The same, with files that are not in the tree: path and content.
///
/// # Errors
/// Those of `out`.
pub fn take_with(tree: &dyn Tree, more: &[(&str, &[u8])], out: impl Write) -> io::Result<()> {
    let mut archive = tar::Builder::new(GzEncoder::new(out, Compression::default()));
    for (path, content) in more {
        append(&mut archive, path, content)?;
    }
    for path in FILES.iter().filter(|path| more.iter().all(|(other, _)| other != *path)) {
        file(&mut archive, tree, path)?;
    }
    let config = release(tree).map(|release| format!("/boot/config-{release}"));
    match config.filter(|path| tree.start(path, 1).is_some()) {
        Some(config) => file(&mut archive, tree, &config)?,
        None => file(&mut archive, tree, "/proc/config.gz")?,
    }
    if let Some(path) = LIBMLX5.iter().find(|path| tree.start(path, 1).is_some()) {
        let library = tree.read(path).unwrap_or_default();
        append(&mut archive, path, &symbol_versions(&library))?;
    }
    if let Some(status) = tree.start("/proc/self/status", 16 << 10) {
        append(&mut archive, "/proc/self/status", &capabilities(&status))?;
    }
    if tree.has_folder("/sys/kernel/mm/memory_peers") {
        folder(&mut archive, "/sys/kernel/mm/memory_peers")?;
    }
    for guest in CONFIDENTIAL.iter().filter(|path| tree.has_folder(path)) {
        folder(&mut archive, guest)?;
    }
    for node in tree.list("/sys/devices/system/node") {
        file(&mut archive, tree, &format!("/sys/devices/system/node/{node}/cpumap"))?;
        file(&mut archive, tree, &format!("/sys/devices/system/node/{node}/distance"))?;
    }
    for processor in tree.list("/sys/devices/system/cpu") {
        let at = format!("/sys/devices/system/cpu/{processor}/topology/physical_package_id");
        file(&mut archive, tree, &at)?;
    }
    for group in tree.list("/sys/kernel/iommu_groups") {
        file(&mut archive, tree, &format!("/sys/kernel/iommu_groups/{group}/type"))?;
    }
    for client in tree.list("/sys/kernel/mm/memory_peers") {
        folder(&mut archive, &format!("/sys/kernel/mm/memory_peers/{client}"))?;
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
    for target in ["driver", "iommu_group", "physfn"] {
        let path = format!("{real}/{target}");
        if let Some(to) = tree.link(&path) {
            link(archive, &path, &to)?;
        }
    }
    for class in ["infiniband", "infiniband_verbs", "net", "drm", "nvme", "mem", "p2pmem"] {
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

/// The names of a library's symbol versions, which are all that is asked of it.
fn symbol_versions(library: &[u8]) -> Vec<u8> {
    let strings = library.split(|byte| *byte == 0).filter(|string| string.starts_with(b"MLX5_1."));
    let mut kept: Vec<&[u8]> = strings.filter(|string| string.len() < 16).collect();
    kept.sort_unstable();
    kept.dedup();
    // longer than what is looked for at its end
    let mut bytes = kept.join(&0);
    bytes.extend([0; 16]);
    bytes
}

/// Nothing of the status but the capabilities of the process that captures.
fn capabilities(status: &[u8]) -> Vec<u8> {
    let lines = status.split_inclusive(|byte| *byte == b'\n');
    lines.filter(|line| line.starts_with(b"CapEff:")).flatten().copied().collect()
}

fn folder(archive: &mut tar::Builder<impl Write>, path: &str) -> io::Result<()> {
    let mut header = tar::Header::new_gnu();
    header.set_entry_type(tar::EntryType::Directory);
    header.set_size(0);
    header.set_mode(0o755);
    archive.append_data(&mut header, path.trim_start_matches('/'), io::empty())
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
