//! A lock of the whole process that a fork waits for a limited time only, and that a forked child
//! finds free.
//!
//! Who holds one may wait for other processes meanwhile, for instance for the registry; a fork in
//! another thread must not. A child that was made while another thread held it has what that thread
//! was about to make not at all, and starts afresh.

use engine_thread::lock;
use std::sync::atomic::{AtomicPtr, Ordering::*};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// What one process of a fork has of a lock.
pub struct Turn {
    taken: Mutex<bool>,
    freed: Condvar,
}

impl Turn {
    pub const fn new() -> Turn {
        Turn { taken: Mutex::new(false), freed: Condvar::new() }
    }

    /// Held only for an instant, by the lock's own code.
    fn taken(&self) -> MutexGuard<'_, bool> {
        lock(&self.taken)
    }
}

pub struct ForkLock {
    /// The turn of this process. Never null; those of earlier processes stay.
    turn: AtomicPtr<Turn>,
}

/// The lock is free when this is dropped.
#[must_use = "the lock is free when this is dropped"]
pub struct Held(&'static Turn);

impl ForkLock {
    /// A free lock; `first` is that of the first process.
    pub const fn new(first: &'static Turn) -> ForkLock {
        ForkLock { turn: AtomicPtr::new(std::ptr::from_ref(first).cast_mut()) }
    }

    fn turn(&self) -> &'static Turn {
        // SAFETY: it is `first`, or was leaked by `renew`; neither is ever freed or changed but
        // through its own locks.
        unsafe { &*self.turn.load(Acquire) }
    }

    /// Waits for the lock.
    pub fn take(&self) -> Held {
        let turn = self.turn();
        let taken = turn.freed.wait_while(turn.taken(), |taken| *taken);
        *taken.unwrap_or_else(PoisonError::into_inner) = true;
        Held(turn)
    }

    /// The same, until `deadline` at most.
    pub fn take_before(&self, deadline: Instant) -> Option<Held> {
        let turn = self.turn();
        let left = deadline.saturating_duration_since(Instant::now());
        let waited = turn.freed.wait_timeout_while(turn.taken(), left, |taken| *taken);
        let (mut taken, waited) = waited.unwrap_or_else(PoisonError::into_inner);
        if waited.timed_out() {
            return None;
        }
        *taken = true;
        Some(Held(turn))
    }

    /// In a forked child, before any other thread: it is free, whoever held it in the parent.
    pub fn renew(&self) {
        self.turn.store(Box::into_raw(Box::new(Turn::new())), Release);
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        *self.0.taken() = false;
        self.0.freed.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn it_is_waited_for_until_the_deadline_and_free_in_a_child() {
        static FIRST: Turn = Turn::new();
        static LOCK: ForkLock = ForkLock::new(&FIRST);
        let held = LOCK.take();
        let soon = Instant::now() + Duration::from_millis(20);
        assert!(LOCK.take_before(soon).is_none() && Instant::now() >= soon);
        // SAFETY: the child only looks at values of its own and ends.
        let child = unsafe { libc::fork() };
        if child == 0 {
            LOCK.renew();
            let free = LOCK.take_before(Instant::now()).is_some();
            // SAFETY: ends the child at once.
            unsafe { libc::_exit(i32::from(!free)) };
        }
        let mut status = -1;
        // SAFETY: `status` is a live local.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        assert_eq!(status, 0);
        drop(held);
        drop(LOCK.take());
        assert!(LOCK.take_before(Instant::now()).is_some());
    }
}
