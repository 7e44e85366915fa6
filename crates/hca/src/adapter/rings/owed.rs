//! A wake-up that is owed to the reader of a ring: what is in the ring is there, and its reader
//! sleeps.
//!
//! A program that waits for an event and answers the message that it brought wakes its peer with
//! the answer. To wake it before, for the acknowledge, would take both a change of threads each
//! time. So while the thread that has waited takes its turn, the acknowledge's wake-up is put off:
//! until the program sends to the same peer, polls in vain or waits again, or the progress thread
//! looks, a millisecond later at most. A program that does not answer is found out by that,
//! and for some time its peers are woken at once.

use super::RingTo;
use engine_thread::{lock, try_lock};
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU32};
use std::sync::{Arc, Mutex};

/// Waits after which it is tried again, where a peer had to be woken for the acknowledge alone;
/// twice as many each time, so many at most.
const FIRST: u32 = 64;
const MOST: u32 = 4096;

/// To whom one is owed.
#[derive(Default)]
pub(crate) struct Owed {
    /// The ring, and how often its reader had been woken before.
    to: Mutex<Option<(Arc<RingTo>, u32)>>,
    /// There is one.
    owes: AtomicBool,
    /// How many have been, about.
    times: AtomicU32,
    /// The thread that has waited takes its turn.
    may: AtomicBool,
    /// Waits until it may be put off again, and how many there were the last time.
    waits: AtomicU32,
    latest: AtomicU32,
}

impl Owed {
    /// A thread that has waited begins its turn.
    pub(crate) fn begin(&self) {
        let waits = self.waits.load(Relaxed);
        self.waits.store(waits.saturating_sub(1), Relaxed);
        self.may.store(waits == 0, Relaxed);
    }

    /// The turn is over.
    pub(crate) fn end(&self) {
        self.may.store(false, Relaxed);
    }

    /// An acknowledge is in this ring: wakes its reader, now or later.
    #[inline]
    pub(crate) fn rouse(&self, ring: &Arc<RingTo>) {
        if !self.may.load(Relaxed) || !self.put_off(ring) {
            ring.rouse();
        }
    }

    #[cold]
    fn put_off(&self, ring: &Arc<RingTo>) -> bool {
        let mut to = lock(&self.to);
        if to.as_ref().is_some_and(|(to, _)| !Arc::ptr_eq(to, ring)) {
            return false;
        }
        *to = Some((ring.clone(), ring.kicks()));
        self.times.store(self.times.load(Relaxed).wrapping_add(1), Relaxed);
        self.owes.store(true, SeqCst);
        true
    }

    /// The same as [`Owed::pay`] for what is owed since the last call, which told `times`.
    pub(crate) fn pay_old(&self, times: &mut u32) {
        let now = self.times.load(Relaxed);
        if std::mem::replace(times, now) == now {
            self.pay();
        }
    }

    /// Wakes the reader that has not been woken meanwhile.
    #[inline]
    pub(crate) fn pay(&self) {
        if self.owes.load(SeqCst) {
            self.pay_now();
        }
    }

    #[cold]
    fn pay_now(&self) {
        // The program may end in a signal handler amid this.
        let Some(mut to) = try_lock(&self.to) else { return };
        self.owes.store(false, SeqCst);
        // It has been woken meanwhile if it was once more.
        let is_owed = to.take().is_some_and(|(ring, kicks)| ring.kicks() == kicks && ring.rouse());
        let latest = match is_owed {
            true => (self.latest.load(Relaxed) * 2).clamp(FIRST, MOST),
            false => 0,
        };
        self.latest.store(latest, Relaxed);
        self.waits.store(latest, Relaxed);
    }
}
