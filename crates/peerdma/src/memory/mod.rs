//! Registered memory: who owns it, how the program reads and writes it, and the slices that work
//! requests name.
//!
//! A device and remote peers may change registered memory at any time. So no reference to its bytes
//! ever exists: [`Mr::read`] and [`Mr::write`] copy with relaxed atomic accesses, of eight bytes
//! where aligned, which is defined whatever the other side does. What a copy sees while a peer
//! writes is a mixture of old and new; a program that needs more waits for the completion that
//! orders the two.

use crate::error::{Error, Result, check};
use crate::pd::Pd;
use std::mem::ManuallyDrop;
use std::ops::RangeBounds;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;
use verbs_sys::{ibv_mr, ibv_pd, ibv_sge};

mod buffer;
mod copy;
mod data_direct;
mod fd;
mod migrate;
mod slice;

pub use buffer::{HostBuffer, MappedBuffer, Region};
pub use fd::FdCommands;
pub use slice::{LocalSlice, RemoteSlice};

bitflags::bitflags! {
    /// What a registration allows (`enum ibv_access_flags`). Local reading is always allowed.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub struct Access: u32 {
        /// The device may write for local requests: receives, and results of READs and atomics.
        const LOCAL_WRITE = 1;
        /// Peers may write; needs `LOCAL_WRITE`.
        const REMOTE_WRITE = 1 << 1;
        /// Peers may read.
        const REMOTE_READ = 1 << 2;
        /// Peers may do atomics; needs `LOCAL_WRITE`.
        const REMOTE_ATOMIC = 1 << 3;
        /// Pages are brought in as the device touches them.
        const ON_DEMAND = 1 << 6;
        /// The device may reorder its accesses on PCIe.
        const RELAXED_ORDERING = 1 << 20;
    }
}

/// Owner of a dma-buf registration: nothing, since the kernel holds the buffer (the descriptor may
/// be closed).
#[derive(Debug)]
pub struct Dmabuf {
    _private: (),
}

/// A memory region: memory `M` and the keys that name it. Dropping it ends all access by the
/// device, then frees `M`.
pub struct Mr<M = HostBuffer> {
    // The order matters: the drop of `Mr` deregisters before the fields go.
    registration: Registration,
    memory: ManuallyDrop<M>,
}

struct Registration {
    pd: Pd,
    raw: NonNull<ibv_mr>,
    /// Address of byte 0 as work requests name it.
    iova: u64,
    len: u64,
}

// SAFETY: see OpenDevice in context.rs; the struct behind `raw` is not changed after registration.
unsafe impl Send for Registration {}
// SAFETY: as above.
unsafe impl Sync for Registration {}

impl Pd {
    /// Registers `memory`, which the region owns from now on.
    pub fn reg<M: Region>(&self, memory: M, access: Access) -> Result<Mr<M>> {
        let (addr, len) = (memory.addr().as_ptr(), memory.len());
        let functions = self.inner.context.inner.functions();
        // SAFETY: the domain is alive; by the contract of Region the bytes are mapped and stay so
        // until the owner is dropped, which happens after deregistration.
        let raw = unsafe {
            (functions.ibv_reg_mr)(
                self.inner.raw.as_ptr(),
                addr.cast(),
                len,
                access.bits() as libc::c_int,
            )
        };
        let raw = NonNull::new(raw).ok_or_else(|| Error::last("ibv_reg_mr"))?;
        let registration =
            Registration { pd: self.clone(), raw, iova: addr as u64, len: len as u64 };
        Ok(Mr { registration, memory: ManuallyDrop::new(memory) })
    }

    /// Registers `len` bytes from `offset` of a dma-buf: GPU memory, or what else exports one. Work
    /// requests name its first byte by the address `iova`, which must agree with `offset` within a
    /// page. The descriptor may be closed afterwards.
    ///
    /// Errors (ibv_reg_dmabuf_mr(3) and the kernel): EOPNOTSUPP no support; EBADF and EINVAL no
    /// dma-buf or too short; EBUSY the device has no path to the memory.
    pub fn reg_dmabuf(
        &self,
        fd: BorrowedFd<'_>,
        offset: u64,
        len: u64,
        iova: u64,
        access: Access,
    ) -> Result<Mr<Dmabuf>> {
        let Some(register) = self.inner.context.inner.functions().reg_dmabuf_mr else {
            return Err(Error::NotSupported(
                "this libibverbs has no ibv_reg_dmabuf_mr (rdma-core 34)",
            ));
        };
        self.reg_dmabuf_by("ibv_reg_dmabuf_mr", len, iova, |pd, size| {
            let (fd, access) = (fd.as_raw_fd(), access.bits() as libc::c_int);
            // SAFETY: the domain is alive and the descriptor open; no memory of this program is
            // named.
            unsafe { register(pd, offset, size, iova, fd, access) }
        })
    }

    /// A region over a dma-buf, by whichever call.
    pub(crate) fn reg_dmabuf_by(
        &self,
        call: &'static str,
        len: u64,
        iova: u64,
        register: impl FnOnce(*mut ibv_pd, usize) -> *mut ibv_mr,
    ) -> Result<Mr<Dmabuf>> {
        let raw = register(self.inner.raw.as_ptr(), size_of_region(len, iova)?);
        let raw = NonNull::new(raw).ok_or_else(|| Error::last(call))?;
        let registration = Registration { pd: self.clone(), raw, iova, len };
        Ok(Mr { registration, memory: ManuallyDrop::new(Dmabuf { _private: () }) })
    }

    /// Whether the device's driver registers dma-bufs at all. It is asked to register descriptor
    /// -1, so nothing is registered: one that could says EBADF, one that cannot EOPNOTSUPP.
    ///
    /// # Errors
    /// Any other answer, and a libibverbs without `ibv_reg_dmabuf_mr`.
    pub fn registers_dmabuf(&self) -> Result<bool> {
        const PAGE: u64 = 4096;
        let Some(register) = self.inner.context.inner.functions().reg_dmabuf_mr else {
            return Err(Error::NotSupported(
                "this libibverbs has no ibv_reg_dmabuf_mr (rdma-core 34)",
            ));
        };
        // SAFETY: the domain is alive; the descriptor names nothing, and no memory of this program
        // is named.
        let raw = unsafe { register(self.inner.raw.as_ptr(), 0, PAGE as usize, 0, -1, 0) };
        if let Some(raw) = NonNull::new(raw) {
            drop(Registration { pd: self.clone(), raw, iova: 0, len: PAGE });
            return Ok(true);
        }
        let error = Error::last("ibv_reg_dmabuf_mr");
        match error.errno() {
            Some(libc::EBADF) => Ok(true),
            Some(libc::EOPNOTSUPP | libc::EPROTONOSUPPORT | libc::ENOSYS) => Ok(false),
            _ => Err(error),
        }
    }
}

/// The length of a region as C takes it.
fn size_of_region(len: u64, iova: u64) -> Result<usize> {
    let size =
        usize::try_from(len).map_err(|_| Error::Argument("longer than the address space"))?;
    match iova.checked_add(len) {
        Some(_) => Ok(size),
        None => Err(Error::Argument("iova + len leaves the address space")),
    }
}

impl<M> Mr<M> {
    /// Length in bytes.
    pub fn len(&self) -> u64 {
        self.registration.len
    }

    /// Whether there is no byte.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Key for local work requests.
    pub fn lkey(&self) -> u32 {
        // SAFETY: the registration is alive and its struct unchanging.
        unsafe { (*self.registration.raw.as_ptr()).lkey }
    }

    /// Key for peers.
    pub fn rkey(&self) -> u32 {
        // SAFETY: as in `lkey`.
        unsafe { (*self.registration.raw.as_ptr()).rkey }
    }

    /// Bytes for a local work request, by offsets from the start; below 4 GiB in one slice.
    pub fn slice(&self, range: impl RangeBounds<u64>) -> Result<LocalSlice<'_>> {
        let (offset, len) = slice::resolve(range, self.len())?;
        let length =
            u32::try_from(len).map_err(|_| Error::Range { offset, len, size: u32::MAX.into() })?;
        let sge = ibv_sge { addr: self.registration.iova + offset, length, lkey: self.lkey() };
        Ok(LocalSlice::new(sge))
    }

    /// The whole region, for a peer.
    pub fn remote(&self) -> RemoteSlice {
        RemoteSlice { addr: self.registration.iova, len: self.len(), rkey: self.rkey() }
    }
}

impl<M> Drop for Mr<M> {
    fn drop(&mut self) {
        let functions = self.registration.pd.inner.context.inner.functions();
        // SAFETY: the only owner of the registration; slices borrowed from it are gone.
        let value = unsafe { (functions.ibv_dereg_mr)(self.registration.raw.as_ptr()) };
        if check("ibv_dereg_mr", value).is_ok() {
            // SAFETY: dropped once, here, and the device no longer has access. If it still had
            // (deregistration refused), the memory is leaked instead.
            unsafe { ManuallyDrop::drop(&mut self.memory) };
        }
    }
}

impl<M> std::fmt::Debug for Mr<M> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Mr")
            .field("iova", &format_args!("{:#x}", self.registration.iova))
            .field("len", &self.registration.len)
            .field("lkey", &format_args!("{:#x}", self.lkey()))
            .field("rkey", &format_args!("{:#x}", self.rkey()))
            .finish()
    }
}
