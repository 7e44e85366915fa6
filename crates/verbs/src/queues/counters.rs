//! Counters of flow rules (ibv_create_counters(3), ibv_attach_counters_point_flow(3),
//! ibv_read_counters(3)).

use crate::base::ffi::{INVALID, Res, UNSUPPORTED, arg, pointer, status};
use crate::base::fork_state::Made;
use crate::base::object::{Object, give, object, take_back};
use crate::objects::context::Context;
use hca::{FlowCount, FlowCounters};
use std::cell::UnsafeCell;
use std::ffi::{c_int, c_void};
use std::sync::Arc;
use verbs_sys::*;

// enum ibv_counter_description
const PACKETS: u32 = 0;
const BYTES: u32 = 1;
// enum ibv_read_counters_flags
const PREFER_CACHED: u32 = 1;

/// A counters object.
#[repr(C)]
pub struct Counters {
    c: UnsafeCell<ibv_counters>,
    hca: Arc<FlowCounters>,
    made: Made,
}

// SAFETY: repr(C), the C struct first.
unsafe impl Object for Counters {
    type C = ibv_counters;
}

impl Counters {
    /// The HCA's counters.
    pub fn hca(&self) -> &Arc<FlowCounters> {
        &self.hca
    }

    /// The context it belongs to; EIO when that was the parent process's.
    pub fn context(&self) -> Res<&Context> {
        self.made.check()?;
        // SAFETY: the C struct is live and its context outlives it by the verbs contract.
        unsafe { Context::of((*self.c.get()).context) }
    }
}

/// `ibv_create_counters(3)`.
pub(crate) unsafe extern "C" fn create_counters(
    context: *mut ibv_context,
    init: *mut ibv_counters_init_attr,
) -> *mut ibv_counters {
    pointer(|| {
        // SAFETY: the program passes an open context and a live struct.
        let (context, init) = unsafe { (Context::of(context)?, arg(init)?) };
        if init.comp_mask != 0 {
            return Err(UNSUPPORTED);
        }
        let c = UnsafeCell::new(ibv_counters { context: context.as_c() });
        Ok(give(Box::new(Counters { c, hca: FlowCounters::new(), made: Made::now() })))
    })
}

/// `ibv_destroy_counters(3)`: EBUSY while a rule is bound.
pub(crate) unsafe extern "C" fn destroy_counters(c: *mut ibv_counters) -> c_int {
    status(|| {
        // SAFETY: the program passes a live object.
        let counters = unsafe { object::<Counters>(c) }?;
        counters.context()?;
        counters.hca.destroy()?;
        // SAFETY: it came from `give`, and the program uses it no more.
        drop(unsafe { take_back::<Counters>(c) });
        Ok(())
    })
}

/// `ibv_attach_counters_point_flow(3)`: EBUSY while a rule is bound. As with mlx5 rules name their
/// counters when they are created, so a rule here is ENOTSUP.
pub(crate) unsafe extern "C" fn attach_counters_point_flow(
    counters: *mut ibv_counters,
    attr: *mut ibv_counter_attach_attr,
    flow: *mut c_void,
) -> c_int {
    status(|| {
        // SAFETY: the program passes a live object and a live struct.
        let (counters, attr) = unsafe { (object::<Counters>(counters)?, arg(attr)?) };
        counters.context()?;
        if !flow.is_null() || attr.comp_mask != 0 {
            return Err(UNSUPPORTED);
        }
        let count = match attr.counter_desc {
            PACKETS => FlowCount::Packets,
            BYTES => FlowCount::Bytes,
            _ => return Err(UNSUPPORTED),
        };
        counters.hca.attach(attr.index, count)?;
        Ok(())
    })
}

/// `ibv_read_counters(3)`, with the kernel's errors: EINVAL when no rule is bound, for unknown
/// flags, and when there are more counters than values. Nothing is cached, so a cached value is the
/// present one.
pub(crate) unsafe extern "C" fn read_counters(
    counters: *mut ibv_counters,
    values: *mut u64,
    count: u32,
    flags: u32,
) -> c_int {
    status(|| {
        // SAFETY: the program passes a live object.
        let counters = unsafe { object::<Counters>(counters) }?;
        counters.context()?;
        if values.is_null() || flags & !PREFER_CACHED != 0 {
            return Err(INVALID);
        }
        // SAFETY: the program provides `count` values.
        let values = unsafe { std::slice::from_raw_parts_mut(values, count as usize) };
        counters.hca.read(values)?;
        Ok(())
    })
}
