//! What is done later, by a thread that begins with the first appointment: events of completion
//! queues that are raised late, and what a doorbell rang for beyond the share that it carries out
//! itself.

use engine_thread::{lock, wait, wait_timeout};
use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, Weak};
use std::time::Instant;

/// What has appointments.
pub(crate) trait Appointed: Send + Sync {
    /// It is time. What takes long makes another appointment: a reset waits for this.
    fn due(&self);
}

/// The appointments of a function's queues. Clones are the same; the last one ends the thread.
#[derive(Clone, Default)]
pub(crate) struct Alarms(Arc<Handle>);

#[derive(Default)]
struct Handle(Arc<Shared>);

#[derive(Default)]
struct Shared {
    state: Mutex<Appointments>,
    changed: Condvar,
    /// Held while something that is due is done.
    turn: Mutex<()>,
}

#[derive(Default)]
struct Appointments {
    /// By time, and a number that each has for itself.
    due: BTreeMap<(Instant, u64), Weak<dyn Appointed>>,
    given: u64,
    /// All is about to be forgotten: nothing is begun.
    clearing: bool,
    running: bool,
    ended: bool,
}

impl Alarms {
    /// [`Appointed::due`] of `who` at `at`. `false` when nobody can.
    pub(crate) fn set(&self, at: Instant, who: Weak<dyn Appointed>) -> bool {
        let shared = &self.0.0;
        let mut state = lock(&shared.state);
        if !state.running {
            let its = shared.clone();
            let name = "mlx5 moderation".to_owned();
            if std::thread::Builder::new().name(name).spawn(move || its.work()).is_err() {
                return false;
            }
            state.running = true;
        }
        state.given += 1;
        let key = (at, state.given);
        state.due.insert(key, who);
        if state.due.first_key_value().is_some_and(|(first, _)| *first == key) {
            shared.changed.notify_all();
        }
        true
    }

    /// Forgets all; nothing is under way any more when it returns.
    pub(crate) fn clear(&self) {
        let shared = &self.0.0;
        lock(&shared.state).clearing = true;
        let _turn = lock(&shared.turn);
        let mut state = lock(&shared.state);
        state.due.clear();
        state.clearing = false;
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        lock(&self.0.state).ended = true;
        self.0.changed.notify_all();
    }
}

impl Shared {
    fn work(&self) {
        let mut state = lock(&self.state);
        while !state.ended {
            let now = Instant::now();
            let first = state.due.first_key_value().map(|((at, _), _)| *at);
            let waited = match first {
                None => wait(&self.changed, state),
                Some(at) if at > now => wait_timeout(&self.changed, state, at - now),
                Some(_) => {
                    drop(state);
                    self.begin();
                    lock(&self.state)
                }
            };
            state = waited;
        }
    }

    /// Does what is due first.
    fn begin(&self) {
        let _turn = lock(&self.turn);
        let mut state = lock(&self.state);
        let first = if state.clearing { None } else { state.due.pop_first() };
        drop(state);
        if let Some(who) = first.and_then(|(_, who)| who.upgrade()) {
            who.due();
        }
    }
}
