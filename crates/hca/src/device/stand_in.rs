//! A thread of the program's that waits for an event takes the progress thread's place at the rings
//! meanwhile ([`StandIn`](crate::adapter::thread::StandIn)): what a neighbour sends wakes it at
//! once, and it takes the turn itself. The sockets and timers stay the progress thread's.

use super::Device;
use crate::adapter::rings::Rings;
use rustix::fd::BorrowedFd;
use std::cell::Cell;
use std::sync::Weak;

/// Where a thread waits for an event; [`Device::waited`] or [`stop_waiting_here`] follows, whatever
/// the wait came to.
pub enum Place<'a> {
    /// In a read of eight bytes of this bell. Whoever finds after this that the event has come
    /// need not read.
    Bell(BorrowedFd<'a>),
    /// Nowhere: something has come by the rings.
    Turn,
    /// In a read of the event's own descriptor: others see to the device.
    Own,
}

/// What a wait came to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Waited {
    /// Nothing has come by the rings.
    InVain,
    /// Something has, and was taken.
    Turn,
    /// Another thread is at it.
    Busy,
}

/// How the calling thread waits, if it does. A thread that is cancelled (pthread_cancel(3)) amid
/// its read never comes to say that it has waited; what it ends with does.
#[derive(Default)]
struct Waits(Option<(Weak<Device>, bool)>);

impl Drop for Waits {
    fn drop(&mut self) {
        if let Some((device, stood_in)) = self.0.take()
            && let Some(device) = device.upgrade()
        {
            device.leave(stood_in);
        }
    }
}

thread_local! {
    static WAITS: Cell<Waits> = const { Cell::new(Waits(None)) };
}

/// The calling thread waits for no event any longer, of whatever device.
pub fn stop_waiting_here() {
    let _ = WAITS.try_with(Cell::take);
}

impl Device {
    /// The calling thread is about to wait for an event of this device that has not come. `may`
    /// says whether it may stand in for the progress thread.
    pub fn wait_for_event(&self, may: bool) -> Place<'_> {
        stop_waiting_here();
        self.pay();
        if may && let Some(place) = self.stand_in() {
            return place;
        }
        let stand_in = &self.adapter.thread.stand_in;
        stand_in.enters(false);
        self.note_wait(false);
        // The progress thread may have left the rings to whoever stands in.
        if !stand_in.is_watched() {
            self.adapter.thread.kick();
        }
        Place::Own
    }

    /// The calling thread waits in the progress thread's place, where it may.
    fn stand_in(&self) -> Option<Place<'_>> {
        let (rings, stand_in) = (self.adapter.rings()?, &self.adapter.thread.stand_in);
        if !rings.reads_any() || self.alive().is_err() || !stand_in.enters(true) {
            return None;
        }
        if !self.note_wait(true) {
            return None;
        }
        self.directory().sleeps();
        let has_more = rings.has_more();
        if has_more.is_none() {
            // Who takes a turn may have looked before this one slept, and another turn must not be
            // waited for: who takes one after the other leaves no time between.
            stop_waiting_here();
            return None;
        }
        let more = has_more == Some(true);
        Some(if more { Place::Turn } else { Place::Bell(stand_in.bell()) })
    }

    /// Notes how the calling thread waits; where that cannot be, it does not.
    fn note_wait(&self, stood_in: bool) -> bool {
        let waits = Waits(Some((self.this.clone(), stood_in)));
        WAITS.try_with(|place| place.set(waits)).is_ok()
    }

    /// The wait is over. Takes a turn if something came by the rings.
    pub fn waited(&self) -> Waited {
        stop_waiting_here();
        match self.adapter.rings().map(Rings::has_more) {
            Some(Some(false)) | None => Waited::InVain,
            Some(Some(true)) if self.progress_after_sleep() => Waited::Turn,
            Some(_) => Waited::Busy,
        }
    }

    /// In a forked child, which goes on with the device: nobody waits.
    pub(super) fn waits_no_longer(&self) {
        let _ = WAITS.try_with(|waits| waits.take().0.take());
        self.adapter.thread.stand_in.begin_anew();
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
        // In a forked child the device is the parent's.
        if self.alive().is_err() {
            return;
        }
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
