//! Forks: the engine stays the parent's. A child that uses a context of its parent, or opens the device afresh, gets an
//! engine of its own ([`crate::lives`]). The exception is `daemon(3)`, where the parent ends and the child carries the
//! engine on.

use crate::abi::flags::FORK_UNNEEDED;
use crate::engine::{self, Engine};
use crate::{drm, lives, ucma};
use shim::Daemon;
use std::ffi::{c_int, c_void};
use std::os::fd::{AsFd, AsRawFd};
use std::sync::{Arc, Mutex, MutexGuard, Once, PoisonError, Weak};

/// What a fork holds from before it until after it, on both sides.
struct Held {
    _lives: MutexGuard<'static, ()>,
    place: MutexGuard<'static, Weak<Engine>>,
    engine: Option<Arc<Engine>>,
    /// A child gets what the processors reach.
    _home: Option<mm::AllHome<'static>>,
}

struct InFork(Option<Held>);

// SAFETY: only the forking thread (on either side) takes out what it put in; the guard never moves to another thread.
unsafe impl Send for InFork {}

static IN_FORK: Mutex<InFork> = Mutex::new(InFork(None));

fn in_fork() -> MutexGuard<'static, InFork> {
    IN_FORK.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Registers the handlers, once.
pub fn watch() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: the handlers are functions that live as long as this library, which is never unloaded.
        unsafe { libc::pthread_atfork(Some(before), Some(in_parent), Some(in_child)) };
        shim::set_daemon(after_daemon);
    });
}

extern "C" fn before() {
    let lives = lives::hold();
    let place = engine::place();
    let home = mm::PrivateMemory::running().map(mm::PrivateMemory::all_home);
    let engine = place.upgrade();
    if let Some(engine) = &engine {
        engine.device.pause();
        if shim::in_daemon() {
            engine.registry.pause();
        }
    }
    // A second fork waits in `place` above until this one is over, so nothing is overwritten here.
    in_fork().0 = Some(Held { _lives: lives, place, engine, _home: home });
}

extern "C" fn in_parent() {
    let held = in_fork().0.take();
    // After `daemon`'s fork the parent only ends, and the child has the engine; if it failed, `after_daemon` hears of it.
    if let Some(engine) = held.as_ref().and_then(|held| held.engine.as_ref())
        && !shim::in_daemon()
    {
        engine.device.resume();
    }
}

extern "C" fn in_child() {
    let Some(mut held) = in_fork().0.take() else { return };
    if shim::in_daemon() {
        return;
    }
    lives::begin();
    let Some(engine) = held.engine.take() else { return };
    engine.device.lose();
    let_go(&engine);
    *held.place = Weak::new();
    // What its end would do (threads to wait for, descriptors to close) is the parent's to do.
    std::mem::forget(engine);
}

/// Gives up the child's copies of what others see the parent's life by: connection, names and receive sockets. Takes no
/// lock and allocates nothing.
fn let_go(engine: &Engine) {
    engine.registry.abandon();
    let nothing = engine.device.directory().as_fd().as_raw_fd();
    for socket in engine.device.endpoint().receive_fds() {
        // The number stays taken, so that its owner may close it.
        // SAFETY: both descriptors are open; the one replaced is used by nobody, since the device is lost.
        unsafe { libc::syscall(libc::SYS_dup3, nothing, socket.as_raw_fd(), libc::O_CLOEXEC) };
    }
}

/// Runs in the process that `daemon(3)` made, or in the one that goes on because it failed.
fn after_daemon(outcome: Daemon) {
    let Some(engine) = engine::running() else { return };
    if outcome == Daemon::Failed {
        engine.registry.resume();
        engine.device.resume();
        return;
    }
    descriptors::adopt();
    engine::set_callbacks();
    mm::AddressSpace::adopt();
    ucma::adopt();
    drm::adopt();
    let registry = engine.registry.adopt().map_err(|error| error.to_string());
    if let Err(error) = registry.and_then(|()| engine.device.adopt().map_err(|e| e.to_string())) {
        crate::log!("the engine does not go on in the daemon: {error}");
        engine.device.lose();
    }
}

/// `ibv_fork_init(3)`: nothing to do. Registered memory is reached through the program's own addresses, so a page that
/// the parent rewrites after a fork stays the registered one.
pub(crate) extern "C" fn ibv_fork_init() -> c_int {
    0
}

/// `ibv_is_fork_initialized(3)`.
pub(crate) extern "C" fn ibv_is_fork_initialized() -> c_int {
    FORK_UNNEEDED
}

/// `ibv_dontfork_range`, of old providers: nothing to do.
pub(crate) extern "C" fn ibv_dontfork_range(_base: *mut c_void, _size: usize) -> c_int {
    0
}

/// `ibv_dofork_range`, likewise.
pub(crate) extern "C" fn ibv_dofork_range(_base: *mut c_void, _size: usize) -> c_int {
    0
}
