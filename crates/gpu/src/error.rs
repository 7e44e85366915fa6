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
        "out of GPU memory: {wanted} bytes wanted, {free} free; free buffers or configure more \
         memory"
    )]
    OutOfMemory {
        /// Bytes wanted.
        wanted: u64,
        /// Bytes free in all.
        free: u64,
    },
    /// The buffer is not wholly behind the BAR, so no peer reaches it.
    #[error(
        "the buffer ends at {end} of the GPU's memory, its BAR shows {bar_bytes} bytes: configure \
         a larger BAR"
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
    /// No buffer has this handle.
    #[error("no buffer has handle {0}")]
    BadHandle(u32),
    /// All handles of a node are used up.
    #[error("the node has no handle left: open it again")]
    NoHandle,
    /// There is nothing that the CPU may map.
    #[error("not a place where a buffer may be mapped")]
    NotMappable,
    /// A provider's device node cannot be opened.
    #[error("cannot open {path}: {errno}; {remedy}")]
    NoNode {
        /// The node.
        path: String,
        /// Why not.
        errno: Errno,
        /// What it needs.
        remedy: &'static str,
    },
    /// More than the kernel makes one buffer of.
    #[error("{wanted} bytes are more than one buffer may have, {limit}: raise {file}")]
    OverLimit {
        /// Bytes wanted, in whole pages.
        wanted: u64,
        /// Bytes allowed.
        limit: u64,
        /// Where the limit is.
        file: &'static str,
    },
    /// A driver's library is not here.
    #[error("{name} cannot be loaded: install NVIDIA's driver, which has it ({said})")]
    NoLibrary {
        /// The library.
        name: String,
        /// What the loader says.
        said: String,
    },
    /// A driver's library is too old.
    #[error("{library} has no {name}: install a driver for CUDA 11.7 or newer")]
    NoFunction {
        /// The library.
        library: String,
        /// The function.
        name: &'static str,
    },
    /// CUDA's driver refused.
    #[error("{call}: {name}")]
    Cuda {
        /// The function.
        call: &'static str,
        /// The error's name (`CUDA_ERROR_…`).
        name: String,
    },
    /// The GPU's driver does not export its memory (`CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED`).
    #[error(
        "{0} exports no dma-buf: it needs NVIDIA's open kernel modules, and Linux 5.12 or newer"
    )]
    NoDmaBuf(String),
    /// Others use the buffer, or it is revoked.
    #[error(transparent)]
    DmaBuf(#[from] dmabuf::Error),
    /// A system call failed.
    #[error("{0}: {1}")]
    System(&'static str, Errno),
    /// The function is no GPU with its memory given on the platform.
    #[error("{0} is not a GPU with memory_bytes and bar_bytes on this platform")]
    NotAGpu(pcie::Address),
}

impl Error {
    /// The errno at the C ABI, as amdgpu answers.
    pub fn errno(&self) -> i32 {
        let errno = match self {
            Error::BadLength(_)
            | Error::OutOfRange { .. }
            | Error::OverLimit { .. }
            | Error::NotMappable => Errno::INVAL,
            Error::OutOfMemory { .. } | Error::OutsideBar { .. } => Errno::NOMEM,
            Error::NoHandle => Errno::NOSPC,
            Error::BadHandle(_) => Errno::NOENT,
            Error::Fault => Errno::FAULT,
            Error::NotAGpu(_) => Errno::NODEV,
            Error::System(_, errno) | Error::NoNode { errno, .. } => *errno,
            Error::NoLibrary { .. } | Error::NoFunction { .. } | Error::NoDmaBuf(_) => {
                Errno::OPNOTSUPP
            }
            Error::Cuda { .. } => Errno::IO,
            Error::DmaBuf(error) => return error.errno(),
        };
        errno.raw_os_error()
    }
}

impl From<mm::Fault> for Error {
    fn from(_: mm::Fault) -> Error {
        Error::Fault
    }
}

impl From<mm::LoadFault> for Error {
    fn from(_: mm::LoadFault) -> Error {
        Error::Fault
    }
}

impl From<mm::StoreFault> for Error {
    fn from(_: mm::StoreFault) -> Error {
        Error::Fault
    }
}
