//! Moving a buffer, and taking it back from its users.
//!
//! The order of a move's steps is [`turnstile`](crate::turnstile)'s; the old place is overwritten
//! with [`POISON`] before anyone is let in. Killed at any moment it leaves the bytes whole at the
//! place that the state names. Users that are dead are not waited for; one that is stopped inside
//! an access holds a move up for a limited time, after which the buffer stays where it is.

use crate::control::{MOVER_BYTE, Placement, SLOTS};
use crate::storage::{LOOK_AGAIN, Storage};
use crate::turnstile::{Heed, Moves, TurnstileState, Users, relocate, reopen, revoke};
use crate::{Error, fd};
use engine_thread::lock;
use std::sync::MutexGuard;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::time::{Duration, Instant};

/// What the bytes at a place become that a buffer has left.
pub const POISON: u8 = 0x6b;

/// The right to move a buffer. When dropped, users are let in and the next mover may come.
struct Mover<'a> {
    storage: &'a Storage,
    /// How long it waits for users.
    deadline: Instant,
    _alone: MutexGuard<'a, ()>,
}

impl Moves for Mover<'_> {
    type Error = Error;

    fn state(&self) -> TurnstileState {
        self.storage.control.state()
    }

    fn set_state(&self, state: TurnstileState) {
        self.storage.control.set_state(state);
    }

    fn drain(&self, heed: Heed) -> Result<(), Error> {
        (0..SLOTS).try_for_each(|slot| self.storage.drain_slot(slot, heed, self.deadline))
    }
}

impl Drop for Mover<'_> {
    fn drop(&mut self) {
        self.storage.control.set_mover(0);
        reopen(self);
        fd::unlock(&self.storage.locks, MOVER_BYTE);
    }
}

impl Storage {
    /// Moves the bytes. `home` says what becomes of the exporter's place in its memory, where the
    /// exporter itself moves; others move only back to a place that is kept. Answers whether they
    /// moved: not if they were there.
    ///
    /// # Errors
    /// [`Error::Revoked`]; [`Error::Pinned`]; [`Error::Moving`] or [`Error::InUse`] when another
    /// mover or a user was there for all of `limit`; [`Error::NoHome`]; [`Error::NotMappable`];
    /// [`Error::OutOfMemory`] when the new place has no pages. The buffer is then as it was.
    pub fn move_to(
        &self,
        to: Placement,
        home: Option<bool>,
        limit: Duration,
    ) -> Result<bool, Error> {
        let mover = self.mover(Instant::now() + limit)?;
        let state = mover.state();
        if state.is_revoked() {
            return Err(Error::Revoked);
        }
        let moves = state.placement() != to;
        if moves {
            self.check_move(to, home)?;
            self.relocate(&mover, to)?;
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

    fn relocate(&self, mover: &Mover<'_>, to: Placement) -> Result<(), Error> {
        let (old, new) = (self.memory(mover.state().placement())?, self.memory(to)?);
        let copy = || new.copy_from(old.source()).map_err(|_| Error::OutOfMemory);
        relocate(mover, to, copy, || {
            // The bytes are gone from here: that an old page cannot be written matters to nobody.
            let _ = old.fill(POISON);
        })
    }

    /// Takes the buffer back for good: from the return on nobody touches it. In two steps: no
    /// access begins any more; those in progress are waited for.
    ///
    /// # Errors
    /// [`Error::Pinned`], [`Error::Moving`]: it is not revoked. [`Error::InUse`]: it is, but
    /// somebody was inside an access for all of `limit` and may still finish that; call again to
    /// wait longer.
    pub fn revoke(&self, limit: Duration) -> Result<(), Error> {
        let mover = self.mover(Instant::now() + limit)?;
        if let Some(pinned) = self.pinned(Heed::Firm) {
            return Err(pinned);
        }
        revoke(&mover)
    }

    /// Becomes the one who may move the buffer.
    fn mover(&self, deadline: Instant) -> Result<Mover<'_>, Error> {
        let alone = lock(&self.moving);
        while !fd::try_lock(&self.locks, MOVER_BYTE) {
            let rest = deadline.saturating_duration_since(Instant::now());
            if rest.is_zero() {
                return Err(Error::Moving(self.control.mover()));
            }
            self.control.wait_state(self.control.state(), rest.min(LOOK_AGAIN));
        }
        self.control.set_mover(std::process::id());
        let mover = Mover { storage: self, deadline, _alone: alone };
        // one that was killed may have left it closed
        reopen(&mover);
        Ok(mover)
    }

    /// Who pins it, as an error.
    fn pinned(&self, heed: Heed) -> Option<Error> {
        let pins = |slot: &usize| heed.pins(self.users_of(*slot)) > 0 && self.is_alive(*slot);
        (0..SLOTS).find(pins).map(|slot| Error::Pinned(self.control.owner(slot).load(Relaxed)))
    }

    fn users_of(&self, slot: usize) -> Users {
        Users(self.control.users(slot).load(SeqCst))
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
