//! The end of a registration: whoever revokes it keeps everyone out and waits for those inside, and
//! one watcher hears of it.

pub(crate) mod gate;
mod shown;

pub use shown::Shown;

use gate::Gate;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering::AcqRel};
use std::sync::{Arc, OnceLock};

/// Is called once when a registration ends, however that came about. Those inside may not have left
/// yet.
///
/// The caller may be an interposed `munmap` that `malloc` called: an implementation must not
/// allocate, free, or wait for anyone who might.
pub trait RevokeWatcher: Send + Sync {
    /// No access begins from now on.
    fn revoked(&self);
}

/// Those who reach a registration's memory past this process: others, to whom it was shown. They
/// are kept out as those inside are.
///
/// What is said of [`RevokeWatcher`] holds for all of it; [`Outsiders::wait`] may wait for them,
/// who wait for nobody.
pub trait Outsiders: Send + Sync {
    /// Nobody goes in from now on, ever again.
    fn shut(&self);
    /// Nobody goes in from now on, until [`Outsiders::settle`].
    fn doubt(&self);
    /// They may go in again, unless it was shut.
    fn settle(&self);
    /// Returns once those have left who went in before.
    fn wait(&self);
    /// They may stay, but what they know of the memory's rights they know no more; returns once
    /// those have left who acted by it.
    fn renew(&self);
    /// The kernel does not tell of what becomes of the memory: nobody relies on that when it
    /// returns.
    fn unwatched(&self);
    /// The memory has moved: it is where `now` says, if it can be shown. Who calls is inside.
    fn moved<'a>(&self, now: &dyn Fn() -> Option<Shown<'a>>);
}

/// The part of a registration that the address space's notifier shares.
pub(crate) struct Shared {
    pub(crate) gate: Gate,
    pub(crate) watcher: OnceLock<Arc<dyn RevokeWatcher>>,
    outsiders: OnceLock<Arc<dyn Outsiders>>,
    told: AtomicBool,
}

impl Shared {
    pub(crate) fn new() -> Arc<Shared> {
        Arc::new(Shared {
            gate: Gate::new(),
            watcher: OnceLock::new(),
            outsiders: OnceLock::new(),
            told: AtomicBool::new(false),
        })
    }

    pub(crate) fn revoke(&self) {
        self.gate.shut();
        let outsiders = self.outsiders.get();
        if let Some(outsiders) = outsiders {
            outsiders.shut();
        }
        self.tell();
        self.gate.wait();
        if let Some(outsiders) = outsiders {
            outsiders.wait();
        }
    }

    /// Keeps `outsiders` out as well from now on; one at most. Returns whether it was taken.
    pub(crate) fn keep_out(&self, outsiders: Arc<dyn Outsiders>) -> bool {
        let taken = self.outsiders.set(outsiders).is_ok();
        if let Some(outsiders) = self.outsiders.get() {
            if self.gate.is_shut() {
                outsiders.shut();
            } else if self.gate.is_in_doubt() {
                // It began before they were known here.
                outsiders.doubt();
                if !self.gate.is_in_doubt() {
                    outsiders.settle();
                }
            }
        }
        taken
    }

    /// Tells `outsiders` that the memory has moved.
    pub(crate) fn moved<'a>(&self, now: &dyn Fn() -> Option<Shown<'a>>) {
        let Some(outsiders) = self.outsiders.get() else { return };
        if self.gate.enter() {
            outsiders.moved(now);
            self.gate.leave();
        }
    }

    pub(crate) fn tell(&self) {
        if let Some(watcher) = self.watcher.get()
            && self.gate.is_shut()
            && !self.told.swap(true, AcqRel)
        {
            watcher.revoked();
        }
    }
}

impl mm::Invalidate for Shared {
    fn invalidate(&self, _range: Range<u64>) {
        self.revoke();
    }

    fn doubt(&self) {
        let outsiders = self.outsiders.get();
        if let Some(outsiders) = outsiders {
            outsiders.doubt();
        }
        self.gate.doubt();
        if let Some(outsiders) = outsiders {
            outsiders.wait();
        }
    }

    fn settle(&self) {
        self.gate.settle();
        if let Some(outsiders) = self.outsiders.get() {
            outsiders.settle();
        }
    }

    /// A copy within the process finds the rights as they are; only others may know them.
    fn protected(&self) {
        if let Some(outsiders) = self.outsiders.get() {
            outsiders.renew();
        }
    }

    fn unwatched(&self) {
        if let Some(outsiders) = self.outsiders.get() {
            outsiders.unwatched();
        }
    }

    fn holds(&self) -> bool {
        !self.gate.is_shut()
    }
}
