//! The tree as programs read it: through links, from the class folders, and attribute by attribute.

use std::fs;
use std::path::{Path, PathBuf};

use sysfs::{
    Counter, DeviceDescription, Gid, LaneSpeed, LinkLayer, Node, PciFunction, PhysState, Port,
    PortState, Rate, content, entries, write_tree,
};

fn device() -> DeviceDescription {
    let mut gid = [0u8; 16];
    gid[10..].copy_from_slice(&[0xff, 0xff, 10, 0, 0, 7]);
    DeviceDescription {
        name: "peerdma0".into(),
        node_guid: 0x0250_56ff_fe01_0203,
        sys_image_guid: 0x0250_56ff_fe01_0204,
        node_desc: "peerdma".into(),
        board_id: "PEERDMA0001".into(),
        fw_ver: "1.0.0".into(),
        hca_type: "peerdma".into(),
        hw_rev: 0,
        uverbs_index: 0,
        ports: vec![Port {
            state: PortState::Active,
            phys_state: PhysState::LinkUp,
            link_layer: LinkLayer::Ethernet,
            rate: Rate { lanes: 4, lane_speed: LaneSpeed::Edr },
            lid: 0,
            lid_mask_count: 0,
            sm_lid: 0,
            sm_sl: 0,
            cap_mask: 0x0001_0000,
            gid_table_len: 4,
            gids: vec![Gid { index: 1, gid, ifname: "eth0".into(), gid_type: "RoCE v2".into() }],
            pkeys: vec![0xffff],
            counters: vec![Counter { name: "port_xmit_data".into(), value: 42 }],
            hw_counters: vec![Counter { name: "out_of_sequence".into(), value: 7 }],
        }],
        pci: PciFunction {
            bdf: "0000:3b:00.0".into(),
            bridges: vec!["0000:3a:00.0".into()],
            vendor: 0x1af4,
            device: 0x10f0,
            subsystem_vendor: 0x1af4,
            subsystem_device: 1,
            revision: 0,
            class: 0x02_0000,
            numa_node: 0,
            local_cpus: vec![0, 1],
            bars: vec![],
            link_speed_tenth_gt_s: 160,
            link_width: 16,
        },
        netdevs: vec!["lo".into()],
        twin_ports: 0,
    }
}

struct TempDir(PathBuf);

impl TempDir {
    fn new(name: &str) -> TempDir {
        let path =
            std::env::temp_dir().join(format!("peerdma-sysfs-{}-{name}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        TempDir(path)
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn read(root: &Path, path: &str) -> String {
    fs::read_to_string(root.join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

#[test]
fn class_links_lead_to_the_attributes() {
    let root = TempDir::new("links");
    write_tree(&root.0, &device()).unwrap();
    let class = "class/infiniband/peerdma0";
    for (path, text) in [
        ("node_guid", "0250:56ff:fe01:0203\n"),
        ("sys_image_guid", "0250:56ff:fe01:0204\n"),
        ("node_type", "1: CA\n"),
        ("fw_ver", "1.0.0\n"),
        ("ports/1/state", "4: ACTIVE\n"),
        ("ports/1/phys_state", "5: LinkUp\n"),
        ("ports/1/rate", "100 Gb/sec (4X EDR)\n"),
        ("ports/1/link_layer", "Ethernet\n"),
        ("ports/1/lid", "0x0\n"),
        ("ports/1/cap_mask", "0x00010000\n"),
        ("ports/1/gids/0", "0000:0000:0000:0000:0000:0000:0000:0000\n"),
        ("ports/1/gids/1", "0000:0000:0000:0000:0000:ffff:0a00:0007\n"),
        ("ports/1/gid_attrs/types/1", "RoCE v2\n"),
        ("ports/1/gid_attrs/ndevs/1", "eth0\n"),
        ("ports/1/pkeys/0", "0xffff\n"),
        ("ports/1/counters/port_xmit_data", "42\n"),
        ("ports/1/counters/symbol_error", "0\n"),
        ("ports/1/hw_counters/out_of_sequence", "7\n"),
        ("device/vendor", "0x1af4\n"),
        ("device/numa_node", "0\n"),
        ("device/class", "0x020000\n"),
        ("device/../class", "0x060400\n"),
        ("device/local_cpus", "00000003\n"),
    ] {
        assert_eq!(read(&root.0, &format!("{class}/{path}")), text, "{path}");
    }
    assert!(!root.0.join(class).join("ports/1/gid_attrs/types/0").exists());
    assert!(!root.0.join(class).join("ports/1/gids/4").exists());
    assert_eq!(read(&root.0, "class/infiniband_verbs/uverbs0/ibdev"), "peerdma0\n");
    assert_eq!(read(&root.0, "class/infiniband_verbs/uverbs0/dev"), "231:192\n");
    assert_eq!(
        read(&root.0, "class/infiniband_verbs/uverbs0/device/infiniband/peerdma0/node_type"),
        "1: CA\n"
    );
    assert_eq!(read(&root.0, "class/infiniband_verbs/abi_version"), "6\n");
    assert_eq!(read(&root.0, "bus/pci/devices/0000:3b:00.0/device"), "0x10f0\n");
    let function = fs::canonicalize(root.0.join(class).join("device")).unwrap();
    let expected = root.0.join("devices/pci0000:3a/0000:3a:00.0/0000:3b:00.0");
    assert_eq!(function, fs::canonicalize(expected).unwrap());
    assert!(root.0.join(class).join("device/net/lo").symlink_metadata().is_ok());
}

#[test]
fn every_port_is_there_and_twins_show_the_same() {
    let root = TempDir::new("ports");
    write_tree(&root.0, &DeviceDescription { twin_ports: 299, ..device() }).unwrap();
    let ports = root.0.join("class/infiniband/peerdma0/ports");
    assert_eq!(fs::read_dir(&ports).unwrap().count(), 300);
    for number in [1, 2, 255, 256, 300] {
        let gid = read(&ports, &format!("{number}/gids/1"));
        assert_eq!(gid, "0000:0000:0000:0000:0000:ffff:0a00:0007\n", "{number}");
        assert!(ports.join(number.to_string()).is_dir(), "{number}");
    }
    assert!(!ports.join("301").exists());
}

#[test]
fn writing_twice_replaces_what_was_there() {
    let root = TempDir::new("twice");
    let mut device = device();
    write_tree(&root.0, &device).unwrap();
    device.fw_ver = "2.0.0".into();
    write_tree(&root.0, &device).unwrap();
    assert_eq!(read(&root.0, "class/infiniband/peerdma0/fw_ver"), "2.0.0\n");
}

#[test]
fn content_answers_what_the_tree_holds() {
    let device = device();
    let directory = format!("{}/infiniband/", device.pci.directory());
    let mut compared = 0;
    for entry in entries(&device) {
        if let (Node::File(text), Some(rest)) =
            (&entry.node, entry.path.strip_prefix(directory.as_str()))
        {
            assert_eq!(
                content(&device, &format!("class/infiniband/{rest}")).as_ref(),
                Some(text),
                "{rest}"
            );
            compared += 1;
        }
    }
    assert!(compared > 40, "only {compared} attributes");
}

#[test]
fn content_of_what_is_not_there_is_none() {
    let device = device();
    for path in [
        "",
        "class/infiniband/peerdma0",
        "class/infiniband/peerdma01/fw_ver",
        "class/infiniband/other/fw_ver",
        "class/infiniband/peerdma0/ports",
        "class/infiniband/peerdma0/ports/0/state",
        "class/infiniband/peerdma0/ports/2/state",
        "class/infiniband/peerdma0/ports/x/state",
        "class/infiniband/peerdma0/ports/1/gids/4",
        "class/infiniband/peerdma0/ports/1/gid_attrs/types/0",
        "class/infiniband/peerdma0/ports/1/gid_attrs/types",
        "class/infiniband/peerdma0/ports/1/pkeys/1",
        "class/infiniband/peerdma0/ports/1/counters/none",
        "class/infiniband/peerdma0/ports/1/hw_counters/none",
    ] {
        assert_eq!(content(&device, path), None, "{path}");
    }
}
