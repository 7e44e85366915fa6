//! Memory of a node, whose accesses can be made to fail.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use transport::values::{Remote, Sge};
use umem::{AccessError, AtomicOp, DmaSpace};

/// Bytes of a page of [`Ram`].
pub const PAGE: u64 = 256;

/// Memory whose accesses can be made to fail.
#[derive(Default)]
pub struct Ram {
    bytes: Mutex<Vec<u8>>,
    /// Numbers of pages that are not there.
    pub absent: Mutex<HashSet<u64>>,
    /// The key that faults on them name.
    name: u32,
    /// Such faults are met by a list in another key.
    pub below: AtomicBool,
    pub broken: AtomicBool,
    /// All of it is being moved.
    pub moving: AtomicBool,
    pub atomics: AtomicU64,
}

impl Ram {
    /// `len` zero bytes; faults on them name `name` as their key.
    pub fn new(name: u32, len: u64) -> Ram {
        Ram { bytes: Mutex::new(vec![0; len as usize]), name, ..Ram::default() }
    }

    pub fn len(&self) -> u64 {
        self.bytes.lock().unwrap().len() as u64
    }

    fn with<R>(
        &self,
        addr: u64,
        len: usize,
        f: impl FnOnce(&mut [u8]) -> R,
    ) -> Result<R, AccessError> {
        if self.broken.load(Relaxed) {
            return Err(AccessError::Fault);
        }
        if self.moving.load(Relaxed) {
            return Err(AccessError::Moving);
        }
        let absent = self.absent.lock().unwrap();
        let pages = addr / PAGE..(addr + len as u64).div_ceil(PAGE);
        if let Some(page) = pages.filter(|_| !absent.is_empty()).find(|page| absent.contains(page))
        {
            let addr = addr.max(page * PAGE);
            let (key, below) = (self.name, self.below.load(Relaxed));
            return Err(AccessError::NotPresent { key, len: 1, addr, below });
        }
        let mut bytes = self.bytes.lock().unwrap();
        let at = addr as usize;
        bytes.get_mut(at..at + len).map(f).ok_or(AccessError::Fault)
    }
}

impl DmaSpace for Ram {
    fn read(&self, addr: u64, dst: &mut [u8]) -> Result<(), AccessError> {
        self.with(addr, dst.len(), |bytes| dst.copy_from_slice(bytes))
    }
    fn write(&self, addr: u64, src: &[u8]) -> Result<(), AccessError> {
        self.with(addr, src.len(), |bytes| bytes.copy_from_slice(src))
    }
    fn atomic(&self, addr: u64, op: AtomicOp) -> Result<u64, AccessError> {
        self.atomics.fetch_add(1, Relaxed);
        self.with(addr, 8, |bytes| {
            let old = u64::from_ne_bytes(bytes.try_into().unwrap());
            let new = match op {
                AtomicOp::CompareSwap { compare, swap } if old == compare => swap,
                AtomicOp::CompareSwap { .. } => old,
                AtomicOp::FetchAdd { add } => old.wrapping_add(add),
            };
            bytes.copy_from_slice(&new.to_ne_bytes());
            old
        })
    }
}

/// Registered memory of a node.
#[derive(Clone)]
pub struct Region {
    pub ram: Arc<Ram>,
    pub key: u32,
    pub iova: u64,
    pub len: u64,
}

impl Region {
    pub fn get(&self, at: u64, len: usize) -> Vec<u8> {
        self.ram.bytes.lock().unwrap()[at as usize..at as usize + len].to_vec()
    }
    pub fn set(&self, at: u64, bytes: &[u8]) {
        self.ram.bytes.lock().unwrap()[at as usize..at as usize + bytes.len()]
            .copy_from_slice(bytes);
    }
    pub fn word(&self, at: u64) -> u64 {
        u64::from_ne_bytes(self.get(at, 8).try_into().unwrap())
    }
    pub fn sge(&self, at: u64, length: u32) -> Sge {
        Sge { addr: self.iova + at, length, lkey: self.key }
    }
    pub fn remote(&self, at: u64) -> Remote {
        Remote { addr: self.iova + at, rkey: self.key }
    }
}
