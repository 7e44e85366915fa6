//! Whether a device is a ConnectX, opening it, and asking what it can do.

use super::context;
use crate::abi::{ibv_context, ibv_device};
use crate::context::ibv_open_device;
use crate::ffi::{INVALID, UNSUPPORTED, arg, arg_mut, pointer, quiet, status};
use std::ffi::c_int;

/// `struct mlx5dv_context_attr`.
#[repr(C)]
pub(crate) struct mlx5dv_context_attr {
    flags: u32,
    comp_mask: u64,
    fds: *mut std::ffi::c_void,
}

/// The part of `struct mlx5dv_context` that is filled whatever `comp_mask` says.
#[repr(C)]
pub(crate) struct mlx5dv_context {
    version: u8,
    flags: u64,
    comp_mask: u64,
}

/// `mlx5dv_is_supported(3)`.
pub(crate) unsafe extern "C" fn is_supported(device: *mut ibv_device) -> bool {
    quiet(false, || {
        super::check()?;
        Ok(!device.is_null())
    })
}

/// `mlx5dv_open_device(3)`: a context with DEVX, or over given descriptors, is EOPNOTSUPP.
pub(crate) unsafe extern "C" fn open_device(
    device: *mut ibv_device,
    attr: *mut mlx5dv_context_attr,
) -> *mut ibv_context {
    pointer(|| {
        super::check()?;
        // SAFETY: the program passes a live struct.
        let attr = unsafe { arg(attr) }?;
        if attr.flags != 0 || attr.comp_mask != 0 {
            return Err(UNSUPPORTED);
        }
        // SAFETY: the program passes a device of the list.
        let context = unsafe { ibv_open_device(device) };
        if context.is_null() { Err(crate::ffi::last_errno()) } else { Ok(context) }
    })
}

/// `mlx5dv_query_device(3)`: none of what `comp_mask` may ask for is there, so it comes back empty.
pub(crate) unsafe extern "C" fn query_device(
    ctx: *mut ibv_context,
    attrs: *mut mlx5dv_context,
) -> c_int {
    status(|| {
        // SAFETY: the program passes an open context.
        unsafe { context(ctx) }?;
        if attrs.is_null() {
            return Err(INVALID);
        }
        // SAFETY: the program passes a live struct.
        *unsafe { arg_mut(attrs) }? = mlx5dv_context { version: 0, flags: 0, comp_mask: 0 };
        Ok(())
    })
}
