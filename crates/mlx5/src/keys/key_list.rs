//! The list of a key over parts of other keys, as the driver lays it out: parts of their own
//! lengths (KLM), parts of one length (KSM), or all of one other key (CROSSING); or repeated blocks
//! in the place of parts of their own lengths. What an access to a part means the HCA knows
//! ([`hca::KeySpace`]).
//!
//! A guest lays a list out and a peer names bytes of it, so finding a byte costs much the same
//! wherever it is and whatever else is listed: a list of parts of their own lengths has
//! [`LOG_MAX_ENTRIES`] at most and keeps sums over groups of them.
//!
//! Source: PRM "KLM and KSM"; `struct mlx5_klm`, `struct mlx5_ksm`.

use crate::layout::bits::{be32, be64};
use crate::layout::head::Status;
use crate::layout::stride::Pattern;
use crate::machine::budget::{Budget, Charge};
use crate::machine::sparse::Sparse;
use engine_thread::{read, write};
use hca::{KeyPart, KeyParts};
use std::sync::{Arc, RwLock, RwLockReadGuard, RwLockWriteGuard};
use umem::AccessError;

/// The key without memory: an access to a part of it is a page fault of the key above
/// (`null_mkey`).
pub(crate) const NULL_KEY: u32 = 0xff00_0000;
/// Bytes of an entry.
pub(crate) const ENTRY_LEN: u64 = 16;
/// Most parts of their own lengths, as a logarithm (`log_max_klm_list_size`).
pub(crate) const LOG_MAX_ENTRIES: u64 = 16;
/// Entries of which one sum is kept.
const GROUP: u64 = 16;

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

struct ListState {
    geometry: Geometry,
    entries: Sparse<Entry>,
    /// For entries of their own lengths: how many bytes each group has,
    sums: Vec<u64>,
    /// and where it ends.
    ends: Vec<u64>,
    /// What the sums take.
    sums_charge: Charge,
    /// What is in the place of the entries.
    pattern: Option<(Pattern, Charge)>,
    /// Behind the last entry that was written.
    end: u64,
}

/// A key's list.
pub(crate) struct KeyList {
    capacity: u64,
    budget: Arc<Budget>,
    state: RwLock<ListState>,
}

impl KeyList {
    fn new(capacity: u64, geometry: Geometry, budget: &Arc<Budget>) -> Result<KeyList, Status> {
        let state = ListState {
            geometry,
            entries: Sparse::new(ABSENT, budget)?,
            sums: Vec::new(),
            ends: Vec::new(),
            sums_charge: budget.charge(0)?,
            pattern: None,
            end: 0,
        };
        Ok(KeyList { capacity, budget: budget.clone(), state: RwLock::new(state) })
    }

    /// Parts of their own lengths, `capacity` at most.
    pub(crate) fn own_lengths(capacity: u64, budget: &Arc<Budget>) -> Result<KeyList, Status> {
        KeyList::new(capacity, Geometry::Own, budget)
    }

    /// Parts of one length, `capacity` at most.
    pub(crate) fn even(capacity: u64, budget: &Arc<Budget>) -> Result<KeyList, Status> {
        KeyList::new(capacity, Geometry::Even { shift: 12, first: 0 }, budget)
    }

    /// All of the key `target`, whose addresses are the key's own.
    pub(crate) fn crossing(target: u32, budget: &Arc<Budget>) -> Result<KeyList, Status> {
        KeyList::new(0, Geometry::Whole { target, first: 0 }, budget)
    }

    fn read(&self) -> RwLockReadGuard<'_, ListState> {
        read(&self.state)
    }

    fn write(&self) -> RwLockWriteGuard<'_, ListState> {
        write(&self.state)
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
    ///
    /// # Errors
    /// [`Status::BadParameter`] beyond its end or for repeated blocks that contradict themselves,
    /// [`Status::NoResources`].
    pub(crate) fn store(&self, first: u64, bytes: &[u8]) -> Result<(), Status> {
        let mut state = self.write();
        if first == 0 && !bytes.is_empty() && state.geometry == Geometry::Own {
            state.pattern = None;
            let pattern = Pattern::parse(bytes, self.capacity).map_err(|_| Status::BadParameter)?;
            if let Some(pattern) = pattern {
                let charge = self.budget.charge(pattern.size())?;
                state.pattern = Some((pattern, charge));
                return Ok(());
            }
        }
        let stored = state.store(self.capacity, first, bytes);
        state.sum_up(first);
        stored
    }
}

impl ListState {
    fn store(&mut self, capacity: u64, first: u64, bytes: &[u8]) -> Result<(), Status> {
        for (index, entry) in (first..).zip(bytes.chunks_exact(ENTRY_LEN as usize)) {
            let part =
                KeyPart { len: be32(entry, 0).into(), lkey: be32(entry, 4), addr: be64(entry, 8) };
            // Lists are padded to whole units, of which only zeros may stick out.
            if index < capacity {
                self.set(index, part)?;
            } else if part != ABSENT {
                return Err(Status::BadParameter);
            }
        }
        Ok(())
    }

    fn set(&mut self, index: u64, part: Entry) -> Result<(), Status> {
        let before = self.entries.get(index).len;
        if self.geometry == Geometry::Own {
            let group = (index / GROUP) as usize;
            let more = (group + 1).saturating_sub(self.sums.len());
            self.sums_charge.grow((2 * more * size_of::<u64>()) as u64)?;
            // The ends become as many.
            let ends = self.sums.len() + more - self.ends.len();
            let reserved = self.sums.try_reserve(more).and(self.ends.try_reserve(ends));
            reserved.map_err(|_| Status::NoResources)?;
            self.sums.resize(self.sums.len() + more, 0);
            self.entries.set(index, part)?;
            self.sums[group] = self.sums[group] + part.len - before;
        } else {
            self.entries.set(index, part)?;
        }
        self.end = self.end.max(index + 1);
        Ok(())
    }

    /// Entries from `first` on have changed.
    fn sum_up(&mut self, first: u64) {
        let from = ((first / GROUP) as usize).min(self.ends.len());
        self.ends.truncate(from);
        let mut end = self.ends.last().copied().unwrap_or(0);
        for sum in self.sums.get(from..).unwrap_or_default() {
            end += sum;
            self.ends.push(end);
        }
    }

    /// The entry of its own length that `offset` falls into, and how far into it.
    fn find_own(&self, offset: u64) -> Option<(Entry, u64)> {
        let group = self.ends.partition_point(|end| *end <= offset);
        let mut left = offset - (self.ends.get(group)? - self.sums[group]);
        let first = group as u64 * GROUP;
        for index in first..first + GROUP {
            let part = self.entries.get(index);
            if left < part.len {
                return Some((part, left));
            }
            left -= part.len;
        }
        None
    }

    /// The entry that `offset` falls into, and how far into it.
    fn find(&self, offset: u64) -> Option<(Entry, u64)> {
        match self.geometry {
            Geometry::Own if let Some((pattern, _)) = &self.pattern => {
                Some((pattern.part(offset)?, 0))
            }
            Geometry::Own => self.find_own(offset),
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

    fn budget() -> Arc<Budget> {
        Budget::new(16 << 20)
    }

    fn entry(len: u32, key: u32, addr: u64) -> Vec<u8> {
        [&len.to_be_bytes()[..], &key.to_be_bytes(), &addr.to_be_bytes()].concat()
    }

    #[test]
    fn parts_of_their_own_lengths_follow_each_other() {
        let list = KeyList::own_lengths(3, &budget()).unwrap();
        let bytes = [entry(10, 1, 0x1000), entry(0, 2, 0), entry(20, 3, 0x2000)].concat();
        list.store(0, &bytes).unwrap();
        list.place(0x5000, 12);
        assert_eq!(list.part(9), Ok(KeyPart { lkey: 1, addr: 0x1009, len: 1 }));
        assert_eq!(list.part(10), Ok(KeyPart { lkey: 3, addr: 0x2000, len: 20 }));
        assert_eq!(list.part(30), Err(AccessError::OutOfRange));
        assert_eq!(list.part(u64::MAX), Err(AccessError::OutOfRange));
    }

    /// Each byte is found where a walk from the first entry on finds it, after any order of
    /// changes.
    #[test]
    fn parts_are_found_where_they_lie_after_changes() {
        let list = KeyList::own_lengths(100, &budget()).unwrap();
        let mut lens = [0u32; 100];
        let mut random = 0x9e37_79b9u32;
        for _ in 0..200 {
            random = random.wrapping_mul(0x0019_660d).wrapping_add(0x3c6e_f35f);
            let (index, len) = ((random >> 8) as usize % 100, random >> 24 & 7);
            lens[index] = len;
            list.store(index as u64, &entry(len, index as u32, 0)).unwrap();
            let bytes =
                (0..100u32).flat_map(|key| (0..lens[key as usize]).map(move |at| (key, at)));
            let mut end = 0;
            for (offset, (key, at)) in (0..).zip(bytes) {
                let len = u64::from(lens[key as usize] - at);
                let expected = KeyPart { lkey: key, addr: at.into(), len };
                assert_eq!(list.part(offset), Ok(expected));
                end = offset + 1;
            }
            assert_eq!(list.part(end), Err(AccessError::OutOfRange));
        }
    }

    /// A million accesses to the last byte of the longest list, which one walk each would take
    /// minutes for.
    #[test]
    fn a_far_entry_costs_no_more_than_a_near_one() {
        let list = KeyList::own_lengths(1 << LOG_MAX_ENTRIES, &budget()).unwrap();
        let last = (1 << LOG_MAX_ENTRIES) - 1;
        list.store(last, &entry(1, 7, 0x1000)).unwrap();
        let begun = std::time::Instant::now();
        for _ in 0..1_000_000 {
            assert_eq!(list.part(0), Ok(KeyPart { lkey: 7, addr: 0x1000, len: 1 }));
        }
        assert!(begun.elapsed() < std::time::Duration::from_secs(20));
    }

    #[test]
    fn even_parts_are_found_by_their_number() {
        let list = KeyList::even(4, &budget()).unwrap();
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
        let list = KeyList::crossing(0x123, &budget()).unwrap();
        list.place(0, 12);
        let part = list.part(0x7000_0000).unwrap();
        assert_eq!((part.lkey, part.addr), (0x123, 0x7000_0000));
        assert!(list.store(0, &entry(1, 1, 1)).is_err());
    }

    #[test]
    fn only_zeros_may_stick_out() {
        let list = KeyList::even(1, &budget()).unwrap();
        assert!(list.store(0, &[entry(0, 1, 0), entry(0, 0, 0)].concat()).is_ok());
        assert!(list.store(1, &entry(0, 1, 0)).is_err());
    }
}
