//! The address space of this process: who wants to know before pages go away, and how many are pinned.
//!
//! The shim calls [`begin`] from interposed `munmap`, `mremap`, `mmap(MAP_FIXED)` and `madvise` *before* the kernel
//! sees the call, and [`end`] after it; everyone who registered an overlapping range is told, and when `begin` returns nobody uses
//! the range (the contract of `mmu_interval_notifier`, `include/linux/mmu_notifier.h`). A registration waits for the
//! changes that had begun before it: what it then looks at is not about to go unnoticed.
//!
//! # Locking
//! An interposed `munmap` may come from `malloc`, which may hold its own locks, and from anywhere in this process. Hence:
//! - Under the table's lock nothing allocates, frees or calls out. Room is made before the lock is taken, what was removed is
//!   dropped after it is released. So a thread that holds the lock never waits for `malloc`.
//! - Call-backs run without the lock, on an entry marked busy; [`Registration`]'s drop waits until its entry is idle.
//!   A call-back must not allocate, free, or drop a registration, and waits only for threads that do not allocate either.
//! - A signal handler that unmaps while its own thread holds the lock is not told (it would wait for itself), and a forked
//!   child is not told about its parent's registrations. The guarded copies still protect both.

mod moves;
mod watch;

use crate::grace::{Grace, Phase};
use crate::interval::{Id, Set};
pub use watch::can_watch;

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU64, AtomicUsize, Ordering::*};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, TryLockError};

/// Told before pages of a registered range are unmapped.
pub trait Invalidate: Send + Sync {
    /// Stops using the registration; returns once no access is in progress. Must not allocate or free memory, and
    /// must not drop a [`Registration`]: `malloc` may be the caller.
    fn invalidate(&self, range: Range<u64>);

    /// The kernel is done with a change that [`Invalidate::invalidate`] told of. The same rules hold.
    fn invalidated(&self, _range: Range<u64>) {}

    /// Pages of the range are about to move to a device's memory or home: lets go of them as for [`Invalidate::invalidate`], or
    /// does nothing if it [`holds`](Invalidate::holds) them or does not care.
    fn moving(&self, _range: Range<u64>) {}

    /// The end of what [`Invalidate::moving`] told of.
    fn moved(&self, _range: Range<u64>) {}

    /// Whether the range is still what was registered is in doubt: lets nobody use it until [`Invalidate::settle`], and returns
    /// when nobody does. The rules of [`Invalidate::invalidate`] hold.
    fn doubt(&self) {}

    /// The end of what [`Invalidate::doubt`] began.
    fn settle(&self) {}

    /// Whether the pages are held where they are, as pinned ones.
    fn holds(&self) -> bool {
        false
    }
}

/// A change of mappings in progress, from [`AddressSpace::begin`] to [`AddressSpace::end`].
#[must_use = "whoever was told of the change waits for its end"]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Change {
    /// When it began, in registrations; 0 if nobody is to be told of its end.
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

struct Entry {
    target: Arc<dyn Invalidate>,
    /// Number of this registration, from 1: changes that began before it are not told to it.
    number: u64,
    /// Call-backs in progress.
    busy: u32,
    /// The range, if the end of its mapping ends the registration ([`AddressSpace::register_pinned`]).
    pinned: Option<Range<u64>>,
    /// What of it the kernel watches.
    watched: Option<Range<u64>>,
}

/// The notifiers and the pinned-page account of one process.
pub struct AddressSpace {
    /// The process that the registrations are of.
    pid: AtomicI32,
    /// Number of registrations, and the hull of their ranges: readable without the lock.
    count: AtomicUsize,
    low: AtomicU64,
    high: AtomicU64,
    table: Mutex<Set<Entry>>,
    /// Registrations made so far.
    made: AtomicU64,
    /// Changes in progress.
    changes: Grace,
    kernel: watch::Kernel,
    /// The thread that moves pages, 0 if none.
    moving: AtomicI32,
    mover: moves::Mover,
    /// Thread that holds `table`, 0 if none.
    owner: AtomicI32,
    idle: Condvar,
    pinned_pages: AtomicU64,
    memlock: AtomicBool,
}

/// Why pages could not be accounted as pinned.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum PinError {
    /// RLIMIT_MEMLOCK is 0 and the process lacks CAP_IPC_LOCK (`can_do_mlock`).
    #[error("locking memory is not permitted: raise RLIMIT_MEMLOCK (ulimit -l)")]
    NotPermitted,
    /// The pages would exceed RLIMIT_MEMLOCK.
    #[error("RLIMIT_MEMLOCK exceeded: raise it (ulimit -l)")]
    Limit,
}

/// The system has no memory for one more registration.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("no memory to watch one more range")]
pub struct NoMemory;

/// A thread of the parent held the registrations when the child was made, and is not there to let go of them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("another thread was registering memory when the process forked")]
pub struct HeldByParent;

static CURRENT: AtomicPtr<AddressSpace> = AtomicPtr::new(std::ptr::null_mut());

/// Tells the notifiers of this process that `range` is about to be unmapped; for the interposed calls, which pass the answer
/// to [`end`] once the kernel is done. Never allocates.
pub fn begin(range: Range<u64>) -> Option<Change> {
    current()?.begin(range)
}

/// Tells them that the kernel is done.
pub fn end(range: Range<u64>, change: Change) {
    if let Some(space) = current() {
        space.end(range, change);
    }
}

/// [`begin`] and [`end`] at once: for memory that was gone before anyone could be told.
pub fn invalidate(range: Range<u64>) {
    if let Some(space) = current() {
        space.invalidate(range);
    }
}

/// What is registered so far, for [`gone`].
pub fn mark() -> u64 {
    current().map_or(0, |space| space.made.load(SeqCst))
}

/// Tells the registrations made before `mark` that hold their pages as pinned that `range` went meanwhile. Never allocates.
pub fn gone(range: Range<u64>, mark: u64) {
    if let Some(space) = current().filter(|space| space.pid.load(Relaxed) == pid())
        && space.in_hull(&range)
    {
        let meant = |entry: &Entry| entry.pinned.is_some() && entry.number <= mark;
        space.tell_those(&range, meant, |target| target.invalidate(range.clone()));
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
            table: Mutex::new(Set::new()),
            made: AtomicU64::new(0),
            changes: Grace::new(),
            kernel: watch::Kernel::new(),
            moving: AtomicI32::new(0),
            mover: moves::Mover::new(),
            owner: AtomicI32::new(0),
            idle: Condvar::new(),
            pinned_pages: AtomicU64::new(0),
            memlock: AtomicBool::new(false),
        }
    }

    /// The space of this process. A forked child gets a fresh one, since its parent's locks may be held by threads that the
    /// child does not have.
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

    /// In a child that carries its parent's registrations on, while the parent ends (`daemon(3)`): they are this process's from
    /// now on.
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
        is_held(!matches!(self.table.try_lock(), Err(TryLockError::WouldBlock)))?;
        is_held(self.kernel.is_free())?;
        self.pid.store(pid(), Relaxed);
        // the threads that were inside at the fork are not here
        self.changes.forget();
        Ok(())
    }

    /// Asks for `target` to be told before any page of `range` goes away, until the returned value is dropped.
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
        // a change that had begun may not have seen the entry, and is not told to it; one of this thread's own is about what
        // was there before
        if !moves::amid_change() {
            self.changes.wait();
        }
        Ok(Registration { space: self.clone(), id })
    }

    /// Tells everyone who registered a range that overlaps `range` that it is about to change; see the module for what may
    /// happen meanwhile. `None` if nobody is told of anything, as in a forked child.
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
            && self.owner.load(Relaxed) != tid()
    }

    /// Calls `call` for the registrations up to number `stamp` that overlap `range`, without the lock.
    fn tell(&self, range: &Range<u64>, stamp: u64, call: impl Fn(&dyn Invalidate)) {
        self.tell_those(range, |entry| entry.number <= stamp, call);
    }

    /// Calls `call` for those of the registrations that overlap `range` that `chosen` says, without the lock.
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

    /// Whether locking memory is permitted at all (`can_do_mlock`). Refused only if enforcement is on.
    pub fn may_pin(&self) -> Result<(), PinError> {
        let refused = self.memlock.load(Relaxed) && memlock_limit_bytes() == 0 && !may_lock_any();
        if refused { Err(PinError::NotPermitted) } else { Ok(()) }
    }

    /// Accounts `pages` as pinned (`mm->pinned_vm`). Refused only if enforcement is on.
    pub fn pin(self: &Arc<Self>, pages: u64) -> Result<Pinned, PinError> {
        let limited = self.memlock.load(Relaxed) && !may_lock_any();
        let limit_pages = if limited { memlock_limit_bytes() / page_size() } else { u64::MAX };
        let grown = self.pinned_pages.fetch_update(AcqRel, Acquire, |now| {
            now.checked_add(pages).filter(|&sum| sum <= limit_pages)
        });
        grown.map_err(|_| PinError::Limit)?;
        Ok(Pinned { space: self.clone(), pages })
    }

    /// Pages accounted as pinned now.
    pub fn pinned_pages(&self) -> u64 {
        self.pinned_pages.load(Acquire)
    }

    /// Makes RLIMIT_MEMLOCK a limit (`--memlock enforce`); by default pages are only counted, since ours cannot be pinned.
    pub fn enforce_memlock(&self, on: bool) {
        self.memlock.store(on, Relaxed);
    }

    fn lock(&self) -> Held<'_> {
        let guard = self.table.lock().unwrap_or_else(PoisonError::into_inner);
        self.owner.store(tid(), Relaxed);
        Held { guard: Some(guard), owner: &self.owner }
    }

    fn publish_hull(&self, table: &Set<Entry>) {
        let (low, high) = table.bounds().unwrap_or((u64::MAX, 0));
        self.low.store(low, Release);
        self.high.store(high, Release);
        self.count.store(table.len(), Release);
    }
}

/// The table, locked, with its owner marked.
struct Held<'a> {
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

/// A range under watch; dropping it ends the watch and waits for a call-back in progress.
#[must_use = "the watch ends when this is dropped"]
pub struct Registration {
    space: Arc<AddressSpace>,
    id: Id,
}

impl Registration {
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
                let guard = table.guard.take().expect("present until drop");
                self.space.owner.store(0, Relaxed);
                table.guard =
                    Some(self.space.idle.wait(guard).unwrap_or_else(PoisonError::into_inner));
                self.space.owner.store(tid(), Relaxed);
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

/// Pages accounted as pinned until dropped.
#[must_use = "the account is settled when this is dropped"]
pub struct Pinned {
    space: Arc<AddressSpace>,
    pages: u64,
}

impl Drop for Pinned {
    fn drop(&mut self) {
        self.space.pinned_pages.fetch_sub(self.pages, AcqRel);
    }
}

/// Bytes of a page.
pub fn page_size() -> u64 {
    static SIZE: AtomicU64 = AtomicU64::new(0);
    match SIZE.load(Relaxed) {
        0 => {
            // SAFETY: a plain query.
            let size = unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as u64;
            SIZE.store(size, Relaxed);
            size
        }
        size => size,
    }
}

fn pid() -> i32 {
    // SAFETY: always succeeds.
    unsafe { libc::getpid() }
}

fn tid() -> i32 {
    // SAFETY: always succeeds.
    unsafe { libc::syscall(libc::SYS_gettid) as i32 }
}

fn memlock_limit_bytes() -> u64 {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is ours.
    if unsafe { libc::getrlimit(libc::RLIMIT_MEMLOCK, &mut limit) } == 0 {
        limit.rlim_cur
    } else {
        u64::MAX
    }
}

/// Whether the process has CAP_IPC_LOCK (`capability.h`), which lifts the limit.
fn may_lock_any() -> bool {
    const VERSION_3: u32 = 0x2008_0522;
    const CAP_IPC_LOCK: u32 = 14;
    let mut header = [VERSION_3, 0];
    let mut data = [[0u32; 3]; 2];
    // SAFETY: the header names version 3, whose data is two triples of 32-bit words.
    let code = unsafe { libc::syscall(libc::SYS_capget, header.as_mut_ptr(), data.as_mut_ptr()) };
    code == 0 && data[0][0] & (1 << CAP_IPC_LOCK) != 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    #[derive(Default)]
    struct Seen(Mutex<Vec<Range<u64>>>);

    impl Invalidate for Seen {
        fn invalidate(&self, range: Range<u64>) {
            self.0.lock().unwrap().push(range);
        }
    }

    fn space() -> Arc<AddressSpace> {
        Arc::new(AddressSpace::new())
    }

    #[test]
    fn only_overlapping_registrations_are_told() {
        let space = space();
        let seen: Vec<Arc<Seen>> = (0..4).map(|_| Arc::new(Seen::default())).collect();
        let ranges = [0x1000..0x2000, 0x1800..0x9000, 0x4000..0x5000, 0x9000..0xA000];
        let held: Vec<_> = ranges
            .iter()
            .zip(&seen)
            .map(|(r, s)| space.register(r.clone(), s.clone()).unwrap())
            .collect();
        space.invalidate(0x2000..0x4001);
        let told: Vec<bool> = seen.iter().map(|s| s.0.lock().unwrap().len() == 1).collect();
        assert_eq!(told, [false, true, true, false]);
        drop(held);
        space.invalidate(0..u64::MAX);
        assert_eq!(seen[0].0.lock().unwrap().len(), 0);
        assert_eq!(space.registrations(), 0);
    }

    #[test]
    fn many_registrations_grow_the_table() {
        let space = space();
        let seen = Arc::new(Seen::default());
        let mut held: Vec<_> = (0..1000u64)
            .map(|i| space.register(i * 10..i * 10 + 10, seen.clone()).unwrap())
            .collect();
        space.invalidate(5000..5001);
        assert_eq!(seen.0.lock().unwrap().len(), 1);
        held.drain(..990);
        assert_eq!(space.registrations(), 10);
        space.invalidate(0..9900);
        assert_eq!(seen.0.lock().unwrap().len(), 1);
    }

    #[test]
    fn dropping_a_registration_waits_for_its_call_back() {
        struct Slow(mpsc::SyncSender<()>, Mutex<mpsc::Receiver<()>>, AtomicBool);
        impl Invalidate for Slow {
            fn invalidate(&self, _: Range<u64>) {
                self.0.send(()).unwrap();
                self.1.lock().unwrap().recv().unwrap();
                self.2.store(true, SeqCst);
            }
        }
        let (entered, on_enter) = mpsc::sync_channel(1);
        let (go, on_go) = mpsc::sync_channel(1);
        let slow = Arc::new(Slow(entered, Mutex::new(on_go), AtomicBool::new(false)));
        let space = space();
        let registration = space.register(0..10, slow.clone()).unwrap();
        let other = Arc::new(Seen::default());
        let quick = space.register(20..30, other.clone()).unwrap();
        std::thread::scope(|s| {
            s.spawn(|| space.invalidate(0..1));
            on_enter.recv().unwrap();
            let dropper = s.spawn(|| {
                drop(registration);
                assert!(slow.2.load(SeqCst), "dropped before the call-back had returned");
            });
            // other ranges are not held up by the slow call-back
            space.invalidate(25..26);
            assert_eq!(other.0.lock().unwrap().len(), 1);
            drop(quick);
            go.send(()).unwrap();
            dropper.join().unwrap();
        });
    }

    #[test]
    fn a_call_back_may_unmap_elsewhere() {
        struct Nested(Arc<AddressSpace>);
        impl Invalidate for Nested {
            fn invalidate(&self, range: Range<u64>) {
                if range.start == 0 {
                    self.0.invalidate(100..101);
                }
            }
        }
        let space = space();
        let seen = Arc::new(Seen::default());
        let nested = space.register(0..10, Arc::new(Nested(space.clone())));
        let other = space.register(100..110, seen.clone()).unwrap();
        space.invalidate(0..1);
        assert_eq!(seen.0.lock().unwrap().len(), 1);
        drop((nested, other));
    }

    /// Told of the begin and the end of a change.
    #[derive(Default)]
    struct Both(AtomicU64, AtomicU64);

    impl Invalidate for Both {
        fn invalidate(&self, _: Range<u64>) {
            self.0.fetch_add(1, SeqCst);
        }
        fn invalidated(&self, _: Range<u64>) {
            self.1.fetch_add(1, SeqCst);
        }
    }

    #[test]
    fn the_end_of_a_change_is_told_to_whom_its_begin_was() {
        let space = space();
        let both: Vec<Arc<Both>> = (0..3).map(|_| Arc::default()).collect();
        let first = space.register(0..10, both[0].clone()).unwrap();
        let elsewhere = space.register(20..30, both[1].clone()).unwrap();
        let change = space.begin(5..15).unwrap();
        assert_eq!(Change::from_raw(Change::into_raw(Some(change))), Some(change));
        assert_eq!(Change::from_raw(Change::into_raw(None)), None);
        let told = |which: usize| (both[which].0.load(SeqCst), both[which].1.load(SeqCst));
        assert_eq!((told(0), told(1)), ((1, 0), (0, 0)));
        std::thread::scope(|s| {
            let late = s.spawn(|| space.register(0..10, both[2].clone()).unwrap());
            // filed at once, so that no later change is missed; back only when this one is over
            while space.registrations() < 3 {
                std::thread::yield_now();
            }
            assert!(!late.is_finished());
            space.end(5..15, change);
            drop(late.join().unwrap());
        });
        assert_eq!((told(0), told(1), told(2)), ((1, 1), (0, 0), (0, 0)));
        drop((first, elsewhere));
    }

    #[test]
    fn the_thread_that_holds_the_lock_is_not_told() {
        let space = space();
        let seen = Arc::new(Seen::default());
        let registration = space.register(0..10, seen.clone()).unwrap();
        let held = space.lock();
        space.invalidate(0..10);
        drop(held);
        assert!(seen.0.lock().unwrap().is_empty());
        space.invalidate(0..10);
        assert_eq!(seen.0.lock().unwrap().len(), 1);
        drop(registration);
    }

    #[test]
    fn registering_and_unmapping_at_once() {
        let space = space();
        let seen = Arc::new(Seen::default());
        std::thread::scope(|s| {
            for t in 0..2u64 {
                let (space, seen) = (&space, &seen);
                s.spawn(move || {
                    for i in 0..2000 {
                        let at = (i % 50) * 16 + t;
                        drop(space.register(at..at + 8, seen.clone()).unwrap());
                    }
                });
                s.spawn(move || (0..4000u64).for_each(|i| space.invalidate(i % 800..i % 800 + 20)));
            }
        });
        assert_eq!(space.registrations(), 0);
    }

    #[test]
    fn pinned_pages_are_counted_and_limited_only_on_request() {
        let space = space();
        let one = space.pin(1 << 40).unwrap();
        assert_eq!(space.pinned_pages(), 1 << 40);
        drop(one);
        assert_eq!(space.pinned_pages(), 0);
        space.enforce_memlock(true);
        let result = space.pin(1 << 40);
        let unlimited = may_lock_any() || memlock_limit_bytes() / page_size() >= 1 << 40;
        assert_eq!(result.is_ok(), unlimited);
    }

    #[test]
    fn one_space_a_process() {
        assert!(Arc::ptr_eq(&AddressSpace::process(), &AddressSpace::process()));
        invalidate(0..1);
    }

    #[test]
    fn a_forked_child_does_not_wait_for_its_parents_lock() {
        let space = space();
        let registration = space.register(0..10, Arc::new(Seen::default())).unwrap();
        let held = space.lock();
        // SAFETY: the child only makes system calls and touches atomics, then leaves by _exit.
        let status = unsafe {
            let child = libc::fork();
            assert!(child >= 0);
            if child == 0 {
                libc::alarm(10);
                space.invalidate(0..10);
                libc::_exit(42);
            }
            let mut status = 0;
            assert_eq!(libc::waitpid(child, &mut status, 0), child);
            status
        };
        assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 42, "{status:#x}");
        drop(held);
        drop(registration);
    }

    /// What a child gets that is made while another thread holds the table, or does not.
    fn adopted_while(held: bool) -> i32 {
        let space = space();
        let registration = space.register(0..10, Arc::new(Seen::default())).unwrap();
        let guard = held.then(|| space.lock());
        // SAFETY: the child only makes system calls, touches atomics and locks of its own, then leaves by _exit.
        let status = unsafe {
            let child = libc::fork();
            assert!(child >= 0);
            if child == 0 {
                libc::alarm(10);
                let adopted = space.adopt_own().is_ok();
                drop(registration);
                libc::_exit(i32::from(adopted));
            }
            let mut status = 0;
            assert_eq!(libc::waitpid(child, &mut status, 0), child);
            status
        };
        drop(guard);
        drop(registration);
        assert!(libc::WIFEXITED(status), "{status:#x}");
        libc::WEXITSTATUS(status)
    }

    #[test]
    fn a_daemon_goes_on_with_registrations_that_nobody_held() {
        assert_eq!(adopted_while(false), 1);
        assert_eq!(adopted_while(true), 0);
    }
}
