//! The kernel as a notifier: it tells of the unmappings that no interposed call sees.
//!
//! What the C library unmaps inside itself, a bare system call, a library linked without the C
//! library: of ranges that [`AddressSpace::register_pinned`] was given, userfaultfd(2) tells when
//! their mappings go, move or are emptied. They are registered for write protection with nothing
//! protected, which costs the program no fault.
//!
//! # What is promised
//! The thread that unmaps waits in the kernel until its event is *read*, and goes on before it is
//! answered. So the watcher first brings the registrations into doubt ([`Invalidate::doubt`]),
//! which keeps everyone out of them, then reads, revokes what is gone, and settles the others.
//! Hence **when the call that unmapped has returned, nothing touches the range any more**: whoever
//! uses the address after that call is safe. What is not promised: a mapping that *another* thread
//! makes there while the call is still in the kernel may be touched in that moment, since the
//! kernel tells after the pages went. Where the call is interposed there is no such moment; the
//! interposed calls tell before, and leave the kernel nothing to tell.
//!
//! # Who waits for whom
//! The thread that unmaps may hold any lock of the program's, of `malloc` for one. So the watcher
//! allocates nothing and waits only for accesses in progress and for the table, whose holder waits
//! for no other thread. It holds `round` from before it reads until it has told; who registers
//! waits for that, and first for what the kernel has begun to tell, so that no late word about an
//! earlier mapping reaches a new registration. Lock order: `started`, `round`, the table.
//!
//! A forked child has its parent's descriptor and none of its watches; it never uses it.

#[cfg(all(test, not(loom)))]
mod tests;

use super::identity::pid;
use super::invalidate::Invalidate;
use super::table::Entry;
use super::{AddressSpace, NoMemory, Registration};
use crate::interval::Set;
use crate::page_size;
use crate::uffd::{Event, Message, Uffd};
use engine_thread::lock;
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering::*};
use std::sync::{Arc, Mutex, TryLockError};
use std::time::{Duration, Instant};

const STACK_BYTES: usize = 128 << 10;
/// Ranges of a process that the kernel watches. Each may cut a mapping in three, of which a process
/// may have 65530 (`vm.max_map_count`); the program needs some too.
const MOST: usize = 16 << 10;
/// How long a registration waits for the kernel to tell what it has begun to. It takes
/// microseconds.
const PATIENCE: Duration = Duration::from_secs(1);
const EVERYWHERE: Range<u64> = 0..u64::MAX;

/// Whether this kernel, and who confines this process, let it watch.
///
/// # Errors
/// userfaultfd(2)'s: EPERM under a seccomp filter such as Docker's default one, ENOSYS without the
/// system call.
pub fn can_watch() -> io::Result<()> {
    Uffd::for_events().map(drop)
}

/// What the kernel tells of one address space.
pub(super) struct Kernel {
    /// Null if nobody asked yet or it is refused; never freed, as the unmapping threads use it
    /// without a lock.
    watch: AtomicPtr<Watch>,
    /// Whether it was tried to start.
    started: Mutex<bool>,
    /// Ranges watched now; changed under the table's lock.
    ranges: AtomicUsize,
}

struct Watch {
    /// The process whose mappings it sees.
    pid: i32,
    uffd: Uffd,
    /// The descriptor was taken from us: it sees nothing any more.
    is_lost: AtomicBool,
    /// Held by the watcher from before it reads until it has told.
    round: Mutex<()>,
}

impl Kernel {
    pub(super) fn new() -> Kernel {
        Kernel {
            watch: AtomicPtr::new(std::ptr::null_mut()),
            started: Mutex::new(false),
            ranges: AtomicUsize::new(0),
        }
    }

    /// Whether nobody is about to start it.
    pub(super) fn is_free(&self) -> bool {
        !matches!(self.started.try_lock(), Err(TryLockError::WouldBlock))
    }

    /// The watch, if it is this process's and sees anything.
    fn get(&self) -> Option<&Watch> {
        // SAFETY: null, or from `Arc::into_raw` in `start`, which is never undone.
        let watch = unsafe { self.watch.load(Acquire).as_ref() }?;
        (watch.pid == pid() && !watch.is_lost.load(SeqCst)).then_some(watch)
    }

    /// Ends the watch of the parts of `range` that no entry of the table has under watch.
    pub(super) fn leave(&self, table: &Set<Entry>, range: &Range<u64>) {
        let Some(watch) = self.get() else { return };
        let (mut from, mut after) = (range.start, None);
        while from < range.end
            && let Some((start, id)) = table.next_overlap(from, range.end, after)
        {
            after = Some((start, id));
            let Some(other) = table.get(id).and_then(|entry| entry.watched.as_ref()) else {
                continue;
            };
            if from < other.start {
                watch.uffd.unregister(&(from..other.start));
            }
            from = from.max(other.end);
        }
        if from < range.end {
            watch.uffd.unregister(&(from..range.end));
        }
    }

    /// Takes the watch off an entry and gives its range, for [`Kernel::leave`].
    pub(super) fn take(&self, entry: &mut Entry) -> Option<Range<u64>> {
        let range = entry.watched.take()?;
        self.ranges.fetch_sub(1, Relaxed);
        Some(range)
    }
}

impl AddressSpace {
    /// As [`AddressSpace::register`], for memory that the target holds as pinned: the registration
    /// ends with the mapping, however that ends. `range` is of whole pages. Where the kernel does
    /// not watch it, only the interposed calls tell ([`Registration::is_watched`]).
    ///
    /// # Errors
    /// As of [`AddressSpace::register`].
    pub fn register_pinned(
        self: &Arc<Self>,
        range: Range<u64>,
        target: Arc<dyn Invalidate>,
    ) -> Result<Registration, NoMemory> {
        self.start();
        if let Some(watch) = self.kernel.get() {
            watch.await_told();
        }
        let mut registration = self.enter_table(range.clone(), target, true)?;
        let mut watched = self.watch(&registration, &range);
        let busy = watched.as_ref().is_err_and(|error| error.raw_os_error() == Some(libc::EBUSY));
        if busy && let Some(migration) = self.migration.get() {
            // Pages that are held do not migrate, so that watch is free to go.
            migration.release(&range);
            watched = self.watch(&registration, &range);
        }
        registration.base_pages = watched.unwrap_or(false);
        Ok(registration)
    }

    fn start(self: &Arc<Self>) {
        let mut started = lock(&self.kernel.started);
        if *started || self.pid.load(Relaxed) != pid() {
            return;
        }
        *started = true;
        let Ok(uffd) = Uffd::for_events() else { return };
        let watch = Arc::new(Watch {
            pid: pid(),
            uffd,
            is_lost: AtomicBool::new(false),
            round: Mutex::new(()),
        });
        let (of_thread, space) = (watch.clone(), self.clone());
        let body = move || of_thread.listen(&space);
        if engine_thread::spawn(c"peerdma-unmaps", STACK_BYTES, body).is_ok() {
            self.kernel.watch.store(Arc::into_raw(watch).cast_mut(), Release);
        }
    }

    /// Asks the kernel to watch a registration's range; `true` if it told that all of the range's
    /// mappings have base pages.
    fn watch(&self, registration: &Registration, range: &Range<u64>) -> io::Result<bool> {
        let Some(watch) = self.kernel.get() else { return Ok(false) };
        // every notice from here on finds this registration in doubt too
        drop(lock(&watch.round));
        let mut table = self.lock();
        if self.kernel.ranges.load(Relaxed) >= MOST || watch.is_lost.load(SeqCst) {
            return Ok(false);
        }
        let base_pages = watch.uffd.watch(range)?;
        if let Some(entry) = table.get_mut(registration.id) {
            entry.watched = Some(range.clone());
            self.kernel.ranges.fetch_add(1, Relaxed);
        }
        Ok(base_pages)
    }

    /// In a child that carries its parent's registrations on: the kernel forgot them at the fork.
    pub(super) fn watch_anew(self: &Arc<Self>) {
        let before = self.kernel.watch.swap(std::ptr::null_mut(), AcqRel);
        self.tell_those(&EVERYWHERE, |entry| entry.pinned.is_some(), |target| target.settle());
        if before.is_null() {
            return;
        }
        *lock(&self.kernel.started) = false;
        self.start();
        let watch = self.kernel.get();
        let mut table = self.lock();
        let mut after = None;
        while let Some((start, id)) = table.next_overlap(0, u64::MAX, after) {
            after = Some((start, id));
            let Some(entry) = table.get_mut(id) else { continue };
            let Some(range) = &entry.watched else { continue };
            if watch.is_none_or(|watch| watch.uffd.watch(range).is_err()) {
                self.kernel.take(entry);
            }
        }
        drop(table);
        self.tell_the_unwatched();
    }

    /// Tells the registrations that were watched and are not that nobody sees what becomes of them.
    fn tell_the_unwatched(&self) {
        let meant = |entry: &Entry| entry.pinned.is_some() && entry.watched.is_none();
        self.tell_those(&EVERYWHERE, meant, |target| target.unwatched());
    }

    /// The descriptor of the watch was taken from us, and nobody knows what it would have told.
    fn lost(&self, watch: &Watch) {
        watch.is_lost.store(true, SeqCst);
        let mut table = self.lock();
        let mut after = None;
        while let Some((start, id)) = table.next_overlap(0, u64::MAX, after) {
            after = Some((start, id));
            table.get_mut(id).and_then(|entry| self.kernel.take(entry));
        }
        drop(table);
        self.tell_the_unwatched();
    }

    /// Ends the watch of registrations up to number `stamp` that have been revoked by a change of
    /// `range`; what is `gone` of it already needs no asking, and may be another's by now.
    pub(super) fn unwatch(&self, range: &Range<u64>, stamp: u64, gone: bool) {
        if self.kernel.get().is_none() {
            return;
        }
        let mut table = self.lock();
        let mut after = None;
        while let Some((start, id)) = table.next_overlap(range.start, range.end, after) {
            after = Some((start, id));
            let Some(entry) = table.get_mut(id).filter(|entry| entry.number <= stamp) else {
                continue;
            };
            let Some(watched) = self.kernel.take(entry) else { continue };
            if gone {
                self.kernel.leave(&table, &(watched.start..range.start.max(watched.start)));
                self.kernel.leave(&table, &(range.end.min(watched.end)..watched.end));
            } else {
                self.kernel.leave(&table, &watched);
            }
        }
    }

    /// What the kernel told is so: revokes registrations up to number `stamp`.
    fn told(&self, watch: &Watch, event: Event, stamp: u64) {
        let (range, gone) = match &event {
            Event::Moved { from, len, .. } => (*from..from.saturating_add(*len), true),
            Event::Unmapped(range) => (range.clone(), true),
            Event::Discarded(range) => (range.clone(), false),
            Event::Fault { addr, .. } => {
                // nothing was protected by us
                let page = page_size();
                let start = addr & !(page - 1);
                let _ = watch.uffd.write_protect(&(start..start + page), false);
                return;
            }
        };
        let meant = |entry: &Entry| entry.watched.is_some() && entry.number <= stamp;
        self.tell_those(&range, meant, |target| target.invalidate(range.clone()));
        self.unwatch(&range, stamp, gone);
        if let Event::Moved { to, len, .. } = event {
            // the watch moved along
            self.kernel.leave(&self.lock(), &(to..to.saturating_add(len)));
        }
    }
}

impl Watch {
    /// Returns once the kernel has told what it has begun to: it has given notice of whatever a
    /// mapping that is here now replaced.
    fn await_told(&self) {
        let until = Instant::now() + PATIENCE;
        while self.uffd.is_changing() && Instant::now() < until {
            std::thread::yield_now();
        }
    }

    /// The watcher's life.
    fn listen(&self, space: &AddressSpace) {
        let mut room = [Message::default(); 16];
        let mut is_there = true;
        while is_there {
            is_there = self.uffd.wait();
            let _round = lock(&self.round);
            // those too that are about to be watched: what goes of them may be in this round
            // already
            space.tell_those(&EVERYWHERE, |entry| entry.pinned.is_some(), |t| t.doubt());
            let stamp = space.made.load(SeqCst);
            // whoever unmapped goes on from here
            match self.uffd.read(&mut room).filter(|_| is_there) {
                Some(read) => {
                    let events = read.iter().filter_map(Message::event);
                    events.for_each(|event| space.told(self, event, stamp));
                }
                None => {
                    is_there = false;
                    space.lost(self);
                }
            }
            space.tell_those(&EVERYWHERE, |entry| entry.pinned.is_some(), |t| t.settle());
        }
    }
}
