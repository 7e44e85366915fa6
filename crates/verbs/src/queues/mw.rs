//! Memory windows: allocation, `ibv_bind_mw` for type 1, and what a posted bind names
//! (ibv_alloc_mw(3), ibv_bind_mw(3)).

use crate::base::ffi::{INVALID, Res, arg, pointer, status};
use crate::base::fork_state::Made;
use crate::base::object::{Object, give, object, take_back};
use crate::objects::context::{Context, Owned};
use crate::objects::pd::Pd;
use crate::queues::qp::Qp;
use crate::regions::mr::Mr;
use hca::{Bind, Error, MwType, Payload, SendFlags, SendOp, SendWr, SgList};
use std::cell::UnsafeCell;
use std::ffi::{c_int, c_uint};
use std::sync::Arc;
use verbs_sys::*;

/// A memory window.
#[repr(C)]
pub struct Mw {
    c: UnsafeCell<ibv_mw>,
    hca: Arc<hca::Mw>,
    made: Made,
}

// SAFETY: repr(C), the C struct first.
unsafe impl Object for Mw {
    type C = ibv_mw;
}

impl Mw {
    fn context(&self) -> Res<&Context> {
        self.made.check()?;
        // SAFETY: the C struct is live and its context outlives it by the verbs contract.
        unsafe { Context::of((*self.c.get()).context) }
    }
}

/// `ibv_alloc_mw(3)`: EINVAL for a type that does not exist.
pub(crate) unsafe extern "C" fn alloc_mw(pd: *mut ibv_pd, mw_type: c_uint) -> *mut ibv_mw {
    pointer(|| {
        // SAFETY: the program passes a live PD.
        let domain = unsafe { object::<Pd>(pd) }?;
        let known =
            [MwType::One, MwType::Two].into_iter().find(|&known| known as c_uint == mw_type);
        let context = domain.context()?;
        let hca = context.device().alloc_mw(domain.hca()?, known.ok_or(INVALID)?)?;
        let handle = context.ucontext().own(Owned::Mw(hca.clone()));
        let c = ibv_mw { context: context.as_c(), pd, rkey: hca.key(), handle, mw_type };
        Ok(give(Box::new(Mw { c: UnsafeCell::new(c), hca, made: Made::now() })))
    })
}

/// `ibv_dealloc_mw(3)`: also of a bound window, which then gives no access any more.
pub(crate) unsafe extern "C" fn dealloc_mw(c: *mut ibv_mw) -> c_int {
    status(|| {
        // SAFETY: the program passes a live window.
        let mw = unsafe { object::<Mw>(c) }?;
        // SAFETY: the C struct is live.
        mw.context()?.ucontext().disown(unsafe { (*mw.c.get()).handle });
        // SAFETY: it came from `give`, and the program uses it no more.
        drop(unsafe { take_back::<Mw>(c) });
        Ok(())
    })
}

/// What binding `mw` under `rkey` means.
///
/// # Safety
/// `mw` and the region in `info` are null or live.
unsafe fn bind(mw: *mut ibv_mw, rkey: u32, info: &ibv_mw_bind_info) -> hca::Result<(Bind, MwType)> {
    // SAFETY: the caller's promise.
    let window = unsafe { object::<Mw>(mw) }.map_err(|_| Error::Invalid("no memory window"))?;
    // SAFETY: as above.
    let region = unsafe { object::<Mr>(info.mr) }.ok();
    // SAFETY: both C structs are live.
    if unsafe { region.is_some() && (*info.mr).pd != (*window.c.get()).pd } {
        return Err(Error::System(libc::EPERM, "window and region are of different domains"));
    }
    let bind = Bind {
        window: window.hca.key(),
        key: rkey,
        region: region.map_or(0, Mr::key),
        addr: info.addr,
        len: if region.is_some() { info.length } else { 0 },
        access: info.mw_access_flags,
    };
    Ok((bind, window.hca.mw_type()))
}

/// A posted bind, which is for windows of type 2.
///
/// # Safety
/// `mw` and the region in `info` are null or live.
pub unsafe fn posted(mw: *mut ibv_mw, rkey: u32, info: &ibv_mw_bind_info) -> hca::Result<SendOp> {
    // SAFETY: the caller's promise.
    match unsafe { bind(mw, rkey, info) }? {
        (_, MwType::One) => Err(Error::Invalid("ibv_bind_mw binds windows of type 1")),
        _ if info.mr.is_null() => Err(Error::Invalid("a window of type 2 needs a region")),
        (bind, MwType::Two) => Ok(SendOp::BindMw(bind)),
    }
}

/// The slot behind `ibv_bind_mw(3)`: the window gets its next key when the request is posted.
pub(crate) unsafe extern "C" fn bind_mw(
    qp: *mut ibv_qp,
    mw: *mut ibv_mw,
    wanted: *mut ibv_mw_bind,
) -> c_int {
    status(|| {
        // SAFETY: the program passes a live QP, a live window and a live struct.
        let (qp, window, wanted) = unsafe { (object::<Qp>(qp)?, object::<Mw>(mw)?, arg(wanted)?) };
        window.context()?;
        // SAFETY: the C struct is live.
        let rkey = next_key(unsafe { (*mw).rkey });
        // SAFETY: the program passes null or a live region.
        let (bind, mw_type) = unsafe { bind(mw, rkey, &wanted.bind_info) }?;
        if mw_type != MwType::One || wanted.bind_info.mw_access_flags & ZERO_BASED != 0 {
            return Err(INVALID);
        }
        let request = SendWr {
            wr_id: wanted.wr_id,
            op: SendOp::BindMw(bind),
            payload: Payload::Gather(SgList::new()),
            flags: SendFlags::from_bits(wanted.send_flags).ok_or(INVALID)?,
            datagram: None,
            xrc_srqn: 0,
        };
        qp.hca().post_send(&mut std::iter::once(Ok(request))).map_err(|(_, error)| error)?;
        // SAFETY: the C struct is live; the program reads the member.
        unsafe { (*mw).rkey = rkey };
        Ok(())
    })
}

const ZERO_BASED: c_uint = hca::Access::ZERO_BASED.bits();

/// What the header's `ibv_inc_rkey` gives: the low 8 bits count up.
fn next_key(rkey: u32) -> u32 {
    rkey & !0xff | u32::from((rkey as u8).wrapping_add(1))
}
