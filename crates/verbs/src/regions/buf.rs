//! Buffers from `ibv_alloc_buf(3)`: page-aligned program memory, the provider's default of
//! libibverbs.

use crate::base::ffi::{Errno, INVALID, Res, arg, arg_mut, count, pointer, quiet};
use crate::base::object::object;
use crate::objects::pd::Pd;
use crate::regions::mr;
use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ffi::{c_int, c_void};
use verbs_sys::*;

/// A buffer; programs hold its address as `struct ibv_buf *`.
pub struct Buf {
    pd: *mut ibv_pd,
    addr: *mut u8,
    layout: Layout,
}

impl Drop for Buf {
    fn drop(&mut self) {
        // SAFETY: `addr` was allocated with this layout.
        unsafe { dealloc(self.addr, self.layout) };
    }
}

/// `ibv_alloc_buf(3)`.
pub(crate) unsafe extern "C" fn ibv_alloc_buf(
    pd: *mut ibv_pd,
    size: usize,
    out: *mut *mut Buf,
) -> *mut c_void {
    pointer(|| {
        // SAFETY: the program passes a live PD and a place to fill.
        let out = unsafe {
            object::<Pd>(pd)?;
            arg_mut(out)?
        };
        let layout =
            Layout::from_size_align(size, mm::page_size() as usize).map_err(|_| INVALID)?;
        if size == 0 {
            return Err(INVALID);
        }
        // SAFETY: the size is not 0.
        let addr = unsafe { alloc_zeroed(layout) };
        if addr.is_null() {
            return Err(Errno(libc::ENOMEM));
        }
        *out = Box::into_raw(Box::new(Buf { pd, addr, layout }));
        Ok(addr.cast())
    })
}

/// `ibv_free_buf(3)`.
pub(crate) unsafe extern "C" fn ibv_free_buf(buf: *mut Buf) {
    quiet((), || {
        if !buf.is_null() {
            // SAFETY: the program passes a live buffer and uses it no more.
            drop(unsafe { Box::from_raw(buf) });
        }
        Ok(())
    });
}

/// `ibv_export_buf_dmabuf_fd(3)`: ENODATA, since the buffer is not a dma-buf.
pub(crate) unsafe extern "C" fn ibv_export_buf_dmabuf_fd(_buf: *mut Buf) -> c_int {
    count(|| Err(Errno(libc::ENODATA)))
}

/// EINVAL for a foreign PD or a range outside the buffer.
///
/// # Safety
/// `buf` is null or live.
pub unsafe fn check(buf: *const Buf, pd: *mut ibv_pd, addr: u64, length: usize) -> Res<()> {
    // SAFETY: the caller's promise.
    let buf = unsafe { arg(buf) }?;
    let offset = (addr as usize).checked_sub(buf.addr as usize).ok_or(INVALID)?;
    let end = offset.checked_add(length).ok_or(INVALID)?;
    if pd != buf.pd || end > buf.layout.size() { Err(INVALID) } else { Ok(()) }
}

/// `ibv_reg_buf_mr(3)`: EINVAL for a foreign PD or a range outside the buffer.
pub(crate) unsafe extern "C" fn ibv_reg_buf_mr(
    pd: *mut ibv_pd,
    buf: *mut Buf,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> *mut ibv_mr {
    pointer(|| {
        // SAFETY: the program passes a live PD and a live buffer.
        let domain = unsafe {
            check(buf, pd, addr as u64, length)?;
            object::<Pd>(pd)?
        };
        // SAFETY: the buffer was made for devices, and the range is inside.
        let memory = unsafe { mm::Sink::vouched(addr as u64, length as u64) };
        mr::reg_user(domain, memory, addr as u64, access as u32)
    })
}
