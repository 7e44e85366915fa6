//! The text of `lspci -vvv`, better with `-nn` and `-D`, best as root (pciutils' `ls-*.c`).
//!
//! The tree follows from the bridges' bus numbers. Without root lspci prints `<access denied>` where capabilities would stand, and what
//! stands there is unknown.

use crate::sysfs::parse_link;
use crate::{Error, kinds, roles};
use pcie::{Acs, AcsBits, Address, Below, Function, HostBridge, Kind, Link, Machine};
use std::collections::BTreeMap;

const WHAT: &str = "lspci -vvv";

/// Whether a text has a line that begins like a device of lspci.
pub(crate) fn is_listing(text: &str) -> bool {
    text.lines().any(|line| head(line).is_some())
}

/// The address and the rest of a device's first line.
fn head(line: &str) -> Option<(Address, &str)> {
    let (address, rest) = line.split_once(' ')?;
    let usual = line.starts_with(|c: char| c.is_ascii_hexdigit()) && address.contains(':');
    usual.then_some(())?;
    Some((address.parse().ok()?, rest))
}

/// Reads a machine. The processor is not in it.
pub(crate) fn read(text: &str) -> Result<Machine, Error> {
    let mut devices: Vec<Device> = Vec::new();
    for line in text.lines() {
        match head(line) {
            Some((address, rest)) => devices.push(Device::new(address, rest)),
            None => {
                if let Some(device) = devices.last_mut() {
                    device.line(line.trim());
                }
            }
        }
    }
    machine(devices)
}

/// A device with what its lines said.
struct Device {
    function: Function,
    /// Secondary and subordinate bus of a bridge.
    buses: Option<(u8, u8)>,
    denied: bool,
    express: bool,
    capabilities: bool,
}

impl Device {
    fn new(address: Address, rest: &str) -> Device {
        let below = Below::Host(0);
        let mut function = Function::new(address, Kind::Endpoint, below);
        function.class = class(rest);
        function.id = last_bracket(rest).and_then(|text| {
            let (vendor, device) = text.split_once(':')?;
            Some((u16::from_str_radix(vendor, 16).ok()?, u16::from_str_radix(device, 16).ok()?))
        });
        if function.class == Some(0x060400) {
            function.kind = Kind::Bridge;
        }
        Device { function, buses: None, denied: false, express: false, capabilities: false }
    }

    fn line(&mut self, line: &str) {
        let function = &mut self.function;
        let after = |start: &str| line.strip_prefix(start).map(str::trim);
        if let Some(rest) = after("Capabilities:") {
            self.capabilities = true;
            self.denied |= rest.contains("<access denied>");
            if let Some(kind) = rest.split_once("Express ").map(|(_, text)| text) {
                self.express = true;
                function.kind = match () {
                    () if kind.contains("Root Port") => Kind::RootPort,
                    () if kind.contains("Upstream Port") => Kind::SwitchUpstream,
                    () if kind.contains("Downstream Port") => Kind::SwitchDownstream,
                    () => function.kind,
                };
            }
        } else if let Some(rest) = after("Bus:") {
            let number = |name: &str| {
                let (_, text) = rest.split_once(name)?;
                u8::from_str_radix(text.split([',', ' ']).next()?, 16).ok()
            };
            self.buses = number("secondary=").zip(number("subordinate="));
        } else if let Some(rest) = after("LnkSta:") {
            function.link = link(rest);
        } else if let Some(rest) = after("LnkCap:") {
            function.best_link = link(rest);
        } else if let Some(rest) = after("ACSCtl:") {
            function.acs = Acs::Enabled(acs(rest));
        } else if let Some(rest) = after("ACSCap:") {
            function.acs_capable = Some(acs(rest));
        } else if let Some(rest) = after("ATSCtl:") {
            function.ats = Some(rest.contains("Enable+"));
        } else if let Some(rest) = after("NUMA node:") {
            function.numa_node = rest.parse().ok();
        } else if let Some(rest) = after("IOMMU group:") {
            function.iommu_group = rest.parse().ok();
        } else if let Some(rest) = after("Kernel driver in use:") {
            function.driver = Some(rest.to_owned());
        } else if line.starts_with("Region ") && line.contains("Memory at") {
            function.bar_bytes = function.bar_bytes.max(region_bytes(line));
        }
    }

    /// What lspci printed all of, and did not name, is not there.
    fn settle(&mut self) {
        if self.capabilities && !self.denied {
            if self.function.acs == Acs::Unknown {
                self.function.acs = Acs::Absent;
            }
            self.function.ats.get_or_insert(false);
        }
    }
}

fn machine(mut devices: Vec<Device>) -> Result<Machine, Error> {
    // who leads to a bus: the bridge whose secondary bus it is
    let bridges: BTreeMap<(u32, u8), Address> = devices
        .iter()
        .filter_map(|device| {
            let (secondary, _) = device.buses?;
            let address = device.function.address;
            // a bridge that leads to its own bus or to nothing is not configured
            (secondary != 0 && secondary != address.bus)
                .then_some(((address.domain, secondary), address))
        })
        .collect();
    let mut hosts: Vec<HostBridge> = Vec::new();
    let mut guess = Vec::new();
    for device in &mut devices {
        device.settle();
        let Address { domain, bus, .. } = device.function.address;
        device.function.below = match bridges.get(&(domain, bus)) {
            Some(&bridge) => Below::Port(bridge),
            None => Below::Host(host(&mut hosts, format!("pci{domain:04x}:{bus:02x}"))),
        };
        let told = device.capabilities && !device.denied;
        if device.function.kind == Kind::Bridge && !told {
            guess.push(device.function.address);
        }
    }
    let mut functions: Vec<Function> = devices.into_iter().map(|device| device.function).collect();
    kinds::infer(&mut functions, &guess);
    roles::assign(&mut functions);
    for (index, host) in hosts.iter_mut().enumerate() {
        let mut roots = functions.iter().filter(|f| f.below == Below::Host(index));
        host.numa_node = roots.clone().find_map(|f| f.numa_node);
        let first = roots.clone().min_by_key(|f| f.address);
        host.root_device = match first {
            Some(f) if f.kind == Kind::RootPort => f.id,
            Some(f) if (f.address.device, f.address.function) == (0, 0) => f.id,
            _ => roots.next().and_then(|f| f.id).map(|_| HostBridge::NO_DEVICE),
        };
    }
    Machine::new(None, hosts, functions).map_err(|error| Error::Tree(WHAT, error))
}

fn host(hosts: &mut Vec<HostBridge>, name: String) -> usize {
    if let Some(index) = hosts.iter().position(|host| host.name == name) {
        return index;
    }
    hosts.push(HostBridge { name, certain: true, numa_node: None, root_device: None });
    hosts.len() - 1
}

/// The class of `PCI bridge [0604]: …` or, without `-n`, by its name.
fn class(rest: &str) -> Option<u32> {
    let name = rest.split(": ").next()?;
    if let Some(code) = last_bracket(name) {
        return Some(u32::from_str_radix(code, 16).ok()? << 8);
    }
    // `lspci -n`: the code alone
    if name.len() == 4
        && let Ok(code) = u32::from_str_radix(name, 16)
    {
        return Some(code << 8);
    }
    let known = [
        ("PCI bridge", 0x060400),
        ("Host bridge", 0x060000),
        ("3D controller", 0x030200),
        ("VGA compatible controller", 0x030000),
        ("Display controller", 0x038000),
        ("Processing accelerators", 0x120000),
        ("Infiniband controller", 0x020700),
        ("InfiniBand controller", 0x020700),
        ("Ethernet controller", 0x020000),
        ("Network controller", 0x028000),
        ("Non-Volatile memory controller", 0x010802),
        ("DMA controller", 0x080100),
    ];
    known.iter().find(|(known, _)| *known == name).map(|&(_, class)| class)
}

/// What stands in the last square brackets that hold hexadecimal digits and colons.
fn last_bracket(text: &str) -> Option<&str> {
    text.rsplit('[').find_map(|piece| {
        let (inside, _) = piece.split_once(']')?;
        let hex = |c: char| c.is_ascii_hexdigit() || c == ':';
        (inside.len() >= 4 && inside.chars().all(hex)).then_some(inside)
    })
}

/// `Speed 16GT/s (ok), Width x16 (ok)`, after a `Port #0, ` in capabilities.
fn link(text: &str) -> Option<Link> {
    let value = |name: &str| text.split_once(name)?.1.split([',', ' ']).next();
    parse_link(value("Speed ")?, value("Width ")?)
}

fn acs(text: &str) -> AcsBits {
    [
        ("SrcValid+", AcsBits::SV),
        ("TransBlk+", AcsBits::TB),
        ("ReqRedir+", AcsBits::RR),
        ("CmpltRedir+", AcsBits::CR),
        ("UpstreamFwd+", AcsBits::UF),
        ("EgressCtrl+", AcsBits::EC),
        ("DirectTrans+", AcsBits::DT),
    ]
    .into_iter()
    .filter(|(name, _)| text.contains(name))
    .map(|(_, bit)| bit)
    .collect()
}

/// `[size=32M]`
fn region_bytes(line: &str) -> Option<u64> {
    let (_, size) = line.split_once("[size=")?;
    let size = size.split(']').next()?;
    let (digits, unit) =
        size.split_at(size.find(|c: char| !c.is_ascii_digit()).unwrap_or(size.len()));
    let shift = match unit {
        "" => 0,
        "K" => 10,
        "M" => 20,
        "G" => 30,
        "T" => 40,
        _ => return None,
    };
    digits.parse::<u64>().ok()?.checked_shl(shift)
}

#[cfg(test)]
mod tests {
    use super::*;
    use pcie::Role;

    const ROOT: &str = "\
17:00.0 PCI bridge [0604]: Intel Corporation Sky Lake-E PCI Express Root Port A [8086:2030] (rev 04) (prog-if 00 [Normal decode])
\tNUMA node: 0
\tIOMMU group: 35
\tBus: primary=17, secondary=18, subordinate=1a, sec-latency=0
\tCapabilities: [90] Express (v2) Root Port (Slot+), MSI 00
\t\tLnkCap:\tPort #5, Speed 8GT/s, Width x16, ASPM L1, Exit Latency L1 <16us
\t\tLnkSta:\tSpeed 8GT/s (ok), Width x8 (downgraded)
\tCapabilities: [110 v1] Access Control Services
\t\tACSCap:\tSrcValid+ TransBlk+ ReqRedir+ CmpltRedir+ UpstreamFwd+ EgressCtrl- DirectTrans-
\t\tACSCtl:\tSrcValid+ TransBlk- ReqRedir+ CmpltRedir+ UpstreamFwd+ EgressCtrl- DirectTrans-
\tKernel driver in use: pcieport

18:00.0 3D controller [0302]: NVIDIA Corporation GV100GL [Tesla V100] [10de:1db1] (rev a1)
\tRegion 0: Memory at d9000000 (32-bit, non-prefetchable) [size=16M]
\tRegion 1: Memory at 38bf00000000 (64-bit, prefetchable) [size=32G]
\tCapabilities: [78] Express (v2) Endpoint, MSI 00
\tCapabilities: [b70 v1] Address Translation Service (ATS)
\t\tATSCap:\tInvalidate Queue Depth: 00
\t\tATSCtl:\tEnable+, Smallest Translation Unit: 00
";

    #[test]
    fn everything_that_root_sees() {
        let machine = read(ROOT).unwrap();
        let of = |at: &str| machine.function(at.parse().unwrap()).unwrap();
        let (port, gpu) = (of("17:00.0"), of("18:00.0"));
        assert_eq!(port.kind, Kind::RootPort);
        assert_eq!(port.acs, Acs::Enabled(AcsBits::SV | AcsBits::RR | AcsBits::CR | AcsBits::UF));
        assert_eq!(port.acs_capable, Some(AcsBits::all() - AcsBits::EC - AcsBits::DT));
        assert_eq!(
            (port.link, port.best_link),
            (Link::lanes(8.0, 8).ok(), Link::lanes(8.0, 16).ok())
        );
        assert_eq!((port.numa_node, port.iommu_group), (Some(0), Some(35)));
        assert_eq!(port.driver.as_deref(), Some("pcieport"));
        assert_eq!(gpu.below, Below::Port(port.address));
        assert_eq!((gpu.role, gpu.id), (Role::Gpu, Some((0x10de, 0x1db1))));
        assert_eq!(gpu.bar_bytes, Some(32 << 30));
        assert_eq!((gpu.ats, gpu.acs), (Some(true), Acs::Absent));
        assert_eq!(machine.hosts()[0].name, "pci0000:17");
        assert_eq!(machine.hosts()[0].root_device, Some((0x8086, 0x2030)));
    }

    #[test]
    fn what_was_denied_is_unknown() {
        let text = "\
0000:00:01.0 PCI bridge: Intel Corporation Something (prog-if 00 [Normal decode])
\tBus: primary=00, secondary=01, subordinate=01, sec-latency=0
\tCapabilities: <access denied>
0000:01:00.0 Infiniband controller: Mellanox Technologies MT28908 Family [ConnectX-6]
\tCapabilities: <access denied>
";
        let machine = read(text).unwrap();
        let of = |at: &str| machine.function(at.parse().unwrap()).unwrap();
        assert_eq!((of("00:01.0").kind, of("00:01.0").acs), (Kind::RootPort, Acs::Unknown));
        assert_eq!((of("01:00.0").role, of("01:00.0").ats), (Role::Hca, None));
        assert_eq!(of("01:00.0").id, None);
    }
}
