//! Which descriptors of this process are the engine's: one bit each, of one process.

use rustix::process::getpid;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering::Relaxed};

const BITS: usize = u64::BITS as usize;
const WORDS: usize = 1024;

/// One bit for each descriptor of ours.
static KEPT: [AtomicU64; WORDS] = [const { AtomicU64::new(0) }; WORDS];
/// Those of them whose copies a forked child is to let go.
static ALONE: [AtomicU64; WORDS] = [const { AtomicU64::new(0) }; WORDS];
/// The process whose descriptors these are.
static OWNER: AtomicI32 = AtomicI32::new(0);

fn process() -> i32 {
    getpid().as_raw_nonzero().get()
}

fn bit(table: &'static [AtomicU64; WORDS], fd: RawFd) -> Option<(&'static AtomicU64, u64)> {
    let fd = usize::try_from(fd).ok()?;
    Some((table.get(fd / BITS)?, 1 << (fd % BITS)))
}

/// Notes that `fd` is ours.
pub(crate) fn enter(fd: RawFd) {
    let owner = process();
    if OWNER.swap(owner, Relaxed) != owner {
        // What a parent entered is not ours.
        KEPT.iter().chain(&ALONE).for_each(|word| word.store(0, Relaxed));
    }
    if let Some((word, bit)) = bit(&KEPT, fd) {
        word.fetch_or(bit, Relaxed);
    }
}

/// Notes that `fd`, which is ours, is no child's.
pub(crate) fn enter_alone(fd: RawFd) {
    if let Some((word, bit)) = bit(&ALONE, fd) {
        word.fetch_or(bit, Relaxed);
    }
}

/// Gives `fd` back to the ordinary rules.
pub(crate) fn leave(fd: RawFd) {
    for table in [&KEPT, &ALONE] {
        if let Some((word, bit)) = bit(table, fd) {
            word.fetch_and(!bit, Relaxed);
        }
    }
}

/// Whether a forked child is to let its copy of `fd` go ([`crate::Kept::alone`]).
pub fn is_alone(fd: RawFd) -> bool {
    bit(&ALONE, fd).is_some_and(|(word, bit)| word.load(Relaxed) & bit != 0)
}

/// Whether `fd` is the engine's in this process.
#[inline]
pub fn is_kept(fd: RawFd) -> bool {
    bit(&KEPT, fd).is_some_and(|(word, bit)| word.load(Relaxed) & bit != 0)
        && OWNER.load(Relaxed) == process()
}

/// The first descriptor of the engine's from `first` on.
pub fn next_kept(first: u32) -> Option<u32> {
    next_entered(first).filter(|_| OWNER.load(Relaxed) == process())
}

/// In a child just forked from a process with an engine, before it keeps anything itself: the first copy of its parent's from
/// `first` on.
pub fn next_inherited(first: u32) -> Option<u32> {
    next_entered(first).filter(|_| OWNER.load(Relaxed) != process())
}

fn next_entered(first: u32) -> Option<u32> {
    let start = first as usize;
    let words = KEPT.iter().enumerate().skip(start / BITS);
    let found = words.map(|(index, word)| {
        let word = word.load(Relaxed);
        let above = if index == start / BITS { u64::MAX << (start % BITS) } else { u64::MAX };
        (index, word & above)
    });
    let (index, word) = found.into_iter().find(|(_, word)| *word != 0)?;
    Some((index * BITS) as u32 + word.trailing_zeros())
}

/// In a child that carries its parent's engine on (`daemon(3)`): the descriptors are this process's from now on.
pub fn adopt() {
    OWNER.store(process(), Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

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
}
