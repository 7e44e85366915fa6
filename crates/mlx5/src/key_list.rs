//! The list of a key over parts of other keys, as the driver lays it out: parts of their own lengths (KLM), parts of one length
//! (KSM), or all of one other key (CROSSING); or repeated blocks in the place of parts of their own lengths. What an access to a part means the HCA knows ([`hca::KeySpace`]).
//!
//! Source: PRM "KLM and KSM"; `struct mlx5_klm`, `struct mlx5_ksm`.

use crate::bits::{be32, be64};
use crate::sparse::Sparse;
use crate::stride::Pattern;
use crate::translation::Beyond;
use hca::{KeyPart, KeyParts};
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use umem::AccessError;

/// The key without memory: an access to a part of it is a page fault of the key above (`null_mkey`).
pub(crate) const NULL_KEY: u32 = 0xff00_0000;
/// Bytes of an entry.
pub(crate) const ENTRY_LEN: u64 = 16;

/// An entry: its length counts only where each part has its own.
type Entry = KeyPart;

const ABSENT: Entry = KeyPart { lkey: 0, addr: 0, len: 0 };

/// How the parts follow each other.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Geometry {
    /// Each has its own length, unless blocks are repeated.
    Own,
    /// All have 2^`shift` bytes; the key's first byte is `first` bytes into the first.
    Even { shift: u32, first: u64 },
    /// All of one key, whose address `first` is the key's first byte.
    Whole { target: u32, first: u64 },
}

struct State {
    geometry: Geometry,
    entries: Sparse<Entry>,
    /// What is in the place of the entries.
    pattern: Option<Pattern>,
    /// Behind the last entry that was written.
    end: u64,
}

/// A key's list.
pub(crate) struct KeyList {
    capacity: u64,
    state: RwLock<State>,
}

impl KeyList {
    fn new(capacity: u64, geometry: Geometry) -> KeyList {
        let entries = Sparse::new(ABSENT);
        let state = State { geometry, entries, pattern: None, end: 0 };
        KeyList { capacity, state: RwLock::new(state) }
    }

    /// Parts of their own lengths, `capacity` at most.
    pub(crate) fn own_lengths(capacity: u64) -> KeyList {
        KeyList::new(capacity, Geometry::Own)
    }

    /// Parts of one length, `capacity` at most.
    pub(crate) fn even(capacity: u64) -> KeyList {
        KeyList::new(capacity, Geometry::Even { shift: 12, first: 0 })
    }

    /// All of the key `target`, whose addresses are the key's own.
    pub(crate) fn crossing(target: u32) -> KeyList {
        KeyList::new(0, Geometry::Whole { target, first: 0 })
    }

    fn read(&self) -> RwLockReadGuard<'_, State> {
        self.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, State> {
        self.state.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether it has entries that may change.
    pub(crate) fn has_entries(&self) -> bool {
        !matches!(self.read().geometry, Geometry::Whole { .. })
    }

    /// Whether all parts have one length.
    pub(crate) fn is_even(&self) -> bool {
        matches!(self.read().geometry, Geometry::Even { .. })
    }

    /// The key begins at `start` from now on; parts of one length have 2^`shift` bytes.
    pub(crate) fn place(&self, start: u64, shift: u32) {
        let geometry = &mut self.write().geometry;
        *geometry = match geometry {
            Geometry::Own => Geometry::Own,
            Geometry::Even { .. } => Geometry::Even { shift, first: start & ((1 << shift) - 1) },
            Geometry::Whole { target, .. } => Geometry::Whole { target: *target, first: start },
        };
    }

    /// The first entries as they are stored, `most` at most.
    pub(crate) fn entries(&self, most: u64) -> Vec<u8> {
        let state = self.read();
        let entry = |index| {
            let KeyPart { lkey, addr, len } = state.entries.get(index);
            [&(len as u32).to_be_bytes()[..], &lkey.to_be_bytes(), &addr.to_be_bytes()].concat()
        };
        (0..self.capacity.min(most)).flat_map(entry).collect()
    }

    /// Stores entries as commands and requests list them, from `first` on.
    pub(crate) fn store(&self, first: u64, bytes: &[u8]) -> Result<(), Beyond> {
        let mut state = self.write();
        if first == 0 && !bytes.is_empty() && state.geometry == Geometry::Own {
            state.pattern = Pattern::parse(bytes, self.capacity).map_err(|_| Beyond)?;
            if state.pattern.is_some() {
                return Ok(());
            }
        }
        for (index, entry) in (first..).zip(bytes.chunks_exact(ENTRY_LEN as usize)) {
            let part =
                KeyPart { len: be32(entry, 0).into(), lkey: be32(entry, 4), addr: be64(entry, 8) };
            // Lists are padded to whole units, of which only zeros may stick out.
            if index < self.capacity {
                state.entries.set(index, part);
                state.end = state.end.max(index + 1);
            } else if part != ABSENT {
                return Err(Beyond);
            }
        }
        Ok(())
    }
}

impl State {
    /// The entry that `offset` falls into, and how far into it.
    fn find(&self, offset: u64) -> Option<(Entry, u64)> {
        match self.geometry {
            Geometry::Own if let Some(pattern) = &self.pattern => Some((pattern.part(offset)?, 0)),
            Geometry::Own => {
                let mut begin = 0u64;
                for index in 0..self.end {
                    let part = self.entries.get(index);
                    let end = begin.checked_add(part.len)?;
                    if offset < end {
                        return Some((part, offset - begin));
                    }
                    begin = end;
                }
                None
            }
            Geometry::Even { shift, first } => {
                let at = offset.checked_add(first)?;
                let part = KeyPart { len: 1 << shift, ..self.entries.get(at >> shift) };
                Some((part, at & (part.len - 1))).filter(|_| at >> shift < self.end)
            }
            Geometry::Whole { target, first } => {
                let part = KeyPart { lkey: target, addr: 0, len: u64::MAX };
                Some((part, offset.checked_add(first)?))
            }
        }
    }
}

impl KeyParts for KeyList {
    fn part(&self, offset: u64) -> Result<KeyPart, AccessError> {
        let (part, within) = self.read().find(offset).ok_or(AccessError::OutOfRange)?;
        if part.lkey == NULL_KEY {
            let key = NULL_KEY;
            return Err(AccessError::NotPresent { key, len: 1, addr: offset, below: false });
        }
        let addr = part.addr.checked_add(within).ok_or(AccessError::OutOfRange)?;
        Ok(KeyPart { lkey: part.lkey, addr, len: part.len - within })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(len: u32, key: u32, addr: u64) -> Vec<u8> {
        [&len.to_be_bytes()[..], &key.to_be_bytes(), &addr.to_be_bytes()].concat()
    }

    #[test]
    fn parts_of_their_own_lengths_follow_each_other() {
        let list = KeyList::own_lengths(3);
        let bytes = [entry(10, 1, 0x1000), entry(0, 2, 0), entry(20, 3, 0x2000)].concat();
        list.store(0, &bytes).unwrap();
        list.place(0x5000, 12);
        assert_eq!(list.part(9), Ok(KeyPart { lkey: 1, addr: 0x1009, len: 1 }));
        assert_eq!(list.part(10), Ok(KeyPart { lkey: 3, addr: 0x2000, len: 20 }));
        assert_eq!(list.part(30), Err(AccessError::OutOfRange));
        assert_eq!(list.part(u64::MAX), Err(AccessError::OutOfRange));
    }

    #[test]
    fn even_parts_are_found_by_their_number() {
        let list = KeyList::even(4);
        // What stands in the place of the length does not count.
        list.store(1, &entry(7, 5, 0x10_0000)).unwrap();
        list.place(0x7_0800, 12);
        assert_eq!(list.part(0x800), Ok(KeyPart { lkey: 5, addr: 0x10_0000, len: 0x1000 }));
        assert_eq!(list.part(0x17ff), Ok(KeyPart { lkey: 5, addr: 0x10_0fff, len: 1 }));
        assert_eq!(list.part(0).map(|part| part.lkey), Ok(0), "nothing was listed");
        assert_eq!(list.part(0x1800), Err(AccessError::OutOfRange));
        assert_eq!(list.part(u64::MAX), Err(AccessError::OutOfRange));
        list.place(0, 30);
        assert_eq!(list.part(3 << 29).map(|part| part.len), Ok(1 << 29));
    }

    #[test]
    fn a_crossing_key_has_the_addresses_of_its_target() {
        let list = KeyList::crossing(0x123);
        list.place(0, 12);
        let part = list.part(0x7000_0000).unwrap();
        assert_eq!((part.lkey, part.addr), (0x123, 0x7000_0000));
        assert!(list.store(0, &entry(1, 1, 1)).is_err());
    }

    #[test]
    fn only_zeros_may_stick_out() {
        let list = KeyList::even(1);
        assert!(list.store(0, &[entry(0, 1, 0), entry(0, 0, 0)].concat()).is_ok());
        assert!(list.store(1, &entry(0, 1, 0)).is_err());
    }
}
