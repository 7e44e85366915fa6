//! The table of an address space's registrations, and who has it locked.
//!
//! Its owner is named, so that a signal handler that unmaps amid it does not wait for its own
//! thread.

use super::identity::tid;
use super::invalidate::Invalidate;
use crate::interval::Set;
use engine_thread::{lock, wait};
use std::ops::Range;
use std::sync::atomic::{AtomicI32, Ordering::*};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, TryLockError};

/// A registration.
pub(super) struct Entry {
    pub(super) target: Arc<dyn Invalidate>,
    /// Number of this registration, from 1: changes that began before it are not told to it.
    pub(super) number: u64,
    /// Call-backs in progress.
    pub(super) busy: u32,
    /// The range, if the end of its mapping ends the registration
    /// ([`register_pinned`](super::AddressSpace::register_pinned)).
    pub(super) pinned: Option<Range<u64>>,
    /// What of it the kernel watches.
    pub(super) watched: Option<Range<u64>>,
}

/// The registrations.
pub(super) struct Table {
    entries: Mutex<Set<Entry>>,
    /// Thread that holds them, 0 if none.
    owner: AtomicI32,
}

impl Table {
    pub(super) fn new() -> Table {
        Table { entries: Mutex::new(Set::new()), owner: AtomicI32::new(0) }
    }

    pub(super) fn lock(&self) -> Held<'_> {
        let guard = lock(&self.entries);
        self.owner.store(tid(), Relaxed);
        Held { guard: Some(guard), owner: &self.owner }
    }

    /// Whether nobody has it locked.
    pub(super) fn is_free(&self) -> bool {
        !matches!(self.entries.try_lock(), Err(TryLockError::WouldBlock))
    }

    /// Whether this thread has it locked.
    pub(super) fn is_ours(&self) -> bool {
        self.owner.load(Relaxed) == tid()
    }
}

/// The table, locked, with its owner marked.
pub(super) struct Held<'a> {
    guard: Option<MutexGuard<'a, Set<Entry>>>,
    owner: &'a AtomicI32,
}

impl std::ops::Deref for Held<'_> {
    type Target = Set<Entry>;
    fn deref(&self) -> &Set<Entry> {
        self.guard.as_ref().expect("present until drop")
    }
}

impl std::ops::DerefMut for Held<'_> {
    fn deref_mut(&mut self) -> &mut Set<Entry> {
        self.guard.as_mut().expect("present until drop")
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.owner.store(0, Relaxed);
    }
}

impl Held<'_> {
    /// Waits for a notification, without the lock.
    pub(super) fn wait(&mut self, condvar: &Condvar) {
        if let Some(guard) = self.guard.take() {
            self.owner.store(0, Relaxed);
            self.guard = Some(wait(condvar, guard));
            self.owner.store(tid(), Relaxed);
        }
    }
}
