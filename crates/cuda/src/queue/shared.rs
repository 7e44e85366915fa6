//! An event of several processes: words of shared memory that say which record was the last, and
//! which were reached.
//!
//! Each record has a number, the next one, and a word of its own, which it shares with those that
//! many before and behind it. The word says the number when the place in the stream is reached.

use crate::{Error, Res};
use shm::{Shm, is_gone};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

/// Length of the memory.
const BYTES: usize = 4096;
/// The last record, as [`Record::to_word`] has it; 0 before the first.
const LATEST: usize = 0;
/// Counts up whenever a place is reached, and wakes who waits for that.
const CHANGES: usize = 8;
/// Where the records' words begin.
const FIRST: usize = 64;
/// How many of those there are.
const WORDS: u64 = ((BYTES - FIRST) / 8) as u64;
/// Who waits looks so often whether the other process lives.
const LOOK: Duration = Duration::from_millis(50);

/// One record of an event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Record {
    number: u64,
    /// Who made it.
    process: u32,
}

impl Record {
    /// Linux has no number of a process that is longer (`PID_MAX_LIMIT`).
    const PROCESS_BITS: u32 = 22;

    fn to_word(self) -> u64 {
        self.number << Self::PROCESS_BITS | u64::from(self.process)
    }

    fn from_word(word: u64) -> Option<Record> {
        let process = (word & ((1 << Self::PROCESS_BITS) - 1)) as u32;
        (word != 0).then_some(Record { number: word >> Self::PROCESS_BITS, process })
    }

    /// The one that comes after another, of this process.
    fn after(before: Option<Record>) -> Record {
        let number = before.map_or(0, |before| before.number) + 1;
        Record { number, process: std::process::id() }
    }
}

/// An event's shared memory.
#[derive(Debug)]
pub struct Shared {
    shm: Shm,
    /// By which other processes find it; those have none.
    fd: Option<descriptors::Kept>,
}

impl Shared {
    /// A new one.
    ///
    /// # Errors
    /// `CUDA_ERROR_OUT_OF_MEMORY` where there is no memory or no descriptor.
    pub fn create() -> Res<Shared> {
        let made = Shm::create("peerdma-cuda-event", BYTES).map_err(std::io::Error::from);
        let (shm, fd) = made?;
        Ok(Shared { shm, fd: Some(fd) })
    }

    /// That of another process.
    ///
    /// # Errors
    /// `CUDA_ERROR_INVALID_HANDLE` where it is no event's.
    pub fn open(fd: impl AsFd) -> Res<Shared> {
        let shm = Shm::open_of(fd, BYTES).map_err(|_| Error::INVALID_HANDLE)?;
        Ok(Shared { shm, fd: None })
    }

    /// Its descriptor; `None` for another process's.
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.fd.as_ref().map(AsFd::as_fd)
    }

    fn word(&self, record: Record) -> &AtomicU64 {
        self.shm.word(FIRST + (record.number % WORDS) as usize * 8)
    }

    /// A new record, which is the last one from now on.
    ///
    /// # Errors
    /// `CUDA_ERROR_OUT_OF_MEMORY` where the one that had its word before is not reached.
    pub fn record(&self) -> Res<Record> {
        let latest = self.shm.word(LATEST);
        let mut before = latest.load(SeqCst);
        loop {
            let record = Record::after(Record::from_word(before));
            if self.word(record).load(SeqCst).saturating_add(WORDS) < record.number {
                return Err(Error::OUT_OF_MEMORY);
            }
            match latest.compare_exchange(before, record.to_word(), SeqCst, SeqCst) {
                Ok(_) => return Ok(record),
                Err(now) => before = now,
            }
        }
    }

    /// The place of a record is reached.
    pub fn reach(&self, record: Record) {
        self.word(record).fetch_max(record.number, SeqCst);
        self.shm.word(CHANGES).fetch_add(1, SeqCst);
        self.shm.wake(CHANGES);
    }

    /// The last record.
    pub fn latest(&self) -> Option<Record> {
        Record::from_word(self.shm.word(LATEST).load(SeqCst))
    }

    /// Whether its place is reached.
    ///
    /// # Errors
    /// `CUDA_ERROR_LAUNCH_FAILED` where it never will be: its process has ended.
    pub fn is_reached(&self, record: Record) -> Res<bool> {
        let is_there = || self.word(record).load(SeqCst) >= record.number;
        if is_there() {
            return Ok(true);
        }
        // It may have been the last that the process did.
        if is_gone(record.process) && !is_there() { Err(Error::LAUNCH_FAILED) } else { Ok(false) }
    }

    /// Returns once it is, or `gives_up` says so: whether it is reached.
    ///
    /// # Errors
    /// As [`Shared::is_reached`].
    pub fn wait_unless(&self, record: Record, gives_up: impl Fn() -> bool) -> Res<bool> {
        loop {
            let changes = self.shm.word(CHANGES).load(SeqCst);
            if self.is_reached(record)? {
                return Ok(true);
            }
            if gives_up() {
                return Ok(false);
            }
            self.shm.wait(CHANGES, changes, LOOK);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair() -> (Shared, Shared) {
        let one = Shared::create().unwrap();
        let two = Shared::open(one.fd().unwrap()).unwrap();
        (one, two)
    }

    #[test]
    fn a_record_is_reached_for_all_who_share_it() {
        let (one, two) = pair();
        assert!(one.latest().is_none() && two.fd().is_none());
        let first = one.record().unwrap();
        let second = two.record().unwrap();
        assert_eq!((one.latest(), second.number), (Some(second), first.number + 1));
        assert_eq!(two.wait_unless(first, || true), Ok(false));
        one.reach(second);
        assert_eq!((two.is_reached(first), two.is_reached(second)), (Ok(false), Ok(true)));
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| two.wait_unless(first, || false));
            one.reach(first);
            assert_eq!(waits.join().unwrap(), Ok(true));
        });
    }

    #[test]
    fn a_word_is_free_again_when_its_record_is_reached() {
        let (one, two) = pair();
        let records: Vec<_> = (0..WORDS).map(|_| one.record().unwrap()).collect();
        two.reach(records[1]);
        assert_eq!(two.record(), Err(Error::OUT_OF_MEMORY));
        two.reach(records[0]);
        let again = two.record().unwrap();
        assert_eq!((one.is_reached(records[0]), one.is_reached(again)), (Ok(true), Ok(false)));
    }

    #[test]
    fn what_nobody_will_reach_is_an_error() {
        let (one, two) = pair();
        // no process has this number
        let lost = Record { number: 1, process: (1 << Record::PROCESS_BITS) - 1 };
        one.shm.word(LATEST).store(lost.to_word(), SeqCst);
        assert_eq!(two.latest(), Some(lost));
        assert_eq!(two.wait_unless(lost, || false), Err(Error::LAUNCH_FAILED));
        one.reach(lost);
        assert_eq!(two.is_reached(lost), Ok(true));
    }

    #[test]
    fn other_memory_is_no_event() {
        let (_, fd) = Shm::create("peerdma-test", 64).unwrap();
        assert_eq!(Shared::open(fd).unwrap_err(), Error::INVALID_HANDLE);
    }
}
