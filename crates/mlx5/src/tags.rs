//! Tag matching: requests that change the matching list of a shared receive queue (`struct mlx5_wqe_tm_seg`), and what its
//! completions say (`app`, `app_op` and `app_info` of `struct mlx5_cqe64`).
//!
//! The driver names an entry of the list by an index. Which index the next entry gets, each request that appends one says for the
//! one after it.

use crate::bits::{be16, be64, put};
use crate::objects::SrqPair;
use crate::request::RequestId;
use crate::wqe::{self, Malformed};
use hca::{Completion, TagOp, TagWr, WcFlags, WcOpcode, WcStatus};
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

/// The opcode of such a request, and what marks the identifiers of tagged buffers.
pub(crate) const OPCODE: u8 = 0x28;

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

/// What the driver calls the entries of a list.
#[derive(Default)]
pub(crate) struct Names(Mutex<Given>);

#[derive(Default)]
struct Given {
    /// Index of the next entry.
    next: u16,
    /// What the HCA calls each, by index; of those that are gone too.
    handles: HashMap<u16, u32>,
}

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
        return Err(Malformed::Opcode(OPCODE));
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
        let mut given = front.names.0.lock().unwrap_or_else(PoisonError::into_inner);
        let own = given.next;
        let op = match segment[0] >> 4 {
            NOTHING => TagOp::Sync,
            APPEND => {
                let id = RequestId { counter: own, opcode: OPCODE, srqn: self.id.srqn };
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

const APP: usize = 0x28;
const APP_OP: usize = 0x29;
const APP_INFO: usize = 0x2a;
const TAG_MATCHING: u8 = 1;
/// Where an entry says whether an operation was done, and how many unexpected messages the queue has delivered.
const SUCCESS: usize = 0;
const DELIVERED: usize = 4;
const DONE: u32 = 1 << 31;
/// Where it says what the message's header did.
const APP_CONTEXT: usize = 4;
const MESSAGE_TAG: usize = 8;

/// `MLX5_CQE_APP_OP_TM_*`.
mod app {
    pub(super) const CONSUMED: u8 = 0x1;
    pub(super) const EXPECTED: u8 = 0x2;
    pub(super) const UNEXPECTED: u8 = 0x3;
    pub(super) const NO_TAG: u8 = 0x4;
    pub(super) const APPEND: u8 = 0x5;
    pub(super) const REMOVE: u8 = 0x6;
    pub(super) const NOTHING: u8 = 0x7;
    pub(super) const WHOLE: u8 = 0xa;
    pub(super) const WHOLE_FOR_SOFTWARE: u8 = 0xb;
    pub(super) const CANCELED: u8 = 0xc;
}

/// What a completion has to do with tag matching.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Role {
    /// Nothing; or a request of the queue that failed, whose entry is that of any receive.
    None,
    /// It is of an operation on the list, or of a buffer that a message took and whose bytes come later: it is no packet's.
    NoPacket,
    /// It is of a message that came.
    Message,
}

/// Writes what a completion says of tag matching into its entry.
pub(crate) fn encode(completion: &Completion, id: RequestId, entry: &mut [u8]) -> Role {
    let role = role(completion, id);
    if role == Role::None {
        return role;
    }
    entry[APP] = TAG_MATCHING;
    entry[APP_OP] = operation(completion, id);
    if is_operation(completion) {
        let done = if completion.status == WcStatus::Success { DONE } else { 0 };
        put(entry, SUCCESS, &done.to_be_bytes());
        put(entry, DELIVERED, &(completion.imm_or_key as u16).to_be_bytes());
    } else if id.opcode == OPCODE {
        put(entry, APP_INFO, &id.counter.to_be_bytes());
        put(entry, APP_CONTEXT, &completion.tm.app_ctx.to_be_bytes());
        put(entry, MESSAGE_TAG, &completion.tm.tag.to_be_bytes());
    }
    role
}

fn is_operation(completion: &Completion) -> bool {
    matches!(completion.opcode, WcOpcode::TmAdd | WcOpcode::TmDel | WcOpcode::TmSync)
}

fn role(completion: &Completion, id: RequestId) -> Role {
    match completion.opcode {
        _ if is_operation(completion) => Role::NoPacket,
        WcOpcode::TmRecv if operation(completion, id) == app::CONSUMED => Role::NoPacket,
        WcOpcode::TmRecv | WcOpcode::TmNoTag if completion.status == WcStatus::Success => {
            Role::Message
        }
        // An entry of a failed receive names a request of the queue, which a tagged buffer is not.
        opcode if opcode as u32 >= WcOpcode::Recv as u32 && id.opcode == OPCODE => Role::Message,
        _ => Role::None,
    }
}

fn operation(completion: &Completion, id: RequestId) -> u8 {
    let tagged = id.opcode == OPCODE;
    let flags = completion.flags & (WcFlags::TM_MATCH | WcFlags::TM_DATA_VALID);
    match (completion.opcode, completion.status) {
        (WcOpcode::TmAdd, _) => app::APPEND,
        (WcOpcode::TmDel, _) => app::REMOVE,
        (WcOpcode::TmSync, _) => app::NOTHING,
        (WcOpcode::TmNoTag, _) => app::NO_TAG,
        _ if !tagged => app::UNEXPECTED,
        (_, WcStatus::Success) if flags == WcFlags::TM_MATCH => app::CONSUMED,
        (_, WcStatus::Success) if flags == WcFlags::TM_DATA_VALID => app::EXPECTED,
        (_, WcStatus::Success) => app::WHOLE,
        (_, WcStatus::TmRndvIncomplete) => app::WHOLE_FOR_SOFTWARE,
        _ => app::CANCELED,
    }
}
