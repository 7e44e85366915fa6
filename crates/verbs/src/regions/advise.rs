//! `ibv_advise_mr(3)`: pages of on-demand regions, brought in before they are used.

use crate::base::ffi::{Errno, INVALID, UNSUPPORTED, status};
use crate::base::object::object;
use crate::objects::pd::Pd;
use hca::AdviceError;
use std::ffi::{c_int, c_uint};
use umem::Prefetch;
use verbs_sys::*;

// enum ibv_advise_mr_advice and its flag.
const PREFETCH: c_uint = 0;
const PREFETCH_WRITE: c_uint = 1;
const PREFETCH_NO_FAULT: c_uint = 2;
const ADVISE_FLUSH: u32 = 1;

impl From<AdviceError> for Errno {
    fn from(error: AdviceError) -> Errno {
        crate::log!("{error}");
        Errno(match error {
            AdviceError::NotPaged => libc::ENOENT,
            AdviceError::NotRegion => libc::EINVAL,
            AdviceError::Denied => libc::EPERM,
            AdviceError::Range => libc::EFAULT,
        })
    }
}

/// `ibv_advise_mr(3)`, in the order of `UVERBS_METHOD_ADVISE_MR` and mlx5. Without
/// IBV_ADVISE_MR_FLAG_FLUSH too the work is done before this returns; only its errors are dropped
/// then.
pub(crate) unsafe extern "C" fn advise_mr(
    pd: *mut ibv_pd,
    advice: c_uint,
    flags: u32,
    ranges: *mut ibv_sge,
    count: u32,
) -> c_int {
    status(|| {
        // SAFETY: the program passes a live PD.
        let pd = unsafe { object::<Pd>(pd) }?;
        if flags & !ADVISE_FLUSH != 0 || count == 0 || ranges.is_null() {
            return Err(INVALID);
        }
        let how = match advice {
            PREFETCH => Prefetch::Read,
            PREFETCH_WRITE => Prefetch::Write,
            PREFETCH_NO_FAULT => Prefetch::NoFault,
            _ => return Err(UNSUPPORTED),
        };
        // SAFETY: the program passes `count` ranges.
        let ranges = unsafe { std::slice::from_raw_parts(ranges, count as usize) };
        let ranges: Vec<hca::Sge> = ranges
            .iter()
            .map(|sge| hca::Sge { addr: sge.addr, length: sge.length, lkey: sge.lkey })
            .collect();
        let wait = flags & ADVISE_FLUSH != 0;
        Ok(pd.context()?.device().advise(pd.hca()?.id(), how, &ranges, wait)?)
    })
}
