//! Exported verbs that this device does not have. Each fails as its manual page says.

use crate::base::ffi::{Res, UNSUPPORTED, count, pointer, status};
use std::ffi::{c_int, c_void};
use verbs_sys::*;

/// A verb that returns 0 or an errno.
macro_rules! no_status {
    ($($(#[$doc:meta])* $name:ident($($arg:ty),*);)*) => {
        $($(#[$doc])*
        pub(crate) unsafe extern "C" fn $name($(_: $arg),*) -> c_int {
            status(|| Err(UNSUPPORTED))
        })*
    };
}

/// A verb that returns a pointer or NULL.
macro_rules! no_pointer {
    ($($(#[$doc:meta])* $name:ident($($arg:ty),*);)*) => {
        $($(#[$doc])*
        pub(crate) unsafe extern "C" fn $name($(_: $arg),*) -> *mut c_void {
            pointer(|| Res::<*mut c_void>::Err(UNSUPPORTED))
        })*
    };
}

no_status! {
    /// `ibv_query_ece(3)`: no vendor-specific connection options.
    ibv_query_ece(*mut ibv_qp, *mut ibv_ece);
    /// `ibv_set_ece(3)`.
    ibv_set_ece(*mut ibv_qp, *mut ibv_ece);
    /// `ibv_dealloc_dmah(3)`: no TLP processing hints.
    ibv_dealloc_dmah(*mut c_void);
    /// `ibv_query_comp_cntr_caps(3)`: no completion counters.
    ibv_query_comp_cntr_caps(*mut ibv_context, *mut c_void, usize);
    /// `ibv_destroy_comp_cntr(3)`.
    ibv_destroy_comp_cntr(*mut c_void);
    /// `ibv_set_comp_cntr(3)`.
    ibv_set_comp_cntr(*mut c_void, u64);
    /// `ibv_set_err_comp_cntr(3)`.
    ibv_set_err_comp_cntr(*mut c_void, u64);
    /// `ibv_inc_comp_cntr(3)`.
    ibv_inc_comp_cntr(*mut c_void, u64);
    /// `ibv_inc_err_comp_cntr(3)`.
    ibv_inc_err_comp_cntr(*mut c_void, u64);
    /// `ibv_read_comp_cntr(3)`.
    ibv_read_comp_cntr(*mut c_void, *mut u64);
    /// `ibv_read_err_comp_cntr(3)`.
    ibv_read_err_comp_cntr(*mut c_void, *mut u64);
    /// `ibv_qp_attach_comp_cntr(3)`.
    ibv_qp_attach_comp_cntr(*mut ibv_qp, *mut c_void, *mut c_void);
}

no_pointer! {
    /// `ibv_alloc_dmah(3)`.
    ibv_alloc_dmah(*mut ibv_context, *mut c_void);
    /// `ibv_create_comp_cntr(3)`.
    ibv_create_comp_cntr(*mut ibv_context, *mut c_void);
}

/// `ibv_dm_export_dmabuf_fd(3)`: −1; device memory here is no dma-buf.
pub(crate) unsafe extern "C" fn ibv_dm_export_dmabuf_fd(_: *mut c_void) -> c_int {
    count(|| Err(UNSUPPORTED))
}

/// `ibv_register_driver`: providers of before 2017, which do not exist for this library.
pub(crate) unsafe extern "C" fn ibv_register_driver(_: *const c_void, _: *const c_void) {}
