//! Regions over a descriptor that can be registered anew over another one: what was proposed for
//! Linux in 2020. Only peerdma's own libibverbs has it; [`Pd::fd_commands`] says so.

use super::{Access, Dmabuf, Mr, size_of_region};
use crate::error::{Error, Result};
use crate::pd::Pd;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::null_mut;
use verbs_sys::flags::REREG_TRANSLATION;

bitflags::bitflags! {
    /// What a device offers for regions over descriptors (`enum ibv_mr_fd_command`).
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub struct FdCommands: u64 {
        /// [`Pd::reg_fd`].
        const REGISTER = 1 << 41;
        /// [`Mr::rereg_fd`].
        const REREGISTER = 1 << 42;
    }
}

/// A dma-buf (`enum ibv_mr_fd_type`).
const DMABUF: libc::c_int = 1;

impl Pd {
    /// What the device offers; nothing where the library has no such functions.
    pub fn fd_commands(&self) -> FdCommands {
        let context = &self.inner.context.inner;
        let Some(query) = context.functions().query_mr_fd_commands else {
            return FdCommands::empty();
        };
        // SAFETY: the context is alive.
        FdCommands::from_bits_truncate(unsafe { query(context.raw.as_ptr()) })
    }

    /// As [`Pd::reg_dmabuf`], for a region that can be registered anew.
    ///
    /// Errors: [`Error::NotSupported`] where the device lacks [`FdCommands::REGISTER`]; else those
    /// of [`Pd::reg_dmabuf`].
    pub fn reg_fd(
        &self,
        fd: BorrowedFd<'_>,
        offset: u64,
        len: u64,
        iova: u64,
        access: Access,
    ) -> Result<Mr<Dmabuf>> {
        let register = self.inner.context.inner.functions().reg_mr_fd;
        let (Some(register), true) = (register, self.fd_commands().contains(FdCommands::REGISTER))
        else {
            return Err(Error::NotSupported("this device registers no regions by descriptor"));
        };
        self.reg_dmabuf_by("ibv_reg_mr_fd", len, iova, |pd, size| {
            let (fd, access) = (fd.as_raw_fd(), access.bits() as libc::c_int);
            // SAFETY: the domain is alive and the descriptor open; no memory of this program is
            // named.
            unsafe { register(pd, offset, size, iova, DMABUF, fd, access) }
        })
    }
}

impl Mr<Dmabuf> {
    /// Makes the region one over `len` bytes from `offset` of another dma-buf, or of the same. Keys
    /// and access stay; after an error the region is what it was.
    ///
    /// Errors: [`Error::NotSupported`] where the device lacks [`FdCommands::REREGISTER`]; else
    /// those of [`Pd::reg_dmabuf`].
    pub fn rereg_fd(&mut self, fd: BorrowedFd<'_>, offset: u64, len: u64, iova: u64) -> Result<()> {
        let pd = &self.registration.pd;
        let again = pd.inner.context.inner.functions().rereg_mr_fd;
        let (Some(again), true) = (again, pd.fd_commands().contains(FdCommands::REREGISTER)) else {
            return Err(Error::NotSupported("this device registers no regions anew by descriptor"));
        };
        let size = size_of_region(len, iova)?;
        let raw = self.registration.raw.as_ptr();
        let fd = fd.as_raw_fd();
        // SAFETY: the region is alive and the descriptor open; no memory of this program is named.
        let code =
            unsafe { again(raw, REREG_TRANSLATION, null_mut(), offset, size, iova, DMABUF, fd, 0) };
        if code != 0 {
            return Err(Error::last("ibv_rereg_mr_fd"));
        }
        (self.registration.iova, self.registration.len) = (iova, len);
        Ok(())
    }
}
