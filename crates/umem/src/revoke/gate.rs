//! Who is inside a registration, and shutting it.
//!
//! One atomic word holds the number of those inside, a shut bit and a doubt bit, so entering and
//! leaving is one addition each. Shutting sets its bit and waits until the number is 0; doubt does
//! so too, but who comes meanwhile waits for its end. Neither allocates: the waiter may be an
//! interposed `munmap` that `malloc` called. The model tests (`--cfg loom`) check that nobody is
//! inside once [`Gate::wait`] or [`Gate::doubt`] has returned, and that these and those who wait do
//! return.

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
const DOUBT: u64 = 1 << 62;
const INSIDE: u64 = DOUBT - 1;

/// A gate that can be shut for good.
pub(crate) struct Gate {
    state: AtomicU64,
    lock: Mutex<()>,
    changed: Condvar,
}

impl Gate {
    pub(crate) fn new() -> Gate {
        Gate { state: AtomicU64::new(0), lock: Mutex::new(()), changed: Condvar::new() }
    }

    /// Goes inside, after a doubt if there is one; `false` if the gate is shut. Each success needs
    /// one [`Gate::leave`].
    #[inline]
    pub(crate) fn enter(&self) -> bool {
        self.state.fetch_add(1, Acquire) & (SHUT | DOUBT) == 0 || self.enter_later()
    }

    /// Goes inside unless the gate is shut or in doubt, and never waits; otherwise as
    /// [`Gate::enter`].
    #[inline]
    pub(crate) fn try_enter(&self) -> bool {
        let enters = self.state.fetch_add(1, Acquire) & (SHUT | DOUBT) == 0;
        if !enters {
            self.leave();
        }
        enters
    }

    #[cold]
    fn enter_later(&self) -> bool {
        loop {
            self.leave();
            self.wait_until(|state| state & DOUBT == 0 || state & SHUT != 0);
            let before = self.state.fetch_add(1, Acquire);
            if before & (SHUT | DOUBT) == 0 {
                return true;
            }
            if before & SHUT != 0 {
                self.leave();
                return false;
            }
        }
    }

    /// Goes outside.
    #[inline]
    pub(crate) fn leave(&self) {
        let before = self.state.fetch_sub(1, Release);
        if before & INSIDE == 1 && before != 1 {
            self.wake();
        }
    }

    #[cold]
    fn wake(&self) {
        // who waits looks at the state under the lock, so it either sees it now or is woken
        drop(self.lock.lock());
        self.changed.notify_all();
    }

    /// Shuts the gate: nobody goes inside from now on.
    pub(crate) fn shut(&self) {
        if self.state.fetch_or(SHUT, AcqRel) & DOUBT != 0 {
            self.wake();
        }
    }

    /// Returns once nobody is inside a shut gate.
    pub(crate) fn wait(&self) {
        self.wait_until(|state| state & INSIDE == 0);
    }

    /// Keeps everyone out until [`Gate::settle`], and returns once nobody is inside. One at a time.
    pub(crate) fn doubt(&self) {
        self.state.fetch_or(DOUBT, AcqRel);
        self.wait();
    }

    /// Ends a doubt, if there is one.
    pub(crate) fn settle(&self) {
        if self.state.fetch_and(!DOUBT, AcqRel) & DOUBT != 0 {
            self.wake();
        }
    }

    fn wait_until(&self, reached: impl Fn(u64) -> bool) {
        if reached(self.state.load(Acquire)) {
            return;
        }
        let Ok(mut guard) = self.lock.lock() else { return };
        while !reached(self.state.load(Acquire)) {
            guard = match self.changed.wait(guard) {
                Ok(guard) => guard,
                Err(_) => return,
            };
        }
    }

    /// Whether everyone is kept out for now.
    pub(crate) fn is_in_doubt(&self) -> bool {
        self.state.load(Acquire) & DOUBT != 0
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

    /// All interleavings with up to so many preemptions.
    fn model(preemptions: usize, body: impl Fn() + Sync + Send + 'static) {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(preemptions);
        builder.check(body);
    }

    /// Users beside the one who shuts, and preemptions: more of both takes minutes.
    const SIZES: [(usize, usize); 2] = [(2, 2), (1, 4)];

    #[test]
    fn gate_nobody_is_inside_after_revoke() {
        for (users, preemptions) in SIZES {
            model(preemptions, move || {
                let gate = Arc::new(Gate::new());
                let gone = Arc::new(AtomicBool::new(false));
                let users: Vec<_> = (0..users)
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
    }

    #[test]
    fn gate_nobody_is_inside_in_doubt() {
        for (users, preemptions) in SIZES {
            model(preemptions, move || {
                let gate = Arc::new(Gate::new());
                let doubtful = Arc::new(AtomicBool::new(false));
                let users: Vec<_> = (0..users)
                    .map(|_| {
                        let (gate, doubtful) = (gate.clone(), doubtful.clone());
                        thread::spawn(move || {
                            assert!(gate.enter(), "a doubt shuts nobody out for good");
                            assert!(!doubtful.load(SeqCst), "inside in doubt");
                            gate.leave();
                        })
                    })
                    .collect();
                gate.doubt();
                doubtful.store(true, SeqCst);
                doubtful.store(false, SeqCst);
                gate.settle();
                users.into_iter().for_each(|u| u.join().unwrap());
            });
        }
    }

    #[test]
    fn gate_a_doubt_may_end_in_a_shut_gate() {
        model(3, || {
            let gate = Arc::new(Gate::new());
            let gone = Arc::new(AtomicBool::new(false));
            let user = {
                let (gate, gone) = (gate.clone(), gone.clone());
                thread::spawn(move || {
                    if gate.enter() {
                        assert!(!gone.load(SeqCst), "inside after the revoke");
                        gate.leave();
                    }
                })
            };
            gate.doubt();
            gone.store(true, SeqCst);
            gate.shut();
            gate.wait();
            gate.settle();
            user.join().unwrap();
            assert!(!gate.enter());
        });
    }

    /// Who copies from one registration to another is inside both, in whatever order; or twice
    /// inside one.
    #[test]
    fn gate_who_is_inside_of_one_waits_for_no_other() {
        for (first, second) in [(0, 1), (1, 0), (0, 0)] {
            model(2, move || {
                let gates = Arc::new([Gate::new(), Gate::new()]);
                let doubtful = Arc::new(AtomicBool::new(false));
                let user = {
                    let (gates, doubtful) = (gates.clone(), doubtful.clone());
                    thread::spawn(move || {
                        assert!(gates[first].enter());
                        if gates[second].try_enter() {
                            assert!(!doubtful.load(SeqCst), "inside in doubt");
                            gates[second].leave();
                        }
                        gates[first].leave();
                    })
                };
                gates.iter().for_each(Gate::doubt);
                doubtful.store(true, SeqCst);
                doubtful.store(false, SeqCst);
                gates.iter().for_each(Gate::settle);
                user.join().unwrap();
            });
        }
    }

    #[test]
    fn gate_two_revokers_both_wait() {
        model(3, || {
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
    fn who_must_not_wait_stays_out_in_doubt() {
        let gate = Gate::new();
        assert!(gate.try_enter() && gate.try_enter());
        gate.leave();
        gate.leave();
        gate.doubt();
        assert!(!gate.try_enter());
        gate.settle();
        assert!(gate.try_enter());
        gate.leave();
        gate.shut();
        assert!(!gate.try_enter());
        gate.wait();
    }

    #[test]
    fn who_comes_in_doubt_waits_for_its_end() {
        let gate = Gate::new();
        gate.settle();
        gate.doubt();
        let settled = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|s| {
            let user = s.spawn(|| {
                assert!(gate.enter());
                assert!(settled.load(SeqCst), "inside in doubt");
                gate.leave();
            });
            // it has come and left again
            std::thread::yield_now();
            settled.store(true, SeqCst);
            gate.settle();
            user.join().unwrap();
        });
        gate.doubt();
        gate.shut();
        assert!(!gate.enter(), "a shut gate is waited for by nobody");
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
