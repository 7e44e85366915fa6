//! Physical memory by its handles (`CUmemGenericAllocationHandle`): each is held so many times, by
//! who made it and by who asked for it by an address, and stands for the same memory for ever.

use super::physical::Physical;
use crate::{Error, Handle, Res, handles, may_make};
use engine_thread::lock;
use std::collections::HashMap;
use std::sync::{Arc, Mutex};

struct Held {
    physical: Arc<Physical>,
    times: u64,
}

/// All handles that somebody holds.
#[derive(Default)]
pub struct HeldMemory {
    held: Mutex<HashMap<Handle, Held>>,
}

impl HeldMemory {
    /// A new handle, held once.
    ///
    /// # Errors
    /// `CUDA_ERROR_OUT_OF_MEMORY` where the system has none.
    pub(super) fn add(&self, physical: Physical) -> Res<Handle> {
        let (handle, physical) = (handles::next(), Arc::new(physical));
        self.hold(handle, &physical)?;
        Ok(handle)
    }

    /// The memory of a handle.
    ///
    /// # Errors
    /// `CUDA_ERROR_INVALID_VALUE` where nobody holds it.
    pub fn get(&self, handle: Handle) -> Res<Arc<Physical>> {
        let held = lock(&self.held);
        held.get(&handle).map(|held| held.physical.clone()).ok_or(Error::INVALID_VALUE)
    }

    /// Holds a handle once more. One that nobody holds any more is had again as long as something
    /// has its memory.
    ///
    /// # Errors
    /// `CUDA_ERROR_OUT_OF_MEMORY` where the system has none.
    pub(super) fn hold(&self, handle: Handle, physical: &Arc<Physical>) -> Res {
        may_make()?;
        let mut all = lock(&self.held);
        all.try_reserve(1).map_err(|_| Error::OUT_OF_MEMORY)?;
        let new = || Held { physical: physical.clone(), times: 0 };
        all.entry(handle).or_insert_with(new).times += 1;
        Ok(())
    }

    /// Holds it once less. Memory that is mapped stays.
    ///
    /// # Errors
    /// `CUDA_ERROR_INVALID_VALUE` where nobody holds it.
    pub fn release(&self, handle: Handle) -> Res {
        let mut all = lock(&self.held);
        let held = all.get_mut(&handle).ok_or(Error::INVALID_VALUE)?;
        held.times -= 1;
        let last = if held.times == 0 { all.remove(&handle) } else { None };
        drop(all);
        drop(last);
        Ok(())
    }
}
