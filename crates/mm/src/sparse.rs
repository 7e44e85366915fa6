//! Words by page number, few of many: a tree of four levels whose parts are made when a word in
//! them is first set.
//!
//! Looking up takes no lock. The parts come from the kernel and never from `malloc`, because the
//! thread that serves page faults looks here while others may wait for it inside of `malloc`.

use std::ops::Range;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering::*};

/// Entries of a part; a part takes 4096 bytes.
const FAN: u64 = 512;
const FAN_BITS: u32 = 9;
/// Levels above the words.
const LEVELS: u32 = 3;
/// Words in all: 2^48 bytes of 4 KiB pages.
pub(crate) const MOST: u64 = 1 << (FAN_BITS * (LEVELS + 1));

/// A part: of pointers to lower parts, or at the lowest level of words. Both are 64 bits and all
/// zero at first.
#[repr(C)]
union Part {
    lower: [std::mem::ManuallyDrop<AtomicPtr<Part>>; FAN as usize],
    words: [std::mem::ManuallyDrop<AtomicU64>; FAN as usize],
}

/// Words numbered from 0 to [`MOST`], all 0 at first.
#[derive(Default)]
pub(crate) struct Sparse {
    root: AtomicPtr<Part>,
}

/// The entry of `number` in a part so many levels above the words.
fn index(number: u64, level: u32) -> usize {
    ((number >> (FAN_BITS * level)) % FAN) as usize
}

impl Sparse {
    pub(crate) const fn new() -> Sparse {
        Sparse { root: AtomicPtr::new(null_mut()) }
    }

    /// Whether no word was ever set.
    #[inline]
    pub(crate) fn is_unused(&self) -> bool {
        self.root.load(Acquire).is_null()
    }

    /// Word `number`; 0 where there is none.
    pub(crate) fn get(&self, number: u64) -> u64 {
        self.word(number).map_or(0, |word| word.load(Acquire))
    }

    /// Word `number`, if its part is there.
    pub(crate) fn word(&self, number: u64) -> Option<&AtomicU64> {
        if number >= MOST {
            return None;
        }
        let mut part = self.root.load(Acquire);
        for level in (1..=LEVELS).rev() {
            // SAFETY: parts above the lowest level hold pointers, null or to live parts; they live
            // as long as `self`.
            part = unsafe { part.as_ref()?.lower[index(number, level)].load(Acquire) };
        }
        // SAFETY: a part of the lowest level holds words.
        unsafe { part.as_ref().map(|part| &*part.words[index(number, 0)]) }
    }

    /// Word `number`, whose part is made if it is not there. `None` beyond the last number, or when
    /// the system is out of memory.
    pub(crate) fn make(&self, number: u64) -> Option<&AtomicU64> {
        if number >= MOST {
            return None;
        }
        let mut place = &self.root;
        for level in (1..=LEVELS).rev() {
            // SAFETY: as in `word`.
            place = unsafe { &made(place)?.lower[index(number, level)] };
        }
        // SAFETY: as in `word`.
        Some(unsafe { &made(place)?.words[index(number, 0)] })
    }

    /// Calls `each` for the words of `numbers` that are not 0, in order.
    pub(crate) fn each(&self, numbers: &Range<u64>, mut each: impl FnMut(u64, &AtomicU64)) {
        self.first(numbers, |number, word| {
            each(number, word);
            false
        });
    }

    /// The first of the words of `numbers` that are not 0 for which `is_it`; asks for no word
    /// behind it.
    pub(crate) fn first(
        &self,
        numbers: &Range<u64>,
        mut is_it: impl FnMut(u64, &AtomicU64) -> bool,
    ) -> Option<u64> {
        let end = numbers.end.min(MOST);
        let mut number = numbers.start;
        'numbers: while number < end {
            let mut part = self.root.load(Acquire);
            for level in (0..=LEVELS).rev() {
                // SAFETY: as in `word`.
                let Some(there) = (unsafe { part.as_ref() }) else {
                    // nothing in all that this part would hold
                    let held = 1 << (FAN_BITS * (level + 1));
                    number = (number | (held - 1)) + 1;
                    continue 'numbers;
                };
                if level > 0 {
                    // SAFETY: as in `word`.
                    part = unsafe { there.lower[index(number, level)].load(Acquire) };
                    continue;
                }
                // SAFETY: as in `word`.
                let word = unsafe { &*there.words[index(number, 0)] };
                if word.load(Acquire) != 0 && is_it(number, word) {
                    return Some(number);
                }
                number += 1;
            }
        }
        None
    }
}

impl Drop for Sparse {
    fn drop(&mut self) {
        free(*self.root.get_mut(), LEVELS);
    }
}

/// The part at `place`, new if there is none.
fn made(place: &AtomicPtr<Part>) -> Option<&Part> {
    let mut part = place.load(Acquire);
    if part.is_null() {
        let new = map_part()?;
        match place.compare_exchange(null_mut(), new, AcqRel, Acquire) {
            Ok(_) => part = new,
            Err(theirs) => {
                unmap_part(new);
                part = theirs;
            }
        }
    }
    // SAFETY: not null, so a live part, which lives as long as the tree that `place` is in.
    unsafe { part.as_ref() }
}

fn free(part: *mut Part, level: u32) {
    // SAFETY: called by the owner alone: nobody else has the part any more.
    let Some(there) = (unsafe { part.as_ref() }) else { return };
    if level > 0 {
        // SAFETY: parts above the lowest level hold pointers.
        unsafe { &there.lower }.iter().for_each(|lower| free(lower.load(Relaxed), level - 1));
    }
    unmap_part(part);
}

fn map_part() -> Option<*mut Part> {
    let (protection, flags) =
        (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: a new mapping at a place of the kernel's choice; its bytes are zero.
    let addr = unsafe {
        libc::syscall(libc::SYS_mmap, 0usize, size_of::<Part>(), protection, flags, -1, 0usize)
    };
    (addr != -1).then_some(addr as usize as *mut Part)
}

fn unmap_part(part: *mut Part) {
    // SAFETY: made by `map_part`, and nobody's any more.
    unsafe { libc::syscall(libc::SYS_munmap, part, size_of::<Part>()) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_far_apart() {
        let words = Sparse::new();
        assert!(words.is_unused());
        let numbers = [0, 1, 511, 512, 1 << 18, (1 << 27) - 1, 1 << 27, MOST - 1];
        for number in numbers {
            assert_eq!(words.get(number), 0);
            words.make(number).unwrap().store(number + 1, Relaxed);
        }
        assert!(numbers.iter().all(|number| words.get(*number) == number + 1));
        assert!(words.make(MOST).is_none() && words.word(MOST).is_none());
        let mut seen = Vec::new();
        words.each(&(0..u64::MAX), |number, word| seen.push((number, word.load(Relaxed))));
        assert_eq!(seen, numbers.map(|number| (number, number + 1)));
        seen.clear();
        let second = words.first(&(0..u64::MAX), |number, word| {
            seen.push((number, word.load(Relaxed)));
            number > 0
        });
        assert_eq!((second, &seen[..]), (Some(1), &[(0, 1), (1, 2)][..]), "no more is asked for");
        assert_eq!(words.first(&(1..512), |_, _| false), None);
        seen.clear();
        words.each(&(1..512), |number, word| seen.push((number, word.swap(0, Relaxed))));
        assert_eq!(seen, [(1, 2), (511, 512)]);
        assert_eq!((words.get(1), words.get(512)), (0, 513));
    }

    #[test]
    fn threads_make_one_part() {
        let words = Sparse::new();
        std::thread::scope(|s| {
            for number in 0..4 {
                let words = &words;
                s.spawn(move || words.make(number).unwrap().store(1, SeqCst));
            }
        });
        assert_eq!((0..5).map(|number| words.get(number)).sum::<u64>(), 4);
    }
}
