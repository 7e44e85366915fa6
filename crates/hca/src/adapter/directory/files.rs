//! The files that a neighbour's memory is, as this process has them mapped if it uses them often
//! (`mm::OtherProcess::lends`).
//!
//! Which file it is shows in the neighbour's mappings, which are looked at when a view is wanted.
//! What is found there is what the key stands for as long as the entry is what it was: whatever
//! replaces the memory changes the entry first (`directory/shown.rs`), or before the call returns
//! that did so and that only the kernel saw.

use super::Entry;
use super::ways::{OFTEN, Seen, Way};
use engine_thread::lock;
use mm::{NotLent, OtherProcess};
use shm::Shm;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::Ordering::Relaxed;

/// How often in a row nothing was found, beyond which it is not counted: the requests after which
/// another key's memory is looked for have doubled so many times.
const MOST_MISSES: u32 = 10;

/// Entries from which on those are forgotten whose keys are gone.
const FEW: usize = 64;

/// What a key's memory is, where it may be a file.
pub(super) struct Memory {
    /// Its addresses there.
    pub(super) range: Range<u64>,
    /// Whether the key grants WRITEs.
    pub(super) writable: bool,
}

/// The memory of one neighbour.
#[derive(Default)]
pub(super) struct Files(Mutex<Known>);

#[derive(Default)]
struct Known {
    /// By the place of an entry: under which generation, and how it is reached.
    ways: HashMap<usize, (u64, Way)>,
    /// How often in a row there was no file: most memory is none, and to find that out costs as
    /// much as some requests.
    misses: u32,
    /// Entries at which those are forgotten whose keys are gone.
    full: usize,
}

impl Files {
    /// What a request to `addr` has mapped here of an entry's memory, for process `own`, which is
    /// this one. What is answered counts only if the entry still is what it was.
    pub(super) fn seen(
        &self,
        shm: &Shm,
        (process, own): (OtherProcess, u32),
        (at, generation): Entry,
        memory: &Memory,
        addr: u64,
    ) -> Option<Seen> {
        let mut known = lock(&self.0);
        let Known { ways, misses, full } = &mut *known;
        let Some((_, way)) = ways.get_mut(&at).filter(|(under, _)| *under == generation) else {
            if ways.len() >= (*full).max(FEW) {
                ways.retain(|at, (generation, _)| shm.word(*at).load(Relaxed) == *generation);
                *full = ways.len() * 2;
            }
            ways.try_reserve(1).ok()?;
            ways.insert(at, (generation, Way::Calls(1)));
            return None;
        };
        let often = OFTEN << *misses;
        let seen = way.seen(addr, often, || {
            let lent = process.lends(memory.range.clone(), memory.writable);
            *misses = match lent {
                Ok(_) => 0,
                Err(NotLent::Never | NotLent::NotNow) => (*misses + 1).min(MOST_MISSES),
            };
            lent
        });
        if seen.as_ref().is_some_and(|seen| !seen.is_of(own)) {
            // It is the parent's of a process that goes on in its place.
            *way = Way::Calls(0);
            return None;
        }
        seen
    }
}

#[cfg(test)]
mod tests {
    use super::super::Directory;
    use super::*;
    use std::process::Command;

    /// Memory of a process that is no file of its own.
    #[test]
    fn where_nothing_is_found_it_is_looked_for_ever_more_seldom() {
        let directory = Directory::create("peerdma-test", 5).unwrap();
        let mut other = Command::new("sleep").arg("60").spawn().unwrap();
        let process = OtherProcess::new(other.id()).unwrap();
        let files = Files::default();
        let asks = |entry| {
            let memory = Memory { range: 4096..8192, writable: true };
            let processes = (process, std::process::id());
            assert!(files.seen(&directory.shm, processes, entry, &memory, 4096).is_none());
            lock(&files.0).misses
        };
        for (misses, entry) in (0..).zip([(64, 1), (128, 1), (64, 3)]) {
            let often = OFTEN << misses;
            assert!((0..often).all(|_| asks(entry) == misses), "{entry:?}");
            assert_eq!(asks(entry), misses + 1, "{entry:?}");
            assert!((0..often * 4).all(|_| asks(entry) == misses + 1), "once is enough");
        }
        other.kill().unwrap();
        other.wait().unwrap();
    }

    #[test]
    fn entries_whose_keys_are_gone_are_forgotten() {
        let directory = Directory::create("peerdma-test", 5).unwrap();
        let process = OtherProcess::new(1).unwrap();
        let files = Files::default();
        let live = directory.shm.word(64).load(Relaxed);
        for entry in 0..10 * FEW {
            let memory = Memory { range: 4096..8192, writable: true };
            let at = 64 + entry * 8;
            let generation = if entry == 0 { live } else { u64::MAX };
            let processes = (process, std::process::id());
            files.seen(&directory.shm, processes, (at, generation), &memory, 4096);
        }
        let known = lock(&files.0);
        assert!(known.ways.contains_key(&64) && known.ways.len() <= FEW, "{}", known.ways.len());
    }
}
