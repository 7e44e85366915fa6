//! Data Direct: registering a dma-buf by way of the side function, and naming that function.

use super::{context, domain};
use crate::base::ffi::{Errno, INVALID, Res, pointer, status};
use crate::engine::registered;
use crate::objects::facts::Kind;
use crate::objects::pd::Pd;
use crate::platform::place;
use crate::regions::mr::{self};
use dmabuf::Hold;
use std::ffi::{c_char, c_int};
use umem::{AccessFlags, DmabufRange, check};
use verbs_sys::{ibv_context, ibv_mr, ibv_pd};

/// `MLX5DV_REG_DMABUF_ACCESS_DATA_DIRECT`.
const ACCESS_DATA_DIRECT: c_int = 1;

/// `mlx5dv_reg_dmabuf_mr(3)`: as ibv_reg_dmabuf_mr(3); with `MLX5DV_REG_DMABUF_ACCESS_DATA_DIRECT`
/// the Data Direct function reads and writes the memory. EINVAL where there is none, EOPNOTSUPP for
/// an iova within a page.
pub(crate) unsafe extern "C" fn reg_dmabuf_mr(
    pd: *mut ibv_pd,
    offset: u64,
    length: usize,
    iova: u64,
    fd: c_int,
    access: c_int,
    mlx5_access: c_int,
) -> *mut ibv_mr {
    pointer(|| {
        // SAFETY: the program passes a live PD.
        let pd = unsafe { domain(pd) }?;
        let range = DmabufRange { fd, offset, len: length as u64, iova };
        match mlx5_access {
            0 => mr::reg_dmabuf(pd, &range, access as u32),
            ACCESS_DATA_DIRECT => reg_data_direct(pd, &range, access as u32),
            _ => Err(INVALID),
        }
    })
}

/// The checks of the kernel's core, then those of mlx5_ib, then those of the attachment.
fn reg_data_direct(pd: &Pd, range: &DmabufRange, access: u32) -> Res<*mut ibv_mr> {
    let &DmabufRange { offset, len, iova, .. } = range;
    check::page_offset(offset, iova)?;
    check::dmabuf_access(AccessFlags::from_bits_retain(access))?;
    let access = mr::rights(access)?;
    let context = pd.context()?;
    let registry = &context.engine().registry;
    let hca = context.device().data_direct().reg_mr(pd.hca()?, iova, access, |function| {
        registered::dmabuf(function, registry, range, access, Hold::Pinned)
    })?;
    mr::file(pd, hca, Kind::DataDirect, (offset, len, iova), access)
}

/// `mlx5dv_get_data_direct_sysfs_path(3)`: the path lacks the leading `/sys`. ENODEV without a
/// function, ENOSPC where the buffer is too small.
pub(crate) unsafe extern "C" fn get_data_direct_sysfs_path(
    ctx: *mut ibv_context,
    buf: *mut c_char,
    len: usize,
) -> c_int {
    status(|| {
        // SAFETY: the program passes an open context.
        let context = unsafe { context(ctx) }?;
        let function = context.device().data_direct().function().ok_or(Errno(libc::ENODEV))?;
        let path = place::sysfs_path(&function)?;
        if buf.is_null() {
            return Err(INVALID);
        }
        if path.len() >= len {
            return Err(Errno(libc::ENOSPC));
        }
        // SAFETY: the program passes `len` bytes to fill, and the path with its end is no longer.
        unsafe {
            buf.copy_from_nonoverlapping(path.as_ptr().cast(), path.len());
            *buf.add(path.len()) = 0;
        }
        Ok(())
    })
}
