//! A software GPU's buffer as one process has it: both places of its bytes, the control block, and
//! a slot of the process's own among the users.

pub(crate) mod own_exports;
pub(crate) mod part;

use crate::control::{Control, MOVER_BYTE, Placement, SECOND_PLACE, SLOTS, slot_byte};
use crate::exporter::BufferLocation;
use crate::sabotage::{self, Sabotage};
use crate::turnstile::{TurnstileState, Use, Users};
use crate::{Error, fd};
use descriptors::Kept;
use mm::{BroughtIn, Mapping, Sink};
use pcie::Address;
use rustix::io::Errno;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::{Mutex, OnceLock, TryLockError};
use std::time::{Duration, Instant};

/// How often a waiting process looks whether the one it waits for is there still.
pub(crate) const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// A process that has a buffer open.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct User {
    /// Process id, in its own PID namespace.
    pub pid: u64,
    /// Accesses it is inside.
    pub accesses: u64,
    /// Pins of both kinds that it holds.
    pub pins: u64,
}

/// Takes one of the first `most` slots that nobody has, by a lock of `locks`.
pub(crate) fn claim(control: &Control, locks: &Kept, most: usize) -> Result<usize, Error> {
    let free = |slot: &usize| fd::try_lock(locks, slot_byte(*slot));
    let slot = (0..most).find(free).ok_or(Error::TooManyUsers(most))?;
    // what an owner that was killed left behind
    control.users(slot).store(0, SeqCst);
    control.forget_addresses(slot);
    control.owner(slot).store(std::process::id().into(), SeqCst);
    Ok(slot)
}

/// A buffer of a software GPU, in this process.
#[derive(Debug)]
pub struct Storage {
    pub(crate) control: Control,
    data: Kept,
    size: u64,
    mapping: OnceLock<Mapping>,
    /// What is there of each place, by the place's index.
    pub(crate) brought_in: [BroughtIn; BufferLocation::COUNT],
    /// The control block's file, opened for the locks of this value alone.
    pub(crate) locks: Kept,
    pub(crate) slot: usize,
    /// Lets one of the threads that share the locks move the buffer.
    pub(crate) moving: Mutex<()>,
    pid: u32,
}

impl Drop for Storage {
    fn drop(&mut self) {
        // Whatever else is mapped there next is not the buffer. A forked child's copy says nothing
        // of its parent's.
        if self.is_own() {
            self.control.forget_addresses(self.slot);
        }
    }
}

impl Storage {
    /// The exporter's own, now at `placement`: `data` holds the bytes while they are there.
    ///
    /// # Errors
    /// [`Error::Control`].
    pub fn create(
        data: OwnedFd,
        size: u64,
        id: u64,
        gpu: Address,
        placement: Placement,
    ) -> Result<Storage, Error> {
        let control = Control::create(id, gpu, placement, size).map_err(Error::Control)?;
        Storage::of(data, size, control)
    }

    /// An importer's.
    ///
    /// # Errors
    /// [`Error::NotDmaBuf`] for a block of another buffer or version, [`Error::TooManyUsers`],
    /// [`Error::Control`].
    pub fn open(data: OwnedFd, size: u64, id: u64, control: OwnedFd) -> Result<Storage, Error> {
        Storage::of(data, size, Control::open(control, id, size)?)
    }

    /// The buffer of `size` bytes that `control` is of.
    ///
    /// # Errors
    /// [`Error::TooManyUsers`], [`Error::Control`].
    pub fn of(data: OwnedFd, size: u64, control: Control) -> Result<Storage, Error> {
        mm::guard::install();
        let data = Kept::new(data);
        let locks = Kept::alone(fd::reopen(control.as_fd()).map_err(Error::Control)?);
        let slot = claim(&control, &locks, SLOTS)?;
        control.data_of(slot).store(data.as_fd().as_raw_fd().cast_unsigned().into(), SeqCst);
        if let Some(memory) = control.second_place() {
            control.address_of(slot, control.born().other()).store(memory.addr(), SeqCst);
        }
        let pid = std::process::id();
        let (mapping, brought_in) = (OnceLock::new(), Default::default());
        let moving = Mutex::new(());
        Ok(Storage { control, data, size, mapping, brought_in, locks, slot, moving, pid })
    }

    /// The control block.
    pub fn control(&self) -> &Control {
        &self.control
    }

    /// The data file.
    pub fn data(&self) -> &Kept {
        &self.data
    }

    /// Length in bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Whether this process made it; a forked child's copy is its parent's.
    pub fn is_own(&self) -> bool {
        self.pid == std::process::id()
    }

    /// A place of the buffer's bytes in this process, whether they are there now or not.
    ///
    /// # Errors
    /// [`Error::NotMappable`].
    pub fn memory(&self, placement: Placement) -> Result<Sink<'_>, Error> {
        let memory = match placement == self.control.born() {
            true => Some(self.map_data()?.sink()),
            false => self.control.second_place(),
        };
        memory
            .and_then(|memory| memory.part(0, self.size).ok())
            .ok_or(Error::NotMappable(Errno::NOMEM))
    }

    /// The file that holds the bytes while they are at a place, and where in it they begin.
    pub fn file(&self, placement: Placement) -> (BorrowedFd<'_>, u64) {
        if placement == self.control.born() {
            return (self.data.as_fd(), 0);
        }
        (self.control.as_fd(), SECOND_PLACE)
    }

    /// Whether pages are missing in the file that holds the bytes at a place.
    pub(crate) fn has_holes(&self, placement: Placement) -> bool {
        let (file, _) = self.file(placement);
        let stat = rustix::fs::fstat(file);
        // A block is of 512 bytes whatever the file system.
        stat.map_or(true, |stat| stat.st_blocks.saturating_mul(512) < stat.st_size)
    }

    fn map_data(&self) -> Result<&Mapping, Error> {
        if let Some(mapping) = self.mapping.get() {
            return Ok(mapping);
        }
        let errno = |e: std::io::Error| {
            Error::NotMappable(Errno::from_io_error(&e).unwrap_or(Errno::NODEV))
        };
        let mapping = Mapping::shared(self.data.as_fd(), self.size).map_err(errno)?;
        let mapping = self.mapping.get_or_init(|| mapping);
        self.control.address_of(self.slot, self.control.born()).store(mapping.addr(), SeqCst);
        Ok(mapping)
    }

    /// Begins to use the buffer: until [`Storage::leave`] it stays where the answer says. Never
    /// allocates or waits.
    ///
    /// # Errors
    /// [`Error::Revoked`]; [`Error::Moving`], after which [`Storage::wait`] helps.
    #[inline]
    pub fn enter(&self, how: Use) -> Result<TurnstileState, Error> {
        self.control.enter(self.slot, how).or_else(|state| {
            if state.is_revoked() && sabotage::on(Sabotage::EnterRevoked) {
                self.control.users(self.slot).fetch_add(how.unit(), SeqCst);
                return Ok(state);
            }
            Err(match state.is_revoked() {
                true => Error::Revoked,
                false => Error::Moving(self.control.mover()),
            })
        })
    }

    /// Ends a use.
    #[inline]
    pub fn leave(&self, how: Use) {
        self.control.leave(self.slot, how);
    }

    /// Pins the buffer for a child that is about to be forked and has a mapping of it. The pin is
    /// the child's own: it lasts while a copy of the answer is open, which the child keeps until it
    /// ends or executes another program. Never waits.
    ///
    /// # Errors
    /// [`Error::Control`], [`Error::TooManyUsers`]; those of [`Storage::enter`].
    pub fn pin_for_child(&self) -> Result<Kept, Error> {
        let locks = Kept::new(fd::reopen(self.control.as_fd()).map_err(Error::Control)?);
        let slot = claim(&self.control, &locks, SLOTS)?;
        match self.control.enter(slot, Use::RevocablePin) {
            Ok(_) => Ok(locks),
            Err(state) if state.is_revoked() => Err(Error::Revoked),
            Err(_) => Err(Error::Moving(self.control.mover())),
        }
    }

    /// As [`Storage::enter`], waiting for a move to end, for `limit` at most.
    pub fn enter_within(&self, how: Use, limit: Duration) -> Result<TurnstileState, Error> {
        let deadline = Instant::now() + limit;
        loop {
            match self.enter(how) {
                Err(Error::Moving(_)) => {
                    self.wait(deadline.saturating_duration_since(Instant::now()))?;
                }
                other => return other,
            }
        }
    }

    /// Whether the buffer is not moving. Where who moved it has been killed, the buffer is let go
    /// of: its bytes are at the old place, whole, until the moment that all of them are at the new
    /// one. Never waits.
    ///
    /// # Errors
    /// [`Error::Revoked`]; [`Error::Moving`].
    pub fn settle(&self) -> Result<(), Error> {
        let closed = || self.control.state().is_closed();
        if closed() {
            self.recover();
        }
        if self.control.state().is_revoked() {
            return Err(Error::Revoked);
        }
        if closed() { Err(Error::Moving(self.control.mover())) } else { Ok(()) }
    }

    /// Returns once the buffer is not moving; see [`Storage::settle`].
    ///
    /// # Errors
    /// [`Error::Revoked`]; [`Error::Moving`] when `limit` is over.
    pub fn wait(&self, limit: Duration) -> Result<(), Error> {
        let deadline = Instant::now() + limit;
        loop {
            let state = self.control.state();
            let settled = self.settle();
            let rest = deadline.saturating_duration_since(Instant::now());
            match settled {
                Err(Error::Moving(_)) if !rest.is_zero() => {
                    self.control.wait_state(state, rest.min(LOOK_AGAIN));
                }
                other => return other,
            }
        }
    }

    /// Reopens a buffer whose mover is gone.
    fn recover(&self) {
        let _alone = match self.moving.try_lock() {
            Ok(guard) => guard,
            Err(TryLockError::Poisoned(guard)) => guard.into_inner(),
            Err(TryLockError::WouldBlock) => return,
        };
        if fd::try_lock(&self.locks, MOVER_BYTE) {
            let state = self.control.state();
            if state.is_closed() {
                self.control.set_state(state.reopened());
            }
            fd::unlock(&self.locks, MOVER_BYTE);
        }
    }

    /// The other processes that have the buffer open, and how each uses it at this moment.
    pub fn users(&self) -> Vec<User> {
        let others = (0..SLOTS).filter(|slot| *slot != self.slot && self.is_alive(*slot));
        let user = |slot: usize| {
            let users = Users(self.control.users(slot).load(SeqCst));
            let pid = self.control.owner(slot).load(Relaxed);
            User { pid, accesses: users.accesses(), pins: users.pins() }
        };
        others.map(user).collect()
    }

    /// Whether the owner of a slot is there.
    pub(crate) fn is_alive(&self, slot: usize) -> bool {
        slot == self.slot || fd::is_locked(&self.locks, slot_byte(slot))
    }
}
