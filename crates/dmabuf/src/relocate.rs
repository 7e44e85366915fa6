//! Moving a buffer, and taking it back from its users.
//!
//! A move keeps new users out, waits for those inside, copies, switches the placement in one store, and overwrites the old
//! place with [`POISON`] before anyone is let in. Killed at any moment it leaves the bytes whole at the place that the state
//! names. Users that are dead are not waited for; one that is stopped inside an access holds a move up for a limited time,
//! after which the buffer stays where it is.

use crate::control::{MOVER_BYTE, Placement, SLOTS};
use crate::storage::{LOOK_AGAIN, Storage};
use crate::turnstile::{State, Users};
use crate::{Error, fd};
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::{MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// What the bytes at a place become that a buffer has left.
pub const POISON: u8 = 0x6b;

/// The right to move a buffer. When dropped, users are let in and the next mover may come.
struct Mover<'a> {
    storage: &'a Storage,
    _alone: MutexGuard<'a, ()>,
}

impl Drop for Mover<'_> {
    fn drop(&mut self) {
        let control = &self.storage.control;
        control.set_mover(0);
        control.set_state(control.state().reopened());
        fd::unlock(&self.storage.locks, MOVER_BYTE);
    }
}

/// Which users are in the way.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Heed {
    /// Accesses and every pin.
    All,
    /// Accesses and firm pins.
    Firm,
    /// Accesses.
    Accesses,
}

impl Heed {
    fn pins(self, users: Users) -> u64 {
        match self {
            Heed::All => users.pins(),
            Heed::Firm => users.firm_pins(),
            Heed::Accesses => 0,
        }
    }
}

impl Storage {
    /// Moves the bytes. `home` says what becomes of the exporter's place in its memory, where the exporter itself moves;
    /// others move only back to a place that is kept. Answers whether they moved: not if they were there.
    ///
    /// # Errors
    /// [`Error::Revoked`]; [`Error::Pinned`]; [`Error::Moving`] or [`Error::InUse`] when another mover or a user was there for
    /// all of `limit`; [`Error::NoHome`]; [`Error::NotMappable`]; [`Error::OutOfMemory`] when the new place has no pages. The
    /// buffer is then as it was.
    pub fn move_to(
        &self,
        to: Placement,
        home: Option<bool>,
        limit: Duration,
    ) -> Result<bool, Error> {
        let deadline = Instant::now() + limit;
        let mover = self.mover(deadline)?;
        let state = self.control.state();
        if state.is_revoked() {
            return Err(Error::Revoked);
        }
        let moves = state.placement() != to;
        if moves {
            self.check_move(to, home)?;
            self.relocate(state, to, deadline)?;
        }
        if let Some(home) = home {
            self.control.set_home(home);
        }
        drop(mover);
        Ok(moves)
    }

    fn check_move(&self, to: Placement, home: Option<bool>) -> Result<(), Error> {
        if to == Placement::Vram && home != Some(true) && !self.control.has_home() {
            return Err(Error::NoHome);
        }
        // before anyone is kept out for nothing
        self.pinned(Heed::All).map_or(Ok(()), Err)
    }

    fn relocate(&self, state: State, to: Placement, deadline: Instant) -> Result<(), Error> {
        let (old, new) = (self.memory(state.placement())?, self.memory(to)?);
        self.control.set_state(state.closed());
        self.drain(Heed::All, deadline)?;
        new.copy_from(old.addr()).map_err(|_| Error::OutOfMemory)?;
        self.control.set_state(state.closed().moved(to));
        // The bytes are gone from here: that an old page cannot be written matters to nobody.
        let _ = old.fill(POISON);
        Ok(())
    }

    /// Takes the buffer back for good: from the return on nobody touches it. In two steps: no access begins any more; those
    /// in progress are waited for.
    ///
    /// # Errors
    /// [`Error::Pinned`], [`Error::Moving`]: it is not revoked. [`Error::InUse`]: it is, but somebody was inside an access for
    /// all of `limit` and may still finish that; call again to wait longer.
    pub fn revoke(&self, limit: Duration) -> Result<(), Error> {
        let deadline = Instant::now() + limit;
        let mover = self.mover(deadline)?;
        if let Some(pinned) = self.pinned(Heed::Firm) {
            return Err(pinned);
        }
        self.control.set_state(self.control.state().revoked());
        // a pin that came in between sees the mark at its next access
        let left = self.drain(Heed::Accesses, deadline);
        drop(mover);
        left
    }

    /// Becomes the one who may move the buffer.
    fn mover(&self, deadline: Instant) -> Result<Mover<'_>, Error> {
        let alone = self.moving.lock().unwrap_or_else(PoisonError::into_inner);
        while !fd::try_lock(&self.locks, MOVER_BYTE) {
            let rest = deadline.saturating_duration_since(Instant::now());
            if rest.is_zero() {
                return Err(Error::Moving(self.control.mover()));
            }
            self.control.wait_state(self.control.state(), rest.min(LOOK_AGAIN));
        }
        self.control.set_mover(std::process::id());
        // one that was killed may have left it closed
        self.control.set_state(self.control.state().reopened());
        Ok(Mover { storage: self, _alone: alone })
    }

    /// Who pins it, as an error.
    fn pinned(&self, heed: Heed) -> Option<Error> {
        let pins = |slot: &usize| heed.pins(self.users_of(*slot)) > 0 && self.is_alive(*slot);
        (0..SLOTS).find(pins).map(|slot| Error::Pinned(self.control.owner(slot).load(Relaxed)))
    }

    fn users_of(&self, slot: usize) -> Users {
        Users(self.control.users(slot).load(SeqCst))
    }

    /// Waits until nobody is inside.
    fn drain(&self, heed: Heed, deadline: Instant) -> Result<(), Error> {
        (0..SLOTS).try_for_each(|slot| self.drain_slot(slot, heed, deadline))
    }

    fn drain_slot(&self, slot: usize, heed: Heed, deadline: Instant) -> Result<(), Error> {
        let soon = deadline.min(Instant::now() + LOOK_AGAIN);
        loop {
            let users = self.users_of(slot);
            let (pins, accesses) = (heed.pins(users), users.accesses());
            if pins == 0 && accesses == 0 || !self.is_alive(slot) {
                return Ok(());
            }
            let owner = self.control.owner(slot).load(Relaxed);
            // A pin that is about to be refused counts for a moment; one that was there stays.
            let until = if pins > 0 { soon } else { deadline };
            let rest = until.saturating_duration_since(Instant::now());
            if rest.is_zero() {
                return Err(if pins > 0 { Error::Pinned(owner) } else { Error::InUse(owner) });
            }
            self.control.wait_users(slot, users.0, rest.min(LOOK_AGAIN));
        }
    }
}

#[cfg(test)]
#[path = "relocate_tests.rs"]
mod tests;
