//! Regions over a descriptor, registered and registered anew (`include/peerdma/mr_fd.h`): what was
//! proposed for Linux in 2020 ("Add uverbs commands for fd-based MR registration") and never
//! merged.

use crate::base::env;
use crate::base::ffi::{INVALID, Res, UNSUPPORTED, coded, pointer, quiet};
use crate::base::object::object;
use crate::objects::context::Context;
use crate::objects::facts::Kind;
use crate::objects::pd::Pd;
use crate::regions::mr::{self, Backing, Mr};
use crate::regions::rereg;
use mm::Sink;
use std::ffi::{c_int, c_void};
use umem::{AccessFlags, DmabufRange, Rereg, check};
use verbs_sys::flags::*;
use verbs_sys::*;

// enum ibv_mr_fd_type.
const FD_TYPE_NONE: c_int = 0;
const FD_TYPE_DMABUF: c_int = 1;
// Bits of the command mask, enum ibv_mr_fd_command.
const COMMAND_REG: u64 = 1 << 41;
const COMMAND_REREG: u64 = 1 << 42;

fn commands() -> u64 {
    COMMAND_REG | if env::offers_rereg_fd() { COMMAND_REREG } else { 0 }
}

/// `ibv_query_mr_fd_commands`.
pub(crate) unsafe extern "C" fn ibv_query_mr_fd_commands(context: *mut ibv_context) -> u64 {
    quiet(0, || {
        // SAFETY: the program passes a live context.
        unsafe { Context::of(context) }.map(|_| commands())
    })
}

/// Memory as the arguments name it.
struct Named {
    start: u64,
    length: u64,
    iova: u64,
    fd_type: c_int,
    fd: c_int,
}

impl Named {
    fn check(&self, access: u32) -> Res<()> {
        check::page_offset(self.start, self.iova)?;
        match self.fd_type {
            FD_TYPE_NONE => Ok(()),
            FD_TYPE_DMABUF => Ok(check::dmabuf_access(AccessFlags::from_bits_retain(access))?),
            _ => Err(INVALID),
        }
    }

    fn register(&self, context: &Context, access: AccessFlags) -> Res<Backing> {
        let Named { start, length, iova, fd_type, fd } = *self;
        match fd_type {
            FD_TYPE_DMABUF => {
                let range = DmabufRange { fd, offset: start, len: length, iova };
                mr::dmabuf_backing(context, &range, access)
            }
            _ => {
                // SAFETY: whoever registers memory gives it to devices, as with ibv_reg_mr(3).
                let memory = unsafe { Sink::vouched(start, length) };
                mr::user_backing(context, memory, iova, access)
            }
        }
    }
}

/// `ibv_reg_mr_fd`.
pub(crate) unsafe extern "C" fn ibv_reg_mr_fd(
    pd: *mut ibv_pd,
    start: u64,
    length: usize,
    iova: u64,
    fd_type: c_int,
    fd: c_int,
    access: c_int,
) -> *mut ibv_mr {
    pointer(|| {
        // SAFETY: the program passes a live PD.
        let pd = unsafe { object::<Pd>(pd) }?;
        let named = Named { start, length: length as u64, iova, fd_type, fd };
        named.check(access as u32)?;
        let access = mr::rights(access as u32)?;
        mr::install(pd, named.register(pd.context()?, access)?, access)
    })
}

/// `ibv_rereg_mr_fd`, with the result codes of `enum ibv_rereg_mr_err_code`. An error leaves the
/// region as it was.
pub(crate) unsafe extern "C" fn ibv_rereg_mr_fd(
    c: *mut ibv_mr,
    flags: c_int,
    pd: *mut ibv_pd,
    start: u64,
    length: usize,
    iova: u64,
    fd_type: c_int,
    fd: c_int,
    access: c_int,
) -> c_int {
    coded(REREG_ERR_CMD, || {
        let refused = |errno| Err((REREG_ERR_INPUT, errno));
        if commands() & COMMAND_REREG == 0 {
            return refused(UNSUPPORTED);
        }
        // SAFETY: the program passes a live MR.
        let mr = unsafe { object::<Mr>(c) };
        let is_fit = |mr: &Mr| matches!(mr.kind(), Kind::User | Kind::DmaBuf | Kind::DataDirect);
        let good_input = (access == 0 || flags & REREG_ACCESS != 0)
            && !(flags & REREG_PD != 0 && pd.is_null())
            && !(flags & REREG_TRANSLATION != 0 && length == 0);
        let (true, Some(mr)) = (good_input, mr.ok().filter(|mr| is_fit(mr))) else {
            return refused(INVALID);
        };
        let named = Named { start, length: length as u64, iova, fd_type, fd };
        rereg(mr, flags as u32, pd, &named, access as u32)
            .map_err(|errno| (REREG_ERR_CMD, errno))?;
        let place = (flags & REREG_TRANSLATION != 0).then_some((start as *mut c_void, length));
        mr.show(place, (flags & REREG_PD != 0).then_some(pd));
        Ok(())
    })
}

fn rereg(mr: &Mr, flags: u32, pd: *mut ibv_pd, named: &Named, access: u32) -> Res<()> {
    if mr.kind() == Kind::DataDirect && flags != 0 {
        return Err(UNSUPPORTED);
    }
    let (present, wanted) = (mr.umem()?, AccessFlags::from_bits_retain(access));
    let place = (named.start, named.iova);
    let flags = check::rereg_fd(flags, place, wanted, mr::OFFERED, &present)?;
    let is_translation = flags.contains(Rereg::TRANSLATION);
    let becomes_dmabuf = if is_translation {
        named.check(access)?;
        named.fd_type == FD_TYPE_DMABUF
    } else {
        mr.kind() == Kind::DmaBuf
    };
    if flags.contains(Rereg::ACCESS) && becomes_dmabuf {
        check::dmabuf_access(wanted)?;
    }
    rereg::rereg_checked(mr, flags, pd, access, |context, access| named.register(context, access))
}
