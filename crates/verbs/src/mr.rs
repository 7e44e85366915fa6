//! Memory regions. Checks come in the kernel's order, with its error numbers (D11).

use crate::abi::flags::*;
use crate::abi::*;
use crate::context::{Context, Owned};
use crate::ffi::{Errno, INVALID, Res, UNSUPPORTED, arg, pointer, quiet, set_errno, status};
use crate::fork_state::Made;
use crate::object::{Object, give, object, take_back};
use crate::pd::Pd;
use crate::{env, memory};
use hca::AdviceError;
use mm::Sink;
use std::cell::UnsafeCell;
use std::ffi::{c_int, c_uint, c_void};
use std::sync::{Arc, Mutex, PoisonError};
use umem::{AccessFlags, Offered, Prefetch, Rereg, check};

/// What a `struct ibv_mr` stands for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Program memory.
    User,
    /// A dma-buf.
    DmaBuf,
    /// A dma-buf that the Data Direct function reaches.
    DataDirect,
    /// Device memory.
    Device,
    /// The null region.
    Null,
    /// A region of another context, named by `ibv_import_mr`.
    Imported,
}

/// What `ibv_rereg_mr` and `ibv_import_mr` ask about a region.
#[derive(Clone, Copy, Debug)]
pub struct Facts {
    pub kind: Kind,
    pd: hca::PdId,
    iova: u64,
    length: u64,
    access: AccessFlags,
}

/// A memory region.
#[repr(C)]
pub struct Mr {
    c: UnsafeCell<ibv_mr>,
    /// `None` for an imported region, which only names the key.
    hca: Option<Arc<hca::Mr>>,
    facts: Arc<Mutex<Facts>>,
    made: Made,
}

// SAFETY: repr(C), the C struct first.
unsafe impl Object for Mr {
    type C = ibv_mr;
}

impl Mr {
    fn facts(&self) -> Facts {
        *self.facts.lock().unwrap_or_else(PoisonError::into_inner)
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

    fn context(&self) -> Res<&Context> {
        self.made.check()?;
        // SAFETY: the C struct is live and its context outlives it by the verbs contract.
        unsafe { Context::of((*self.c.get()).context) }
    }
}

/// What the device offers beyond the plain rights. Memory of a program does not persist.
pub const OFFERED: Offered =
    Offered { on_demand: true, flush_global: true, flush_persistent: false };

/// The rights that `bits` name, in the kernel's checking order. Optional rights that the device does not know are left
/// out, as ibv_reg_mr(3) says.
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
    let umem = memory::user(context.engine().function, memory, iova, access)?;
    Ok(Backing { kind: Kind::User, umem, addr: memory.addr(), length: memory.len(), iova })
}

/// A part of a dma-buf. The C struct's address is the offset, not the iova: so does libibverbs.
pub fn dmabuf_backing(
    context: &Context,
    fd: c_int,
    (offset, length, iova): (u64, u64, u64),
    access: AccessFlags,
) -> Res<Backing> {
    let engine = context.engine();
    let (hca, registry, hold) = (engine.function, &engine.registry, env::dmabuf_hold()?);
    let umem = memory::dmabuf(hca, registry, fd, (offset, length), access, hold)?;
    Ok(Backing { kind: Kind::DmaBuf, umem, addr: offset, length, iova })
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
pub fn reg_dmabuf(
    pd: &Pd,
    offset: u64,
    length: u64,
    iova: u64,
    fd: c_int,
    access: u32,
) -> Res<*mut ibv_mr> {
    check::page_offset(offset, iova)?;
    check::dmabuf_access(AccessFlags::from_bits_retain(access))?;
    let access = rights(access)?;
    install(pd, dmabuf_backing(pd.context()?, fd, (offset, length, iova), access)?, access)
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
        reg_dmabuf(pd, offset, length as u64, iova, fd, access as u32)
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
            unsafe { crate::buf::check(attr.buf.cast(), pd, addr, attr.length) }?;
            return reg_user(domain, memory, iova, attr.access as u32);
        }
        if has(REG_MR_MASK_FD) {
            if !has(REG_MR_MASK_FD_OFFSET) || has(REG_MR_MASK_ADDR) || !has(REG_MR_MASK_IOVA) {
                return Err(INVALID);
            }
            let length = attr.length as u64;
            return reg_dmabuf(
                domain,
                attr.fd_offset,
                length,
                attr.iova,
                attr.fd,
                attr.access as u32,
            );
        }
        if !has(REG_MR_MASK_ADDR) || has(REG_MR_MASK_FD_OFFSET) {
            return Err(INVALID);
        }
        let iova = if has(REG_MR_MASK_IOVA) { attr.iova } else { addr };
        reg_user(domain, memory, iova, attr.access as u32)
    })
}

/// The re-registration proper. An error leaves the old region as it was.
fn rereg(mr: &Mr, flags: c_int, pd: *mut ibv_pd, memory: Sink<'static>, access: u32) -> Res<()> {
    let addr = memory.addr();
    if mr.kind() == Kind::Device {
        // refused by the kernel, not by libibverbs: to that it is a plain region
        return Err(INVALID);
    }
    let wanted = AccessFlags::from_bits_retain(access);
    let flags = check::rereg(flags as u32, (addr, addr), wanted, OFFERED, &*mr.umem()?)?;
    let register = |context: &Context, access| user_backing(context, memory, addr, access);
    rereg_checked(mr, flags, pd, access, register)
}

/// A re-registration whose arguments are checked; `register` gives the new memory where it changes.
pub fn rereg_checked(
    mr: &Mr,
    flags: Rereg,
    pd: *mut ibv_pd,
    access: u32,
    register: impl FnOnce(&Context, AccessFlags) -> Res<Backing>,
) -> Res<()> {
    let hca = mr.hca.as_ref().ok_or(INVALID)?;
    let (context, present, old) = (mr.context()?, mr.umem()?, mr.facts());
    let new_pd = if flags.contains(Rereg::PD) {
        // SAFETY: with this flag the program passes a live PD.
        Some(unsafe { object::<Pd>(pd) }?)
    } else {
        None
    };
    if let Some(pd) = new_pd
        && !std::ptr::eq(pd.context()?, context)
    {
        return Err(INVALID);
    }
    let changed = flags.contains(Rereg::ACCESS);
    let access = if changed { rights(access)? } else { old.access };
    let new = if flags.contains(Rereg::TRANSLATION) {
        Some(register(context, access)?)
    } else if changed && (present.is_on_demand() || access.contains(AccessFlags::ON_DEMAND)) {
        // whether pages are resident or brought in on demand is decided when memory is registered
        // SAFETY: the C struct is live; programs only read it.
        let addr = unsafe { (*mr.c.get()).addr } as u64;
        // SAFETY: the program gave this memory to devices when it registered the region.
        let memory = unsafe { Sink::vouched(addr, old.length) };
        Some(user_backing(context, memory, old.iova, access)?)
    } else {
        None
    };
    let translation = new.as_ref().map(|new| (new.umem.clone(), new.iova));
    hca.rereg(new_pd.map(Pd::hca).transpose()?, translation, changed.then_some(access))?;
    let mut facts = mr.facts.lock().unwrap_or_else(PoisonError::into_inner);
    facts.access = access;
    if let Some(pd) = new_pd {
        facts.pd = pd.hca()?.id();
    }
    if let Some(new) = new {
        (facts.kind, facts.iova, facts.length) = (new.kind, new.iova, new.length);
    }
    Ok(())
}

/// `ibv_rereg_mr(3)`, with the result codes of `enum ibv_rereg_mr_err_code`. The key stays the same.
pub(crate) unsafe extern "C" fn ibv_rereg_mr(
    c: *mut ibv_mr,
    flags: c_int,
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> c_int {
    quiet(REREG_ERR_CMD, || {
        // SAFETY: the program passes a live MR.
        let mr = unsafe { object::<Mr>(c) };
        let translate = flags & REREG_TRANSLATION != 0;
        let good_input = mr.is_ok_and(|mr| matches!(mr.kind(), Kind::User | Kind::Device))
            && flags & !REREG_SUPPORTED == 0
            && !(translate && (addr.is_null() || length == 0))
            && (access == 0 || flags & REREG_ACCESS != 0)
            && !(flags & REREG_PD != 0 && pd.is_null());
        let (Ok(mr), true) = (mr, good_input) else {
            set_errno(INVALID);
            return Ok(REREG_ERR_INPUT);
        };
        // SAFETY: whoever registers memory gives it to devices: ibv_rereg_mr(3).
        let memory = unsafe { Sink::vouched(addr as u64, length as u64) };
        if let Err(errno) = rereg(mr, flags, pd, memory, access as u32) {
            set_errno(errno);
            return Ok(REREG_ERR_CMD);
        }
        mr.show(translate.then_some((addr, length)), (flags & REREG_PD != 0).then_some(pd));
        Ok(0)
    })
}

/// `ibv_dereg_mr(3)`: returns once nothing reaches the memory through the key any more. EBUSY while a memory window is bound
/// to it.
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

/// `ibv_import_mr(3)`: address and length are not known to the importer.
pub(crate) unsafe extern "C" fn ibv_import_mr(pd: *mut ibv_pd, handle: u32) -> *mut ibv_mr {
    pointer(|| {
        // SAFETY: the program passes a live PD.
        let pd = unsafe { object::<Pd>(pd) }?;
        let context = pd.context()?;
        let (key, facts) = match context.ucontext().objects().get(&handle) {
            Some(Owned::Mr(mr, facts)) => {
                (mr.key(), *facts.lock().unwrap_or_else(PoisonError::into_inner))
            }
            _ => return Err(Errno(libc::ENOENT)),
        };
        if facts.pd != pd.hca()?.id() {
            return Err(INVALID);
        }
        let c = ibv_mr {
            context: context.as_c(),
            pd: pd.as_c(),
            addr: std::ptr::null_mut(),
            length: facts.length as usize,
            handle,
            lkey: key,
            rkey: key,
        };
        let facts = Arc::new(Mutex::new(Facts { kind: Kind::Imported, ..facts }));
        Ok(give(Box::new(Mr { c: UnsafeCell::new(c), hca: None, facts, made: Made::now() })))
    })
}

/// `ibv_unimport_mr(3)`.
pub(crate) unsafe extern "C" fn ibv_unimport_mr(c: *mut ibv_mr) {
    quiet((), || {
        // SAFETY: the program passes a live MR.
        let mr = unsafe { object::<Mr>(c) }?;
        mr.context()?;
        if mr.facts().kind == Kind::Imported {
            // SAFETY: it came from `give`, and the program uses it no more.
            drop(unsafe { take_back::<Mr>(c) });
        }
        Ok(())
    });
}

// enum ibv_advise_mr_advice and its flag.
const PREFETCH: c_uint = 0;
const PREFETCH_WRITE: c_uint = 1;
const PREFETCH_NO_FAULT: c_uint = 2;
const ADVISE_FLUSH: u32 = 1;

impl From<AdviceError> for Errno {
    fn from(error: AdviceError) -> Errno {
        crate::log!("{error}");
        Errno(match error {
            AdviceError::NotPaged => libc::ENOENT,
            AdviceError::NotRegion => libc::EINVAL,
            AdviceError::Denied => libc::EPERM,
            AdviceError::Range => libc::EFAULT,
        })
    }
}

/// `ibv_advise_mr(3)`, in the order of `UVERBS_METHOD_ADVISE_MR` and mlx5. Without IBV_ADVISE_MR_FLAG_FLUSH too the work is
/// done before this returns; only its errors are dropped then.
pub(crate) unsafe extern "C" fn advise_mr(
    pd: *mut ibv_pd,
    advice: c_uint,
    flags: u32,
    ranges: *mut ibv_sge,
    count: u32,
) -> c_int {
    status(|| {
        // SAFETY: the program passes a live PD.
        let pd = unsafe { object::<Pd>(pd) }?;
        if flags & !ADVISE_FLUSH != 0 || count == 0 || ranges.is_null() {
            return Err(INVALID);
        }
        let how = match advice {
            PREFETCH => Prefetch::Read,
            PREFETCH_WRITE => Prefetch::Write,
            PREFETCH_NO_FAULT => Prefetch::NoFault,
            _ => return Err(UNSUPPORTED),
        };
        // SAFETY: the program passes `count` ranges.
        let ranges = unsafe { std::slice::from_raw_parts(ranges, count as usize) };
        let ranges: Vec<hca::Sge> = ranges
            .iter()
            .map(|sge| hca::Sge { addr: sge.addr, length: sge.length, lkey: sge.lkey })
            .collect();
        let wait = flags & ADVISE_FLUSH != 0;
        Ok(pd.context()?.device().advise(pd.hca()?.id(), how, &ranges, wait)?)
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
