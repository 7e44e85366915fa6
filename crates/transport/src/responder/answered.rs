//! Requests that are answered with more than an acknowledge: READs, atomics, ATOMIC WRITEs and
//! FLUSHes. Each holds a responder resource until its answer has left.

use crate::executor::Refusal;
use crate::qp::Transport;
use crate::qp::response::{Answer, ReadAnswer, packets_of};
use crate::values::{Flush, Remote};
use crate::{Counter, Cx, Rx};
use umem::AtomicOp;
use wire::{AtomicEth, Feth, Operation, Reth};

impl Transport {
    /// A responder resource for one more READ or atomic, if the peer keeps to what was agreed.
    fn check_resources(&self) -> Result<(), Refusal> {
        if self.resp.responses.resources() < usize::from(self.attr.max_dest_rd_atomic) {
            Ok(())
        } else {
            Err(Refusal::InvalidRequest(
                "more READs and atomics than the responder has resources for",
            ))
        }
    }

    pub(super) fn serve_read(
        &mut self,
        reth: Option<Reth>,
        cx: &mut Cx<'_>,
    ) -> Result<(), Refusal> {
        let Some(Reth { va, rkey, len }) = reth else {
            return Err(Refusal::InvalidRequest("RDMA READ without RETH"));
        };
        cx.counters.count(Counter::RxReadRequests, 1);
        let (executor, seen) = (self.executor(cx.keys), cx.keys.changes());
        let (pd, target) = (executor.pd, executor.read(Remote { addr: va, rkey }, len)?);
        self.check_resources()?;
        target.ready(0, len.min(self.resp.mtu) as usize, false)?;
        if !self.resp.responses.make_room_for_read() {
            return Err(Refusal::NotReady);
        }
        let psn = self.resp.expected;
        self.message_done();
        self.resp.expected = psn.plus(packets_of(len, self.resp.mtu));
        self.resp.last_answered = Some(psn);
        let remote = Remote { addr: va, rkey };
        let mtu = self.resp.mtu;
        let read = ReadAnswer { psn, done: 0, mtu, len, remote, target, pd, seen };
        self.owe_read(read, true);
        Ok(())
    }

    pub(super) fn serve_atomic(&mut self, rx: &Rx<'_>, cx: &mut Cx<'_>) -> Result<(), Refusal> {
        let psn = self.resp.expected;
        cx.counters.count(Counter::RxAtomicRequests, 1);
        self.check_resources()?;
        let old = self.atomic(rx, cx)?;
        self.message_done();
        self.resp.expected = psn.plus(1);
        self.resp.last_answered = Some(psn);
        if self.resp.saved.len() >= usize::from(self.attr.max_dest_rd_atomic) {
            self.resp.saved.pop_front();
        }
        self.resp.saved.push_back((psn, old));
        self.owe(psn, Answer::Atomic(old.to_ne_bytes()), true);
        Ok(())
    }

    /// An ATOMIC WRITE or FLUSH (IBA A19): done, then answered by a READ response without data.
    pub(super) fn serve_placement(&mut self, rx: &Rx<'_>, cx: &mut Cx<'_>) -> Result<(), Refusal> {
        let psn = self.resp.expected;
        self.check_resources()?;
        self.place_or_flush(rx, cx)?;
        self.message_done();
        self.resp.expected = psn.plus(1);
        self.resp.last_answered = Some(psn);
        self.owe(psn, Answer::Done, true);
        Ok(())
    }

    pub(super) fn place_or_flush(&self, rx: &Rx<'_>, cx: &mut Cx<'_>) -> Result<(), Refusal> {
        let Some(Reth { va: addr, rkey, len }) = rx.headers.reth else {
            return Err(Refusal::InvalidRequest("a request without RETH"));
        };
        let remote = Remote { addr, rkey };
        if let Some(Feth { placement, level }) = rx.headers.feth {
            if level > 1 {
                return Err(Refusal::InvalidRequest("FLUSH of an unknown selectivity level"));
            }
            return self.executor(cx.keys).flush(&Flush {
                remote,
                len,
                placement,
                whole: level == 1,
            });
        }
        cx.counters.count(Counter::RxWriteRequests, 1);
        match rx.payload.try_into() {
            Ok(bytes) if len == 8 => {
                self.executor(cx.keys).atomic_write(remote, u64::from_ne_bytes(bytes))
            }
            _ => Err(Refusal::InvalidRequest("ATOMIC WRITE of other than 8 bytes")),
        }
    }

    pub(super) fn atomic(&self, rx: &Rx<'_>, cx: &mut Cx<'_>) -> Result<u64, Refusal> {
        let Some(AtomicEth { va, rkey, swap_or_add, compare }) = rx.headers.atomic else {
            return Err(Refusal::InvalidRequest("atomic without AtomicETH"));
        };
        let op = match rx.headers.bth.opcode.operation {
            Operation::CompareSwap => AtomicOp::CompareSwap { compare, swap: swap_or_add },
            _ => AtomicOp::FetchAdd { add: swap_or_add },
        };
        self.executor(cx.keys).atomic(Remote { addr: va, rkey }, op)
    }
}
