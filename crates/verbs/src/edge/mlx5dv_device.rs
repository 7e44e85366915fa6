//! Whether a device is a ConnectX, opening it, and asking what it can do.

use crate::base::ffi::{INVALID, UNSUPPORTED, arg, arg_mut, pointer, quiet, status};
use crate::edge::open::ibv_open_device;
use crate::mlx5dv::context;
use crate::mlx5dv::signature::{CAPS, mlx5dv_sig_caps};
use std::ffi::c_int;
use verbs_sys::{ibv_context, ibv_device};

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

/// `struct mlx5dv_context` as far as it is filled here.
#[repr(C)]
struct Filled {
    head: mlx5dv_context,
    /// `cqe_comp_caps`, `sw_parsing_caps` and `striding_rq_caps`.
    raw_packets: [u32; 9],
    tunnel_offloads_caps: u32,
    max_dynamic_bfregs: u32,
    max_clock_info_update_nsec: u64,
    flow_action_flags: u32,
    dc_odp_caps: u32,
    hca_core_clock: *mut std::ffi::c_void,
    num_lag_ports: u8,
    sig_caps: mlx5dv_sig_caps,
}

// enum mlx5dv_context_comp_mask
const SIGNATURE_OFFLOAD: u64 = 1 << 10;

/// `mlx5dv_is_supported(3)`.
pub(crate) unsafe extern "C" fn is_supported(device: *mut ibv_device) -> bool {
    quiet(false, || {
        crate::mlx5dv::check()?;
        Ok(!device.is_null())
    })
}

/// `mlx5dv_open_device(3)`: a context with DEVX, or over given descriptors, is EOPNOTSUPP.
pub(crate) unsafe extern "C" fn open_device(
    device: *mut ibv_device,
    attr: *mut mlx5dv_context_attr,
) -> *mut ibv_context {
    pointer(|| {
        crate::mlx5dv::check()?;
        // SAFETY: the program passes a live struct.
        let attr = unsafe { arg(attr) }?;
        if attr.flags != 0 || attr.comp_mask != 0 {
            return Err(UNSUPPORTED);
        }
        // SAFETY: the program passes a device of the list.
        let context = unsafe { ibv_open_device(device) };
        if context.is_null() { Err(crate::base::ffi::last_errno()) } else { Ok(context) }
    })
}

/// `mlx5dv_query_device(3)`: of what `comp_mask` may ask for only the signatures are there, and it
/// comes back with no more.
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
        let head = unsafe { arg_mut(attrs) }?;
        let comp_mask = head.comp_mask & SIGNATURE_OFFLOAD;
        *head = mlx5dv_context { version: 0, flags: 0, comp_mask };
        if comp_mask != 0 {
            // SAFETY: a program that asks for a member has a struct with it.
            unsafe { (&raw mut (*attrs.cast::<Filled>()).sig_caps).write(CAPS) };
        }
        Ok(())
    })
}
