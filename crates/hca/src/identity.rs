//! Who this device is: a name and a GUID that every process of one host and network namespace agrees on.

use std::hash::Hasher;

/// Name of the device.
pub const NAME: &str = "peerdma0";

/// Bit of an EUI-64's first byte that says "assigned locally, not by a vendor".
const LOCALLY_ADMINISTERED: u64 = 0x02 << 56;
/// Bit that would make it a group address.
const GROUP: u64 = 0x01 << 56;

/// The node GUID, most significant byte first on the wire.
pub fn node_guid() -> u64 {
    let host = std::fs::read("/etc/machine-id").unwrap_or_else(|_| hardware_addresses());
    let netns = std::fs::read_link("/proc/self/ns/net").unwrap_or_default();
    guid_of(&[&host, netns.as_os_str().as_encoded_bytes(), NAME.as_bytes()])
}

/// Where a host has no machine id (bare containers): the addresses of its interfaces, in order of their names.
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
    fn the_guid_is_stable_local_and_depends_on_every_part() {
        assert_eq!(node_guid(), node_guid());
        let guid = guid_of(&[b"a", b"b"]);
        assert_eq!(guid >> 56 & 3, 2);
        assert_ne!(guid, guid_of(&[b"ab", b""]));
        assert_ne!(guid, guid_of(&[b"a", b"c"]));
    }
}
