//! Linux's P2PDMA decision: may `client` reach the memory of `provider`, and how.
//!
//! The kernel's release bounds the answer: its list of host bridges grew. Without a release the
//! newest list counts.
//!
//! Source of every rule: `drivers/pci/p2pdma.c` (`calc_map_type_and_dist`,
//! `pci_bridge_has_acs_redir`, `cpu_supports_p2pdma`, `host_bridge_whitelist`) and the map types of
//! `include/linux/pci-p2pdma.h`.

use crate::machine::{Acs, AcsBits, Cpu, Function, Machine};
use crate::{Address, NEWEST_READ, Version};
use std::fmt;

/// How peer memory is mapped (`enum pci_p2pdma_map_type`), with the kernel's numbers.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u8)]
pub enum MapType {
    /// The machine did not show what the verdict depends on.
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
    /// Hops through the common upstream bridge, or over both root buses: 0 the same function, 2 one
    /// device, 4 one switch.
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

/// A host bridge that routes between its ports (`pci_p2pdma_whitelist`).
struct Listed {
    vendor: u16,
    /// Device id of the first device on the root bus, or [`ANY`].
    device: u32,
    /// Only within one host bridge.
    same_bridge: bool,
    /// In this version's list for certain, and in none before the second.
    since: (Version, Version),
}

const fn listed(vendor: u16, device: u32, since: (Version, Version)) -> Listed {
    Listed { vendor, device, same_bridge: false, since }
}

const fn within_one(device: u32) -> Listed {
    Listed { vendor: 0x8086, device, same_bridge: true, since: V5_4 }
}

/// Zen's root complex, of the list's first form; seen in 5.4, and in none before 5.2.
const V5_2: (Version, Version) = (Version(5, 4), Version(5, 2));
/// "Whitelist some Intel host bridges".
const V5_4: (Version, Version) = (Version(5, 4), Version(5, 4));
/// "Add Intel SkyLake-E to the whitelist".
const V5_6: (Version, Version) = (Version(5, 6), Version(5, 6));
/// "Add Intel Sky Lake-E Root Ports B, C, D to the whitelist".
const V5_7: (Version, Version) = (Version(5, 7), Version(5, 7));
/// "Add AMD Zen Raven and Renoir Root Ports to whitelist".
const V5_8: (Version, Version) = (Version(5, 8), Version(5, 8));
/// "Add Intel 3rd Gen Intel Xeon Scalable Processors to whitelist".
const V5_18: (Version, Version) = (Version(5, 18), Version(5, 18));
/// "Add Google SoCs to the P2P DMA host bridge list".
const V7_1: (Version, Version) = (Version(7, 1), Version(7, 1));
/// What is in the newest source read and not in 6.12's.
const LATELY: (Version, Version) = (NEWEST_READ, Version(6, 13));
/// AMD's processors by family: "Allow P2PDMA on AMD Zen and newer CPUs".
const ZEN: (Version, Version) = (Version(5, 9), Version(5, 9));

const LISTED: &[Listed] = &[
    // AMD Zen, Raven and Renoir: off the list since every Zen processor is taken, which says the
    // same
    listed(0x1022, 0x1450, V5_2),
    listed(0x1022, 0x15d0, V5_8),
    listed(0x1022, 0x1630, V5_8),
    // Xeon E5, Core i7
    within_one(0x3c00),
    within_one(0x3c01),
    // Xeon E7 v3, E5 v3
    within_one(0x2f00),
    within_one(0x2f01),
    // Skylake-E
    listed(0x8086, 0x2030, V5_6),
    listed(0x8086, 0x2031, V5_7),
    listed(0x8086, 0x2032, V5_7),
    listed(0x8086, 0x2033, V5_7),
    listed(0x8086, 0x2020, V5_6),
    // Ice Lake and later
    listed(0x8086, 0x09a2, V5_18),
    // DSA and IAX of Sapphire Rapids, DSA of Granite Rapids-D, DSA and IAA of Diamond Rapids
    listed(0x8086, 0x0b25, LATELY),
    listed(0x8086, 0x0cfe, LATELY),
    listed(0x8086, 0x11fb, LATELY),
    listed(0x8086, 0x1212, LATELY),
    listed(0x8086, 0x1216, LATELY),
    // QAT 4xxx, 401xx, 402xx, 420xx, 6xxx
    listed(0x8086, 0x4940, LATELY),
    listed(0x8086, 0x4942, LATELY),
    listed(0x8086, 0x4944, LATELY),
    listed(0x8086, 0x4946, LATELY),
    listed(0x8086, 0x4948, LATELY),
    // Google
    listed(0x1ae0, ANY, V7_1),
    // NVIDIA
    listed(0x10de, 0x2f95, LATELY),
    listed(0x10de, 0x2f96, LATELY),
    listed(0x10de, 0x2f97, LATELY),
    listed(0x10de, 0x2f98, LATELY),
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
        for function in [provider, client] {
            if !machine.shows_bridges_above(function) {
                let reason =
                    format!("the bridges above {} are not in the source", function.address);
                return found.verdict(MapType::Unknown, reason);
            }
        }
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
                let old = machine.kernel().is_some_and(|kernel| {
                    kernel.has(Version(4, 19), Version(4, 19)) == Some(false)
                });
                let remedy = match self.redirects.as_slice() {
                    [] => "the functions must share a switch, or the processor must be on the \
                           kernel's list"
                        .into(),
                    _ if old => {
                        "a kernel from 4.19 on can be told to switch ACS redirect off".into()
                    }
                    redirects => {
                        let list: Vec<String> = redirects.iter().map(Address::to_string).collect();
                        format!(
                            "ACS redirect can be switched off: pci=disable_acs_redir={}",
                            list.join(";")
                        )
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

/// Whether a machine's kernel has a rule.
fn has(machine: &Machine, (since, not_before): (Version, Version)) -> Option<bool> {
    machine.kernel().map_or(Some(true), |kernel| kernel.has(since, not_before))
}

fn kernel_name(machine: &Machine) -> String {
    machine.kernel().map_or("the kernel".into(), |kernel| format!("kernel {}", kernel.release))
}

fn host_bridge_allows(machine: &Machine, provider: &Function, client: &Function) -> Allowed {
    match machine.cpu() {
        // any Zen or newer (cpu_supports_p2pdma)
        Some(Cpu { vendor, family }) if vendor == "AuthenticAMD" && *family >= 0x17 => {
            match has(machine, ZEN) {
                Some(true) => return Allowed::Yes,
                Some(false) => {}
                None => {
                    return Allowed::Unknown(format!(
                        "whether {} takes every Zen processor is not known",
                        kernel_name(machine)
                    ));
                }
            }
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
        let bridge = format!("host bridge {} ({vendor:04x}:{device:04x})", host.name);
        let entry = LISTED
            .iter()
            .find(|e| e.vendor == vendor && (e.device == ANY || e.device == u32::from(device)));
        match entry.map(|entry| (entry, has(machine, entry.since))) {
            None if machine.kernel().is_some_and(|kernel| kernel.version > NEWEST_READ) => {
                return Allowed::Unknown(format!(
                    "{bridge} was not on the list of {NEWEST_READ}; that of {} is not known",
                    kernel_name(machine)
                ));
            }
            None => {
                return Allowed::No(format!(
                    "{bridge} is not on the kernel's list of those that route between ports"
                ));
            }
            Some((entry, Some(false))) => {
                return Allowed::No(format!(
                    "{bridge} is on the kernel's list of those that route between ports from {} \
                     on, not in {}",
                    entry.since.0,
                    kernel_name(machine)
                ));
            }
            Some((entry, None)) => {
                return Allowed::Unknown(format!(
                    "{bridge} is on the kernel's list of those that route between ports in {}; \
                     whether in {} is not known",
                    entry.since.0,
                    kernel_name(machine)
                ));
            }
            Some((entry, _)) if entry.same_bridge && !same => {
                return Allowed::No(format!("{bridge} routes only within itself"));
            }
            Some(_) => {}
        }
    }
    Allowed::Yes
}

#[cfg(test)]
mod tests;
