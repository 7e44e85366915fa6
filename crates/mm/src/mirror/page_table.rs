//! Which pages a device may reach now: one bit for reading and one for writing of every page of a
//! range.
//!
//! A tree of three levels whose parts are made when a page in them is first mapped, each as large
//! as the range needs. Looking up and clearing takes no lock and allocates nothing;
//! [`PageTable::make_room`] is the only thing that does.

use std::ops::Range;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering::*};

/// Pages of a leaf: 1 GiB of 4 KiB pages, as mlx5's children of an implicit region
/// (`MLX5_IMR_MTT_SHIFT`).
const LEAF: u64 = 1 << 18;
/// Leaves of a middle part.
const FAN: u64 = 1 << 9;
/// Pages that a table can hold: 2^48 bytes of 4 KiB pages.
pub(crate) const MOST: u64 = LEAF * FAN * FAN;
/// Pages of a word.
const WORD: u64 = 32;
/// The bit for reading of each page of a word; the one for writing is the next higher.
const READ: u64 = 0x5555_5555_5555_5555;

struct Leaf(Box<[AtomicU64]>);
struct Middle(Box<[OnceLock<Leaf>]>);

/// The pages numbered from 0 of one range.
pub(crate) struct PageTable {
    pages: u64,
    root: Box<[OnceLock<Middle>]>,
}

impl PageTable {
    /// A table of `pages` pages, none mapped. Those from [`MOST`] on cannot be mapped.
    pub(crate) fn new(pages: u64) -> PageTable {
        let pages = pages.min(MOST);
        let parts = pages.div_ceil(LEAF * FAN);
        PageTable { pages, root: (0..parts).map(|_| OnceLock::new()).collect() }
    }

    /// Makes what is missing for `pages`; `false` if they are not all in the table.
    pub(crate) fn make_room(&self, pages: &Range<u64>) -> bool {
        if pages.end > self.pages {
            return false;
        }
        for (number, _) in parts(pages) {
            let first = number / FAN * FAN;
            let leaves = (self.pages.div_ceil(LEAF) - first).min(FAN);
            let Some(slot) = self.root.get((number / FAN) as usize) else { return false };
            let middle =
                slot.get_or_init(|| Middle((0..leaves).map(|_| OnceLock::new()).collect()));
            let Some(slot) = middle.0.get((number - first) as usize) else { return false };
            let words = (self.pages - number * LEAF).min(LEAF).div_ceil(WORD);
            slot.get_or_init(|| Leaf((0..words).map(|_| AtomicU64::new(0)).collect()));
        }
        true
    }

    /// Whether all of `pages` are mapped, for writing too if `write`.
    #[inline]
    pub(crate) fn covers(&self, pages: &Range<u64>, write: bool) -> bool {
        if pages.is_empty() {
            return true;
        }
        let (first, last) = (pages.start, pages.end - 1);
        if first / WORD == last / WORD {
            return last < self.pages && self.word_covers(first, last, write);
        }
        pages.end <= self.pages
            && parts(pages).all(|(number, within)| {
                self.leaf(number).is_some_and(|leaf| {
                    words(&within).all(|(index, mask)| {
                        let wanted = mask & if write { u64::MAX } else { READ };
                        leaf.0.get(index).is_some_and(|w| w.load(Acquire) & wanted == wanted)
                    })
                })
            })
    }

    /// The same for pages of one word: what a packet touches.
    #[inline]
    fn word_covers(&self, first: u64, last: u64, write: bool) -> bool {
        let Some(leaf) = self.leaf(first / LEAF) else { return false };
        let mask = u64::MAX >> (62 - 2 * (last - first)) << (2 * (first % WORD));
        let wanted = mask & if write { u64::MAX } else { READ };
        let word = leaf.0.get((first % LEAF / WORD) as usize);
        word.is_some_and(|word| word.load(Acquire) & wanted == wanted)
    }

    /// Maps `pages`, for which there is room. Gives the number of those that could not be reached
    /// so before.
    pub(crate) fn map(&self, pages: &Range<u64>, write: bool) -> u64 {
        self.change(pages, |word, mask| {
            let wanted = mask & if write { u64::MAX } else { READ };
            let new = wanted & !word.fetch_or(wanted, SeqCst);
            (new | new >> 1) & READ
        })
    }

    /// Unmaps `pages`. Gives the number of those that were mapped.
    pub(crate) fn zap(&self, pages: &Range<u64>) -> u64 {
        let end = pages.end.min(self.pages);
        self.change(&(pages.start.min(end)..end), |word, mask| {
            // most of a large range is empty, and a plain load leaves its cache lines shared
            if word.load(Relaxed) & mask == 0 {
                return 0;
            }
            word.fetch_and(!mask, SeqCst) & mask & READ
        })
    }

    /// Applies `change` to each word that exists of `pages`; sums the pages whose read bit it
    /// answers.
    fn change(&self, pages: &Range<u64>, change: impl Fn(&AtomicU64, u64) -> u64) -> u64 {
        let mut count = 0;
        let mut at = pages.start;
        while at < pages.end {
            let number = at / LEAF;
            let Some(middle) = self.root.get((number / FAN) as usize).and_then(OnceLock::get)
            else {
                at = (number / FAN + 1) * FAN * LEAF;
                continue;
            };
            let first = number * LEAF;
            if let Some(leaf) = middle.0.get((number % FAN) as usize).and_then(OnceLock::get) {
                let within = at - first..(pages.end - first).min(LEAF);
                for (index, mask) in words(&within) {
                    let changed = leaf.0.get(index).map_or(0, |word| change(word, mask));
                    count += u64::from(changed.count_ones());
                }
            }
            at = first + LEAF;
        }
        count
    }

    #[inline]
    fn leaf(&self, number: u64) -> Option<&Leaf> {
        let middle = self.root.get((number / FAN) as usize)?.get()?;
        middle.0.get((number % FAN) as usize)?.get()
    }
}

/// The leaves that `pages` lie in, each with the pages inside it.
#[inline]
fn parts(pages: &Range<u64>) -> impl Iterator<Item = (u64, Range<u64>)> + use<> {
    let Range { start, end } = *pages;
    (start / LEAF..end.div_ceil(LEAF)).map(move |number| {
        let first = number * LEAF;
        (number, start.max(first) - first..end.min(first + LEAF) - first)
    })
}

/// The words of a leaf that its pages `within` lie in, each with both bits of these pages.
#[inline]
fn words(within: &Range<u64>) -> impl Iterator<Item = (usize, u64)> + use<> {
    let Range { start, end } = *within;
    (start / WORD..end.div_ceil(WORD)).map(move |word| {
        let first = word * WORD;
        let (from, to) = (start.max(first) - first, end.min(first + WORD) - first);
        let upto = |page: u64| if page == WORD { u64::MAX } else { (1 << (2 * page)) - 1 };
        (word as usize, upto(to) & !upto(from))
    })
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn agrees_with_a_plain_list() {
        const PAGES: u64 = LEAF + 300;
        let base = LEAF - 150;
        let table = PageTable::new(PAGES);
        let mut list = [0u8; 300];
        let mut seed = 11u64;
        let mut next = |below: u64| {
            seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (seed >> 33) % below
        };
        for _ in 0..5000 {
            let start = next(300);
            let end = (start + next(90)).min(300);
            let (pages, span) = (base + start..base + end, start as usize..end as usize);
            let write = next(2) == 1;
            let bits = if write { 3 } else { 1 };
            if next(2) == 1 {
                assert!(table.make_room(&pages));
                let new = list[span.clone()].iter().filter(|p| **p & bits != bits).count();
                assert_eq!(table.map(&pages, write), new as u64);
                list[span].iter_mut().for_each(|p| *p |= bits);
            } else {
                let old = list[span.clone()].iter().filter(|p| **p != 0).count();
                assert_eq!(table.zap(&pages), old as u64);
                list[span].fill(0);
            }
            let start = next(300);
            let end = (start + next(60)).min(300);
            let all = list[start as usize..end as usize].iter().all(|p| p & bits == bits);
            assert_eq!(table.covers(&(base + start..base + end), write), all);
        }
    }

    #[test]
    fn large_tables_cost_only_what_is_mapped() {
        let table = PageTable::new(u64::MAX);
        assert!(!table.covers(&(7..8), false));
        assert_eq!(table.zap(&(0..u64::MAX)), 0);
        for page in [0, LEAF * FAN - 1, LEAF * FAN, MOST - 1] {
            assert!(table.make_room(&(page..page + 1)));
            assert_eq!(table.map(&(page..page + 1), true), 1);
        }
        assert!(table.covers(&(LEAF * FAN - 1..LEAF * FAN + 1), true));
        assert!(!table.make_room(&(MOST - 1..MOST + 1)), "beyond the table");
        assert!(!table.covers(&(MOST - 1..MOST + 1), false));
        assert_eq!(table.zap(&(1..u64::MAX)), 3);
    }

    #[test]
    fn nothing_beyond_the_end_is_mapped() {
        let table = PageTable::new(33);
        assert!(table.make_room(&(0..33)));
        assert!(!table.make_room(&(32..34)));
        assert_eq!(table.map(&(0..33), false), 33);
        assert!(table.covers(&(0..33), false));
        assert!(!table.covers(&(0..33), true));
        assert!(!table.covers(&(32..34), false));
        assert_eq!(table.map(&(32..33), true), 1, "a page that becomes writable counts");
        assert_eq!(table.zap(&(0..1000)), 33);
    }
}
