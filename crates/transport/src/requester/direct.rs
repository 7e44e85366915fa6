//! RDMA WRITEs and READs without packets, where the peer is a neighbour: bytes go straight from
//! memory to memory, in the thread that sends, and nobody needs to be awake at the peer.
//!
//! Only a request that is the oldest of its queue goes this way: whatever was asked before it is
//! done then, so the order is that of the queue. It takes no PSN. Whatever is not plain goes by
//! packets: there is one place that refuses, and it is the peer's executor.

use crate::qp::Transport;
use crate::requests::wqe::Wqe;
use crate::values::{Payload, QpType, Remote, SendOp};
use crate::{Counter, Cx, Direct, Half, InPlace, ReadInPlace};
use std::ops::Range;
use umem::{AccessError, Sink, Source};

/// Bytes that are moved at a time: who takes the memory away waits so long.
const PART: u64 = 512 << 10;
/// From this length on a request waits until it is the oldest rather than go by packets.
const WORTH_WAITING: u32 = 64 << 10;
/// Requests after a refused one that do not wait: what lies in a GPU is refused each time.
const DISCOURAGED: u32 = 64;
/// Longest request, in bytes, that goes by packets in company: many share a packet train, and a
/// call to the system that moves bytes is for one.
pub const SHORT_DIRECT: u32 = 512;
/// Requests that are company.
const COMPANY: usize = 4;
/// Posts in a row after which a request is company as well, though each is done before the next:
/// nobody waits for them one by one, and a packet through a ring takes less than a call to the
/// system.
const STREAM: u32 = 16;
/// Up to this length a program may watch any word of a message. The kernel copies whole words as
/// such where they are aligned, and others byte by byte.
pub const WATCHED: u32 = 4 << 10;
impl Wqe {
    /// Whether it is a WRITE or a READ, and where at the peer.
    fn one_sided(&self) -> Option<(bool, Remote)> {
        match self.wr.op {
            SendOp::Write(remote) => Some((true, remote)),
            SendOp::Read(remote) => Some((false, remote)),
            _ => None,
        }
    }

    /// Whether it may go directly, as far as can be known here: to memory of this process, where
    /// that is `at_home`.
    fn may_go_directly(&self, at_home: bool) -> Option<(bool, Remote)> {
        let (write, remote) = self.one_sided().filter(|_| self.offload.is_none())?;
        let is_whole = at_home || !self.is_ragged() || self.length <= SHORT_DIRECT;
        (is_whole && self.length > 0).then_some((write, remote))
    }

    /// Whether a program may watch what are no whole words of it.
    fn is_ragged(&self) -> bool {
        let whole_words = self
            .one_sided()
            .is_some_and(|(_, remote)| (remote.addr | u64::from(self.length)).is_multiple_of(8));
        !whole_words && self.length > 1 && self.length <= WATCHED
    }
}

impl ReadInPlace for Wqe {
    fn read(
        &mut self,
        at: u64,
        len: usize,
        each: &mut dyn FnMut(Source<'_>) -> Result<(), AccessError>,
    ) -> Result<(), AccessError> {
        if self.slot.as_ref().is_some_and(|slot| slot.is_inline()) {
            return Err(AccessError::Unreachable);
        }
        match &self.wr.payload {
            Payload::Inline(bytes) => {
                let at = usize::try_from(at).map_err(|_| AccessError::OutOfRange)?;
                let end = at.checked_add(len).ok_or(AccessError::OutOfRange)?;
                each(Source::from(bytes.get(at..end).ok_or(AccessError::OutOfRange)?))
            }
            Payload::Gather(_) => self.memory.read_in_place(at, len, each),
        }
    }
}

impl InPlace for Wqe {
    fn write(
        &mut self,
        at: u64,
        len: usize,
        each: &mut dyn FnMut(Sink<'_>) -> Result<(), AccessError>,
    ) -> Result<(), AccessError> {
        self.memory.write_in_place(at, len, each)
    }

    fn may_lie_over(&self, range: &Range<u64>) -> bool {
        self.memory.may_lie_over(range)
    }
}

impl Transport {
    /// Takes note of how often the program has posted since it last asked for completions.
    pub fn note_posts_in_a_row(&mut self, posts: u32) {
        self.req.posts_in_a_row = posts;
    }

    /// Whether request `index` had better wait until it is the oldest, and then go directly.
    pub(super) fn waits_for_its_turn(&mut self, index: usize, cx: &Cx<'_>) -> bool {
        let wqe = &self.req.queue[index];
        let waits = index > 0
            && self.kind == QpType::Rc
            && wqe.length >= WORTH_WAITING
            && wqe.may_go_directly(cx.tx.is_at_home()).is_some()
            && cx.tx.has_neighbour();
        if waits && self.req.discouraged > 0 {
            self.req.discouraged -= 1;
            return false;
        }
        waits
    }

    /// Moves the request at `index`, whose memory is resolved, without packets, or as much of it as
    /// the call may; `false` if packets shall do it.
    pub(super) fn goes_directly(&mut self, index: usize, cx: &mut Cx<'_>) -> bool {
        let in_company = self.req.queue.len() > COMPANY;
        let wqe = &mut self.req.queue[index];
        let at_home = cx.tx.is_at_home();
        let Some((write, remote)) = wqe.may_go_directly(at_home).filter(|_| index == 0) else {
            return false;
        };
        if wqe.length <= SHORT_DIRECT && !at_home {
            let in_a_stream =
                self.req.posts_in_a_row >= STREAM && cx.tx.counts_packets(Half::Requester);
            if in_company || in_a_stream {
                return false;
            }
        }
        if self.kind != QpType::Rc || !cx.tx.has_neighbour() {
            wqe.worked = 0;
            return false;
        }
        let is_ragged = !at_home && wqe.is_ragged();
        if is_ragged && !self.req.ragged.tries() {
            return false;
        }
        let (length, dest_qpn) = (wqe.length, self.attr.dest_qp_num);
        while wqe.worked < length.into() && !cx.budget.requests.is_spent() {
            let at = wqe.worked;
            let len = PART.min(u64::from(length) - at) as usize;
            let direct = Direct { write, dest_qpn, remote, length, at, len, memory: wqe };
            let went = cx.tx.direct(direct);
            if is_ragged {
                self.req.ragged.note(went);
            }
            if !went {
                wqe.worked = 0;
                if length >= WORTH_WAITING {
                    self.req.discouraged = DISCOURAGED;
                }
                return false;
            }
            wqe.worked += len as u64;
            cx.budget.requests.spend(len as u64);
        }
        if wqe.worked == u64::from(length) {
            let bytes = if write { Counter::SentBytes } else { Counter::RcvdBytes };
            cx.counters.count(bytes, length.into());
            cx.counters.count(Counter::DirectRequests, 1);
            self.req.discouraged = 0;
            self.complete_oldest(cx);
        }
        true
    }
}
