//! Tag matching: requests that change the matching list of a shared receive queue
//! (`struct mlx5_wqe_tm_seg`), and what its completions say (`app`, `app_op` and `app_info` of
//! `struct mlx5_cqe64`).
//!
//! The driver names an entry of the list by an index. Which index the next entry gets, each request
//! that appends one says for the one after it.

use crate::layout::bits::{be16, be64};
use crate::layout::request::RequestId;
use crate::layout::tag_cqe::TAG_OPCODE;
use crate::layout::wqe::{self, Malformed};
use crate::object::objects::SrqPair;
use hca::{TagOp, TagWr, WcStatus};

const CONTROL_LEN: usize = 16;
const SEGMENT_LEN: usize = 32;
/// In the segment, whose first byte has the operation in its high 4 bits.
const FLAGS: usize = 1;
const INDEX: usize = 2;
const HANDLED: usize = 6;
const TAG: usize = 16;
const MASK: usize = 24;
/// In the flags: a completion is wanted; the count of handled unexpected messages is meant.
const SIGNALED: u8 = 1 << 7;
const TELLS_HANDLED: u8 = 1 << 6;

const NOTHING: u8 = 0;
const APPEND: u8 = 1;
const REMOVE: u8 = 2;

/// A request as it was read.
pub(crate) struct Request {
    queue: SrqPair,
    id: RequestId,
    segment: [u8; SEGMENT_LEN],
    buffer: Vec<u8>,
}

/// A request of a queue pair whose receives are those of `queue`.
pub(crate) fn parse(queue: SrqPair, id: RequestId, entry: &[u8]) -> Result<Request, Malformed> {
    let rest = entry.get(CONTROL_LEN..).ok_or(Malformed::Short)?;
    let (segment, buffer) = rest.split_first_chunk().ok_or(Malformed::Short)?;
    if !queue.back.matches_tags() {
        return Err(Malformed::Opcode(TAG_OPCODE));
    }
    let id = RequestId { srqn: queue.front.number(), ..id };
    Ok(Request { queue, id, segment: *segment, buffer: buffer.to_vec() })
}

impl Request {
    /// Changes the list; the queue's own completion queue tells of it.
    pub(crate) fn perform(self) -> Result<(), WcStatus> {
        let SrqPair { front, back } = &self.queue;
        let segment = &self.segment;
        let index = be16(segment, INDEX);
        let mut given = front.names.lock();
        let own = given.next;
        let op = match segment[0] >> 4 {
            NOTHING => TagOp::Sync,
            APPEND => {
                let id = RequestId { counter: own, opcode: TAG_OPCODE, srqn: self.id.srqn };
                let request = wqe::receive(id, &self.buffer);
                TagOp::Add { request, tag: be64(segment, TAG), mask: be64(segment, MASK) }
            }
            REMOVE => TagOp::Del(*given.handles.get(&index).ok_or(WcStatus::LocQpOpErr)?),
            _ => return Err(WcStatus::LocQpOpErr),
        };
        let handled = segment[FLAGS] & TELLS_HANDLED != 0;
        let posted = back.post_op(TagWr {
            wr_id: self.id.wr_id(),
            op,
            signaled: segment[FLAGS] & SIGNALED != 0,
            handled: handled.then(|| be16(segment, HANDLED).into()),
        });
        if let Some(handle) = posted.map_err(|_| WcStatus::LocQpOpErr)? {
            given.handles.insert(own, handle);
            given.next = index;
        }
        Ok(())
    }
}
