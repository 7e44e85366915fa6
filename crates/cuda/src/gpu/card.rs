//! One GPU: what it is, its node once it is used, and how much of its memory this process has.

use super::tree::{Address, Found};
use crate::sys::Node;
use crate::{Error, Res};
use engine_thread::lock;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

/// A GPU of the platform.
#[derive(Debug)]
pub struct Gpu {
    found: Found,
    uuid: [u8; 16],
    node: Mutex<Option<Arc<Node>>>,
    used_bytes: AtomicU64,
}

impl Gpu {
    /// The GPU that was found.
    pub fn new(found: Found) -> Gpu {
        let uuid = uuid(&found);
        Gpu { found, uuid, node: Mutex::default(), used_bytes: AtomicU64::new(0) }
    }

    /// What the tree says of it.
    pub fn found(&self) -> &Found {
        &self.found
    }

    /// Its place on the bus.
    pub fn address(&self) -> Address {
        self.found.address
    }

    /// Name for programs.
    pub fn name(&self) -> String {
        format!("peerdma software GPU ({})", self.found.name)
    }

    /// Identity, the same in all processes of one host.
    pub fn uuid(&self) -> [u8; 16] {
        self.uuid
    }

    /// As `nvidia-smi -L` prints it.
    pub fn uuid_text(&self) -> String {
        let hex: String = self.uuid.iter().map(|byte| format!("{byte:02x}")).collect();
        let parts = [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]];
        format!("GPU-{}", parts.join("-"))
    }

    /// Its node, opened with the first use.
    ///
    /// # Errors
    /// `CUDA_ERROR_DEVICE_UNAVAILABLE`; `CUDA_ERROR_OUT_OF_MEMORY` for want of a descriptor.
    pub fn node(&self) -> Res<Arc<Node>> {
        let mut node = lock(&self.node);
        if let Some(node) = &*node {
            return Ok(node.clone());
        }
        let refused = |error: io::Error| {
            crate::log::say(format_args!("cannot open {}: {error}", self.found.node.display()));
            Error::of_want(&error).unwrap_or(Error::DEVICE_UNAVAILABLE)
        };
        let opened = Arc::new(Node::open(&self.found.node).map_err(refused)?);
        Ok(node.insert(opened).clone())
    }

    /// Bytes of memory that this process has not allocated.
    pub fn free_bytes(&self) -> u64 {
        self.found.memory_bytes.saturating_sub(self.used_bytes.load(Relaxed))
    }

    /// Counts memory as allocated.
    pub(crate) fn take(&self, bytes: u64) {
        self.used_bytes.fetch_add(bytes, Relaxed);
    }

    /// Takes that back.
    pub(crate) fn give(&self, bytes: u64) {
        self.used_bytes.fetch_sub(bytes, Relaxed);
    }
}

/// Made of the host's name and the place on its bus, as version 8 of RFC 9562 lets everybody.
fn uuid(found: &Found) -> [u8; 16] {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let text = format!("peerdma {} {} {}", host.trim(), found.address, found.name);
    // FNV-1a, 128 bits
    let mut hash: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
    for byte in text.bytes() {
        hash = (hash ^ u128::from(byte)).wrapping_mul(0x0000_0000_0100_0000_0000_0000_0000_013b);
    }
    let mut uuid = hash.to_be_bytes();
    uuid[6] = uuid[6] & 0x0f | 0x80;
    uuid[8] = uuid[8] & 0x3f | 0x80;
    uuid
}

#[cfg(test)]
impl Found {
    /// A GPU that is nowhere.
    pub(crate) fn for_tests(address: Address) -> Found {
        Found {
            number: 0,
            address,
            bridges: Vec::new(),
            name: "gpu".into(),
            node: "/dev/null".into(),
            memory_bytes: 1 << 30,
            bar_bytes: 1 << 30,
            numa_node: 0,
            id: (0xf0f0, 0x100),
            subsystem: (0xf0f0, 0),
            link: (32, 16),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uuid_is_of_the_place_and_stays() {
        let gpu = |address: &str| Gpu::new(Found::for_tests(address.parse().unwrap()));
        let (one, two) = (gpu("0000:01:00.0"), gpu("0000:02:00.0"));
        assert_ne!(one.uuid(), two.uuid());
        assert_eq!(one.uuid(), gpu("0000:01:00.0").uuid());
        let text = one.uuid_text();
        assert_eq!(text.len(), 40);
        assert_eq!((&text[..4], &text[12..13], &text[18..19]), ("GPU-", "-", "8"));
    }
}
