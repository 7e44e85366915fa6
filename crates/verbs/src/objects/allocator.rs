//! Memory of queues from the program's own allocator, which a parent domain carries
//! (ibv_alloc_parent_domain(3)).
//!
//! The allocator is called in the thread that creates or resizes the object, with no lock held, and
//! `free` in the one that destroys it. What it gives holds the slots of the queue
//! ([`hca::QueueMemory`]). There is one call for both queues of a QP, one for a shared receive
//! queue and one for a completion queue.

use crate::base::ffi::{Errno, INVALID, Res};
use crate::objects::pd::Pd;
use std::ffi::c_void;
use verbs_sys::*;

type Alloc = unsafe extern "C" fn(*mut ibv_pd, *mut c_void, usize, usize, u64) -> *mut c_void;
type Free = unsafe extern "C" fn(*mut ibv_pd, *mut c_void, *mut c_void, u64);

/// What an allocator returns to leave the allocation to us (`IBV_ALLOCATOR_USE_DEFAULT`).
const USE_DEFAULT: usize = usize::MAX;

/// `enum ibv_parent_domain_init_attr_mask`.
mod mask {
    pub const ALLOCATORS: u32 = 1;
    pub const PD_CONTEXT: u32 = 1 << 1;
    pub const ALLOW_CC_UNPROTECTED_ALLOC: u32 = 1 << 2;
}

/// What memory is for: `resource_type`. Its upper half is `RDMA_DRIVER_UNKNOWN` (0), since no
/// kernel driver is behind this device; the lower half counts as mlx5 does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u64)]
pub enum Resource {
    /// Both queues of a QP.
    Qp = 1,
    /// A shared receive queue.
    Srq = 4,
    /// A completion queue.
    Cq = 5,
}

/// The program's functions.
pub struct Allocator {
    alloc: Alloc,
    free: Free,
    pd_context: *mut c_void,
}

impl Allocator {
    /// The allocator that `attr` names, if any.
    ///
    /// # Errors
    /// EINVAL for unknown mask bits, or when one of the two functions is missing. Leave to allocate
    /// unprotected memory means nothing: this device never bounces (`IBV_DEVICE_CC_DMA_BOUNCE`).
    pub fn of(attr: &ibv_parent_domain_init_attr) -> Res<Option<Allocator>> {
        let known = mask::ALLOCATORS | mask::PD_CONTEXT | mask::ALLOW_CC_UNPROTECTED_ALLOC;
        if attr.comp_mask & !known != 0 {
            return Err(INVALID);
        }
        if attr.comp_mask & mask::ALLOCATORS == 0 {
            return Ok(None);
        }
        let (Some(alloc), Some(free)) = (attr.alloc, attr.free) else { return Err(INVALID) };
        let named = attr.comp_mask & mask::PD_CONTEXT != 0;
        let pd_context = if named { attr.pd_context } else { std::ptr::null_mut() };
        Ok(Some(Allocator { alloc, free, pd_context }))
    }
}

/// Memory that the program allocated. It goes back when this is dropped, so drop it after the
/// object that uses it is destroyed, and while the parent domain lives.
pub struct Allocation {
    pd: *const Pd,
    addr: *mut c_void,
    bytes: u64,
    resource: Resource,
}

impl Allocation {
    /// Asks the allocator of `pd` for `bytes`. `None` when there is no allocator, or when it leaves
    /// it to us.
    ///
    /// # Errors
    /// ENOMEM when the allocator returns NULL.
    pub fn new(pd: &Pd, resource: Resource, bytes: u64) -> Res<Option<Allocation>> {
        let Some(allocator) = pd.allocator().filter(|_| bytes > 0) else { return Ok(None) };
        let size = usize::try_from(bytes).map_err(|_| INVALID)?;
        // SAFETY: the program promised this function when it made the parent domain.
        let addr = unsafe {
            (allocator.alloc)(
                pd.as_c(),
                allocator.pd_context,
                size,
                hca::SLOT_ALIGN as usize,
                resource as u64,
            )
        };
        match addr as usize {
            0 => Err(Errno(libc::ENOMEM)),
            USE_DEFAULT => Ok(None),
            _ => {
                pd.add_buffer();
                Ok(Some(Allocation { pd, addr, bytes, resource }))
            }
        }
    }

    /// As the HCA sees it.
    pub fn memory(&self) -> hca::QueueMemory {
        let addr = self.addr as u64;
        // SAFETY: the program's allocator gave these bytes for the queue alone, until `free`.
        let memory = unsafe { mm::Sink::vouched(addr, self.bytes) };
        hca::QueueMemory::new(umem::process_space(memory), addr, self.bytes)
    }
}

impl Drop for Allocation {
    fn drop(&mut self) {
        // SAFETY: a parent domain stays while memory of its allocator is in use (`add_buffer`).
        let pd = unsafe { &*self.pd };
        if let Some(allocator) = pd.allocator() {
            // SAFETY: the program's promise, as for `alloc`; nothing of ours touches the memory any
            // more.
            unsafe {
                (allocator.free)(pd.as_c(), allocator.pd_context, self.addr, self.resource as u64)
            };
        }
        pd.drop_buffer();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    unsafe extern "C" fn alloc(
        _: *mut ibv_pd,
        _: *mut c_void,
        _: usize,
        _: usize,
        _: u64,
    ) -> *mut c_void {
        std::ptr::null_mut()
    }
    unsafe extern "C" fn free(_: *mut ibv_pd, _: *mut c_void, _: *mut c_void, _: u64) {}

    fn attr(comp_mask: u32) -> ibv_parent_domain_init_attr {
        ibv_parent_domain_init_attr {
            pd: std::ptr::null_mut(),
            td: std::ptr::null_mut(),
            comp_mask,
            alloc: Some(alloc),
            free: Some(free),
            pd_context: 8 as *mut c_void,
        }
    }

    #[test]
    fn an_allocator_is_both_functions_or_none() {
        assert!(Allocator::of(&attr(0)).unwrap().is_none());
        assert!(Allocator::of(&attr(mask::PD_CONTEXT)).unwrap().is_none());
        assert!(Allocator::of(&attr(mask::ALLOW_CC_UNPROTECTED_ALLOC)).unwrap().is_none());
        assert!(Allocator::of(&attr(1)).unwrap().unwrap().pd_context.is_null());
        assert_eq!(Allocator::of(&attr(3)).unwrap().unwrap().pd_context as usize, 8);
        for wrong in [
            attr(1 << 3),
            ibv_parent_domain_init_attr { alloc: None, ..attr(1) },
            ibv_parent_domain_init_attr { free: None, ..attr(1) },
        ] {
            assert_eq!(Allocator::of(&wrong).err(), Some(INVALID));
        }
    }
}
