//! The symbols of version IBVERBS_1.0, whose structs have another layout. Programs built before
//! 2007 find no device here, with ENOSYS ("no kernel support for RDMA", ibv_get_device_list(3));
//! without one nothing else can be called.

use crate::base::ffi::{Errno, Res, count, pointer, status};
use std::ffi::{c_int, c_void};

const NO_RDMA: Errno = Errno(libc::ENOSYS);

/// `ibv_get_device_list@IBVERBS_1.0`.
pub(crate) unsafe extern "C" fn get_device_list(num: *mut c_int) -> *mut c_void {
    pointer(|| {
        if !num.is_null() {
            // SAFETY: the program passes null or an integer to fill.
            unsafe { *num = 0 };
        }
        Res::<*mut c_void>::Err(NO_RDMA)
    })
}

/// Functions that return a pointer.
pub(crate) unsafe extern "C" fn no_pointer() -> *mut c_void {
    pointer(|| Res::<*mut c_void>::Err(NO_RDMA))
}

/// Functions that return an error number.
pub(crate) unsafe extern "C" fn no_status() -> c_int {
    status(|| Err(NO_RDMA))
}

/// Functions that return −1.
pub(crate) unsafe extern "C" fn no_count() -> c_int {
    count(|| Err(NO_RDMA))
}

/// Functions that return nothing.
pub(crate) unsafe extern "C" fn nothing() {}

/// `ibv_get_device_guid@IBVERBS_1.0`.
pub(crate) unsafe extern "C" fn no_guid() -> u64 {
    0
}
