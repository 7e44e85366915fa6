//! Why a registration was refused, and the errno of each cause: the one table.

/// Why a registration was refused; each cause is one errno.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum RegError {
    /// Address or offset and iova differ inside a page (EINVAL).
    #[error("address and iova must have the same offset inside a page")]
    PageOffset,
    /// An access bit that does not exist (EINVAL).
    #[error("unknown access flags {0:#x}")]
    UnknownAccess(u32),
    /// Remote write or atomic without local write (EINVAL).
    #[error("remote write and remote atomic need local write")]
    NeedsLocalWrite,
    /// An access bit that a dma-buf registration does not take (EINVAL).
    #[error("access flags {0:#x} cannot be used with a dma-buf")]
    DmaBufAccess(u32),
    /// The device does not offer this (EOPNOTSUPP).
    #[error("the device does not offer {0}")]
    NotOffered(&'static str),
    /// Address or offset plus length wraps (EINVAL).
    #[error("the range wraps")]
    Overflow,
    /// No page, or more than 2^32 - 1 (EINVAL).
    #[error("{0} pages cannot be registered")]
    Pages(u64),
    /// No page size of the adapter suits memory and iova: there is no byte, or their offsets inside
    /// a page differ (EINVAL, `ib_umem_find_best_pgsz`).
    #[error("no page size suits the memory and its iova")]
    NoPageSize,
    /// Address plus length of an on-demand registration wraps (EOVERFLOW, `ib_init_umem_odp`).
    #[error("the on-demand range wraps")]
    OnDemandOverflow,
    /// An implicit registration starts at iova 0 (EINVAL).
    #[error("a registration of the whole address space starts at iova 0")]
    ImplicitIova,
    /// An implicit registration has ordinary pages (EINVAL).
    #[error("a registration of the whole address space cannot ask for huge pages")]
    ImplicitHuge,
    /// Locking is not permitted (EPERM) or exceeds the limit (ENOMEM).
    #[error(transparent)]
    Pin(#[from] mm::PinError),
    /// Nothing is left to remember the registration in (ENOMEM).
    #[error(transparent)]
    NoMemory(#[from] mm::NoMemory),
    /// The memory is not mapped, or not for this access (EFAULT).
    #[error("the memory is not mapped for this access")]
    Fault,
    /// The range ends behind the dma-buf (EINVAL).
    #[error("the dma-buf has {size} bytes, the range ends at {end}")]
    BeyondBuffer {
        /// Size of the buffer.
        size: u64,
        /// End of the range.
        end: u64,
    },
    /// The dma-buf refused; its own errno.
    #[error(transparent)]
    DmaBuf(#[from] dmabuf::Error),
    /// The function does not reach host memory (EBUSY).
    #[error(transparent)]
    Unreachable(#[from] pcie::Unreachable),
    /// A re-registration that changes nothing (EINVAL).
    #[error("nothing to re-register")]
    NoFlags,
    /// Re-registration flags that do not exist (EOPNOTSUPP).
    #[error("unknown re-registration flags {0:#x}")]
    UnknownFlags(u32),
    /// A dma-buf registration cannot be re-registered (EOPNOTSUPP).
    #[error("a dma-buf registration cannot be re-registered")]
    ReregDmaBuf,
    /// Write access asked on memory that was registered for reading (EACCES).
    #[error("the memory was registered for reading; register it anew to write")]
    ReadOnly,
}

impl RegError {
    /// The errno at the C ABI.
    pub fn errno(&self) -> i32 {
        match self {
            RegError::PageOffset
            | RegError::UnknownAccess(_)
            | RegError::NeedsLocalWrite
            | RegError::DmaBufAccess(_)
            | RegError::Overflow
            | RegError::Pages(_)
            | RegError::NoPageSize
            | RegError::ImplicitIova
            | RegError::ImplicitHuge
            | RegError::BeyondBuffer { .. }
            | RegError::NoFlags => libc::EINVAL,
            RegError::NotOffered(_) | RegError::UnknownFlags(_) | RegError::ReregDmaBuf => {
                libc::EOPNOTSUPP
            }
            RegError::OnDemandOverflow => libc::EOVERFLOW,
            RegError::Pin(mm::PinError::NotPermitted) => libc::EPERM,
            RegError::Pin(mm::PinError::Limit) | RegError::NoMemory(_) => libc::ENOMEM,
            RegError::Fault => libc::EFAULT,
            RegError::ReadOnly => libc::EACCES,
            RegError::Unreachable(_) => libc::EBUSY,
            RegError::DmaBuf(error) => error.errno(),
        }
    }
}
