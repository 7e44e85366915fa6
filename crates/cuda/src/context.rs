//! A context: the memory and the streams that a program has on one GPU.

use crate::gpu::Gpu;
use crate::queue::Queues;
use crate::{Error, Handle, Res};
use engine_thread::lock;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::*};
use std::sync::{Arc, Mutex, OnceLock};

/// `CU_CTX_FLAGS_MASK`.
const FLAGS: u32 = 0xff;

/// Flags as they are, if they are flags.
pub(crate) fn checked_flags(flags: u32) -> Res<u32> {
    if flags & !FLAGS == 0 { Ok(flags) } else { Err(Error::INVALID_VALUE) }
}

/// Has those look whether they give up who wait in other contexts' streams for work of this one, or
/// the other way round; nobody where there is one context only.
static ON_DEATH: OnceLock<fn()> = OnceLock::new();

/// What is to be done when any context dies.
pub(crate) fn on_death(tell: fn()) {
    ON_DEATH.get_or_init(|| tell);
}

/// A context.
pub struct Context {
    handle: Handle,
    id: u64,
    gpu: Arc<Gpu>,
    flags: AtomicU32,
    is_primary: bool,
    is_ended: AtomicBool,
    /// The code of the error that the context died of, or 0.
    died_of: AtomicU32,
    /// Streams of its own, and the order between them.
    pub queues: Queues,
    /// Values of `cuCtxSetLimit` by limit.
    limits: Mutex<HashMap<u32, u64>>,
    /// Contexts whose memory it may use (`cuCtxEnablePeerAccess`).
    peers: Mutex<Vec<Handle>>,
    /// What runtimes keep with a context, by key.
    storage: Mutex<HashMap<u64, Stored>>,
}

/// A value, and what is to be done at the context's end.
struct Stored {
    value: u64,
    at_end: Box<dyn FnOnce() + Send>,
}

impl Context {
    pub(crate) fn new(handle: Handle, gpu: Arc<Gpu>, flags: u32, is_primary: bool) -> Context {
        static IDS: AtomicU64 = AtomicU64::new(1);
        Context {
            handle,
            id: IDS.fetch_add(1, Relaxed),
            gpu,
            flags: AtomicU32::new(flags),
            is_primary,
            is_ended: AtomicBool::new(false),
            died_of: AtomicU32::new(0),
            queues: Queues::default(),
            limits: Mutex::default(),
            peers: Mutex::default(),
            storage: Mutex::default(),
        }
    }

    /// Its handle.
    pub fn handle(&self) -> Handle {
        self.handle
    }

    /// Its number, which is never used again in this process.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Its GPU.
    pub fn gpu(&self) -> &Arc<Gpu> {
        &self.gpu
    }

    /// Whether it is a GPU's primary one.
    pub fn is_primary(&self) -> bool {
        self.is_primary
    }

    /// `CU_CTX_*`.
    pub fn flags(&self) -> u32 {
        self.flags.load(Relaxed)
    }

    /// Sets them.
    pub fn set_flags(&self, flags: u32) {
        self.flags.store(flags, Relaxed);
    }

    /// Whether it was destroyed.
    pub fn is_ended(&self) -> bool {
        self.is_ended.load(Acquire)
    }

    /// Ends it; `tell` has those look again who wait for others' work unless it ended.
    pub(crate) fn end(&self, tell: impl FnOnce()) {
        self.is_ended.store(true, Release);
        tell();
        self.queues.end();
        // outside the lock: it may ask for what else is kept
        let stored = std::mem::take(&mut *lock(&self.storage));
        stored.into_values().for_each(|stored| (stored.at_end)());
    }

    /// An operation of it failed where nobody waited: every later call that waits says so, and what
    /// waits in its streams is over.
    pub fn fail(&self, error: Error) {
        if self.died_of.compare_exchange(0, error.code(), AcqRel, Relaxed).is_ok() {
            self.queues.look_again();
            ON_DEATH.get().inspect(|tell| tell());
        }
    }

    /// Whether what waits in a stream of it may go on waiting.
    ///
    /// # Errors
    /// `CUDA_ERROR_CONTEXT_IS_DESTROYED`, and as [`Context::check`].
    pub(crate) fn goes_on(&self) -> Res {
        if self.is_ended() { Err(Error::CONTEXT_IS_DESTROYED) } else { self.check() }
    }

    /// What it died of.
    ///
    /// # Errors
    /// The error of [`Context::fail`].
    pub fn check(&self) -> Res {
        Error::of(self.died_of.load(Acquire)).map_or(Ok(()), Err)
    }

    /// Waits until everything that was queued is done.
    ///
    /// # Errors
    /// As [`Context::check`].
    pub fn synchronize(&self) -> Res {
        self.queues.wait_all();
        self.check()
    }

    /// A limit (`CUlimit`).
    ///
    /// # Errors
    /// `CUDA_ERROR_UNSUPPORTED_LIMIT`.
    pub fn limit(&self, which: u32) -> Res<u64> {
        let default = *LIMITS.get(which as usize).ok_or(Error::UNSUPPORTED_LIMIT)?;
        Ok(lock(&self.limits).get(&which).copied().unwrap_or(default))
    }

    /// Sets one. None bounds anything, since no kernel is executed.
    ///
    /// # Errors
    /// `CUDA_ERROR_UNSUPPORTED_LIMIT`.
    pub fn set_limit(&self, which: u32, value: u64) -> Res {
        self.limit(which)?;
        lock(&self.limits).insert(which, value);
        Ok(())
    }

    /// Lets it use the memory of another.
    ///
    /// # Errors
    /// `CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED`.
    pub fn enable_peer(&self, other: Handle) -> Res {
        let mut peers = lock(&self.peers);
        if peers.contains(&other) {
            return Err(Error::PEER_ACCESS_ALREADY_ENABLED);
        }
        peers.push(other);
        Ok(())
    }

    /// Takes that back.
    ///
    /// # Errors
    /// `CUDA_ERROR_PEER_ACCESS_NOT_ENABLED`.
    pub fn disable_peer(&self, other: Handle) -> Res {
        let mut peers = lock(&self.peers);
        let before = peers.len();
        peers.retain(|peer| *peer != other);
        if peers.len() == before { Err(Error::PEER_ACCESS_NOT_ENABLED) } else { Ok(()) }
    }

    /// Keeps a value with the context until that ends.
    pub fn store(&self, key: u64, value: u64, at_end: impl FnOnce() + Send + 'static) {
        lock(&self.storage).insert(key, Stored { value, at_end: Box::new(at_end) });
    }

    /// A value that is kept.
    pub fn stored(&self, key: u64) -> Option<u64> {
        lock(&self.storage).get(&key).map(|stored| stored.value)
    }

    /// Forgets it; nothing is to be done any more.
    pub fn forget(&self, key: u64) -> Option<u64> {
        lock(&self.storage).remove(&key).map(|stored| stored.value)
    }
}

/// Defaults by `CUlimit`: stack, printf's buffer, device malloc's heap, depth and launches of
/// device runtimes, L2's fetch granularity and persisting size, shared memory, three of CIG.
const LIMITS: [u64; 10] = [1024, 1 << 20, 8 << 20, 2, 2048, 128, 0, 0, 0, 0];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::Found;

    fn context() -> Context {
        let found = Found::for_tests("0000:01:00.0".parse().unwrap());
        Context::new(64, Arc::new(Gpu::new(found)), 0, false)
    }

    #[test]
    fn the_first_failure_is_the_one_that_stays() {
        let context = context();
        assert_eq!(context.check(), Ok(()));
        context.fail(Error::ILLEGAL_ADDRESS);
        context.fail(Error::LAUNCH_FAILED);
        assert_eq!(context.synchronize(), Err(Error::ILLEGAL_ADDRESS));
    }

    #[test]
    fn limits_peers_and_storage_are_the_contexts_own() {
        let context = context();
        assert_eq!(
            (context.limit(0), context.limit(99)),
            (Ok(1024), Err(Error::UNSUPPORTED_LIMIT))
        );
        context.set_limit(0, 4096).unwrap();
        assert_eq!(context.limit(0), Ok(4096));
        assert_eq!(context.disable_peer(7), Err(Error::PEER_ACCESS_NOT_ENABLED));
        context.enable_peer(7).unwrap();
        assert_eq!(context.enable_peer(7), Err(Error::PEER_ACCESS_ALREADY_ENABLED));
        context.disable_peer(7).unwrap();
        let ended = Arc::new(AtomicU32::new(0));
        let count = |by| {
            let ended = ended.clone();
            move || {
                ended.fetch_add(by, Relaxed);
            }
        };
        context.store(1, 2, count(1));
        assert_eq!(
            (context.stored(1), context.forget(1), context.stored(1)),
            (Some(2), Some(2), None)
        );
        context.store(3, 4, count(10));
        context.end(|| ());
        assert_eq!((ended.load(Relaxed), context.stored(3)), (10, None));
    }
}
