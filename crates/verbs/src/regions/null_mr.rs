//! The null region (ibv_alloc_null_mr(3)): all of memory by a local key, without memory. Zeros are
//! read from it, and what is written there is gone, so that a gather or scatter list may skip bytes
//! that nobody wants.

use crate::base::ffi::pointer;
use crate::base::object::object;
use crate::objects::pd::Pd;
use crate::regions::mr;
use std::sync::Arc;
use umem::{AccessError, AtomicOp, DmaSpace, Segment, Umem};
use verbs_sys::*;

/// Reaches nothing.
struct Nothing;

impl DmaSpace for Nothing {
    fn read(&self, _addr: u64, dst: &mut [u8]) -> Result<(), AccessError> {
        dst.fill(0);
        Ok(())
    }

    fn write(&self, _addr: u64, _src: &[u8]) -> Result<(), AccessError> {
        Ok(())
    }

    fn atomic(&self, _addr: u64, _op: AtomicOp) -> Result<u64, AccessError> {
        Ok(0)
    }
}

/// `ibv_alloc_null_mr(3)`: has no rkey, and can be neither registered again nor bound to a window.
pub(crate) unsafe extern "C" fn alloc_null_mr(pd: *mut ibv_pd) -> *mut ibv_mr {
    pointer(|| {
        // SAFETY: the program passes a live PD.
        let pd = unsafe { object::<Pd>(pd) }?;
        let everywhere = Segment {
            space: Arc::new(Nothing),
            addr: 0,
            len: u64::MAX,
            route: Arc::new(pcie::Route::local()),
        };
        mr::reg_null(pd, Umem::from_segments(vec![everywhere], true))
    })
}
