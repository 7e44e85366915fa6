//! The text of `lspci -vvv`, better with `-nn` and `-D`, best as root (pciutils' `ls-*.c`).
//!
//! The tree follows from the bridges' bus numbers. Without root lspci prints `<access denied>`
//! where capabilities would stand, and what stands there is unknown. A bus to which no listed
//! bridge leads is a root bus only if something says so: plain `lspci` has no bus numbers, and `-s`
//! and `-d` leave bridges out.

use super::lspci_mm;
use super::sysfs::parse_link;
use crate::Error;
use crate::model::{build, kinds, products, roles};
use pcie::{Acs, AcsBits, Address, Below, Function, HostBridge, Kind, Link, Machine, Shown};
use std::collections::{BTreeMap, BTreeSet};

const WHAT: &str = "lspci -vvv";

/// Whether a text has a line that begins like a device of lspci.
pub(crate) fn is_listing(text: &str) -> bool {
    lspci_mm::usual(text).is_some() || text.lines().any(|line| head(line).is_some())
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
    let usual = lspci_mm::usual(text);
    let text = usual.as_deref().unwrap_or(text);
    let mut devices: Vec<Device> = Vec::new();
    for line in text.lines() {
        match head(line) {
            Some((address, rest)) => {
                build::few_enough(WHAT, devices.len())?;
                devices.push(Device::new(address, rest));
            }
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
    capabilities: bool,
    /// Whether it says that it is on a root bus.
    on_root_bus: bool,
}

impl Device {
    fn new(address: Address, rest: &str) -> Device {
        let below = Below::Host(0);
        let mut function = Function::new(address, Kind::Endpoint, below);
        function.class = class(rest);
        let product = product(rest);
        function.id = id(rest).or_else(|| products::id_of(product?));
        function.product = product.map(str::to_owned);
        if function.class.is_some_and(|class| class >> 8 == 0x0604) {
            function.kind = Kind::Bridge;
        }
        let host_bridge = function.class.is_some_and(|class| class >> 8 == 0x0600);
        let root_port = product.is_some_and(|name| name.contains("Root Port"));
        // a bus below a bridge has a higher number than the bridge's own
        let on_root_bus = host_bridge || root_port || address.bus == 0;
        Device { function, buses: None, denied: false, capabilities: false, on_root_bus }
    }

    fn line(&mut self, line: &str) {
        let function = &mut self.function;
        let after = |start: &str| line.strip_prefix(start).map(str::trim);
        if let Some(rest) = after("Capabilities:") {
            self.capabilities = true;
            self.denied |= rest.contains("<access denied>");
            if let Some(kind) = rest.split_once("Express ").map(|(_, text)| text) {
                self.on_root_bus |= kind.contains("Root Port") || kind.contains("Root Complex");
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
    let roots = root_buses(&devices);
    let mut hosts: Vec<HostBridge> = Vec::new();
    let mut guess = Vec::new();
    for device in &mut devices {
        device.settle();
        let Address { domain, bus, .. } = device.function.address;
        device.function.below = match bridges.get(&(domain, bus)) {
            Some(&bridge) => Below::Port(bridge),
            None if roots.contains(&(domain, bus)) => {
                Below::Host(host(&mut hosts, format!("pci{domain:04x}:{bus:02x}"), Shown::Bridges))
            }
            None => {
                Below::Host(host(&mut hosts, format!("bus {domain:04x}:{bus:02x}"), Shown::Nothing))
            }
        };
        let told = device.capabilities && !device.denied;
        let hidden = matches!(
            device.function.below,
            Below::Host(host) if hosts[host].shown == Shown::Nothing
        );
        if device.function.kind == Kind::Bridge && !told && !hidden {
            guess.push(device.function.address);
        }
    }
    let mut functions: Vec<Function> = devices.into_iter().map(|device| device.function).collect();
    kinds::infer(&mut functions, &guess);
    roles::assign(&mut functions);
    for (index, host) in hosts.iter_mut().enumerate() {
        let mut roots = functions.iter().filter(|f| f.below == Below::Host(index));
        host.numa_node = roots.clone().find_map(|f| f.numa_node);
        if host.shown == Shown::Nothing {
            continue;
        }
        let first = roots.clone().min_by_key(|f| f.address);
        host.root_device = match first {
            Some(f) if f.kind == Kind::RootPort => f.id,
            Some(f) if (f.address.device, f.address.function) == (0, 0) => f.id,
            _ => roots.next().and_then(|f| f.id).map(|_| HostBridge::NO_DEVICE),
        };
    }
    build::machine(WHAT, None, hosts, functions)
}

/// The buses that are root buses for certain: because a device on one says so, or because the
/// listing seems to have all of a machine and shows no bridge that has the bus below it.
///
/// A listing seems whole with a host bridge, some bridge, and every bridge's buses. Even then a
/// bridge may have been left out: a bus within the range of one that was not is below it.
fn root_buses(devices: &[Device]) -> BTreeSet<(u32, u8)> {
    let mut bridges = devices.iter().filter(|device| device.function.kind != Kind::Endpoint);
    let host_bridge = |device: &Device| device.function.class.is_some_and(|c| c >> 8 == 0x0600);
    let whole = devices.iter().any(host_bridge)
        && bridges.clone().next().is_some()
        && bridges.all(|bridge| bridge.buses.is_some());
    let mut below: BTreeMap<u32, [bool; 256]> = BTreeMap::new();
    for device in devices {
        if let Some((secondary, subordinate)) = device.buses {
            let buses = below.entry(device.function.address.domain).or_insert([false; 256]);
            (secondary..=subordinate).for_each(|bus| buses[usize::from(bus)] = true);
        }
    }
    let is_below = |at: Address| below.get(&at.domain).is_some_and(|b| b[usize::from(at.bus)]);
    let is_root =
        |device: &&Device| device.on_root_bus || (whole && !is_below(device.function.address));
    let roots = devices.iter().filter(is_root).map(|device| device.function.address);
    roots.map(|at| (at.domain, at.bus)).collect()
}

fn host(hosts: &mut Vec<HostBridge>, name: String, shown: Shown) -> usize {
    if let Some(index) = hosts.iter().position(|host| host.name == name) {
        return index;
    }
    hosts.push(HostBridge { name, shown, numa_node: None, root_device: None });
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
    products::class_of(name)
}

/// Vendor and device id: `[8086:2030]`, or with `-n` in place of the names.
fn id(rest: &str) -> Option<(u16, u16)> {
    let text = last_bracket(rest).filter(|text| text.contains(':')).or_else(|| product(rest))?;
    let (vendor, device) = text.split_once(':')?;
    let hex = |text: &str| (text.len() == 4).then(|| u16::from_str_radix(text, 16).ok()).flatten();
    Some((hex(vendor)?, hex(device)?))
}

/// What stands for vendor and device, without ids, revision and programming interface.
fn product(rest: &str) -> Option<&str> {
    let (_, mut text) = rest.split_once(": ")?;
    for end in [" (rev ", " (prog-if "] {
        text = text.split(end).next().unwrap_or(text);
    }
    if let Some(id) = last_bracket(text).filter(|id| id.contains(':')) {
        text = text.split(&format!("[{id}]")).next().unwrap_or(text);
    }
    Some(text.trim()).filter(|text| !text.is_empty())
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
17:00.0 PCI bridge [0604]: Intel Corporation Sky Lake-E PCI Express Root Port A [8086:2030] \
(rev 04) (prog-if 00 [Normal decode])
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

    /// Two GPUs and an adapter below two nested switches, and a GPU elsewhere, as plain `lspci`
    /// lists them.
    const PLAIN: &str = "\
00:00.0 Host bridge: Intel Corporation Sky Lake-E DMI3 Registers (rev 04)
17:00.0 PCI bridge: Intel Corporation Sky Lake-E PCI Express Root Port A (rev 04)
18:00.0 PCI bridge: Broadcom / LSI PEX880xx PCIe Gen 4 Switch (rev b0)
19:08.0 PCI bridge: Broadcom / LSI PEX880xx PCIe Gen 4 Switch (rev b0)
19:0c.0 PCI bridge: Broadcom / LSI PEX880xx PCIe Gen 4 Switch (rev b0)
1a:00.0 VGA compatible controller: NVIDIA Corporation GP102 [TITAN X] (rev a1)
1b:00.0 3D controller: NVIDIA Corporation GV100GL [Tesla V100 SXM2 32GB] (rev a1)
1c:00.0 InfiniBand controller: Mellanox Technologies MT28908 Family [ConnectX-6]
1c:00.1 InfiniBand controller: Mellanox Technologies MT28908 Family [ConnectX-6]
";

    /// A listing from which the bridges were left out, and the root port above them all.
    const WITHOUT_BRIDGES: &str = "\
00:00.0 Host bridge [0600]: Intel Corporation Device [8086:09a2]
1a:00.0 3D controller [0302]: NVIDIA Corporation GV100GL [Tesla V100] [10de:1db1] (rev a1)
1b:00.0 InfiniBand controller [0207]: Mellanox Technologies MT28908 Family [ConnectX-6] [15b3:101b]
";
    const LONE_PORT: &str = "\
16:00.0 PCI bridge [0604]: Intel Corporation Sky Lake-E PCI Express Root Port A [8086:2030]
\tBus: primary=16, secondary=17, subordinate=20, sec-latency=0
";

    #[test]
    fn without_bus_numbers_nobody_is_known_to_be_far() {
        use pcie::{Label, MapType, labels, route_plan};
        for text in [
            PLAIN.to_owned(),
            ROOT.replace("17:00.0", "17:00.0 nothing\n#"),
            WITHOUT_BRIDGES.to_owned(),
            format!("{LONE_PORT}{WITHOUT_BRIDGES}"),
        ] {
            let machine = read(&text).unwrap();
            let of = |role| machine.functions().filter(move |f| f.role == role);
            for gpu in of(Role::Gpu) {
                for nic in of(Role::Hca) {
                    let labels = labels(&machine, gpu, nic);
                    assert!(
                        labels.contains(&Label::Pix) && labels.contains(&Label::Sys),
                        "{labels:?}"
                    );
                    let way = route_plan(&machine, gpu, nic);
                    assert_eq!(
                        (way.verdict.map_type, way.bytes_per_second),
                        (MapType::Unknown, None)
                    );
                    assert!(way.verdict.reason.contains("not in the source"));
                }
            }
        }
        let machine = read(PLAIN).unwrap();
        let roles: Vec<Role> =
            machine.functions().map(|f| f.role).filter(|r| *r != Role::Other).collect();
        assert_eq!(roles, [Role::Gpu, Role::Gpu, Role::Hca, Role::Hca]);
        let of = |at: &str| machine.function(at.parse().unwrap()).unwrap();
        assert_eq!(labels(&machine, of("1c:00.0"), of("1c:00.1")), [Label::Pix, Label::Phb]);
        assert_eq!(of("18:00.0").kind, Kind::Bridge, "a bridge of a kind that nobody told");
        assert_eq!(machine.hosts()[1].name, "pci0000:17");
    }

    #[test]
    fn ids_and_classes_in_every_form() {
        let forms = [
            "18:00.0 3D controller [0302]: NVIDIA Corporation GH100 [H100 SXM5 80GB] [10de:2330] \
             (rev a1)",
            "18:00.0 3D controller: NVIDIA Corporation GH100 [H100 SXM5 80GB] (rev a1)",
            "18:00.0 0302: 10de:2330 (rev a1)",
            "18:00.0 \"3D controller\" \"NVIDIA Corporation\" \"GH100 [H100 SXM5 80GB]\" -ra1 \"\" \
             \"\"",
            "18:00.0 \"0302\" \"10de\" \"2330\" -ra1 \"10de\" \"1212\"",
            "Slot:\t18:00.0\nClass:\t3D controller\nVendor:\tNVIDIA Corporation\n\
             Device:\tGH100 [H100 SXM5 80GB]\n",
        ];
        for form in forms {
            assert!(is_listing(form), "{form}");
            let machine = read(form).unwrap();
            let gpu = machine.functions().next().unwrap();
            assert_eq!(
                (gpu.role, gpu.id, gpu.class),
                (Role::Gpu, Some((0x10de, 0x2330)), Some(0x030200)),
                "{form}"
            );
        }
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
        assert_eq!(
            of("01:00.0").id,
            products::id_of("Mellanox Technologies MT28908 Family [ConnectX-6]")
        );
    }
}
