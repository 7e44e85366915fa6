//! Which parts of the GPU's memory are free: first fit over a map of gaps.

use std::collections::BTreeMap;

/// The gaps, by their start.
#[derive(Debug)]
pub(crate) struct Vram {
    gaps: BTreeMap<u64, u64>,
}

impl Vram {
    pub(crate) fn new(bytes: u64) -> Vram {
        Vram { gaps: BTreeMap::from([(0, bytes)]) }
    }

    pub(crate) fn free_bytes(&self) -> u64 {
        self.gaps.values().sum()
    }

    /// Takes the first gap that holds `len` bytes.
    pub(crate) fn take(&mut self, len: u64) -> Option<u64> {
        let (&start, &room) = self.gaps.iter().find(|(_, room)| **room >= len)?;
        self.gaps.remove(&start);
        if room > len {
            self.gaps.insert(start + len, room - len);
        }
        Some(start)
    }

    /// Gives a taken range back, joining it with its neighbours.
    pub(crate) fn give(&mut self, start: u64, len: u64) {
        let (mut start, mut len) = (start, len);
        if let Some(after) = self.gaps.remove(&(start + len)) {
            len += after;
        }
        if let Some((&before, &room)) = self.gaps.range(..start).next_back()
            && before + room == start
        {
            start = before;
            len += room;
        }
        self.gaps.insert(start, len);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_join_again() {
        for order in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
            let mut vram = Vram::new(100);
            let taken = [10, 30, 20].map(|len| (vram.take(len).unwrap(), len));
            assert_eq!(taken, [(0, 10), (10, 30), (40, 20)]);
            assert_eq!(vram.take(41), None);
            assert_eq!(vram.free_bytes(), 40);
            order.into_iter().for_each(|i| vram.give(taken[i].0, taken[i].1));
            assert_eq!(vram.take(100), Some(0), "{order:?}");
            assert_eq!(vram.take(1), None);
        }
    }
}
