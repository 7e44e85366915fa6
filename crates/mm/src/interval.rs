//! A set of address intervals that may overlap, searched for those that touch a range.
//!
//! A treap over a slab, each node augmented with the greatest end below it: O(log n) to insert,
//! remove and find. **Nothing here allocates or frees except [`Set::with_capacity`]**: the set is
//! changed under a lock that an interposed `munmap` takes, which `malloc` itself may have called.
//! Whoever inserts makes room beforehand with [`Set::adopt`].

use std::collections::TryReserveError;

/// Index of a node; also the handle by which an interval is removed.
pub(crate) type Id = u32;

const NONE: Id = u32::MAX;

struct Node<T> {
    start: u64,
    end: u64,
    max_end: u64,
    priority: u32,
    left: Id,
    right: Id,
    value: Option<T>,
}

/// The set. Intervals are half open, `[start, end)`, ordered by start and then by handle.
pub(crate) struct Set<T> {
    nodes: Vec<Node<T>>,
    free: Id,
    root: Id,
    seed: u32,
    len: usize,
}

impl<T> Set<T> {
    pub(crate) const fn new() -> Set<T> {
        Set { nodes: Vec::new(), free: NONE, root: NONE, seed: 0x9E37_79B9, len: 0 }
    }

    /// An empty set with room for `capacity` intervals, where there is memory for it.
    pub(crate) fn with_capacity(capacity: usize) -> Result<Set<T>, TryReserveError> {
        let mut nodes = Vec::new();
        nodes.try_reserve_exact(capacity)?;
        Ok(Set { nodes, ..Set::new() })
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn capacity(&self) -> usize {
        self.nodes.capacity()
    }

    /// Whether one more interval fits.
    pub(crate) fn has_room(&self) -> bool {
        self.free != NONE || self.nodes.len() < self.nodes.capacity()
    }

    /// Moves all intervals into the larger empty set `other`; `other` then holds the old storage,
    /// to be dropped without a lock. Handles stay valid.
    pub(crate) fn adopt(&mut self, other: &mut Set<T>) {
        debug_assert!(other.nodes.is_empty() && other.nodes.capacity() >= self.nodes.len());
        other.nodes.append(&mut self.nodes);
        std::mem::swap(&mut self.nodes, &mut other.nodes);
    }

    /// Adds `[start, end)`. The caller has made sure of [`Set::has_room`].
    pub(crate) fn insert(&mut self, start: u64, end: u64, value: T) -> Id {
        debug_assert!(self.has_room());
        self.seed ^= self.seed << 13;
        self.seed ^= self.seed >> 17;
        self.seed ^= self.seed << 5;
        let node = Node {
            start,
            end,
            max_end: end,
            priority: self.seed,
            left: NONE,
            right: NONE,
            value: Some(value),
        };
        let id = if self.free == NONE {
            self.nodes.push(node);
            (self.nodes.len() - 1) as Id
        } else {
            let id = self.free;
            self.free = self.nodes[id as usize].left;
            self.nodes[id as usize] = node;
            id
        };
        let (left, right) = self.split(self.root, (start, id));
        let left = self.merge(left, id);
        self.root = self.merge(left, right);
        self.len += 1;
        id
    }

    /// Takes an interval out and hands its value back.
    pub(crate) fn remove(&mut self, id: Id) -> Option<T> {
        let value = self.nodes.get_mut(id as usize)?.value.take()?;
        let start = self.nodes[id as usize].start;
        let (left, rest) = self.split(self.root, (start, id));
        let (_, right) = self.split(rest, (start, id + 1));
        self.root = self.merge(left, right);
        self.nodes[id as usize].left = self.free;
        self.free = id;
        self.len -= 1;
        Some(value)
    }

    pub(crate) fn get(&self, id: Id) -> Option<&T> {
        self.nodes.get(id as usize)?.value.as_ref()
    }

    pub(crate) fn get_mut(&mut self, id: Id) -> Option<&mut T> {
        self.nodes.get_mut(id as usize)?.value.as_mut()
    }

    /// The first interval that overlaps `[start, end)` and comes after `after` (in start and handle
    /// order).
    pub(crate) fn next_overlap(
        &self,
        start: u64,
        end: u64,
        after: Option<(u64, Id)>,
    ) -> Option<(u64, Id)> {
        self.search(self.root, start, end, after)
    }

    /// Least start and greatest end of all intervals.
    pub(crate) fn bounds(&self) -> Option<(u64, u64)> {
        let max_end = self.nodes.get(self.root as usize)?.max_end;
        let mut least = self.root;
        while self.node(least).left != NONE {
            least = self.node(least).left;
        }
        Some((self.node(least).start, max_end))
    }

    fn search(&self, at: Id, start: u64, end: u64, after: Option<(u64, Id)>) -> Option<(u64, Id)> {
        if at == NONE || self.node(at).max_end <= start {
            return None;
        }
        let node = self.node(at);
        let key = (node.start, at);
        let later = after.is_none_or(|after| key > after);
        // everything on the left is at or before `after` if this node is
        if later && let found @ Some(_) = self.search(node.left, start, end, after) {
            return found;
        }
        if node.start >= end {
            return None;
        }
        if later && node.end > start {
            return Some(key);
        }
        self.search(node.right, start, end, after)
    }

    fn node(&self, id: Id) -> &Node<T> {
        &self.nodes[id as usize]
    }

    fn update(&mut self, id: Id) {
        let node = self.node(id);
        let mut max_end = node.end;
        for child in [node.left, node.right] {
            if child != NONE {
                max_end = max_end.max(self.node(child).max_end);
            }
        }
        self.nodes[id as usize].max_end = max_end;
    }

    /// Splits into keys below `key` and keys from `key` on.
    fn split(&mut self, at: Id, key: (u64, Id)) -> (Id, Id) {
        if at == NONE {
            return (NONE, NONE);
        }
        if (self.node(at).start, at) < key {
            let (left, right) = self.split(self.node(at).right, key);
            self.nodes[at as usize].right = left;
            self.update(at);
            (at, right)
        } else {
            let (left, right) = self.split(self.node(at).left, key);
            self.nodes[at as usize].left = right;
            self.update(at);
            (left, at)
        }
    }

    fn merge(&mut self, left: Id, right: Id) -> Id {
        if left == NONE || right == NONE {
            return if left == NONE { right } else { left };
        }
        if self.node(left).priority > self.node(right).priority {
            let merged = self.merge(self.node(left).right, right);
            self.nodes[left as usize].right = merged;
            self.update(left);
            left
        } else {
            let merged = self.merge(left, self.node(right).left);
            self.nodes[right as usize].left = merged;
            self.update(right);
            right
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn overlaps(set: &Set<u32>, start: u64, end: u64) -> Vec<Id> {
        let mut found = Vec::new();
        let mut after = None;
        while let Some(key) = set.next_overlap(start, end, after) {
            found.push(key.1);
            after = Some(key);
        }
        found
    }

    #[test]
    fn agrees_with_a_plain_list() {
        let mut set = Set::new();
        let mut list: Vec<(u64, u64, Id)> = Vec::new();
        let mut seed = 7u64;
        let mut next = |below: u64| {
            seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (seed >> 33) % below
        };
        for turn in 0..4000 {
            if !set.has_room() {
                let mut larger = Set::with_capacity(set.capacity() * 2 + 4).unwrap();
                set.adopt(&mut larger);
            }
            if list.is_empty() || next(3) > 0 {
                let start = next(500);
                let end = start + 1 + next(60);
                let id = set.insert(start, end, turn);
                list.push((start, end, id));
            } else {
                let (_, _, id) = list.swap_remove(next(list.len() as u64) as usize);
                assert!(set.remove(id).is_some());
                assert!(set.remove(id).is_none());
            }
            let start = next(560);
            let end = start + next(80);
            let mut expected: Vec<_> =
                list.iter().filter(|i| i.0 < end && i.1 > start).map(|i| (i.0, i.2)).collect();
            expected.sort();
            let found: Vec<_> = overlaps(&set, start, end);
            assert_eq!(found, expected.iter().map(|e| e.1).collect::<Vec<_>>());
            assert_eq!(set.len(), list.len());
            let bounds = list
                .iter()
                .map(|i| i.0)
                .min()
                .map(|least| (least, list.iter().map(|i| i.1).max().unwrap()));
            assert_eq!(set.bounds(), bounds);
        }
    }
}
