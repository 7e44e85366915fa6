//! Waiting for those who were inside before now, without keeping anyone out.
//!
//! Readers count themselves into one of two phases. [`Grace::wait`] turns the phase, so that those
//! who come later count elsewhere, and returns once the earlier ones have left (sleepable RCU's
//! idea, `Documentation/RCU`). Entering and leaving neither locks nor waits; nothing here
//! allocates, since the waiter may be an interposed `munmap` that `malloc` called. The model tests
//! (`--cfg loom`) check the promise of `wait`, and that it returns.

#[cfg(loom)]
use loom::sync::{
    Condvar, Mutex, MutexGuard,
    atomic::{AtomicUsize, Ordering::*, fence},
};
use std::sync::PoisonError;
#[cfg(not(loom))]
use std::sync::{
    Condvar, Mutex, MutexGuard,
    atomic::{AtomicUsize, Ordering::*, fence},
};

/// Who is inside, by phase.
pub(crate) struct Grace {
    phase: AtomicUsize,
    inside: [AtomicUsize; 2],
    waiting: AtomicUsize,
    /// One waiter turns the phase at a time.
    turn: Mutex<()>,
    lock: Mutex<()>,
    left: Condvar,
}

/// The phase that an [`Grace::enter`] counted in, for [`Grace::leave`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Phase(pub(crate) usize);

impl Grace {
    pub(crate) fn new() -> Grace {
        Grace {
            phase: AtomicUsize::new(0),
            inside: [AtomicUsize::new(0), AtomicUsize::new(0)],
            waiting: AtomicUsize::new(0),
            turn: Mutex::new(()),
            lock: Mutex::new(()),
            left: Condvar::new(),
        }
    }

    /// Goes inside. What is read from here to [`Grace::leave`] is older than no change made before
    /// a [`Grace::wait`] that does not wait for this reader.
    #[inline]
    pub(crate) fn enter(&self) -> Phase {
        let phase = self.phase.load(Relaxed) & 1;
        self.inside[phase].fetch_add(1, Relaxed);
        // pairs with the fence of `wait`: either it sees us inside, or we see what it changed
        fence(SeqCst);
        Phase(phase)
    }

    /// Goes outside.
    #[inline]
    pub(crate) fn leave(&self, Phase(phase): Phase) {
        let before = self.inside[phase & 1].fetch_sub(1, Release);
        fence(SeqCst);
        if before == 1 && self.waiting.load(Relaxed) > 0 {
            self.last_left();
        }
    }

    #[cold]
    fn last_left(&self) {
        // the waiter looks under the lock, so it either sees the count now or is woken
        drop(lock(&self.lock));
        self.left.notify_all();
    }

    /// Returns once everyone who was inside when it was called has left. A change made before the
    /// call is seen by all who are inside afterwards.
    pub(crate) fn wait(&self) {
        fence(SeqCst);
        if self.inside.iter().all(|count| count.load(Acquire) == 0) {
            return;
        }
        let turn = lock(&self.turn);
        self.waiting.fetch_add(1, Relaxed);
        fence(SeqCst);
        let now = self.phase.load(Relaxed) & 1;
        // those left over from before the last turn, then those of this phase
        self.drain(1 - now);
        self.phase.store(1 - now, Relaxed);
        fence(SeqCst);
        self.drain(now);
        self.waiting.fetch_sub(1, Relaxed);
        drop(turn);
    }

    /// Counts everyone out who was inside: for a forked child, whose only thread is outside.
    pub(crate) fn forget(&self) {
        self.inside.iter().for_each(|count| count.store(0, Relaxed));
    }

    fn drain(&self, phase: usize) {
        let mut guard = lock(&self.lock);
        while self.inside[phase].load(Acquire) != 0 {
            guard = self.left.wait(guard).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

fn lock(mutex: &Mutex<()>) -> MutexGuard<'_, ()> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(all(test, loom))]
mod model {
    use super::*;
    use loom::sync::Arc;
    use loom::sync::atomic::AtomicBool;
    use loom::thread;

    /// A reader that saw the page mapped is not inside once the wait after the zap has returned.
    fn model(readers: usize) {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(3);
        builder.check(move || {
            let grace = Arc::new(Grace::new());
            let mapped = Arc::new(AtomicBool::new(true));
            let gone = Arc::new(AtomicBool::new(false));
            let readers: Vec<_> = (0..readers)
                .map(|_| {
                    let (grace, mapped, gone) = (grace.clone(), mapped.clone(), gone.clone());
                    thread::spawn(move || {
                        let phase = grace.enter();
                        if mapped.load(Relaxed) {
                            assert!(!gone.load(Relaxed), "the page went while it was used");
                        }
                        grace.leave(phase);
                    })
                })
                .collect();
            mapped.store(false, Relaxed);
            grace.wait();
            gone.store(true, Relaxed);
            readers.into_iter().for_each(|reader| reader.join().unwrap());
        });
    }

    #[test]
    fn grace_one_reader() {
        model(1);
    }

    #[test]
    fn grace_two_readers() {
        model(2);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;

    #[test]
    fn nobody_inside_is_not_waited_for() {
        let grace = Grace::new();
        grace.wait();
        let phase = grace.enter();
        grace.leave(phase);
        grace.wait();
    }

    #[test]
    fn earlier_readers_are_waited_for_and_later_ones_are_not() {
        let grace = Grace::new();
        let left = AtomicBool::new(false);
        let earlier = grace.enter();
        std::thread::scope(|s| {
            let waiter = s.spawn(|| {
                grace.wait();
                assert!(left.load(SeqCst), "did not wait for the earlier reader");
            });
            // the phase turns only once the waiter is there
            let later = loop {
                let phase = grace.enter();
                if phase != earlier {
                    break phase;
                }
                grace.leave(phase);
                std::thread::yield_now();
            };
            left.store(true, SeqCst);
            grace.leave(earlier);
            waiter.join().unwrap();
            grace.leave(later);
        });
        grace.wait();
    }
}
