//! What the progress thread and the rest of a device tell each other: to wake, to stand still, to
//! end, and who polls or waits.

mod stand_in;

pub(crate) use stand_in::StandIn;

use descriptors::Kept;
use engine_thread::{lock, wait, wait_timeout};
use rustix::fd::AsFd;
use rustix::thread::sched_getcpu;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, fence};
use std::sync::{Condvar, Mutex};
use std::time::Instant;

/// What the progress thread and its device share.
pub(crate) struct Thread {
    /// Written to wake the thread.
    kick: Kept,
    /// When the program last made progress, nanoseconds after the device's epoch; in the future
    /// while it is at it.
    polled_ns: AtomicU64,
    /// Turns in which it read no clock.
    brief_turns: AtomicU32,
    /// On which processor that was.
    polled_on: AtomicUsize,
    stop: AtomicBool,
    /// There is no thread any more.
    ended: AtomicBool,
    /// The thread stood when the latest pause was over.
    stood: AtomicBool,
    /// Whether the thread shall stand still (around a fork), and whether it does.
    pause: Mutex<Pause>,
    changed: Condvar,
    /// Until when the thread sleeps, nanoseconds after the device's epoch; an earlier deadline must
    /// kick it.
    wakes_at_ns: AtomicU64,
    /// Who waits for events, and may take its place.
    pub(crate) stand_in: StandIn,
}

#[derive(Default)]
struct Pause {
    wanted: bool,
    standing: bool,
    /// What the thread does once was done.
    begun: bool,
}

impl Thread {
    pub(crate) fn new() -> rustix::io::Result<Thread> {
        use rustix::event::{EventfdFlags, eventfd};
        Ok(Thread {
            kick: Kept::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?),
            polled_ns: AtomicU64::new(0),
            brief_turns: AtomicU32::new(0),
            polled_on: AtomicUsize::new(usize::MAX),
            stop: AtomicBool::new(false),
            ended: AtomicBool::new(false),
            stood: AtomicBool::new(false),
            pause: Mutex::default(),
            changed: Condvar::new(),
            wakes_at_ns: AtomicU64::new(0),
            stand_in: StandIn::new()?,
        })
    }

    /// Notes that the program's own thread is about to make progress.
    pub(crate) fn program_polls(&self) {
        self.polled_ns.store(u64::MAX, Relaxed);
        self.polled_on.store(sched_getcpu(), Relaxed);
    }

    /// Notes that it did, at `now_ns`.
    pub(crate) fn program_polled(&self, now_ns: u64) {
        self.polled_ns.store(now_ns, Relaxed);
    }

    /// Notes that it did in a turn that read no clock. One thread at a time is in such a turn.
    pub(crate) fn program_polled_briefly(&self) {
        self.brief_turns.store(self.brief_turns().wrapping_add(1), Relaxed);
    }

    /// How often it did: another number each time.
    pub(crate) fn brief_turns(&self) -> u32 {
        self.brief_turns.load(Relaxed)
    }

    /// Whether it is about to, and has not said yet that it did.
    pub(crate) fn program_is_at_it(&self) -> bool {
        self.polled_ns.load(Relaxed) == u64::MAX
    }

    pub(crate) fn kick(&self) {
        // Full counter means a wake is pending already.
        let _ = rustix::io::write(&self.kick, &1u64.to_ne_bytes());
    }

    pub(crate) fn stop(&self) {
        self.stop.store(true, SeqCst);
        self.kick();
    }

    pub(crate) fn fd(&self) -> rustix::fd::BorrowedFd<'_> {
        self.kick.as_fd()
    }

    /// Wakes the thread if it would sleep past `deadline_ns`.
    pub(crate) fn expect(&self, deadline_ns: u64) {
        // Pairs with the fence in `announce`: either we see the announced sleep, or it sees our
        // appointment.
        fence(SeqCst);
        if deadline_ns < self.wakes_at_ns.load(Relaxed) {
            self.kick();
        }
    }

    /// Stops the thread at a point where it holds no lock. Answers whether it stands, which it may
    /// not before `deadline`: it is in a long turn, or waits for a lock that the caller's thread
    /// has.
    pub(crate) fn pause(&self, deadline: Instant) -> bool {
        let mut pause = lock(&self.pause);
        pause.wanted = true;
        self.kick();
        while !pause.standing && !self.ended.load(SeqCst) {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            pause = wait_timeout(&self.changed, pause, left);
        }
        self.stood.store(pause.standing, SeqCst);
        pause.standing
    }

    /// Whether it stood when the latest pause was over. Takes no lock.
    pub(crate) fn stood(&self) -> bool {
        self.stood.load(SeqCst)
    }

    /// A thread is about to begin.
    pub(crate) fn begins(&self) {
        lock(&self.pause).begun = false;
        self.ended.store(false, SeqCst);
    }

    /// The thread has done what it does once.
    pub(crate) fn has_begun(&self) {
        lock(&self.pause).begun = true;
        self.changed.notify_all();
    }

    /// Waits for that.
    pub(crate) fn wait_until_begun(&self) {
        let mut pause = lock(&self.pause);
        while !pause.begun && !self.ended.load(SeqCst) {
            pause = wait(&self.changed, pause);
        }
    }

    /// The thread has ended: nobody waits for it to stand.
    pub(crate) fn ends(&self) {
        let _pause = lock(&self.pause);
        self.ended.store(true, SeqCst);
        self.changed.notify_all();
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.ended.load(SeqCst)
    }

    pub(crate) fn resume(&self) {
        let mut pause = lock(&self.pause);
        (pause.wanted, pause.standing) = (false, false);
        self.changed.notify_all();
    }

    /// Stands still as long as that is asked.
    pub(crate) fn stand_if_asked(&self) {
        let mut pause = lock(&self.pause);
        while pause.wanted {
            pause.standing = true;
            self.changed.notify_all();
            pause = wait(&self.changed, pause);
        }
    }

    /// Whether the thread shall end.
    pub(crate) fn is_stopped(&self) -> bool {
        self.stop.load(SeqCst)
    }

    /// When the program last made progress, nanoseconds after the device's epoch.
    pub(crate) fn polled_ns(&self) -> u64 {
        self.polled_ns.load(Relaxed)
    }

    /// Whether that was on the calling thread's processor, which the program may want back.
    pub(crate) fn polled_here(&self) -> bool {
        self.polled_on.load(Relaxed) == sched_getcpu()
    }

    /// Says until when the thread will sleep, nanoseconds after the device's epoch. A deadline set
    /// before that is seen afterwards; one set later wakes it.
    pub(crate) fn announce(&self, wakes_at_ns: u64) {
        self.wakes_at_ns.store(wakes_at_ns, Relaxed);
        fence(SeqCst);
    }

    /// The thread is awake: no deadline needs to wake it.
    pub(crate) fn is_awake(&self) {
        self.wakes_at_ns.store(0, Relaxed);
    }

    /// Takes back all that woke the thread.
    pub(crate) fn take_kicks(&self) {
        let _ = rustix::io::read(&self.kick, &mut [0u8; 8]);
    }
}
