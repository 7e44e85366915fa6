//! Which addresses of a mirror change now, have just changed, or are to be left alone for a moment.
//!
//! All of it is in fixed places: nothing here allocates.

use std::ops::Range;

/// Number of invalidations that are distinguished by their range: in progress, and recent ones.
pub(super) const RANGES: usize = 16;

/// Addresses of invalidations, in a fixed place so that nothing allocates.
pub(super) struct Ranges {
    at: [(u64, u64); RANGES],
    used: usize,
}

impl Ranges {
    pub(super) const fn new() -> Ranges {
        Ranges { at: [(0, 0); RANGES], used: 0 }
    }

    /// `false` when full.
    pub(super) fn add(&mut self, range: &Range<u64>) -> bool {
        let room = self.used < RANGES;
        if room {
            self.at[self.used] = (range.start, range.end);
            self.used += 1;
        }
        room
    }

    /// `false` when it was not there.
    pub(super) fn remove(&mut self, range: &Range<u64>) -> bool {
        let place = self.at[..self.used].iter().position(|&at| at == (range.start, range.end));
        if let Some(place) = place {
            self.used -= 1;
            self.at[place] = self.at[self.used];
        }
        place.is_some()
    }

    pub(super) fn overlaps(&self, range: &Range<u64>) -> bool {
        self.at[..self.used].iter().any(|&(start, end)| start < range.end && end > range.start)
    }
}

/// The changes of a mirror's addresses, and who asks for a moment without them.
pub(super) struct MirrorState {
    /// Invalidations begun.
    pub(super) sequence: u64,
    /// The latest of them: that of number `n` at place `n % RANGES`.
    recent: [(u64, u64); RANGES],
    /// Those in progress, and how many more there are that found no place.
    active: Ranges,
    unplaced: u32,
    /// Accesses that insist.
    pub(super) turns: Ranges,
}

impl MirrorState {
    pub(super) fn new() -> MirrorState {
        MirrorState {
            sequence: 0,
            recent: [(0, 0); RANGES],
            active: Ranges::new(),
            unplaced: 0,
            turns: Ranges::new(),
        }
    }

    /// An invalidation of `range` begins.
    pub(super) fn begin(&mut self, range: &Range<u64>) {
        let place = self.sequence as usize % RANGES;
        self.recent[place] = (range.start, range.end);
        self.sequence += 1;
        if !self.active.add(range) {
            self.unplaced += 1;
        }
    }

    /// It ends.
    pub(super) fn end(&mut self, range: &Range<u64>) {
        if !self.active.remove(range) {
            self.unplaced = self.unplaced.saturating_sub(1);
        }
    }

    pub(super) fn busy(&self, range: &Range<u64>) -> bool {
        self.unplaced > 0 || self.active.overlaps(range)
    }

    /// Whether an invalidation of `range` may have begun since number `since`.
    pub(super) fn changed(&self, range: &Range<u64>, since: u64) -> bool {
        if self.sequence - since > RANGES as u64 {
            return true;
        }
        (since..self.sequence).any(|number| {
            let (start, end) = self.recent[number as usize % RANGES];
            start < range.end && end > range.start
        })
    }
}
