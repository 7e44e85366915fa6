//! The process as a member of the registry: one client, which every device and every exporter of
//! GPU memory shares, connected when the first of them asks.

use crate::base::ffi::{Errno, Res};
use crate::base::fork_lock::{ForkLock, Held, Turn};
use crate::base::{env, hooks};
use engine_thread::lock;
use registry::{Client, Role};
use std::sync::{Arc, Mutex, MutexGuard, TryLockError, Weak};
use std::time::Instant;

static CLIENT: Mutex<Weak<Client>> = Mutex::new(Weak::new());

static FIRST: Turn = Turn::new();
/// Held by who starts an engine or connects to the registry, which may wait for other processes.
/// Before `CLIENT`, and before what runs.
static MAKING: ForkLock = ForkLock::new(&FIRST);

/// Waits until nobody starts an engine or connects to the registry; while the guard lives nobody
/// else does.
pub fn alone() -> Held {
    MAKING.take()
}

/// The same, until `deadline`; `None` where somebody is at it until then.
pub fn nobody_makes(deadline: Instant) -> Option<Held> {
    MAKING.take_before(deadline)
}

/// In a forked child, before any other thread: nobody is making anything.
pub fn free() {
    MAKING.renew();
}

/// The client, if there is one. Nobody connects while the guard lives.
pub fn place() -> MutexGuard<'static, Weak<Client>> {
    lock(&CLIENT)
}

/// The registry's client of this process; it is connected if it was not.
pub fn registry() -> Res<Arc<Client>> {
    connected(&alone())
}

/// The same for who already keeps all others from making anything.
pub fn connected(_alone: &Held) -> Res<Arc<Client>> {
    if let Some(client) = place().upgrade() {
        return Ok(client);
    }
    let client = connect()?;
    *place() = Arc::downgrade(&client);
    Ok(client)
}

/// The client, unless one is just being made or ended: for calls that may come from inside of
/// either.
pub fn registry_now() -> Option<Arc<Client>> {
    match CLIENT.try_lock() {
        Ok(client) => client.upgrade(),
        Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner().upgrade(),
        Err(TryLockError::WouldBlock) => None,
    }
}

/// Connects to the registry, and makes the process ready for what follows.
fn connect() -> Res<Arc<Client>> {
    hooks::prepare();
    Client::connect(Role::Member).map_err(|error| {
        env::say_not_open(&error);
        registry_errno(&error)
    })
}

/// What a failed call of the registry becomes at the C ABI.
pub fn registry_errno(error: &registry::Error) -> Errno {
    Errno(match error {
        registry::Error::System { errno, .. } => *errno,
        registry::Error::Timeout => libc::ETIMEDOUT,
        registry::Error::PortTaken { .. } => libc::EADDRINUSE,
        registry::Error::Full(_) => libc::ENOSPC,
        _ => libc::EIO,
    })
}
