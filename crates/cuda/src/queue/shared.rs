//! An event of several processes: words of shared memory that say which record was the last, and
//! which were reached.
//!
//! Each record has a number, the next one, and a word of its own, which it shares with those that
//! many before and behind it. The word says the number, and what became of the record: its place in
//! the stream is reached, or never will be, or who is still to say so. A record is made in three
//! steps: its number is taken, the work that reaches it is queued, and only then it is the last one
//! of the event. So nothing waits for a number that may be queued behind that wait.

use crate::{Error, Res};
use descriptors::Kept;
use shm::Shm;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

/// Length of the memory.
const BYTES: usize = 4096;
/// The last record, as [`Record::to_word`] has it; 0 before the first.
const LATEST: usize = 0;
/// Counts up whenever a place is reached, and wakes who waits for that.
const CHANGES: usize = 8;
/// The last number that was taken.
const TAKEN: usize = 16;
/// Where the records' words begin.
const FIRST: usize = 64;
/// How many of those there are.
const WORDS: u64 = ((BYTES - FIRST) / 8) as u64;
/// Each of these somebody gets further with, unless another process wrote what is no record.
const TRIES: u64 = 16 * WORDS;
/// Who waits looks so often whether the other process lives.
const LOOK: Duration = Duration::from_millis(50);

/// One record of an event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Record {
    number: u64,
    /// Who made it.
    process: u32,
}

/// Below the number in a word: 0 for a record that is reached, [`FAILED`] for one that never will
/// be, or the process that is to say so, whose number is shorter (Linux's `PID_MAX_LIMIT`).
const BITS: u32 = 23;
const MASK: u64 = (1 << BITS) - 1;
const FAILED: u64 = 1 << (BITS - 1);

impl Record {
    /// One of this process.
    fn own(number: u64) -> Record {
        Record { number, process: std::process::id() }
    }

    /// While its place is not reached.
    fn to_word(self) -> u64 {
        self.number << BITS | u64::from(self.process)
    }

    fn from_word(word: u64) -> Option<Record> {
        (word != 0).then_some(Record { number: word >> BITS, process: (word & MASK) as u32 })
    }

    /// When it is, or failed.
    fn settled(self, is_well: bool) -> u64 {
        self.number << BITS | if is_well { 0 } else { FAILED }
    }
}

/// The record whose place a word says is not reached yet.
fn pending(word: u64) -> Option<Record> {
    Record::from_word(word).filter(|_| word & MASK != 0 && word & FAILED == 0)
}

/// While a process has the event it holds the byte of the memory's file at this and its number, far
/// beyond the file's end. So another that has come to have that number is not taken for it, nor is
/// another program that it has become.
const ALIVE: u64 = 1 << 62;

/// An event's shared memory.
#[derive(Debug)]
pub struct Shared {
    shm: Shm,
    fd: Kept,
    is_own: bool,
}

impl Shared {
    /// A new one.
    ///
    /// # Errors
    /// `CUDA_ERROR_OUT_OF_MEMORY` where there is no memory or no descriptor.
    pub fn create() -> Res<Shared> {
        let made = Shm::create("peerdma-cuda-event", BYTES).map_err(std::io::Error::from);
        let (shm, fd) = made?;
        Shared { shm, fd, is_own: true }.alive()
    }

    /// That of another process.
    ///
    /// # Errors
    /// `CUDA_ERROR_INVALID_HANDLE` where it is no event's; `CUDA_ERROR_OUT_OF_MEMORY`.
    pub fn open(fd: OwnedFd) -> Res<Shared> {
        let shm = Shm::open_of(&fd, BYTES).map_err(|_| Error::INVALID_HANDLE)?;
        Shared { shm, fd: Kept::new(fd), is_own: false }.alive()
    }

    /// Tells others that this process has it.
    fn alive(self) -> Res<Shared> {
        match shm::hold_byte(&self.fd, ALIVE + u64::from(std::process::id())) {
            Err(error) if error.raw_os_error() == libc::ENOLCK => Err(Error::OUT_OF_MEMORY),
            // Where there are no such locks, nobody asks for them.
            _ => Ok(self),
        }
    }

    /// Whether a process that recorded the event has ended.
    fn is_gone(&self, process: u32) -> bool {
        let has_it = || shm::is_byte_locked(&self.fd, ALIVE + u64::from(process)).unwrap_or(true);
        process != std::process::id() && (shm::is_gone(process) || !has_it())
    }

    /// Its descriptor, by which other processes find it; `None` for another process's.
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.is_own.then(|| self.fd.as_fd())
    }

    fn word(&self, record: Record) -> &AtomicU64 {
        self.shm.word(FIRST + (record.number % WORDS) as usize * 8)
    }

    /// A new record, whose place this process is to say is reached. It counts only from
    /// [`Shared::publish`] on.
    ///
    /// # Errors
    /// `CUDA_ERROR_OUT_OF_MEMORY` where the one that had its word before is not reached and may be.
    pub fn take(&self) -> Res<Record> {
        let taken = self.shm.word(TAKEN);
        for _ in 0..TRIES {
            let before = taken.load(SeqCst);
            let record = Record::own(before.wrapping_add(1));
            let word = self.word(record);
            let seen = word.load(SeqCst);
            if seen >> BITS < record.number {
                if let Some(blocks) = pending(seen) {
                    // Whose process has ended is given up; another thread may be as far.
                    if !self.is_gone(blocks.process) {
                        return Err(Error::OUT_OF_MEMORY);
                    }
                    self.settle(blocks, false);
                    continue;
                }
                if word.compare_exchange(seen, record.to_word(), SeqCst, SeqCst).is_ok() {
                    let _ = taken.compare_exchange(before, record.number, SeqCst, SeqCst);
                    return Ok(record);
                }
            }
            // Somebody has taken the number, and may have ended before the count said so.
            let _ = taken.compare_exchange(before, record.number, SeqCst, SeqCst);
        }
        Err(Error::OUT_OF_MEMORY)
    }

    /// Makes a record the last one, unless a later one is. What reaches its place is queued.
    pub fn publish(&self, record: Record) {
        self.shm.word(LATEST).fetch_max(record.to_word(), SeqCst);
    }

    /// The place of a record is reached: all `is_well`, or the work before it was not done.
    pub fn settle(&self, record: Record, is_well: bool) {
        let (pending, settled) = (record.to_word(), record.settled(is_well));
        let _ = self.word(record).compare_exchange(pending, settled, SeqCst, SeqCst);
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
    /// `CUDA_ERROR_LAUNCH_FAILED` where it never will be: its work failed or its process has ended.
    pub fn is_reached(&self, record: Record) -> Res<bool> {
        let settled = || {
            let word = self.word(record).load(SeqCst);
            match pending(word) {
                Some(waits) if waits.number <= record.number => None,
                _ if word == record.settled(false) => Some(Err(Error::LAUNCH_FAILED)),
                // A later one has its word.
                _ => Some(Ok(true)),
            }
        };
        if let Some(settled) = settled() {
            return settled;
        }
        // The last that the process did may have been to reach it.
        let is_lost = self.is_gone(record.process);
        settled().unwrap_or(if is_lost { Err(Error::LAUNCH_FAILED) } else { Ok(false) })
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
    use std::fs::File;
    use std::os::fd::AsRawFd;

    fn pair() -> (Shared, Shared) {
        let one = Shared::create().unwrap();
        let two = Shared::open(one.fd().unwrap().try_clone_to_owned().unwrap()).unwrap();
        (one, two)
    }

    fn record(event: &Shared) -> Record {
        let record = event.take().unwrap();
        event.publish(record);
        record
    }

    /// A record of a process that has ended: none has this number.
    fn lost(event: &Shared) -> Record {
        let number = event.take().unwrap().number;
        let lost = Record { number, process: (FAILED - 1) as u32 };
        event.word(lost).store(lost.to_word(), SeqCst);
        event.publish(lost);
        lost
    }

    /// The process that started this one lives, but has not the event.
    #[test]
    fn who_has_come_to_have_the_number_is_another() {
        let (one, _) = pair();
        let process = std::os::unix::process::parent_id();
        let lost = Record { number: one.take().unwrap().number, process };
        one.word(lost).store(lost.to_word(), SeqCst);
        assert_eq!(one.is_reached(lost), Err(Error::LAUNCH_FAILED));
        let other = File::options()
            .read(true)
            .write(true)
            .open(format!("/proc/self/fd/{}", one.fd.as_raw_fd()));
        let other = other.unwrap();
        shm::hold_byte(&other, ALIVE + u64::from(process)).unwrap();
        assert_eq!(one.is_reached(lost), Ok(false));
    }

    #[test]
    fn a_record_is_reached_for_all_who_share_it() {
        let (one, two) = pair();
        assert!(one.latest().is_none() && two.fd().is_none());
        let first = record(&one);
        let second = record(&two);
        assert_eq!((one.latest(), second.number), (Some(second), first.number + 1));
        assert_eq!(two.wait_unless(first, || true), Ok(false));
        one.settle(second, true);
        assert_eq!((two.is_reached(first), two.is_reached(second)), (Ok(false), Ok(true)));
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| two.wait_unless(first, || false));
            one.settle(first, true);
            assert_eq!(waits.join().unwrap(), Ok(true));
        });
    }

    #[test]
    fn a_record_is_the_last_one_when_its_work_is_queued() {
        let (one, two) = pair();
        let (first, second) = (one.take().unwrap(), two.take().unwrap());
        assert!(one.latest().is_none() && first.number < second.number);
        two.publish(second);
        one.publish(first);
        assert_eq!(one.latest(), Some(second));
    }

    #[test]
    fn numbers_are_taken_once() {
        let (one, _) = pair();
        let take = || (0..WORDS / 4).map(|_| one.take().unwrap().number).collect::<Vec<_>>();
        let mut numbers: Vec<u64> = std::thread::scope(|scope| {
            let threads = [scope.spawn(take), scope.spawn(take), scope.spawn(take)];
            threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
        });
        numbers.sort_unstable();
        assert_eq!(numbers, (1..=WORDS / 4 * 3).collect::<Vec<_>>());
        // One whose taker ended before it counted.
        one.shm.word(TAKEN).store(WORDS / 4 * 3 - 1, SeqCst);
        assert_eq!(one.take().unwrap().number, WORDS / 4 * 3 + 1);
    }

    #[test]
    fn what_is_no_record_is_not_gone_by_for_ever() {
        let (one, two) = pair();
        for at in (0..BYTES).step_by(8) {
            one.shm.word(at).store(u64::MAX, SeqCst);
        }
        assert_eq!(two.take(), Err(Error::OUT_OF_MEMORY));
        assert!(two.latest().is_some_and(|record| two.is_reached(record).is_ok()));
    }

    #[test]
    fn a_word_is_free_again_when_its_record_is_reached() {
        let (one, two) = pair();
        let records: Vec<_> = (0..WORDS).map(|_| record(&one)).collect();
        two.settle(records[1], true);
        assert_eq!(two.take(), Err(Error::OUT_OF_MEMORY));
        two.settle(records[0], true);
        let again = record(&two);
        assert_eq!((one.is_reached(records[0]), one.is_reached(again)), (Ok(true), Ok(false)));
    }

    #[test]
    fn the_word_of_who_has_ended_is_free() {
        let (one, two) = pair();
        let lost = lost(&one);
        for _ in 1..WORDS {
            two.settle(record(&two), true);
        }
        assert_eq!(two.is_reached(lost), Err(Error::LAUNCH_FAILED));
        let after = record(&two);
        assert_eq!(after.number, lost.number + WORDS);
        two.settle(after, true);
        assert_eq!(one.is_reached(after), Ok(true));
    }

    #[test]
    fn what_nobody_will_reach_is_an_error() {
        let (one, two) = pair();
        let lost = lost(&one);
        assert_eq!(two.latest(), Some(lost));
        assert_eq!(two.wait_unless(lost, || false), Err(Error::LAUNCH_FAILED));
        one.settle(lost, true);
        assert_eq!(two.is_reached(lost), Ok(true));
        let failed = record(&one);
        one.settle(failed, false);
        one.settle(failed, true);
        assert_eq!(two.is_reached(failed), Err(Error::LAUNCH_FAILED), "once and for all");
    }

    #[test]
    fn other_memory_is_no_event() {
        let (_, fd) = Shm::create("peerdma-test", 64).unwrap();
        let fd = fd.as_fd().try_clone_to_owned().unwrap();
        assert_eq!(Shared::open(fd).unwrap_err(), Error::INVALID_HANDLE);
    }
}
