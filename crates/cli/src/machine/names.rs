//! What to call a function.

use pci_ids::FromId;
use pcie::{Function, Role};

/// `GPU`, `NIC`, …
pub fn role(function: &Function) -> &'static str {
    match (function.role, function.class.map(|class| class >> 8)) {
        (Role::Gpu, _) => "GPU",
        (Role::Hca, _) if function.virtual_of.is_some() => "virtual NIC",
        (Role::Hca, _) => "NIC",
        (Role::DataDirect, _) => "Data Direct",
        (Role::Nvme, _) => "NVMe",
        (Role::Fpga, _) => "FPGA",
        (Role::NvSwitch, _) => "NVSwitch",
        (Role::Management, _) => "management",
        (Role::Other, Some(0x0604)) => "bridge",
        (Role::Other, _) => "device",
    }
}

/// The name by which its operator knows it: of the platform, a GPU by its number, else the most
/// telling of those that drivers gave it.
pub fn own(function: &Function) -> Option<String> {
    if !function.name.is_empty() {
        return Some(function.name.clone());
    }
    if let (Role::Gpu, Some(index)) = (function.role, function.index) {
        return Some(format!("GPU{index}"));
    }
    let names = &function.interfaces;
    let rdma =
        || names.iter().find(|name| function.role == Role::Hca && topology::is_rdma_name(name));
    rdma().or(names.first()).cloned()
}

/// Role and name in one: `NIC mlx5_0`, `GPU gpu0`, and for what its name tells `GPU0`.
pub fn titled(function: &Function) -> String {
    match (role(function), own(function)) {
        (role, Some(own)) if own.starts_with(role) => own,
        (role, Some(own)) => format!("{role} {own}"),
        (role, None) => role.to_owned(),
    }
}

/// Vendor and product, by the list of PCI ids.
pub fn product(function: &Function) -> Option<String> {
    let Some((vendor, device)) = function.id else { return function.product.clone() };
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
