//! Who looks at a completion queue when its event is due: a thread that begins with the first queue that wants it.

use crate::cq::Cq;
use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Instant;

/// The appointments of a function's completion queues. Clones are the same; the last one ends the thread.
#[derive(Clone, Default)]
pub(crate) struct Alarms(Arc<Handle>);

#[derive(Default)]
struct Handle(Arc<Shared>);

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
    /// Held while a queue is looked at.
    turn: Mutex<()>,
}

#[derive(Default)]
struct State {
    /// By time, and a number that each has for itself.
    due: BTreeMap<(Instant, u64), Weak<Cq>>,
    given: u64,
    running: bool,
    ended: bool,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Alarms {
    /// [`Cq::look`] of `cq` at `at`. `false` when nobody can.
    pub(crate) fn set(&self, at: Instant, cq: Weak<Cq>) -> bool {
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
        state.due.insert(key, cq);
        if state.due.first_key_value().is_some_and(|(first, _)| *first == key) {
            shared.changed.notify_all();
        }
        true
    }

    /// Forgets all; no queue is looked at any more when it returns.
    pub(crate) fn clear(&self) {
        lock(&self.0.0.state).due.clear();
        drop(lock(&self.0.0.turn));
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
                None => self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
                Some(at) if at > now => {
                    let waited = self.changed.wait_timeout(state, at - now);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
                Some(_) => {
                    drop(state);
                    self.look();
                    lock(&self.state)
                }
            };
            state = waited;
        }
    }

    /// At the queue whose turn it is.
    fn look(&self) {
        let _turn = lock(&self.turn);
        let first = lock(&self.state).due.pop_first();
        if let Some(cq) = first.and_then(|(_, cq)| cq.upgrade()) {
            cq.look();
        }
    }
}
