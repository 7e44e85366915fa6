//! How a queue pair is made from what C asks for.

use super::Qp;
use super::attr::{cap_from_c, cap_to_c};
use crate::base::acks::Acks;
use crate::base::env::{self, Model};
use crate::base::ffi::{INVALID, Res, UNSUPPORTED, arg_mut, pointer};
use crate::base::fork_state::Made;
use crate::base::object::{give, object};
use crate::objects::allocator::{Allocation, Resource};
use crate::objects::context::{Context, Owned};
use crate::objects::cq::Cq;
use crate::objects::pd::Pd;
use crate::objects::srq::Srq;
use crate::objects::wq::IndTable;
use crate::objects::xrc::Xrcd;
use crate::queues::builder::Builder;
use crate::queues::qp_ex;
use hca::QpType;
use std::cell::UnsafeCell;
use std::ffi::{c_uint, c_void};
use std::sync::{Arc, OnceLock};
use verbs_sys::flags::*;
use verbs_sys::*;

// A QP type that other devices have (enum ibv_qp_type).
const DRIVER: c_uint = 0xff;

fn qp_type(value: c_uint) -> Res<QpType> {
    match value {
        2 => Ok(QpType::Rc),
        3 => Ok(QpType::Uc),
        4 => Ok(QpType::Ud),
        8 => Ok(QpType::RawPacket),
        9 => Ok(QpType::XrcSend),
        10 => Ok(QpType::XrcRecv),
        DRIVER => Err(UNSUPPORTED),
        _ => Err(INVALID),
    }
}

/// Most inline data that is granted without being asked for, bytes.
const MAX_INLINE_IN_PLACE: u32 = 512;

/// Inline data may take the place of the gather list, as in other devices; some programs count on
/// it without asking.
fn with_room_inline(cap: hca::QpCap) -> hca::QpCap {
    let in_place =
        cap.max_send_sge.saturating_mul(size_of::<ibv_sge>() as u32).min(MAX_INLINE_IN_PLACE);
    hca::QpCap { max_inline_data: cap.max_inline_data.max(in_place), ..cap }
}

/// The HCA's objects that `init` names, as far as the QP type uses them, and their domain.
///
/// # Safety
/// The pointers are null or live objects.
unsafe fn parts(
    qp_type: QpType,
    context: &Context,
    pd: *mut ibv_pd,
    xrcd: *mut ibv_xrcd,
    init: &ibv_qp_init_attr,
) -> Res<(Arc<hca::Pd>, hca::QpInit)> {
    let here = |other: Res<&Context>| match other?.as_c() == context.as_c() {
        true => Ok(()),
        false => Err(INVALID),
    };
    let cq = |cq: *mut ibv_cq| -> Res<Option<Arc<hca::Cq>>> {
        // SAFETY: the caller's promise.
        let cq = unsafe { object::<Cq>(cq) }?;
        here(cq.context())?;
        Ok(Some(cq.hca().clone()))
    };
    let mut parts = hca::QpInit {
        cap: with_room_inline(cap_from_c(&init.cap)),
        sq_sig_all: init.sq_sig_all != 0,
        ..hca::QpInit::new(qp_type)
    };
    if qp_type == QpType::XrcRecv {
        // SAFETY: the caller's promise.
        let xrcd = unsafe { object::<Xrcd>(xrcd) }?;
        here(xrcd.context())?;
        parts.xrcd = Some(xrcd.hca().clone());
        parts.cap = hca::QpCap::default();
        // Its memory keys are judged by the domain of the queue that a packet names.
        return Ok((context.device().alloc_pd()?, parts));
    }
    // SAFETY: the caller's promise.
    let domain = unsafe { object::<Pd>(pd) }?;
    here(domain.context())?;
    parts.send_cq = cq(init.send_cq)?;
    if qp_type == QpType::XrcSend {
        parts.cap.max_recv_wr = 0;
        parts.cap.max_recv_sge = 0;
        return Ok((domain.hca()?.clone(), parts));
    }
    parts.recv_cq = cq(init.recv_cq)?;
    // SAFETY: the caller's promise.
    if let Some(srq) = unsafe { init.srq.cast::<Srq>().as_ref() } {
        here(srq.context())?;
        if srq.hca().number().is_some() {
            return Err(INVALID);
        }
        parts.srq = Some(srq.hca().clone());
    }
    Ok((domain.hca()?.clone(), parts))
}

/// Creates a queue pair; `send_ops` are the operations wanted from the `ibv_wr_*` functions.
///
/// # Safety
/// The pointers are null or live objects.
unsafe fn create(
    context: &Context,
    (pd, xrcd): (*mut ibv_pd, *mut ibv_xrcd),
    init: &mut ibv_qp_init_attr,
    send_ops: Option<u64>,
) -> Res<*mut ibv_qp> {
    let qp_type = qp_type(init.qp_type)?;
    if qp_type == QpType::RawPacket {
        // The kernel asks for the right before it looks at anything else.
        context.device().frames().check()?;
    }
    // SAFETY: the caller's promise.
    let (domain, mut parts) = unsafe { parts(qp_type, context, pd, xrcd, init) }?;
    if let Some(ops) = send_ops
        && ops & !qp_ex::operations(qp_type) != 0
    {
        return Err(UNSUPPORTED);
    }
    let named = |used: bool, cq: *mut ibv_cq| if used { cq } else { std::ptr::null_mut() };
    let send_cq = named(parts.send_cq.is_some(), init.send_cq);
    let recv_cq = named(parts.recv_cq.is_some(), init.recv_cq);
    let srq = if parts.srq.is_some() { init.srq } else { std::ptr::null_mut() };
    // SAFETY: the caller's promise.
    let memory = unsafe { allocate(context, pd, &parts) }?;
    parts.memory = memory.as_ref().map(Allocation::memory);
    let builder = send_ops.map(|_| Builder::new(parts.cap.max_send_wr)).transpose()?;
    let hca = context.device().create_qp(&domain, parts)?;
    init.cap = cap_to_c(&hca.query().cap);
    // SAFETY: all-zero is a valid value: every member is an integer, a nullable pointer, an
    // `Option` of a function or a pthread object that is never used.
    let mut c: ibv_qp_ex = unsafe { std::mem::zeroed() };
    c.qp_base.qp_context = init.qp_context;
    c.qp_base.pd = pd;
    c.qp_base.send_cq = send_cq;
    c.qp_base.recv_cq = recv_cq;
    c.qp_base.srq = srq;
    if let Some(ops) = send_ops {
        // libmlx5 gives all that the type has, whatever was asked for, and programs of its own
        // count on that.
        qp_ex::fill(
            &mut c,
            match env::model() {
                Model::Generic => ops,
                Model::ConnectX => qp_ex::operations(qp_type),
            },
        );
    }
    Ok(install(context, hca, c, builder, memory))
}

/// Memory for the queues, if the domain has an allocator.
///
/// # Safety
/// `pd` is null or live.
unsafe fn allocate(
    context: &Context,
    pd: *mut ibv_pd,
    init: &hca::QpInit,
) -> Res<Option<Allocation>> {
    context.device().check_qp(init)?;
    let mut cap = init.cap;
    if init.srq.is_some() {
        cap.max_recv_wr = 0;
    }
    // The receiving half of XRC has no queue, and mostly no domain.
    // SAFETY: the caller's promise.
    match unsafe { object::<Pd>(pd) } {
        Ok(pd) if init.qp_type != QpType::XrcRecv => {
            Allocation::new(pd, Resource::Qp, hca::QueueMemory::bytes_of_qp(&cap))
        }
        _ => Ok(None),
    }
}

/// Files a handle of a queue pair and makes its C object from what `c` says already.
fn install(
    context: &Context,
    hca: Arc<hca::Qp>,
    mut c: ibv_qp_ex,
    builder: Option<Builder>,
    memory: Option<Allocation>,
) -> *mut ibv_qp {
    c.qp_base.context = context.as_c();
    c.qp_base.handle = context.ucontext().own(Owned::Qp(hca.clone()));
    c.qp_base.qp_num = hca.number();
    c.qp_base.state = hca.state() as c_uint;
    c.qp_base.qp_type = hca.init().qp_type as c_uint;
    let acks = Arc::new(Acks::default());
    let qp = Box::new(Qp {
        made: Made::now(),
        c: UnsafeCell::new(c),
        acks: acks.clone(),
        builder,
        extension: OnceLock::new(),
        sq_sig_all: hca.init().sq_sig_all.into(),
        max_inline: hca.query().cap.max_inline_data,
        hca,
        _memory: memory,
    });
    let address = qp.as_c() as u64;
    context.engine().sink.add_object(&qp.hca, context.events().clone(), address, acks);
    give(qp)
}

/// The C object of one more handle.
pub fn opened(context: &Context, hca: Arc<hca::Qp>, qp_context: *mut c_void) -> *mut ibv_qp {
    // SAFETY: all-zero is a valid value, as above.
    let mut c: ibv_qp_ex = unsafe { std::mem::zeroed() };
    c.qp_base.qp_context = qp_context;
    install(context, hca, c, None, None)
}

/// `ibv_create_qp(3)`.
pub(crate) unsafe extern "C" fn ibv_create_qp(
    pd: *mut ibv_pd,
    init: *mut ibv_qp_init_attr,
) -> *mut ibv_qp {
    // SAFETY: the program passes a live PD and a live struct naming live objects.
    pointer(|| unsafe {
        let context = object::<Pd>(pd)?.context()?;
        create(context, (pd, std::ptr::null_mut()), arg_mut(init)?, None)
    })
}

/// The queue pair that spreads frames over an indirection table, with the checks of the kernel and
/// of libmlx5.
///
/// # Safety
/// The struct names live objects, and a hash key as long as it says.
unsafe fn create_rss(context: &Context, init: &ibv_qp_init_attr_ex) -> Res<*mut ibv_qp> {
    let both = QP_INIT_ATTR_IND_TABLE | QP_INIT_ATTR_RX_HASH;
    if init.comp_mask & both != both {
        return Err(INVALID);
    }
    if init.comp_mask & QP_INIT_ATTR_SEND_OPS_FLAGS != 0
        || qp_type(init.qp_type)? != QpType::RawPacket
    {
        return Err(UNSUPPORTED);
    }
    context.device().frames().check()?;
    let queues = [init.send_cq, init.recv_cq].iter().any(|cq| !cq.is_null()) || !init.srq.is_null();
    if queues || init.cap.max_recv_wr != 0 || init.cap.max_recv_sge != 0 {
        return Err(INVALID);
    }
    // SAFETY: the caller's promise.
    let (domain, table) =
        unsafe { (object::<Pd>(init.pd)?, object::<IndTable>(init.rwq_ind_tbl)?) };
    if !std::ptr::eq(domain.context()?, context) || !std::ptr::eq(table.context()?, context) {
        return Err(INVALID);
    }
    let conf = &init.rx_hash_conf;
    if conf.rx_hash_function != RX_HASH_FUNC_TOEPLITZ {
        return Err(UNSUPPORTED);
    }
    let fields = hca::HashFields::from_bits(conf.rx_hash_fields_mask).ok_or(UNSUPPORTED)?;
    if conf.rx_hash_key.is_null() {
        return Err(INVALID);
    }
    // SAFETY: the caller's promise.
    let key = unsafe { std::slice::from_raw_parts(conf.rx_hash_key, conf.rx_hash_key_len.into()) };
    let hash = hca::RxHash::new(fields, key)?;
    let table = table.hca().clone();
    if hash.is_empty() && table.len() > 1 {
        return Err(INVALID);
    }
    let rss = Some(hca::Rss { table, hash });
    let parts = hca::QpInit { rss, ..hca::QpInit::new(QpType::RawPacket) };
    let hca = context.device().create_qp(domain.hca()?, parts)?;
    // SAFETY: all-zero is a valid value, as above.
    let mut c: ibv_qp_ex = unsafe { std::mem::zeroed() };
    c.qp_base.qp_context = init.qp_context;
    c.qp_base.pd = init.pd;
    Ok(install(context, hca, c, None, None))
}

/// `ibv_create_qp_ex(3)`. Beyond a PD or an XRC domain, `send_ops_flags`, empty `create_flags` and
/// what RSS needs are known here; everything else is EOPNOTSUPP.
pub(crate) unsafe extern "C" fn create_qp_ex(
    context: *mut ibv_context,
    init: *mut ibv_qp_init_attr_ex,
) -> *mut ibv_qp {
    pointer(|| {
        // SAFETY: the program passes an open context and a live struct.
        let (context, init) = unsafe { (Context::of(context)?, arg_mut(init)?) };
        // What the type belongs to: an XRC domain or a protection domain.
        let (owner, other) = match qp_type(init.qp_type)? {
            QpType::XrcRecv => (QP_INIT_ATTR_XRCD, QP_INIT_ATTR_PD),
            _ => (QP_INIT_ATTR_PD, QP_INIT_ATTR_XRCD),
        };
        let known = QP_INIT_ATTR_PD
            | QP_INIT_ATTR_XRCD
            | QP_INIT_ATTR_CREATE_FLAGS
            | QP_INIT_ATTR_IND_TABLE
            | QP_INIT_ATTR_RX_HASH
            | QP_INIT_ATTR_SEND_OPS_FLAGS;
        if init.comp_mask & !known != 0 {
            return Err(UNSUPPORTED);
        }
        if init.comp_mask & QP_INIT_ATTR_CREATE_FLAGS != 0 && init.create_flags != 0 {
            return Err(UNSUPPORTED);
        }
        // librdmacm names a protection domain for receiving XRC queue pairs as well; it is only
        // noted down.
        let both = owner == QP_INIT_ATTR_PD && init.comp_mask & other != 0;
        if init.comp_mask & owner == 0 || both {
            return Err(INVALID);
        }
        if init.comp_mask & (QP_INIT_ATTR_IND_TABLE | QP_INIT_ATTR_RX_HASH) != 0 {
            // SAFETY: the struct names live objects and a hash key.
            let qp = unsafe { create_rss(context, init) }?;
            init.cap = ibv_qp_cap::default();
            return Ok(qp);
        }
        let ops = init.comp_mask & QP_INIT_ATTR_SEND_OPS_FLAGS != 0;
        let ops = ops.then_some(init.send_ops_flags);
        let mut basic = ibv_qp_init_attr {
            qp_context: init.qp_context,
            send_cq: init.send_cq,
            recv_cq: init.recv_cq,
            srq: init.srq,
            cap: init.cap,
            qp_type: init.qp_type,
            sq_sig_all: init.sq_sig_all,
        };
        let pd = if init.comp_mask & QP_INIT_ATTR_PD != 0 { init.pd } else { std::ptr::null_mut() };
        // SAFETY: the struct names live objects.
        let qp = unsafe { create(context, (pd, init.xrcd), &mut basic, ops) }?;
        init.cap = basic.cap;
        Ok(qp)
    })
}
