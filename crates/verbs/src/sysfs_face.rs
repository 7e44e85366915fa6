//! What sysfs says about running devices and the generated tree cannot know: addresses that come and go, and
//! counters.

use crate::device;
use crate::engine::{self, Engine};
use sysfs::{
    Counter, DeviceDescription, Gid, LaneSpeed, LinkLayer, PciFunction, PhysState, Port, PortState,
    Rate,
};

/// GID type as the kernel spells it.
const ROCE_V2: &str = "RoCE v2";
/// Files of a port that change.
const CHANGING: [&str; 5] = ["gids/", "gid_attrs/", "state", "phys_state", "hw_counters/"];

/// Content of a changing attribute; `None` leaves the answer to the tree.
pub fn attribute(path: &str) -> Option<Vec<u8>> {
    if let Some((client, file)) = peer(path) {
        return umem::PeerClients::process().attribute(client, file).map(String::into_bytes);
    }
    let (name, rest) = path.strip_prefix("class/infiniband/")?.split_once('/')?;
    let (number, file) = rest.strip_prefix("ports/")?.split_once('/')?;
    if !CHANGING.iter().any(|changing| file.starts_with(changing)) {
        return None;
    }
    let engine = engine::running_now(device::number_named(name)?)?;
    engine.device.port(number.parse().ok()?).ok()?;
    // All ports show the same, so one describes them.
    let first = format!("class/infiniband/{name}/ports/1/{file}");
    Some(sysfs::content(&description(&engine)?, &first)?.into_bytes())
}

/// Client and file of a path below the Peer-Direct clients.
fn peer(path: &str) -> Option<(&str, &str)> {
    path.strip_prefix(sysfs::PEERS)?.strip_prefix('/')?.split_once('/')
}

fn description(engine: &Engine) -> Option<DeviceDescription> {
    let port = engine.device.port(1).ok()?;
    let gids = engine.device.gids(1).ok()?;
    let reader = engine.device.directory().reader().ok()?;
    let hw_counters = hca::Counter::ALL
        .iter()
        .map(|&moved| Counter { name: moved.name().to_owned(), value: reader.counter(moved) })
        .collect();
    let port = Port {
        state: if port.active { PortState::Active } else { PortState::Down },
        phys_state: if port.active { PhysState::LinkUp } else { PhysState::Disabled },
        link_layer: LinkLayer::Ethernet,
        rate: Rate { lanes: 4, lane_speed: LaneSpeed::Edr },
        lid: 0,
        lid_mask_count: 0,
        sm_lid: 0,
        sm_sl: 0,
        cap_mask: 0,
        gid_table_len: port.gid_tbl_len,
        gids: gids
            .into_iter()
            .map(|entry| Gid {
                index: entry.index,
                gid: entry.gid,
                ifname: entry.ifname,
                gid_type: ROCE_V2.to_owned(),
            })
            .collect(),
        pkeys: Vec::new(),
        counters: Vec::new(),
        hw_counters,
    };
    Some(DeviceDescription {
        name: engine.device.attr().name.clone(),
        node_guid: 0,
        sys_image_guid: 0,
        node_desc: String::new(),
        board_id: String::new(),
        fw_ver: String::new(),
        hca_type: String::new(),
        hw_rev: 0,
        uverbs_index: 0,
        ports: vec![port],
        twin_ports: 0,
        pci: nowhere(),
        netdevs: Vec::new(),
    })
}

/// The PCI function is in the tree and never asked for here.
fn nowhere() -> PciFunction {
    PciFunction {
        bdf: String::new(),
        bridges: Vec::new(),
        vendor: 0,
        device: 0,
        subsystem_vendor: 0,
        subsystem_device: 0,
        revision: 0,
        class: 0,
        numa_node: -1,
        local_cpus: Vec::new(),
        bars: Vec::new(),
        link_speed_tenth_gt_s: 0,
        link_width: 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_stands_in_the_tree_is_left_to_it() {
        assert_eq!(attribute("class/infiniband/peerdma0/node_guid"), None);
        assert_eq!(attribute("class/infiniband/peerdma0/ports/1/pkeys/0"), None);
        assert_eq!(attribute("class/infiniband/mlx5_0/ports/1/gids/0"), None);
        // Without an open device nothing changes either.
        assert_eq!(attribute("class/infiniband/peerdma0/ports/1/gids/0"), None);
    }
}
