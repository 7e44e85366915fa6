//! What completions of tag matching say (`app`, `app_op` and `app_info` of `struct mlx5_cqe64`).

use crate::layout::bits::put;
use crate::layout::request::RequestId;
use hca::{Completion, WcFlags, WcOpcode, WcStatus};
/// The opcode of a request that changes a matching list, and what marks the identifiers of tagged
/// buffers.
pub(crate) const TAG_OPCODE: u8 = 0x28;

const APP: usize = 0x28;
const APP_OP: usize = 0x29;
const APP_INFO: usize = 0x2a;
const TAG_MATCHING: u8 = 1;
/// Where an entry says whether an operation was done, and how many unexpected messages the queue
/// has delivered.
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
    /// It is of an operation on the list, or of a buffer that a message took and whose bytes come
    /// later: it is no packet's.
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
    } else if id.opcode == TAG_OPCODE {
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
        opcode if opcode as u32 >= WcOpcode::Recv as u32 && id.opcode == TAG_OPCODE => {
            Role::Message
        }
        _ => Role::None,
    }
}

fn operation(completion: &Completion, id: RequestId) -> u8 {
    let tagged = id.opcode == TAG_OPCODE;
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
