//! What of a neighbour's memory was asked for by packets, where its device keeps translations: from
//! then on it has them, and what goes directly would have found them.

use std::ops::Range;

/// Units beyond which nothing is remembered, and all goes by packets: 64 GiB.
const MOST: u64 = 1 << 20;

/// The units of one key's memory, a bit each.
#[derive(Default)]
pub(super) struct Asked(Vec<u64>);

impl Asked {
    /// Whether all of these were asked for; from now on they were. Allocates.
    pub(super) fn all(&mut self, units: &Range<u64>) -> bool {
        let words = units.end.div_ceil(64) as usize;
        if units.end > MOST || !self.has(words) {
            return false;
        }
        let mut all = true;
        for unit in units.clone() {
            if let Some(word) = self.0.get_mut((unit / 64) as usize) {
                all &= *word >> (unit % 64) & 1 == 1;
                *word |= 1 << (unit % 64);
            }
        }
        all
    }

    fn has(&mut self, words: usize) -> bool {
        let more = words.saturating_sub(self.0.len());
        let has = self.0.try_reserve(more).is_ok();
        if has && more > 0 {
            self.0.resize(words, 0);
        }
        has
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_asked_for_once_is_known() {
        let mut asked = Asked::default();
        assert!(!asked.all(&(3..4)) && asked.all(&(3..4)));
        assert!(!asked.all(&(2..4)) && asked.all(&(2..4)), "a part of it");
        assert!(!asked.all(&(60..130)) && asked.all(&(63..129)));
        assert!(!asked.all(&(MOST - 1..MOST)) && asked.all(&(MOST - 1..MOST)));
        assert!(!asked.all(&(MOST..MOST + 1)) && !asked.all(&(MOST..MOST + 1)));
    }
}
