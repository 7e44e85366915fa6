//! Posting: C work requests become values, one by one, without allocation for up to two
//! scatter/gather entries.

use crate::base::ffi::{quick_status, status};
use crate::base::object::object;
use crate::objects::ah::Ah;
use crate::objects::lists::{
    List, Requests, count_of, entries, gather_inline, recv_list, recv_wr, sg_list, stopped,
};
use crate::objects::srq::Srq;
use crate::queues::mw;
use crate::queues::qp::Qp;
use engine_thread::Uncancelled;
use hca::{
    Datagram, Error, Payload, Remote, SHORT_PAYLOAD, SendFlags, SendOp, SendWr, SgList, Sge,
    ShortPayload, ShortWr,
};
use mm::Source;
use std::ffi::c_int;
use verbs_sys::flags::*;
use verbs_sys::*;

/// # Safety
/// `wr` and what it points to are live.
unsafe fn send_wr(qp: &Qp, wr: &ibv_send_wr) -> hca::Result<SendWr> {
    // SAFETY: every member of the union is plain data for which all bytes are valid; the caller's
    // struct is whole.
    let (rdma, atomic) = unsafe { (wr.wr.rdma, wr.wr.atomic) };
    let rdma = Remote { addr: rdma.remote_addr, rkey: rdma.rkey };
    let target = Remote { addr: atomic.remote_addr, rkey: atomic.rkey };
    let imm = u32::from_be(wr.imm_or_rkey);
    let op = match wr.opcode {
        WR_SEND => SendOp::Send,
        WR_SEND_WITH_IMM => SendOp::SendImm(imm),
        WR_SEND_WITH_INV => SendOp::SendInvalidate(wr.imm_or_rkey),
        WR_RDMA_WRITE => SendOp::Write(rdma),
        WR_RDMA_WRITE_WITH_IMM => SendOp::WriteImm(rdma, imm),
        WR_RDMA_READ => SendOp::Read(rdma),
        WR_ATOMIC_CMP_AND_SWP => {
            SendOp::CompareSwap { remote: target, compare: atomic.compare_add, swap: atomic.swap }
        }
        WR_ATOMIC_FETCH_AND_ADD => SendOp::FetchAdd { remote: target, add: atomic.compare_add },
        WR_ATOMIC_WRITE => SendOp::AtomicWrite(rdma),
        WR_LOCAL_INV => SendOp::LocalInvalidate(wr.imm_or_rkey),
        // SAFETY: the program passes a live window and region.
        WR_BIND_MW => unsafe { mw::posted(wr.bind_mw.mw, wr.bind_mw.rkey, &wr.bind_mw.bind_info) }?,
        _ => return Err(Error::Invalid("the device has no such operation")),
    };
    let flags = SendFlags::from_bits(wr.send_flags).ok_or(Error::Invalid("unknown send flag"))?;
    let gather = match op {
        // It moves no data, and what the list says does not count.
        SendOp::BindMw(_) => SgList::new(),
        _ => {
            // SAFETY: the caller's promise.
            unsafe { sg_list(wr.sg_list, count_of(wr.num_sge)?, |len| qp.hca().gather_list(len)) }?
        }
    };
    let payload = if flags.contains(SendFlags::INLINE) {
        // SAFETY: the program names the bytes to send: ibv_post_send(3).
        let part = |entry: &Sge| unsafe { Source::vouched(entry.addr, entry.length.into()) };
        let parts = gather.iter().map(part);
        gather_inline(parts, qp.max_inline(), |len| qp.hca().inline_data(len))?
    } else {
        Payload::Gather(gather)
    };
    let datagram = if qp.is_datagram() {
        // SAFETY: on a datagram QP the program fills this member, with a live address handle.
        let ud = unsafe { wr.wr.ud };
        // SAFETY: as above.
        Some(unsafe { datagram(ud.ah, ud.remote_qpn, ud.remote_qkey) }?)
    } else {
        None
    };
    Ok(SendWr { wr_id: wr.wr_id, op, payload, flags, datagram, xrc_srqn: wr.remote_srqn })
}

/// A list of one short SEND, as most are that go back and forth; `None` where it is another, or
/// may be wrong.
///
/// # Safety
/// `wr` is live if it is not null, and so is what it points to.
unsafe fn short_wr(qp: &Qp, wr: *const ibv_send_wr) -> Option<ShortWr> {
    // SAFETY: the caller's promise.
    let wr = unsafe { wr.as_ref() }.filter(|wr| wr.next.is_null() && !qp.is_datagram())?;
    let imm = match wr.opcode {
        WR_SEND => None,
        WR_SEND_WITH_IMM => Some(u32::from_be(wr.imm_or_rkey)),
        _ => return None,
    };
    let flags = SendFlags::from_bits(wr.send_flags)?;
    // SAFETY: as above.
    let mut list = unsafe { entries(wr.sg_list, count_of(wr.num_sge).ok()?) }.ok()?;
    if list.clone().map(|entry| u64::from(entry.length)).sum::<u64>() > SHORT_PAYLOAD as u64 {
        return None;
    }
    let payload = match flags.contains(SendFlags::INLINE) {
        false => match (list.next(), list.next()) {
            (Some(entry), None) => ShortPayload::Memory(entry),
            _ => return None,
        },
        true => {
            // SAFETY: the program names the bytes to send: ibv_post_send(3).
            let part = |entry: Sge| unsafe { Source::vouched(entry.addr, entry.length.into()) };
            let lend = |len| qp.hca().inline_data(len);
            match gather_inline(list.map(part), qp.max_inline(), lend) {
                Ok(Payload::Inline(bytes)) => ShortPayload::Inline(bytes),
                _ => return None,
            }
        }
    };
    Some(ShortWr { wr_id: wr.wr_id, imm, flags, payload })
}

/// A destination as a value.
///
/// # Safety
/// `ah` is null or a live address handle.
pub unsafe fn datagram(
    ah: *mut ibv_ah,
    remote_qpn: u32,
    remote_qkey: u32,
) -> hca::Result<Datagram> {
    // SAFETY: the caller's promise.
    let ah = unsafe { object::<Ah>(ah) }
        .map_err(|_| Error::Invalid("a datagram needs an address handle"))?;
    Ok(Datagram { ah: ah.hca().clone(), remote_qpn, remote_qkey })
}

/// `ibv_post_send(3)`. What the peer's window allows leaves the process before this returns:
/// `transport`'s requester makes packets, and `link::Batch` collects them for sendmmsg(2).
pub(crate) unsafe extern "C" fn post_send(
    qp: *mut ibv_qp,
    wr: *mut ibv_send_wr,
    bad: *mut *mut ibv_send_wr,
) -> c_int {
    quick_status(|| {
        // SAFETY: the program passes a live QP.
        let qp = unsafe { object::<Qp>(qp) }?;
        // SAFETY: the program passes a list of live requests.
        let first = unsafe { wr.as_ref() }.map(|wr| wr.opcode);
        let is_send = matches!(first, Some(WR_SEND | WR_SEND_WITH_IMM));
        // SAFETY: as above.
        if is_send && qp.hca().post_short(|| unsafe { short_wr(qp, wr) }) {
            return Ok(());
        }
        let _whole = Uncancelled::begin();
        let mut list = List::new(wr);
        // SAFETY: as above.
        let mut requests = std::iter::from_fn(|| unsafe { list.step().map(|wr| send_wr(qp, wr)) });
        match qp.hca().post_send(&mut requests) {
            Ok(()) => Ok(()),
            Err((_, error)) => stopped(bad, list.last(), error),
        }
    })
}

/// `ibv_post_recv(3)`.
pub(crate) unsafe extern "C" fn post_recv(
    qp: *mut ibv_qp,
    wr: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    quick_status(|| {
        // SAFETY: the program passes a live QP.
        let qp = unsafe { object::<Qp>(qp) }?;
        let post = |requests: &mut Requests<'_>| qp.hca().post_recv(requests).map_err(|(_, e)| e);
        let lend = |len| qp.hca().scatter_list(len);
        // SAFETY: the program passes a list of live requests, and null or a place to fill.
        unsafe { recv_list(wr, bad, lend, post) }
    })
}

/// `ibv_post_srq_recv(3)`.
pub(crate) unsafe extern "C" fn post_srq_recv(
    srq: *mut ibv_srq,
    wr: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    status(|| {
        // SAFETY: the program passes a live SRQ.
        let srq = unsafe { object::<Srq>(srq) }?;
        let mut list = List::new(wr);
        if let Err(errno) = srq.context() {
            return stopped(bad, wr, Error::System(errno.0, "the device is lost"));
        }
        // SAFETY: the program passes a list of live requests.
        while let Some(wr) = unsafe { list.step() } {
            // SAFETY: as above.
            let request = unsafe { recv_wr(wr, |len| srq.hca().scatter_list(len)) };
            let posted = request.and_then(|request| srq.hca().post(request));
            if let Err(error) = posted {
                return stopped(bad, list.last(), error);
            }
        }
        Ok(())
    })
}
