//! The one driver of a process: its GPUs and everything that programs hold of it.

use crate::context::Context;
use crate::gpu::{Gpu, found, visible};
use crate::handles::{Handle, Handles};
use crate::memory::{Array, HeldMemory, OpenedMemory, Pool, Space};
use crate::module::Modules;
use crate::queue::{Event, Stream, is_worker};
use crate::{Error, Res, log};
use engine_thread::lock;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock};

/// What `cuInit` makes.
pub struct Driver {
    /// The GPUs by their ordinals.
    gpus: Vec<Arc<Gpu>>,
    /// Contexts, the primary ones among them.
    pub contexts: Handles<Context>,
    /// Streams that programs made.
    pub streams: Handles<Stream>,
    /// Events.
    pub events: Handles<Event>,
    /// Memory pools.
    pub pools: Handles<Pool>,
    /// Physical memory (`CUmemGenericAllocationHandle`).
    pub physical: HeldMemory,
    /// Memory of other processes.
    pub opened: OpenedMemory,
    /// CUDA arrays.
    pub arrays: Handles<Array>,
    /// Addresses.
    pub space: Space,
    /// Modules and their kernels.
    pub modules: Modules,
    primaries: Vec<Mutex<Primary>>,
    default_pools: Vec<OnceLock<Handle>>,
    /// The pools that programs set in their place, by ordinal.
    set_pools: Mutex<HashMap<i32, Handle>>,
    process: u32,
}

/// A GPU's primary context: the one that all who retain it share.
#[derive(Default)]
struct Primary {
    context: Option<Arc<Context>>,
    retained: usize,
    flags: u32,
}

static DRIVER: OnceLock<Driver> = OnceLock::new();

/// Has what waits in any stream for another's work look whether it gives up.
fn look_again() {
    if let Some(driver) = DRIVER.get() {
        driver.contexts.all().iter().for_each(|context| context.queues.look_again());
    }
}

impl Driver {
    /// Makes the driver; once it is there, answers it.
    ///
    /// # Errors
    /// `CUDA_ERROR_NO_DEVICE`; `CUDA_ERROR_NOT_INITIALIZED` in a child of a process that made it.
    pub fn init() -> Res<&'static Driver> {
        if DRIVER.get().is_none() {
            let gpus: Vec<Gpu> = found().into_iter().map(Gpu::new).collect();
            let value = std::env::var("CUDA_VISIBLE_DEVICES").ok();
            let gpus = visible(gpus, value.as_deref());
            if gpus.is_empty() {
                log::say("no GPU: is the program started by `peerdma run --gpu cuda`?");
                return Err(Error::NO_DEVICE);
            }
            crate::context::on_death(look_again);
            DRIVER.get_or_init(|| Driver::new(gpus));
        }
        Driver::get()
    }

    fn new(gpus: Vec<Gpu>) -> Driver {
        let gpus: Vec<Arc<Gpu>> = gpus.into_iter().map(Arc::new).collect();
        Driver {
            contexts: Handles::default(),
            streams: Handles::default(),
            events: Handles::default(),
            pools: Handles::default(),
            physical: HeldMemory::default(),
            opened: OpenedMemory::default(),
            arrays: Handles::default(),
            space: Space::default(),
            modules: Modules::default(),
            primaries: gpus.iter().map(|_| Mutex::default()).collect(),
            default_pools: gpus.iter().map(|_| OnceLock::new()).collect(),
            set_pools: Mutex::default(),
            process: std::process::id(),
            gpus,
        }
    }

    /// The driver.
    ///
    /// # Errors
    /// `CUDA_ERROR_NOT_INITIALIZED` before [`Driver::init`], and in a child of fork(2);
    /// `CUDA_ERROR_NOT_PERMITTED` in a function that a stream calls.
    pub fn get() -> Res<&'static Driver> {
        if is_worker() {
            return Err(Error::NOT_PERMITTED);
        }
        let driver = DRIVER.get().ok_or(Error::NOT_INITIALIZED)?;
        if driver.process != std::process::id() {
            log::say_once("a child of fork(2) cannot use its parent's CUDA");
            return Err(Error::NOT_INITIALIZED);
        }
        Ok(driver)
    }

    /// All GPUs by ordinal.
    pub fn gpus(&self) -> &[Arc<Gpu>] {
        &self.gpus
    }

    /// The GPU of an ordinal.
    ///
    /// # Errors
    /// `CUDA_ERROR_INVALID_DEVICE`.
    pub fn gpu(&self, ordinal: i32) -> Res<&Arc<Gpu>> {
        let found = usize::try_from(ordinal).ok().and_then(|ordinal| self.gpus.get(ordinal));
        found.ok_or(Error::INVALID_DEVICE)
    }

    /// The ordinal of a GPU.
    pub fn ordinal(&self, gpu: &Arc<Gpu>) -> i32 {
        self.gpus.iter().position(|other| Arc::ptr_eq(other, gpu)).map_or(-1, |at| at as i32)
    }

    fn primary(&self, ordinal: i32) -> Res<&Mutex<Primary>> {
        let found = usize::try_from(ordinal).ok().and_then(|ordinal| self.primaries.get(ordinal));
        found.ok_or(Error::INVALID_DEVICE)
    }

    /// The primary context of a GPU, made with the first call; each call is to be met by a release.
    ///
    /// # Errors
    /// `CUDA_ERROR_INVALID_DEVICE`, and what opening the GPU's node says.
    pub fn retain_primary(&self, ordinal: i32) -> Res<Arc<Context>> {
        let mut primary = lock(self.primary(ordinal)?);
        let context = match &primary.context {
            Some(context) => context.clone(),
            None => {
                let context = self.new_context(ordinal, primary.flags, true)?;
                primary.context.insert(context).clone()
            }
        };
        primary.retained += 1;
        Ok(context)
    }

    /// Takes one retain back; with the last the context ends.
    ///
    /// # Errors
    /// `CUDA_ERROR_INVALID_DEVICE`; `CUDA_ERROR_INVALID_CONTEXT` if nobody retains it.
    pub fn release_primary(&self, ordinal: i32) -> Res {
        let mut primary = lock(self.primary(ordinal)?);
        primary.retained = primary.retained.checked_sub(1).ok_or(Error::INVALID_CONTEXT)?;
        let ended = if primary.retained == 0 { primary.context.take() } else { None };
        drop(primary);
        ended.inspect(|context| self.end(context));
        Ok(())
    }

    /// Ends the primary context, whoever retains it.
    ///
    /// # Errors
    /// `CUDA_ERROR_INVALID_DEVICE`.
    pub fn reset_primary(&self, ordinal: i32) -> Res {
        let mut primary = lock(self.primary(ordinal)?);
        let ended = primary.context.take();
        primary.retained = 0;
        drop(primary);
        ended.inspect(|context| self.end(context));
        Ok(())
    }

    /// Flags of the primary context, and whether it is there.
    ///
    /// # Errors
    /// `CUDA_ERROR_INVALID_DEVICE`.
    pub fn primary_state(&self, ordinal: i32) -> Res<(u32, bool)> {
        let primary = lock(self.primary(ordinal)?);
        Ok((primary.flags, primary.context.is_some()))
    }

    /// Sets the flags of the primary context.
    ///
    /// # Errors
    /// `CUDA_ERROR_INVALID_DEVICE`; `CUDA_ERROR_INVALID_VALUE` for flags that are none.
    pub fn set_primary_flags(&self, ordinal: i32, flags: u32) -> Res {
        let mut primary = lock(self.primary(ordinal)?);
        primary.flags = crate::context::checked_flags(flags)?;
        primary.context.as_ref().inspect(|context| context.set_flags(flags));
        Ok(())
    }

    /// A new context of a GPU.
    ///
    /// # Errors
    /// `CUDA_ERROR_INVALID_DEVICE`, `CUDA_ERROR_INVALID_VALUE`, and what opening the node says.
    pub fn new_context(&self, ordinal: i32, flags: u32, is_primary: bool) -> Res<Arc<Context>> {
        let gpu = self.gpu(ordinal)?;
        gpu.node()?;
        let flags = crate::context::checked_flags(flags)?;
        let make = |handle| Context::new(handle, gpu.clone(), flags, is_primary);
        Ok(self.contexts.add(make)?.1)
    }

    /// Ends a context: what was queued is finished, unless it waits for a value in memory or for
    /// another context; what it has goes.
    pub fn end(&self, context: &Arc<Context>) {
        if self.contexts.remove(context.handle()).is_err() {
            return;
        }
        context.end(|| self.contexts.all().iter().for_each(|other| other.queues.look_again()));
        self.clear(context.handle());
    }

    /// What a call made in a context stays, unless the context ended meanwhile: then it goes, as
    /// all that the context had.
    ///
    /// # Errors
    /// `CUDA_ERROR_CONTEXT_IS_DESTROYED`.
    pub fn made_in(&self, context: &Context) -> Res {
        if !context.is_ended() {
            return Ok(());
        }
        context.queues.wait_all();
        self.clear(context.handle());
        Err(Error::CONTEXT_IS_DESTROYED)
    }

    /// Gives back what a context has.
    fn clear(&self, of_it: Handle) {
        drop(self.streams.remove_where(|stream| stream.lane().context().handle() == of_it));
        drop(self.events.remove_where(|event| event.context() == of_it));
        drop(self.arrays.remove_where(|array| array.context() == of_it));
        self.space.remove_of(of_it).iter().for_each(|range| Pool::went(&self.pools, range));
        self.modules.end(of_it);
    }

    /// The pool that `cuMemAllocAsync` takes a GPU's memory from, unless another was set.
    ///
    /// # Errors
    /// `CUDA_ERROR_INVALID_DEVICE`.
    pub fn default_pool(&self, ordinal: i32) -> Res<Arc<Pool>> {
        let gpu = self.gpu(ordinal)?;
        let place = &self.default_pools[ordinal as usize];
        if let Some(handle) = place.get() {
            return self.pools.get(*handle);
        }
        let (new, _) = self.pools.add(|handle| Pool::new(handle, gpu.clone(), ordinal, true))?;
        let handle = *place.get_or_init(|| new);
        if handle != new {
            // Another thread was faster.
            self.pools.remove(new)?;
        }
        self.pools.get(handle)
    }

    /// The pool that `cuMemAllocAsync` takes a GPU's memory from.
    ///
    /// # Errors
    /// `CUDA_ERROR_INVALID_DEVICE`.
    pub fn pool(&self, ordinal: i32) -> Res<Arc<Pool>> {
        self.gpu(ordinal)?;
        let set = lock(&self.set_pools).get(&ordinal).copied();
        match set.map(|handle| self.pools.get(handle)) {
            Some(Ok(pool)) => Ok(pool),
            _ => self.default_pool(ordinal),
        }
    }

    /// Sets another.
    ///
    /// # Errors
    /// `CUDA_ERROR_INVALID_DEVICE`; `CUDA_ERROR_INVALID_VALUE` for a pool that is none, or of
    /// another GPU.
    pub fn set_pool(&self, ordinal: i32, pool: Handle) -> Res {
        let gpu = self.gpu(ordinal)?;
        let pool = self.pools.get(pool).map_err(|_| Error::INVALID_VALUE)?;
        if !Arc::ptr_eq(pool.gpu(), gpu) {
            return Err(Error::INVALID_VALUE);
        }
        lock(&self.set_pools).insert(ordinal, pool.handle());
        Ok(())
    }

    /// A new pool of a GPU.
    ///
    /// # Errors
    /// `CUDA_ERROR_INVALID_DEVICE`.
    pub fn new_pool(&self, ordinal: i32) -> Res<Arc<Pool>> {
        let gpu = self.gpu(ordinal)?;
        Ok(self.pools.add(|handle| Pool::new(handle, gpu.clone(), ordinal, false))?.1)
    }
}
