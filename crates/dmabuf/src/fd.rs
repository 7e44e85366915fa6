//! What a descriptor from a C program is, and locks on files. The only unsafe code of this room:
//! raw descriptor numbers and one ioctl.

use crate::error::Refused;
use rustix::io::Errno;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

/// A descriptor of our own for the file behind `fd`. A raw system call: the C library's is
/// interposed.
pub(crate) fn duplicate(fd: RawFd) -> Result<OwnedFd, Errno> {
    // SAFETY: affects nothing but the descriptor table.
    let new = unsafe { libc::syscall(libc::SYS_fcntl, fd, libc::F_DUPFD_CLOEXEC, 0) };
    if new < 0 {
        return Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::BADF));
    }
    // SAFETY: the kernel has just made it for us.
    Ok(unsafe { OwnedFd::from_raw_fd(new as RawFd) })
}

/// `DMA_BUF_MAGIC` (`include/uapi/linux/magic.h`): the file system type of kernel dma-bufs.
const DMA_BUF_MAGIC: u64 = 0x444d_4142;

/// Whether the kernel made this dma-buf.
pub(crate) fn is_kernel_dmabuf(fd: BorrowedFd<'_>) -> bool {
    rustix::fs::fstatfs(fd).is_ok_and(|s| s.f_type as u64 == DMA_BUF_MAGIC)
}

/// The name that `/proc` shows for a descriptor.
pub(crate) fn name(fd: BorrowedFd<'_>) -> Option<String> {
    let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
    rustix::fs::readlink(path, Vec::new()).ok()?.into_string().ok()
}

/// The file of a descriptor of another process, if it is a memfd of that name: no other is opened.
pub(crate) fn memfd_of_process(pid: u32, fd: u32, name: &str) -> Result<OwnedFd, Refused> {
    let file = rustix::fs::readlink(format!("/proc/{pid}/fd/{fd}"), Vec::new());
    let file = file.map_err(|_| Refused::NotOurs)?;
    let file = file.to_bytes().strip_prefix(b"/memfd:");
    if file.and_then(|file| file.strip_suffix(b" (deleted)")) != Some(name.as_bytes()) {
        return Err(Refused::NotOurs);
    }
    shm::memfd_of_process(pid, fd).map_err(|errno| match errno {
        Errno::PERM => Refused::NotOurs,
        _ => Refused::NotNow,
    })
}

pub(crate) const SYNC_READ: u64 = 1;
pub(crate) const SYNC_WRITE: u64 = 2;
pub(crate) const SYNC_END: u64 = 4;

/// `DMA_BUF_IOCTL_SYNC` (`include/uapi/linux/dma-buf.h`): `_IOW('b', 0, struct dma_buf_sync)`.
const DMA_BUF_IOCTL_SYNC: u64 = 1 << 30 | 8 << 16 | (b'b' as u64) << 8;

/// Opens or closes a bracket of CPU access to a kernel dma-buf.
pub(crate) fn sync(fd: &impl AsFd, flags: u64) -> Result<(), Errno> {
    loop {
        // SAFETY: the call reads one 64-bit word of flags.
        let code = unsafe {
            libc::syscall(
                libc::SYS_ioctl,
                fd.as_fd().as_raw_fd(),
                DMA_BUF_IOCTL_SYNC,
                &raw const flags,
            )
        };
        if code == 0 {
            return Ok(());
        }
        match Errno::from_io_error(&std::io::Error::last_os_error()) {
            Some(Errno::INTR | Errno::AGAIN) => {}
            errno => return Err(errno.unwrap_or(Errno::IO)),
        }
    }
}

/// The file behind a descriptor, opened once more: with locks of its own.
pub(crate) fn reopen(fd: BorrowedFd<'_>) -> Result<OwnedFd, Errno> {
    let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
    let flags = rustix::fs::OFlags::RDWR | rustix::fs::OFlags::CLOEXEC;
    rustix::fs::open(path, flags, rustix::fs::Mode::empty())
}

/// Locks a byte unless somebody else has.
pub(crate) fn try_lock(fd: &impl AsFd, byte: i64) -> bool {
    shm::lock_byte(fd, byte.cast_unsigned()).is_ok()
}

/// Gives a lock back.
pub(crate) fn unlock(fd: &impl AsFd, byte: i64) {
    shm::unlock_byte(fd, byte.cast_unsigned());
}

/// Whether somebody else has locked a byte.
pub(crate) fn is_locked(fd: &impl AsFd, byte: i64) -> bool {
    shm::is_byte_locked(fd, byte.cast_unsigned()).unwrap_or(true)
}
