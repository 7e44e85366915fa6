//! The checks of a registration and their errno, in the kernel's order: the one table.
//!
//! A front end calls them in the order of the system call it stands for:
//! - `ibv_reg_mr`: [`page_offset`], [`access_flags`], then [`Umem::from_user`] (`ib_uverbs_reg_mr`, `ib_umem_get`);
//! - `ibv_reg_dmabuf_mr`: [`page_offset`] (of offset and iova), [`dmabuf_access`], [`access_flags`], then
//!   [`Umem::from_dmabuf_fd`] (`UVERBS_METHOD_REG_DMABUF_MR`);
//! - `ibv_rereg_mr`: [`rereg`] (`ib_uverbs_rereg_mr`, `ib_umem_check_rereg`).

use crate::Umem;

bitflags::bitflags! {
    /// Access rights with the numbers of `enum ib_access_flags`.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub struct AccessFlags: u32 {
        /// Local write.
        const LOCAL_WRITE = 1;
        /// Remote write.
        const REMOTE_WRITE = 1 << 1;
        /// Remote read.
        const REMOTE_READ = 1 << 2;
        /// Remote atomic.
        const REMOTE_ATOMIC = 1 << 3;
        /// Memory windows may be bound.
        const MW_BIND = 1 << 4;
        /// Addresses count from 0.
        const ZERO_BASED = 1 << 5;
        /// On-demand paging.
        const ON_DEMAND = 1 << 6;
        /// Huge pages.
        const HUGETLB = 1 << 7;
        /// Flush to global visibility.
        const FLUSH_GLOBAL = 1 << 8;
        /// Flush to persistence.
        const FLUSH_PERSISTENT = 1 << 9;
        /// Relaxed ordering.
        const RELAXED_ORDERING = 1 << 20;
    }

    /// What a re-registration changes (`enum ibv_rereg_mr_flags`).
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub struct Rereg: u32 {
        /// Address, length and iova.
        const TRANSLATION = 1;
        /// Protection domain.
        const PD = 2;
        /// Access rights.
        const ACCESS = 4;
    }
}

/// Bits that a device may not know and must then ignore (`IB_ACCESS_OPTIONAL`): 20 to 29.
pub const OPTIONAL: AccessFlags = AccessFlags::from_bits_retain(0x3ff0_0000);

impl AccessFlags {
    /// Whether the memory must be writable (`ib_access_writable`).
    pub fn wants_write(self) -> bool {
        let writing =
            AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE | AccessFlags::REMOTE_ATOMIC;
        self.intersects(writing | AccessFlags::MW_BIND)
    }
}

/// What a device offers beyond the plain rights.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Offered {
    /// On-demand paging.
    pub on_demand: bool,
    /// Flush to global visibility.
    pub flush_global: bool,
    /// Flush to persistence.
    pub flush_persistent: bool,
}

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

/// `addr` (or a dma-buf's offset) and `iova` must agree inside a page (`ib_uverbs_reg_mr`, `UVERBS_METHOD_REG_DMABUF_MR`).
pub fn page_offset(addr: u64, iova: u64) -> Result<(), RegError> {
    if (addr ^ iova) & (mm::page_size() - 1) == 0 { Ok(()) } else { Err(RegError::PageOffset) }
}

/// `ib_check_mr_access`.
pub fn access_flags(access: AccessFlags, offered: Offered) -> Result<(), RegError> {
    use AccessFlags as A;
    if access.intersects(A::REMOTE_ATOMIC | A::REMOTE_WRITE) && !access.contains(A::LOCAL_WRITE) {
        return Err(RegError::NeedsLocalWrite);
    }
    let unknown = access.bits() & !(A::all() | OPTIONAL).bits();
    if unknown != 0 {
        return Err(RegError::UnknownAccess(unknown));
    }
    for (bit, offers, name) in [
        (A::ON_DEMAND, offered.on_demand, "on-demand paging"),
        (A::FLUSH_GLOBAL, offered.flush_global, "flush to global visibility"),
        (A::FLUSH_PERSISTENT, offered.flush_persistent, "flush to persistence"),
    ] {
        if access.contains(bit) && !offers {
            return Err(RegError::NotOffered(name));
        }
    }
    Ok(())
}

/// The rights that a dma-buf registration takes (`UVERBS_METHOD_REG_DMABUF_MR`).
pub fn dmabuf_access(access: AccessFlags) -> Result<(), RegError> {
    use AccessFlags as A;
    let taken =
        A::LOCAL_WRITE | A::REMOTE_READ | A::REMOTE_WRITE | A::REMOTE_ATOMIC | A::RELAXED_ORDERING;
    let other = access.bits() & !taken.bits();
    if other == 0 { Ok(()) } else { Err(RegError::DmaBufAccess(other)) }
}

/// The checks of `ibv_rereg_mr` over the present memory `umem`. `translation` is the new address and iova, of which the
/// memory itself is then registered by [`Umem::from_user`]. `access` are the new rights, with `ACCESS` in `flags`.
pub fn rereg(
    flags: u32,
    translation: (u64, u64),
    access: AccessFlags,
    offered: Offered,
    umem: &Umem,
) -> Result<Rereg, RegError> {
    let flags = rereg_flags(flags, translation, access, offered)?;
    if umem.is_dmabuf() {
        return Err(RegError::ReregDmaBuf);
    }
    rereg_in_place(flags, access, umem)
}

/// The same for `ibv_rereg_mr_fd`, to which a dma-buf is as good as other memory. `translation` is the new start and iova.
pub fn rereg_fd(
    flags: u32,
    translation: (u64, u64),
    access: AccessFlags,
    offered: Offered,
    umem: &Umem,
) -> Result<Rereg, RegError> {
    let flags = rereg_flags(flags, translation, access, offered)?;
    rereg_in_place(flags, access, umem)
}

fn rereg_flags(
    flags: u32,
    translation: (u64, u64),
    access: AccessFlags,
    offered: Offered,
) -> Result<Rereg, RegError> {
    if flags == 0 {
        return Err(RegError::NoFlags);
    }
    let flags =
        Rereg::from_bits(flags).ok_or(RegError::UnknownFlags(flags & !Rereg::all().bits()))?;
    if flags.contains(Rereg::TRANSLATION) {
        page_offset(translation.0, translation.1)?;
    }
    if flags.contains(Rereg::ACCESS) {
        access_flags(access, offered)?;
    }
    Ok(flags)
}

fn rereg_in_place(flags: Rereg, access: AccessFlags, umem: &Umem) -> Result<Rereg, RegError> {
    // an on-demand registration is made anew for other rights
    let in_place = flags.contains(Rereg::ACCESS)
        && !flags.contains(Rereg::TRANSLATION)
        && !umem.is_on_demand()
        && !access.contains(AccessFlags::ON_DEMAND);
    if in_place && access.wants_write() && !umem.writable() {
        return Err(RegError::ReadOnly);
    }
    Ok(flags)
}
