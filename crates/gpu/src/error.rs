//! Why a GPU refused.

use rustix::io::Errno;

/// A refused call.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Error {
    /// Length 0, or one that cannot be rounded to pages.
    #[error("{0} bytes cannot be allocated")]
    BadLength(u64),
    /// The memory is used up, or no gap is large enough.
    #[error(
        "out of GPU memory: {wanted} bytes wanted, {free} free; free buffers or configure more memory"
    )]
    OutOfMemory {
        /// Bytes wanted.
        wanted: u64,
        /// Bytes free in all.
        free: u64,
    },
    /// The buffer is not wholly behind the BAR, so no peer reaches it.
    #[error(
        "the buffer ends at {end} of the GPU's memory, its BAR shows {bar_bytes} bytes: configure a larger BAR"
    )]
    OutsideBar {
        /// Where the buffer ends in the GPU's memory.
        end: u64,
        /// Bytes that the BAR shows.
        bar_bytes: u64,
    },
    /// Beyond the end of a buffer.
    #[error("bytes {offset} to {offset}+{len} are outside a buffer of {size} bytes")]
    OutOfRange {
        /// First byte.
        offset: u64,
        /// Length in bytes.
        len: u64,
        /// Length of the buffer.
        size: u64,
    },
    /// The bytes behind the buffer are gone: the host is out of memory.
    #[error("the buffer's memory faulted: the host is out of memory")]
    Fault,
    /// A system call failed.
    #[error("{0}: {1}")]
    System(&'static str, Errno),
    /// The function is no GPU with its memory given on the platform.
    #[error("{0} is not a GPU with memory_bytes and bar_bytes on this platform")]
    NotAGpu(pcie::Address),
}

impl From<mm::Fault> for Error {
    fn from(_: mm::Fault) -> Error {
        Error::Fault
    }
}
