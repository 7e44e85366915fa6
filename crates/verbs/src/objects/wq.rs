//! Work queues and the indirection tables over them (ibv_create_wq(3),
//! ibv_create_rwq_ind_table(3)).

use crate::base::acks::Acks;
use crate::base::ffi::{INVALID, Res, UNSUPPORTED, arg, arg_mut, pointer, status};
use crate::base::fork_state::Made;
use crate::base::object::{Object, give, object, take_back};
use crate::objects::context::{Context, Owned};
use crate::objects::cq::Cq;
use crate::objects::lists;
use crate::objects::pd::Pd;
use hca::WqState;
use std::cell::UnsafeCell;
use std::ffi::{c_int, c_uint};
use std::sync::Arc;
use verbs_sys::flags::*;
use verbs_sys::*;

/// A work queue.
#[repr(C)]
pub struct Wq {
    c: UnsafeCell<ibv_wq>,
    hca: Arc<hca::Wq>,
    acks: Arc<Acks>,
    made: Made,
}

// SAFETY: repr(C), the C struct first.
unsafe impl Object for Wq {
    type C = ibv_wq;
}

impl Wq {
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

/// `ibv_create_wq(3)`. Nothing of `create_flags` is offered: EOPNOTSUPP.
pub(crate) unsafe extern "C" fn create_wq(
    context: *mut ibv_context,
    init: *mut ibv_wq_init_attr,
) -> *mut ibv_wq {
    pointer(|| {
        // SAFETY: the program passes an open context and a live struct.
        let (context, init) = unsafe { (Context::of(context)?, arg_mut(init)?) };
        if init.comp_mask & !WQ_INIT_ATTR_FLAGS != 0 {
            return Err(UNSUPPORTED);
        }
        if init.comp_mask & WQ_INIT_ATTR_FLAGS != 0 && init.create_flags != 0 {
            return Err(UNSUPPORTED);
        }
        if init.wq_type != WQT_RQ {
            return Err(INVALID);
        }
        // SAFETY: the struct names live objects.
        let (domain, cq) = unsafe { (object::<Pd>(init.pd)?, object::<Cq>(init.cq)?) };
        if !std::ptr::eq(domain.context()?, context) || !std::ptr::eq(cq.context()?, context) {
            return Err(INVALID);
        }
        let wanted =
            hca::WqInit { max_wr: init.max_wr, max_sge: init.max_sge, cq: cq.hca().clone() };
        let hca = context.device().frames().create_wq(domain.hca()?, wanted)?;
        init.max_wr = hca.init().max_wr;
        init.max_sge = hca.init().max_sge;
        let acks = Arc::new(Acks::default());
        let c = ibv_wq {
            context: context.as_c(),
            wq_context: init.wq_context,
            pd: init.pd,
            cq: init.cq,
            wq_num: hca.number(),
            handle: context.ucontext().own(Owned::Wq(hca.clone())),
            state: WqState::Reset as c_uint,
            wq_type: WQT_RQ,
            post_recv: Some(post_wq_recv),
            mutex: libc::PTHREAD_MUTEX_INITIALIZER,
            cond: libc::PTHREAD_COND_INITIALIZER,
            events_completed: 0,
            comp_mask: 0,
        };
        let wq = Box::new(Wq { c: UnsafeCell::new(c), hca, acks: acks.clone(), made: Made::now() });
        let address = wq.c.get() as u64;
        context.engine().sink.add_object(&wq.hca, context.events().clone(), address, acks);
        Ok(give(wq))
    })
}

fn state(value: c_uint) -> Res<WqState> {
    [WqState::Reset, WqState::Rdy, WqState::Err]
        .into_iter()
        .find(|&state| state as c_uint == value)
        .ok_or(INVALID)
}

/// `ibv_modify_wq(3)`: in the order of `ib_uverbs_ex_modify_wq`. Flags are EOPNOTSUPP.
pub(crate) unsafe extern "C" fn modify_wq(c: *mut ibv_wq, attr: *mut ibv_wq_attr) -> c_int {
    status(|| {
        // SAFETY: the program passes a live queue and a live struct.
        let (wq, attr) = unsafe { (object::<Wq>(c)?, arg(attr)?) };
        wq.context()?;
        let mask = attr.attr_mask;
        if mask == 0 || mask & !(WQ_ATTR_STATE | WQ_ATTR_CURR_STATE | WQ_ATTR_FLAGS) != 0 {
            return Err(INVALID);
        }
        let named = |bit, value| if mask & bit != 0 { state(value).map(Some) } else { Ok(None) };
        let current = named(WQ_ATTR_CURR_STATE, attr.curr_wq_state)?;
        let next = named(WQ_ATTR_STATE, attr.wq_state)?;
        if mask & WQ_ATTR_FLAGS != 0 {
            return Err(UNSUPPORTED);
        }
        let next = next.or(current).unwrap_or_else(|| wq.hca.state());
        wq.hca.modify(current, next)?;
        // SAFETY: the C struct is live; programs read this member only.
        unsafe { (*wq.c.get()).state = next as c_uint };
        Ok(())
    })
}

/// `ibv_post_wq_recv(3)`.
unsafe extern "C" fn post_wq_recv(
    c: *mut ibv_wq,
    wr: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    status(|| {
        // SAFETY: the program passes a live queue.
        let wq = unsafe { object::<Wq>(c) }?;
        wq.context()?;
        let lend = |len| wq.hca.scatter_list(len);
        // SAFETY: the program passes a list of live requests, and null or a place to fill.
        unsafe { lists::recv_list(wr, bad, lend, |requests| wq.hca.post(requests)) }
    })
}

/// `ibv_destroy_wq(3)`: EBUSY while a table uses it; then waits for outstanding acknowledgements.
pub(crate) unsafe extern "C" fn destroy_wq(c: *mut ibv_wq) -> c_int {
    status(|| {
        // SAFETY: the program passes a live queue.
        let wq = unsafe { object::<Wq>(c) }?;
        let context = wq.context()?;
        wq.hca.destroy()?;
        context.engine().sink.remove_object(&wq.hca, c as u64);
        // SAFETY: the C struct is live.
        context.ucontext().disown(unsafe { (*wq.c.get()).handle });
        // SAFETY: it came from `give`, and the program uses it no more.
        drop(unsafe { take_back::<Wq>(c) });
        Ok(())
    })
}

/// An indirection table.
#[repr(C)]
pub struct IndTable {
    c: UnsafeCell<ibv_rwq_ind_table>,
    hca: Arc<hca::IndTable>,
    made: Made,
}

// SAFETY: repr(C), the C struct first.
unsafe impl Object for IndTable {
    type C = ibv_rwq_ind_table;
}

impl IndTable {
    /// The HCA's table.
    pub fn hca(&self) -> &Arc<hca::IndTable> {
        &self.hca
    }

    /// The context it belongs to; EIO when that was the parent process's.
    pub fn context(&self) -> Res<&Context> {
        self.made.check()?;
        // SAFETY: the C struct is live and its context outlives it by the verbs contract.
        unsafe { Context::of((*self.c.get()).context) }
    }
}

/// `ibv_create_rwq_ind_table(3)`: EINVAL beyond 2^13 entries.
pub(crate) unsafe extern "C" fn create_rwq_ind_table(
    context: *mut ibv_context,
    init: *mut ibv_rwq_ind_table_init_attr,
) -> *mut ibv_rwq_ind_table {
    pointer(|| {
        // SAFETY: the program passes an open context and a live struct.
        let (context, init) = unsafe { (Context::of(context)?, arg(init)?) };
        if init.comp_mask != 0 {
            return Err(UNSUPPORTED);
        }
        if init.log_ind_tbl_size > hca::MAX_LOG_TABLE || init.ind_tbl.is_null() {
            return Err(INVALID);
        }
        // SAFETY: the program passes as many pointers to live queues as the size says.
        let named = unsafe { std::slice::from_raw_parts(init.ind_tbl, 1 << init.log_ind_tbl_size) };
        let wqs = named.iter().map(|&wq| {
            // SAFETY: as above.
            let wq = unsafe { object::<Wq>(wq) }?;
            match std::ptr::eq(wq.context()?, context) {
                true => Ok(wq.hca.clone()),
                false => Err(INVALID),
            }
        });
        let hca = context.device().frames().create_ind_table(wqs.collect::<Res<_>>()?)?;
        let handle = context.ucontext().own(Owned::IndTable(hca.clone())) as c_int;
        let c = ibv_rwq_ind_table {
            context: context.as_c(),
            ind_tbl_handle: handle,
            ind_tbl_num: handle,
            comp_mask: 0,
        };
        Ok(give(Box::new(IndTable { c: UnsafeCell::new(c), hca, made: Made::now() })))
    })
}

/// `ibv_destroy_rwq_ind_table(3)`: EBUSY while a queue pair uses it.
pub(crate) unsafe extern "C" fn destroy_rwq_ind_table(c: *mut ibv_rwq_ind_table) -> c_int {
    status(|| {
        // SAFETY: the program passes a live table.
        let table = unsafe { object::<IndTable>(c) }?;
        let context = table.context()?;
        table.hca.destroy()?;
        // SAFETY: the C struct is live.
        context.ucontext().disown(unsafe { (*table.c.get()).ind_tbl_handle } as u32);
        // SAFETY: it came from `give`, and the program uses it no more.
        drop(unsafe { take_back::<IndTable>(c) });
        Ok(())
    })
}
