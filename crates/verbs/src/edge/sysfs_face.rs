//! What sysfs says about devices and the generated tree cannot know: who they are on this host,
//! addresses that come and go, and counters.

use crate::engine::process;
use crate::platform::{device, place};
use sysfs::{Counter, Gid, Port};

/// Content of an attribute that the tree cannot know; `None` leaves the answer to the tree.
pub fn attribute(path: &str) -> Option<Vec<u8>> {
    if let Some((client, file)) = peer(path) {
        return umem::PeerClients::process().attribute(client, file).map(String::into_bytes);
    }
    if !sysfs::is_answered(path) {
        return None;
    }
    let (name, file) = path.strip_prefix("class/infiniband/")?.split_once('/')?;
    let device = device::number_named(name)?;
    let Some(file) = file.strip_prefix("ports/") else {
        return Some(sysfs::identity(file, name, device::guid(device))?.into_bytes());
    };
    let (number, file) = file.split_once('/')?;
    let port = match process::running_now(device) {
        Some(engine) => {
            engine.device.port(number.parse().ok()?).ok()?;
            port(&engine.device)?
        }
        None => closed_port(device, number.parse().ok()?)?,
    };
    Some(sysfs::port_content(&port, file)?.into_bytes())
}

/// The port of a device that is not open here: the addresses that it would have now.
fn closed_port(device: usize, number: u32) -> Option<Port> {
    let hca = place::hcas().ok()?.get(device)?;
    (1..=hca.ports).contains(&number).then_some(())?;
    let gids = link::GidTable::of(place::interfaces(hca)).ok()?;
    let gids = gids
        .iter()
        .map(|(index, entry)| (Gid::roce_v2(index as u32, entry.gid, &entry.ifname), entry.up));
    let counters = hca::Counter::ALL.iter().map(|counter| counter.name());
    Some(Port::closed_roce(link::GID_TABLE_LEN as u32, gids, hca::DEFAULT_PKEY, counters))
}

/// Client and file of a path below the Peer-Direct clients.
fn peer(path: &str) -> Option<(&str, &str)> {
    let (client, file) = path.strip_prefix(sysfs::PEERS)?.strip_prefix('/')?.split_once('/')?;
    Some((if client == sysfs::CUDA_PEER_CLIENT { sysfs::PEER_CLIENT } else { client }, file))
}

/// The port of a running device. All its ports show the same.
fn port(device: &hca::Device) -> Option<Port> {
    let port = device.port(1).ok()?;
    let gids = device.gids(1).ok()?;
    let reader = device.directory().reader().ok()?;
    let gids = gids.iter().map(|entry| Gid::roce_v2(entry.index, entry.gid, &entry.ifname));
    let counters = hca::Counter::ALL
        .iter()
        .map(|&moved| Counter { name: moved.name().to_owned(), value: reader.counter(moved) });
    let table = port.gid_tbl_len;
    Some(Port::roce(port.active, table, gids.collect(), hca::DEFAULT_PKEY, counters.collect()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_stands_in_the_tree_is_left_to_it() {
        assert_eq!(attribute("class/infiniband/peerdma0/fw_ver"), None);
        assert_eq!(attribute("class/infiniband/peerdma0/ports/1/pkeys/0"), None);
        assert_eq!(attribute("class/infiniband/mlx5_0/ports/1/gids/0"), None);
    }

    #[test]
    fn a_port_that_is_not_open_shows_the_addresses_of_this_host() {
        let file = |path: &str| attribute(&format!("class/infiniband/peerdma0/ports/{path}"));
        let gids = link::GidTable::of(link::Interfaces::default()).unwrap();
        if let Some((at, entry)) = gids.iter().next() {
            let name = file(&format!("1/gid_attrs/ndevs/{at}")).unwrap();
            assert_eq!(name, format!("{}\n", entry.ifname).into_bytes());
        }
        assert!(file("1/state").is_some() && file("1/hw_counters/sent_pkts").is_some());
        assert_eq!(file("2/state"), None);
    }

    #[test]
    fn a_device_says_who_it_is_on_this_host() {
        let guid = attribute("class/infiniband/peerdma0/node_guid").unwrap();
        let digits: String = String::from_utf8(guid).unwrap().trim().replace(':', "");
        assert_eq!(u64::from_str_radix(&digits, 16), Ok(hca::identity::node_guid("peerdma0")));
        assert!(attribute("class/infiniband/peerdma0/node_desc").unwrap().ends_with(b"peerdma0\n"));
        assert_eq!(attribute("class/infiniband/mlx5_0/node_guid"), None);
    }
}
