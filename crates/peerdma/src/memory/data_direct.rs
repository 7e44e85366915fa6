//! Data Direct: GPU memory that an HCA's second PCIe function reads and writes, on ConnectX-8 and
//! later and on peerdma's own device shown as one. It takes rdma-core 54's libmlx5, which is loaded
//! when it is first asked for.

use super::{Access, Dmabuf, Mr};
use crate::context::Context;
use crate::error::{Error, Result};
use crate::pd::Pd;
use std::ffi::{CStr, c_void};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::OnceLock;
use verbs_sys::{ibv_context, ibv_mr, ibv_pd};

/// `MLX5DV_REG_DMABUF_ACCESS_DATA_DIRECT`.
const ACCESS_DATA_DIRECT: libc::c_int = 1;
/// Room for a path; the kernel's are no longer.
const PATH_MAX: usize = 4096;

type RegDmabufMr = unsafe extern "C" fn(
    *mut ibv_pd,
    u64,
    usize,
    u64,
    libc::c_int,
    libc::c_int,
    libc::c_int,
) -> *mut ibv_mr;
type SysfsPath = unsafe extern "C" fn(*mut ibv_context, *mut libc::c_char, usize) -> libc::c_int;

#[derive(Clone, Copy)]
struct Functions {
    reg_dmabuf_mr: RegDmabufMr,
    sysfs_path: SysfsPath,
}

/// libmlx5's functions. It stays loaded.
fn functions() -> Result<Functions> {
    static LOADED: OnceLock<Option<Functions>> = OnceLock::new();
    let missing = "this machine has no libmlx5 that knows Data Direct (rdma-core 54)";
    LOADED.get_or_init(load).ok_or(Error::NotSupported(missing))
}

fn load() -> Option<Functions> {
    // SAFETY: a NUL-terminated name. The library's constructors run; it belongs to the libibverbs
    // in use.
    let handle = unsafe { libc::dlopen(c"libmlx5.so.1".as_ptr(), libc::RTLD_NOW) };
    if handle.is_null() {
        return None;
    }
    let find = |name: &CStr| {
        // SAFETY: a live handle that is never closed, and NUL-terminated names.
        let found = unsafe { libc::dlvsym(handle, name.as_ptr(), c"MLX5_1.25".as_ptr()) };
        (!found.is_null()).then_some(found)
    };
    let reg_dmabuf_mr = find(c"mlx5dv_reg_dmabuf_mr")?;
    let sysfs_path = find(c"mlx5dv_get_data_direct_sysfs_path")?;
    // SAFETY: functions of these names at this version have the prototypes of mlx5dv.h.
    unsafe {
        Some(Functions {
            reg_dmabuf_mr: std::mem::transmute::<*mut c_void, RegDmabufMr>(reg_dmabuf_mr),
            sysfs_path: std::mem::transmute::<*mut c_void, SysfsPath>(sysfs_path),
        })
    }
}

impl Context {
    /// The sysfs folder of the device's Data Direct function; `None` where it has none.
    ///
    /// # Errors
    /// [`Error::NotSupported`] without a libmlx5 that knows of it; EOPNOTSUPP for a device that is
    /// no ConnectX.
    pub fn data_direct_path(&self) -> Result<Option<PathBuf>> {
        let functions = functions()?;
        let mut path = [0u8; PATH_MAX];
        let context = self.inner.raw.as_ptr();
        // SAFETY: the context is alive, and the buffer as long as is said.
        let code = unsafe { (functions.sysfs_path)(context, path.as_mut_ptr().cast(), PATH_MAX) };
        match code {
            0 => {
                let path = CStr::from_bytes_until_nul(&path).unwrap_or_default().to_bytes();
                // The kernel's answer lacks the mount point.
                Ok(Some([b"/sys", path].concat())
                    .map(|bytes| PathBuf::from(std::ffi::OsStr::from_bytes(&bytes))))
            }
            libc::ENODEV => Ok(None),
            errno => {
                let source = std::io::Error::from_raw_os_error(errno);
                Err(Error::Call { call: "mlx5dv_get_data_direct_sysfs_path", source })
            }
        }
    }
}

impl Pd {
    /// As [`Pd::reg_dmabuf`], for the device's Data Direct function to read and write the memory.
    /// It must not move while it is registered, and the region is lost when the function is
    /// unplugged.
    ///
    /// # Errors
    /// [`Error::NotSupported`] without a libmlx5 that knows of it; EINVAL without a function;
    /// EOPNOTSUPP for a device that is no ConnectX, or an `iova` within a page; else those of
    /// [`Pd::reg_dmabuf`].
    pub fn reg_dmabuf_data_direct(
        &self,
        fd: BorrowedFd<'_>,
        offset: u64,
        len: u64,
        iova: u64,
        access: Access,
    ) -> Result<Mr<Dmabuf>> {
        let register = functions()?.reg_dmabuf_mr;
        self.reg_dmabuf_by("mlx5dv_reg_dmabuf_mr", len, iova, |pd, size| {
            let (fd, access) = (fd.as_raw_fd(), access.bits() as libc::c_int);
            // SAFETY: the domain is alive and the descriptor open; no memory of this program is
            // named.
            unsafe { register(pd, offset, size, iova, fd, access, ACCESS_DATA_DIRECT) }
        })
    }
}
