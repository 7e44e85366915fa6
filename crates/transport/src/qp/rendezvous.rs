//! The rendezvous of tag matching, done by the HCA itself: it READs what a message announced into
//! the tagged buffer, then tells the sender by a FIN message (`infiniband/tm_types.h`).
//!
//! Both are requests in the QP's own send queue, after what the program has posted and beyond the
//! queue's size. A READ that fails ends the connection as any does; the tagged buffer completes
//! with its status.

use super::{Cx, Transport};
use crate::executor::Landing;
use crate::queues::tags::Fetch;
use crate::requests::wqe::{Ended, Offload, Wqe};
use crate::sabotage::{self, Sabotage};
use crate::values::*;

impl Transport {
    /// Whether the QP can serve a rendezvous now.
    pub(crate) fn can_fetch(&self) -> bool {
        let sends = matches!(self.state, QpState::Rts | QpState::Sqd);
        sends && self.attr.max_rd_atomic > 0
    }

    /// Begins to fetch into `landing`, which is large enough.
    pub(crate) fn rendezvous(&mut self, landing: Landing, fetch: Fetch) {
        let Some(queue) = self.inbox.tags().cloned() else { return };
        let (RecvWr { wr_id, scatter }, pd) = landing.into_request();
        let op = SendOp::Read(fetch.from);
        let into = Payload::Gather(front(scatter, fetch.len));
        let offload = Offload::Fetch { queue, pd, fin: fetch.fin };
        if sabotage::on(Sabotage::FinBeforeData) {
            self.finish(fetch.fin);
        }
        self.req.offload(Wqe::offloaded(request(wr_id, op, into), offload));
    }

    /// Tells the sender that its buffer is its own again.
    fn finish(&mut self, fin: [u8; 16]) {
        let fin = request(0, SendOp::Send, Payload::Inline(fin.into()));
        self.req.offload(Wqe::offloaded(fin, Offload::Fin));
    }

    /// Reports the end of a request to whoever posted it.
    pub(crate) fn report(&mut self, Ended { done, offload }: Ended, cx: &mut Cx<'_>) {
        let status = done.status;
        let good = status == WcStatus::Success;
        match offload {
            None => cx.sink.sent(done),
            Some(Offload::Fetch { queue, fin, .. }) => {
                if good && !sabotage::on(Sabotage::FinBeforeData) {
                    self.finish(fin);
                }
                let flags = if good { WcFlags::TM_DATA_VALID } else { WcFlags::empty() };
                let opcode = WcOpcode::TmRecv;
                let src_qp = self.attr.dest_qp_num;
                queue.received(Completion { opcode, flags, src_qp, ..done });
            }
            // Nobody waits for its completion, but a connection does not end in silence.
            Some(Offload::Fin) if !good && status != WcStatus::WrFlushErr => {
                cx.sink.event(EventType::QpFatal);
            }
            Some(Offload::Fin) => {}
        }
    }
}

fn request(wr_id: u64, op: SendOp, payload: Payload) -> SendWr {
    SendWr { wr_id, op, payload, flags: SendFlags::empty(), datagram: None, xrc_srqn: 0 }
}

/// The first `len` bytes of a list.
fn front(mut list: SgList, len: u32) -> SgList {
    let mut left = len;
    for sge in list.iter_mut() {
        sge.length = sge.length.min(left);
        left -= sge.length;
    }
    list
}
