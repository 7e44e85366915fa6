//! Linux's P2PDMA decision: may `client` reach the memory of `provider`, and how.
//!
//! Source of every rule: `drivers/pci/p2pdma.c` (`calc_map_type_and_dist`, `pci_bridge_has_acs_redir`,
//! `cpu_supports_p2pdma`, `host_bridge_whitelist`) and the map types of `include/linux/pci-p2pdma.h`.

use crate::Address;
use crate::machine::{Acs, AcsBits, Cpu, Function, Machine};
use std::fmt;

/// How peer memory is mapped (`enum pci_p2pdma_map_type`), with the kernel's numbers.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u8)]
pub enum MapType {
    /// What decides could not be read.
    Unknown = 0,
    /// Not peer memory: ordinary DMA to host memory.
    None = 1,
    /// No path.
    NotSupported = 2,
    /// Straight through the common switch, by bus address, past the IOMMU.
    BusAddr = 3,
    /// Up to the host bridge and down again, by an ordinary mapping.
    ThruHostBridge = 4,
}

impl fmt::Display for MapType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            MapType::Unknown => "UNKNOWN",
            MapType::None => "NONE",
            MapType::NotSupported => "NOT_SUPPORTED",
            MapType::BusAddr => "BUS_ADDR",
            MapType::ThruHostBridge => "THRU_HOST_BRIDGE",
        })
    }
}

/// The decision about a pair and what it rests on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Verdict {
    /// Map type.
    pub map_type: MapType,
    /// Hops through the common upstream bridge, or over both root buses: 0 the same function, 2 one device, 4 one switch.
    pub distance: u32,
    /// The bridge at which the paths meet, unless they meet above the root buses.
    pub common: Option<Address>,
    /// Functions whose ACS redirects peer traffic upwards (`pci=disable_acs_redir=` takes these).
    pub redirects: Vec<Address>,
    /// Functions on the path whose ACS could not be read.
    pub unread: Vec<Address>,
    /// Why it is `NotSupported` or `Unknown`, and what to do; empty otherwise.
    pub reason: String,
}

/// The bits that send peer traffic to the root complex (`pci_bridge_has_acs_redir`).
pub(crate) const REDIRECT: AcsBits = AcsBits::RR.union(AcsBits::CR).union(AcsBits::EC);

const ANY: u32 = u32::MAX;

/// Host bridges that route between their ports (`pci_p2pdma_whitelist`): vendor, device of the first device of the root bus,
/// and whether only within one host bridge.
const LISTED: &[(u16, u32, bool)] = &[
    // Xeon E5, Core i7
    (0x8086, 0x3c00, true),
    (0x8086, 0x3c01, true),
    // Xeon E7 v3, E5 v3
    (0x8086, 0x2f00, true),
    (0x8086, 0x2f01, true),
    // Skylake-E
    (0x8086, 0x2030, false),
    (0x8086, 0x2031, false),
    (0x8086, 0x2032, false),
    (0x8086, 0x2033, false),
    (0x8086, 0x2020, false),
    // Ice Lake and later
    (0x8086, 0x09a2, false),
    // DSA and IAX of Sapphire Rapids, DSA of Granite Rapids-D, DSA and IAA of Diamond Rapids
    (0x8086, 0x0b25, false),
    (0x8086, 0x0cfe, false),
    (0x8086, 0x11fb, false),
    (0x8086, 0x1212, false),
    (0x8086, 0x1216, false),
    // QAT 4xxx, 401xx, 402xx, 420xx, 6xxx
    (0x8086, 0x4940, false),
    (0x8086, 0x4942, false),
    (0x8086, 0x4944, false),
    (0x8086, 0x4946, false),
    (0x8086, 0x4948, false),
    // Google
    (0x1ae0, ANY, false),
    // NVIDIA
    (0x10de, 0x2f95, false),
    (0x10de, 0x2f96, false),
    (0x10de, 0x2f97, false),
    (0x10de, 0x2f98, false),
];

/// The verdict for `client`, which issues the DMA, and `provider`, whose memory it touches.
pub fn verdict(machine: &Machine, provider: &Function, client: &Function) -> Verdict {
    let up_a: Vec<&Function> = machine.upwards(provider).collect();
    let up_b: Vec<&Function> = machine.upwards(client).collect();
    let meeting = up_a
        .iter()
        .enumerate()
        .find_map(|(i, a)| up_b.iter().position(|b| b.address == a.address).map(|j| (i, j)));
    let Some((i, j)) = meeting else {
        let distance = (up_a.len() + up_b.len()) as u32;
        let found = Found { distance, ..Found::default() };
        return found.through_host_bridge(machine, provider, client);
    };
    let mut found =
        Found { distance: (i + j) as u32, common: Some(up_a[i].address), ..Found::default() };
    for function in up_a[..=i].iter().chain(&up_b[..j]) {
        match function.acs {
            Acs::Enabled(bits) if bits.intersects(REDIRECT) => {
                found.redirects.push(function.address)
            }
            Acs::Unknown => found.unread.push(function.address),
            _ => {}
        }
    }
    if !found.redirects.is_empty() {
        return found.through_host_bridge(machine, provider, client);
    }
    if let Some(first) = found.unread.first() {
        let reason = format!("the ACS bits of {first} could not be read (needs root)");
        return found.verdict(MapType::Unknown, reason);
    }
    found.verdict(MapType::BusAddr, String::new())
}

#[derive(Default)]
struct Found {
    distance: u32,
    common: Option<Address>,
    redirects: Vec<Address>,
    unread: Vec<Address>,
}

impl Found {
    fn verdict(self, map_type: MapType, reason: String) -> Verdict {
        let Found { distance, common, redirects, unread } = self;
        Verdict { map_type, distance, common, redirects, unread, reason }
    }

    fn through_host_bridge(
        self,
        machine: &Machine,
        provider: &Function,
        client: &Function,
    ) -> Verdict {
        match host_bridge_allows(machine, provider, client) {
            Allowed::Yes => self.verdict(MapType::ThruHostBridge, String::new()),
            Allowed::Unknown(why) => self.verdict(MapType::Unknown, why),
            Allowed::No(why) => {
                let remedy = match self.redirects.as_slice() {
                    [] => "the functions must share a switch, or the processor must be on the kernel's list".into(),
                    redirects => {
                        let list: Vec<String> = redirects.iter().map(Address::to_string).collect();
                        format!("ACS redirect can be switched off: pci=disable_acs_redir={}", list.join(";"))
                    }
                };
                self.verdict(MapType::NotSupported, format!("{why}; {remedy}"))
            }
        }
    }
}

enum Allowed {
    Yes,
    No(String),
    Unknown(String),
}

fn host_bridge_allows(machine: &Machine, provider: &Function, client: &Function) -> Allowed {
    match machine.cpu() {
        // any Zen or newer (cpu_supports_p2pdma)
        Some(Cpu { vendor, family }) if vendor == "AuthenticAMD" && *family >= 0x17 => {
            return Allowed::Yes;
        }
        Some(_) => {}
        None => return Allowed::Unknown("the processor is not known".into()),
    }
    let hosts = [machine.host_of(provider), machine.host_of(client)];
    let same = hosts[0] == hosts[1];
    for host in if same { &hosts[..1] } else { &hosts[..] } {
        let Some(host) = host.and_then(|index| machine.hosts().get(index)) else {
            return Allowed::Unknown("the host bridge is not known".into());
        };
        let Some((vendor, device)) = host.root_device else {
            return Allowed::Unknown(format!(
                "the first device of host bridge {} is not known",
                host.name
            ));
        };
        let entry =
            LISTED.iter().find(|e| e.0 == vendor && (e.1 == ANY || e.1 == u32::from(device)));
        match entry {
            None => {
                return Allowed::No(format!(
                    "host bridge {} ({vendor:04x}:{device:04x}) is not on the kernel's list of those that route between ports",
                    host.name
                ));
            }
            Some((_, _, true)) if !same => {
                return Allowed::No(format!(
                    "host bridge {} ({vendor:04x}:{device:04x}) routes only within itself",
                    host.name
                ));
            }
            Some(_) => {}
        }
    }
    Allowed::Yes
}

#[cfg(test)]
#[path = "verdict_tests.rs"]
mod tests;
