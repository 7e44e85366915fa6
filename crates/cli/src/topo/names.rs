//! What to call a function.

use pci_ids::FromId;
use pcie::{Function, Role};

/// `GPU`, `NIC`, …
pub fn role(function: &Function) -> &'static str {
    match (function.role, function.class.map(|class| class >> 8)) {
        (Role::Gpu, _) => "GPU",
        (Role::Hca, _) => "NIC",
        (Role::DataDirect, _) => "Data Direct",
        (Role::Other, Some(0x0108)) => "NVMe",
        (Role::Other, Some(0x0604)) => "bridge",
        (Role::Other, _) => "device",
    }
}

/// The name by which programs know it: of the platform, else the most telling of those that drivers gave it.
pub fn own(function: &Function) -> Option<&str> {
    if !function.name.is_empty() {
        return Some(&function.name);
    }
    let telling = |name: &&String| {
        let rdma = ["mlx", "bnxt_re", "irdma", "rdmap", "efa", "hfi1_"];
        let gpu = ["cuda", "rsmi", "nvml", "ve"];
        match function.role {
            Role::Hca => rdma.iter().any(|start| name.starts_with(start)),
            Role::Gpu => gpu.iter().any(|start| name.starts_with(start)),
            _ => false,
        }
    };
    let names = &function.interfaces;
    names.iter().find(telling).or_else(|| names.first()).map(String::as_str)
}

/// Vendor and product, by the list of PCI ids.
pub fn product(function: &Function) -> Option<String> {
    let (vendor, device) = function.id?;
    let known = pci_ids::Device::from_vid_pid(vendor, device);
    let maker = pci_ids::Vendor::from_id(vendor).map(|vendor| short(vendor.name()));
    match (maker, known) {
        (Some(maker), Some(device)) => Some(format!("{maker} {}", device.name())),
        (Some(maker), None) => Some(format!("{maker} {device:04x}")),
        (None, _) => Some(format!("{vendor:04x}:{device:04x}")),
    }
}

/// A vendor's name without its legal form.
fn short(name: &str) -> &str {
    let ends = [
        " Corporation",
        " Technologies",
        ", Inc",
        " Inc",
        " Co.",
        " Ltd",
        " Electronics",
        ".com",
        " Semiconductor",
    ];
    let name = ends.iter().fold(name, |name, end| name.split(end).next().unwrap_or(name));
    match name {
        "Advanced Micro Devices" => "AMD",
        name => name.trim_end_matches([',', ' ']),
    }
}

/// The address, with its own name before it if it has one.
pub fn label(function: &Function) -> String {
    match own(function) {
        Some(name) => format!("{name} {}", function.address),
        None => function.address.to_string(),
    }
}
