//! Who a device is: a name and a GUID that every process of one host and network namespace agrees
//! on.

use link::Interfaces;
use pcie::{Function, Platform, Role};
use std::hash::Hasher;

/// Name of the device where no platform names one.
pub const NAME: &str = "peerdma0";

/// Bit of an EUI-64's first byte that says "assigned locally, not by a vendor".
const LOCALLY_ADMINISTERED: u64 = 0x02 << 56;
/// Bit that would make it a group address.
const GROUP: u64 = 0x01 << 56;

/// The node GUID of the device called `name`, most significant byte first on the wire.
pub fn node_guid(name: &str) -> u64 {
    let host = std::fs::read("/etc/machine-id").unwrap_or_else(|_| hardware_addresses());
    let netns = std::fs::read_link("/proc/self/ns/net").unwrap_or_default();
    guid_of(&[&host, netns.as_os_str().as_encoded_bytes(), name.as_bytes()])
}

/// The interfaces of one of a platform's HCAs: those that it names, or all that none of them names.
pub fn interfaces(platform: &Platform, hca: &Function) -> Interfaces {
    if !hca.interfaces.is_empty() {
        return Interfaces::Only(hca.interfaces.clone());
    }
    let named = platform.with_role(Role::Hca).flat_map(|other| other.interfaces.iter().cloned());
    Interfaces::AllBut(named.collect())
}

/// Where a host has no machine id (bare containers): the addresses of its interfaces, in order of
/// their names.
fn hardware_addresses() -> Vec<u8> {
    let Ok(interfaces) = std::fs::read_dir("/sys/class/net") else { return Vec::new() };
    let mut paths: Vec<_> =
        interfaces.flatten().map(|entry| entry.path().join("address")).collect();
    paths.sort();
    paths.iter().filter_map(|path| std::fs::read(path).ok()).flatten().collect()
}

fn guid_of(parts: &[&[u8]]) -> u64 {
    let mut hasher = Fnv(0xcbf2_9ce4_8422_2325);
    for part in parts {
        hasher.write(part);
        hasher.write(&[0]);
    }
    (hasher.finish() | LOCALLY_ADMINISTERED) & !GROUP
}

/// FNV-1a: the same value in every build, unlike the standard hashers.
struct Fnv(u64);

impl Hasher for Fnv {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interface_that_one_names_is_no_others() {
        let text = pcie::ReadyMade::called("server".as_ref()).unwrap().text;
        let shared = Platform::from_toml(text).unwrap();
        let of = |platform: &Platform, name| {
            let interfaces = interfaces(platform, platform.named(name).unwrap());
            ["eth0", "eth1", "lo"].map(|interface| interfaces.have(interface))
        };
        assert_eq!(of(&shared, "peerdma0"), [true, true, true]);
        assert_eq!(of(&shared, "peerdma1"), [true, true, true]);
        let text = text.replacen("\"peerdma1\", ", "\"peerdma1\", interfaces = [\"eth1\"], ", 1);
        let divided = Platform::from_toml(&text).unwrap();
        assert_eq!(of(&divided, "peerdma0"), [true, false, true]);
        assert_eq!(of(&divided, "peerdma1"), [false, true, false]);
    }

    #[test]
    fn the_guid_is_stable_local_and_depends_on_every_part() {
        assert_eq!(node_guid(NAME), node_guid(NAME));
        assert_ne!(node_guid(NAME), node_guid("peerdma1"));
        let guid = guid_of(&[b"a", b"b"]);
        assert_eq!(guid >> 56 & 3, 2);
        assert_ne!(guid, guid_of(&[b"ab", b""]));
        assert_ne!(guid, guid_of(&[b"a", b"c"]));
    }
}
