//! The ring to one other process, written by all threads of this one.

use super::record::{self, Ends, PREFIX_LEN, SAME_ENDS, WITH_ENDS};
use crate::adapter::directory::{Announced, Reader, head};
use descriptors::Kept;
use engine_thread::lock;
use rustix::fd::{AsFd, AsRawFd, OwnedFd};
use shm::{Between, Record, RingWriter};
use std::sync::Mutex;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU32, fence};
use std::time::{Duration, Instant};
use umem::{AccessError, Source};
use wire::Headers;

/// Copies one piece of a payload.
pub(crate) type Each<'a> = dyn FnMut(Source<'_>) -> Result<(), AccessError> + 'a;

/// A ring to the device of another process, or of this one.
pub(crate) struct RingTo {
    directory: Reader,
    /// Wakes the device.
    kick: Kept,
    /// How often it was.
    kicks: AtomicU32,
    attached: AtomicBool,
    broken: AtomicBool,
    /// Little room was left after the latest packet.
    is_tight: AtomicBool,
    writer: Mutex<Writer>,
    stuck: Mutex<Option<Stuck>>,
}

struct Writer {
    ring: RingWriter,
    /// Of the latest record.
    ends: Option<Ends>,
}

impl Writer {
    /// Where a record from `ends` begins that has room for them: not there if they are those of the
    /// record before it. And its tag.
    fn begins(&self, ends: &Ends) -> (usize, u16) {
        if self.ends.as_ref() == Some(ends) { (PREFIX_LEN, SAME_ENDS) } else { (0, WITH_ENDS) }
    }

    fn push(&mut self, ends: &Ends, record: &mut [u8]) -> Result<bool, shm::Broken> {
        let (begin, tag) = self.begins(ends);
        if begin == 0
            && let Some(prefix) = record.first_chunk_mut()
        {
            ends.emit(prefix);
        }
        let pushed = self.ring.push(record.get(begin..).unwrap_or_default(), tag)?;
        if pushed && begin == 0 {
            self.ends = Some(*ends);
        }
        Ok(pushed)
    }
}

/// A ring that is full again and again.
struct Stuck {
    /// How far its reader has come.
    taken: u64,
    /// Since when that is so, and when it was seen last.
    since: Instant,
    seen: Instant,
}

/// How long a full ring is waited for whose reader takes nothing: then what does not fit is lost,
/// as on the way to a peer that is gone, and retries count.
const WATCHDOG: Duration = Duration::from_secs(1);
/// A longer time in which nobody looked does not count: the writer may have stood still, too.
const LOOKED: Duration = Duration::from_millis(100);

impl RingTo {
    /// An empty ring between two devices, to the one with this directory.
    pub(crate) fn new(between: Between, directory: Reader, kick: OwnedFd) -> Option<RingTo> {
        // Otherwise nobody would see its end.
        directory.shm.holder(head::HOLDER)?;
        let ring = RingWriter::create(between).ok()?;
        Some(RingTo {
            directory,
            kick: Kept::new(kick),
            kicks: AtomicU32::new(0),
            attached: AtomicBool::new(false),
            broken: AtomicBool::new(false),
            is_tight: AtomicBool::new(false),
            writer: Mutex::new(Writer { ring, ends: None }),
            stuck: Mutex::new(None),
        })
    }

    /// Its descriptor in this process.
    pub(crate) fn fd(&self) -> u32 {
        lock(&self.writer).ring.as_fd().as_raw_fd().cast_unsigned()
    }

    /// Tells the other device that the one with slot `from` has a ring to it.
    pub(crate) fn announce(&self, from: u16, ring: Announced) {
        self.directory.announce(from, ring);
        self.kick();
    }

    /// Whether the other device's process lives and is what it was.
    pub(crate) fn is_there(&self) -> bool {
        !self.directory.is_over() && !self.broken.load(Relaxed)
    }

    /// Whether it is read.
    #[inline]
    pub(crate) fn is_open(&self) -> bool {
        if !self.is_there() {
            return false;
        }
        if !self.attached.load(Relaxed) {
            let attached = lock(&self.writer).ring.is_attached();
            self.attached.store(attached, Relaxed);
            return attached;
        }
        true
    }

    /// Whether `bytes` more in a few packets would fit now.
    pub(crate) fn has_room(&self, bytes: u64) -> bool {
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
        self.check(lock(&self.writer).ring.has_room(bytes))
    }

    /// Whether it is full, at `now`, of what its reader has not taken for so long that it is not
    /// waited for.
    pub(crate) fn is_stuck(&self, now: Instant) -> bool {
        let taken = lock(&self.writer).ring.taken();
        let mut stuck = lock(&self.stuck);
        match &mut *stuck {
            Some(known) if known.taken == taken && now.duration_since(known.seen) < LOOKED => {
                known.seen = now;
                now.duration_since(known.since) >= WATCHDOG
            }
            _ => {
                *stuck = Some(Stuck { taken, since: now, seen: now });
                false
            }
        }
    }

    /// Appends a record, in which there is room for its ends, if it fits. Whoever reads may sleep
    /// until [`RingTo::rouse`].
    #[inline]
    pub(crate) fn push(&self, ends: &Ends, record: &mut [u8]) -> bool {
        let mut writer = lock(&self.writer);
        let pushed = self.check(writer.push(ends, record));
        let is_tight = !self.check(writer.ring.has_room(0));
        if is_tight != self.is_tight.load(Relaxed) {
            self.is_tight.store(is_tight, Relaxed);
        }
        pushed
    }

    /// Whether little room was left after the latest packet: whoever sends one asks first then.
    pub(crate) fn is_tight(&self) -> bool {
        self.is_tight.load(Relaxed)
    }

    /// The same for a packet of which `read` has the payload copied piece by piece from where it is
    /// to the ring; `false` also for one that is too short for that, and where the payload is
    /// nowhere.
    pub(crate) fn put(
        &self,
        ends: &Ends,
        headers: &Headers,
        payload_len: usize,
        read: impl FnOnce(&mut Each<'_>) -> Result<(), AccessError>,
    ) -> bool {
        let packet_len = headers.len() + payload_len + usize::from(headers.bth.pad);
        if packet_len <= record::LONG {
            return false;
        }
        let head = record::head(ends, headers);
        let mut writer = lock(&self.writer);
        let (begin, tag) = writer.begins(ends);
        let head = &head[begin..PREFIX_LEN + headers.len()];
        let len = PREFIX_LEN - begin + packet_len;
        let Ok(Some(at)) = writer.ring.reserve(len) else { return false };
        let Some(record) = mm::record_to_write(&writer.ring, at, len) else { return false };
        let mut done = head.len() as u64;
        let written = record.write(head).map_err(AccessError::from).and_then(|()| {
            read(&mut |from| {
                record.part(done, from.len())?.copy_from(from)?;
                done += from.len();
                Ok(())
            })
        });
        if written.is_err() || done != (head.len() + payload_len) as u64 {
            return false;
        }
        writer.ring.commit(Record { len, tag });
        writer.ends = Some(*ends);
        true
    }

    fn check(&self, done: Result<bool, shm::Broken>) -> bool {
        done.unwrap_or_else(|_| {
            self.broken.store(true, Relaxed);
            false
        })
    }

    /// Wakes the reader if it sleeps; to be called after [`RingTo::push`]. Whether it did.
    #[inline]
    pub(crate) fn rouse(&self) -> bool {
        // Pairs with the fence in `Directory::sleeps`: either the reader sees what was pushed, or
        // it is seen here that it sleeps.
        fence(SeqCst);
        let asleep = self.directory.shm.word(head::ASLEEP);
        let sleeps = asleep.load(Relaxed) != 0 && asleep.swap(0, Relaxed) != 0;
        if sleeps {
            self.kick();
        }
        sleeps
    }

    /// How often the reader was woken, about: another number each time.
    pub(crate) fn kicks(&self) -> u32 {
        self.kicks.load(Relaxed)
    }

    #[cold]
    fn kick(&self) {
        self.kicks.fetch_add(1, Relaxed);
        // Full counter means a wake is pending already.
        let _ = rustix::io::write(&self.kick, &1u64.to_ne_bytes());
    }
}
