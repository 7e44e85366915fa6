//! Memory regions: registered and deregistered. Checks come in the kernel's order, with its error
//! numbers (D11).

use crate::base::env;
use crate::base::ffi::{INVALID, Res, UNSUPPORTED, arg, pointer, status};
use crate::base::fork_state::Made;
use crate::base::object::{Object, give, object, take_back};
use crate::engine::registered;
use crate::objects::context::{Context, Owned};
use crate::objects::facts::{Facts, Kind};
use crate::objects::pd::Pd;
use engine_thread::lock;
use mm::Sink;
use std::cell::UnsafeCell;
use std::ffi::{c_int, c_uint, c_void};
use std::sync::{Arc, Mutex};
use umem::{AccessFlags, DmabufRange, Offered, check};
use verbs_sys::flags::*;
use verbs_sys::*;

/// A memory region.
#[repr(C)]
pub struct Mr {
    pub(super) c: UnsafeCell<ibv_mr>,
    /// `None` for an imported region, which only names the key.
    pub(super) hca: Option<Arc<hca::Mr>>,
    pub(super) facts: Arc<Mutex<Facts>>,
    made: Made,
}

// SAFETY: repr(C), the C struct first.
unsafe impl Object for Mr {
    type C = ibv_mr;
}

impl Mr {
    /// A region of which only the key is known.
    pub(super) fn imported(c: ibv_mr, facts: Facts) -> Mr {
        let facts = Arc::new(Mutex::new(facts));
        Mr { c: UnsafeCell::new(c), hca: None, facts, made: Made::now() }
    }

    /// What is known of it now.
    pub(super) fn facts(&self) -> Facts {
        *lock(&self.facts)
    }

    /// What it stands for.
    pub fn kind(&self) -> Kind {
        self.facts().kind
    }

    /// The memory behind it.
    pub fn umem(&self) -> Res<Arc<umem::Umem>> {
        self.hca.as_ref().and_then(|hca| hca.umem()).ok_or(INVALID)
    }

    /// Shows in the C struct what a re-registration changed.
    pub fn show(&self, place: Option<(*mut c_void, usize)>, pd: Option<*mut ibv_pd>) {
        // SAFETY: the C struct is live; programs read it only.
        let c = unsafe { &mut *self.c.get() };
        if let Some((addr, length)) = place {
            (c.addr, c.length) = (addr, length);
        }
        if let Some(pd) = pd {
            c.pd = pd;
        }
    }

    /// lkey and rkey.
    pub fn key(&self) -> u32 {
        // SAFETY: the C struct is live; programs only read it.
        unsafe { (*self.c.get()).lkey }
    }

    /// The context it is of, if this process made it.
    pub(super) fn context(&self) -> Res<&Context> {
        self.made.check()?;
        // SAFETY: the C struct is live and its context outlives it by the verbs contract.
        unsafe { Context::of((*self.c.get()).context) }
    }
}

/// What the device offers beyond the plain rights. Memory of a program does not persist.
pub const OFFERED: Offered =
    Offered { on_demand: true, flush_global: true, flush_persistent: false };

/// The rights that `bits` name, in the kernel's checking order. Optional rights that the device
/// does not know are left out, as ibv_reg_mr(3) says.
pub fn rights(bits: u32) -> Res<AccessFlags> {
    let access = AccessFlags::from_bits_retain(bits);
    check::access_flags(access, OFFERED)?;
    Ok(AccessFlags::from_bits_truncate(bits))
}

/// Memory that was registered, for a region.
pub struct Backing {
    pub kind: Kind,
    pub umem: Arc<umem::Umem>,
    /// What `struct ibv_mr` shows as the address.
    pub addr: u64,
    pub length: u64,
    pub iova: u64,
}

/// Memory that the program gives to devices.
pub fn user_backing(
    context: &Context,
    memory: Sink<'static>,
    iova: u64,
    access: AccessFlags,
) -> Res<Backing> {
    let umem = registered::user(context.engine().function, memory, iova, access)?;
    Ok(Backing { kind: Kind::User, umem, addr: memory.addr(), length: memory.len(), iova })
}

/// A part of a dma-buf. The C struct's address is the offset, not the iova: so does libibverbs.
pub fn dmabuf_backing(context: &Context, range: &DmabufRange, access: AccessFlags) -> Res<Backing> {
    let engine = context.engine();
    let (hca, registry, hold) = (engine.function, &engine.registry, env::dmabuf_hold()?);
    let umem = registered::dmabuf(hca, registry, range, access, hold)?;
    let &DmabufRange { offset, len, iova, .. } = range;
    Ok(Backing { kind: Kind::DmaBuf, umem, addr: offset, length: len, iova })
}

/// Gives a new registration a key, and files it.
pub fn install(pd: &Pd, backing: Backing, access: AccessFlags) -> Res<*mut ibv_mr> {
    let Backing { kind, umem, addr, length, iova } = backing;
    let context = pd.context()?;
    let hca = context.device().reg_mr(pd.hca()?, umem, iova, access)?;
    file(pd, hca, kind, (addr, length, iova), access)
}

/// Files a region and makes its C struct.
pub fn file(
    pd: &Pd,
    hca: Arc<hca::Mr>,
    kind: Kind,
    (addr, length, iova): (u64, u64, u64),
    access: AccessFlags,
) -> Res<*mut ibv_mr> {
    let context = pd.context()?;
    let facts = Facts { kind, pd: pd.hca()?.id(), iova, length, access };
    let facts = Arc::new(Mutex::new(facts));
    let handle = context.ucontext().own(Owned::Mr(hca.clone(), facts.clone()));
    let c = ibv_mr {
        context: context.as_c(),
        pd: pd.as_c(),
        addr: addr as *mut c_void,
        length: length as usize,
        handle,
        lkey: hca.key(),
        rkey: hca.key(),
    };
    Ok(give(Box::new(Mr { c: UnsafeCell::new(c), hca: Some(hca), facts, made: Made::now() })))
}

/// Registers memory that the program gives to devices.
pub fn reg_user(pd: &Pd, memory: Sink<'static>, iova: u64, access: u32) -> Res<*mut ibv_mr> {
    let (addr, length) = (memory.addr(), memory.len());
    let on_demand = access & AccessFlags::ON_DEMAND.bits() != 0;
    if on_demand && length == u64::MAX && addr != 0 {
        // ibv_cmd_reg_mr, before the kernel sees it: everything starts at 0
        return Err(INVALID);
    }
    check::page_offset(addr, iova)?;
    let access = rights(access)?;
    install(pd, user_backing(pd.context()?, memory, iova, access)?, access)
}

/// The rights of a region over device memory, which must be zero-based.
pub fn zero_based(access: u32) -> Res<AccessFlags> {
    if access & AccessFlags::ZERO_BASED.bits() == 0 {
        return Err(INVALID);
    }
    rights(access)
}

/// Registers device memory.
pub fn reg_device(
    pd: &Pd,
    umem: Arc<umem::Umem>,
    length: u64,
    access: AccessFlags,
) -> Res<*mut ibv_mr> {
    install(pd, Backing { kind: Kind::Device, umem, addr: 0, length, iova: 0 }, access)
}

/// Registers what has no memory behind it; for local use only.
pub fn reg_null(pd: &Pd, umem: Arc<umem::Umem>) -> Res<*mut ibv_mr> {
    let length = umem.len();
    let whole = Backing { kind: Kind::Null, umem, addr: 0, length, iova: 0 };
    let mr = install(pd, whole, AccessFlags::LOCAL_WRITE)?;
    // SAFETY: it was just made, and nobody else knows it.
    unsafe { (*mr).rkey = 0 };
    Ok(mr)
}

/// `ibv_reg_mr(3)`.
pub(crate) unsafe extern "C" fn ibv_reg_mr(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> *mut ibv_mr {
    // SAFETY: the arguments are the program's.
    unsafe { ibv_reg_mr_iova2(pd, addr, length, addr as u64, access as c_uint) }
}

/// `ibv_reg_mr_iova(3)`.
pub(crate) unsafe extern "C" fn ibv_reg_mr_iova(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_int,
) -> *mut ibv_mr {
    // SAFETY: the arguments are the program's.
    unsafe { ibv_reg_mr_iova2(pd, addr, length, iova, access as c_uint) }
}

/// `ibv_reg_mr_iova2`, behind the macros of both.
pub(crate) unsafe extern "C" fn ibv_reg_mr_iova2(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_uint,
) -> *mut ibv_mr {
    pointer(|| {
        // SAFETY: the program passes a live PD.
        let pd = unsafe { object::<Pd>(pd) }?;
        // SAFETY: whoever registers memory gives it to devices: ibv_reg_mr(3).
        let memory = unsafe { Sink::vouched(addr as u64, length as u64) };
        reg_user(pd, memory, iova, access)
    })
}

/// Registers a part of a dma-buf.
pub fn reg_dmabuf(pd: &Pd, range: &DmabufRange, access: u32) -> Res<*mut ibv_mr> {
    check::page_offset(range.offset, range.iova)?;
    check::dmabuf_access(AccessFlags::from_bits_retain(access))?;
    let access = rights(access)?;
    install(pd, dmabuf_backing(pd.context()?, range, access)?, access)
}

/// `ibv_reg_dmabuf_mr(3)`.
pub(crate) unsafe extern "C" fn ibv_reg_dmabuf_mr(
    pd: *mut ibv_pd,
    offset: u64,
    length: usize,
    iova: u64,
    fd: c_int,
    access: c_int,
) -> *mut ibv_mr {
    pointer(|| {
        // SAFETY: the program passes a live PD.
        let pd = unsafe { object::<Pd>(pd) }?;
        let range = DmabufRange { fd, offset, len: length as u64, iova };
        reg_dmabuf(pd, &range, access as u32)
    })
}

/// `ibv_reg_mr_ex(3)`: program memory or a dma-buf, by the mask. DMA handles are EOPNOTSUPP.
pub(crate) unsafe extern "C" fn ibv_reg_mr_ex(
    pd: *mut ibv_pd,
    attr: *mut ibv_mr_init_attr,
) -> *mut ibv_mr {
    pointer(|| {
        // SAFETY: the program passes a live PD and a live struct.
        let (domain, attr) = unsafe { (object::<Pd>(pd)?, arg(attr)?) };
        let mask = attr.comp_mask;
        let known = REG_MR_MASK_IOVA
            | REG_MR_MASK_ADDR
            | REG_MR_MASK_FD
            | REG_MR_MASK_FD_OFFSET
            | REG_MR_MASK_DMAH
            | REG_MR_MASK_BUF;
        if mask & !known != 0 || mask & REG_MR_MASK_DMAH != 0 {
            return Err(UNSUPPORTED);
        }
        let has = |bit| mask & bit != 0;
        let addr = attr.addr as u64;
        // SAFETY: whoever registers memory gives it to devices: ibv_reg_mr_ex(3).
        let memory = unsafe { Sink::vouched(addr, attr.length as u64) };
        if has(REG_MR_MASK_BUF) {
            if !has(REG_MR_MASK_ADDR) || has(REG_MR_MASK_FD) || has(REG_MR_MASK_FD_OFFSET) {
                return Err(INVALID);
            }
            let iova = if has(REG_MR_MASK_IOVA) { attr.iova } else { addr };
            // SAFETY: the mask says that the program passes a live buffer.
            unsafe { crate::regions::buf::check(attr.buf.cast(), pd, addr, attr.length) }?;
            return reg_user(domain, memory, iova, attr.access as u32);
        }
        if has(REG_MR_MASK_FD) {
            if !has(REG_MR_MASK_FD_OFFSET) || has(REG_MR_MASK_ADDR) || !has(REG_MR_MASK_IOVA) {
                return Err(INVALID);
            }
            // rdma-core leaves such a descriptor out (fill_attr_in_fd), and then there is no
            // memory.
            if attr.fd == -1 {
                return Err(INVALID);
            }
            let (fd, offset, len) = (attr.fd, attr.fd_offset, attr.length as u64);
            let range = DmabufRange { fd, offset, len, iova: attr.iova };
            return reg_dmabuf(domain, &range, attr.access as u32);
        }
        if !has(REG_MR_MASK_ADDR) || has(REG_MR_MASK_FD_OFFSET) {
            return Err(INVALID);
        }
        let iova = if has(REG_MR_MASK_IOVA) { attr.iova } else { addr };
        reg_user(domain, memory, iova, attr.access as u32)
    })
}

/// `ibv_dereg_mr(3)`: returns once nothing reaches the memory through the key any more. EBUSY while
/// a memory window is bound to it.
pub(crate) unsafe extern "C" fn ibv_dereg_mr(c: *mut ibv_mr) -> c_int {
    status(|| {
        // SAFETY: the program passes a live MR.
        let mr = unsafe { object::<Mr>(c) }?;
        if mr.facts().kind == Kind::Imported {
            return Err(INVALID);
        }
        let context = mr.context()?;
        if let Some(hca) = &mr.hca {
            hca.dereg()?;
        }
        // SAFETY: the C struct is live.
        context.ucontext().disown(unsafe { (*mr.c.get()).handle });
        // SAFETY: it came from `give`, and the program uses it no more.
        drop(unsafe { take_back::<Mr>(c) });
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn access_is_checked_as_the_kernel_does() {
        assert_eq!(rights(7), Ok(AccessFlags::from_bits_truncate(7)));
        assert_eq!(rights(0), Ok(AccessFlags::empty()));
        assert_eq!(rights(2), Err(INVALID));
        assert_eq!(rights(8), Err(INVALID));
        assert_eq!(rights(1 << 15), Err(INVALID));
        assert_eq!(rights(1 << 6), Ok(AccessFlags::ON_DEMAND));
        assert_eq!(rights(1 << 8), Ok(AccessFlags::FLUSH_GLOBAL));
        assert_eq!(rights(1 << 9), Err(UNSUPPORTED));
    }

    #[test]
    fn unknown_optional_rights_are_dropped_and_no_others() {
        let granted = AccessFlags::LOCAL_WRITE | AccessFlags::RELAXED_ORDERING;
        assert_eq!(rights(0x3ff0_0001), Ok(granted));
    }
}
