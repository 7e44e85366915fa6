//! The `ibv_wr_*` functions (ibv_wr_post(3)): requests are collected between `wr_start` and
//! `wr_complete`, then posted together. The first mistake is remembered and refuses them all.

use crate::base::ffi::{INVALID, Res, quiet, status};
use crate::base::object::object;
use crate::objects::lists;
use crate::queues::builder::Collected;
use crate::queues::qp::{Qp, post_built};
use crate::queues::{mw, post};
use hca::{Error, Flush, InlineData, Payload, QpType, Remote, SendFlags, SendOp, SendWr, SgList};
use mm::Source;
use std::cell::RefCell;
use std::ffi::{c_int, c_void};
use verbs_sys::flags::*;
use verbs_sys::*;

/// Operations that every transport has.
const ANY: u64 = QP_EX_WITH_SEND | QP_EX_WITH_SEND_WITH_IMM;
/// Those of connected transports.
const CONNECTED: u64 = ANY
    | QP_EX_WITH_RDMA_WRITE
    | QP_EX_WITH_RDMA_WRITE_WITH_IMM
    | QP_EX_WITH_LOCAL_INV
    | QP_EX_WITH_BIND_MW;
/// Those of the reliable one.
const RELIABLE: u64 = CONNECTED
    | QP_EX_WITH_SEND_WITH_INV
    | QP_EX_WITH_RDMA_READ
    | QP_EX_WITH_ATOMIC_CMP_AND_SWP
    | QP_EX_WITH_ATOMIC_FETCH_AND_ADD
    | QP_EX_WITH_ATOMIC_WRITE
    | QP_EX_WITH_FLUSH;

/// The `send_ops_flags` that a QP type may ask for.
pub fn operations(qp_type: QpType) -> u64 {
    match qp_type {
        QpType::Rc | QpType::XrcSend => RELIABLE,
        QpType::XrcRecv => 0,
        QpType::Uc => CONNECTED,
        QpType::Ud => ANY,
        QpType::RawPacket => QP_EX_WITH_SEND,
    }
}

/// Sets the functions for `ops`, and those always there.
pub fn fill(c: &mut ibv_qp_ex, ops: u64) {
    let wants = |flag| ops & flag != 0;
    c.wr_send = wants(QP_EX_WITH_SEND).then_some(wr_send);
    c.wr_send_imm = wants(QP_EX_WITH_SEND_WITH_IMM).then_some(wr_send_imm);
    c.wr_send_inv = wants(QP_EX_WITH_SEND_WITH_INV).then_some(wr_send_inv);
    c.wr_rdma_write = wants(QP_EX_WITH_RDMA_WRITE).then_some(wr_rdma_write);
    c.wr_rdma_write_imm = wants(QP_EX_WITH_RDMA_WRITE_WITH_IMM).then_some(wr_rdma_write_imm);
    c.wr_rdma_read = wants(QP_EX_WITH_RDMA_READ).then_some(wr_rdma_read);
    c.wr_atomic_cmp_swp = wants(QP_EX_WITH_ATOMIC_CMP_AND_SWP).then_some(wr_atomic_cmp_swp);
    c.wr_atomic_fetch_add = wants(QP_EX_WITH_ATOMIC_FETCH_AND_ADD).then_some(wr_atomic_fetch_add);
    c.wr_atomic_write = wants(QP_EX_WITH_ATOMIC_WRITE).then_some(wr_atomic_write);
    c.wr_flush = wants(QP_EX_WITH_FLUSH).then_some(wr_flush);
    c.wr_bind_mw = wants(QP_EX_WITH_BIND_MW).then_some(wr_bind_mw);
    c.wr_local_inv = wants(QP_EX_WITH_LOCAL_INV).then_some(wr_local_inv);
    c.wr_set_ud_addr = Some(wr_set_ud_addr);
    c.wr_set_xrc_srqn = Some(wr_set_xrc_srqn);
    c.wr_set_inline_data = Some(wr_set_inline_data);
    c.wr_set_inline_data_list = Some(wr_set_inline_data_list);
    c.wr_set_sge = Some(wr_set_sge);
    c.wr_set_sge_list = Some(wr_set_sge_list);
    c.wr_start = Some(wr_start);
    c.wr_complete = Some(wr_complete);
    c.wr_abort = Some(wr_abort);
}

/// Runs `body` on what is collected.
fn with(qp: *mut ibv_qp_ex, body: impl FnOnce(&Qp, &mut Collected)) {
    quiet((), || {
        // SAFETY: the program passes a live QP.
        let qp = unsafe { object::<Qp>(qp.cast()) }?;
        body(qp, &mut *collected(qp)?.try_borrow_mut().map_err(|_| INVALID)?);
        Ok(())
    });
}

/// The same for whatever is not one of the setters that a request still needs.
fn collect(qp: *mut ibv_qp_ex, body: impl FnOnce(&Qp, &mut Vec<SendWr>) -> Result<(), Error>) {
    with(qp, |qp, collected| {
        let outcome = match collected.setters {
            0 => body(qp, &mut collected.requests),
            _ => Err(Error::Invalid("a request lacks some of its setters")),
        };
        collected.note(outcome);
    });
}

fn collected(qp: &Qp) -> Res<&RefCell<Collected>> {
    Ok(&qp.builder().ok_or(INVALID)?.collected)
}

/// Begins a request of operation `op`; `wr_id` and `wr_flags` are members that the program set
/// before.
fn begin(qp: *mut ibv_qp_ex, op: SendOp) {
    collect(qp, |qp, requests| {
        // SAFETY: the C struct is live; the program wrote these members in this thread.
        let (wr_id, flags) = unsafe { ((*qp.as_c_ex()).wr_id, (*qp.as_c_ex()).wr_flags) };
        if qp.builder().is_none_or(|builder| requests.len() >= builder.max_send_wr) {
            return Err(Error::NoMemory("the send queue does not take so many"));
        }
        requests.push(SendWr {
            wr_id,
            op,
            payload: Payload::Gather(SgList::new()),
            flags: SendFlags::empty(),
            datagram: None,
            xrc_srqn: 0,
        });
        // INLINE is said by the function that sets the data, not by the flag.
        let flags = SendFlags::from_bits(flags & !SendFlags::INLINE.bits())
            .ok_or(Error::Invalid("unknown send flag"))?;
        if let Some(request) = requests.last_mut() {
            request.flags = flags;
        }
        Ok(())
    });
}

/// Begins a request that `setters` further calls of [`set`] complete.
pub fn begin_with_setters(qp: *mut ibv_qp_ex, op: hca::Result<SendOp>, setters: u8) {
    begin_checked(qp, op);
    with(qp, |_, collected| collected.setters = setters);
}

/// One of the calls that the request last begun needs.
pub fn set(qp: *mut ibv_qp_ex, body: impl FnOnce(&mut SendWr) -> Result<(), Error>) {
    with(qp, |_, collected| {
        let outcome = match (collected.setters, collected.requests.last_mut()) {
            (1.., Some(request)) => body(request),
            _ => Err(Error::Invalid("more setters than were announced")),
        };
        collected.setters = collected.setters.saturating_sub(1);
        collected.note(outcome);
    });
}

/// The same for an operation that may be wrong in itself. A wrong one leaves a request behind for
/// what amends it; it is never posted.
fn begin_checked(qp: *mut ibv_qp_ex, op: hca::Result<SendOp>) {
    match op {
        Ok(op) => begin(qp, op),
        Err(error) => {
            begin(qp, SendOp::Send);
            collect(qp, |_, _| Err(error));
        }
    }
}

/// Completes the request last begun.
fn amend(qp: *mut ibv_qp_ex, body: impl FnOnce(&Qp, &mut SendWr) -> Result<(), Error>) {
    collect(qp, |qp, requests| {
        let request = requests.last_mut().ok_or(Error::Invalid("no request was begun"))?;
        body(qp, request)
    });
}

unsafe extern "C" fn wr_start(qp: *mut ibv_qp_ex) {
    quiet((), || {
        // SAFETY: the program passes a live QP.
        let qp = unsafe { object::<Qp>(qp.cast()) }?;
        qp.builder().ok_or(INVALID)?.baton.take();
        collected(qp)?.try_borrow_mut().map_err(|_| INVALID)?.clear();
        Ok(())
    });
}

unsafe extern "C" fn wr_complete(qp: *mut ibv_qp_ex) -> c_int {
    status(|| {
        // SAFETY: the program passes a live QP.
        let qp = unsafe { object::<Qp>(qp.cast()) }?;
        let mut collected = collected(qp)?.try_borrow_mut().map_err(|_| INVALID)?;
        let posted = match collected.mistake {
            Some(mistake) => Err(mistake),
            None if collected.setters > 0 => Err(INVALID),
            None => post_built(qp, &mut collected.requests),
        };
        collected.clear();
        drop(collected);
        qp.builder().ok_or(INVALID)?.baton.give_back();
        posted
    })
}

unsafe extern "C" fn wr_abort(qp: *mut ibv_qp_ex) {
    quiet((), || {
        // SAFETY: the program passes a live QP.
        let qp = unsafe { object::<Qp>(qp.cast()) }?;
        collected(qp)?.try_borrow_mut().map_err(|_| INVALID)?.clear();
        qp.builder().ok_or(INVALID)?.baton.give_back();
        Ok(())
    });
}

unsafe extern "C" fn wr_send(qp: *mut ibv_qp_ex) {
    begin(qp, SendOp::Send);
}

unsafe extern "C" fn wr_send_imm(qp: *mut ibv_qp_ex, imm: u32) {
    begin(qp, SendOp::SendImm(u32::from_be(imm)));
}

unsafe extern "C" fn wr_send_inv(qp: *mut ibv_qp_ex, rkey: u32) {
    begin(qp, SendOp::SendInvalidate(rkey));
}

unsafe extern "C" fn wr_rdma_write(qp: *mut ibv_qp_ex, rkey: u32, addr: u64) {
    begin(qp, SendOp::Write(Remote { addr, rkey }));
}

unsafe extern "C" fn wr_rdma_write_imm(qp: *mut ibv_qp_ex, rkey: u32, addr: u64, imm: u32) {
    begin(qp, SendOp::WriteImm(Remote { addr, rkey }, u32::from_be(imm)));
}

unsafe extern "C" fn wr_rdma_read(qp: *mut ibv_qp_ex, rkey: u32, addr: u64) {
    begin(qp, SendOp::Read(Remote { addr, rkey }));
}

unsafe extern "C" fn wr_atomic_cmp_swp(
    qp: *mut ibv_qp_ex,
    rkey: u32,
    addr: u64,
    compare: u64,
    swap: u64,
) {
    begin(qp, SendOp::CompareSwap { remote: Remote { addr, rkey }, compare, swap });
}

unsafe extern "C" fn wr_atomic_fetch_add(qp: *mut ibv_qp_ex, rkey: u32, addr: u64, add: u64) {
    begin(qp, SendOp::FetchAdd { remote: Remote { addr, rkey }, add });
}

unsafe extern "C" fn wr_atomic_write(
    qp: *mut ibv_qp_ex,
    rkey: u32,
    addr: u64,
    value: *const c_void,
) {
    begin(qp, SendOp::AtomicWrite(Remote { addr, rkey }));
    amend(qp, |_, request| {
        // SAFETY: the program passes the value: ibv_wr_atomic_write(3).
        let value = std::iter::once(unsafe { Source::vouched(value as u64, 8) });
        request.payload = lists::gather_inline(value, 8, |_| Ok(InlineData::new()))?;
        Ok(())
    });
}

// enum ibv_selectivity_level
const FLUSH_RANGE: u8 = 0;
const FLUSH_MR: u8 = 1;

unsafe extern "C" fn wr_flush(
    qp: *mut ibv_qp_ex,
    rkey: u32,
    addr: u64,
    len: usize,
    placement: u8,
    level: u8,
) {
    let op = match level {
        // The length does not count for all of a region.
        FLUSH_MR => Ok(0),
        FLUSH_RANGE => {
            u32::try_from(len).map_err(|_| Error::Invalid("FLUSH of more than 2^31 bytes"))
        }
        _ => Err(Error::Invalid("FLUSH of an unknown selectivity level")),
    };
    let op = op.map(|len| {
        let remote = Remote { addr, rkey };
        SendOp::Flush(Flush { remote, len, placement, whole: level == FLUSH_MR })
    });
    begin_checked(qp, op);
}

unsafe extern "C" fn wr_bind_mw(
    qp: *mut ibv_qp_ex,
    mw: *mut ibv_mw,
    rkey: u32,
    info: *const ibv_mw_bind_info,
) {
    // SAFETY: the program passes a live struct that names null or a live region, and a live window.
    let op = match unsafe { info.as_ref() } {
        // SAFETY: as above.
        Some(info) => unsafe { mw::posted(mw, rkey, info) },
        None => Err(Error::Invalid("no bind information")),
    };
    begin_checked(qp, op);
}

unsafe extern "C" fn wr_local_inv(qp: *mut ibv_qp_ex, rkey: u32) {
    begin(qp, SendOp::LocalInvalidate(rkey));
}

unsafe extern "C" fn wr_set_ud_addr(qp: *mut ibv_qp_ex, ah: *mut ibv_ah, qpn: u32, qkey: u32) {
    amend(qp, |_, request| {
        // SAFETY: the program passes a live address handle.
        request.datagram = Some(unsafe { post::datagram(ah, qpn, qkey) }?);
        Ok(())
    });
}

unsafe extern "C" fn wr_set_xrc_srqn(qp: *mut ibv_qp_ex, remote_srqn: u32) {
    amend(qp, |_, request| {
        request.xrc_srqn = remote_srqn;
        Ok(())
    });
}

unsafe extern "C" fn wr_set_sge(qp: *mut ibv_qp_ex, lkey: u32, addr: u64, length: u32) {
    let entry = ibv_sge { addr, length, lkey };
    // SAFETY: one entry, live for the call.
    unsafe { wr_set_sge_list(qp, 1, &entry) };
}

unsafe extern "C" fn wr_set_sge_list(qp: *mut ibv_qp_ex, count: usize, list: *const ibv_sge) {
    amend(qp, |qp, request| {
        // SAFETY: the program passes `count` entries.
        let list = unsafe { lists::sg_list(list, count, |len| qp.hca().gather_list(len)) }?;
        request.payload = Payload::Gather(list);
        Ok(())
    });
}

unsafe extern "C" fn wr_set_inline_data(qp: *mut ibv_qp_ex, addr: *mut c_void, length: usize) {
    let part = ibv_data_buf { addr, length };
    // SAFETY: one part, live for the call.
    unsafe { wr_set_inline_data_list(qp, 1, &part) };
}

unsafe extern "C" fn wr_set_inline_data_list(
    qp: *mut ibv_qp_ex,
    count: usize,
    list: *const ibv_data_buf,
) {
    amend(qp, |qp, request| {
        if count > 0 && list.is_null() {
            return Err(Error::Invalid("the list of inline data is missing"));
        }
        let parts = match count {
            0 => &[],
            // SAFETY: the program passes `count` parts.
            _ => unsafe { std::slice::from_raw_parts(list, count) },
        };
        // SAFETY: the program names the bytes to send: ibv_wr_set_inline_data_list(3).
        let part =
            |part: &ibv_data_buf| unsafe { Source::vouched(part.addr as u64, part.length as u64) };
        let parts = parts.iter().map(part);
        request.payload =
            lists::gather_inline(parts, qp.max_inline(), |len| qp.hca().inline_data(len))?;
        request.flags |= SendFlags::INLINE;
        Ok(())
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_function_is_there_exactly_for_what_was_granted() {
        // SAFETY: all-zero is a valid value of this C struct.
        let mut c: ibv_qp_ex = unsafe { std::mem::zeroed() };
        fill(&mut c, QP_EX_WITH_RDMA_READ);
        assert!(c.wr_rdma_read.is_some() && c.wr_start.is_some() && c.wr_set_sge.is_some());
        assert!(c.wr_rdma_write.is_none() && c.wr_send.is_none() && c.wr_flush.is_none());
        assert_eq!(operations(QpType::Ud) & QP_EX_WITH_RDMA_WRITE, 0);
        assert_eq!(operations(QpType::Uc) & (QP_EX_WITH_RDMA_READ | QP_EX_WITH_SEND_WITH_INV), 0);
    }
}
