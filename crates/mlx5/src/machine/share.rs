//! Long work in shares: what a doorbell rings for is carried out by whoever writes it up to a
//! share, and the rest by the thread of appointments ([`crate::machine::alarm`]), share after
//! share, so that neither commands nor a reset wait for more than one.

use crate::machine::alarm::{Alarms, Appointed};
use engine_thread::lock;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, Weak};
use std::time::{Duration, Instant};

/// Requests, or the frames that they become, of one share.
const STEPS: u32 = 256;
/// Bytes that they bring along, and parts of keys over other keys that these lie in.
const BYTES: u64 = 256 << 10;
const PARTS: u64 = 4096;
/// How long a thread that has work left waits for others that want the lock.
const PAUSE: Duration = Duration::from_millis(1);

/// The state of something that works in shares.
pub(crate) struct Shares<T> {
    state: Mutex<T>,
    /// Threads that wait for the state.
    waiting: AtomicU32,
}

impl<T> Shares<T> {
    pub(crate) fn new(state: T) -> Shares<T> {
        Shares { state: Mutex::new(state), waiting: AtomicU32::new(0) }
    }

    /// The state, soon: work in shares makes way.
    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        self.waiting.fetch_add(1, Relaxed);
        let state = self.lock_to_go_on();
        self.waiting.fetch_sub(1, Relaxed);
        state
    }

    /// The state, for another share.
    pub(crate) fn lock_to_go_on(&self) -> MutexGuard<'_, T> {
        lock(&self.state)
    }

    fn is_wanted(&self) -> bool {
        self.waiting.load(Relaxed) > 0
    }

    /// Makes an appointment for `who` to go on. `false` when nobody will.
    pub(crate) fn put_off(&self, alarms: &Alarms, who: Weak<dyn Appointed>) -> bool {
        let pause = if self.is_wanted() { PAUSE } else { Duration::ZERO };
        alarms.set(Instant::now() + pause, who)
    }

    /// A share begins.
    pub(crate) fn begin(&self) -> Share<'_, T> {
        Share { shares: self, steps: 0, bytes: 0, parts: hca::parts_reached() }
    }
}

/// How much of a share is worked.
pub(crate) struct Share<'a, T> {
    shares: &'a Shares<T>,
    steps: u32,
    bytes: u64,
    parts: u64,
}

impl<T> Share<'_, T> {
    /// So many requests or frames were done, with so many bytes.
    pub(crate) fn spend(&mut self, steps: u32, bytes: u64) {
        self.steps = self.steps.saturating_add(steps);
        self.bytes = self.bytes.saturating_add(bytes);
    }

    /// Whether something was done and the rest had better wait.
    pub(crate) fn is_over(&self) -> bool {
        let parts = hca::parts_reached() - self.parts;
        let spent = self.steps >= STEPS || self.bytes >= BYTES || parts >= PARTS;
        spent || self.steps > 0 && self.shares.is_wanted()
    }
}
