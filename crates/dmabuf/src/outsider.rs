//! Who reaches a software GPU's buffer without importing it: by the memory of a process that did.
//!
//! An outsider knows the control block, by the descriptor that the other process names, and uses
//! the buffer under a slot of its own while it copies: so the buffer does not move under it, and
//! whoever moves the buffer waits for it, or sees that it has ended. Where it may, it has the
//! buffer's bytes mapped for as long as it makes use of that ([`mm::View`]). All connections of a
//! process share one outsider for each buffer. The control block's file also has the buffer's
//! second place, whose pages stay as long as an outsider has the file open.

mod view;

use crate::control::{Control, NAME, SLOTS};
use crate::error::Refused;
use crate::fd;
use crate::storage::claim;
use crate::turnstile::Use;
use descriptors::Kept;
use engine_thread::try_lock;
use mm::View;
use std::collections::HashMap;
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, Weak};

/// Slots that outsiders may take: importers, who have no other way, find room beside them.
const MOST: usize = SLOTS / 2;

/// By device and number of the control block's file, which nobody can forge.
type Known = HashMap<(u64, u64), Weak<Outsider>>;

/// The control blocks that this process knows as an outsider.
static KNOWN: Mutex<Option<Known>> = Mutex::new(None);

/// A process's use of a buffer that it has not imported.
#[derive(Debug)]
pub struct Outsider {
    control: Control,
    /// Holds the slot.
    _locks: Kept,
    slot: usize,
    pid: u32,
    /// Of the second place, and of the one where the buffer was made.
    views: Mutex<[Weak<View>; 2]>,
}

impl Outsider {
    /// An outsider of the buffer whose control block is descriptor `fd` of process `pid`. Waits for
    /// no lock.
    ///
    /// # Errors
    /// Where that is no control block, too many others use the buffer, or it is not to be had now.
    pub fn new(pid: u32, fd: u32) -> Result<Arc<Outsider>, Refused> {
        let control = fd::memfd_of_process(pid, fd, NAME)?;
        let stat = rustix::fs::fstat(&control).map_err(|_| Refused::NotNow)?;
        let file = (stat.st_dev, stat.st_ino);
        // In the child of a fork the lock may be held by a thread that is not there.
        let mut known = try_lock(&KNOWN).ok_or(Refused::NotNow)?;
        let known = known.get_or_insert_default();
        if let Some(outsider) = known.get(&file).and_then(Weak::upgrade)
            && outsider.is_own()
        {
            return Ok(outsider);
        }
        known.retain(|_, outsider| outsider.strong_count() > 0);
        known.try_reserve(1).map_err(|_| Refused::NotNow)?;
        let control = Control::open_any(control)?;
        let locks = Kept::alone(fd::reopen(control.as_fd()).map_err(|_| Refused::NotNow)?);
        let slot = claim(&control, &locks, MOST).map_err(|_| Refused::NotNow)?;
        let pid = std::process::id();
        let views = Mutex::default();
        let outsider = Arc::new(Outsider { control, _locks: locks, slot, pid, views });
        known.insert(file, Arc::downgrade(&outsider));
        Ok(outsider)
    }

    /// Whether this process made it; a forked child's copy is its parent's.
    pub fn is_own(&self) -> bool {
        self.pid == std::process::id()
    }

    /// Keeps the buffer where it is until [`Outsider::leave`], if it has made `moves` moves and
    /// makes none now. Never allocates or waits.
    pub fn enter(&self, moves: u64) -> bool {
        let Ok(state) = self.control.enter(self.slot, Use::Access) else { return false };
        let is_there = state.generation() == moves;
        if !is_there {
            self.leave();
        }
        is_there
    }

    /// Lets it move again.
    pub fn leave(&self) {
        self.control.leave(self.slot, Use::Access);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Placement, Storage, memfd_name};
    use rustix::fs::{MemfdFlags, SealFlags};
    use std::os::fd::{AsRawFd, OwnedFd};
    use std::time::Duration;

    fn buffer(id: u64) -> Storage {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let data = rustix::fs::memfd_create(memfd_name(id), flags).unwrap();
        rustix::fs::ftruncate(&data, 4096).unwrap();
        rustix::fs::fcntl_add_seals(&data, SealFlags::SHRINK | SealFlags::GROW).unwrap();
        Storage::create(data, 4096, id, "1a:00.0".parse().unwrap(), Placement::Vram).unwrap()
    }

    fn outsider(storage: &Storage) -> Arc<Outsider> {
        let fd = storage.control().as_fd().as_raw_fd();
        patiently(|| Outsider::new(std::process::id(), fd.cast_unsigned())).unwrap()
    }

    /// Asks again while another test is at what all of them share.
    pub(super) fn patiently<T>(ask: impl Fn() -> Result<T, Refused>) -> Result<T, Refused> {
        loop {
            match ask() {
                Err(Refused::NotNow) => std::thread::yield_now(),
                said => return said,
            }
        }
    }

    #[test]
    fn a_buffer_stays_while_an_outsider_is_inside() {
        let storage = buffer(0x901);
        let outsider = outsider(&storage);
        assert!(Arc::ptr_eq(&outsider, &self::outsider(&storage)), "one for each buffer");
        assert!(outsider.enter(0));
        assert!(storage.move_to(Placement::Host, None, Duration::ZERO).is_err());
        outsider.leave();
        assert_eq!(storage.move_to(Placement::Host, None, Duration::ZERO), Ok(true));
        assert!(!outsider.enter(0), "where it was is known by the number of its moves");
        assert!(outsider.enter(1));
        outsider.leave();
        assert_eq!(storage.users().iter().map(|user| user.accesses).sum::<u64>(), 0);
        storage.revoke(Duration::ZERO).unwrap();
        assert!(!outsider.enter(1));
    }

    #[test]
    fn the_slot_is_free_again_when_the_outsider_is_gone() {
        let storage = buffer(0x902);
        let outsider = outsider(&storage);
        assert_eq!(storage.users().len(), 1);
        drop(outsider);
        assert_eq!(storage.users(), []);
    }

    #[test]
    fn what_is_no_control_block_is_not_taken_for_one() {
        let pid = std::process::id();
        let null = OwnedFd::from(std::fs::File::open("/dev/null").unwrap());
        let storage = buffer(0x903);
        let named = rustix::fs::memfd_create(NAME, MemfdFlags::CLOEXEC).unwrap();
        for fd in [null.as_raw_fd(), storage.data().as_fd().as_raw_fd(), named.as_raw_fd(), -1] {
            let refused = patiently(|| Outsider::new(pid, fd.cast_unsigned())).err();
            assert_eq!(refused, Some(Refused::NotOurs), "{fd}");
        }
        assert!(Outsider::new(0, 0).is_err());
    }
}
