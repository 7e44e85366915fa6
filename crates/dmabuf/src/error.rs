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
    /// A part of a buffer that is empty, not of whole pages, or not all there (EINVAL).
    #[error("the buffer has no such part, of whole pages")]
    NoSuchPart,
    /// The descriptor of a part cannot be made or read (the errno that the system gave).
    #[error("a descriptor of a part of a buffer: {0}")]
    Part(Errno),
    /// The buffer cannot be mapped into this process (the errno that `mmap` gave).
    #[error("the buffer cannot be mapped: {0}; it must allow mmap for reading and writing")]
    NotMappable(Errno),
    /// The function does not reach the memory (EBUSY, as exporters answer attach).
    #[error(transparent)]
    Unreachable(#[from] pcie::Unreachable),
    /// The exporter took the buffer back (ENODEV).
    #[error("the exporter revoked the buffer")]
    Revoked,
    /// The buffer has moved since the importer mapped it; [`crate::Attachment::fault`] maps it
    /// again (EAGAIN).
    #[error("the buffer has moved")]
    NotMapped,
    /// A process moves the buffer and has not finished in time (EBUSY).
    #[error("the buffer is moving (process {0})")]
    Moving(u64),
    /// A process pins the buffer (EBUSY).
    #[error("process {0} pins the buffer: deregister its memory regions")]
    Pinned(u64),
    /// A process is inside an access and has not left in time (ETIMEDOUT).
    #[error("process {0} is inside an access to the buffer and does not leave it: is it stopped?")]
    InUse(u64),
    /// The exporter keeps no place for the buffer in its memory (ENOSPC).
    #[error("the exporter keeps no place for the buffer in its memory")]
    NoHome,
    /// The new place of a buffer has no pages (ENOMEM).
    #[error("the host is out of memory")]
    OutOfMemory,
    /// As many processes use the buffer as can (EBUSY).
    #[error("{0} processes use the buffer, and more cannot")]
    TooManyUsers(usize),
    /// The control block could not be made or opened (the errno it gave).
    #[error("the buffer's control block: {0}")]
    Control(Errno),
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
            Error::NotDmaBuf(_) | Error::NoPinning | Error::NoSuchPart => libc::EINVAL,
            Error::Unreachable(_)
            | Error::Moving(_)
            | Error::Pinned(_)
            | Error::TooManyUsers(_) => libc::EBUSY,
            Error::NotMapped => libc::EAGAIN,
            Error::InUse(_) => libc::ETIMEDOUT,
            Error::NoHome => libc::ENOSPC,
            Error::OutOfMemory => libc::ENOMEM,
            Error::Revoked => libc::ENODEV,
            Error::Registry(errno)
            | Error::Part(errno)
            | Error::NotMappable(errno)
            | Error::Control(errno)
            | Error::Sync(errno) => errno.raw_os_error(),
        }
    }
}

/// Why a buffer cannot be used from outside.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refused {
    /// What is named is no control block, and will be none.
    NotOurs,
    /// Memory, descriptors or slots are out, or another thread is at it: it may work later.
    NotNow,
}
