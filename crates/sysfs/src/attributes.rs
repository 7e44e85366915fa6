//! The text of each attribute of the device and its ports.
//!
//! [`content`] is the one place where an attribute's format is written; the tree's files are made
//! from it. What [`is_answered`] names, the library in a program answers by itself: the tree's word
//! of it is only the first one.

use crate::description::{DeviceDescription, Gid, Port, STANDARD_COUNTERS};

/// Attributes at the top of `class/infiniband/DEV/`.
pub(crate) const DEVICE_FILES: [&str; 9] = [
    "board_id",
    "fw_ver",
    "hca_type",
    "hw_rev",
    "node_desc",
    "node_guid",
    "node_type",
    "sys_image_guid",
    "uevent",
];

/// Attributes at the top of `ports/N/`.
pub(crate) const PORT_FILES: [&str; 9] = [
    "cap_mask",
    "lid",
    "lid_mask_count",
    "link_layer",
    "phys_state",
    "rate",
    "sm_lid",
    "sm_sl",
    "state",
];

/// Attributes that say who a device is, which differs between hosts and network namespaces.
const IDENTITY: [&str; 3] = ["node_desc", "node_guid", "sys_image_guid"];

/// Attributes of a port that change while a program runs, by how they begin.
const CHANGING: [&str; 5] = ["gids/", "gid_attrs/", "state", "phys_state", "hw_counters/"];

/// Milliseconds for which the kernel keeps hardware counters before it asks the driver again.
const LIFESPAN_MS: u32 = 10;

/// Whether the library in a program answers for the attribute at `path`, below `class` or
/// `devices`, itself, whatever the tree says.
pub fn is_answered(path: &str) -> bool {
    let attribute = path.rsplit_once("/infiniband/").and_then(|(_, path)| path.split_once('/'));
    attribute.is_some_and(|(_, file)| match file.strip_prefix("ports/") {
        None => IDENTITY.contains(&file),
        Some(path) => path
            .split_once('/')
            .is_some_and(|(_, file)| CHANGING.iter().any(|changing| file.starts_with(changing))),
    })
}

/// Content of a file that says who the device called `device` is; `None` for other files.
pub fn identity(file: &str, device: &str, node_guid: u64) -> Option<String> {
    let text = match file {
        "node_desc" => node_desc(device),
        "node_guid" | "sys_image_guid" => guid(node_guid),
        _ => return None,
    };
    Some(text + "\n")
}

/// The name of this host and of a device of it, as drivers say it.
pub fn node_desc(device: &str) -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    match host.trim() {
        "" => device.to_owned(),
        host => format!("{} {device}", host.chars().take(32).collect::<String>()),
    }
}

/// Content of the attribute at `path`, such as `class/infiniband/peerdma0/ports/1/gids/0`.
///
/// None when the device has no such attribute, also for the attributes of empty GID table entries,
/// which the kernel refuses to read.
pub fn content(device: &DeviceDescription, path: &str) -> Option<String> {
    let path = path
        .strip_prefix("class/infiniband/")?
        .strip_prefix(device.name.as_str())?
        .strip_prefix('/')?;
    match path.strip_prefix("ports/") {
        None => device_file(device, path),
        Some(path) => {
            let (number, path) = path.split_once('/')?;
            let index = number.parse::<usize>().ok()?.checked_sub(1)?;
            port_content(device.ports.get(index)?, path)
        }
    }
}

fn device_file(device: &DeviceDescription, name: &str) -> Option<String> {
    let text = match name {
        "board_id" => device.board_id.clone(),
        "fw_ver" => device.fw_ver.clone(),
        "hca_type" => device.hca_type.clone(),
        "hw_rev" => format!("0x{:x}", device.hw_rev),
        "node_desc" => device.node_desc.clone(),
        "node_guid" => guid(device.node_guid),
        "node_type" => "1: CA".into(),
        "sys_image_guid" => guid(device.sys_image_guid),
        "uevent" => format!("NAME={}", device.name),
        _ => return None,
    };
    Some(text + "\n")
}

/// Content of the attribute at `path` below `ports/N/`, such as `gids/0`; None as for [`content`].
pub fn port_content(port: &Port, path: &str) -> Option<String> {
    let text = match path.split_once('/') {
        None => match path {
            "cap_mask" => format!("0x{:08x}", port.cap_mask),
            "lid" => format!("0x{:x}", port.lid),
            "lid_mask_count" => port.lid_mask_count.to_string(),
            "link_layer" => port.link_layer.to_string(),
            "phys_state" => port.phys_state.to_string(),
            "rate" => port.rate.to_string(),
            "sm_lid" => format!("0x{:x}", port.sm_lid),
            "sm_sl" => port.sm_sl.to_string(),
            "state" => port.state.to_string(),
            _ => return None,
        },
        Some(("gids", index)) => {
            let index = index.parse().ok().filter(|&index| index < port.gid_table_len)?;
            gid_text(&gid_at(port, index).map_or([0; 16], |entry| entry.gid))
        }
        Some(("gid_attrs", rest)) => match rest.split_once('/')? {
            ("ndevs", index) => gid_at(port, index.parse().ok()?)?.ifname.clone(),
            ("types", index) => gid_at(port, index.parse().ok()?)?.gid_type.clone(),
            _ => return None,
        },
        Some(("pkeys", index)) => {
            format!("0x{:04x}", port.pkeys.get(index.parse::<usize>().ok()?)?)
        }
        Some(("counters", name)) => match port.counters.iter().find(|counter| counter.name == name)
        {
            Some(counter) => counter.value.to_string(),
            None if STANDARD_COUNTERS.contains(&name) => "0".into(),
            None => return None,
        },
        Some(("hw_counters", "lifespan")) => LIFESPAN_MS.to_string(),
        Some(("hw_counters", name)) => {
            port.hw_counters.iter().find(|counter| counter.name == name)?.value.to_string()
        }
        Some(_) => return None,
    };
    Some(text + "\n")
}

fn gid_at(port: &Port, index: u32) -> Option<&Gid> {
    port.gids.iter().find(|entry| entry.index == index && index < port.gid_table_len)
}

/// A GID as the kernel's `%pI6`: eight groups of four digits, never shortened.
fn gid_text(gid: &[u8; 16]) -> String {
    let groups: Vec<String> =
        gid.chunks(2).map(|pair| format!("{:02x}{:02x}", pair[0], pair[1])).collect();
    groups.join(":")
}

/// A GUID as four groups of four digits.
fn guid(guid: u64) -> String {
    let bytes = guid.to_be_bytes();
    let groups: Vec<String> =
        bytes.chunks(2).map(|pair| format!("{:02x}{:02x}", pair[0], pair[1])).collect();
    groups.join(":")
}
