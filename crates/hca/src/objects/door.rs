//! What a queue pair lets its peer on the same device do without packets (D7).
//!
//! The peer's thread goes in by [`Door::visit`], and stays in while it copies. Whoever changes what
//! the queue pair grants shuts the door first, and so waits for the peer. A visitor waits for
//! nobody who may want through a door: it only tries to go in, and takes no lock inside. So the
//! door may be shut by who holds the queue pair's lock.

use engine_thread::{try_read, write};
use std::sync::{RwLock, RwLockReadGuard};
use transport::values::{Access, PdId};

/// The door of one queue pair. Nobody but its peer comes through.
pub(crate) struct Door {
    /// The queue pair's number and protection domain.
    pub(crate) number: u32,
    pub(crate) pd: PdId,
    open: RwLock<Option<Open>>,
}

/// To whom a door is open, and for what.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Open {
    /// The peer's number.
    pub(crate) peer: u32,
    /// [`ends_word`](crate::adapter::directory::ends_word) of the peer's packets, if they were
    /// sent.
    pub(crate) ends: u64,
    pub(crate) access: Access,
}

/// The peer is inside, until this is dropped.
pub(crate) struct Visit<'a> {
    _inside: RwLockReadGuard<'a, Option<Open>>,
    pub(crate) access: Access,
}

impl Door {
    /// One that is shut.
    pub(crate) fn new(number: u32, pd: PdId) -> Door {
        Door { number, pd, open: RwLock::new(None) }
    }

    /// Opens it, or shuts it, and returns once nobody is inside who came by what was before.
    pub(crate) fn set(&self, open: Option<Open>) {
        *write(&self.open) = open;
    }

    /// Goes in as queue pair `number`, whose packets would have `ends`; `None` if it is not open to
    /// that one, or is just being shut.
    pub(crate) fn visit(&self, number: u32, ends: u64) -> Option<Visit<'_>> {
        let inside = try_read(&self.open)?;
        let open = (*inside).filter(|open| open.peer == number && open.ends == ends)?;
        Some(Visit { _inside: inside, access: open.access })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

    const OPEN: Open = Open { peer: 9, ends: 77, access: Access::REMOTE_READ };

    #[test]
    fn only_the_peer_comes_in_while_it_is_open() {
        let door = Door::new(5, PdId(3));
        assert!(door.visit(9, 77).is_none());
        door.set(Some(OPEN));
        assert!(door.visit(8, 77).is_none() && door.visit(9, 78).is_none());
        assert_eq!(door.visit(9, 77).map(|visit| visit.access), Some(Access::REMOTE_READ));
        door.set(None);
        assert!(door.visit(9, 77).is_none());
    }

    #[test]
    fn who_shuts_it_waits_for_the_visitor() {
        let door = Door::new(5, PdId(3));
        door.set(Some(OPEN));
        let left = AtomicBool::new(false);
        let visit = door.visit(9, 77).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                door.set(None);
                assert!(left.load(SeqCst));
            });
            // Who shuts it keeps others out from when it waits on.
            while door.visit(9, 77).is_some() {
                std::thread::yield_now();
            }
            left.store(true, SeqCst);
            drop(visit);
        });
    }
}
