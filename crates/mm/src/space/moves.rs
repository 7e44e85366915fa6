//! Pages that move while the program's mappings stay: to a device's memory and home.

use super::identity::{pid, tid};
use super::{AddressSpace, Change};
use engine_thread::{lock, wait};
use std::cell::Cell;
use std::ops::Range;
use std::sync::atomic::Ordering::*;
use std::sync::{Condvar, Mutex};

std::thread_local! {
    /// Changes of mappings that this thread has begun and not ended: it waits for nobody who may
    /// wait for it.
    static OPEN: Cell<u32> = const { Cell::new(0) };
}

/// Whether this thread is amid a change. A thread that is being torn down is not.
pub(super) fn amid_change() -> bool {
    OPEN.try_with(|open| open.get() > 0).unwrap_or(false)
}

pub(super) fn opened() {
    let _ = OPEN.try_with(|open| open.set(open.get() + 1));
}

pub(super) fn closed() {
    let _ = OPEN.try_with(|open| open.set(open.get().saturating_sub(1)));
}

/// Who moves pages now, and those who wait for the end of that.
pub(super) struct Mover {
    lock: Mutex<()>,
    ended: Condvar,
}

impl Mover {
    pub(super) fn new() -> Mover {
        Mover { lock: Mutex::new(()), ended: Condvar::new() }
    }
}

impl AddressSpace {
    /// Keeps the interposed calls out and has everyone who can let go of the pages of `range`; when
    /// it returns nobody uses them. One move at a time is the caller's duty. `None` in a forked
    /// child, where nothing is to be moved.
    pub(crate) fn begin_move(&self, range: Range<u64>) -> Option<Change> {
        if self.pid.load(Relaxed) != pid() {
            return None;
        }
        self.moving.store(tid(), SeqCst);
        // changes that have begun end first, and later ones wait for us
        self.changes.wait();
        let phase = self.changes.enter();
        let stamp = self.made.load(Relaxed);
        self.tell(&range, stamp, |target| target.moving(range.clone()));
        Some(Change { stamp, phase })
    }

    /// The pages are where they will be found.
    pub(crate) fn end_move(&self, range: Range<u64>, change: Change) {
        self.tell(&range, change.stamp, |target| target.moved(range.clone()));
        self.changes.leave(change.phase);
        {
            let _guard = lock(&self.mover.lock);
            self.moving.store(0, SeqCst);
        }
        self.mover.ended.notify_all();
    }

    /// Whether another thread moves pages now.
    #[inline]
    pub(super) fn others_move(&self) -> bool {
        let mover = self.moving.load(SeqCst);
        // a signal may have come amid a move, and its handler does not wait for itself
        mover != 0 && mover != tid()
    }

    #[cold]
    pub(super) fn wait_for_move(&self) {
        let mut guard = lock(&self.mover.lock);
        while self.moving.load(SeqCst) != 0 {
            guard = wait(&self.mover.ended, guard);
        }
    }

    /// Calls `claim` for the parts of `range` that no pinned registration has, until it fails.
    /// Nobody registers meanwhile; `claim` neither allocates nor waits.
    pub(crate) fn each_unpinned<E>(
        &self,
        range: &Range<u64>,
        claim: impl Fn(&Range<u64>) -> Result<(), E>,
    ) -> Result<(), E> {
        let table = self.lock();
        let (mut from, mut after) = (range.start, None);
        while let Some((start, id)) = table.next_overlap(from, range.end, after) {
            after = Some((start, id));
            let Some(pinned) = table.get(id).and_then(|entry| entry.pinned.clone()) else {
                continue;
            };
            if from < pinned.start {
                claim(&(from..pinned.start))?;
            }
            from = from.max(pinned.end);
        }
        if from < range.end { claim(&(from..range.end)) } else { Ok(()) }
    }

    /// Whether anyone holds a page of `range` in place.
    pub(crate) fn is_held(&self, range: Range<u64>) -> bool {
        let held = Cell::new(false);
        self.tell(&range, u64::MAX, |target| held.set(held.get() || target.holds()));
        held.get()
    }
}
