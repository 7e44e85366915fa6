//! `ibv_rereg_mr(3)`: another place, domain or other rights for a region that keeps its keys.

use crate::base::ffi::{INVALID, Res, coded};
use crate::base::object::object;
use crate::objects::context::Context;
use crate::objects::facts::Kind;
use crate::objects::pd::Pd;
use crate::regions::mr::{Backing, Mr, OFFERED, rights, user_backing};
use engine_thread::lock;
use mm::Sink;
use std::ffi::{c_int, c_void};
use umem::{AccessFlags, Rereg, check};
use verbs_sys::flags::*;
use verbs_sys::*;

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
    context.device().settle_requests();
    let mut facts = lock(&mr.facts);
    facts.access = access;
    if let Some(pd) = new_pd {
        facts.pd = pd.hca()?.id();
    }
    if let Some(new) = new {
        (facts.kind, facts.iova, facts.length) = (new.kind, new.iova, new.length);
    }
    Ok(())
}

/// `ibv_rereg_mr(3)`, with the result codes of `enum ibv_rereg_mr_err_code`. The key stays the
/// same.
pub(crate) unsafe extern "C" fn ibv_rereg_mr(
    c: *mut ibv_mr,
    flags: c_int,
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> c_int {
    coded(REREG_ERR_CMD, || {
        // SAFETY: the program passes a live MR.
        let mr = unsafe { object::<Mr>(c) };
        let translate = flags & REREG_TRANSLATION != 0;
        let good_input = mr.is_ok_and(|mr| matches!(mr.kind(), Kind::User | Kind::Device))
            && flags & !REREG_SUPPORTED == 0
            && !(translate && (addr.is_null() || length == 0))
            && (access == 0 || flags & REREG_ACCESS != 0)
            && !(flags & REREG_PD != 0 && pd.is_null());
        let (Ok(mr), true) = (mr, good_input) else {
            return Err((REREG_ERR_INPUT, INVALID));
        };
        // SAFETY: whoever registers memory gives it to devices: ibv_rereg_mr(3).
        let memory = unsafe { Sink::vouched(addr as u64, length as u64) };
        rereg(mr, flags, pd, memory, access as u32).map_err(|errno| (REREG_ERR_CMD, errno))?;
        mr.show(translate.then_some((addr, length)), (flags & REREG_PD != 0).then_some(pd));
        Ok(())
    })
}
