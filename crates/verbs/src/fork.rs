//! Forks: the engine stays the parent's. A child that uses a context of its parent, or opens the device afresh, gets an
//! engine of its own ([`crate::lives`]). The exception is `daemon(3)`, where the parent ends and the child carries the
//! engine on.

use crate::abi::flags::FORK_UNNEEDED;
use crate::engine::{self, Engine, Running};
use crate::{drm, lives, ucma};
use registry::Client;
use shim::Daemon;
use std::ffi::{c_int, c_void};
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::sync::{Arc, Mutex, MutexGuard, Once, PoisonError};

/// What a fork holds from before it until after it, on both sides.
struct Held {
    _lives: MutexGuard<'static, ()>,
    place: MutexGuard<'static, Running>,
    registry: Option<Arc<Client>>,
    engines: Vec<Arc<Engine>>,
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
    let (registry, engines) = (place.registry(), place.engines());
    engines.iter().for_each(|engine| engine.device.pause());
    if let Some(registry) = registry.as_ref().filter(|_| shim::in_daemon()) {
        registry.pause();
    }
    // A second fork waits in `place` above until this one is over, so nothing is overwritten here.
    in_fork().0 = Some(Held { _lives: lives, place, registry, engines, _home: home });
}

extern "C" fn in_parent() {
    let held = in_fork().0.take();
    // After `daemon`'s fork the parent only ends, and the child has the engine; if it failed, `after_daemon` hears of it.
    if !shim::in_daemon() {
        held.iter().flat_map(|held| &held.engines).for_each(|engine| engine.device.resume());
    }
}

extern "C" fn in_child() {
    let Some(mut held) = in_fork().0.take() else { return };
    if shim::in_daemon() {
        return;
    }
    lives::begin();
    if let Some(registry) = &held.registry {
        registry.abandon();
    }
    for engine in &held.engines {
        engine.device.lose();
    }
    if let Some(engine) = held.engines.first() {
        let_go(engine);
    }
    // What their end would do (threads to wait for, descriptors to close) is the parent's to do.
    std::mem::forget(std::mem::take(&mut *held.place));
    std::mem::forget((held.registry.take(), std::mem::take(&mut held.engines)));
}

/// Gives up the child's copies of UDP sockets: the parent's, and those of its peers that it watches. By them others see who
/// lives. Takes no lock and allocates nothing.
fn let_go(engine: &Engine) {
    let nothing = engine.device.directory().as_fd().as_raw_fd();
    let mut next = descriptors::next_inherited(0);
    while let Some(number) = next {
        if is_udp(number as i32) {
            // The number stays taken, so that its owner may close it.
            // SAFETY: both descriptors are open; the one replaced is used by nobody, since the devices are lost.
            unsafe { libc::syscall(libc::SYS_dup3, nothing, number, libc::O_CLOEXEC) };
        }
        next = descriptors::next_inherited(number + 1);
    }
}

fn is_udp(fd: RawFd) -> bool {
    let (mut protocol, mut len) = (0, size_of::<c_int>() as libc::socklen_t);
    let (to, len_of) = ((&raw mut protocol).cast(), &raw mut len);
    // SAFETY: the kernel writes at most `len` bytes to an int that lives through the call.
    let rc = unsafe { libc::getsockopt(fd, libc::SOL_SOCKET, libc::SO_PROTOCOL, to, len_of) };
    rc == 0 && protocol == libc::IPPROTO_UDP
}

/// Runs in the process that `daemon(3)` made, or in the one that goes on because it failed.
fn after_daemon(outcome: Daemon) {
    let (registry, engines) = {
        let running = engine::place();
        (running.registry(), running.engines())
    };
    let Some(registry) = registry else { return };
    if outcome == Daemon::Failed {
        registry.resume();
        engines.iter().for_each(|engine| engine.device.resume());
        return;
    }
    descriptors::adopt();
    engine::set_callbacks();
    mm::AddressSpace::adopt();
    ucma::adopt();
    drm::adopt();
    let adopted = registry.adopt().map_err(|error| error.to_string());
    for engine in engines {
        let device = &engine.device;
        let both = adopted.clone().and_then(|()| device.adopt().map_err(|e| e.to_string()));
        if let Err(error) = both {
            crate::log!("the engine does not go on in the daemon: {error}");
            device.lose();
        }
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
