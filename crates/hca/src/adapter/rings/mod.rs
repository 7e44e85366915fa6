//! The packets' way between two processes of one user on one host: a ring in shared memory instead
//! of sockets (D7). What passes through it are packets as on the wire, without the ICRC, so both
//! transports do all that they do otherwise; the two processes share nothing else.
//!
//! Who sends to a process makes a ring and announces it in that process's directory. The other's
//! engine thread attaches it, by the descriptor in `/proc`; until then, and where it cannot,
//! packets go by UDP. A reader that is about to sleep says so in its directory, and only then is
//! woken. Queue pairs keep the ring that they write, and address handles those of their datagrams.

mod from;
mod in_ring;
mod owed;
mod record;
mod to;

pub(crate) use from::{Incoming, PACKETS_A_TURN, RingFrom, Row};
pub(crate) use owed::Owed;
pub(crate) use record::{Ends, PREFIX_LEN, RING_MTU, begin};
pub(crate) use to::RingTo;

use engine_thread::{lock, try_lock};
use registry::SLOTS;
use std::collections::HashMap;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Mutex, MutexGuard, Weak};

const SLOT_WORDS: usize = SLOTS as usize / 64;

/// The rings of one device.
pub(crate) struct Rings {
    /// Those that it writes, by the slot of their reader.
    pub(crate) to: Mutex<HashMap<u16, Weak<RingTo>>>,
    /// Those that it reads, in turns.
    from: Mutex<Incoming>,
    /// Whom to wake whose acknowledge was put into one.
    pub(crate) owed: Owed,
    /// One was found full.
    full: AtomicBool,
    /// A bit for each slot whose ring is read, to be asked within turns.
    read_from: [AtomicU64; SLOT_WORDS],
    /// How many were announced when the engine thread last looked.
    seen: AtomicU64,
}

impl Rings {
    /// None yet.
    ///
    /// # Errors
    /// ENOMEM.
    pub(crate) fn new() -> std::io::Result<Rings> {
        let from = Mutex::new(Incoming::new()?);
        let read_from = [const { AtomicU64::new(0) }; SLOT_WORDS];
        let (full, seen) = (AtomicBool::new(false), AtomicU64::new(0));
        let owed = Owed::default();
        Ok(Rings { to: Mutex::default(), from, owed, full, read_from, seen })
    }

    /// Notes that one is full.
    pub(crate) fn note_full(&self) {
        self.full.store(true, Relaxed);
    }

    /// Whether one was since the last time.
    pub(crate) fn was_full(&self) -> bool {
        self.full.load(Relaxed) && self.full.swap(false, Relaxed)
    }

    /// Whether all were looked at when so many were announced.
    pub(crate) fn has_seen(&self, announced: u64) -> bool {
        self.seen.load(Relaxed) == announced
    }

    /// All were looked at when so many were announced.
    pub(crate) fn saw(&self, announced: u64) {
        self.seen.store(announced, Relaxed);
    }

    /// Begins to read `ring`, after [`Rings::doubt`].
    pub(crate) fn add(&self, ring: RingFrom) {
        let mut from = self.from();
        from.add(ring);
        self.note(&from);
    }

    /// The device at `slot` has announced a ring. Whether that may be looked at: not while one that
    /// its device has ended with holds packets.
    pub(crate) fn doubt(&self, slot: u16) -> bool {
        let mut from = self.from();
        let may = from.doubt(slot);
        self.note(&from);
        may
    }

    /// Ends with those that are over, unless a turn is at them: the thread that looks would wait
    /// for a program that takes one after the other, and have to be woken after each.
    pub(crate) fn forget_those_over(&self) {
        let Some(mut from) = try_lock(&self.from) else { return };
        if from.forget_those_over() {
            self.note(&from);
        }
    }

    fn note(&self, from: &Incoming) {
        let mut bits = [0; SLOT_WORDS];
        from.slots().for_each(|slot| bits[usize::from(slot) / 64] |= 1 << (slot % 64));
        self.read_from.iter().zip(bits).for_each(|(word, bits)| word.store(bits, Relaxed));
    }

    /// Whether it reads any.
    pub(crate) fn reads_any(&self) -> bool {
        self.read_from.iter().any(|word| word.load(Relaxed) != 0)
    }

    /// Whether the device at `slot` has a ring to this one.
    pub(crate) fn is_read_from(&self, slot: u16) -> bool {
        let word = self.read_from.get(usize::from(slot) / 64);
        word.is_some_and(|word| word.load(Relaxed) >> (slot % 64) & 1 != 0)
    }

    /// Whether a packet waits in those that it reads; `None` while another thread takes a turn.
    pub(crate) fn has_more(&self) -> Option<bool> {
        try_lock(&self.from).map(|from| from.has_more())
    }

    /// Those that it reads.
    pub(crate) fn from(&self) -> MutexGuard<'_, Incoming> {
        lock(&self.from)
    }
}
