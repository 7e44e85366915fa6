//! The address space of this process: who wants to know before pages go away, and how many are
//! pinned.
//!
//! The shim calls [`begin`] from interposed `munmap`, `mremap`, `mmap(MAP_FIXED)` and `madvise`
//! *before* the kernel sees the call, and [`end`] after it; everyone who registered an overlapping
//! range hears of it, and when `begin` returns nobody uses the range (the contract of
//! `mmu_interval_notifier`, `include/linux/mmu_notifier.h`). A registration waits for the changes
//! that had begun before it: what it then looks at is not about to go unnoticed.
//!
//! # Locking
//! An interposed `munmap` may come from `malloc`, which may hold its own locks, and from anywhere
//! in this process. Hence:
//! - Under the table's lock nothing allocates, frees or calls out. Room is made before the lock is
//!   taken, what was removed is dropped after it is released. So a thread that holds the lock never
//!   waits for `malloc`.
//! - Call-backs run without the lock, on an entry marked busy; [`Registration`]'s drop waits until
//!   its entry is idle. A call-back must not allocate, free, or drop a registration, and waits only
//!   for threads that do not allocate either.
//! - A signal handler that unmaps while its own thread holds the lock is not told (it would wait
//!   for itself), and a forked child is not told about its parent's registrations. The guarded
//!   copies still protect both.

mod identity;
mod invalidate;
mod moves;
mod pin;
mod table;
#[cfg(test)]
mod tests;
mod watch;

use crate::grace::{Grace, Phase};
use crate::interval::{Id, Set};
use crate::map_pages::mapped_page_size;
use crate::page_size;
use identity::pid;
pub use invalidate::Invalidate;
pub(crate) use invalidate::Migration;
pub use pin::{PinError, Pinned};
use table::{Entry, Held, Table};
pub use watch::can_watch;

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU64, AtomicUsize, Ordering::*};
use std::sync::{Arc, Condvar, OnceLock};

/// A change of mappings in progress, from [`AddressSpace::begin`] to [`AddressSpace::end`].
#[must_use = "whoever was told of the change waits for its end"]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Change {
    /// When it began, in registrations; 0 if nobody needs to hear of its end.
    stamp: u64,
    phase: Phase,
}

impl Change {
    /// As a plain number, for a caller that can keep only that. 0 is none.
    pub fn into_raw(change: Option<Change>) -> u64 {
        change.map_or(0, |change| change.stamp << 2 | (change.phase.0 as u64) << 1 | 1)
    }

    /// What [`Change::into_raw`] was given.
    pub fn from_raw(raw: u64) -> Option<Change> {
        let phase = Phase((raw >> 1 & 1) as usize);
        (raw & 1 == 1).then_some(Change { stamp: raw >> 2, phase })
    }
}

/// The notifiers and the pinned-page account of one process.
pub struct AddressSpace {
    /// The process that the registrations are of.
    pid: AtomicI32,
    /// Number of registrations, and the hull of their ranges: readable without the lock.
    count: AtomicUsize,
    low: AtomicU64,
    high: AtomicU64,
    table: Table,
    /// Registrations made so far.
    made: AtomicU64,
    /// Changes in progress.
    changes: Grace,
    kernel: watch::Kernel,
    /// Who moves pages of it to devices' memories, if anybody does.
    migration: OnceLock<&'static dyn Migration>,
    /// The thread that moves pages, 0 if none.
    moving: AtomicI32,
    mover: moves::Mover,
    idle: Condvar,
    pinned_pages: AtomicU64,
    memlock: AtomicBool,
}

/// The system has no memory for one more registration.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("no memory to watch one more range")]
pub struct NoMemory;

/// A thread of the parent held the registrations when the child was made, and is not there to let
/// go of them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("another thread was registering memory when the process forked")]
pub struct HeldByParent;

static CURRENT: AtomicPtr<AddressSpace> = AtomicPtr::new(std::ptr::null_mut());

/// Tells the notifiers of this process that `range` is about to be unmapped; for the interposed
/// calls, which pass the answer to [`end`] once the kernel is done. Never allocates.
pub fn begin(range: Range<u64>) -> Option<Change> {
    current()?.begin(range)
}

/// Tells them that the kernel is done.
pub fn end(range: Range<u64>, change: Change) {
    if let Some(space) = current() {
        space.end(range, change);
    }
}

/// [`begin`] and [`end`] at once: for memory that was gone before anyone could hear of it.
pub fn invalidate(range: Range<u64>) {
    if let Some(space) = current() {
        space.invalidate(range);
    }
}

/// What is registered so far, for [`gone`].
pub fn mark() -> u64 {
    current().map_or(0, |space| space.made.load(SeqCst))
}

/// Tells the registrations made before `mark` that hold their pages as pinned that `range` went
/// meanwhile. Never allocates.
pub fn gone(range: Range<u64>, mark: u64) {
    if let Some(space) = current().filter(|space| space.pid.load(Relaxed) == pid())
        && space.in_hull(&range)
    {
        let meant = |entry: &Entry| entry.pinned.is_some() && entry.number <= mark;
        space.tell_those(&range, meant, |target| target.invalidate(range.clone()));
    }
}

/// Tells the registrations that hold their pages as pinned that the rights to `range` have changed.
/// Never allocates.
pub fn protected(range: &Range<u64>) {
    if let Some(space) = current().filter(|space| space.pid.load(Relaxed) == pid())
        && space.in_hull(range)
    {
        space.tell_those(range, |entry| entry.pinned.is_some(), |target| target.protected());
    }
}

fn current() -> Option<&'static AddressSpace> {
    // SAFETY: `CURRENT` is null or holds a pointer that was leaked by `process`.
    unsafe { CURRENT.load(Acquire).as_ref() }
}

impl Default for AddressSpace {
    /// A space of its own, whose registrations only its own [`AddressSpace::invalidate`] tells.
    fn default() -> AddressSpace {
        AddressSpace::new()
    }
}

impl AddressSpace {
    fn new() -> AddressSpace {
        AddressSpace {
            pid: AtomicI32::new(pid()),
            count: AtomicUsize::new(0),
            low: AtomicU64::new(u64::MAX),
            high: AtomicU64::new(0),
            table: Table::new(),
            made: AtomicU64::new(0),
            changes: Grace::new(),
            kernel: watch::Kernel::new(),
            migration: OnceLock::new(),
            moving: AtomicI32::new(0),
            mover: moves::Mover::new(),
            idle: Condvar::new(),
            pinned_pages: AtomicU64::new(0),
            memlock: AtomicBool::new(false),
        }
    }

    /// The space of this process. A forked child gets a fresh one, since its parent's locks may be
    /// held by threads that the child does not have.
    pub fn process() -> Arc<AddressSpace> {
        loop {
            let current = CURRENT.load(Acquire);
            // SAFETY: leaked by an earlier turn of this loop, here or in the parent.
            if !current.is_null() && unsafe { &*current }.pid.load(Relaxed) == pid() {
                // SAFETY: from `Arc::into_raw` below; the leaked count keeps it alive.
                return unsafe {
                    Arc::increment_strong_count(current);
                    Arc::from_raw(current)
                };
            }
            let fresh = Arc::into_raw(Arc::new(AddressSpace::new())).cast_mut();
            if CURRENT.compare_exchange(current, fresh, AcqRel, Acquire).is_err() {
                // SAFETY: just made, and nobody has seen it.
                drop(unsafe { Arc::from_raw(fresh) });
            }
        }
    }

    /// In a child that carries its parent's registrations on, while the parent ends (`daemon(3)`):
    /// they are this process's from now on.
    ///
    /// # Errors
    /// [`HeldByParent`]: the child gets a space of its own, and those registrations are nobody's.
    pub fn adopt() -> Result<(), HeldByParent> {
        let current = CURRENT.load(Acquire);
        if !current.is_null() {
            // SAFETY: `CURRENT` only ever holds pointers that were leaked by `process`.
            let space = unsafe { &*current };
            space.adopt_own()?;
            AddressSpace::process().watch_anew();
        }
        Ok(())
    }

    /// Takes it over as far as nobody's help is needed.
    fn adopt_own(&self) -> Result<(), HeldByParent> {
        let is_held = |free: bool| if free { Ok(()) } else { Err(HeldByParent) };
        is_held(self.table.is_free())?;
        is_held(self.kernel.is_free())?;
        self.pid.store(pid(), Relaxed);
        // the threads that were inside at the fork are not here
        self.changes.forget();
        Ok(())
    }

    /// Says who moves pages of the space to devices' memories. At most one; a later one is not
    /// asked to let go of ranges.
    pub(crate) fn migrates_by(&self, migration: &'static dyn Migration) {
        let _ = self.migration.set(migration);
    }

    /// Calls `target` before any page of `range` goes away, until the returned value is dropped.
    ///
    /// # Errors
    /// [`NoMemory`] where the table would have to grow.
    pub fn register(
        self: &Arc<Self>,
        range: Range<u64>,
        target: Arc<dyn Invalidate>,
    ) -> Result<Registration, NoMemory> {
        self.enter_table(range, target, false)
    }

    fn enter_table(
        self: &Arc<Self>,
        range: Range<u64>,
        target: Arc<dyn Invalidate>,
        pinned: bool,
    ) -> Result<Registration, NoMemory> {
        let mut spare: Set<Entry> = Set::new();
        let id = loop {
            let mut table = self.lock();
            if !table.has_room() && spare.capacity() > table.capacity() {
                table.adopt(&mut spare);
            }
            if table.has_room() {
                let number = self.made.fetch_add(1, Relaxed) + 1;
                let pinned = pinned.then(|| range.clone());
                let entry = Entry { target, number, busy: 0, pinned, watched: None };
                let id = table.insert(range.start, range.end, entry);
                self.publish_hull(&table);
                break id;
            }
            let wanted = (table.capacity() * 2).max(64);
            drop(table);
            spare = Set::with_capacity(wanted).map_err(|_| NoMemory)?;
        };
        // a change that had begun may not have seen the entry, and is not told to it; one of this
        // thread's own is about what was there before
        if !moves::amid_change() {
            self.changes.wait();
        }
        Ok(Registration { space: self.clone(), id, base_pages: false })
    }

    /// Tells everyone who registered a range that overlaps `range` that it is about to change; see
    /// the module for what may happen meanwhile. `None` if nobody hears of anything, as in a
    /// forked child.
    pub fn begin(&self, range: Range<u64>) -> Option<Change> {
        // before the look at the hull: who registers now either is in it or waits for us
        let mut phase = self.changes.enter();
        // who moves pages waits for this thread's own open change first
        while !moves::amid_change() && self.others_move() {
            self.changes.leave(phase);
            self.wait_for_move();
            phase = self.changes.enter();
        }
        if !self.in_hull(&range) {
            moves::opened();
            return Some(Change { stamp: 0, phase });
        }
        if self.pid.load(Relaxed) != pid() {
            self.changes.leave(phase);
            return None;
        }
        moves::opened();
        let stamp = self.made.load(Relaxed);
        self.tell(&range, stamp, |target| target.invalidate(range.clone()));
        self.unwatch(&range, stamp, false);
        Some(Change { stamp, phase })
    }

    /// Tells those whom [`AddressSpace::begin`] told that the kernel is done with `range`.
    pub fn end(&self, range: Range<u64>, change: Change) {
        if change.stamp > 0 && self.in_hull(&range) {
            self.tell(&range, change.stamp, |target| target.invalidated(range.clone()));
        }
        self.changes.leave(change.phase);
        moves::closed();
    }

    /// A change that is over at once.
    pub fn invalidate(&self, range: Range<u64>) {
        if let Some(change) = self.begin(range.clone()) {
            self.end(range, change);
        }
    }

    /// Whether anyone may have registered part of `range` whom this thread can tell.
    fn in_hull(&self, range: &Range<u64>) -> bool {
        self.count.load(Acquire) > 0
            && range.end > self.low.load(Acquire)
            && range.start < self.high.load(Acquire)
            && !self.table.is_ours()
    }

    /// Calls `call` for the registrations up to number `stamp` that overlap `range`, without the
    /// lock.
    fn tell(&self, range: &Range<u64>, stamp: u64, call: impl Fn(&dyn Invalidate)) {
        self.tell_those(range, |entry| entry.number <= stamp, call);
    }

    /// Calls `call` for those of the registrations that overlap `range` that `chosen` says, without
    /// the lock.
    fn tell_those(
        &self,
        range: &Range<u64>,
        chosen: impl Fn(&Entry) -> bool,
        call: impl Fn(&dyn Invalidate),
    ) {
        let mut after = None;
        let mut table = self.lock();
        while let Some((start, id)) = table.next_overlap(range.start, range.end, after) {
            after = Some((start, id));
            let Some(entry) = table.get_mut(id) else { break };
            if !chosen(entry) {
                continue;
            }
            entry.busy += 1;
            let target = entry.target.clone();
            drop(table);
            call(&*target);
            // never the last reference: the entry stays while it is busy
            drop(target);
            table = self.lock();
            if let Some(entry) = table.get_mut(id) {
                entry.busy -= 1;
                if entry.busy == 0 {
                    self.idle.notify_all();
                }
            }
        }
    }

    /// Number of live registrations.
    pub fn registrations(&self) -> usize {
        self.count.load(Acquire)
    }

    fn lock(&self) -> Held<'_> {
        self.table.lock()
    }

    fn publish_hull(&self, table: &Set<Entry>) {
        let (low, high) = table.bounds().unwrap_or((u64::MAX, 0));
        self.low.store(low, Release);
        self.high.store(high, Release);
        self.count.store(table.len(), Release);
    }
}

/// A range under watch; dropping it ends the watch and waits for a call-back in progress.
#[must_use = "the watch ends when this is dropped"]
pub struct Registration {
    space: Arc<AddressSpace>,
    id: Id,
    /// The kernel told that no mapping of the range has huge pages of its own (hugetlbfs).
    base_pages: bool,
}

impl Registration {
    /// The smallest page size, a power of two, of the mappings that `range`, a part of what is
    /// registered, lies in. The base page's where the kernel does not tell (before Linux 6.11, or
    /// without `/proc`) or nothing is mapped.
    pub fn mapped_page_size(&self, range: &Range<u64>) -> u64 {
        if self.base_pages { page_size() } else { mapped_page_size(range) }
    }

    /// Whether the kernel tells of unmappings that no interposed call sees.
    pub fn is_watched(&self) -> bool {
        self.space.lock().get_mut(self.id).is_some_and(|entry| entry.watched.is_some())
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        if self.space.pid.load(Relaxed) != pid() {
            // the parent's, and who held its lock at the fork holds it for ever
            return;
        }
        let entry = {
            let mut table = self.space.lock();
            while table.get_mut(self.id).is_some_and(|e| e.busy > 0) {
                table.wait(&self.space.idle);
            }
            let mut entry = table.remove(self.id);
            let kernel = &self.space.kernel;
            if let Some(range) = entry.as_mut().and_then(|entry| kernel.take(entry)) {
                kernel.leave(&table, &range);
            }
            self.space.publish_hull(&table);
            entry
        };
        drop(entry);
    }
}
