//! Attributes and states of a queue pair, as C has them and as the engine does.

use super::Qp;
use crate::base::ffi::{INVALID, Res, UNSUPPORTED, arg, arg_mut, status};
use crate::base::object::object;
use crate::objects::ah;
use hca::{AttrMask, QpState, QpType};
use std::ffi::{c_int, c_uint};
use verbs_sys::*;

const PSN_MASK: u32 = 0x00ff_ffff;

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
        // As in Linux any bit is taken: the right of a region decides as well, and no region has
        // one that is not offered.
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

/// Attributes that the halves of XRC do not have and that programs may give all the same, as if to
/// RC (`modify_qp_mask` of uverbs).
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

/// `ibv_query_qp(3)`. Every attribute is cheap here, so `mask` selects nothing away. A queue pair
/// of RSS has none, as libmlx5 answers.
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

pub(super) fn cap_from_c(cap: &ibv_qp_cap) -> hca::QpCap {
    hca::QpCap {
        max_send_wr: cap.max_send_wr,
        max_recv_wr: cap.max_recv_wr,
        max_send_sge: cap.max_send_sge,
        max_recv_sge: cap.max_recv_sge,
        max_inline_data: cap.max_inline_data,
    }
}

pub(super) fn cap_to_c(cap: &hca::QpCap) -> ibv_qp_cap {
    ibv_qp_cap {
        max_send_wr: cap.max_send_wr,
        max_recv_wr: cap.max_recv_wr,
        max_send_sge: cap.max_send_sge,
        max_recv_sge: cap.max_recv_sge,
        max_inline_data: cap.max_inline_data,
    }
}
