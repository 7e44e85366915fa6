//! Threads of the program's that wait for events of the device, and what the progress thread has to
//! know of them.
//!
//! Whoever is asleep is woken by a bell: an eventfd that neighbours write to when the directory
//! says that the device sleeps. One thread that waits for an event stands in for the progress
//! thread at the rings: it reads the bell, and so is woken by the neighbour itself, where the
//! progress thread would have to wake it in turn.

use descriptors::Kept;
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::{AsFd, BorrowedFd};
use rustix::io::{Errno, ReadWriteFlags};
use std::io::IoSliceMut;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU32, fence};

/// Who waits, and the bell.
///
/// The bell is a blocking eventfd, so that a read of it waits as a read of the event's own
/// descriptor does, signals and cancellation included. A write to it would wait only where somebody
/// had filled the counter on purpose.
pub(crate) struct StandIn {
    bell: Kept,
    /// The kernel can be asked for what the bell has without waiting; nobody stands in otherwise.
    is_possible: bool,
    /// A thread waits in the progress thread's place.
    is_there: AtomicBool,
    /// How often one did, about.
    times: AtomicU32,
    /// Threads that wait and leave the rings to the progress thread.
    others: AtomicU32,
    /// The progress thread sleeps until something comes, by a ring as well.
    watched: AtomicBool,
    /// It leaves the rings to who stands in.
    left: AtomicBool,
    /// How often the program has armed a completion queue, about.
    arms: AtomicU32,
}

impl StandIn {
    pub(super) fn new() -> rustix::io::Result<StandIn> {
        let mut bell = Kept::new(eventfd(0, EventfdFlags::CLOEXEC)?);
        let is_possible = take(&bell) == Err(Errno::AGAIN);
        if !is_possible {
            bell = Kept::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        }
        Ok(StandIn {
            bell,
            is_possible,
            is_there: AtomicBool::new(false),
            times: AtomicU32::new(0),
            others: AtomicU32::new(0),
            watched: AtomicBool::new(false),
            left: AtomicBool::new(false),
            arms: AtomicU32::new(0),
        })
    }

    /// What neighbours write to when the device sleeps.
    pub(crate) fn bell(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }

    /// Wakes who reads the bell.
    fn ring(&self) {
        // Full counter means a wake is pending already.
        let _ = rustix::io::write(&self.bell, &1u64.to_ne_bytes());
    }

    /// An event has come, or something else changed: who waits at the bell looks.
    pub(crate) fn event(&self) {
        if self.is_there() {
            self.ring();
        }
    }

    /// Takes back what rang, without waiting.
    pub(crate) fn take_rings(&self) {
        let _ = match self.is_possible {
            true => take(&self.bell),
            false => rustix::io::read(&self.bell, &mut [0u8; 8]),
        };
    }

    /// The calling thread is about to wait for an event. Whether it stands in; [`StandIn::leaves`]
    /// follows. Where others wait as well nobody does: the first to leave would take the progress
    /// thread's place with it.
    pub(crate) fn enters(&self, may: bool) -> bool {
        let alone = may && self.is_possible && self.others.load(SeqCst) == 0;
        if alone && !self.is_there.swap(true, SeqCst) {
            self.times.store(self.times().wrapping_add(1), Relaxed);
            return true;
        }
        self.others.fetch_add(1, SeqCst);
        false
    }

    /// It waits no longer. Whether the progress thread has to be woken: it sleeps, and may have
    /// missed the bell that this one has taken.
    pub(crate) fn leaves(&self, stood_in: bool) -> bool {
        if !stood_in {
            self.others.fetch_sub(1, SeqCst);
            return false;
        }
        self.is_there.store(false, SeqCst);
        self.is_watched()
    }

    /// In a forked child, whose only thread waits for nothing.
    pub(crate) fn begin_anew(&self) {
        self.is_there.store(false, SeqCst);
        self.others.store(0, SeqCst);
        self.set_watched(false);
        self.set_left(false);
    }

    /// Whether a thread waits in the progress thread's place.
    pub(crate) fn is_there(&self) -> bool {
        self.is_there.load(SeqCst)
    }

    /// Whether threads wait that leave the rings to the progress thread.
    pub(crate) fn has_others(&self) -> bool {
        self.others.load(SeqCst) > 0
    }

    /// How often a thread stood in: another number each time.
    pub(crate) fn times(&self) -> u32 {
        self.times.load(Relaxed)
    }

    /// Whether the progress thread sleeps until something comes.
    pub(crate) fn is_watched(&self) -> bool {
        self.watched.load(SeqCst)
    }

    /// The progress thread is about to sleep so, or does so no longer.
    pub(crate) fn set_watched(&self, watched: bool) {
        self.watched.store(watched, SeqCst);
    }

    /// Whether the progress thread leaves the rings to who stands in.
    pub(crate) fn is_left(&self) -> bool {
        self.left.load(Relaxed)
    }

    /// It does from now on, or no longer.
    pub(crate) fn set_left(&self, left: bool) {
        self.left.store(left, Relaxed);
    }

    /// The program has armed a completion queue, and may be about to wait.
    pub(crate) fn arms(&self) {
        self.arms.store(self.armed().wrapping_add(1), Relaxed);
        // Pairs with the one in `Directory::is_awake`.
        fence(SeqCst);
    }

    /// How often it has: another number each time.
    pub(crate) fn armed(&self) -> u32 {
        self.arms.load(Relaxed)
    }
}

/// What rang, without waiting.
fn take(bell: &Kept) -> rustix::io::Result<usize> {
    let mut count = [0u8; 8];
    let into = &mut [IoSliceMut::new(&mut count)];
    rustix::io::preadv2(bell, into, u64::MAX, ReadWriteFlags::NOWAIT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_stands_in_and_none_where_several_wait() {
        let seat = StandIn::new().unwrap();
        assert!(seat.is_possible && seat.enters(true) && seat.is_there());
        assert!(!seat.enters(true));
        assert!(!seat.leaves(true));
        // The other still waits.
        assert!(!seat.enters(true) && seat.has_others());
        seat.leaves(false);
        seat.leaves(false);
        let before = seat.times();
        assert!(seat.enters(true) && seat.times() != before);
    }

    #[test]
    fn who_leaves_wakes_the_thread_that_counts_on_the_bell() {
        let seat = StandIn::new().unwrap();
        assert!(seat.enters(true));
        seat.set_watched(true);
        assert!(seat.leaves(true));
    }

    #[test]
    fn rings_are_taken_without_waiting() {
        let seat = StandIn::new().unwrap();
        seat.take_rings();
        seat.ring();
        seat.ring();
        assert_eq!(take(&seat.bell), Ok(8));
        assert_eq!(take(&seat.bell), Err(Errno::AGAIN));
    }
}
