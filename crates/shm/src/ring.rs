//! A ring of records that one process writes and another reads, in shared memory.
//!
//! A record is a word with its length in bytes and a tag, then its bytes in whole words, without a
//! break: where it does not fit before the end of the ring, a word says so ([`SKIP`]), and it
//! stands at the start. That first word is written last, and is zero until then: so one cache line
//! brings a short record whole, and whoever polls looks at nothing else. The reader counts the
//! words that it has taken, in a cache line of its own, where the writer looks when it runs short.
//!
//! A record can be copied in and out as a whole, or in parts by whoever copies to and from the
//! addresses of its bytes. It stays the writer's until [`RingWriter::commit`], and from then on the
//! reader's until [`RingReader::take`], if both keep to that; what is read twice may differ.
//!
//! Neither side trusts the other: a counter or a length that cannot be right ends the ring for
//! whoever reads it ([`Broken`]), and never a copy beyond it. The model tests (`--cfg loom`) check
//! that a record is read as it was written.

use crate::Shm;
use crate::sabotage::{self, Point};
use descriptors::Kept;
use rustix::io::{Errno, Result};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{self, Acquire, Relaxed, Release};

/// What a region begins with.
const MAGIC: u64 = u64::from_le_bytes(*b"pdmarin3");
/// Words: what it is, whose and to whom, words taken, whether there is a reader, the data.
const WHAT: usize = 0;
const FROM: usize = 1;
const TO: usize = 2;
const TAKEN: usize = 8;
const ATTACHED: usize = 16;
const DATA: usize = 24;

/// Bytes of a ring's records and their lengths.
pub const RING_BYTES: usize = 512 << 10;
const CAPACITY: usize = RING_BYTES / 8;
/// Instead of a record: nothing more before the end.
const SKIP: u64 = u64::MAX;

/// A record of so many bytes, and what its writer says of it besides.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Record {
    /// Its bytes.
    pub len: usize,
    /// For writer and reader to agree on.
    pub tag: u16,
}

impl Record {
    /// Its first word, which is not zero.
    fn word(self) -> u64 {
        (self.len as u64 + 1) << 16 | u64::from(self.tag)
    }

    /// The record with such a first word, if it is one that a ring of so many words could hold.
    fn of(word: u64, capacity: usize) -> Option<Record> {
        let len = usize::try_from((word >> 16).checked_sub(1)?).ok()?;
        (len < capacity * 8).then_some(Record { len, tag: word as u16 })
    }
}

/// The two that a ring is between, as numbers that nobody else has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Between {
    /// Who writes it.
    pub from: u64,
    /// Who reads it.
    pub to: u64,
}

/// The other side wrote what cannot be: there is nothing more to read or to write.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Broken;

/// A shared word.
trait Word {
    fn load(&self, order: Ordering) -> u64;
    fn store(&self, value: u64, order: Ordering);
}

macro_rules! word {
    ($atomic:ty) => {
        impl Word for $atomic {
            #[inline]
            fn load(&self, order: Ordering) -> u64 {
                self.load(order)
            }
            #[inline]
            fn store(&self, value: u64, order: Ordering) {
                self.store(value, order);
            }
        }
    };
}

word!(AtomicU64);
#[cfg(loom)]
word!(loom::sync::atomic::AtomicU64);

fn words_of(bytes: usize) -> usize {
    1 + bytes.div_ceil(8)
}

/// The place in the data of `ring` that is so many words behind `at`; not a division, which takes
/// as long as twenty other instructions.
fn step<W>(ring: &[W], at: usize, words: usize) -> usize {
    let capacity = ring.len() - DATA;
    let next = at + words;
    if next >= capacity { next - capacity } else { next }
}

/// Where the writer is.
#[derive(Default, Debug)]
struct Writing {
    written: u64,
    /// The same as a place in the data.
    at: usize,
    /// As it was seen last.
    taken: u64,
}

impl Writing {
    /// Words that are free. Looks at the reader's counter if there are not `wanted`.
    fn free<W: Word>(&mut self, ring: &[W], wanted: usize) -> std::result::Result<usize, Broken> {
        let capacity = ring.len() - DATA;
        let free = |taken: u64| capacity.checked_sub(self.written.wrapping_sub(taken) as usize);
        let known = free(self.taken).ok_or(Broken)?;
        if known >= wanted {
            return Ok(known);
        }
        // Pairs with the reader's release: what is overwritten has been copied out.
        let taken = ring[TAKEN].load(Acquire);
        let now = free(taken).ok_or(Broken)?;
        self.taken = taken;
        Ok(now)
    }

    /// The place of a record of so many bytes, if it fits: before the end, or at the start.
    fn reserve<W: Word>(
        &mut self,
        ring: &[W],
        bytes: usize,
    ) -> std::result::Result<Option<usize>, Broken> {
        let capacity = ring.len() - DATA;
        let (words, at) = (words_of(bytes), self.at);
        let skipped = if at + words > capacity { capacity - at } else { 0 };
        // And the first word of the record after it.
        let wanted = skipped + words + 1;
        if self.free(ring, wanted)? < wanted {
            return Ok(None);
        }
        if skipped > 0 {
            ring[DATA].store(0, Relaxed);
            ring[DATA + at].store(SKIP, Release);
            self.pass(ring, skipped);
        }
        Ok(Some(DATA + self.at))
    }

    /// Passes the record on whose place was reserved last.
    fn commit<W: Word>(&mut self, ring: &[W], record: Record) {
        let at = self.at;
        self.pass(ring, words_of(record.len));
        ring[DATA + self.at].store(0, Relaxed);
        sabotage::reached(Point::RecordWritten);
        ring[DATA + at].store(record.word(), Release);
    }

    /// So many words more are written.
    fn pass<W>(&mut self, ring: &[W], words: usize) {
        self.at = step(ring, self.at, words);
        self.written = self.written.wrapping_add(words as u64);
    }

    fn push<W: Word>(
        &mut self,
        ring: &[W],
        bytes: &[u8],
        tag: u16,
    ) -> std::result::Result<bool, Broken> {
        let Some(at) = self.reserve(ring, bytes.len())? else { return Ok(false) };
        let (whole, rest) = bytes.as_chunks::<8>();
        let places = &ring[at + 1..at + words_of(bytes.len())];
        places.iter().zip(whole).for_each(|(place, bytes)| {
            place.store(u64::from_ne_bytes(*bytes), Relaxed);
        });
        if let Some(place) = places.get(whole.len()) {
            let mut last = [0; 8];
            last[..rest.len()].copy_from_slice(rest);
            place.store(u64::from_ne_bytes(last), Relaxed);
        }
        self.commit(ring, Record { len: bytes.len(), tag });
        Ok(true)
    }
}

/// Where the reader is.
#[derive(Default, Debug)]
struct Reading {
    taken: u64,
    /// The same as a place in the data.
    at: usize,
}

impl Reading {
    /// The place of the oldest record, and that; `None` when there is none.
    fn peek<W: Word>(
        &mut self,
        ring: &[W],
    ) -> std::result::Result<Option<(usize, Record)>, Broken> {
        let mut word = self.first_word(ring);
        if word == SKIP && self.at > 0 {
            self.pass(ring, ring.len() - DATA - self.at);
            word = self.first_word(ring);
        }
        self.record(ring, word)
    }

    /// What stands where the oldest record begins.
    fn first_word<W: Word>(&self, ring: &[W]) -> u64 {
        // Pairs with the writer's release: the record is whole, or there is none before the end.
        ring[DATA + self.at].load(Acquire)
    }

    /// The record with this first word, which was read once: its writer may have changed it.
    fn record<W>(
        &self,
        ring: &[W],
        word: u64,
    ) -> std::result::Result<Option<(usize, Record)>, Broken> {
        if word == 0 {
            return Ok(None);
        }
        let capacity = ring.len() - DATA;
        let record = Record::of(word, capacity).ok_or(Broken)?;
        let fits = words_of(record.len) <= capacity - self.at;
        if fits { Ok(Some((DATA + self.at, record))) } else { Err(Broken) }
    }

    /// Copies the first bytes of the record at this word.
    fn read<W: Word>(ring: &[W], at: usize, into: &mut [u8]) {
        let mut places = ring[at + 1..].iter();
        let (whole, rest) = into.as_chunks_mut::<8>();
        whole.iter_mut().zip(places.by_ref()).for_each(|(bytes, place)| {
            *bytes = place.load(Relaxed).to_ne_bytes();
        });
        if let Some(place) = places.next().filter(|_| !rest.is_empty()) {
            rest.copy_from_slice(&place.load(Relaxed).to_ne_bytes()[..rest.len()]);
        }
    }

    /// The writer may use so many words again.
    fn pass<W: Word>(&mut self, ring: &[W], words: usize) {
        self.at = step(ring, self.at, words);
        self.taken = self.taken.wrapping_add(words as u64);
        ring[TAKEN].store(self.taken, Release);
    }
}

/// The side that writes, and that made the ring.
#[derive(Debug)]
pub struct RingWriter {
    shm: Shm,
    fd: Kept,
    writing: Writing,
}

impl RingWriter {
    /// An empty ring.
    ///
    /// # Errors
    /// Those of [`Shm::create`].
    pub fn create(Between { from, to }: Between) -> Result<RingWriter> {
        let (shm, fd) = Shm::create("peerdma-ring", (DATA + CAPACITY) * 8)?;
        shm.word(FROM * 8).store(from, Relaxed);
        shm.word(TO * 8).store(to, Relaxed);
        shm.word(WHAT * 8).store(MAGIC, Release);
        Ok(RingWriter { shm, fd, writing: Writing::default() })
    }

    /// Whether somebody reads it.
    #[inline]
    pub fn is_attached(&self) -> bool {
        self.shm.word(ATTACHED * 8).load(Acquire) != 0
    }

    /// Whether records of `bytes` in all fit now, if there are few of them.
    ///
    /// # Errors
    /// [`Broken`].
    pub fn has_room(&mut self, bytes: usize) -> std::result::Result<bool, Broken> {
        let wanted = words_of(bytes).saturating_add(CAPACITY / 8);
        Ok(self.writing.free(self.shm.words(), wanted)? >= wanted)
    }

    /// How far the reader has come: another number each time it took something.
    pub fn taken(&self) -> u64 {
        self.shm.words()[TAKEN].load(Relaxed)
    }

    /// Where in [`RingWriter::shm`] the next record goes, by bytes, if it is `bytes` long; `None`
    /// when there is no room.
    ///
    /// # Errors
    /// [`Broken`].
    pub fn reserve(&mut self, bytes: usize) -> std::result::Result<Option<usize>, Broken> {
        let at = self.writing.reserve(self.shm.words(), bytes)?;
        Ok(at.map(|at| (at + 1) * 8))
    }

    /// Passes the record on whose place was the last one that was asked for.
    pub fn commit(&mut self, record: Record) {
        self.writing.commit(self.shm.words(), record);
    }

    /// The memory of the ring.
    pub fn shm(&self) -> &Shm {
        &self.shm
    }

    /// Appends a record, unless there is no room.
    ///
    /// # Errors
    /// [`Broken`].
    #[inline]
    pub fn push(&mut self, bytes: &[u8], tag: u16) -> std::result::Result<bool, Broken> {
        self.writing.push(self.shm.words(), bytes, tag)
    }
}

impl AsFd for RingWriter {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// The side that reads.
#[derive(Debug)]
pub struct RingReader {
    shm: Shm,
    reading: Reading,
}

impl RingReader {
    /// Opens a ring that another process made between these two: a descriptor's number in that
    /// process may have come to stand for another.
    ///
    /// # Errors
    /// Those of [`Shm::open_of`]; `PROTO` when it is no ring, or between others.
    pub fn open(fd: impl AsFd, between: Between) -> Result<RingReader> {
        let shm = Shm::open_of(fd, (DATA + CAPACITY) * 8)?;
        let is_ring = shm.word(WHAT * 8).load(Acquire) == MAGIC;
        let word = |at: usize| shm.word(at * 8).load(Relaxed);
        if !is_ring || between != (Between { from: word(FROM), to: word(TO) }) {
            return Err(Errno::PROTO);
        }
        Ok(RingReader { shm, reading: Reading::default() })
    }

    /// Tells the writer that it is read from now on, unless it is already.
    pub fn attach(&self) -> bool {
        let attached = self.shm.word(ATTACHED * 8);
        let is_first = attached.compare_exchange(0, 1, Ordering::AcqRel, Acquire).is_ok();
        sabotage::reached(Point::Attaching);
        is_first
    }

    /// Whether a record waits.
    #[inline]
    pub fn has_more(&self) -> bool {
        self.shm.words()[DATA + self.reading.at].load(Acquire) != 0
    }

    /// As [`RingReader::peek`], of the record behind the oldest, which is so many bytes long.
    ///
    /// # Errors
    /// [`Broken`], also where that one stands at the start.
    #[inline]
    pub fn peek_behind(
        &self,
        bytes: usize,
    ) -> std::result::Result<Option<(usize, Record)>, Broken> {
        let words = self.shm.words();
        let at = step(words, self.reading.at, words_of(bytes));
        let behind = Reading { taken: 0, at };
        let record = behind.record(words, behind.first_word(words))?;
        Ok(record.map(|(at, record)| ((at + 1) * 8, record)))
    }

    /// Where in [`RingReader::shm`] the oldest record's bytes are, and that; `None` when there is
    /// none.
    ///
    /// # Errors
    /// [`Broken`].
    #[inline]
    pub fn peek(&mut self) -> std::result::Result<Option<(usize, Record)>, Broken> {
        let record = self.reading.peek(self.shm.words())?;
        Ok(record.map(|(at, record)| ((at + 1) * 8, record)))
    }

    /// Copies the first bytes of the record at `at`, as [`RingReader::peek`] says.
    ///
    /// # Panics
    /// Outside the ring.
    #[inline]
    pub fn read(&self, at: usize, into: &mut [u8]) {
        Reading::read(self.shm.words(), at / 8 - 1, into);
    }

    /// The memory of the ring.
    pub fn shm(&self) -> &Shm {
        &self.shm
    }

    /// Gives the place of the oldest record back, which is so many bytes long.
    #[inline]
    pub fn take(&mut self, bytes: usize) {
        sabotage::reached(Point::RecordRead);
        self.reading.pass(self.shm.words(), words_of(bytes));
    }
}

#[cfg(all(test, not(loom)))]
mod tests;

/// Run with `RUSTFLAGS="--cfg loom" cargo test -p shm --release --lib model::`.
#[cfg(all(test, loom))]
mod model {
    use super::*;
    use loom::sync::Arc;
    use loom::sync::atomic::AtomicU64 as Modelled;
    use loom::thread;

    /// The second record fits only once the first was taken: behind it, or at the start.
    #[test]
    fn a_record_is_read_as_it_was_written() {
        for (words, records) in [(4, [&[1; 8][..], &[2; 8]]), (6, [&[1; 24], &[2; 16]])] {
            loom::model(move || two_records(words, records));
        }
    }

    fn two_records(words: usize, records: [&'static [u8]; 2]) {
        let ring: Arc<Vec<_>> = Arc::new((0..DATA + words).map(|_| Modelled::new(0)).collect());
        let other = ring.clone();
        let writer = thread::spawn(move || {
            let mut writing = Writing::default();
            for bytes in records {
                while !writing.push(&other, bytes, bytes[0].into()).unwrap() {
                    thread::yield_now();
                }
            }
        });
        let mut reading = Reading::default();
        for bytes in records {
            let (at, record) = loop {
                match reading.peek(&ring).unwrap() {
                    Some(found) => break found,
                    None => thread::yield_now(),
                }
            };
            assert_eq!(record, Record { len: bytes.len(), tag: bytes[0].into() });
            let mut into = vec![0; record.len];
            Reading::read(&ring, at, &mut into);
            reading.pass(&ring, words_of(record.len));
            assert_eq!(into, bytes);
        }
        writer.join().unwrap();
        assert_eq!(reading.peek(&ring), Ok(None), "what was read before");
    }
}
