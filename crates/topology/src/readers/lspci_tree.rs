//! The tree of `lspci -tv`: who hangs below whom, and names.
//!
//! A name is all that tells what a device is, so roles follow from it and everything else is
//! unknown; `lspci -t` has not even names.

use crate::Error;
use crate::model::{build, kinds, products, roles};
use pcie::{Address, Below, Function, HostBridge, Kind, Machine, Shown};

const WHAT: &str = "lspci -tv";

/// Whether a text is such a tree: its first line opens a root bus.
pub(crate) fn is_tree(text: &str) -> bool {
    let first = text.lines().find(|line| !line.trim().is_empty()).unwrap_or_default();
    // Several root buses open with a fork: `-+-[0000:80]`.
    let fork = first.trim_start_matches([' ', '|', '+', '\\', '-']);
    fork.starts_with('[') && fork.contains(']') && first.contains("-[")
}

/// A bus that lines below may hang devices on: they begin in its column.
struct Bus {
    column: usize,
    domain: u32,
    number: u8,
    below: Below,
}

/// Reads a machine.
pub(crate) fn read(text: &str) -> Result<(Machine, Vec<String>), Error> {
    let mut hosts = Vec::new();
    let mut functions: Vec<Function> = Vec::new();
    let mut guess = Vec::new();
    let mut open: Vec<Bus> = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let bad = |reason: &str| Error::malformed(WHAT, format!("line {}: {reason}", index + 1));
        // the first device on a bus stands on the bus's own line
        open.retain(|bus| bus.column != usize::MAX);
        build::few_enough(WHAT, functions.len().max(hosts.len()))?;
        let mut at = 0;
        while let Some(item) = next_item(line, at) {
            match item {
                Item::Buses { first, domain, next } => {
                    if let Some(domain) = domain {
                        let name = format!("pci{domain:04x}:{first:02x}");
                        hosts.push(HostBridge {
                            name,
                            shown: Shown::Bridges,
                            numa_node: None,
                            root_device: None,
                        });
                        open.clear();
                        let below = Below::Host(hosts.len() - 1);
                        open.push(Bus { column: usize::MAX, domain, number: first, below });
                    } else {
                        let bridge =
                            functions.last_mut().ok_or_else(|| bad("a bus before any bridge"))?;
                        bridge.kind = Kind::Bridge;
                        guess.push(bridge.address);
                        let (domain, below) = (bridge.address.domain, Below::Port(bridge.address));
                        open.push(Bus { column: usize::MAX, domain, number: first, below });
                    }
                    at = next;
                }
                Item::Function { device, function, column, next } => {
                    // the first on a bus fixes its column; later ones return to it
                    let fresh = open.last().is_some_and(|bus| bus.column == usize::MAX);
                    if fresh {
                        if let Some(bus) = open.last_mut() {
                            bus.column = column;
                        }
                    } else {
                        while open.last().is_some_and(|bus| bus.column > column) {
                            open.pop();
                        }
                    }
                    let bus = open.last().ok_or_else(|| bad("a device outside any bus"))?;
                    let address = Address { domain: bus.domain, bus: bus.number, device, function };
                    let mut found = Function::new(address, Kind::Endpoint, bus.below);
                    let name = line[next..].trim();
                    if !name.starts_with('-') {
                        let (name, id) = described(name);
                        found.id = id.or_else(|| products::id_of(name));
                        found.product = Some(name.to_owned()).filter(|name| !name.is_empty());
                        functions.push(found);
                        break;
                    }
                    functions.push(found);
                    at = next;
                }
            }
        }
    }
    kinds::infer(&mut functions, &guess);
    roles::assign(&mut functions);
    let nameless = functions.iter().all(|f| f.product.is_none() && f.id.is_none());
    let note = "the tree has no names, so what its devices are is not known: lspci -tvnn has them";
    let notes = if nameless { vec![note.to_owned()] } else { Vec::new() };
    Ok((build::machine(WHAT, None, hosts, functions)?, notes))
}

/// A name without the ids that `-nn` puts behind it, and the ids.
fn described(text: &str) -> (&str, Option<(u16, u16)>) {
    let ids = || {
        let (name, ids) = text.strip_suffix(']')?.rsplit_once('[')?;
        let (vendor, device) = ids.split_once(':')?;
        let hex = |number: &str| u16::from_str_radix(number, 16).ok();
        Some((name.trim(), (hex(vendor)?, hex(device)?)))
    };
    ids().map_or((text, None), |(name, id)| (name, Some(id)))
}

enum Item {
    /// `[0000:17]`, `[18-1a]`, `[18]`.
    Buses { first: u8, domain: Option<u32>, next: usize },
    /// `00.0`
    Function { device: u8, function: u8, column: usize, next: usize },
}

/// The next bus range or function of a line, from a byte on.
fn next_item(line: &str, from: usize) -> Option<Item> {
    let rest = line.get(from..)?;
    let start = from + rest.find(|c: char| !matches!(c, ' ' | '|' | '+' | '-' | '\\'))?;
    let text = &line[start..];
    if let Some(inside) = text.strip_prefix('[') {
        let end = inside.find(']')?;
        let (range, next) = (&inside[..end], start + end + 2);
        let (domain, buses) = match range.split_once(':') {
            Some((domain, buses)) => (Some(u32::from_str_radix(domain, 16).ok()?), buses),
            None => (None, range),
        };
        let first = u8::from_str_radix(buses.split('-').next()?, 16).ok()?;
        return Some(Item::Buses { first, domain, next });
    }
    let token = text.split([' ', '-']).next()?;
    let (device, function) = token.split_once('.')?;
    Some(Item::Function {
        device: u8::from_str_radix(device, 16).ok().filter(|&device| device < 32)?,
        function: u8::from_str_radix(function, 16).ok().filter(|&function| function < 8)?,
        column: start,
        next: start + token.len(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use pcie::{Label, Role, labels};

    const TREE: &str = r"-+-[0000:80]-+-00.0  Intel Corporation Sky Lake-E DMI3 Registers
 |           \-02.0-[81-82]--+-00.0  Mellanox Technologies MT28908 Family [ConnectX-6]
 |                           \-00.1  Mellanox Technologies MT28908 Family [ConnectX-6]
 +-[0000:17]---00.0-[18-1f]----00.0-[19-1f]--+-08.0-[1a]----00.0  NVIDIA Corporation GV100GL [Tesla V100 SXM2 32GB]
 |                                           +-0c.0-[1b]----00.0  NVIDIA Corporation GV100GL [Tesla V100 SXM2 32GB]
 |                                           \-10.0-[1c]----00.0  Mellanox Technologies MT28908 Family [ConnectX-6]
 \-[0000:00]-+-00.0  Intel Corporation Sky Lake-E DMI3 Registers
             +-1c.0-[01]--
             \-1f.4  Intel Corporation C620 Series Chipset Family SMBus
";

    #[test]
    fn columns_make_the_tree() {
        let (machine, notes) = read(TREE).unwrap();
        assert!(notes.is_empty());
        let of = |at: &str| machine.function(at.parse().unwrap()).unwrap();
        let paths = [
            ("81:00.1", "80:02.0"),
            ("18:00.0", "17:00.0"),
            ("19:0c.0", "18:00.0"),
            ("1c:00.0", "19:10.0"),
        ];
        for (at, parent) in paths {
            assert_eq!(of(at).below, Below::Port(parent.parse().unwrap()), "{at}");
        }
        assert_eq!(of("00:1f.4").below, Below::Host(2));
        assert_eq!(of("00:1c.0").kind, Kind::RootPort);
        assert_eq!(of("19:08.0").kind, Kind::SwitchDownstream);
        assert_eq!((of("1a:00.0").role, of("1c:00.0").role), (Role::Gpu, Role::Hca));
        assert_eq!(labels(&machine, of("1a:00.0"), of("1c:00.0")), [Label::Pix]);
        assert_eq!(labels(&machine, of("1a:00.0"), of("81:00.0")), [Label::Node, Label::Sys]);
        assert_eq!(machine.functions().count(), 15);
    }

    #[test]
    fn names_tell_who_is_what_and_their_absence_is_noted() {
        let (machine, notes) = read(
            "-[0000:00]-+-00.0  Intel Corporation Device 09a2 [8086:09a2]\n           \
             +-01.0-[01]----00.0  Advanced Micro Devices, Inc. [AMD/ATI] Arcturus GL-XL \
             [Instinct MI100] [1002:738c]\n           \
             +-02.0-[02]----00.0  NVIDIA Corporation GH100 [H100 NVSwitch]\n           \
             \\-03.0-[03]--+-00.0  AMD Pensando Systems DSC \
             Ethernet Controller\n                        \
             \\-00.1  AMD Pensando Systems DSC Management Controller\n",
        )
        .unwrap();
        let role = |at: &str| machine.function(at.parse().unwrap()).unwrap().role;
        assert_eq!((role("01:00.0"), role("02:00.0")), (Role::Gpu, Role::NvSwitch));
        assert_eq!((role("03:00.0"), role("03:00.1")), (Role::Hca, Role::Management));
        assert!(notes.is_empty());
        let (machine, notes) =
            read("-[0000:00]-+-00.0\n           \\-01.0-[01]----00.0\n").unwrap();
        assert_eq!((machine.functions().count(), notes.len()), (3, 1));
    }

    #[test]
    fn one_root_bus_and_broken_trees() {
        assert!(is_tree("-[0000:00]-+-00.0  x") && is_tree(TREE));
        assert!(!is_tree("00:00.0 Host bridge"));
        assert_eq!(
            read("-[0000:00]-+-00.0  Host\n           \\-01.0  Card\n")
                .unwrap()
                .0
                .functions()
                .count(),
            2
        );
        assert_eq!(read("-[0000:00]-\n").unwrap().0.functions().count(), 0);
        assert!(read("  00.0  x\n").unwrap_err().to_string().contains("line 1"));
    }
}
