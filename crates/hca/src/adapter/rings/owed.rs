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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::adapter::directory::{Directory, Reader, head};
    use rustix::event::{EventfdFlags, eventfd};
    use rustix::fd::OwnedFd;
    use shm::{Between, Held};

    /// A device that sleeps, and a ring to it.
    struct Sleeper {
        directory: Directory,
        bell: OwnedFd,
        ring: Arc<RingTo>,
        _held: Held,
    }

    impl Sleeper {
        fn new() -> Sleeper {
            let directory = Directory::create("peerdma-test", 5).unwrap();
            let held = directory.hold().unwrap();
            let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap();
            let kick = bell.try_clone().unwrap();
            let reader = Reader::open(&directory).unwrap();
            let ring = RingTo::new(Between { from: 8, to: 9 }, reader, kick).unwrap();
            directory.sleeps();
            Sleeper { directory, bell, ring: Arc::new(ring), _held: held }
        }

        /// Whether it has been woken, after which it sleeps again.
        fn was_woken(&self) -> bool {
            let reader = Reader::open(&self.directory).unwrap();
            let is_awake = reader.shm.word(head::ASLEEP).load(Relaxed) == 0;
            let was_kicked = rustix::io::read(&self.bell, &mut [0u8; 8]).is_ok();
            assert_eq!(is_awake, was_kicked);
            self.directory.sleeps();
            was_kicked
        }
    }

    /// A thread has waited, and the message that it takes is acknowledged. Whether the wake-up for
    /// that is put off.
    fn turn(owed: &Owed, to: &Sleeper) -> bool {
        owed.begin();
        owed.rouse(&to.ring);
        owed.end();
        !to.was_woken()
    }

    /// How many of the next waits have their peer woken at once.
    fn untrusted(owed: &Owed, peer: &Sleeper) -> u32 {
        let at_once = (0..=MOST).take_while(|_| !turn(owed, peer)).count();
        at_once as u32
    }

    #[test]
    fn only_the_turn_of_who_has_waited_puts_off() {
        let (owed, peer) = (Owed::default(), Sleeper::new());
        owed.rouse(&peer.ring);
        assert!(peer.was_woken());
        assert!(turn(&owed, &peer));
        owed.rouse(&peer.ring);
        assert!(peer.was_woken());
    }

    #[test]
    fn a_peer_that_was_woken_meanwhile_is_not_woken_again() {
        let (owed, peer) = (Owed::default(), Sleeper::new());
        for _ in 0..3 {
            assert!(turn(&owed, &peer), "who answers is trusted");
            assert!(peer.ring.rouse() && peer.was_woken());
            owed.pay();
            assert!(!peer.was_woken());
        }
        assert!(turn(&owed, &peer));
        owed.pay();
        assert!(peer.was_woken(), "nothing has woken it since");
        owed.pay();
        assert!(!peer.was_woken(), "it is paid");
    }

    #[test]
    fn who_does_not_answer_is_not_trusted_for_longer_each_time() {
        let (owed, peer) = (Owed::default(), Sleeper::new());
        assert_eq!(untrusted(&owed, &peer), 0);
        for waits in [64, 128, 256, 512, 1024, 2048, 4096, 4096] {
            owed.pay();
            assert!(peer.was_woken());
            assert_eq!(untrusted(&owed, &peer), waits);
        }
        // It answers again.
        peer.ring.rouse();
        owed.pay();
        assert!(peer.was_woken() && turn(&owed, &peer));
        owed.pay();
        assert!(peer.was_woken());
        assert_eq!(untrusted(&owed, &peer), 64);
    }

    #[test]
    fn one_peer_at_a_time_is_owed_a_wake_up() {
        let (owed, peer, other) = (Owed::default(), Sleeper::new(), Sleeper::new());
        assert!(turn(&owed, &peer) && !turn(&owed, &other));
        owed.pay();
        assert!(peer.was_woken() && !other.was_woken());
    }

    #[test]
    fn what_came_since_the_last_look_is_left_until_the_next() {
        let (owed, peer, mut seen) = (Owed::default(), Sleeper::new(), 0);
        assert!(turn(&owed, &peer));
        owed.pay_old(&mut seen);
        assert!(!peer.was_woken());
        owed.pay_old(&mut seen);
        assert!(peer.was_woken());
    }
}
