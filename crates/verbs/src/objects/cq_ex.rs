//! Extended completion queues: one completion at a time, each field read by its own function
//! (ibv_create_cq_ex(3)).

use crate::base::ffi::{Errno, INVALID, Res, UNSUPPORTED, arg, arg_mut, pointer, quiet, status};
use crate::base::object::{give, object};
use crate::objects::context::Context;
use crate::objects::cq::{self, Cq, Wanted};
use crate::objects::pd::Pd;
use std::ffi::c_int;
use std::time::{SystemTime, UNIX_EPOCH};
use verbs_sys::flags::*;
use verbs_sys::*;

/// What asks for the time of completions.
const TIMES: u64 = WC_EX_WITH_COMPLETION_TIMESTAMP | WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK;
/// Nothing to poll; not an error, so it is a status of its own.
const EMPTY: Errno = Errno(libc::ENOENT);

/// `ibv_create_cq_ex(3)`.
pub(crate) unsafe extern "C" fn create_cq_ex(
    context: *mut ibv_context,
    attr: *mut ibv_cq_init_attr_ex,
) -> *mut ibv_cq_ex {
    pointer(|| {
        // SAFETY: the program passes an open context and a live struct.
        let (context, attr) = unsafe { (Context::of(context)?, arg(attr)?) };
        if attr.wc_flags & !WC_EX_GRANTED != 0
            || attr.comp_mask & !(CQ_INIT_ATTR_MASK_FLAGS | CQ_INIT_ATTR_MASK_PD) != 0
        {
            return Err(UNSUPPORTED);
        }
        let flags = if attr.comp_mask & CQ_INIT_ATTR_MASK_FLAGS != 0 { attr.flags } else { 0 };
        // Overrun is always an error here, so a program cannot ask to ignore it.
        if flags & !CREATE_CQ_ATTR_SINGLE_THREADED != 0 {
            return Err(UNSUPPORTED);
        }
        let mut parent = std::ptr::null();
        if attr.comp_mask & CQ_INIT_ATTR_MASK_PD != 0 {
            // SAFETY: the mask says that the program passes a live parent domain.
            let domain = unsafe { object::<Pd>(attr.parent_domain) }?;
            if !domain.is_parent() {
                return Err(INVALID);
            }
            parent = std::ptr::from_ref(domain);
        }
        let wanted = Wanted {
            cqe: attr.cqe,
            cq_context: attr.cq_context,
            channel: attr.channel,
            comp_vector: attr.comp_vector,
            single_threaded: flags & CREATE_CQ_ATTR_SINGLE_THREADED != 0,
            domain: parent,
            timed: attr.wc_flags & TIMES != 0,
        };
        // SAFETY: the program passes null or a live channel; the domain was looked at above.
        let cq = unsafe { cq::create(context, &wanted) }?;
        // SAFETY: nobody else knows the queue yet.
        fill(unsafe { &mut *cq.as_c_ex() }, attr.wc_flags);
        Ok(give(cq).cast())
    })
}

/// Sets the functions that `wc_flags` ask for, and those always there.
fn fill(c: &mut ibv_cq_ex, wc_flags: u64) {
    let wants = |flag| wc_flags & flag != 0;
    c.start_poll = Some(start_poll);
    c.next_poll = Some(next_poll);
    c.end_poll = Some(end_poll);
    c.read_opcode = Some(read_opcode);
    c.read_vendor_err = Some(read_vendor_err);
    c.read_wc_flags = Some(read_wc_flags);
    c.read_byte_len = wants(WC_EX_WITH_BYTE_LEN).then_some(read_byte_len);
    c.read_imm_data = wants(WC_EX_WITH_IMM).then_some(read_imm_data);
    c.read_qp_num = wants(WC_EX_WITH_QP_NUM).then_some(read_qp_num);
    c.read_src_qp = wants(WC_EX_WITH_SRC_QP).then_some(read_src_qp);
    c.read_slid = wants(WC_EX_WITH_SLID).then_some(read_slid);
    c.read_sl = wants(WC_EX_WITH_SL).then_some(read_sl);
    c.read_dlid_path_bits = wants(WC_EX_WITH_DLID_PATH_BITS).then_some(read_dlid_path_bits);
    c.read_completion_ts = wants(WC_EX_WITH_COMPLETION_TIMESTAMP).then_some(read_completion_ts);
    c.read_tm_info = wants(WC_EX_WITH_TM_INFO).then_some(read_tm_info);
    c.read_completion_wallclock_ns =
        wants(WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK).then_some(read_wallclock_ns);
}

/// Makes the oldest completion the current one.
fn advance(cq: &Cq) -> Res<()> {
    let mut found = None;
    cq.hca().poll(1, &mut |completion| found = Some(*completion))?;
    let completion = found.ok_or(EMPTY)?;
    // SAFETY: the C struct is live; only the thread that polls writes these members.
    unsafe {
        let c = cq.as_c_ex();
        (*c).status = completion.status as u32;
        (*c).wr_id = completion.wr_id;
    }
    cq.current.set(Some(completion));
    Ok(())
}

unsafe extern "C" fn start_poll(cq: *mut ibv_cq_ex, attr: *mut ibv_poll_cq_attr) -> c_int {
    status(|| {
        // SAFETY: the program passes a live CQ, and null or a live struct.
        let (cq, attr) = unsafe { (object::<Cq>(cq.cast())?, attr.as_ref()) };
        if attr.is_some_and(|attr| attr.comp_mask != 0) {
            return Err(INVALID);
        }
        if let Some(polling) = &cq.polling {
            polling.take();
        }
        advance(cq).inspect_err(|_| {
            if let Some(polling) = &cq.polling {
                polling.give_back();
            }
        })
    })
}

unsafe extern "C" fn next_poll(cq: *mut ibv_cq_ex) -> c_int {
    // SAFETY: the program passes a live CQ.
    status(|| advance(unsafe { object::<Cq>(cq.cast()) }?))
}

unsafe extern "C" fn end_poll(cq: *mut ibv_cq_ex) {
    quiet((), || {
        // SAFETY: the program passes a live CQ.
        let cq = unsafe { object::<Cq>(cq.cast()) }?;
        cq.current.set(None);
        if let Some(polling) = &cq.polling {
            polling.give_back();
        }
        Ok(())
    });
}

/// Reads from the current completion; 0 where there is none.
fn read<T: Default>(cq: *mut ibv_cq_ex, field: impl FnOnce(&Cq, &hca::Completion) -> T) -> T {
    quiet(None, || {
        // SAFETY: the program passes a live CQ.
        let cq = unsafe { object::<Cq>(cq.cast()) }?;
        Ok(cq.current.get().map(|completion| field(cq, &completion)))
    })
    .unwrap_or_default()
}

unsafe extern "C" fn read_opcode(cq: *mut ibv_cq_ex) -> u32 {
    read(cq, |_, completion| completion.opcode as u32)
}

unsafe extern "C" fn read_vendor_err(cq: *mut ibv_cq_ex) -> u32 {
    read(cq, |_, completion| completion.vendor_err)
}

unsafe extern "C" fn read_byte_len(cq: *mut ibv_cq_ex) -> u32 {
    read(cq, |_, completion| completion.byte_len)
}

unsafe extern "C" fn read_imm_data(cq: *mut ibv_cq_ex) -> u32 {
    read(cq, |_, completion| cq::imm_or_rkey(completion))
}

unsafe extern "C" fn read_qp_num(cq: *mut ibv_cq_ex) -> u32 {
    read(cq, |_, completion| completion.qp_num)
}

unsafe extern "C" fn read_src_qp(cq: *mut ibv_cq_ex) -> u32 {
    read(cq, |_, completion| completion.src_qp)
}

unsafe extern "C" fn read_wc_flags(cq: *mut ibv_cq_ex) -> u32 {
    read(cq, |_, completion| completion.flags.bits())
}

/// RoCE has no LIDs.
unsafe extern "C" fn read_slid(_: *mut ibv_cq_ex) -> u32 {
    0
}

unsafe extern "C" fn read_sl(cq: *mut ibv_cq_ex) -> u8 {
    read(cq, |_, completion| completion.sl)
}

/// RoCE has no LIDs.
unsafe extern "C" fn read_dlid_path_bits(_: *mut ibv_cq_ex) -> u8 {
    0
}

unsafe extern "C" fn read_completion_ts(cq: *mut ibv_cq_ex) -> u64 {
    read(cq, |_, completion| completion.timestamp_ns)
}

unsafe extern "C" fn read_tm_info(cq: *mut ibv_cq_ex, info: *mut ibv_wc_tm_info) {
    let hca::TmInfo { tag, app_ctx } = read(cq, |_, completion| completion.tm);
    quiet((), || {
        // SAFETY: the program passes a struct to fill.
        *unsafe { arg_mut(info) }? = ibv_wc_tm_info { tag, private: app_ctx };
        Ok(())
    });
}

unsafe extern "C" fn read_wallclock_ns(cq: *mut ibv_cq_ex) -> u64 {
    read(cq, |cq, completion| {
        let now_ns = cq.context().map_or(0, |context| context.device().now_ns());
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let age_ns = now_ns.saturating_sub(completion.timestamp_ns);
        (wall.as_nanos() as u64).saturating_sub(age_ns)
    })
}
