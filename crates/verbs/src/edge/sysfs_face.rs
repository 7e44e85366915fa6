//! What sysfs says about devices and the generated tree cannot know: who they are on this host,
//! addresses that come and go, and counters.

use crate::engine::process;
use crate::platform::device;
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
    let engine = process::running_now(device)?;
    engine.device.port(number.parse().ok()?).ok()?;
    Some(sysfs::port_content(&port(&engine.device)?, file)?.into_bytes())
}

/// Client and file of a path below the Peer-Direct clients.
fn peer(path: &str) -> Option<(&str, &str)> {
    path.strip_prefix(sysfs::PEERS)?.strip_prefix('/')?.split_once('/')
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
        // Without an open device nothing changes either.
        assert_eq!(attribute("class/infiniband/peerdma0/ports/1/gids/0"), None);
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
