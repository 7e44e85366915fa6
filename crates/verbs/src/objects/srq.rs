//! Shared receive queues.

use crate::base::acks::Acks;
use crate::base::ffi::{INVALID, Res, UNSUPPORTED, arg, arg_mut, pointer, status};
use crate::base::fork_state::Made;
use crate::base::object::{Object, give, object, take_back};
use crate::objects::allocator::{Allocation, Resource};
use crate::objects::context::{Context, Owned};
use crate::objects::cq::Cq;
use crate::objects::pd::Pd;
use crate::objects::xrc::Xrcd;
use engine_thread::lock;
use hca::{SrqKind, TmCap, XrcSrq};
use std::cell::UnsafeCell;
use std::ffi::{c_int, c_void};
use std::sync::{Arc, Mutex};
use verbs_sys::flags::*;
use verbs_sys::*;

/// A shared receive queue.
#[repr(C)]
pub struct Srq {
    c: UnsafeCell<ibv_srq>,
    hca: Arc<hca::Srq>,
    made: Made,
    acks: Arc<Acks>,
    /// Its requests' place, if the program's allocator provides it.
    memory: Mutex<Option<Allocation>>,
}

// SAFETY: repr(C), the C struct first.
unsafe impl Object for Srq {
    type C = ibv_srq;
}

impl Srq {
    /// The HCA's queue.
    pub fn hca(&self) -> &Arc<hca::Srq> {
        &self.hca
    }

    /// Acknowledgements of `ibv_ack_async_event`.
    pub fn acks(&self) -> &Acks {
        &self.acks
    }

    /// The context it belongs to; EIO when that was the parent process's.
    pub fn context(&self) -> Res<&Context> {
        self.made.check()?;
        // SAFETY: the C struct is live and its context outlives it by the verbs contract.
        unsafe { Context::of((*self.c.get()).context) }
    }
}

/// Memory for its requests, if `domain` has an allocator.
fn allocate(context: &Context, domain: &Pd, attr: hca::SrqAttr) -> Res<Option<Allocation>> {
    context.device().check_srq(&attr)?;
    let bytes = hca::QueueMemory::bytes_of_srq(attr.max_wr, attr.max_sge);
    Allocation::new(domain, Resource::Srq, bytes)
}

/// # Safety
/// `pd` is null or live.
unsafe fn create(
    pd: *mut ibv_pd,
    srq_context: *mut c_void,
    attr: &mut ibv_srq_attr,
    kind: hca::SrqKind,
) -> Res<*mut ibv_srq> {
    // SAFETY: the caller's promise.
    let domain = unsafe { object::<Pd>(pd) }?;
    let context = domain.context()?;
    // Who asks for none gets one, as of libmlx5.
    let max_wr = attr.max_wr.max(1);
    let wanted = hca::SrqAttr { max_wr, max_sge: attr.max_sge, limit: 0 };
    let memory = allocate(context, domain, wanted)?;
    let place = memory.as_ref().map(Allocation::memory);
    let hca = context.device().create_srq(domain.hca()?, wanted, kind, place)?;
    let granted = hca.query();
    attr.max_wr = granted.max_wr;
    attr.max_sge = granted.max_sge;
    let handle = context.ucontext().own(Owned::Srq(hca.clone()));
    let acks = Arc::new(Acks::default());
    let c = ibv_srq {
        context: context.as_c(),
        srq_context,
        pd,
        handle,
        mutex: libc::PTHREAD_MUTEX_INITIALIZER,
        cond: libc::PTHREAD_COND_INITIALIZER,
        events_completed: 0,
    };
    let srq = Box::new(Srq {
        made: Made::now(),
        c: UnsafeCell::new(c),
        hca,
        acks: acks.clone(),
        memory: Mutex::new(memory),
    });
    let address = srq.c.get() as u64;
    context.engine().sink.add_object(&srq.hca, context.events().clone(), address, acks);
    Ok(give(srq))
}

/// `ibv_create_srq(3)`.
pub(crate) unsafe extern "C" fn ibv_create_srq(
    pd: *mut ibv_pd,
    init: *mut ibv_srq_init_attr,
) -> *mut ibv_srq {
    pointer(|| {
        // SAFETY: the program passes a live struct and a live PD.
        unsafe {
            let init = arg_mut(init)?;
            create(pd, init.srq_context, &mut init.attr, SrqKind::Basic)
        }
    })
}

/// `ibv_create_srq_ex(3)`. As with mlx5, tag matching completes at an extended CQ only.
pub(crate) unsafe extern "C" fn create_srq_ex(
    context: *mut ibv_context,
    init: *mut ibv_srq_init_attr_ex,
) -> *mut ibv_srq {
    pointer(|| {
        // SAFETY: the program passes an open context and a live struct.
        let (context, init) = unsafe { (Context::of(context)?, arg_mut(init)?) };
        let typed = init.comp_mask & SRQ_INIT_ATTR_TYPE != 0;
        let srq_type = if typed { init.srq_type } else { SRQT_BASIC };
        let wanted = match srq_type {
            SRQT_XRC => SRQ_INIT_ATTR_XRCD | SRQ_INIT_ATTR_CQ,
            SRQT_TM => SRQ_INIT_ATTR_CQ | SRQ_INIT_ATTR_TM,
            SRQT_BASIC => 0,
            _ => return Err(UNSUPPORTED),
        };
        if init.comp_mask & !(SRQ_INIT_ATTR_TYPE | SRQ_INIT_ATTR_PD | wanted) != 0 {
            return Err(UNSUPPORTED);
        }
        if init.comp_mask & wanted != wanted {
            return Err(INVALID);
        }
        if init.comp_mask & SRQ_INIT_ATTR_PD == 0 {
            return Err(INVALID);
        }
        // SAFETY: the mask says that the program passes a live PD.
        let domain = unsafe { object::<Pd>(init.pd) }?;
        if !std::ptr::eq(domain.context()?, context) {
            return Err(INVALID);
        }
        let kind = match srq_type {
            // SAFETY: the mask says that the program passes a live domain and a live CQ.
            SRQT_XRC => unsafe {
                SrqKind::Xrc(XrcSrq {
                    xrcd: domain_of(context, init)?,
                    cq: cq_of(context, init)?.hca().clone(),
                })
            },
            // SAFETY: the mask says that the program passes a live CQ.
            SRQT_TM => tag_matching(unsafe { cq_of(context, init) }?, &init.tm_cap)?,
            _ => SrqKind::Basic,
        };
        // SAFETY: as above.
        unsafe { create(init.pd, init.srq_context, &mut init.attr, kind) }
    })
}

/// # Safety
/// The XRC domain is null or live.
unsafe fn domain_of(context: &Context, init: &ibv_srq_init_attr_ex) -> Res<Arc<hca::Xrcd>> {
    // SAFETY: the caller's promise.
    let xrcd = unsafe { object::<Xrcd>(init.xrcd) }?;
    if std::ptr::eq(xrcd.context()?, context) { Ok(xrcd.hca().clone()) } else { Err(INVALID) }
}

/// # Safety
/// The CQ is null or live.
unsafe fn cq_of<'a>(context: &Context, init: &ibv_srq_init_attr_ex) -> Res<&'a Cq> {
    // SAFETY: the caller's promise.
    let cq = unsafe { object::<Cq>(init.cq) }?;
    if std::ptr::eq(cq.context()?, context) { Ok(cq) } else { Err(INVALID) }
}

fn tag_matching(cq: &Cq, cap: &ibv_tm_cap) -> Res<SrqKind> {
    if !cq.is_extended() {
        return Err(INVALID);
    }
    let cap = TmCap { max_num_tags: cap.max_num_tags, max_ops: cap.max_ops };
    Ok(SrqKind::TagMatching(cq.hca().clone(), cap))
}

/// `ibv_get_srq_num(3)`: EINVAL for a queue that is none of XRC.
pub(crate) unsafe extern "C" fn get_srq_num(srq: *mut ibv_srq, number: *mut u32) -> c_int {
    status(|| {
        // SAFETY: the program passes a live SRQ and a place to fill.
        let (srq, number) = unsafe { (object::<Srq>(srq)?, arg_mut(number)?) };
        srq.context()?;
        *number = srq.hca.number().ok_or(INVALID)?;
        Ok(())
    })
}

/// `ibv_modify_srq(3)`: EINVAL for unknown mask bits; a wrong value changes nothing.
pub(crate) unsafe extern "C" fn ibv_modify_srq(
    srq: *mut ibv_srq,
    attr: *mut ibv_srq_attr,
    mask: c_int,
) -> c_int {
    status(|| {
        // SAFETY: the program passes a live SRQ and a live struct.
        let (srq, attr) = unsafe { (object::<Srq>(srq)?, arg(attr)?) };
        let context = srq.context()?;
        if mask & !(SRQ_MAX_WR | SRQ_LIMIT) != 0 {
            return Err(INVALID);
        }
        let given = |bit, value| (mask & bit != 0).then_some(value);
        let (max_wr, limit) = (given(SRQ_MAX_WR, attr.max_wr), given(SRQ_LIMIT, attr.srq_limit));
        let Some(size) = max_wr else { return Ok(srq.hca.modify(None, limit, None)?) };
        // SAFETY: the C struct is live, and its domain as long as what was made with it.
        let domain = unsafe { object::<Pd>((*srq.c.get()).pd) }?;
        let memory = allocate(context, domain, hca::SrqAttr { max_wr: size, ..srq.hca.query() })?;
        srq.hca.modify(max_wr, limit, memory.as_ref().map(Allocation::memory))?;
        let mut place = lock(&srq.memory);
        let before = std::mem::replace(&mut *place, memory);
        drop(place);
        drop(before);
        Ok(())
    })
}

/// `ibv_query_srq(3)`.
pub(crate) unsafe extern "C" fn ibv_query_srq(srq: *mut ibv_srq, attr: *mut ibv_srq_attr) -> c_int {
    status(|| {
        // SAFETY: the program passes a live SRQ and a struct to fill.
        let (srq, attr) = unsafe { (object::<Srq>(srq)?, arg_mut(attr)?) };
        srq.context()?;
        let now = srq.hca.query();
        *attr = ibv_srq_attr { max_wr: now.max_wr, max_sge: now.max_sge, srq_limit: now.limit };
        Ok(())
    })
}

/// `ibv_destroy_srq(3)`: EBUSY while a QP uses it; then waits for outstanding acknowledgements.
pub(crate) unsafe extern "C" fn ibv_destroy_srq(c: *mut ibv_srq) -> c_int {
    status(|| {
        // SAFETY: the program passes a live SRQ.
        let srq = unsafe { object::<Srq>(c) }?;
        let context = srq.context()?;
        srq.hca.destroy()?;
        context.engine().sink.remove_object(&srq.hca, c as u64);
        // SAFETY: the C struct is live.
        context.ucontext().disown(unsafe { (*srq.c.get()).handle });
        // SAFETY: it came from `give`, and the program uses it no more.
        drop(unsafe { take_back::<Srq>(c) });
        Ok(())
    })
}
