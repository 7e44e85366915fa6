//! What there is to report: devices as their tree in sysfs shows them, and what each process that
//! uses one publishes of it.

use crate::platform::device;
use hca::directory::{KeyEntry, QpEntry, Reader};
use registry::{Client, Role};
use std::collections::BTreeMap;

#[derive(Clone, Debug)]
pub struct Device {
    /// Its place in the list, as `ibv_get_device_index` gives it.
    pub index: u32,
    pub name: String,
    pub fw_ver: String,
    pub node_guid: u64,
    pub sys_image_guid: u64,
    /// How many ports it has.
    pub ports: u32,
    /// What each of them is.
    pub port: Port,
}

#[derive(Clone, Debug)]
pub struct Port {
    pub cap_mask: u32,
    /// `enum ib_port_state`.
    pub state: u8,
    /// `enum ib_port_phys_state`.
    pub phys_state: u8,
    /// An interface of its addresses, and its index.
    pub netdev: Option<(String, u32)>,
}

/// A process that has a device open.
#[derive(Clone, Debug)]
pub struct User {
    pub pid: u32,
    /// Its queue pairs.
    pub qps: Vec<QpEntry>,
    pub keys: Vec<KeyEntry>,
    /// Its counters, in the order of [`hca::Counter::ALL`].
    pub counters: Vec<u64>,
}

impl User {
    /// Protection domains in use, and how many objects use each.
    pub fn pds(&self) -> BTreeMap<u32, u64> {
        let mut pds = BTreeMap::new();
        let of_qps = self.qps.iter().map(|qp| qp.pd);
        for pd in of_qps.chain(self.keys.iter().map(|key| key.pd)) {
            *pds.entry(pd).or_insert(0) += 1;
        }
        pds
    }
}

/// Where the answers come from.
pub trait World {
    fn devices(&self) -> Vec<Device>;
    /// The processes that have `device` open.
    fn users(&self, device: &Device) -> Vec<User>;
}

/// This machine, as the program sees it.
pub struct Here;

impl World for Here {
    fn devices(&self) -> Vec<Device> {
        (0..device::count()).filter_map(described).collect()
    }

    fn users(&self, device: &Device) -> Vec<User> {
        // Where nobody hosts a registry, nobody has a device open.
        let Ok(client) = Client::connect(Role::Observer) else { return Vec::new() };
        let members = client.members().unwrap_or_default();
        let of_device = members.into_iter().filter(|member| member.device == device.name);
        let read = |member: registry::Member| {
            let reader = Reader::open(client.directory(member.slot).ok()?).ok()?;
            Some(User {
                pid: reader.pid(),
                qps: reader.qps(),
                keys: reader.keys(),
                counters: reader.counters().map(|(_, value)| value).collect(),
            })
        };
        of_device.filter_map(read).collect()
    }
}

fn described(number: usize) -> Option<Device> {
    let name = device::name(number)?.to_owned();
    let file = |path: &str| {
        let text = std::fs::read_to_string(format!("/sys/class/infiniband/{name}/{path}"));
        text.map(|text| text.trim_end().to_owned()).unwrap_or_default()
    };
    let code = |path: &str| file(path).split(':').next().and_then(|code| code.parse().ok());
    let hexadecimal = |text: &str| u64::from_str_radix(text, 16).unwrap_or(0);
    let guid = |path: &str| hexadecimal(&file(path).replace(':', ""));
    let ports = std::fs::read_dir(format!("/sys/class/infiniband/{name}/ports"));
    Some(Device {
        index: u32::try_from(number).ok()?,
        fw_ver: file("fw_ver"),
        node_guid: guid("node_guid"),
        sys_image_guid: guid("sys_image_guid"),
        ports: ports.map_or(0, |entries| entries.count() as u32),
        port: Port {
            cap_mask: hexadecimal(file("ports/1/cap_mask").trim_start_matches("0x")) as u32,
            state: code("ports/1/state").unwrap_or(0),
            phys_state: code("ports/1/phys_state").unwrap_or(0),
            netdev: netdev(&name),
        },
        name,
    })
}

/// The interface of the first GID.
fn netdev(name: &str) -> Option<(String, u32)> {
    let path = format!("/sys/class/infiniband/{name}/ports/1/gid_attrs/ndevs/0");
    let interface = std::fs::read_to_string(path).ok()?.trim_end().to_owned();
    let index = std::fs::read_to_string(format!("/sys/class/net/{interface}/ifindex")).ok()?;
    Some((interface, index.trim_end().parse().ok()?))
}
