//! Descriptors that a forked child can close without a lock.
//!
//! A fork copies every descriptor of the registry into the child, and as long as the child lives
//! nobody would see this process's connections end. So all of them are entered in a [`Table`] that
//! only ever grows and that [`Table::abandon`] empties without locking or allocating; an [`Fd`]
//! whose entry is gone closes nothing when dropped.

use descriptors::Kept;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Arc, OnceLock};

const EMPTY: RawFd = -1;
const CELLS: usize = 256;

struct Chunk {
    cells: [AtomicI32; CELLS],
    next: OnceLock<Box<Chunk>>,
}

impl Chunk {
    fn new() -> Self {
        Chunk { cells: [const { AtomicI32::new(EMPTY) }; CELLS], next: OnceLock::new() }
    }
}

/// All descriptors of one client and of the registry it may host.
pub(crate) struct Table(Chunk);

impl Table {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Table(Chunk::new()))
    }

    fn cell(&self, index: usize) -> Option<&AtomicI32> {
        let mut chunk = &self.0;
        for _ in 0..index / CELLS {
            chunk = chunk.next.get()?;
        }
        Some(&chunk.cells[index % CELLS])
    }

    fn enter(&self, raw: RawFd) -> usize {
        let (mut chunk, mut base) = (&self.0, 0);
        loop {
            for (i, cell) in chunk.cells.iter().enumerate() {
                let entered =
                    cell.compare_exchange(EMPTY, raw, Ordering::AcqRel, Ordering::Relaxed);
                if entered.is_ok() {
                    return base + i;
                }
            }
            chunk = chunk.next.get_or_init(|| Box::new(Chunk::new()));
            base += CELLS;
        }
    }

    /// Takes ownership of a descriptor, moves it high and has it spared.
    pub(crate) fn keep(self: &Arc<Self>, fd: OwnedFd) -> Fd {
        let raw = Kept::new(fd).into_raw_fd();
        Fd { index: self.enter(raw), raw, table: self.clone(), cookie: OnceLock::new() }
    }

    /// A duplicate of a descriptor.
    pub(crate) fn duplicate(self: &Arc<Self>, fd: BorrowedFd<'_>) -> rustix::io::Result<Fd> {
        Ok(self.keep(rustix::io::fcntl_dupfd_cloexec(fd, 0)?))
    }

    /// Closes everything. For a forked child, where no other thread exists.
    pub(crate) fn abandon(&self) {
        let mut chunk = Some(&self.0);
        while let Some(here) = chunk {
            for cell in &here.cells {
                let raw = cell.swap(EMPTY, Ordering::AcqRel);
                if raw != EMPTY {
                    // The fork copied the descriptors before the memory, and the parent's threads
                    // ran on: an entry made between the two names nothing here, and closing that is
                    // no more than refused. SAFETY: as in `close`; nobody else is here who could
                    // own the number.
                    unsafe { libc::close(raw) };
                }
            }
            chunk = here.next.get().map(|next| &**next);
        }
    }
}

fn close(raw: RawFd) {
    if raw != EMPTY {
        // SAFETY: the number came out of its table entry by an atomic swap, so nobody else closes
        // it, and an entry is made only from an owned descriptor.
        drop(Kept::here(unsafe { OwnedFd::from_raw_fd(raw) }));
    }
}

/// An owned descriptor with an entry in a [`Table`].
pub(crate) struct Fd {
    raw: RawFd,
    index: usize,
    table: Arc<Table>,
    /// Of a socket, once it was asked for.
    cookie: OnceLock<Option<u64>>,
}

impl Fd {
    /// The number that the kernel gives a socket for as long as it lives, whatever descriptors it
    /// has (`SO_COOKIE`).
    pub(crate) fn cookie(&self) -> Option<u64> {
        *self.cookie.get_or_init(|| rustix::net::sockopt::socket_cookie(self).ok())
    }
}

impl PartialEq for Fd {
    fn eq(&self, other: &Fd) -> bool {
        // Two that are open at once differ in their number.
        self.raw == other.raw
    }
}

impl AsFd for Fd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the descriptor is open as long as `self` lives, save after `abandon`, which
        // happens in a forked child only, where the callers (client and worker) use it no more.
        unsafe { BorrowedFd::borrow_raw(self.raw) }
    }
}

impl Drop for Fd {
    fn drop(&mut self) {
        if let Some(cell) = self.table.cell(self.index) {
            let mine = cell.compare_exchange(self.raw, EMPTY, Ordering::AcqRel, Ordering::Relaxed);
            if let Ok(raw) = mine {
                close(raw);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{EventfdFlags, eventfd};

    fn open(raw: RawFd) -> bool {
        std::fs::symlink_metadata(format!("/proc/self/fd/{raw}")).is_ok()
    }

    #[test]
    fn a_dropped_descriptor_is_closed_and_a_kept_one_is_high() {
        let table = Table::new();
        let fd = table.keep(eventfd(0, EventfdFlags::CLOEXEC).unwrap());
        let raw = fd.raw;
        assert!(raw > 100 && descriptors::is_kept(raw) && open(raw));
        drop(fd);
        assert!(table.cell(0).is_some_and(|c| c.load(Ordering::Relaxed) == EMPTY));
    }

    #[test]
    fn abandon_bears_an_entry_whose_descriptor_the_fork_did_not_copy() {
        let table = Table::new();
        // No process has that many.
        table.enter(RawFd::MAX);
        table.abandon();
        assert_eq!(table.cell(0).unwrap().load(Ordering::Relaxed), EMPTY);
    }

    #[test]
    fn abandon_closes_all_once() {
        let table = Table::new();
        let fds: Vec<Fd> = (0..CELLS + 10)
            .map(|_| table.keep(eventfd(0, EventfdFlags::CLOEXEC).unwrap()))
            .collect();
        table.abandon();
        let cells = (0..CELLS + 10).map(|i| table.cell(i).unwrap().load(Ordering::Relaxed));
        assert!(cells.into_iter().all(|raw| raw == EMPTY));
        drop(fds);
    }
}
