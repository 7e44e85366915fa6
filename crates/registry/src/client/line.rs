//! The one connection of a process to its registry, and what the process has there.
//!
//! One caller at a time uses the connection; the client's thread replaces it when its host goes,
//! and then registers again everything that is kept here.

use crate::Error;
use crate::client::connection::{Connection, RegistryAddress};
use crate::client::fork_pause::ForkPause;
use crate::client::member::Role;
use crate::fds::Fd;
use crate::proto::Identity;
use engine_thread::{lock, wait_timeout};
use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Instant;

/// What a membership needs to be registered again.
pub(crate) struct Joined {
    pub who: Identity,
    pub joined_at: u64,
    pub directory: Fd,
    pub v4: Option<Fd>,
    pub v6: Option<Fd>,
    pub deed: Fd,
}

/// Everything of this process that the registry knows.
#[derive(Clone, Default)]
pub(crate) struct Kept {
    pub members: BTreeMap<u16, Arc<Joined>>,
    pub published: BTreeMap<String, Arc<Fd>>,
    pub claims: BTreeMap<(u32, u64), u16>,
    /// Holds what must outlive the registry's host.
    pub vault: Option<Arc<Fd>>,
}

/// The connection, used by one caller at a time.
pub(crate) struct Line {
    pub connection: Option<Arc<Connection>>,
    pub busy: bool,
    /// Why there is no link.
    pub error: Option<Error>,
    pub kept: Kept,
}

pub(crate) struct Shared {
    pub place: RegistryAddress,
    pub line: Mutex<Line>,
    pub changed: Condvar,
    pub wake: Fd,
    pub stop: AtomicBool,
    pub abandoned: AtomicBool,
    pub fork_pause: ForkPause,
    /// The thread stood, and no call was under way, when the latest pause was over.
    pub stood: AtomicBool,
}

impl Shared {
    pub(crate) fn lock(&self) -> MutexGuard<'_, Line> {
        lock(&self.line)
    }

    pub(crate) fn release(&self, mut line: MutexGuard<'_, Line>) {
        line.busy = false;
        drop(line);
        self.changed.notify_all();
    }

    /// What the worker watches: the link, and the deeds, at which a new registry announces itself.
    pub(crate) fn watched(&self) -> (Option<Arc<Connection>>, Vec<Watched>) {
        let line = self.lock();
        let deeds = line.kept.members.values().map(|m| Watched(m.clone())).collect();
        (line.connection.clone(), deeds)
    }

    /// Waits until no call is under way. False when one is, at `deadline`.
    pub(super) fn is_idle(&self, deadline: Instant) -> bool {
        let mut line = self.lock();
        while line.busy {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            line = wait_timeout(&self.changed, line, left);
        }
        true
    }

    pub(super) fn nudge(&self) {
        let _ = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
    }

    /// Waits for the line to be free and linked. An observer, which has no worker, links it here.
    pub(super) fn take(&self, deadline: Instant) -> Result<Arc<Connection>, Error> {
        let mut line = self.lock();
        loop {
            if !line.busy {
                if let Some(link) = line.connection.clone() {
                    line.busy = true;
                    return Ok(link);
                }
                if let Some(error) = line.error.take() {
                    return Err(error);
                }
                if self.place.role == Role::Observer {
                    line.busy = true;
                    drop(line);
                    let found = self.place.establish(deadline, &mut None).map(Arc::new);
                    line = self.lock();
                    line.connection = found.as_ref().ok().cloned();
                    if found.is_err() {
                        self.release(line);
                    }
                    return found;
                }
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(Error::Timeout);
            }
            line = wait_timeout(&self.changed, line, left);
        }
    }
}

/// A deed while the worker watches it.
pub(crate) struct Watched(Arc<Joined>);

impl AsFd for Watched {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.deed.as_fd()
    }
}
