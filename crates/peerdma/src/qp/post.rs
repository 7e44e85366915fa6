//! Posting: operations become work requests as C has them.

use super::raw::RawQp;
use super::work::{Op, SendFlags};
use crate::error::{Error, Result, check};
use crate::memory::{LocalSlice, RemoteSlice};
use verbs_sys::flags::*;
use verbs_sys::*;

impl RawQp {
    pub(super) fn post_recv(&self, id: u64, local: &[LocalSlice<'_>]) -> Result<()> {
        let Some(post) = self.pd.inner.context.inner.ops().post_recv else {
            return Err(Error::NotSupported("the device has no post_recv"));
        };
        let mut wr = ibv_recv_wr {
            wr_id: id,
            next: std::ptr::null_mut(),
            sg_list: sges(local).as_ptr().cast_mut(),
            num_sge: count(sges(local))?,
        };
        let mut bad = std::ptr::null_mut();
        // SAFETY: the queue pair is alive; the request and its list are valid for the call, which
        // copies them. The memory named is guarded by its key, not by a lifetime.
        check("ibv_post_recv", unsafe { post(self.raw.as_ptr(), &mut wr, &mut bad) })
    }

    pub(super) fn post_send(&self, id: u64, op: &Op<'_>, flags: SendFlags) -> Result<()> {
        let Some(post) = self.pd.inner.context.inner.ops().post_send else {
            return Err(Error::NotSupported("the device has no post_send"));
        };
        let inline;
        let single;
        let (list, request): (&[ibv_sge], Request) = match *op {
            Op::Send { local, imm } => (sges(local), Request::send(imm)),
            Op::SendInline { data, imm } => {
                inline = [inline_sge(data)?];
                (&inline, Request::send(imm).inline())
            }
            Op::Write { local, remote, imm } => {
                fits(total(local), remote)?;
                (sges(local), Request::write(imm).rdma(remote))
            }
            Op::WriteInline { data, remote, imm } => {
                inline = [inline_sge(data)?];
                fits(data.len() as u64, remote)?;
                (&inline, Request::write(imm).rdma(remote).inline())
            }
            Op::Read { local, remote } => {
                fits(total(local), remote)?;
                (sges(local), Request::new(WR_RDMA_READ).rdma(remote))
            }
            Op::CompareSwap { local, remote, compare, swap } => {
                single = [word(local, remote)?];
                (&single, Request::new(WR_ATOMIC_CMP_AND_SWP).atomic(remote, compare, swap))
            }
            Op::FetchAdd { local, remote, add } => {
                single = [word(local, remote)?];
                (&single, Request::new(WR_ATOMIC_FETCH_AND_ADD).atomic(remote, add, 0))
            }
        };
        let Request(mut wr) = request;
        wr.wr_id = id;
        wr.send_flags |= flags.bits();
        wr.sg_list = list.as_ptr().cast_mut();
        wr.num_sge = count(list)?;
        let mut bad = std::ptr::null_mut();
        // SAFETY: the queue pair is alive; request and list are valid for the call, which copies
        // them, and so is the inline data, which only the inline operations point at (a LocalSlice
        // is never read by the CPU). Other memory is guarded by its key, not by a lifetime.
        check("ibv_post_send", unsafe { post(self.raw.as_ptr(), &mut wr, &mut bad) })
    }
}

/// A send request as C has it, without its scatter/gather list.
struct Request(ibv_send_wr);

impl Request {
    /// A request with `opcode` of `enum ibv_wr_opcode`.
    fn new(opcode: u32) -> Request {
        // SAFETY: null pointers and zeroes are values of every member.
        let wr: ibv_send_wr = unsafe { std::mem::zeroed() };
        Request(ibv_send_wr { opcode, ..wr })
    }

    /// One of two opcodes, by whether there is immediate data.
    fn with(imm: Option<u32>, (without, with): (u32, u32)) -> Request {
        let Request(wr) = Request::new(if imm.is_some() { with } else { without });
        Request(ibv_send_wr { imm_or_rkey: imm.unwrap_or(0).to_be(), ..wr })
    }

    fn send(imm: Option<u32>) -> Request {
        Request::with(imm, (WR_SEND, WR_SEND_WITH_IMM))
    }

    fn write(imm: Option<u32>) -> Request {
        Request::with(imm, (WR_RDMA_WRITE, WR_RDMA_WRITE_WITH_IMM))
    }

    fn inline(self) -> Request {
        Request(ibv_send_wr { send_flags: SEND_INLINE, ..self.0 })
    }

    fn rdma(self, RemoteSlice { addr, rkey, .. }: RemoteSlice) -> Request {
        let rdma = wr_rdma { remote_addr: addr, rkey };
        Request(ibv_send_wr { wr: wr_union { rdma }, ..self.0 })
    }

    fn atomic(self, remote: RemoteSlice, compare_add: u64, swap: u64) -> Request {
        let RemoteSlice { addr, rkey, .. } = remote;
        let atomic = wr_atomic { remote_addr: addr, compare_add, swap, rkey };
        Request(ibv_send_wr { wr: wr_union { atomic }, ..self.0 })
    }
}

fn sges<'a>(local: &'a [LocalSlice<'_>]) -> &'a [ibv_sge] {
    // SAFETY: LocalSlice is a transparent wrapper of ibv_sge.
    unsafe { std::slice::from_raw_parts(local.as_ptr().cast(), local.len()) }
}

fn count(list: &[ibv_sge]) -> Result<libc::c_int> {
    libc::c_int::try_from(list.len()).map_err(|_| Error::Argument("too many slices"))
}

fn inline_sge(data: &[u8]) -> Result<ibv_sge> {
    let length =
        u32::try_from(data.len()).map_err(|_| Error::Argument("inline data is too long"))?;
    Ok(ibv_sge { addr: data.as_ptr() as u64, length, lkey: 0 })
}

fn total(local: &[LocalSlice<'_>]) -> u64 {
    local.iter().map(|slice| u64::from(slice.len())).sum()
}

fn fits(len: u64, remote: RemoteSlice) -> Result<()> {
    if len > remote.len { Err(Error::Range { offset: 0, len, size: remote.len }) } else { Ok(()) }
}

fn word(local: LocalSlice<'_>, remote: RemoteSlice) -> Result<ibv_sge> {
    if local.len() != 8 || remote.len < 8 || !remote.addr.is_multiple_of(8) {
        return Err(Error::Argument("an atomic works on 8 aligned bytes at both ends"));
    }
    Ok(local.sge)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_names_its_target_where_its_opcode_says() {
        let remote = RemoteSlice { addr: 8, len: 8, rkey: 0x11223344 };
        let Request(wr) = Request::write(Some(0x0102_0304)).rdma(remote);
        assert_eq!((wr.opcode, wr.imm_or_rkey), (WR_RDMA_WRITE_WITH_IMM, 0x0102_0304_u32.to_be()));
        // SAFETY: the member that was set.
        let rdma = unsafe { wr.wr.rdma };
        assert_eq!((rdma.remote_addr, rdma.rkey), (8, 0x11223344));
        let Request(wr) = Request::new(WR_ATOMIC_CMP_AND_SWP).atomic(remote, 5, 6);
        // SAFETY: the member that was set.
        let atomic = unsafe { wr.wr.atomic };
        assert_eq!((atomic.remote_addr, atomic.rkey), (8, 0x11223344));
        assert_eq!((atomic.compare_add, atomic.swap), (5, 6));
    }
}
