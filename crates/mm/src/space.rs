//! The address space of this process: who wants to know before pages go away, and how many are pinned.
//!
//! The shim calls [`invalidate`] from interposed `munmap`, `mremap`, `mmap(MAP_FIXED)` and `madvise` *before* the kernel
//! sees the call; everyone who registered an overlapping range is told, and when `invalidate` returns nobody uses
//! the range (the contract of `mmu_interval_notifier`, `include/linux/mmu_notifier.h`).
//!
//! # Locking
//! An interposed `munmap` may come from `malloc`, which may hold its own locks, and from anywhere in this process. Hence:
//! - Under the table's lock nothing allocates, frees or calls out. Room is made before the lock is taken, what was removed is
//!   dropped after it is released. So a thread that holds the lock never waits for `malloc`.
//! - Call-backs run without the lock, on an entry marked busy; [`Registration`]'s drop waits until its entry is idle.
//!   A call-back must not allocate, free, or drop a registration, and waits only for threads that do not allocate either.
//! - A signal handler that unmaps while its own thread holds the lock is not told (it would wait for itself), and a forked
//!   child is not told about its parent's registrations. The guarded copies still protect both.

use crate::interval::{Id, Set};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU64, AtomicUsize, Ordering::*};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// Told before pages of a registered range are unmapped.
pub trait Invalidate: Send + Sync {
    /// Stops using the registration; returns once no access is in progress. Must not allocate or free memory, and
    /// must not drop a [`Registration`]: `malloc` may be the caller.
    fn invalidate(&self, range: Range<u64>);
}

struct Entry {
    target: Arc<dyn Invalidate>,
    /// Call-backs in progress.
    busy: u32,
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

static CURRENT: AtomicPtr<AddressSpace> = AtomicPtr::new(std::ptr::null_mut());

/// Tells the notifiers of this process that `range` is about to be unmapped; for the interposed calls. Costs two loads
/// when nothing is registered. Never allocates.
pub fn invalidate(range: Range<u64>) {
    let current = CURRENT.load(Acquire);
    if !current.is_null() {
        // SAFETY: `CURRENT` only ever holds pointers that were leaked by `process`.
        unsafe { &*current }.invalidate(range);
    }
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
    pub fn adopt() {
        let current = CURRENT.load(Acquire);
        if !current.is_null() {
            // SAFETY: `CURRENT` only ever holds pointers that were leaked by `process`.
            unsafe { &*current }.pid.store(pid(), Relaxed);
        }
    }

    /// Asks for `target` to be told before any page of `range` goes away, until the returned value is dropped.
    pub fn register(
        self: &Arc<Self>,
        range: Range<u64>,
        target: Arc<dyn Invalidate>,
    ) -> Registration {
        let mut spare: Set<Entry> = Set::new();
        let id = loop {
            let mut table = self.lock();
            if !table.has_room() && spare.capacity() > table.capacity() {
                table.adopt(&mut spare);
            }
            if table.has_room() {
                let id = table.insert(range.start, range.end, Entry { target, busy: 0 });
                self.publish_hull(&table);
                break id;
            }
            let wanted = (table.capacity() * 2).max(64);
            drop(table);
            spare = Set::with_capacity(wanted);
        };
        Registration { space: self.clone(), id }
    }

    /// Tells everyone who registered a range that overlaps `range`; see the module for what may happen meanwhile.
    pub fn invalidate(&self, range: Range<u64>) {
        if self.count.load(Acquire) == 0
            || range.end <= self.low.load(Acquire)
            || range.start >= self.high.load(Acquire)
            || self.pid.load(Relaxed) != pid()
            || self.owner.load(Relaxed) == tid()
        {
            return;
        }
        let mut after = None;
        let mut table = self.lock();
        while let Some((start, id)) = table.next_overlap(range.start, range.end, after) {
            after = Some((start, id));
            let Some(entry) = table.get_mut(id) else { break };
            entry.busy += 1;
            let target = entry.target.clone();
            drop(table);
            target.invalidate(range.clone());
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

impl Drop for Registration {
    fn drop(&mut self) {
        let entry = {
            let mut table = self.space.lock();
            while table.get_mut(self.id).is_some_and(|e| e.busy > 0) {
                let guard = table.guard.take().expect("present until drop");
                self.space.owner.store(0, Relaxed);
                table.guard =
                    Some(self.space.idle.wait(guard).unwrap_or_else(PoisonError::into_inner));
                self.space.owner.store(tid(), Relaxed);
            }
            let entry = table.remove(self.id);
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
        let held: Vec<_> =
            ranges.iter().zip(&seen).map(|(r, s)| space.register(r.clone(), s.clone())).collect();
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
        let mut held: Vec<_> =
            (0..1000u64).map(|i| space.register(i * 10..i * 10 + 10, seen.clone())).collect();
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
        let registration = space.register(0..10, slow.clone());
        std::thread::scope(|s| {
            s.spawn(|| space.invalidate(0..1));
            on_enter.recv().unwrap();
            let dropper = s.spawn(|| {
                drop(registration);
                assert!(slow.2.load(SeqCst), "dropped before the call-back had returned");
            });
            // other ranges are not held up by the slow call-back
            let other = Arc::new(Seen::default());
            let quick = space.register(20..30, other.clone());
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
        let other = space.register(100..110, seen.clone());
        space.invalidate(0..1);
        assert_eq!(seen.0.lock().unwrap().len(), 1);
        drop((nested, other));
    }

    #[test]
    fn the_thread_that_holds_the_lock_is_not_told() {
        let space = space();
        let seen = Arc::new(Seen::default());
        let registration = space.register(0..10, seen.clone());
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
                        drop(space.register(at..at + 8, seen.clone()));
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
        let registration = space.register(0..10, Arc::new(Seen::default()));
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
}
