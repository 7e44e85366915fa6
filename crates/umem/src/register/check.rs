//! The checks of a registration, in the kernel's order.
//!
//! A front end calls them in the order of the system call it stands for:
//! - `ibv_reg_mr`: [`page_offset`], [`access_flags`], then [`Umem::from_user`] (`ib_uverbs_reg_mr`,
//!   `ib_umem_get`);
//! - `ibv_reg_dmabuf_mr`: [`page_offset`] (of offset and iova), [`dmabuf_access`],
//!   [`access_flags`], then [`Umem::from_dmabuf`] (`UVERBS_METHOD_REG_DMABUF_MR`);
//! - `ibv_rereg_mr`: [`rereg`] (`ib_uverbs_rereg_mr`, `ib_umem_check_rereg`).
//!
//! The page size comes last, as it does where a driver fills in its key:
//! [`Umem::best_page_size`].

use crate::region::umem::Umem;
use crate::request::error::RegError;
use crate::request::rights::{AccessFlags, OPTIONAL, Offered, Rereg};

/// `addr` (or a dma-buf's offset) and `iova` must agree inside a page (`ib_uverbs_reg_mr`,
/// `UVERBS_METHOD_REG_DMABUF_MR`).
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

/// The checks of `ibv_rereg_mr` over the present memory `umem`. `translation` is the new address
/// and iova, of which the memory itself is then registered by [`Umem::from_user`]. `access` are the
/// new rights, with `ACCESS` in `flags`.
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

/// The same for `ibv_rereg_mr_fd`, to which a dma-buf is as good as other memory. `translation` is
/// the new start and iova.
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
