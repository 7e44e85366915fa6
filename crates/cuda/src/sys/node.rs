//! A GPU's node below `/dev/dri`: buffers by handle, mapped and exported, in the words of amdgpu's
//! driver (`include/uapi/drm/amdgpu_drm.h`), which the software GPU's node answers.
#![allow(unsafe_code, reason = "ioctl(2)")]

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::path::Path;

/// Where a buffer's memory is (`AMDGPU_GEM_DOMAIN_*`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Domain {
    /// Host memory that the GPU uses.
    Host = 2,
    /// The GPU's own.
    Vram = 4,
}

/// `union drm_amdgpu_gem_create`.
#[repr(C)]
struct Create {
    size_or_handle: u64,
    alignment: u64,
    domains: u64,
    flags: u64,
}

/// `struct drm_prime_handle`.
#[repr(C)]
struct Prime {
    handle: u32,
    flags: u32,
    fd: i32,
}

/// `_IOWR('d', number, …)`.
const fn read_write<T>(number: u64) -> u64 {
    3 << 30 | (size_of::<T>() as u64) << 16 | (b'd' as u64) << 8 | number
}

/// A request of the software GPU's own: what a dma-buf is of, and the part of it.
#[repr(C)]
struct Part {
    fd: i32,
    flags: u32,
    start: u64,
    len: u64,
}

const CREATE: u64 = read_write::<Create>(0x40);
const MMAP: u64 = read_write::<u64>(0x41);
const PRIME: u64 = read_write::<Prime>(0x2d);
const EXPORT_PART: u64 = read_write::<Part>(0x9f);
/// `_IOW('d', 0x09, struct drm_gem_close)`.
const CLOSE: u64 = 1 << 30 | 8 << 16 | (b'd' as u64) << 8 | 0x09;

/// An open node.
#[derive(Debug)]
pub struct Node(File);

impl AsFd for Node {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Node {
    /// Opens a node.
    ///
    /// # Errors
    /// As open(2)'s.
    pub fn open(path: &Path) -> io::Result<Node> {
        File::options().read(true).write(true).open(path).map(Node)
    }

    fn request<T>(&self, request: u64, body: &mut T) -> io::Result<()> {
        // SAFETY: a live structure of the length that the request names.
        let answer = unsafe { libc::ioctl(self.0.as_raw_fd(), request, std::ptr::from_mut(body)) };
        if answer == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    /// Allocates zeroed memory; the handle.
    ///
    /// # Errors
    /// ENOMEM where the GPU is full.
    pub fn create(&self, len: u64, domain: Domain) -> io::Result<u32> {
        let mut create =
            Create { size_or_handle: len, alignment: 0, domains: domain as u64, flags: 0 };
        self.request(CREATE, &mut create)?;
        Ok((create.size_or_handle & u64::from(u32::MAX)) as u32)
    }

    /// Where in the node's file a buffer can be mapped.
    ///
    /// # Errors
    /// ENOENT for a handle that is none.
    pub fn offset(&self, handle: u32) -> io::Result<u64> {
        let mut offset = u64::from(handle);
        self.request(MMAP, &mut offset)?;
        Ok(offset)
    }

    /// A dma-buf of a buffer.
    ///
    /// # Errors
    /// ENOENT for a handle that is none; ENOMEM where peers cannot reach all of it.
    pub fn export(&self, handle: u32) -> io::Result<OwnedFd> {
        let flags = (libc::O_CLOEXEC | libc::O_RDWR) as u32;
        let mut prime = Prime { handle, flags, fd: -1 };
        self.request(PRIME, &mut prime)?;
        // SAFETY: made for us by the request.
        Ok(unsafe { OwnedFd::from_raw_fd(prime.fd) })
    }

    /// A dma-buf of `len` bytes from `start` on of what a dma-buf stands for.
    ///
    /// # Errors
    /// EINVAL for what is no part of it, or not of whole pages.
    pub fn export_part(&self, of: BorrowedFd<'_>, start: u64, len: u64) -> io::Result<OwnedFd> {
        let mut part = Part { fd: of.as_raw_fd(), flags: 0, start, len };
        self.request(EXPORT_PART, &mut part)?;
        // SAFETY: made for us by the request.
        Ok(unsafe { OwnedFd::from_raw_fd(part.fd) })
    }

    /// Gives a handle back. What is mapped or exported lives on.
    pub fn close(&self, handle: u32) {
        // a handle that is none is given back already
        let _ = self.request(CLOSE, &mut [handle, 0]);
    }
}

/// A descriptor of our own for what a program's stands for, which it keeps.
///
/// # Errors
/// EBADF for a number that is no descriptor; EMFILE.
pub fn duplicate(descriptor: i32) -> io::Result<OwnedFd> {
    // SAFETY: fcntl(2) takes any number.
    let own = unsafe { libc::fcntl(descriptor, libc::F_DUPFD_CLOEXEC, 0) };
    if own < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: just made, and nobody else's.
    Ok(unsafe { OwnedFd::from_raw_fd(own) })
}
