//! Memory pools (`cuMemPoolCreate`). Nothing is kept back for later allocations: what is freed is
//! the GPU's again at once.

use super::device::add_device;
use super::physical::Physical;
use super::space::{DeviceAccess, Memory, Origin, Range, Space};
use crate::gpu::Gpu;
use crate::sys::Domain;
use crate::{Error, Handle, Handles, Res};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// A pool.
pub struct Pool {
    handle: Handle,
    gpu: Arc<Gpu>,
    is_default: bool,
    /// What devices may do with its memory, which is told to who asks: copies reach all of it.
    pub access: DeviceAccess,
    used: AtomicU64,
    most: AtomicU64,
    /// Attributes that programs set and nothing depends on: three kinds of reuse, and how much to
    /// keep.
    set: [AtomicU64; 4],
}

fn is_meant(range: &Range) -> bool {
    let origin = range.device().map(|device| device.origin);
    matches!(origin, Some(Origin::Alloc | Origin::Pool(_)))
}

/// `CU_MEMPOOL_ATTR_*` from 1 on: those that are set, then what is reserved and used.
const SET: std::ops::RangeInclusive<u32> = 1..=4;

impl Pool {
    /// A pool of a GPU, whose ordinal is `own`: only that device has access.
    pub(crate) fn new(handle: Handle, gpu: Arc<Gpu>, own: i32, is_default: bool) -> Pool {
        let access = DeviceAccess::none();
        access.set(own.cast_unsigned(), 3);
        let set = [1, 1, 1, 0].map(AtomicU64::new);
        let (used, most) = (AtomicU64::new(0), AtomicU64::new(0));
        Pool { handle, gpu, is_default, access, used, most, set }
    }

    /// Its handle.
    pub fn handle(&self) -> Handle {
        self.handle
    }

    /// Its GPU.
    pub fn gpu(&self) -> &Arc<Gpu> {
        &self.gpu
    }

    /// Whether it is a GPU's default one, which nobody may destroy.
    pub fn is_default(&self) -> bool {
        self.is_default
    }

    /// Memory of the pool, for a context; the address.
    ///
    /// # Errors
    /// `CUDA_ERROR_INVALID_VALUE` for 0 bytes, `CUDA_ERROR_OUT_OF_MEMORY`.
    pub fn alloc(&self, space: &Space, context: Handle, ordinal: i32, len: u64) -> Res<u64> {
        let physical = Arc::new(Physical::alloc(&self.gpu, len, Domain::Vram)?);
        let bytes = physical.len();
        // Before anybody can give it back.
        let used = self.used.fetch_add(bytes, Relaxed) + bytes;
        let origin = Origin::Pool(self.handle);
        let added = add_device(space, (context, ordinal), physical, len, origin);
        match added {
            Ok(_) => self.most.fetch_max(used, Relaxed),
            Err(_) => self.used.fetch_sub(bytes, Relaxed),
        };
        added
    }

    /// Memory that is to go in the order of a stream: that of a pool, or of `cuMemAlloc`. From now
    /// on it is nobody else's to give back.
    ///
    /// # Errors
    /// `CUDA_ERROR_INVALID_VALUE` for an address that was not allocated so, or is to go already.
    pub fn doom(space: &Space, addr: u64) -> Res<Arc<Range>> {
        let range = space.starting_at(addr, is_meant)?;
        if range.is_mine_to_free() { Ok(range) } else { Err(Error::INVALID_VALUE) }
    }

    /// Gives it back.
    ///
    /// # Errors
    /// `CUDA_ERROR_INVALID_VALUE` where its context took it along meanwhile.
    pub fn free(space: &Space, pools: &Handles<Pool>, doomed: &Arc<Range>) -> Res {
        let range = space.remove(doomed.start, |range| range.id == doomed.id)?;
        Pool::went(pools, &range);
        Ok(())
    }

    /// Memory was given back: if it was a pool's, that has so much more.
    pub(crate) fn went(pools: &Handles<Pool>, range: &Range) {
        if let Memory::Device(device) = &range.memory
            && let Origin::Pool(pool) = device.origin
            && let Ok(pool) = pools.get(pool)
        {
            pool.used.fetch_sub(device.physical.len(), Relaxed);
        }
    }

    /// An attribute (`CUmemPool_attribute`).
    ///
    /// # Errors
    /// `CUDA_ERROR_INVALID_VALUE`.
    pub fn attribute(&self, number: u32) -> Res<u64> {
        match number {
            number if SET.contains(&number) => Ok(self.set[number as usize - 1].load(Relaxed)),
            5 | 7 => Ok(self.used.load(Relaxed)),
            6 | 8 => Ok(self.most.load(Relaxed)),
            _ => Err(Error::INVALID_VALUE),
        }
    }

    /// Sets one. Of the greatest use there was only 0 can be set: it is counted anew then.
    ///
    /// # Errors
    /// `CUDA_ERROR_INVALID_VALUE`.
    pub fn set_attribute(&self, number: u32, value: u64) -> Res {
        match number {
            number if SET.contains(&number) => {
                self.set[number as usize - 1].store(value, Relaxed);
            }
            6 | 8 if value == 0 => self.most.store(self.used.load(Relaxed), Relaxed),
            _ => return Err(Error::INVALID_VALUE),
        }
        Ok(())
    }
}
