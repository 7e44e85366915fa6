//! Flow rules (ibv_create_flow(3)), read as the program laid them out: a header and layers of
//! various lengths behind it.

use crate::base::ffi::{INVALID, Res, UNSUPPORTED, arg, pointer, status};
use crate::base::fork_state::Made;
use crate::base::object::{Object, give, object, take_back};
use crate::objects::context::{Context, Owned};
use crate::queues::counters::Counters;
use crate::queues::qp::Qp;
use hca::FlowCounters;
use hca::steering::{Fate, FlowAttr, FlowKind, Layer, LayerSpec, MAX_SPECS};
use std::cell::UnsafeCell;
use std::ffi::{c_int, c_uint};
use std::sync::Arc;
use verbs_sys::*;

// enum ibv_flow_spec_type
const ACTION_DROP: c_uint = 0x1001;
const ACTION_COUNT: c_uint = 0x1003;
// enum ibv_flow_flags
const DONT_TRAP: u32 = 1 << 1;

/// A flow rule.
#[repr(C)]
pub struct Flow {
    c: UnsafeCell<ibv_flow>,
    made: Made,
}

// SAFETY: repr(C), the C struct first.
unsafe impl Object for Flow {
    type C = ibv_flow;
}

/// `ibv_create_flow(3)`, with the kernel's errors: EINVAL for what cannot be, EOPNOTSUPP for layers
/// and flags that other devices have. That it needs CAP_NET_RAW was seen when the queue pair was
/// made.
pub(crate) unsafe extern "C" fn create_flow(
    qp: *mut ibv_qp,
    attr: *mut ibv_flow_attr,
) -> *mut ibv_flow {
    pointer(|| {
        // SAFETY: the program passes a live QP and a live rule.
        let (qp, head) = unsafe { (object::<Qp>(qp)?, arg(attr)?) };
        let context = qp.context()?;
        // SAFETY: as many layers follow the header as it says, and they name live objects.
        let (attr, counters) = unsafe { rule(context, head) }?;
        context.device().port(u32::from(head.port))?;
        let hca = context.device().frames().create_flow(qp.hca(), attr, counters)?;
        let c = ibv_flow {
            comp_mask: 0,
            context: context.as_c(),
            handle: context.ucontext().own(Owned::Flow(hca)),
        };
        Ok(give(Box::new(Flow { c: UnsafeCell::new(c), made: Made::now() })))
    })
}

/// `ibv_destroy_flow(3)`.
pub(crate) unsafe extern "C" fn destroy_flow(c: *mut ibv_flow) -> c_int {
    status(|| {
        // SAFETY: the program passes a live rule.
        let flow = unsafe { object::<Flow>(c) }?;
        flow.made.check()?;
        // SAFETY: the C struct is live and its context outlives it by the verbs contract.
        let (context, handle) =
            unsafe { (Context::of((*flow.c.get()).context)?, (*flow.c.get()).handle) };
        context.ucontext().disown(handle);
        // SAFETY: it came from `give`, and the program uses it no more.
        drop(unsafe { take_back::<Flow>(c) });
        Ok(())
    })
}

/// A rule, and what counts what it takes.
///
/// # Safety
/// As many whole layers follow `head` as it says, and they name live objects.
unsafe fn rule<'a>(
    context: &Context,
    head: &ibv_flow_attr,
) -> Res<(FlowAttr, Option<&'a Arc<FlowCounters>>)> {
    if head.comp_mask != 0 {
        return Err(INVALID);
    }
    if head.flags & !DONT_TRAP != 0 {
        // The kernel knows one more, for rules of what leaves.
        return Err(if head.flags < 1 << 3 { UNSUPPORTED } else { INVALID });
    }
    let kind = match head.kind {
        0 => FlowKind::Normal,
        1 => FlowKind::AllDefault,
        2 => FlowKind::McDefault,
        3 => FlowKind::Sniffer,
        _ => return Err(INVALID),
    };
    if usize::from(head.num_of_specs) > MAX_SPECS {
        return Err(INVALID);
    }
    let dont_trap = head.flags & DONT_TRAP != 0;
    let mut fate = if dont_trap { Fate::GoOn } else { Fate::Trap };
    let (mut specs, mut counters) = (Vec::new(), None);
    let mut at = std::ptr::from_ref(head).wrapping_add(1).cast::<u8>();
    for _ in 0..head.num_of_specs {
        // SAFETY: the caller's promise; programs need not align what follows a header of 20 bytes.
        let hdr = unsafe { at.cast::<ibv_flow_spec_hdr>().read_unaligned() };
        match hdr.kind {
            // SAFETY: the caller's promise.
            ACTION_COUNT => match unsafe { count_action(context, hdr, at) }? {
                _ if counters.is_some() => return Err(INVALID),
                named => counters = Some(named),
            },
            ACTION_DROP if dont_trap || usize::from(hdr.size) != size_of_val(&hdr) => {
                return Err(INVALID);
            }
            ACTION_DROP => fate = Fate::Drop,
            // SAFETY: the caller's promise.
            _ => specs.push(unsafe { layer(hdr, at) }?),
        }
        at = at.wrapping_add(hdr.size.into());
    }
    Ok((FlowAttr { kind, priority: head.priority, fate, specs }, counters))
}

/// The counters that the action at `at` names.
///
/// # Safety
/// As much as `hdr` says lies there, and it names a live object.
unsafe fn count_action<'a>(
    context: &Context,
    hdr: ibv_flow_spec_hdr,
    at: *const u8,
) -> Res<&'a Arc<FlowCounters>> {
    if usize::from(hdr.size) != size_of::<ibv_flow_spec_counter_action>() {
        return Err(INVALID);
    }
    // SAFETY: the program says that it is this long.
    let action = unsafe { at.cast::<ibv_flow_spec_counter_action>().read_unaligned() };
    // SAFETY: the caller's promise.
    let counters = unsafe { object::<Counters>(action.counters) }?;
    if !std::ptr::eq(counters.context()?, context) {
        return Err(INVALID);
    }
    Ok(counters.hca())
}

/// The layer at `at`.
///
/// # Safety
/// As much as `hdr` says lies there.
unsafe fn layer(hdr: ibv_flow_spec_hdr, at: *const u8) -> Res<LayerSpec> {
    let ibv_flow_spec_hdr { kind, size } = hdr;
    let size = usize::from(size);
    macro_rules! read {
        ($layer:expr, $c:ty) => {{
            if size < size_of::<$c>() {
                return Err(INVALID);
            }
            // SAFETY: the program says that it is this long.
            let spec = unsafe { at.cast::<$c>().read_unaligned() };
            LayerSpec::new($layer, &spec.val, &spec.mask)?
        }};
    }
    Ok(match kind {
        0x20 => read!(Layer::Eth, ibv_flow_spec_eth),
        0x30 => read!(Layer::Ipv4, ibv_flow_spec_ipv4),
        0x31 => read!(Layer::Ipv6, ibv_flow_spec_ipv6),
        0x32 => read!(Layer::Ipv4, ibv_flow_spec_ipv4_ext),
        0x40 => read!(Layer::Tcp, ibv_flow_spec_tcp_udp),
        0x41 => read!(Layer::Udp, ibv_flow_spec_tcp_udp),
        _ => return Err(if is_known(kind) { UNSUPPORTED } else { INVALID }),
    })
}

/// Whether other devices have such a layer or action (`enum ibv_flow_spec_type`).
fn is_known(kind: c_uint) -> bool {
    const INNER: c_uint = 0x100;
    let outer = [0x20, 0x30, 0x31, 0x32, 0x34, 0x40, 0x41, 0x50, 0x51, 0x60];
    (0x1000..=0x1003).contains(&kind) || outer.contains(&(kind & !INNER))
}
