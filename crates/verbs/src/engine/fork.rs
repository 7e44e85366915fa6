//! Forks: the engine stays the parent's. A child that uses a context of its parent, or opens the
//! device afresh, gets an engine of its own ([`crate::base::fork_state`]). The exception is
//! `daemon(3)`, where the parent ends and the child carries the engine on.
//!
//! A fork asks the engine's threads to stand still and nobody to make anything, and waits for that
//! for [`PATIENCE`] at most. Whatever was locked then stays locked in the child, as what the
//! program's other threads had locked does in any case; so the child takes no lock of its parent's
//! engine, and finds the process's own locks free. Only a daemon needs an engine that stood still:
//! where it did not, its calls answer EIO there.

use crate::base::env::{self, Link};
use crate::base::{fork_lock, fork_state, hooks};
use crate::engine::process::{self, Engine, Running};
use crate::platform::membership;
use descriptors::Kept;
use registry::Client;
use shim::Daemon;
use std::cell::RefCell;
use std::ffi::{c_int, c_void};
use std::mem::ManuallyDrop;
use std::os::fd::RawFd;
use std::sync::{Arc, MutexGuard, Once, Weak};
use std::time::{Duration, Instant};
use verbs_sys::flags::FORK_UNNEEDED;

/// How long a fork waits for the engine, whatever happens. Pages in a device's memory come home
/// first, without a limit.
const PATIENCE: Duration = Duration::from_millis(100);
/// The same for `daemon(3)`, whose child has no device where the engine did not stand still.
const PATIENCE_OF_DAEMONS: Duration = Duration::from_secs(1);

/// What a fork holds from before it until after it, on both sides.
struct Held {
    lives: Option<fork_lock::Held>,
    making: Option<fork_lock::Held>,
    client: MutexGuard<'static, Weak<Client>>,
    running: MutexGuard<'static, Running>,
    registry: Option<Arc<Client>>,
    engines: Vec<Arc<Engine>>,
    /// What keeps GPU buffers in place that the child has mapped.
    pins: Vec<Kept>,
    /// A child gets what the processors reach.
    _home: Option<mm::AllHome<'static>>,
}

thread_local! {
    /// What the forking thread holds, which is the only one of the child. Never dropped, so that it
    /// is there until a thread's very end.
    static IN_FORK: ManuallyDrop<RefCell<Option<Held>>> =
        const { ManuallyDrop::new(RefCell::new(None)) };
}

fn take_held() -> Option<Held> {
    IN_FORK.with(|in_fork| in_fork.take())
}

/// Registers the handlers, once.
pub fn watch() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: the handlers are functions that live as long as this library, which is never
        // unloaded.
        unsafe { libc::pthread_atfork(Some(before), Some(in_parent), Some(in_child)) };
        shim::set_daemon(after_daemon);
    });
}

extern "C" fn before() {
    let patience = if shim::in_daemon() { PATIENCE_OF_DAEMONS } else { PATIENCE };
    let deadline = Instant::now() + patience;
    let lives = fork_state::hold(deadline);
    let making = membership::nobody_makes(deadline);
    let running = process::running();
    let client = membership::place();
    let began = Instant::now();
    let home = mm::PrivateMemory::running().map(mm::PrivateMemory::all_home);
    // the engine has its time whatever that took: a daemon without an engine would be the price
    let deadline = deadline + began.elapsed();
    let (registry, engines) = (client.upgrade(), running.engines());
    engines.iter().for_each(|engine| engine.device.pause(deadline));
    if shim::in_daemon() {
        engines.iter().for_each(|engine| engine.device.keep_neighbours_out());
    }
    if let Some(registry) = registry.as_ref().filter(|_| shim::in_daemon()) {
        registry.pause(deadline);
    }
    let pins = if shim::in_daemon() { Vec::new() } else { hooks::pins_for_child() };
    let held = Held { lives, making, client, running, registry, engines, pins, _home: home };
    IN_FORK.with(|in_fork| in_fork.replace(Some(held)));
}

extern "C" fn in_parent() {
    let held = take_held();
    // After `daemon`'s fork the parent only ends, and the child has the engine; if it failed,
    // `after_daemon` hears of it.
    if !shim::in_daemon() {
        held.iter().flat_map(|held| &held.engines).for_each(|engine| engine.device.resume());
    }
}

extern "C" fn in_child() {
    let Some(mut held) = take_held() else { return };
    // Who held them, or waited for them, is in the parent.
    std::mem::forget((held.lives.take(), held.making.take()));
    std::mem::forget(std::mem::take(&mut held.pins));
    fork_state::free();
    membership::free();
    if shim::in_daemon() {
        return;
    }
    fork_state::begin();
    if let Some(registry) = &held.registry {
        registry.abandon();
    }
    for engine in &held.engines {
        engine.device.lose();
    }
    let_go();
    // What their end would do (threads to wait for, descriptors to close) is the parent's to do.
    std::mem::forget(std::mem::take(&mut *held.client));
    std::mem::forget(std::mem::take(&mut *held.running));
    std::mem::forget((held.registry.take(), std::mem::take(&mut held.engines)));
}

/// Gives up the child's copies of what others see by who lives: UDP sockets, the parent's and those
/// of its peers that it watches, and locks on GPU buffers. Takes no lock and allocates nothing.
fn let_go() {
    let shows_life = |fd: RawFd| descriptors::is_alone(fd) || is_udp(fd);
    let Some(other) = inherited().find(|fd| !shows_life(*fd)) else { return };
    for fd in inherited().filter(|fd| shows_life(*fd)) {
        // The number stays taken, so that its owner may close it. SAFETY: both descriptors are
        // open; the one replaced is used by nobody, since the devices are lost and buffers are the
        // parent's.
        unsafe { libc::syscall(libc::SYS_dup3, other, fd, libc::O_CLOEXEC) };
    }
}

/// The child's copies of its parent's descriptors.
fn inherited() -> impl Iterator<Item = RawFd> {
    let first = descriptors::next_inherited(0);
    let next = |fd: &u32| descriptors::next_inherited(fd + 1);
    std::iter::successors(first, next).map(|fd| fd as RawFd)
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
    let engines = process::running().engines();
    let Some(registry) = membership::place().upgrade() else { return };
    if outcome == Daemon::Failed {
        registry.resume();
        engines.iter().for_each(|engine| engine.device.resume());
        return;
    }
    descriptors::adopt();
    hooks::adopt();
    let space = mm::AddressSpace::adopt();
    if let Ok(Link::Local) = env::link() {
        // The parent's permission is not its child's.
        mm::permit_others();
    }
    let adopted = registry.adopt().map_err(|error| error.to_string());
    let adopted = space.map_err(|error| error.to_string()).and(adopted);
    for engine in engines {
        let device = &engine.device;
        let both = adopted.clone().and_then(|()| device.adopt().map_err(|e| e.to_string()));
        if let Err(error) = both {
            crate::log!("the engine does not go on in the daemon: {error}");
            device.lose();
        }
    }
}

/// `ibv_fork_init(3)`: nothing to do. Registered memory is reached through the program's own
/// addresses, so a page that the parent rewrites after a fork stays the registered one.
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
