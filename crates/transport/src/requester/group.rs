//! Short RDMA WRITEs that stand one behind the other, moved to a neighbour's memory together: a
//! call to the system costs as much as to copy many of them.
//!
//! As one that goes [directly](super::direct) by itself they are the oldest of their queue, take no
//! PSN, and whatever is not plain of them goes by packets.

use super::direct::{DISCOURAGED, SHORT_DIRECT};
use crate::qp::Transport;
use crate::requests::wqe::{Phase, Wqe};
use crate::values::{QpType, Remote, SendOp};
use crate::{Counter, Cx, DirectGroup};
use umem::Fold;

/// Requests that move together at most.
const REQUESTS: usize = 32;
/// Bytes that move together at most.
const BYTES: usize = 4 << 10;

impl Transport {
    /// Moves the oldest requests, of which the first is resolved, if they are such WRITEs and the
    /// neighbour takes them; `false` if packets shall do it.
    pub(super) fn moves_in_group(&mut self, cx: &mut Cx<'_>) -> bool {
        // Block signatures are checked by who makes packets.
        if self.kind != QpType::Rc || self.alarm.is_some() || !cx.tx.has_neighbour() {
            return false;
        }
        if self.req.discouraged > 0 {
            self.req.discouraged -= 1;
            return false;
        }
        let (mut places, mut bytes) = ([(Remote::default(), 0); REQUESTS], [0; BYTES]);
        let (mut count, mut end) = (0, 0);
        let first = self.req.queue.front().and_then(Wqe::short_write);
        for (index, wqe) in self.req.queue.iter_mut().take(REQUESTS).enumerate() {
            let Some(remote) = wqe.short_write() else { break };
            let len = wqe.length as usize;
            let Some(into) = bytes.get_mut(end..).and_then(|rest| rest.get_mut(..len)) else {
                break;
            };
            let is_with = first.is_some_and(|first| first.rkey == remote.rkey);
            // What is wrong with it is said in its turn.
            let is_resolved = index == 0 || wqe.resolve(cx.keys, self.pd, &self.ranges).is_ok();
            if !is_with || !is_resolved || wqe.fill(0, into, &mut Fold::off()).is_err() {
                break;
            }
            (places[index], count, end) = ((remote, len), index + 1, end + len);
        }
        if count == 0 {
            return false;
        }
        let (dest_qpn, places) = (self.attr.dest_qp_num, &places[..count]);
        let group = DirectGroup { dest_qpn, places, bytes: &bytes[..end] };
        let moved = cx.tx.direct_group(&group);
        if moved == 0 {
            self.req.discouraged = DISCOURAGED;
            return false;
        }
        let done = places.iter().take(moved).map(|(_, len)| *len as u64).sum();
        cx.counters.count(Counter::SentBytes, done);
        cx.counters.count(Counter::DirectRequests, moved as u64);
        cx.budget.requests.spend(done);
        (0..moved).for_each(|_| self.complete_oldest(cx));
        true
    }
}

impl Wqe {
    /// Where it goes, if it is a short WRITE of the program's that has not begun.
    fn short_write(&self) -> Option<Remote> {
        let (_, remote) = self.may_go_directly()?;
        let is_short = self.length <= SHORT_DIRECT && !self.cancelled;
        let is_new = self.phase == Phase::Posted && self.worked == 0;
        (matches!(self.wr.op, SendOp::Write(_)) && is_short && is_new).then_some(remote)
    }
}
