//! Which descriptors of this process are the engine's: one bit each, of one process.

use rustix::process::getpid;
use std::os::fd::RawFd;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicI32, AtomicU64};

const BITS: usize = u64::BITS as usize;
const WORDS: usize = 1024;

type Bits = [AtomicU64; WORDS];

struct Table {
    /// One bit for each descriptor of ours.
    kept: Bits,
    /// Those of them whose copies a forked child is to let go.
    alone: Bits,
    /// The process whose descriptors these are; its negative while one of its threads empties the
    /// table of what a parent entered.
    owner: AtomicI32,
}

static TABLE: Table = Table::new();

fn process() -> i32 {
    getpid().as_raw_nonzero().get()
}

fn bit(bits: &Bits, fd: RawFd) -> Option<(&AtomicU64, u64)> {
    let fd = usize::try_from(fd).ok()?;
    Some((bits.get(fd / BITS)?, 1 << (fd % BITS)))
}

fn holds(bits: &Bits, fd: RawFd) -> bool {
    bit(bits, fd).is_some_and(|(word, bit)| word.load(Relaxed) & bit != 0)
}

impl Table {
    const fn new() -> Table {
        Table {
            kept: [const { AtomicU64::new(0) }; WORDS],
            alone: [const { AtomicU64::new(0) }; WORDS],
            owner: AtomicI32::new(0),
        }
    }

    fn is_of(&self, process: i32) -> bool {
        self.owner.load(Relaxed) == process
    }

    /// Makes the table `process`'s. Threads that come while one of them empties it wait: a bit that
    /// they entered would be lost. A fork may leave it half emptied to a child, which begins anew.
    fn take_over(&self, process: i32) {
        loop {
            let owner = self.owner.load(Acquire);
            if owner == process {
                return;
            }
            if owner == -process {
                std::thread::yield_now();
            } else if self.owner.compare_exchange(owner, -process, AcqRel, Relaxed).is_ok() {
                self.kept.iter().chain(&self.alone).for_each(|word| word.store(0, Relaxed));
                self.owner.store(process, Release);
            }
        }
    }

    fn enter(&self, fd: RawFd, process: i32) {
        self.take_over(process);
        if let Some((word, bit)) = bit(&self.kept, fd) {
            word.fetch_or(bit, Relaxed);
        }
    }

    fn leave(&self, fd: RawFd) {
        for bits in [&self.kept, &self.alone] {
            if let Some((word, bit)) = bit(bits, fd) {
                word.fetch_and(!bit, Relaxed);
            }
        }
    }

    fn next_entered(&self, first: u32) -> Option<u32> {
        let start = first as usize;
        let words = self.kept.iter().enumerate().skip(start / BITS);
        let found = words.map(|(index, word)| {
            let word = word.load(Relaxed);
            let above = if index == start / BITS { u64::MAX << (start % BITS) } else { u64::MAX };
            (index, word & above)
        });
        let (index, word) = found.into_iter().find(|(_, word)| *word != 0)?;
        Some((index * BITS) as u32 + word.trailing_zeros())
    }
}

/// Notes that `fd` is ours.
pub(crate) fn enter(fd: RawFd) {
    TABLE.enter(fd, process());
}

/// Notes that `fd`, which is ours, is no child's.
pub(crate) fn enter_alone(fd: RawFd) {
    if let Some((word, bit)) = bit(&TABLE.alone, fd) {
        word.fetch_or(bit, Relaxed);
    }
}

/// Gives `fd` back to the ordinary rules.
pub(crate) fn leave(fd: RawFd) {
    TABLE.leave(fd);
}

/// Whether a forked child is to let its copy of `fd` go ([`crate::Kept::alone`]).
pub fn is_alone(fd: RawFd) -> bool {
    holds(&TABLE.alone, fd)
}

/// Whether `fd` is the engine's in this process.
#[inline]
pub fn is_kept(fd: RawFd) -> bool {
    holds(&TABLE.kept, fd) && TABLE.is_of(process())
}

/// The first descriptor of the engine's from `first` on.
pub fn next_kept(first: u32) -> Option<u32> {
    TABLE.next_entered(first).filter(|_| TABLE.is_of(process()))
}

/// In a child just forked from a process with an engine, before it keeps anything itself: the first
/// copy of its parent's from `first` on.
pub fn next_inherited(first: u32) -> Option<u32> {
    TABLE.next_entered(first).filter(|_| !TABLE.is_of(process()))
}

/// In a child that carries its parent's engine on (`daemon(3)`): the descriptors are this process's
/// from now on.
pub fn adopt() {
    TABLE.owner.store(process(), Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Barrier;

    #[test]
    fn bits_are_found_in_order() {
        // Far above any descriptor of the other tests, in a block of its own.
        for fd in [60_000, 60_063, 65_535, 65_536, -1] {
            enter(fd);
        }
        assert_eq!(next_kept(50_000), Some(60_000));
        assert_eq!(next_kept(60_001), Some(60_063));
        assert_eq!(next_kept(60_064), Some(65_535));
        assert_eq!(next_kept(65_536), None);
        assert_eq!(next_kept(u32::MAX), None);
        assert!(is_kept(60_000) && !is_kept(60_001) && !is_kept(65_536) && !is_kept(-1));
        enter_alone(60_063);
        assert!(is_alone(60_063) && !is_alone(60_000) && !is_alone(-1));
        leave(60_000);
        assert_eq!(next_kept(50_000), Some(60_063));
        leave(60_063);
        assert!(!is_alone(60_063));
        leave(65_535);
    }

    #[test]
    fn what_the_first_threads_enter_at_once_stays() {
        let table = Table::new();
        // Each round is a child with what its parent entered, and two threads that begin.
        for process in 1..=5_000 {
            let begin = Barrier::new(2);
            let enters = |fd| {
                begin.wait();
                table.enter(fd, process);
            };
            std::thread::scope(|scope| {
                scope.spawn(|| enters(WORDS as RawFd * BITS as RawFd - 1));
                enters(process % 512);
            });
            let both = [process as u32 % 512, (WORDS * BITS - 1) as u32];
            assert_eq!([0, 512].map(|first| table.next_entered(first)), both.map(Some));
        }
    }
}
