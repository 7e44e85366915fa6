//! The kernel as judge: what we say of a machine's PCIe and what Linux makes of
//! the same machine agree, before and after a boot with the parameter that we name.
//!
//! The machine has a switch with two drives, one of which lends its memory, and a third drive below
//! a port of its own. QEMU's switch has no ACS, so root ports stand in for its downstream ports:
//! Linux looks at their bits only.

use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use system::lab::{Booted, Lab};
use system::{c_program, peerdma, skip};
use vm::Machine;

/// Whose memory the others reach for, who shares its switch, and who does not.
const PROVIDER: &str = "0000:03:00.0";
const NEAR: &str = "0000:04:00.0";
const FAR: &str = "0000:05:00.0";
/// What is on every drive.
const BYTE: u8 = 0xa5;
/// A processor whose host bridges pass peer traffic on.
const ZEN: &str = "max,vendor=AuthenticAMD,family=25";

/// A machine that the tests boot in several ways.
struct Court {
    lab: Lab,
    machine: Machine,
}

impl Court {
    fn new() -> Result<Court, String> {
        let judge = c_program("p2p_read")?;
        let lab = Lab::new().map_err(|error| format!("{error:#}"))?;
        let programs = ["lspci", "readlink"];
        let own = [judge.as_path(), peerdma()];
        let machine = lab.machine(&["nvme"], &programs, &own, |_| Ok(()));
        let mut machine = machine.map_err(|error| format!("{error:#}"))?;
        machine.device("intel-iommu");
        machine.root_port("near");
        machine.device("x3130-upstream,id=switch,bus=near");
        for port in 0..2 {
            machine.device(&format!(
                "pcie-root-port,id=switch{port},bus=switch,addr={port},chassis={},slot={port}",
                100 + port
            ));
        }
        machine.root_port("far");
        for (name, above, memory) in [
            ("provider", "switch0", ",cmb_size_mb=16"),
            ("beside", "switch1", ""),
            ("away", "far", ""),
        ] {
            let file = lab.socket(&format!("{name}.img"));
            std::fs::write(&file, vec![BYTE; 1 << 20]).expect("a drive");
            machine.drive(name, &file);
            machine.device(&format!("nvme,serial={name},drive={name},bus={above}{memory}"));
        }
        Ok(Court { lab, machine })
    }

    /// The machine after a boot with more kernel options, on a processor.
    fn boot(&mut self, options: &str, processor: &str) -> Booted {
        // A translating IOMMU of QEMU's would refuse the bus addresses that Linux hands out below a
        // switch.
        self.machine.kernel_options = format!("intel_iommu=on iommu=pt {options}");
        processor.clone_into(&mut self.machine.processor);
        let guest = self.lab.boot(&self.machine);
        guest.output(
            "for i in $(seq 200); do [ -e /dev/nvme2n1 ] && break; usleep 50000; done; \
             ls /dev/nvme2n1",
        );
        guest
    }
}

/// What `peerdma topo` says, of pairs with the provider.
fn topo(guest: &Booted, options: &str) -> Value {
    let said = guest.output(&format!(
        "peerdma topo --json --pair {PROVIDER},{NEAR} --pair {PROVIDER},{FAR} {options}"
    ));
    serde_json::from_str(&said).unwrap_or_else(|error| panic!("{error}\n{said}"))
}

fn text<'a>(value: &'a Value, name: &str) -> &'a str {
    value[name].as_str().unwrap_or_else(|| panic!("no {name} in {value}"))
}

fn functions(topo: &Value) -> impl Iterator<Item = &Value> {
    topo["functions"].as_array().expect("functions").iter()
}

/// ACS bits of every function that has ACS, as we say.
fn acs_said(topo: &Value) -> BTreeMap<String, BTreeSet<String>> {
    let set = |function: &Value| {
        let bits = function["acs"].as_array()?;
        Some(bits.iter().map(|bit| bit.as_str().expect("a name").to_owned()).collect())
    };
    let of = |function| Some((text(function, "address").to_owned(), set(function)?));
    functions(topo).filter_map(of).collect()
}

/// The same as lspci reads it.
fn acs_found(guest: &Booted) -> BTreeMap<String, BTreeSet<String>> {
    let names = [
        ("SrcValid+", "SV"),
        ("TransBlk+", "TB"),
        ("ReqRedir+", "RR"),
        ("CmpltRedir+", "CR"),
        ("UpstreamFwd+", "UF"),
        ("EgressCtrl+", "EC"),
        ("DirectTrans+", "DT"),
    ];
    let said = guest.output("lspci -D -vvv 2> /dev/null");
    let mut found = BTreeMap::new();
    let mut at = "";
    for line in said.lines() {
        if line.starts_with(|first: char| first.is_ascii_hexdigit()) {
            at = line.split(' ').next().unwrap_or_default();
        }
        if let Some((_, bits)) = line.split_once("ACSCtl:") {
            let on = names.iter().filter(|(word, _)| bits.contains(word));
            found.insert(at.to_owned(), on.map(|(_, name)| (*name).to_owned()).collect());
        }
    }
    found
}

/// Who shares a group with whom, whatever the groups' numbers.
type Groups = BTreeSet<BTreeSet<String>>;

fn together(members: impl Iterator<Item = (String, String)>) -> Groups {
    let mut groups: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (member, group) in members {
        groups.entry(group).or_default().insert(member);
    }
    groups.into_values().collect()
}

fn groups_said(topo: &Value) -> Groups {
    let of = |function: &Value| {
        (text(function, "address").to_owned(), function["iommu_group"].to_string())
    };
    together(functions(topo).map(of))
}

fn groups_found(guest: &Booted) -> Groups {
    let said = guest.output(
        "cd /sys/bus/pci/devices && for at in *; do \
         echo $at $(basename $(readlink $at/iommu_group)); done",
    );
    let of = |line: &str| line.split_once(' ').map(|(at, group)| (at.to_owned(), group.to_owned()));
    together(said.lines().filter_map(of))
}

/// Every function with those above it, as we say.
fn tree_said(topo: &Value) -> BTreeSet<String> {
    let above: BTreeMap<&str, &str> =
        functions(topo).map(|f| (text(f, "address"), text(f, "below"))).collect();
    let way = |at: &&str| {
        let up = std::iter::successors(Some(*at), |at| above.get(at).copied());
        let mut up: Vec<&str> = up.take_while(|at| above.contains_key(at)).collect();
        up.reverse();
        // lspci names the domain once.
        let rest = up.iter().skip(1).map(|at| at["0000:".len()..].to_owned());
        let words: Vec<String> =
            up.first().map(|at| (*at).to_owned()).into_iter().chain(rest).collect();
        words.join("/")
    };
    above.keys().map(way).collect()
}

fn tree_found(guest: &Booted) -> BTreeSet<String> {
    let said = guest.output("lspci -D -PP 2> /dev/null");
    said.lines().filter_map(|line| line.split(' ').next()).map(str::to_owned).collect()
}

/// What we say of the way from the provider to a drive.
fn verdict<'a>(topo: &'a Value, nic: &str) -> &'a Value {
    let pairs = topo["pairs"].as_array().expect("pairs");
    pairs.iter().find(|pair| pair["nic"] == nic).expect("the pair")
}

/// Whether Linux lets a drive write into the provider's memory; if so it did.
fn allowed(guest: &Booted, drive: &str) -> bool {
    let said = guest.output(&format!(
        "p2p_read /sys/bus/pci/devices/{PROVIDER}/p2pmem/allocate \
         /dev/$(basename /sys/bus/pci/devices/{drive}/nvme/nvme*)n1"
    ));
    let carried = said.trim() == format!("{BYTE:02x}");
    assert!(carried || said.trim().starts_with('E'), "neither carried nor refused: {said}");
    carried
}

/// Linux and we agree about this machine, now.
fn assert_agreed(guest: &Booted) -> Value {
    let ours = topo(guest, "");
    assert_eq!(tree_said(&ours), tree_found(guest));
    assert_eq!(acs_said(&ours), acs_found(guest));
    assert_eq!(groups_said(&ours), groups_found(guest));
    for drive in [NEAR, FAR] {
        let verdict = text(verdict(&ours, drive), "p2pdma");
        assert_eq!(allowed(guest, drive), verdict != "NOT_SUPPORTED", "{drive}: {verdict}");
    }
    ours
}

#[test]
fn linux_makes_of_our_parameter_what_we_predict() {
    let mut court = match Court::new() {
        Ok(court) => court,
        Err(reason) => skip!("{reason}"),
    };
    let guest = court.boot("", "max");
    let now = assert_agreed(&guest);
    assert_eq!(text(verdict(&now, NEAR), "p2pdma"), "NOT_SUPPORTED", "ACS redirects");
    assert_eq!(
        text(verdict(&now, FAR), "p2pdma"),
        "NOT_SUPPORTED",
        "QEMU's host bridge is on no list"
    );
    let parameter = text(verdict(&now, NEAR), "config_acs");
    let predicted = topo(&guest, &format!("--acs '{parameter}'"));
    assert_eq!(text(verdict(&predicted, NEAR), "p2pdma"), "BUS_ADDR");
    assert_ne!(groups_said(&predicted), groups_said(&now), "what no longer isolates shares groups");
    drop(guest);

    let guest = court.boot(&format!("pci=config_acs={parameter}"), "max");
    let then = assert_agreed(&guest);
    assert_eq!(acs_said(&then), acs_said(&predicted));
    assert_eq!(groups_said(&then), groups_said(&predicted));
    assert_eq!(verdict(&then, NEAR), verdict(&predicted, NEAR));
    assert_eq!(verdict(&then, FAR), verdict(&predicted, FAR));
}

#[test]
fn a_processor_on_the_list_passes_peer_traffic_on() {
    let mut court = match Court::new() {
        Ok(court) => court,
        Err(reason) => skip!("{reason}"),
    };
    let ours = assert_agreed(&court.boot("", ZEN));
    for drive in [NEAR, FAR] {
        assert_eq!(text(verdict(&ours, drive), "p2pdma"), "THRU_HOST_BRIDGE", "{drive}");
    }
}
