//! Posting: C work requests become values, one by one, without allocation for up to two scatter/gather entries.

use crate::abi::flags::*;
use crate::abi::*;
use crate::ah::Ah;
use crate::ffi::{Errno, Res, status};
use crate::mw;
use crate::object::object;
use crate::qp::Qp;
use crate::srq::Srq;
use hca::{
    Datagram, Error, InlineData, Payload, RecvWr, Remote, SendFlags, SendOp, SendWr, SgList, Sge,
};
use std::ffi::c_int;

/// Entries that any queue of this device may have; a longer list is wrong before it is read.
const MAX_SGE: usize = 32;

/// A scatter/gather list as a value, in what `lend` gives for that many entries.
///
/// # Safety
/// `list` is null or points to `count` entries.
pub unsafe fn sg_list(
    list: *const ibv_sge,
    count: usize,
    lend: impl FnOnce(usize) -> hca::Result<SgList>,
) -> hca::Result<SgList> {
    if count > MAX_SGE {
        return Err(Error::Invalid("more scatter/gather entries than the device has"));
    }
    if count == 0 {
        return Ok(SgList::new());
    }
    if list.is_null() {
        return Err(Error::Invalid("the scatter/gather list is missing"));
    }
    // SAFETY: the caller's promise.
    let entries = unsafe { std::slice::from_raw_parts(list, count) };
    let mut list = lend(count)?;
    list.extend(entries.iter().map(|entry| Sge {
        addr: entry.addr,
        length: entry.length,
        lkey: entry.lkey,
    }));
    Ok(list)
}

/// Copies the bytes that `parts` name out of the program's memory, as inline data, into what `lend` gives for so many bytes.
///
/// Guarded, so that a wrong address is EFAULT and not the program's end.
pub fn gather_inline(
    parts: impl Iterator<Item = (u64, usize)> + Clone,
    max: u32,
    lend: impl FnOnce(usize) -> hca::Result<InlineData>,
) -> hca::Result<Payload> {
    let total = parts
        .clone()
        .try_fold(0usize, |total, (_, len)| total.checked_add(len))
        .filter(|&total| total <= max as usize)
        .ok_or(Error::Invalid("more inline data than the queue pair has room for"))?;
    let mut bytes = lend(total)?;
    bytes.extend(std::iter::repeat_n(0, total));
    let mut at = 0;
    for (addr, len) in parts {
        mm::guard::copy_from(addr, &mut bytes[at..at + len])
            .map_err(|_| Error::System(libc::EFAULT, "inline data is not readable"))?;
        at += len;
    }
    Ok(Payload::Inline(bytes))
}

/// A number of entries as C has it.
pub fn count_of(num_sge: c_int) -> hca::Result<usize> {
    usize::try_from(num_sge)
        .map_err(|_| Error::Invalid("negative number of scatter/gather entries"))
}

/// # Safety
/// `wr` and what it points to are live.
unsafe fn send_wr(qp: &Qp, wr: &ibv_send_wr) -> hca::Result<SendWr> {
    // SAFETY: every member of the union is plain data for which all bytes are valid; the caller's struct is whole.
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
        let parts = gather.iter().map(|entry| (entry.addr, entry.length as usize));
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

/// A linked list of requests, read as it is walked.
pub struct List<T> {
    next: *mut T,
    /// The request last handed out: where posting stopped, if it did.
    last: *mut T,
}

impl<T> List<T> {
    /// The list that begins with `first`.
    pub fn new(first: *mut T) -> List<T> {
        List { next: first, last: first }
    }

    /// The request last handed out.
    pub fn last(&self) -> *mut T {
        self.last
    }
}

/// A request that knows the one after it.
pub trait Linked {
    /// The one after it, or null.
    fn next(&self) -> *mut Self;
}

impl Linked for ibv_send_wr {
    fn next(&self) -> *mut Self {
        self.next
    }
}

impl Linked for ibv_recv_wr {
    fn next(&self) -> *mut Self {
        self.next
    }
}

impl Linked for ibv_ops_wr {
    fn next(&self) -> *mut Self {
        self.next
    }
}

impl<'a, T: Linked + 'a> List<T> {
    /// # Safety
    /// Every element is live.
    unsafe fn step(&mut self) -> Option<&'a T> {
        // SAFETY: the caller's promise.
        let element = unsafe { self.next.as_ref() }?;
        self.last = self.next;
        self.next = element.next();
        Some(element)
    }

    /// The next request, to be filled in.
    ///
    /// # Safety
    /// Every element is live and nobody else uses it.
    pub unsafe fn step_mut(&mut self) -> Option<&'a mut T> {
        // SAFETY: the caller's promise.
        let element = unsafe { self.next.as_mut() }?;
        self.last = self.next;
        self.next = element.next();
        Some(element)
    }
}

/// Tells the program where posting stopped.
pub fn stopped<T>(bad: *mut *mut T, at: *mut T, error: Error) -> Res<()> {
    if !bad.is_null() {
        // SAFETY: the program passes null or a place to fill.
        unsafe { *bad = at };
    }
    Err(Errno::from(error))
}

/// `ibv_post_send(3)`.
pub(crate) unsafe extern "C" fn post_send(
    qp: *mut ibv_qp,
    wr: *mut ibv_send_wr,
    bad: *mut *mut ibv_send_wr,
) -> c_int {
    status(|| {
        // SAFETY: the program passes a live QP.
        let qp = unsafe { object::<Qp>(qp) }?;
        let mut list = List::new(wr);
        // SAFETY: the program passes a list of live requests.
        let mut requests = std::iter::from_fn(|| unsafe { list.step().map(|wr| send_wr(qp, wr)) });
        match qp.hca().post_send(&mut requests) {
            Ok(()) => Ok(()),
            Err((_, error)) => stopped(bad, list.last, error),
        }
    })
}

/// # Safety
/// `wr` and what it points to are live.
unsafe fn recv_wr(
    wr: &ibv_recv_wr,
    lend: impl FnOnce(usize) -> hca::Result<SgList>,
) -> hca::Result<RecvWr> {
    // SAFETY: the caller's promise.
    let scatter = unsafe { sg_list(wr.sg_list, count_of(wr.num_sge)?, lend) }?;
    Ok(RecvWr { wr_id: wr.wr_id, scatter })
}

/// `ibv_post_recv(3)`.
pub(crate) unsafe extern "C" fn post_recv(
    qp: *mut ibv_qp,
    wr: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    status(|| {
        // SAFETY: the program passes a live QP.
        let qp = unsafe { object::<Qp>(qp) }?;
        let post = |requests: &mut Requests<'_>| qp.hca().post_recv(requests).map_err(|(_, e)| e);
        let lend = |len| qp.hca().scatter_list(len);
        // SAFETY: the program passes a list of live requests, and null or a place to fill.
        unsafe { recv_list(wr, bad, lend, post) }
    })
}

/// Receive requests, read as they are taken.
pub type Requests<'a> = dyn Iterator<Item = hca::Result<RecvWr>> + 'a;

/// Posts a list by `post`, which takes what it asks for and stops at the first mistake; `lend` gives the entries a place.
///
/// # Safety
/// Every element is live; `bad` is null or a place to fill.
pub unsafe fn recv_list(
    wr: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
    lend: impl Fn(usize) -> hca::Result<SgList>,
    post: impl FnOnce(&mut Requests<'_>) -> hca::Result<()>,
) -> Res<()> {
    let mut list = List::new(wr);
    // SAFETY: the caller's promise.
    let mut requests = std::iter::from_fn(|| unsafe { list.step().map(|wr| recv_wr(wr, &lend)) });
    match post(&mut requests) {
        Ok(()) => Ok(()),
        Err(error) => stopped(bad, list.last, error),
    }
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
                return stopped(bad, list.last, error);
            }
        }
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scatter_lists_are_checked_before_they_are_read() {
        let entries = [ibv_sge { addr: 1, length: 2, lkey: 3 }];
        // SAFETY: one entry is live; the other calls are refused before reading.
        unsafe {
            let lend = |_| Ok(SgList::new());
            let list = sg_list(entries.as_ptr(), 1, lend).unwrap();
            assert_eq!(list[0], Sge { addr: 1, length: 2, lkey: 3 });
            assert!(sg_list(entries.as_ptr(), MAX_SGE + 1, lend).is_err());
            assert!(sg_list(std::ptr::null(), 1, lend).is_err());
            assert!(sg_list(std::ptr::null(), 0, lend).unwrap().is_empty());
        }
        assert!(count_of(-1).is_err());
    }

    #[test]
    fn inline_data_is_copied_and_bounded() {
        mm::guard::install();
        let bytes = *b"abcdef";
        let at = bytes.as_ptr() as u64;
        let parts = [(at + 3, 3), (at, 2)];
        let lend = |_| Ok(InlineData::new());
        let Ok(Payload::Inline(copied)) = gather_inline(parts.into_iter(), 5, lend) else {
            panic!("refused")
        };
        assert_eq!(&*copied, b"defab");
        assert!(matches!(gather_inline(parts.into_iter(), 4, lend), Err(Error::Invalid(_))));
        let huge = [(at, usize::MAX), (at, 2)];
        assert!(matches!(gather_inline(huge.into_iter(), 100, lend), Err(Error::Invalid(_))));
        let wild = [(8, 4)];
        let refused = gather_inline(wild.into_iter(), 100, lend);
        assert!(matches!(refused, Err(Error::System(libc::EFAULT, _))));
    }

    #[test]
    fn a_list_remembers_where_it_stopped() {
        let mut second = ibv_recv_wr {
            wr_id: 2,
            next: std::ptr::null_mut(),
            sg_list: std::ptr::null_mut(),
            num_sge: 0,
        };
        let mut first = ibv_recv_wr {
            wr_id: 1,
            next: &mut second,
            ..ibv_recv_wr {
                wr_id: 0,
                next: std::ptr::null_mut(),
                sg_list: std::ptr::null_mut(),
                num_sge: 0,
            }
        };
        let mut list = List::new(&raw mut first);
        // SAFETY: both elements are live.
        unsafe {
            assert_eq!(list.step().unwrap().wr_id, 1);
            assert_eq!(list.step().unwrap().wr_id, 2);
            assert_eq!((*list.last).wr_id, 2);
            assert!(list.step().is_none());
        }
        assert_eq!(list.last, &raw mut second);
    }
}
