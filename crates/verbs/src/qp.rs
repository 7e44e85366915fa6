//! Queue pairs: creation, attributes and states.

use crate::abi::flags::*;
use crate::abi::*;
use crate::acks::Acks;
use crate::ah;
use crate::allocator::{Allocation, Resource};
use crate::context::{Context, Owned};
use crate::cq::Cq;
use crate::env::{self, Model};
use crate::ffi::{Errno, INVALID, Res, UNSUPPORTED, arg, arg_mut, pointer, status};
use crate::fork_state::Made;
use crate::mlx5dv::wr::mlx5dv_qp_ex;
use crate::object::{Object, give, object, take_back};
use crate::pd::Pd;
use crate::qp_ex::{self, Builder};
use crate::srq::Srq;
use crate::wq::IndTable;
use crate::xrc::Xrcd;
use hca::{AttrMask, QpState, QpType};
use std::cell::UnsafeCell;
use std::ffi::{c_int, c_uint, c_void};
use std::sync::{Arc, OnceLock};

// A QP type that other devices have (enum ibv_qp_type).
const DRIVER: c_uint = 0xff;

/// A queue pair. Always in the extended form.
#[repr(C)]
pub struct Qp {
    c: UnsafeCell<ibv_qp_ex>,
    hca: Arc<hca::Qp>,
    made: Made,
    acks: Arc<Acks>,
    /// Present when the program asked for the `ibv_wr_*` functions.
    builder: Option<Builder>,
    /// Present when it was made by `mlx5dv_create_qp`.
    extension: OnceLock<Box<mlx5dv_qp_ex>>,
    sq_sig_all: c_int,
    max_inline: u32,
    /// Its queues, if the program's allocator provides them: given back after the HCA's QP is destroyed.
    _memory: Option<Allocation>,
}

// SAFETY: repr(C), the C struct first.
unsafe impl Object for Qp {
    type C = ibv_qp;
}

impl Qp {
    /// The HCA's queue pair.
    pub fn hca(&self) -> &Arc<hca::Qp> {
        &self.hca
    }

    /// The pointer the program holds.
    pub fn as_c(&self) -> *mut ibv_qp {
        self.c.get().cast()
    }

    /// The same pointer in its extended form.
    pub fn as_c_ex(&self) -> *mut ibv_qp_ex {
        self.c.get()
    }

    /// Acknowledgements of `ibv_ack_async_event`.
    pub fn acks(&self) -> &Acks {
        &self.acks
    }

    /// State of the `ibv_wr_*` functions.
    pub fn builder(&self) -> Option<&Builder> {
        self.builder.as_ref()
    }

    /// Gives it what `mlx5dv.h` adds. Once.
    pub(crate) fn extend(&self, extension: Box<mlx5dv_qp_ex>) {
        let _ = self.extension.set(extension);
    }

    /// What `mlx5dv.h` adds.
    pub(crate) fn extension(&self) -> Option<&mlx5dv_qp_ex> {
        self.extension.get().map(Box::as_ref)
    }

    /// Inline bytes that a request may carry.
    pub fn max_inline(&self) -> u32 {
        self.max_inline
    }

    /// Whether requests carry an address handle.
    pub fn is_datagram(&self) -> bool {
        self.hca.init().qp_type == QpType::Ud
    }

    /// The context it belongs to; EIO when that was the parent process's.
    pub fn context(&self) -> Res<&Context> {
        self.made.check()?;
        // SAFETY: the C struct is live and its context outlives it by the verbs contract.
        unsafe { Context::of((*self.as_c()).context) }
    }
}

const PSN_MASK: u32 = 0x00ff_ffff;

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

fn cap_from_c(cap: &ibv_qp_cap) -> hca::QpCap {
    hca::QpCap {
        max_send_wr: cap.max_send_wr,
        max_recv_wr: cap.max_recv_wr,
        max_send_sge: cap.max_send_sge,
        max_recv_sge: cap.max_recv_sge,
        max_inline_data: cap.max_inline_data,
    }
}

/// Most inline data that is granted without being asked for, bytes.
const MAX_INLINE_IN_PLACE: u32 = 512;

/// Inline data may take the place of the gather list, as in other devices; some programs count on it without asking.
fn with_room_inline(cap: hca::QpCap) -> hca::QpCap {
    let in_place =
        cap.max_send_sge.saturating_mul(size_of::<ibv_sge>() as u32).min(MAX_INLINE_IN_PLACE);
    hca::QpCap { max_inline_data: cap.max_inline_data.max(in_place), ..cap }
}

fn cap_to_c(cap: &hca::QpCap) -> ibv_qp_cap {
    ibv_qp_cap {
        max_send_wr: cap.max_send_wr,
        max_recv_wr: cap.max_recv_wr,
        max_send_sge: cap.max_send_sge,
        max_recv_sge: cap.max_recv_sge,
        max_inline_data: cap.max_inline_data,
    }
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
        context.device().check_raw_packets()?;
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
    // SAFETY: all-zero is a valid value: every member is an integer, a nullable pointer, an `Option` of a function or a
    // pthread object that is never used.
    let mut c: ibv_qp_ex = unsafe { std::mem::zeroed() };
    c.qp_base.qp_context = init.qp_context;
    c.qp_base.pd = pd;
    c.qp_base.send_cq = send_cq;
    c.qp_base.recv_cq = recv_cq;
    c.qp_base.srq = srq;
    if let Some(ops) = send_ops {
        // libmlx5 gives all that the type has, whatever was asked for, and programs of its own count on that.
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

/// The queue pair that spreads frames over an indirection table, with the checks of the kernel and of libmlx5.
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
    context.device().check_raw_packets()?;
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

/// `ibv_create_qp_ex(3)`. Beyond a PD or an XRC domain, `send_ops_flags`, empty `create_flags` and what RSS needs are known
/// here; everything else is EOPNOTSUPP.
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
        // librdmacm names a protection domain for receiving XRC queue pairs as well; it is only noted down.
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

/// `ibv_qp_to_qp_ex(3)`: NULL unless created with `send_ops_flags`.
pub(crate) unsafe extern "C" fn ibv_qp_to_qp_ex(qp: *mut ibv_qp) -> *mut ibv_qp_ex {
    // SAFETY: the program passes null or a live QP.
    match unsafe { object::<Qp>(qp) } {
        Ok(qp) if qp.builder.is_some() => qp.as_c_ex(),
        _ => std::ptr::null_mut(),
    }
}

fn state(value: c_uint) -> Res<QpState> {
    use QpState::*;
    [Reset, Init, Rtr, Rts, Sqd, Sqe, Err]
        .into_iter()
        .find(|&state| state as c_uint == value)
        .ok_or(INVALID)
}

/// The attributes that `mask` names; the others take neutral values.
fn attr_from_c(attr: &ibv_qp_attr, mask: AttrMask) -> Res<hca::QpAttr> {
    let masked = |bit, value| if mask.contains(bit) { state(value) } else { Ok(QpState::Reset) };
    let access = if mask.contains(AttrMask::ACCESS_FLAGS) {
        // As in Linux any bit is taken: the right of a region decides as well, and no region has one that is not offered.
        hca::Access::from_bits_retain(attr.qp_access_flags)
    } else {
        hca::Access::empty()
    };
    Ok(hca::QpAttr {
        qp_state: masked(AttrMask::STATE, attr.qp_state)?,
        cur_qp_state: masked(AttrMask::CUR_STATE, attr.cur_qp_state)?,
        path_mtu: attr.path_mtu,
        path_mig_state: attr.path_mig_state,
        qkey: attr.qkey,
        // ib_core cuts them to 24 bits and goes on.
        rq_psn: attr.rq_psn & PSN_MASK,
        sq_psn: attr.sq_psn & PSN_MASK,
        dest_qp_num: attr.dest_qp_num,
        access,
        cap: cap_from_c(&attr.cap),
        ah: ah::attr_from_c(&attr.ah_attr),
        alt_ah: ah::attr_from_c(&attr.alt_ah_attr),
        pkey_index: attr.pkey_index,
        alt_pkey_index: attr.alt_pkey_index,
        en_sqd_async_notify: attr.en_sqd_async_notify != 0,
        sq_draining: attr.sq_draining != 0,
        max_rd_atomic: attr.max_rd_atomic,
        max_dest_rd_atomic: attr.max_dest_rd_atomic,
        min_rnr_timer: attr.min_rnr_timer,
        port_num: attr.port_num,
        timeout: attr.timeout,
        retry_cnt: attr.retry_cnt,
        rnr_retry: attr.rnr_retry,
        alt_port_num: attr.alt_port_num,
        alt_timeout: attr.alt_timeout,
        rate_limit: attr.rate_limit,
    })
}

fn attr_to_c(attr: &hca::QpAttr) -> ibv_qp_attr {
    ibv_qp_attr {
        qp_state: attr.qp_state as c_uint,
        cur_qp_state: attr.cur_qp_state as c_uint,
        path_mtu: attr.path_mtu,
        path_mig_state: attr.path_mig_state,
        qkey: attr.qkey,
        rq_psn: attr.rq_psn,
        sq_psn: attr.sq_psn,
        dest_qp_num: attr.dest_qp_num,
        qp_access_flags: attr.access.bits(),
        cap: cap_to_c(&attr.cap),
        ah_attr: ah::attr_to_c(&attr.ah),
        alt_ah_attr: ah::attr_to_c(&attr.alt_ah),
        pkey_index: attr.pkey_index,
        alt_pkey_index: attr.alt_pkey_index,
        en_sqd_async_notify: attr.en_sqd_async_notify.into(),
        sq_draining: attr.sq_draining.into(),
        max_rd_atomic: attr.max_rd_atomic,
        max_dest_rd_atomic: attr.max_dest_rd_atomic,
        min_rnr_timer: attr.min_rnr_timer,
        port_num: attr.port_num,
        timeout: attr.timeout,
        retry_cnt: attr.retry_cnt,
        rnr_retry: attr.rnr_retry,
        alt_port_num: attr.alt_port_num,
        alt_timeout: attr.alt_timeout,
        rate_limit: attr.rate_limit,
    }
}

/// Attributes that the halves of XRC do not have and that programs may give all the same, as if to RC (`modify_qp_mask` of
/// uverbs).
fn ignored(qp_type: QpType) -> AttrMask {
    match qp_type {
        QpType::XrcSend => AttrMask::MAX_DEST_RD_ATOMIC | AttrMask::MIN_RNR_TIMER,
        QpType::XrcRecv => AttrMask::MAX_QP_RD_ATOMIC | AttrMask::RETRY_CNT | AttrMask::RNR_RETRY,
        _ => AttrMask::empty(),
    }
}

/// `ibv_modify_qp(3)`.
pub(crate) unsafe extern "C" fn ibv_modify_qp(
    qp: *mut ibv_qp,
    attr: *mut ibv_qp_attr,
    mask: c_int,
) -> c_int {
    status(|| {
        // SAFETY: the program passes a live QP and a live struct.
        let (qp, attr) = unsafe { (object::<Qp>(qp)?, arg(attr)?) };
        // The kernel's answer to bits beyond the standard ones.
        let mask = AttrMask::from_bits(mask as u32).ok_or(UNSUPPORTED)?;
        let mask = mask - ignored(qp.hca.init().qp_type);
        qp.hca.modify(&attr_from_c(attr, mask)?, mask)?;
        if mask.contains(AttrMask::STATE) {
            // SAFETY: the C struct is live; programs read this member only.
            unsafe { (*qp.as_c()).state = attr.qp_state };
        }
        Ok(())
    })
}

/// `ibv_query_qp(3)`. Every attribute is cheap here, so `mask` selects nothing away. A queue pair of RSS has none, as libmlx5
/// answers.
pub(crate) unsafe extern "C" fn ibv_query_qp(
    qp: *mut ibv_qp,
    attr: *mut ibv_qp_attr,
    _mask: c_int,
    init: *mut ibv_qp_init_attr,
) -> c_int {
    status(|| {
        // SAFETY: the program passes a live QP and two structs to fill.
        let (qp, attr, init) = unsafe { (object::<Qp>(qp)?, arg_mut(attr)?, arg_mut(init)?) };
        qp.context()?;
        if qp.hca.init().rss.is_some() {
            return Err(UNSUPPORTED);
        }
        *attr = attr_to_c(&qp.hca.query());
        // SAFETY: the C struct is live.
        let c = unsafe { &mut *qp.as_c() };
        c.state = attr.qp_state;
        *init = ibv_qp_init_attr {
            qp_context: c.qp_context,
            send_cq: c.send_cq,
            recv_cq: c.recv_cq,
            srq: c.srq,
            cap: attr.cap,
            qp_type: c.qp_type,
            sq_sig_all: qp.sq_sig_all,
        };
        Ok(())
    })
}

/// `ibv_attach_mcast(3)`. The LID is InfiniBand's; RoCE has none.
pub(crate) unsafe extern "C" fn ibv_attach_mcast(
    c: *mut ibv_qp,
    gid: *const ibv_gid,
    _lid: u16,
) -> c_int {
    status(|| {
        // SAFETY: the program passes a live QP and a live GID.
        let (qp, gid) = unsafe { (object::<Qp>(c)?, arg(gid.cast_mut())?) };
        Ok(qp.context()?.device().attach_multicast(&qp.hca, gid.raw)?)
    })
}

/// `ibv_detach_mcast(3)`.
pub(crate) unsafe extern "C" fn ibv_detach_mcast(
    c: *mut ibv_qp,
    gid: *const ibv_gid,
    _lid: u16,
) -> c_int {
    status(|| {
        // SAFETY: the program passes a live QP and a live GID.
        let (qp, gid) = unsafe { (object::<Qp>(c)?, arg(gid.cast_mut())?) };
        Ok(qp.context()?.device().detach_multicast(&qp.hca, gid.raw)?)
    })
}

/// `ibv_destroy_qp(3)`: waits for outstanding acknowledgements. The receiving half of XRC goes with its last handle.
/// EBUSY while attached to a multicast group, as `uverbs_free_qp` answers, or while there is a flow rule of it.
pub(crate) unsafe extern "C" fn ibv_destroy_qp(c: *mut ibv_qp) -> c_int {
    status(|| {
        // SAFETY: the program passes a live QP.
        let qp = unsafe { object::<Qp>(c) }?;
        let context = qp.context()?;
        if context.device().has_multicast(&qp.hca) {
            return Err(Errno(libc::EBUSY));
        }
        if context.device().has_flows(&qp.hca) {
            return Err(Errno(libc::EBUSY));
        }
        qp.hca.close();
        context.engine().sink.remove_object(&qp.hca, c as u64);
        // SAFETY: the C struct is live.
        context.ucontext().disown(unsafe { (*qp.as_c()).handle });
        // SAFETY: it came from `give`, and the program uses it no more.
        drop(unsafe { take_back::<Qp>(c) });
        Ok(())
    })
}

/// `ibv_query_qp_data_in_order(3)`: no promise, since the same-host path copies in any order.
pub(crate) unsafe extern "C" fn ibv_query_qp_data_in_order(
    _qp: *mut ibv_qp,
    _op: c_uint,
    _flags: u32,
) -> c_int {
    0
}

/// Posts requests that the `ibv_wr_*` functions collected: all or none.
pub fn post_built(qp: &Qp, requests: &mut Vec<hca::SendWr>) -> Res<()> {
    Ok(qp.hca.post_sends(requests)?)
}
