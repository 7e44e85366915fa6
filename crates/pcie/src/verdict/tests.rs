//! One case for each rule of `drivers/pci/p2pdma.c` and for the facts the rules read.

use super::*;
use crate::{Below, HostBridge, Kernel, Kind};
use Acs::{Absent, Enabled, Unknown};

const INTEL: (u16, u16) = (0x8086, 0x09a2);

fn address(text: &str) -> Address {
    text.parse().unwrap()
}

fn function(at: &str, kind: Kind, below: Below, acs: Acs) -> Function {
    Function { acs, ..Function::new(address(at), kind, below) }
}

/// Two host bridges. Below the first a switch with devices at 04:00 (two functions) and 05:00, and
/// a device at 06:00 on a root port of its own; below the second a device at 81:00.
struct Board {
    cpu: Option<Cpu>,
    hosts: [Option<(u16, u16)>; 2],
    acs: Vec<(&'static str, Acs)>,
    kernel: Option<&'static str>,
}

impl Board {
    fn new() -> Board {
        Board {
            cpu: Some(Cpu { vendor: "GenuineIntel".into(), family: 6 }),
            hosts: [Some(INTEL), Some(INTEL)],
            acs: Vec::new(),
            kernel: None,
        }
    }
    fn cpu(vendor: &str, family: u32) -> Board {
        Board {
            cpu: Some(Cpu { vendor: vendor.into(), family }),
            hosts: [Some((0x1022, 1)); 2],
            acs: Vec::new(),
            kernel: None,
        }
    }
    fn hosts(a: (u16, u16), b: (u16, u16)) -> Board {
        Board { hosts: [Some(a), Some(b)], ..Board::new() }
    }
    fn acs(mut self, at: &'static str, acs: Acs) -> Board {
        self.acs.push((at, acs));
        self
    }
    fn kernel(self, release: &'static str) -> Board {
        Board { kernel: Some(release), ..self }
    }
    fn verdict(&self, provider: &str, client: &str) -> Verdict {
        use Kind::*;
        let acs = |at: &str| self.acs.iter().find(|a| a.0 == at).map_or(Absent, |a| a.1);
        let port = |at: &str| Below::Port(address(at));
        let all = [
            ("00:01.0", RootPort, Below::Host(0)),
            ("02:00.0", SwitchUpstream, port("00:01.0")),
            ("03:00.0", SwitchDownstream, port("02:00.0")),
            ("03:01.0", SwitchDownstream, port("02:00.0")),
            ("04:00.0", Endpoint, port("03:00.0")),
            ("04:00.1", Endpoint, port("03:00.0")),
            ("05:00.0", Endpoint, port("03:01.0")),
            ("00:02.0", RootPort, Below::Host(0)),
            ("06:00.0", Endpoint, port("00:02.0")),
            ("80:01.0", RootPort, Below::Host(1)),
            ("81:00.0", Endpoint, port("80:01.0")),
        ];
        let functions = all.map(|(at, kind, below)| function(at, kind, below, acs(at))).to_vec();
        let hosts = [0, 1].map(|i| HostBridge {
            shown: crate::Shown::Bridges,
            name: format!("h{i}"),
            numa_node: None,
            root_device: self.hosts[i],
        });
        let mut machine = Machine::new(self.cpu.clone(), hosts.to_vec(), functions).unwrap();
        machine.set_kernel(self.kernel.and_then(Kernel::new));
        let get = |at| machine.function(address(at)).unwrap();
        verdict(&machine, get(provider), get(client))
    }
}

/// Map type and distance.
fn short(v: Verdict) -> (MapType, u32) {
    (v.map_type, v.distance)
}

use MapType::{BusAddr, NotSupported, ThruHostBridge};

#[test]
fn distances_through_the_common_bridge() {
    // calc_map_type_and_dist: dist_a + dist_b
    let b = Board::new();
    assert_eq!(short(b.verdict("04:00.0", "04:00.0")), (BusAddr, 0), "the same function");
    assert_eq!(short(b.verdict("04:00.0", "04:00.1")), (BusAddr, 2), "one device");
    assert_eq!(short(b.verdict("04:00.0", "05:00.0")), (BusAddr, 4), "one switch");
    assert_eq!(b.verdict("04:00.0", "05:00.0").common, Some(address("02:00.0")));
}

#[test]
fn no_common_bridge_goes_through_the_host_bridge() {
    // calc_map_type_and_dist: both loops run out, dist = all hops of both
    let b = Board::new();
    assert_eq!(short(b.verdict("04:00.0", "06:00.0")), (ThruHostBridge, 4 + 2), "one host bridge");
    assert_eq!(short(b.verdict("04:00.0", "81:00.0")), (ThruHostBridge, 4 + 2), "two host bridges");
}

#[test]
fn any_redirect_bit_on_the_path_counts() {
    // pci_bridge_has_acs_redir: RR | CR | EC; the others do not matter
    for bit in AcsBits::all().iter() {
        let redirects = REDIRECT.contains(bit);
        for at in ["03:00.0", "03:01.0", "02:00.0", "04:00.0", "05:00.0"] {
            let v = Board::new().acs(at, Enabled(bit)).verdict("04:00.0", "05:00.0");
            let expected = if redirects { ThruHostBridge } else { BusAddr };
            assert_eq!(short(v.clone()), (expected, 4), "{bit:?} on {at}");
            assert_eq!(v.redirects.len(), usize::from(redirects));
        }
    }
}

#[test]
fn redirect_off_the_path_does_not_count() {
    // check_b_path_acs: both legs stop at the common bridge
    for at in ["00:01.0", "00:02.0", "06:00.0", "04:00.1"] {
        let v = Board::new().acs(at, Enabled(AcsBits::RR)).verdict("04:00.0", "05:00.0");
        assert_eq!(v.map_type, BusAddr, "{at}");
    }
}

#[test]
fn redirect_needs_a_host_bridge_that_routes() {
    // map_through_host_bridge after acs_cnt != 0; the hint is dev_info's disable_acs_redir
    let v = Board::hosts((0x8086, 0x1234), INTEL)
        .acs("03:00.0", Enabled(AcsBits::RR))
        .verdict("04:00.0", "05:00.0");
    assert_eq!(short(v.clone()), (NotSupported, 4));
    assert!(v.reason.contains("pci=disable_acs_redir=0000:03:00.0"), "{}", v.reason);
}

#[test]
fn zen_and_newer_always_route() {
    // cpu_supports_p2pdma: X86_VENDOR_AMD and family >= 0x17
    for (vendor, family, expected) in [
        ("AuthenticAMD", 0x17, ThruHostBridge),
        ("AuthenticAMD", 0x1a, ThruHostBridge),
        ("AuthenticAMD", 0x16, NotSupported),
        ("HygonGenuine", 0x18, NotSupported),
        ("GenuineIntel", 0x17, NotSupported),
    ] {
        let v = Board::cpu(vendor, family).verdict("04:00.0", "81:00.0");
        assert_eq!(v.map_type, expected, "{vendor} {family:#x}");
    }
}

#[test]
fn listed_host_bridges() {
    // pci_p2pdma_whitelist; REQ_SAME_HOST_BRIDGE on the first four
    for &Listed { vendor, device, same_bridge: same_only, .. } in LISTED {
        let id = (vendor, if device == ANY { 0x4242 } else { device as u16 });
        let b = Board::hosts(id, id);
        assert_eq!(b.verdict("04:00.0", "06:00.0").map_type, ThruHostBridge, "{id:x?} within one");
        let across = if same_only { NotSupported } else { ThruHostBridge };
        assert_eq!(b.verdict("04:00.0", "81:00.0").map_type, across, "{id:x?} across two");
    }
    let same_only: Vec<u32> = LISTED.iter().filter(|e| e.same_bridge).map(|e| e.device).collect();
    assert_eq!(same_only, [0x3c00, 0x3c01, 0x2f00, 0x2f01]);
}

#[test]
fn the_list_is_the_running_kernels() {
    use MapType::Unknown as Open;
    let intel = |device| Board::hosts((0x8086, device), (0x8086, device));
    let google = || Board::hosts((0x1ae0, 1), (0x1ae0, 1));
    let nvidia = || Board::hosts((0x10de, 0x2f95), (0x10de, 0x2f95));
    let zen =
        |device| Board { hosts: [Some((0x1022, device)); 2], ..Board::cpu("AuthenticAMD", 0x17) };
    for (board, expected) in [
        (intel(0x09a2).kernel("5.17.0"), NotSupported),
        (intel(0x09a2).kernel("5.18.0"), ThruHostBridge),
        (intel(0x09a2).kernel("5.14.0-427.el9.x86_64"), Open),
        (intel(0x2030).kernel("5.5.19"), NotSupported),
        (intel(0x2030).kernel("5.6.1"), ThruHostBridge),
        (intel(0x2031).kernel("5.6.1"), NotSupported),
        (intel(0x2033).kernel("5.7.1"), ThruHostBridge),
        (intel(0x0b25).kernel("6.12.1"), NotSupported),
        (intel(0x0b25).kernel("6.18.1"), Open),
        (intel(0x0b25).kernel("7.3.0"), ThruHostBridge),
        (google().kernel("7.0.4"), NotSupported),
        (google().kernel("7.1.0"), ThruHostBridge),
        (nvidia().kernel("6.12.0"), NotSupported),
        (intel(0x1234).kernel("7.3.0"), NotSupported),
        (intel(0x1234).kernel("7.9.0"), Open),
        (Board::cpu("AuthenticAMD", 0x19).kernel("5.8.0"), NotSupported),
        (Board::cpu("AuthenticAMD", 0x19).kernel("5.9.0"), ThruHostBridge),
        (zen(0x1450).kernel("5.1.0"), NotSupported),
        (zen(0x1450).kernel("5.3.0"), Open),
        (zen(0x1450).kernel("5.4.0"), ThruHostBridge),
        (zen(0x1630).kernel("5.7.0"), NotSupported),
        (zen(0x1630).kernel("5.8.0"), ThruHostBridge),
        // Zen 2 was never on the list
        (zen(0x1480).kernel("5.8.0"), NotSupported),
        (zen(0x1480).kernel("5.9.0"), ThruHostBridge),
    ] {
        let verdict = board.verdict("04:00.0", "81:00.0");
        assert_eq!(verdict.map_type, expected, "{:?}: {}", board.kernel, verdict.reason);
    }
}

#[test]
fn the_remedy_is_one_that_the_kernel_knows() {
    let bridges = [address("03:00.0"), address("03:01.0")];
    let remedy = |release| {
        let mut machine = Machine::new(None, Vec::new(), Vec::new()).unwrap();
        machine.set_kernel(Kernel::new(release));
        crate::without_redirect(&machine, &bridges)
    };
    assert_eq!(remedy("4.18.0"), None);
    let old = "pci=disable_acs_redir=0000:03:00.0;0000:03:01.0";
    let old_ones = ["4.18.0-553.el8.x86_64", "4.19.0", "5.15.0", "6.8.0", "6.11.0", "6.14.9"];
    for release in old_ones.into_iter().chain(["unknown"]) {
        assert_eq!(remedy(release).as_deref(), Some(old), "{release}");
    }
    let new = "pci=config_acs=x0x00xx@0000:03:00.0;x0x00xx@0000:03:01.0";
    for release in ["6.15.0", "7.3.1"] {
        assert_eq!(remedy(release).as_deref(), Some(new), "{release}");
    }
    let redirected = Board::hosts((0x8086, 0x1234), INTEL).acs("03:00.0", Enabled(AcsBits::RR));
    let reason = redirected.kernel("4.18.0").verdict("04:00.0", "05:00.0").reason;
    assert!(reason.contains("from 4.19 on"), "{reason}");
}

#[test]
fn both_host_bridges_must_be_listed() {
    // host_bridge_whitelist: __host_bridge_whitelist(host_a) && __host_bridge_whitelist(host_b)
    let other = (0x8086, 0x1234);
    assert_eq!(Board::hosts(INTEL, other).verdict("04:00.0", "81:00.0").map_type, NotSupported);
    assert_eq!(Board::hosts(other, INTEL).verdict("04:00.0", "81:00.0").map_type, NotSupported);
    // within the first, the second does not matter
    assert_eq!(Board::hosts(INTEL, other).verdict("04:00.0", "06:00.0").map_type, ThruHostBridge);
}

#[test]
fn what_was_not_read_is_unknown_and_not_off() {
    let v = Board::new().acs("03:00.0", Unknown).verdict("04:00.0", "05:00.0");
    assert_eq!((v.map_type, v.unread), (MapType::Unknown, vec![address("03:00.0")]));
    // a known redirect decides whatever the others are
    let v = Board::new()
        .acs("03:00.0", Unknown)
        .acs("03:01.0", Enabled(AcsBits::CR))
        .verdict("04:00.0", "05:00.0");
    assert_eq!(v.map_type, ThruHostBridge);
    let v = Board { cpu: None, ..Board::new() }.verdict("04:00.0", "81:00.0");
    assert_eq!(v.map_type, MapType::Unknown);
    let v = Board { hosts: [None, Some(INTEL)], ..Board::new() }.verdict("04:00.0", "81:00.0");
    assert_eq!(v.map_type, MapType::Unknown);
    // neither matters where the path turns round below
    assert_eq!(
        Board { cpu: None, hosts: [None; 2], ..Board::new() }
            .verdict("04:00.0", "05:00.0")
            .map_type,
        BusAddr
    );
}

#[test]
fn map_types_have_the_kernels_numbers() {
    // include/linux/pci-p2pdma.h
    assert_eq!(
        [0, 1, 2, 3, 4],
        [MapType::Unknown, MapType::None, NotSupported, BusAddr, ThruHostBridge].map(|t| t as u8)
    );
}
