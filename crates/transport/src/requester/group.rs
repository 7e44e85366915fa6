//! Short RDMA WRITEs that stand one behind the other, moved to a neighbour's memory together: a
//! call to the system costs as much as to copy many of them.
//!
//! As one that goes [directly](super::direct) by itself they are the oldest of their queue, take no
//! PSN, and whatever is not plain of them goes by packets.

use super::direct::{DISCOURAGED, SHORT_DIRECT};
use crate::qp::Transport;
use crate::requests::wqe::Wqe;
use crate::values::{QpType, Remote, SendOp};
use crate::{Counter, Cx, DirectGroup};
use umem::Fold;

/// Requests that move together at most.
const REQUESTS: usize = 32;
/// Bytes that move together at most.
const BYTES: usize = 4 << 10;
/// Fewer than these are left to packets.
const LEAST: usize = 4;

/// Where the bytes are gathered, whole words in their places: the kernel copies those as such.
#[repr(align(8))]
struct Bytes([u8; BYTES]);

impl Transport {
    /// Moves the oldest requests, of which the first is resolved, if they are such WRITEs and the
    /// neighbour takes them; `false` if packets shall do it.
    pub(super) fn moves_in_group(&mut self, cx: &mut Cx<'_>) -> bool {
        if self.kind != QpType::Rc || self.alarm.is_some() || !cx.tx.has_neighbour() {
            return false;
        }
        if self.req.ungrouped > 0 {
            self.req.ungrouped -= 1;
            return false;
        }
        let most = REQUESTS.min(cx.budget.requests.packets() as usize);
        let (mut places, mut bytes) = ([(Remote::default(), 0); REQUESTS], Bytes([0; BYTES]));
        let (mut count, mut end) = (0, 0);
        let first = self.req.queue.front().and_then(Wqe::short_write);
        for wqe in self.req.queue.iter_mut().take(most) {
            let remote = wqe
                .short_write()
                .filter(|remote| first.is_some_and(|first| first.rkey == remote.rkey));
            // What is wrong with one is said in its turn, and what is not plain goes by packets.
            let is_resolved = remote.is_some()
                && (count == 0 || wqe.resolve(cx.keys, self.pd, &self.ranges).is_ok());
            let (true, Some(remote)) = (is_resolved && wqe.memory.is_plain(), remote) else {
                break;
            };
            let len = wqe.length as usize;
            let into = bytes.0.get_mut(end..).and_then(|rest| rest.get_mut(..len));
            let Some(into) = into else { break };
            if wqe.fill(0, into, &mut Fold::off()).is_err() {
                break;
            }
            places[count] = (remote, len);
            (count, end) = (count + 1, end + len);
        }
        if count < LEAST {
            return false;
        }
        let (dest_qpn, places) = (self.attr.dest_qp_num, &places[..count]);
        let group = DirectGroup { dest_qpn, places, bytes: &bytes.0[..end] };
        let moved = cx.tx.direct_group(&group).min(count);
        if moved == 0 {
            self.req.ungrouped = DISCOURAGED;
            return false;
        }
        cx.counters.count(Counter::DirectRequests, moved as u64);
        for (_, len) in &places[..moved] {
            cx.counters.count(Counter::SentBytes, *len as u64);
            cx.budget.requests.spend(*len as u64);
            self.complete_oldest(cx);
        }
        true
    }
}

impl Wqe {
    /// Where it goes, if it is a short WRITE of whole words that has not begun.
    fn short_write(&self) -> Option<Remote> {
        let (_, remote) = self.may_go_directly()?;
        let is_short = self.length <= SHORT_DIRECT && self.length.is_multiple_of(8);
        let is_new = !self.cancelled && !self.has_begun();
        (matches!(self.wr.op, SendOp::Write(_)) && is_short && is_new).then_some(remote)
    }
}
