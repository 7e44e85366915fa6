//! Who is inside a registration, and shutting it.
//!
//! One atomic word holds the number of those inside and a shut bit, so entering and leaving is one addition each. Shutting
//! sets the bit and waits until the number is 0. Neither allocates: the waiter may be an interposed `munmap` that
//! `malloc` called. The model tests (`--cfg loom`) check that nobody is inside once [`Gate::wait`] has returned, and that it
//! does return.

#[cfg(loom)]
use loom::sync::{
    Condvar, Mutex,
    atomic::{AtomicU64, Ordering::*},
};
#[cfg(not(loom))]
use std::sync::{
    Condvar, Mutex,
    atomic::{AtomicU64, Ordering::*},
};

const SHUT: u64 = 1 << 63;

/// A gate that can be shut for good.
pub(crate) struct Gate {
    state: AtomicU64,
    lock: Mutex<()>,
    left: Condvar,
}

impl Gate {
    pub(crate) fn new() -> Gate {
        Gate { state: AtomicU64::new(0), lock: Mutex::new(()), left: Condvar::new() }
    }

    /// Goes inside; `false` if the gate is shut. Each success needs one [`Gate::leave`].
    #[inline]
    pub(crate) fn enter(&self) -> bool {
        if self.state.fetch_add(1, Acquire) & SHUT == 0 {
            return true;
        }
        self.leave();
        false
    }

    /// Goes outside.
    #[inline]
    pub(crate) fn leave(&self) {
        if self.state.fetch_sub(1, Release) == SHUT | 1 {
            self.last_left();
        }
    }

    #[cold]
    fn last_left(&self) {
        // the waiter looks at the state under the lock, so it either sees it now or is woken
        drop(self.lock.lock());
        self.left.notify_all();
    }

    /// Shuts the gate: nobody goes inside from now on.
    pub(crate) fn shut(&self) {
        self.state.fetch_or(SHUT, AcqRel);
    }

    /// Returns once nobody is inside a shut gate.
    pub(crate) fn wait(&self) {
        if self.nobody_inside() {
            return;
        }
        let Ok(mut guard) = self.lock.lock() else { return };
        while !self.nobody_inside() {
            guard = match self.left.wait(guard) {
                Ok(guard) => guard,
                Err(_) => return,
            };
        }
    }

    fn nobody_inside(&self) -> bool {
        self.state.load(Acquire) & !SHUT == 0
    }

    pub(crate) fn is_shut(&self) -> bool {
        self.state.load(Acquire) & SHUT != 0
    }
}

#[cfg(all(test, loom))]
mod model {
    use super::*;
    use loom::sync::Arc;
    use loom::sync::atomic::AtomicBool;
    use loom::thread;

    /// All interleavings with up to three preemptions.
    fn model(body: impl Fn() + Sync + Send + 'static) {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(3);
        builder.check(body);
    }

    #[test]
    fn gate_nobody_is_inside_after_revoke() {
        model(|| {
            let gate = Arc::new(Gate::new());
            let gone = Arc::new(AtomicBool::new(false));
            let users: Vec<_> = (0..2)
                .map(|_| {
                    let (gate, gone) = (gate.clone(), gone.clone());
                    thread::spawn(move || {
                        if gate.enter() {
                            assert!(!gone.load(SeqCst), "inside after revoke returned");
                            gate.leave();
                        }
                    })
                })
                .collect();
            gate.shut();
            gate.wait();
            gone.store(true, SeqCst);
            assert!(!gate.enter());
            users.into_iter().for_each(|u| u.join().unwrap());
        });
    }

    #[test]
    fn gate_two_revokers_both_wait() {
        model(|| {
            let gate = Arc::new(Gate::new());
            let gone = Arc::new(AtomicBool::new(false));
            assert!(gate.enter());
            let revokers: Vec<_> = (0..2)
                .map(|_| {
                    let (gate, gone) = (gate.clone(), gone.clone());
                    thread::spawn(move || {
                        gate.shut();
                        gate.wait();
                        assert!(gone.load(SeqCst), "revoke returned while one was inside");
                    })
                })
                .collect();
            gone.store(true, SeqCst);
            gate.leave();
            revokers.into_iter().for_each(|u| u.join().unwrap());
        });
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn shut_gates_let_nobody_in() {
        let gate = Gate::new();
        assert!(gate.enter());
        assert!(gate.enter());
        gate.leave();
        gate.leave();
        assert!(!gate.is_shut());
        gate.shut();
        gate.wait();
        gate.shut();
        gate.wait();
        assert!(gate.is_shut());
        assert!(!gate.enter());
        gate.shut();
        gate.wait();
    }

    #[test]
    fn revoke_waits_for_those_inside() {
        let gate = Gate::new();
        let left = std::sync::atomic::AtomicBool::new(false);
        assert!(gate.enter());
        std::thread::scope(|s| {
            let revoker = s.spawn(|| {
                gate.shut();
                gate.wait();
                assert!(left.load(SeqCst));
            });
            while !gate.is_shut() {
                std::thread::yield_now();
            }
            assert!(!gate.enter());
            left.store(true, SeqCst);
            gate.leave();
            revoker.join().unwrap();
        });
    }
}
