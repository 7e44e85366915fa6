//! Where the client's thread stands still around a fork whose child carries the client on
//! (`daemon(3)`).
//!
//! Only the forking thread exists in the child, so the thread hands the registry that it may host
//! over before it stands: the next thread, in the parent or in the child, goes on with it.

use crate::client::host::Host;
use engine_thread::{lock, wait, wait_timeout};
use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::Instant;

#[derive(Default)]
struct Pauses {
    wanted: bool,
    standing: bool,
    host: Option<Host>,
}

/// The meeting point.
#[derive(Default)]
pub(crate) struct ForkPause {
    state: Mutex<Pauses>,
    changed: Condvar,
}

impl ForkPause {
    fn lock(&self) -> MutexGuard<'_, Pauses> {
        lock(&self.state)
    }

    /// Asks the thread to stand; see [`ForkPause::wait`].
    pub(crate) fn ask(&self) {
        self.lock().wanted = true;
    }

    /// Waits until the thread stands. False when it does not before `deadline`.
    pub(crate) fn wait(&self, deadline: Instant) -> bool {
        let mut state = self.lock();
        while !state.standing {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            state = wait_timeout(&self.changed, state, left);
        }
        true
    }

    /// Lets the thread go on.
    pub(crate) fn end(&self) {
        self.lock().wanted = false;
        self.changed.notify_all();
    }

    /// In the child, where the thread is not: takes what it handed over, for the one that follows
    /// on it.
    pub(crate) fn inherit(&self) -> Option<Host> {
        std::mem::take(&mut *self.lock()).host
    }

    /// For the thread: stands while that is asked.
    pub(crate) fn stand_if_asked(&self, host: &mut Option<Host>) {
        let mut state = self.lock();
        if !state.wanted {
            return;
        }
        state.host = host.take();
        state.standing = true;
        self.changed.notify_all();
        while state.wanted {
            state = wait(&self.changed, state);
        }
        state.standing = false;
        *host = state.host.take();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_stands_while_asked_and_not_otherwise() {
        let rest = ForkPause::default();
        rest.stand_if_asked(&mut None);
        assert!(!rest.wait(Instant::now()));
        rest.ask();
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| rest.stand_if_asked(&mut None));
            assert!(rest.wait(Instant::now() + std::time::Duration::from_secs(10)));
            assert!(!thread.is_finished());
            rest.end();
        });
        assert!(rest.inherit().is_none());
    }
}
