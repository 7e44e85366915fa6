//! One place of a translation cache: filled, looked up and emptied at any time by any thread,
//! without a lock.
//!
//! A version counts every change. Who finds nothing keeps the version of that moment, asks the
//! owner of the memory, and fills the place only if the version is still the same (load-linked,
//! store-conditional): an invalidation that begins after the look and ends before the fill has
//! counted it up, so the fill loses. Who reads an entry looks at the version before and after, so
//! it never has halves of two (a sequence lock). The model tests (`--cfg loom`) check both.

#[cfg(loom)]
use loom::sync::atomic::{AtomicU64, Ordering::*, fence};
use std::ops::Range;
#[cfg(not(loom))]
use std::sync::atomic::{AtomicU64, Ordering::*, fence};

/// Somebody is filling the place.
const BUSY: u64 = 1;
/// It holds an entry.
const VALID: u64 = 2;
const STATE: u64 = BUSY | VALID;
/// The version counts from here on.
const CHANGE: u64 = 4;

/// A place for one entry, of one cache line half.
#[repr(align(32))]
pub(crate) struct Slot {
    version: AtomicU64,
    region: AtomicU64,
    unit: AtomicU64,
    word: AtomicU64,
}

/// What an entry is found by: the region's number, and the place in it counted in units.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Key {
    pub(crate) region: u64,
    pub(crate) unit: u64,
}

/// The version at which nothing was found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Missed(u64);

impl Slot {
    pub(crate) fn new() -> Slot {
        let zero = || AtomicU64::new(0);
        Slot { version: zero(), region: zero(), unit: zero(), word: zero() }
    }

    /// The word that `key` was filled with, if it has all bits of `need`; otherwise what
    /// [`Slot::fill`] needs, taken before anything that the caller asks next.
    #[inline]
    pub(crate) fn look(&self, key: Key, need: u64) -> Result<u64, Missed> {
        let version = self.version.load(Acquire);
        if version & STATE != VALID {
            return Err(Missed(version));
        }
        let found = Key { region: self.region.load(Relaxed), unit: self.unit.load(Relaxed) };
        let word = self.word.load(Relaxed);
        fence(Acquire);
        // an entry that was changed meanwhile is as good as none
        let same = found == key && self.version.load(Relaxed) == version;
        if same && word & need == need { Ok(word) } else { Err(Missed(version)) }
    }

    /// Puts an entry here, unless the place was changed since `missed`.
    pub(crate) fn fill(&self, key: Key, word: u64, Missed(version): Missed) {
        let filling = (version & !STATE).wrapping_add(CHANGE) | BUSY;
        if version & BUSY != 0 || !self.change(version, filling) {
            return;
        }
        fence(Release);
        self.region.store(key.region, Relaxed);
        self.unit.store(key.unit, Relaxed);
        self.word.store(word, Relaxed);
        if !self.change(filling, filling ^ STATE) {
            // invalidated meanwhile: whatever the version is now, nobody else changes these bits
            self.version.fetch_and(!BUSY, SeqCst);
        }
    }

    /// Drops an entry of `region` for any of `units`, and has a fill that is in progress fail.
    /// Answers whether there was one.
    pub(crate) fn invalidate(&self, region: u64, units: &Range<u64>) -> bool {
        loop {
            let version = self.version.load(Acquire);
            let drops = version & VALID != 0
                && self.region.load(Relaxed) == region
                && units.contains(&self.unit.load(Relaxed));
            let keep = version & if drops { BUSY } else { STATE };
            if self.change(version, (version & !STATE).wrapping_add(CHANGE) | keep) {
                return drops;
            }
        }
    }

    fn change(&self, from: u64, to: u64) -> bool {
        self.version.compare_exchange(from, to, SeqCst, Relaxed).is_ok()
    }
}

#[cfg(all(test, loom))]
mod model {
    use super::*;
    use loom::sync::Arc;
    use loom::sync::atomic::AtomicBool;
    use loom::thread;

    const ONE: Key = Key { region: 1, unit: 5 };
    const OTHER: Key = Key { region: 2, unit: 7 };

    /// All interleavings with up to three preemptions.
    fn model(body: impl Fn() + Sync + Send + 'static) {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(3);
        builder.check(body);
    }

    /// Asks the owner only after the look, as an access does.
    fn access(slot: &Slot, mapped: &AtomicBool, key: Key) {
        if let Err(missed) = slot.look(key, 0)
            && mapped.load(SeqCst)
        {
            slot.fill(key, key.region + key.unit, missed);
        }
    }

    #[test]
    fn slot_an_invalidation_wins_over_a_fill() {
        model(|| {
            let shared = Arc::new((Slot::new(), AtomicBool::new(true), AtomicBool::new(false)));
            let filler = {
                let shared = shared.clone();
                thread::spawn(move || access(&shared.0, &shared.1, ONE))
            };
            let reader = {
                let shared = shared.clone();
                thread::spawn(move || {
                    let gone = shared.2.load(SeqCst);
                    assert!(!gone || shared.0.look(ONE, 0).is_err(), "used after the invalidation");
                })
            };
            shared.1.store(false, SeqCst);
            shared.0.invalidate(ONE.region, &(ONE.unit..ONE.unit + 1));
            shared.2.store(true, SeqCst);
            filler.join().unwrap();
            reader.join().unwrap();
            assert!(shared.0.look(ONE, 0).is_err(), "filled after the invalidation");
        });
    }

    #[test]
    fn slot_entries_are_whole() {
        model(|| {
            let shared = Arc::new((Slot::new(), AtomicBool::new(true)));
            let fillers = [ONE, OTHER].map(|key| {
                let shared = shared.clone();
                thread::spawn(move || access(&shared.0, &shared.1, key))
            });
            for key in [ONE, OTHER] {
                if let Ok(word) = shared.0.look(key, 0) {
                    assert_eq!(word, key.region + key.unit);
                }
            }
            fillers.into_iter().for_each(|filler| filler.join().unwrap());
        });
    }

    #[test]
    fn slot_a_fill_that_lost_leaves_the_place_to_others() {
        model(|| {
            let slot = Arc::new(Slot::new());
            let missed = slot.look(ONE, 0).unwrap_err();
            let filler = {
                let slot = slot.clone();
                thread::spawn(move || slot.fill(ONE, 6, missed))
            };
            slot.invalidate(ONE.region, &(0..9));
            filler.join().unwrap();
            let missed = slot.look(OTHER, 0).unwrap_err();
            slot.fill(OTHER, 9, missed);
            assert_eq!(slot.look(OTHER, 0), Ok(9));
        });
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const KEY: Key = Key { region: 3, unit: 8 };

    #[test]
    fn entries_come_and_go() {
        let slot = Slot::new();
        let missed = slot.look(KEY, 0).unwrap_err();
        slot.fill(KEY, 77, missed);
        assert_eq!(slot.look(KEY, 0), Ok(77));
        slot.fill(KEY, 78, missed);
        assert_eq!(slot.look(KEY, 0), Ok(77), "that look was before the other fill");
        for (region, units) in [(4, 0..20), (3, 0..8), (3, 9..20)] {
            assert!(!slot.invalidate(region, &units));
            assert_eq!(slot.look(KEY, 0), Ok(77), "another's: {region} {units:?}");
        }
        assert!(slot.invalidate(3, &(8..9)));
        assert!(slot.look(KEY, 0).is_err() && !slot.invalidate(3, &(8..9)));
    }

    #[test]
    fn the_last_one_to_need_a_place_has_it() {
        let (slot, other) = (Slot::new(), Key { region: 3, unit: 4104 });
        let missed = slot.look(KEY, 0).unwrap_err();
        slot.fill(KEY, 77, missed);
        let missed = slot.look(other, 0).unwrap_err();
        slot.fill(other, 78, missed);
        assert!(slot.look(KEY, 0).is_err());
        assert_eq!(slot.look(other, 0), Ok(78));
    }

    #[test]
    fn an_entry_that_falls_short_is_renewed() {
        let slot = Slot::new();
        slot.fill(KEY, 4, slot.look(KEY, 0).unwrap_err());
        assert_eq!(slot.look(KEY, 4), Ok(4));
        slot.fill(KEY, 5, slot.look(KEY, 1).unwrap_err());
        assert_eq!(slot.look(KEY, 1), Ok(5));
    }

    #[test]
    fn a_fill_after_an_invalidation_is_none() {
        let slot = Slot::new();
        let missed = slot.look(KEY, 0).unwrap_err();
        assert!(!slot.invalidate(3, &(8..9)), "there was nothing yet");
        slot.fill(KEY, 77, missed);
        assert!(slot.look(KEY, 0).is_err());
    }
}
