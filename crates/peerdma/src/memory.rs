//! Registered memory: who owns it, how the program reads and writes it, and the slices that work requests name.
//!
//! A device and remote peers may change registered memory at any time. So no reference to its bytes ever exists:
//! [`Mr::read`] and [`Mr::write`] copy with relaxed atomic accesses, of eight bytes where aligned, which is defined
//! whatever the other side does. What a copy sees while a peer writes is a mixture of old and new; a program that
//! needs more waits for the completion that orders the two.

use crate::context::Pd;
use crate::error::{Error, Result, check};
use crate::ffi;
use std::io;
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::ops::{Bound, RangeBounds};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

#[path = "memory_fd.rs"]
mod fd;
pub use fd::FdCommands;

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

/// Memory that can be registered and that nothing else in the program refers to.
///
/// # Safety
/// From the first call of these functions until the value is dropped: `addr` and `len` are always the same, all bytes
/// are mapped, readable and writable, nobody else in the program reads or writes them except through the [`Mr`] that owns the
/// value, and they stay in place when the value moves.
pub unsafe trait Region: Send + Sync {
    /// First byte.
    fn addr(&self) -> NonNull<u8>;
    /// Length in bytes.
    fn len(&self) -> usize;
    /// Whether there is no byte.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Page-aligned host memory, zeroed.
#[derive(Debug)]
pub struct HostBuffer {
    addr: NonNull<u8>,
    len: usize,
}

// SAFETY: the buffer is its own mapping; nothing in it belongs to a thread.
unsafe impl Send for HostBuffer {}
// SAFETY: a shared buffer offers no access to the bytes.
unsafe impl Sync for HostBuffer {}

impl HostBuffer {
    /// Maps `len` bytes, at least one.
    pub fn new(len: usize) -> Result<HostBuffer> {
        HostBuffer::map(len, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1)
    }

    fn map(len: usize, flags: libc::c_int, fd: libc::c_int) -> Result<HostBuffer> {
        if len == 0 {
            return Err(Error::Argument("a buffer holds at least one byte"));
        }
        // SAFETY: a mapping at an address of the kernel's choice touches no existing memory.
        let addr = unsafe {
            libc::mmap(std::ptr::null_mut(), len, libc::PROT_READ | libc::PROT_WRITE, flags, fd, 0)
        };
        match NonNull::new(addr.cast::<u8>()) {
            Some(addr) if addr.as_ptr().cast() != libc::MAP_FAILED => Ok(HostBuffer { addr, len }),
            _ => Err(Error::last("mmap")),
        }
    }
}

impl Drop for HostBuffer {
    fn drop(&mut self) {
        // SAFETY: the mapping made in `new`, which nobody uses after its owner is dropped.
        unsafe { libc::munmap(self.addr.as_ptr().cast(), self.len) };
    }
}

// SAFETY: the mapping is private to the value, fixed, readable and writable until the drop.
unsafe impl Region for HostBuffer {
    fn addr(&self) -> NonNull<u8> {
        self.addr
    }
    fn len(&self) -> usize {
        self.len
    }
}

/// A mapping of a descriptor's bytes, such as a GPU's memory. Whoever else has the descriptor may write them at any time, as a
/// peer may write registered memory.
#[derive(Debug)]
pub struct MappedBuffer(HostBuffer);

impl MappedBuffer {
    /// Maps `len` bytes, at least one, from the start.
    pub fn new(fd: BorrowedFd<'_>, len: u64) -> Result<MappedBuffer> {
        let len =
            usize::try_from(len).map_err(|_| Error::Argument("longer than the address space"))?;
        HostBuffer::map(len, libc::MAP_SHARED, fd.as_raw_fd()).map(MappedBuffer)
    }
}

// SAFETY: as for HostBuffer; what others do to the bytes by the descriptor is of the same kind as what peers do.
unsafe impl Region for MappedBuffer {
    fn addr(&self) -> NonNull<u8> {
        self.0.addr
    }
    fn len(&self) -> usize {
        self.0.len
    }
}

/// Owner of a dma-buf registration: nothing, since the kernel holds the buffer (the descriptor may be closed).
#[derive(Debug)]
pub struct Dmabuf {
    _private: (),
}

/// A memory region: memory `M` and the keys that name it. Dropping it ends all access by the device, then frees `M`.
pub struct Mr<M = HostBuffer> {
    // The order matters: the drop of `Mr` deregisters before the fields go.
    registration: Registration,
    memory: ManuallyDrop<M>,
}

struct Registration {
    pd: Pd,
    raw: NonNull<ffi::Mr>,
    /// Address of byte 0 as work requests name it.
    iova: u64,
    len: u64,
}

// SAFETY: see OpenDevice in context.rs; the struct behind `raw` is not changed after registration.
unsafe impl Send for Registration {}
// SAFETY: as above.
unsafe impl Sync for Registration {}

/// Bytes of a local region that a work request reads or writes.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub struct LocalSlice<'a> {
    pub(crate) sge: ffi::Sge,
    _region: PhantomData<&'a ()>,
}

impl LocalSlice<'_> {
    /// Length in bytes.
    pub fn len(&self) -> u32 {
        self.sge.length
    }
    /// Whether there is no byte.
    pub fn is_empty(&self) -> bool {
        self.sge.length == 0
    }
}

/// Bytes of a region at the far end, as a value to send there: address, length, key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct RemoteSlice {
    /// Address of the first byte in the owner's terms.
    pub addr: u64,
    /// Length in bytes.
    pub len: u64,
    /// The key the owner gave away.
    pub rkey: u32,
}

impl RemoteSlice {
    /// A part, by byte offsets from the start.
    pub fn slice(&self, range: impl RangeBounds<u64>) -> Result<RemoteSlice> {
        let (offset, len) = resolve(range, self.len)?;
        Ok(RemoteSlice { addr: self.addr.wrapping_add(offset), len, rkey: self.rkey })
    }
}

impl Pd {
    /// Registers `memory`, which the region owns from now on.
    pub fn reg<M: Region>(&self, memory: M, access: Access) -> Result<Mr<M>> {
        let (addr, len) = (memory.addr().as_ptr(), memory.len());
        let functions = self.inner.context.inner.functions();
        // SAFETY: the domain is alive; by the contract of Region the bytes are mapped and stay so until the owner is
        // dropped, which happens after deregistration.
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

    /// Registers `len` bytes from `offset` of a dma-buf: GPU memory, or what else exports one. Work requests name its
    /// first byte by the address `iova`, which must agree with `offset` within a page. The descriptor may be closed
    /// afterwards.
    ///
    /// Errors (ibv_reg_dmabuf_mr(3) and the kernel): EOPNOTSUPP no support; EBADF and EINVAL no dma-buf or too short;
    /// EBUSY the device has no path to the memory.
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
            // SAFETY: the domain is alive and the descriptor open; no memory of this program is named.
            unsafe { register(pd, offset, size, iova, fd, access) }
        })
    }

    /// A region over a dma-buf, by whichever call.
    pub(crate) fn reg_dmabuf_by(
        &self,
        call: &'static str,
        len: u64,
        iova: u64,
        register: impl FnOnce(*mut ffi::Pd, usize) -> *mut ffi::Mr,
    ) -> Result<Mr<Dmabuf>> {
        let raw = register(self.inner.raw.as_ptr(), size_of_region(len, iova)?);
        let raw = NonNull::new(raw).ok_or_else(|| Error::last(call))?;
        let registration = Registration { pd: self.clone(), raw, iova, len };
        Ok(Mr { registration, memory: ManuallyDrop::new(Dmabuf { _private: () }) })
    }

    /// Whether the device's driver registers dma-bufs at all. It is asked to register descriptor -1, so nothing is registered:
    /// one that could says EBADF, one that cannot EOPNOTSUPP.
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
        // SAFETY: the domain is alive; the descriptor names nothing, and no memory of this program is named.
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
        let (offset, len) = resolve(range, self.len())?;
        let length =
            u32::try_from(len).map_err(|_| Error::Range { offset, len, size: u32::MAX.into() })?;
        let sge = ffi::Sge { addr: self.registration.iova + offset, length, lkey: self.lkey() };
        Ok(LocalSlice { sge, _region: PhantomData })
    }

    /// The whole region, for a peer.
    pub fn remote(&self) -> RemoteSlice {
        RemoteSlice { addr: self.registration.iova, len: self.len(), rkey: self.rkey() }
    }
}

impl Mr<HostBuffer> {
    /// Moves the pages into the memory of a GPU of peerdma's platform, 0 being the first. The bytes stay at their addresses: a touch by
    /// the CPU brings a page home, and an on-demand region ([`Access::ON_DEMAND`]) is served where it is. Answers how many moved.
    ///
    /// Errors: [`Error::NotSupported`] with any other library; EPERM without the right to userfaultfd, ENOMEM where the GPU is
    /// full, ENODEV without such a GPU.
    pub fn migrate_to_gpu(&self, gpu: u32) -> Result<u64> {
        let Some(migrate) = self.registration.pd.inner.context.inner.functions().migrate_to_gpu
        else {
            return Err(Error::NotSupported("only peerdma's libibverbs migrates memory to GPUs"));
        };
        // SAFETY: sysconf has no preconditions.
        let page = usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096);
        let len = self.memory.len.next_multiple_of(page);
        // SAFETY: the mapping is the buffer's own, to the end of its last page; its bytes stay as they are.
        let moved = unsafe { migrate(gpu, self.memory.addr.as_ptr().cast(), len) };
        u64::try_from(moved).map_err(|_| Error::last("peerdma_migrate_to_gpu"))
    }
}

impl<M: Region> Mr<M> {
    /// Copies bytes out, from `offset` on. See the module text for what a concurrent write means.
    pub fn read(&self, offset: u64, out: &mut [u8]) -> Result<()> {
        let start = self.at(offset, out.len())?;
        let (head, words) = split(start, out.len());
        let (first, rest) = out.split_at_mut(head);
        let (middle, last) = rest.split_at_mut(words * 8);
        // SAFETY: `at` checked that the range lies in the region, which is mapped while `self` lives. `split` gives a
        // head after which the address is a multiple of 8. Shared accesses elsewhere are atomic or the device's.
        unsafe {
            for (i, byte) in first.iter_mut().enumerate() {
                *byte = AtomicU8::from_ptr(start.add(i)).load(Ordering::Relaxed);
            }
            let aligned = start.add(head).cast::<u64>();
            for (i, word) in middle.chunks_exact_mut(8).enumerate() {
                word.copy_from_slice(
                    &AtomicU64::from_ptr(aligned.add(i)).load(Ordering::Relaxed).to_ne_bytes(),
                );
            }
            let tail = start.add(head + words * 8);
            for (i, byte) in last.iter_mut().enumerate() {
                *byte = AtomicU8::from_ptr(tail.add(i)).load(Ordering::Relaxed);
            }
        }
        Ok(())
    }

    /// Copies bytes in, from `offset` on.
    pub fn write(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        let start = self.at(offset, bytes.len())?;
        let (head, words) = split(start, bytes.len());
        let (first, rest) = bytes.split_at(head);
        let (middle, last) = rest.split_at(words * 8);
        // SAFETY: as in `read`.
        unsafe {
            for (i, &byte) in first.iter().enumerate() {
                AtomicU8::from_ptr(start.add(i)).store(byte, Ordering::Relaxed);
            }
            let aligned = start.add(head).cast::<u64>();
            for (i, word) in middle.as_chunks::<8>().0.iter().enumerate() {
                AtomicU64::from_ptr(aligned.add(i))
                    .store(u64::from_ne_bytes(*word), Ordering::Relaxed);
            }
            let tail = start.add(head + words * 8);
            for (i, &byte) in last.iter().enumerate() {
                AtomicU8::from_ptr(tail.add(i)).store(byte, Ordering::Relaxed);
            }
        }
        Ok(())
    }

    fn at(&self, offset: u64, len: usize) -> Result<*mut u8> {
        let (offset, _) = resolve(offset..offset.saturating_add(len as u64), self.len())?;
        // SAFETY: `resolve` checked offset + len against the length of the region.
        Ok(unsafe { self.memory.addr().as_ptr().add(offset as usize) })
    }
}

impl<M> Drop for Mr<M> {
    fn drop(&mut self) {
        let functions = self.registration.pd.inner.context.inner.functions();
        // SAFETY: the only owner of the registration; slices borrowed from it are gone.
        let value = unsafe { (functions.ibv_dereg_mr)(self.registration.raw.as_ptr()) };
        if check("ibv_dereg_mr", value).is_ok() {
            // SAFETY: dropped once, here, and the device no longer has access. If it still had (deregistration
            // refused), the memory is leaked instead.
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

impl From<Error> for io::Error {
    fn from(error: Error) -> io::Error {
        match error {
            Error::Call { call, source } => {
                io::Error::new(source.kind(), format!("{call}: {source}"))
            }
            other => io::Error::other(other),
        }
    }
}

/// Bytes before the first multiple of 8 and the count of whole words after them.
fn split(start: *mut u8, len: usize) -> (usize, usize) {
    let head = ((start as usize).wrapping_neg() % 8).min(len);
    (head, (len - head) / 8)
}

/// Offset and length of a range over `size` bytes.
fn resolve(range: impl RangeBounds<u64>, size: u64) -> Result<(u64, u64)> {
    let start = match range.start_bound() {
        Bound::Included(&start) => start,
        Bound::Excluded(&start) => start.saturating_add(1),
        Bound::Unbounded => 0,
    };
    let end = match range.end_bound() {
        Bound::Included(&end) => end.saturating_add(1),
        Bound::Excluded(&end) => end,
        Bound::Unbounded => size,
    };
    let len = end.checked_sub(start).filter(|_| end <= size);
    len.map(|len| (start, len)).ok_or(Error::Range {
        offset: start,
        len: end.saturating_sub(start),
        size,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_stay_inside() {
        assert_eq!(resolve(.., 10).unwrap(), (0, 10));
        assert_eq!(resolve(3..=9, 10).unwrap(), (3, 7));
        assert_eq!(resolve(10..10, 10).unwrap(), (10, 0));
        assert!(resolve(3..11, 10).is_err());
        #[allow(clippy::reversed_empty_ranges, reason = "the bad range is the point")]
        let reversed = 5..4;
        assert!(resolve(reversed, 10).is_err());
        assert!(resolve(u64::MAX..=u64::MAX, 10).is_err());
    }

    #[test]
    fn a_remote_slice_of_a_slice_keeps_key_and_bounds() {
        let whole = RemoteSlice { addr: 0x1000, len: 100, rkey: 7 };
        let part = whole.slice(10..20).unwrap();
        assert_eq!(part, RemoteSlice { addr: 0x100a, len: 10, rkey: 7 });
        assert!(part.slice(5..11).is_err());
    }

    #[test]
    fn words_begin_at_aligned_addresses() {
        for address in 64..72_usize {
            for len in 0..40 {
                let (head, words) = split(address as *mut u8, len);
                assert!(head + words * 8 <= len && len - head - words * 8 < 8);
                assert!(words == 0 || (address + head).is_multiple_of(8));
            }
        }
    }

    #[test]
    fn an_empty_buffer_is_refused() {
        assert!(HostBuffer::new(0).is_err());
    }
}
