//! A thread of the program's that waits for an event takes the progress thread's place at the rings
//! meanwhile ([`StandIn`](crate::adapter::thread::StandIn)): what a neighbour sends wakes it at
//! once, and it takes the turn itself. The sockets and timers stay the progress thread's.

use super::Device;
use crate::adapter::rings::Rings;
use rustix::fd::BorrowedFd;
use std::cell::RefCell;
use std::sync::Weak;

/// Where a thread waits for an event; [`Device::waited`] follows, whatever the wait came to.
pub enum Place<'a> {
    /// In a read of eight bytes of this bell. Whoever finds after this that the event has come
    /// need not read.
    Bell(BorrowedFd<'a>),
    /// Nowhere: something has come by the rings.
    Turn,
    /// In a read of the event's own descriptor: others see to the device.
    Own,
}

/// How the calling thread waits, if it does. A thread that is cancelled (pthread_cancel(3)) amid
/// its read never comes to say that it has waited; what it ends with does.
struct Waits(Option<(Weak<Device>, bool)>);

impl Waits {
    fn end(&mut self) {
        if let Some((device, stood_in)) = self.0.take()
            && let Some(device) = device.upgrade()
        {
            device.leave(stood_in);
        }
    }
}

impl Drop for Waits {
    fn drop(&mut self) {
        self.end();
    }
}

thread_local! {
    static WAITS: RefCell<Waits> = const { RefCell::new(Waits(None)) };
}

impl Device {
    /// The calling thread is about to wait for an event of this device that has not come. `may`
    /// says whether it may stand in for the progress thread.
    pub fn wait_for_event(&self, may: bool) -> Place<'_> {
        self.pay();
        let stand_in = &self.adapter.thread.stand_in;
        let by_rings = self.adapter.rings().is_some_and(Rings::reads_any);
        let noted = |stood_in| {
            let waits = |waits: &RefCell<Waits>| {
                waits.borrow_mut().end();
                waits.borrow_mut().0 = Some((self.this.clone(), stood_in));
            };
            WAITS.try_with(waits).is_ok()
        };
        let stands_in = stand_in.enters(may && by_rings && self.alive().is_ok());
        if !noted(stands_in) {
            self.leave(stands_in);
            return Place::Own;
        }
        if !stands_in {
            // The progress thread may have left the rings to whoever stands in.
            if !stand_in.is_watched() {
                self.adapter.thread.kick();
            }
            return Place::Own;
        }
        self.directory().sleeps();
        match self.adapter.rings().map(Rings::has_more) {
            Some(Some(true)) => return Place::Turn,
            // Who takes a turn may have looked before this one slept, and another turn must not be
            // waited for: who takes one after the other leaves no time between.
            Some(None) => self.adapter.thread.kick(),
            Some(Some(false)) | None => {}
        }
        Place::Bell(stand_in.bell())
    }

    /// The wait is over. Takes a turn if something came by the rings; says whether it did.
    pub fn waited(&self) -> bool {
        let _ = WAITS.try_with(|waits| waits.borrow_mut().end());
        let Some(rings) = self.adapter.rings() else { return false };
        // Another thread that takes a turn takes what came.
        let came = rings.has_more() != Some(false);
        if came {
            rings.owed.begin();
            self.progress_after_sleep();
            rings.owed.end();
        }
        came
    }

    /// Wakes the peer whose acknowledge was to wait for the program's answer.
    #[inline]
    pub(super) fn pay(&self) {
        if let Some(rings) = self.adapter.rings() {
            rings.owed.pay();
        }
    }

    /// The same as far as it was before the call that told `times`, while another thread may be
    /// about to answer.
    pub(super) fn pay_old(&self, times: &mut u32, leaves_rings: bool) {
        match self.adapter.rings() {
            Some(rings) if leaves_rings => rings.owed.pay_old(times),
            _ => self.pay(),
        }
    }

    /// The calling thread waits no longer.
    fn leave(&self, stood_in: bool) {
        let thread = &self.adapter.thread;
        if stood_in {
            // Before it is asked whether the progress thread counts on that.
            self.directory().is_awake();
        }
        if thread.stand_in.leaves(stood_in) || stood_in && self.is_asked() {
            thread.kick();
        }
    }

    /// Whether a neighbour rang for what only the progress thread does.
    fn is_asked(&self) -> bool {
        let announced = self.directory().announced();
        let has_seen = |rings: &Rings| rings.has_seen(announced);
        !self.adapter.rings().is_none_or(has_seen) || self.directory().asked().is_some()
    }
}
