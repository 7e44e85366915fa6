//! Queue pairs as `mlx5dv.h` makes them, and the send requests that lay out memory keys.

use super::context;
use super::mkey::{Mkey, mlx5dv_mkey};
use super::signature::{block_signature, mlx5dv_sig_block_attr};
use crate::base::ffi::{INVALID, Res, UNSUPPORTED, arg, last_errno, pointer, quiet, status};
use crate::base::object::object;
use crate::objects::lists;
use crate::queues::qp::{Qp, create_qp_ex};
use crate::queues::qp_ex;
use hca::{Error, KeyConfig, KeyLayout, QpType, SendOp, SignatureChange, Stride};
use std::ffi::{c_int, c_void};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use verbs_sys::{ibv_context, ibv_qp, ibv_qp_ex, ibv_qp_init_attr_ex, ibv_sge};

// enum mlx5dv_qp_init_attr_mask
const MASK_CREATE_FLAGS: u64 = 1 << 0;
const MASK_SEND_OPS_FLAGS: u64 = 1 << 2;
// enum mlx5dv_qp_create_flags: whether small responses may come inside completions, which they do
// not.
const DISABLE_SCATTER_TO_CQE: u32 = 1 << 3;
const ALLOW_SCATTER_TO_CQE: u32 = 1 << 4;
const SIG_PIPELINING: u32 = 1 << 6;
// enum mlx5dv_qp_create_send_ops_flags
const WITH_MR_INTERLEAVED: u64 = 1 << 0;
const WITH_MR_LIST: u64 = 1 << 1;
const WITH_MKEY_CONFIGURE: u64 = 1 << 2;
// enum mlx5dv_mkey_conf_flags
const RESET_SIG_ATTR: u32 = 1 << 0;
// The rights that a key may be given.
const ACCESS: u32 = 0b1111;

/// `struct mlx5dv_qp_init_attr`.
#[repr(C)]
pub(crate) struct mlx5dv_qp_init_attr {
    comp_mask: u64,
    create_flags: u32,
    /// `struct mlx5dv_dc_init_attr`, which is not looked at: its bit of the mask is refused.
    dc_init_attr: [u64; 2],
    send_ops_flags: u64,
}

/// `struct mlx5dv_mr_interleaved`.
#[repr(C)]
pub(crate) struct mlx5dv_mr_interleaved {
    addr: u64,
    bytes_count: u32,
    bytes_skip: u32,
    lkey: u32,
}

/// `struct mlx5dv_mkey_conf_attr`.
#[repr(C)]
pub(crate) struct mlx5dv_mkey_conf_attr {
    conf_flags: u32,
    comp_mask: u64,
}

type Extended = *mut mlx5dv_qp_ex;

/// `struct mlx5dv_qp_ex`, and the queue pair it belongs to. Functions whose flag was not asked for
/// are null.
#[repr(C)]
pub(crate) struct mlx5dv_qp_ex {
    comp_mask: u64,
    wr_set_dc_addr: *const c_void,
    wr_mr_interleaved: Option<
        unsafe extern "C" fn(
            Extended,
            *mut mlx5dv_mkey,
            u32,
            u32,
            u16,
            *const mlx5dv_mr_interleaved,
        ),
    >,
    wr_mr_list: Option<unsafe extern "C" fn(Extended, *mut mlx5dv_mkey, u32, u16, *const ibv_sge)>,
    wr_mkey_configure:
        Option<unsafe extern "C" fn(Extended, *mut mlx5dv_mkey, u8, *const mlx5dv_mkey_conf_attr)>,
    wr_set_mkey_access_flags: Option<unsafe extern "C" fn(Extended, u32)>,
    wr_set_mkey_layout_list: Option<unsafe extern "C" fn(Extended, u16, *const ibv_sge)>,
    wr_set_mkey_layout_interleaved:
        Option<unsafe extern "C" fn(Extended, u32, u16, *const mlx5dv_mr_interleaved)>,
    wr_set_mkey_sig_block: Option<unsafe extern "C" fn(Extended, *const mlx5dv_sig_block_attr)>,
    wr_raw_wqe: *const c_void,
    wr_set_dc_addr_stream: *const c_void,
    wr_memcpy: *const c_void,
    wr_set_mkey_crypto: Option<unsafe extern "C" fn(Extended, *const c_void)>,
    qp: *mut ibv_qp_ex,
    /// Whether the key of the request last begun may have signatures.
    signs: AtomicBool,
}

impl mlx5dv_qp_ex {
    fn new(qp: *mut ibv_qp_ex, ops: u64) -> mlx5dv_qp_ex {
        let wants = |flag| ops & flag != 0;
        let configures = wants(WITH_MKEY_CONFIGURE);
        let nothing = std::ptr::null();
        mlx5dv_qp_ex {
            comp_mask: 0,
            wr_set_dc_addr: nothing,
            wr_mr_interleaved: wants(WITH_MR_INTERLEAVED).then_some(wr_mr_interleaved),
            wr_mr_list: wants(WITH_MR_LIST).then_some(wr_mr_list),
            wr_mkey_configure: configures.then_some(wr_mkey_configure),
            wr_set_mkey_access_flags: configures.then_some(wr_set_mkey_access_flags),
            wr_set_mkey_layout_list: configures.then_some(wr_set_mkey_layout_list),
            wr_set_mkey_layout_interleaved: configures.then_some(wr_set_mkey_layout_interleaved),
            wr_set_mkey_sig_block: configures.then_some(wr_set_mkey_sig_block),
            wr_raw_wqe: nothing,
            wr_set_dc_addr_stream: nothing,
            wr_memcpy: nothing,
            wr_set_mkey_crypto: configures.then_some(wr_set_mkey_crypto),
            qp,
            signs: AtomicBool::new(false),
        }
    }
}

/// `mlx5dv_create_qp(3)`: any queue pair of ibv_create_qp_ex(3); of reliable connections also those
/// whose requests lay out keys. DC, raw queue elements, memory copies and the flags of raw packets
/// are EOPNOTSUPP.
pub(crate) unsafe extern "C" fn create_qp(
    ctx: *mut ibv_context,
    init: *mut ibv_qp_init_attr_ex,
    mlx5: *mut mlx5dv_qp_init_attr,
) -> *mut ibv_qp {
    pointer(|| {
        // SAFETY: the program passes an open context and a live struct.
        let (_, init_ref) = unsafe { (context(ctx)?, arg(init)?) };
        // SAFETY: the program passes null or a live struct.
        let (flags, ops) = match unsafe { mlx5.as_ref() } {
            Some(mlx5) => wishes(mlx5)?,
            None => (0, 0),
        };
        let pipelining = flags & SIG_PIPELINING != 0;
        if (ops != 0 || pipelining) && init_ref.qp_type != QpType::Rc as u32 {
            return Err(UNSUPPORTED);
        }
        // SAFETY: as for ibv_create_qp_ex(3).
        let qp = unsafe { create_qp_ex(ctx, init) };
        if qp.is_null() {
            return Err(last_errno());
        }
        // SAFETY: it was just made.
        let whole = unsafe { object::<Qp>(qp) }?;
        if pipelining {
            whole.hca().stop_at_bad_signatures();
        }
        whole.extend(Box::new(mlx5dv_qp_ex::new(whole.as_c_ex(), ops)));
        Ok(qp)
    })
}

/// The flags and operations asked for, if all that is asked for is there.
fn wishes(mlx5: &mlx5dv_qp_init_attr) -> Res<(u32, u64)> {
    let has = |bit| mlx5.comp_mask & bit != 0;
    let flags = if has(MASK_CREATE_FLAGS) { mlx5.create_flags } else { 0 };
    let ops = if has(MASK_SEND_OPS_FLAGS) { mlx5.send_ops_flags } else { 0 };
    let scatter = DISABLE_SCATTER_TO_CQE | ALLOW_SCATTER_TO_CQE;
    if flags & scatter == scatter {
        return Err(INVALID);
    }
    let known = mlx5.comp_mask & !(MASK_CREATE_FLAGS | MASK_SEND_OPS_FLAGS) == 0
        && flags & !(scatter | SIG_PIPELINING) == 0
        && ops & !(WITH_MR_INTERLEAVED | WITH_MR_LIST | WITH_MKEY_CONFIGURE) == 0;
    if known { Ok((flags, ops)) } else { Err(UNSUPPORTED) }
}

/// `mlx5dv_qp_ex_from_ibv_qp_ex`: NULL unless `mlx5dv_create_qp` made it.
pub(crate) unsafe extern "C" fn qp_ex_from_ibv_qp_ex(qp: *mut ibv_qp_ex) -> Extended {
    quiet(std::ptr::null_mut(), || {
        // SAFETY: the program passes null or a live QP, whose extended form begins with the plain
        // one.
        let qp = unsafe { object::<Qp>(qp.cast()) }?;
        Ok(qp
            .extension()
            .and_then(|extension| extension.downcast_ref::<mlx5dv_qp_ex>())
            .map_or(std::ptr::null_mut(), |extension| std::ptr::from_ref(extension).cast_mut()))
    })
}

/// The queue pair behind the program's pointer; null for null.
///
/// # Safety
/// `mqp` is null or came from [`qp_ex_from_ibv_qp_ex`] of a live queue pair.
unsafe fn owner(mqp: Extended) -> *mut ibv_qp_ex {
    // SAFETY: the caller's promise.
    unsafe { mqp.as_ref() }.map_or(std::ptr::null_mut(), |extended| extended.qp)
}

/// Begins a request about a key that `setters` further calls complete.
///
/// # Safety
/// The pointers are null or live.
unsafe fn begin(
    mqp: Extended,
    mkey: *mut mlx5dv_mkey,
    setters: u8,
    config: impl FnOnce(u32) -> hca::Result<KeyConfig>,
) {
    // SAFETY: the caller's promise.
    let key = unsafe { object::<Mkey>(mkey) }.map_err(|_| Error::Invalid("no memory key"));
    // SAFETY: the caller's promise.
    if let (Some(extended), Ok(key)) = (unsafe { mqp.as_ref() }, &key) {
        extended.signs.store(key.signs(), Ordering::Relaxed);
    }
    let key = key.map(Mkey::key);
    let op = key.and_then(config).map(|config| SendOp::ConfigureKey(Arc::new(config)));
    // SAFETY: the caller's promise.
    qp_ex::begin_with_setters(unsafe { owner(mqp) }, op, setters);
}

/// Does what one setter is for.
///
/// # Safety
/// `mqp` is null or live.
unsafe fn set(mqp: Extended, body: impl FnOnce(&mut KeyConfig) -> hca::Result<()>) {
    // SAFETY: the caller's promise.
    qp_ex::set(unsafe { owner(mqp) }, |request| match &mut request.op {
        SendOp::ConfigureKey(config) => {
            let config = Arc::make_mut(config);
            body(config)?;
            check(config)
        }
        _ => Err(Error::Invalid("the request is not about a memory key")),
    });
}

/// What libmlx5 refuses at once, whichever call brought it.
fn check(config: &KeyConfig) -> hca::Result<()> {
    if config.access.is_some_and(|access| access & !ACCESS != 0) {
        return Err(Error::Invalid("rights that a memory key cannot have"));
    }
    let long = config.layout.as_ref().is_some_and(|layout| layout.len() > u32::MAX.into());
    if long && matches!(config.signature, SignatureChange::Set(_)) {
        return Err(Error::Invalid("signatures over 2^32 bytes and more"));
    }
    Ok(())
}

/// # Safety
/// `sges` has `count` entries.
unsafe fn list(count: u16, sges: *const ibv_sge) -> hca::Result<KeyLayout> {
    // SAFETY: the caller's promise.
    let entries = unsafe { lists::entries(sges, count.into()) }?;
    Ok(KeyLayout::List(collected(entries)?))
}

/// A list of what `entries` gives: long ones are more than may end the program for want of memory.
fn collected<T>(entries: impl ExactSizeIterator<Item = T>) -> hca::Result<Vec<T>> {
    let mut list = Vec::new();
    let reserved = list.try_reserve_exact(entries.len());
    reserved.map_err(|_| Error::NoMemory("no memory for the layout of a key"))?;
    list.extend(entries);
    Ok(list)
}

/// # Safety
/// `data` has `count` entries.
unsafe fn interleaved(
    repeat: u32,
    count: u16,
    data: *const mlx5dv_mr_interleaved,
) -> hca::Result<KeyLayout> {
    if count > 0 && data.is_null() {
        return Err(Error::Invalid("the list of strides is missing"));
    }
    let entries = match count {
        0 => &[],
        // SAFETY: the caller's promise.
        _ => unsafe { std::slice::from_raw_parts(data, count.into()) },
    };
    let stride = |entry: &mlx5dv_mr_interleaved| Stride {
        addr: entry.addr,
        bytes: entry.bytes_count,
        skip: entry.bytes_skip,
        lkey: entry.lkey,
    };
    Ok(KeyLayout::Interleaved { repeat, strides: collected(entries.iter().map(stride))? })
}

/// `mlx5dv_wr_mr_list(3)`.
unsafe extern "C" fn wr_mr_list(
    mqp: Extended,
    mkey: *mut mlx5dv_mkey,
    access: u32,
    count: u16,
    sges: *const ibv_sge,
) {
    // SAFETY: the program passes a live queue pair and key, and `count` entries.
    unsafe { begin(mqp, mkey, 0, |key| laid_out(key, access, list(count, sges)?)) };
}

/// `mlx5dv_wr_mr_interleaved(3)`.
unsafe extern "C" fn wr_mr_interleaved(
    mqp: Extended,
    mkey: *mut mlx5dv_mkey,
    access: u32,
    repeat: u32,
    count: u16,
    data: *const mlx5dv_mr_interleaved,
) {
    // SAFETY: the program passes a live queue pair and key, and `count` entries.
    unsafe { begin(mqp, mkey, 0, |key| laid_out(key, access, interleaved(repeat, count, data)?)) };
}

fn laid_out(key: u32, access: u32, layout: KeyLayout) -> hca::Result<KeyConfig> {
    let (access, layout) = (Some(access), Some(layout));
    let config = KeyConfig { key, access, layout, signature: SignatureChange::Keep };
    check(&config)?;
    Ok(config)
}

/// `mlx5dv_wr_mkey_configure(3)`: `setters` calls follow.
unsafe extern "C" fn wr_mkey_configure(
    mqp: Extended,
    mkey: *mut mlx5dv_mkey,
    setters: u8,
    attr: *const mlx5dv_mkey_conf_attr,
) {
    // SAFETY: the program passes a live queue pair and key, and null or a live struct.
    unsafe {
        begin(mqp, mkey, setters, |key| match attr.as_ref() {
            Some(attr) if attr.conf_flags & !RESET_SIG_ATTR == 0 && attr.comp_mask == 0 => {
                let resets = attr.conf_flags & RESET_SIG_ATTR != 0;
                let signature = if resets { SignatureChange::Reset } else { SignatureChange::Keep };
                Ok(KeyConfig { key, access: None, layout: None, signature })
            }
            Some(_) => Err(Error::NotSupported("flags of mlx5dv_mkey_conf_attr")),
            None => Err(Error::Invalid("no mlx5dv_mkey_conf_attr")),
        })
    };
}

/// `mlx5dv_wr_set_mkey_access_flags(3)`.
unsafe extern "C" fn wr_set_mkey_access_flags(mqp: Extended, access: u32) {
    // SAFETY: the program passes a live queue pair.
    unsafe {
        set(mqp, |config| {
            config.access = Some(access);
            Ok(())
        })
    };
}

/// `mlx5dv_wr_set_mkey_layout_list(3)`.
unsafe extern "C" fn wr_set_mkey_layout_list(mqp: Extended, count: u16, sges: *const ibv_sge) {
    // SAFETY: the program passes a live queue pair and `count` entries.
    unsafe {
        set(mqp, |config| {
            config.layout = Some(list(count, sges)?);
            Ok(())
        })
    };
}

/// `mlx5dv_wr_set_mkey_layout_interleaved(3)`.
unsafe extern "C" fn wr_set_mkey_layout_interleaved(
    mqp: Extended,
    repeat: u32,
    count: u16,
    data: *const mlx5dv_mr_interleaved,
) {
    // SAFETY: the program passes a live queue pair and `count` entries.
    unsafe {
        set(mqp, |config| {
            config.layout = Some(interleaved(repeat, count, data)?);
            Ok(())
        })
    };
}

/// `mlx5dv_wr_set_mkey_sig_block(3)`.
unsafe extern "C" fn wr_set_mkey_sig_block(mqp: Extended, attr: *const mlx5dv_sig_block_attr) {
    // SAFETY: the program passes a live queue pair, and null or a live struct that names live ones.
    unsafe {
        set(mqp, |config| {
            let attr = attr.as_ref().ok_or(Error::Invalid("no mlx5dv_sig_block_attr"))?;
            if !mqp.as_ref().is_some_and(|extended| extended.signs.load(Ordering::Relaxed)) {
                return Err(Error::Invalid("the key was not made for signatures"));
            }
            if matches!(config.signature, SignatureChange::Set(_)) {
                return Err(Error::Invalid("the signatures are set twice"));
            }
            config.signature = SignatureChange::Set(block_signature(attr)?);
            Ok(())
        })
    };
}

/// `mlx5dv_wr_set_mkey_crypto(3)`: no key here was made for it.
unsafe extern "C" fn wr_set_mkey_crypto(mqp: Extended, _attr: *const c_void) {
    // SAFETY: the program passes a live queue pair.
    unsafe { set(mqp, |_| Err(Error::Invalid("the key was not made for encryption"))) };
}

/// `mlx5dv_qp_cancel_posted_send_wrs(3)`: how many were cancelled, or a negative errno.
pub(crate) unsafe extern "C" fn cancel_posted_send_wrs(mqp: Extended, wr_id: u64) -> c_int {
    let mut cancelled = 0;
    let outcome = status(|| {
        super::check()?;
        // SAFETY: the program passes a queue pair that `mlx5dv_create_qp` made.
        let qp = unsafe { object::<Qp>(owner(mqp).cast()) }?;
        let count = qp.hca().cancel_sends(wr_id)?;
        cancelled = c_int::try_from(count).unwrap_or(c_int::MAX);
        Ok(())
    });
    if outcome == 0 { cancelled } else { -outcome }
}
