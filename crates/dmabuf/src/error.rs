//! Why a buffer was refused; each cause is one errno of the kernel's dma-buf code.

use rustix::io::Errno;

/// A refused call.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Error {
    /// The descriptor is not open (EBADF).
    #[error("no such descriptor")]
    NoSuchFd,
    /// The descriptor is no dma-buf (EINVAL); says what it is instead.
    #[error("not a dma-buf: {0}")]
    NotDmaBuf(String),
    /// The exporter's registry could not be asked (the errno it gave).
    #[error("the exporter's control block could not be fetched: {0}")]
    Registry(Errno),
    /// The buffer cannot be mapped into this process (the errno that `mmap` gave).
    #[error("the buffer cannot be mapped: {0}; it must allow mmap for reading and writing")]
    NotMappable(Errno),
    /// The function does not reach the memory (EBUSY, as exporters answer attach).
    #[error(transparent)]
    Unreachable(#[from] pcie::Unreachable),
    /// The exporter took the buffer back (ENODEV).
    #[error("the exporter revoked the buffer")]
    Revoked,
    /// The exporter cannot move or pin this buffer (EINVAL).
    #[error("the exporter does not pin")]
    NoPinning,
    /// The exporter refused CPU access (the errno of DMA_BUF_IOCTL_SYNC).
    #[error("the exporter refused access: {0}")]
    Sync(Errno),
}

impl Error {
    /// The errno at the C ABI.
    pub fn errno(&self) -> i32 {
        match self {
            Error::NoSuchFd => libc::EBADF,
            Error::NotDmaBuf(_) | Error::NoPinning => libc::EINVAL,
            Error::Unreachable(_) => libc::EBUSY,
            Error::Revoked => libc::ENODEV,
            Error::Registry(errno) | Error::NotMappable(errno) | Error::Sync(errno) => {
                errno.raw_os_error()
            }
        }
    }
}
