//! Passes: who of several processes is inside something that one of them owns, such as memory that
//! it registered, so that the owner can wait for exactly those before it takes the thing away.
//!
//! A pass is one word. Who wants in writes its [`Ticket`] there, which says what it wants and who
//! it is, and then looks at the gates: words of the owner's that have to have the values under
//! which the visitor found the thing open. The owner changes a gate and then looks at the passes.
//! Each is sequentially consistent, so either the visitor sees the gate changed and leaves again,
//! or the owner sees the visitor and waits. The model tests (`--cfg loom`) check that nobody is
//! inside once the owner has waited.
//!
//! Nobody is trusted: the owner waits for a visitor that lives, and five seconds at most; what
//! stands in a pass after that is barred and waited for no more.

use crate::Shm;
use crate::gone::is_gone;
use crate::sabotage::{self, Point};
#[cfg(loom)]
use loom::sync::atomic as loom_atomic;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Visitors at the same time, of all processes.
const PASSES: usize = 128;
/// Each pass has a cache line.
const LINE: usize = 64;
/// How long a visitor that lives is waited for. One that runs is inside for less than a
/// millisecond.
const LIMIT: Duration = Duration::from_secs(5);
/// How long the owner sleeps before it looks whether a visitor still lives.
const NAP: Duration = Duration::from_millis(5);

/// A pass that nobody gets any more.
const BARRED: u64 = u64::MAX;

/// A 64-bit word that several processes share. All operations are sequentially consistent.
trait Word {
    /// Sets it, if it is 0.
    fn take(&self, value: u64) -> bool;
    /// Sets it to 0 again, unless somebody else has taken it meanwhile.
    fn give_back(&self, value: u64);
}

macro_rules! word {
    ($atomic:ty, $order:path) => {
        impl Word for $atomic {
            #[inline]
            fn take(&self, value: u64) -> bool {
                self.compare_exchange(0, value, $order, $order).is_ok()
            }
            #[inline]
            fn give_back(&self, value: u64) {
                let _ = self.compare_exchange(value, 0, $order, $order);
            }
        }
    };
}

word!(AtomicU64, Ordering::SeqCst);
#[cfg(loom)]
word!(loom_atomic::AtomicU64, loom_atomic::Ordering::SeqCst);

/// What a visitor wants and who it is: two numbers of things, and a process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ticket(u64);

impl Ticket {
    const BUSY: u64 = 1 << 63;

    /// Wants the things number `first` and `second`, of which 17 and 14 bits count, as process
    /// `pid` (22 bits, which Linux has at most).
    pub fn new(first: u32, second: u32, pid: u32) -> Ticket {
        let (first, second) = (u64::from(first & 0x1_ffff), u64::from(second & 0x3fff));
        Ticket(Ticket::BUSY | u64::from(pid & 0x3f_ffff) << 31 | second << 17 | first)
    }

    fn of_word(word: u64) -> Option<Ticket> {
        (word & Ticket::BUSY != 0 && word != BARRED).then_some(Ticket(word))
    }

    /// The first thing it wants.
    pub fn first(self) -> u32 {
        self.0 as u32 & 0x1_ffff
    }

    /// The second.
    pub fn second(self) -> u32 {
        (self.0 >> 17) as u32 & 0x3fff
    }

    /// The process that it is of.
    pub fn pid(self) -> u32 {
        (self.0 >> 31) as u32 & 0x3f_ffff
    }
}

/// Goes in by a free pass, unless a gate has changed.
#[inline]
fn enter(pass: &impl Word, ticket: u64, unchanged: impl FnOnce() -> bool) -> Entry {
    if !pass.take(ticket) {
        return Entry::Busy;
    }
    if unchanged() {
        return Entry::Inside;
    }
    pass.give_back(ticket);
    Entry::Shut
}

/// What an attempt to go in came to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Entry {
    Inside,
    /// Another visitor has the pass.
    Busy,
    /// A gate has changed.
    Shut,
}

/// The passes at a place of a region.
///
/// Byte 0 counts the owners that wait, byte 8 the passes that were ever in use; then come the
/// passes.
#[derive(Debug)]
pub struct Passes {
    at: usize,
    /// The pass that was free last.
    hint: AtomicUsize,
}

impl Passes {
    /// Bytes of the region that they take.
    pub const BYTES: usize = LINE * (PASSES + 1);

    /// Those at byte `at` of a region, which are zero when it is made.
    pub const fn new(at: usize) -> Passes {
        Passes { at, hint: AtomicUsize::new(0) }
    }

    fn waiting<'a>(&self, shm: &'a Shm) -> &'a AtomicU64 {
        shm.word(self.at)
    }

    fn used<'a>(&self, shm: &'a Shm) -> &'a AtomicU64 {
        shm.word(self.at + 8)
    }

    fn pass_at(&self, index: usize) -> usize {
        self.at + LINE * (1 + index)
    }

    /// Goes in. `unchanged` looks, sequentially consistent, whether all gates are as the visitor
    /// found them. `None` when one is not, or there is no free pass.
    pub fn enter<'a>(
        &'a self,
        shm: &'a Shm,
        ticket: Ticket,
        mut unchanged: impl FnMut() -> bool,
    ) -> Option<Pass<'a>> {
        let hint = self.hint.load(Ordering::Relaxed) % PASSES;
        for index in [hint].into_iter().chain(0..PASSES) {
            // Before the pass is written: an owner that looks afterwards looks so far.
            if self.used(shm).load(Ordering::SeqCst) <= index as u64 {
                self.used(shm).fetch_max(index as u64 + 1, Ordering::SeqCst);
            }
            sabotage::reached(Point::BeforePass);
            let unchanged = || {
                sabotage::reached(Point::InPass);
                unchanged()
            };
            match enter(shm.word(self.pass_at(index)), ticket.0, unchanged) {
                Entry::Inside => {
                    self.hint.store(index, Ordering::Relaxed);
                    return Some(Pass { passes: self, shm, index, ticket });
                }
                Entry::Busy => {}
                Entry::Shut => return None,
            }
        }
        None
    }

    fn leave(&self, shm: &Shm, index: usize, ticket: Ticket) {
        let at = self.pass_at(index);
        shm.word(at).give_back(ticket.0);
        sabotage::reached(Point::AfterPass);
        if self.waiting(shm).load(Ordering::SeqCst) != 0 {
            shm.wake(at);
        }
    }

    /// Waits until nobody is inside any more whose ticket `concerns`; to be called after the gate
    /// was changed. Allocates nothing. A visitor whose process is gone is not waited for, those
    /// that live for five seconds in all; then their passes are barred. Says whether all have left.
    pub fn wait(&self, shm: &Shm, concerns: impl Fn(Ticket) -> bool) -> bool {
        let used = (self.used(shm).load(Ordering::SeqCst) as usize).min(PASSES);
        let (mut all, mut end) = (true, None);
        for at in (0..used).map(|index| self.pass_at(index)) {
            let word = shm.word(at).load(Ordering::SeqCst);
            if Ticket::of_word(word).is_some_and(&concerns) {
                let end = *end.get_or_insert_with(|| Instant::now() + LIMIT);
                all &= self.wait_for(shm, at, word, end);
            }
        }
        all
    }

    #[cold]
    fn wait_for(&self, shm: &Shm, at: usize, word: u64, end: Instant) -> bool {
        self.waiting(shm).fetch_add(1, Ordering::SeqCst);
        let mut left = true;
        // Whatever else stands there, this visitor has left.
        while shm.word(at).load(Ordering::SeqCst) == word {
            let gone = Ticket::of_word(word).is_none_or(|ticket| is_gone(ticket.pid()));
            if gone || Instant::now() >= end {
                left = gone;
                let instead = if gone { 0 } else { BARRED };
                let order = Ordering::SeqCst;
                let _ = shm.word(at).compare_exchange(word, instead, order, order);
                break;
            }
            shm.wait(at, word, NAP);
        }
        self.waiting(shm).fetch_sub(1, Ordering::SeqCst);
        left
    }
}

/// A visit. Dropping it ends it.
pub struct Pass<'a> {
    passes: &'a Passes,
    shm: &'a Shm,
    index: usize,
    ticket: Ticket,
}

impl Pass<'_> {
    /// Whether the owner still waits for this visit: one that stood still for long was given up.
    #[inline]
    pub fn is_held(&self) -> bool {
        self.shm.word(self.passes.pass_at(self.index)).load(Ordering::SeqCst) == self.ticket.0
    }
}

impl Drop for Pass<'_> {
    #[inline]
    fn drop(&mut self) {
        self.passes.leave(self.shm, self.index, self.ticket);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::AtomicBool;
    use std::sync::atomic::Ordering::SeqCst;

    fn region() -> (Arc<Shm>, Arc<Passes>) {
        let (shm, _) = Shm::create("peerdma-test", 64 + Passes::BYTES).unwrap();
        (Arc::new(shm), Arc::new(Passes::new(64)))
    }

    #[test]
    fn a_ticket_names_all_three() {
        for (first, second, pid) in [(0x1_ffff, 0, 1), (0, 0x3fff, 1), (0x1_0000, 6, 0x3f_fffe)] {
            let ticket = Ticket::new(first, second, pid);
            assert_eq!((ticket.first(), ticket.second(), ticket.pid()), (first, second, pid));
        }
        let ticket = Ticket::new(0x1_ffff, 0x3fff, 0x3f_ffff);
        assert_eq!(Ticket::of_word(ticket.0), Some(ticket));
        assert_eq!((Ticket::of_word(0), Ticket::of_word(BARRED)), (None, None));
    }

    #[test]
    fn the_owner_waits_for_those_whom_it_concerns() {
        let (shm, passes) = region();
        let left = AtomicBool::new(false);
        let own = std::process::id();
        let mine = passes.enter(&shm, Ticket::new(5, 6, own), || true).unwrap();
        let other = passes.enter(&shm, Ticket::new(7, 6, own), || true).unwrap();
        assert!(passes.enter(&shm, Ticket::new(5, 6, own), || false).is_none());
        assert!(passes.wait(&shm, |ticket| ticket.first() == 8));
        std::thread::scope(|scope| {
            let owner = scope.spawn(|| {
                assert!(passes.wait(&shm, |ticket| ticket.first() == 5));
                assert!(left.load(SeqCst), "somebody is inside");
            });
            while passes.waiting(&shm).load(SeqCst) == 0 {
                std::thread::yield_now();
            }
            left.store(true, SeqCst);
            drop(mine);
            owner.join().unwrap();
        });
        drop(other);
        assert!(passes.wait(&shm, |_| true));
    }

    #[test]
    fn more_visitors_than_passes_are_turned_away() {
        let (shm, passes) = region();
        let ticket = Ticket::new(1, 1, std::process::id());
        let all: Vec<_> = (0..PASSES).map(|_| passes.enter(&shm, ticket, || true)).collect();
        assert!(all.iter().all(Option::is_some));
        assert!(passes.enter(&shm, ticket, || true).is_none());
        drop(all);
        assert!(passes.enter(&shm, ticket, || true).is_some());
    }

    #[test]
    fn nobody_waits_for_the_dead_whether_reaped_or_not() {
        let (shm, passes) = region();
        // SAFETY: the child only ends.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: ends the child at once.
            unsafe { libc::_exit(0) };
        }
        std::mem::forget(passes.enter(&shm, Ticket::new(1, 1, child as u32), || true));
        assert!(passes.wait(&shm, |_| true), "a zombie");
        // SAFETY: our own child, waited for here only.
        unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) };
        std::mem::forget(passes.enter(&shm, Ticket::new(1, 1, child as u32), || true));
        assert!(passes.wait(&shm, |_| true), "a process that is no more");
        assert!(passes.enter(&shm, Ticket::new(1, 1, 1), || true).is_some(), "its pass is free");
    }

    #[test]
    fn who_stays_costs_the_limit_once() {
        let (shm, passes) = region();
        std::mem::forget(passes.enter(&shm, Ticket::new(1, 1, 1), || true));
        let begun = Instant::now();
        assert!(!passes.wait(&shm, |_| true));
        assert!(begun.elapsed() >= LIMIT);
        assert!(passes.wait(&shm, |_| true), "it is barred");
        let after = passes.enter(&shm, Ticket::new(1, 1, 1), || true).unwrap();
        assert_ne!(after.index, 0);
    }
}

#[cfg(all(test, loom))]
mod model {
    use super::*;
    use loom::sync::Arc;
    use loom::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
    use loom::thread;

    /// loom takes a sequentially consistent load for an acquiring one, which may see an old value;
    /// a read-modify-write does not.
    fn load(word: &AtomicU64) -> u64 {
        word.fetch_add(0, SeqCst)
    }

    struct Shared {
        gate: AtomicU64,
        passes: [AtomicU64; 2],
        gone: AtomicBool,
    }

    fn model(body: impl Fn() + Sync + Send + 'static) {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(3);
        builder.check(body);
    }

    fn visits(shared: &Arc<Shared>, index: usize) -> thread::JoinHandle<()> {
        let shared = shared.clone();
        thread::spawn(move || {
            let found = load(&shared.gate);
            if found & 1 == 0 {
                return;
            }
            let pass = &shared.passes[index];
            if enter(pass, 5, || load(&shared.gate) == found) == Entry::Inside {
                assert!(!shared.gone.load(SeqCst), "inside after the owner has waited");
                pass.give_back(5);
            }
        })
    }

    #[test]
    fn passes_nobody_is_inside_once_the_owner_has_waited() {
        model(|| {
            let passes = [AtomicU64::new(0), AtomicU64::new(0)];
            let gone = AtomicBool::new(false);
            let shared = Arc::new(Shared { gate: AtomicU64::new(1), passes, gone });
            let visitors = [visits(&shared, 0), visits(&shared, 1)];
            shared.gate.swap(2, SeqCst);
            for pass in &shared.passes {
                while load(pass) != 0 {
                    thread::yield_now();
                }
            }
            shared.gone.store(true, SeqCst);
            visitors.into_iter().for_each(|visitor| visitor.join().unwrap());
        });
    }
}
