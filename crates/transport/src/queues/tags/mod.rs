//! Tag matching (ibv_post_srq_ops(3), `infiniband/tm_types.h`): which message goes into which
//! tagged buffer.
//!
//! A [`TagList`] belongs to one shared receive queue. Operations on the list and the beginnings of
//! messages go in; where the message goes, what its completion says and what the HCA has to fetch
//! come out. It does no I/O and takes no lock.
//!
//! The rule of phases: a program that posts a tagged buffer has looked through the unexpected
//! messages it knows. If another one has come meanwhile, the new buffer must not take a later
//! message of the same tag before that one. So a buffer posted while the two counts of unexpected
//! messages differ waits until the program has said that it handled them all.

use crate::error::{Error, Result};
use crate::sabotage::{self, Sabotage};
use crate::shelf::queue_of;
use crate::values::{RecvWr, Remote, TmInfo, WcFlags, WcOpcode, WcStatus};
use std::collections::VecDeque;

/// Length of `struct ibv_tmh` in bytes.
const TMH_LEN: usize = 16;
/// Length of `struct ibv_tmh` and `struct ibv_rvh` in bytes.
const RNDV_LEN: usize = 32;
/// Longest rendezvous request that the HCA itself serves, in bytes (`max_rndv_hdr_size`, as
/// mlx5's).
pub const MAX_RNDV_LEN: usize = 64;
/// Unexpected messages that may wait to be reported handled before each completion asks for it (as
/// in mlx5). Counts are compared in 16 bits, as that device does, so they must stay well apart from
/// 2^16.
const MAX_UNREPORTED: u16 = 0x3fff;

// `enum ibv_tmh_op`.
const OP_RNDV: u8 = 1;
const OP_FIN: u8 = 2;
const OP_EAGER: u8 = 3;

/// Size of the matching list and of what changes it (`struct ibv_tm_cap`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TmCap {
    /// Tagged buffers.
    pub max_num_tags: u32,
    /// Outstanding list operations. They take effect when they are posted, so none is ever
    /// outstanding.
    pub max_ops: u32,
}

/// What a list operation does.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum TagOp {
    /// Appends a tagged buffer for messages with `tag == message's tag & mask`. Its `wr_id` is that
    /// of its own completions.
    Add {
        /// The buffer.
        request: RecvWr,
        /// Tag, after masking.
        tag: u64,
        /// Bits of a message's tag that count.
        mask: u64,
    },
    /// Removes the buffer with this handle.
    Del(u32),
    /// Changes nothing.
    Sync,
}

/// A list operation (`struct ibv_ops_wr`).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TagWr {
    /// The program's identifier.
    pub wr_id: u64,
    /// Operation.
    pub op: TagOp,
    /// Raise a completion.
    pub signaled: bool,
    /// Unexpected messages that the program has handled since the queue was created; `None`: as it
    /// said last.
    pub handled: Option<u32>,
}

/// What came of a list operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Applied {
    /// Handle of the buffer added.
    pub handle: Option<u32>,
    /// What completed.
    pub opcode: WcOpcode,
    /// `TmErr` when the buffer to remove is not there: a message has taken it.
    pub status: WcStatus,
    /// Whether the counts differ.
    pub flags: WcFlags,
    /// Unexpected messages delivered, modulo 2^16.
    pub delivered: u16,
}

/// What the completion of a received message says besides its length.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Label {
    /// Outcome if nothing else goes wrong.
    pub status: WcStatus,
    /// Operation.
    pub opcode: WcOpcode,
    /// Flags of tag matching.
    pub flags: WcFlags,
    /// Tag and context from the header.
    pub info: TmInfo,
}

impl Label {
    /// The label of a message that tag matching has nothing to do with.
    pub const PLAIN: Label = Label::of(WcOpcode::Recv, WcFlags::empty());

    const fn of(opcode: WcOpcode, flags: WcFlags) -> Label {
        let info = TmInfo { tag: 0, app_ctx: 0 };
        Label { status: WcStatus::Success, opcode, flags, info }
    }
}

/// What the HCA fetches for a rendezvous, and how it tells the sender.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fetch {
    /// Where the sender's buffer is.
    pub from: Remote,
    /// Length in bytes.
    pub len: u32,
    /// The message that ends the rendezvous.
    pub fin: [u8; TMH_LEN],
}

/// Where a message goes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Accepted {
    /// The buffer.
    pub request: RecvWr,
    /// Bytes at the beginning of the message that do not go there.
    pub skip: usize,
    /// What its completion says.
    pub label: Label,
    /// The message only announces what the buffer is for.
    pub fetch: Option<Fetch>,
}

struct Tagged {
    handle: u32,
    tag: u64,
    mask: u64,
    request: RecvWr,
    /// Posted while the counts differed, which they still do.
    waits: bool,
}

/// A matching list: tagged buffers in the order of their posting, and the two counts.
pub struct TagList {
    entries: VecDeque<Tagged>,
    cap: TmCap,
    next_handle: u32,
    /// Unexpected messages delivered, and of these reported handled; both modulo 2^16.
    delivered: u16,
    handled: u16,
}

/// The beginning of a message.
#[derive(Clone, Copy)]
struct Header {
    op: u8,
    info: TmInfo,
}

impl Header {
    /// `None`: too short to have one.
    fn parse(first: &[u8]) -> Option<Header> {
        let ([op, _, _, _], rest) = first.split_first_chunk()?;
        let (app_ctx, rest) = rest.split_first_chunk()?;
        let (tag, _) = rest.split_first_chunk()?;
        let (app_ctx, tag) = (u32::from_be_bytes(*app_ctx), u64::from_be_bytes(*tag));
        Some(Header { op: *op, info: TmInfo { tag, app_ctx } })
    }

    fn fin(&self) -> [u8; TMH_LEN] {
        let mut fin = [0; TMH_LEN];
        fin[0] = OP_FIN;
        fin[4..8].copy_from_slice(&self.info.app_ctx.to_be_bytes());
        fin[8..].copy_from_slice(&self.info.tag.to_be_bytes());
        fin
    }

    /// What a rendezvous request asks for; `None` if it is cut short.
    fn fetch(&self, message: &[u8]) -> Option<Fetch> {
        let (_, asked) = message.split_at_checked(TMH_LEN)?;
        let (addr, asked) = asked.split_first_chunk()?;
        let (rkey, asked) = asked.split_first_chunk()?;
        let (len, _) = asked.split_first_chunk()?;
        let from = Remote { addr: u64::from_be_bytes(*addr), rkey: u32::from_be_bytes(*rkey) };
        Some(Fetch { from, len: u32::from_be_bytes(*len), fin: self.fin() })
    }
}

impl TagList {
    /// An empty list, with room for all the buffers that it may have.
    ///
    /// # Errors
    /// [`Error::NoMemory`] when there is no memory for them.
    pub fn new(cap: TmCap) -> Result<TagList> {
        let entries = queue_of(cap.max_num_tags as usize)?;
        Ok(TagList { entries, cap, next_handle: 0, delivered: 0, handled: 0 })
    }

    /// Sizes granted.
    pub fn cap(&self) -> TmCap {
        self.cap
    }

    /// Does `wr` at once.
    ///
    /// # Errors
    /// [`Error::NoMemory`] when the list is full; nothing has changed then.
    pub fn apply(&mut self, wr: TagWr) -> Result<Applied> {
        if matches!(wr.op, TagOp::Add { .. })
            && self.entries.len() >= self.cap.max_num_tags as usize
        {
            return Err(Error::NoMemory("the tag matching list is full"));
        }
        if let Some(handled) = wr.handled {
            self.handled = handled as u16;
            self.release();
        }
        let (opcode, status, handle) = match wr.op {
            TagOp::Add { request, tag, mask } => {
                let handle = self.append(request, tag, mask);
                (WcOpcode::TmAdd, WcStatus::Success, Some(handle))
            }
            TagOp::Del(handle) => {
                let found = self.entries.iter().position(|entry| entry.handle == handle);
                let removed = found.and_then(|at| self.entries.remove(at)).is_some();
                let status = if removed { WcStatus::Success } else { WcStatus::TmErr };
                (WcOpcode::TmDel, status, None)
            }
            TagOp::Sync => (WcOpcode::TmSync, WcStatus::Success, None),
        };
        let flags = if self.in_step() { WcFlags::empty() } else { WcFlags::TM_SYNC_REQ };
        Ok(Applied { handle, opcode, status, flags, delivered: self.delivered })
    }

    fn append(&mut self, request: RecvWr, tag: u64, mask: u64) -> u32 {
        // Handles come round after 2^32 buffers, and the list is shorter.
        let handle = loop {
            let handle = self.next_handle;
            self.next_handle = handle.wrapping_add(1);
            if self.entries.iter().all(|entry| entry.handle != handle) {
                break handle;
            }
        };
        let waits = !self.in_step() && !sabotage::on(Sabotage::IgnoreTagPhase);
        self.entries.push_back(Tagged { handle, tag, mask, request, waits });
        handle
    }

    fn in_step(&self) -> bool {
        self.delivered == self.handled
    }

    /// Unexpected messages delivered, and of these reported handled; both modulo 2^16.
    pub fn counts(&self) -> (u16, u16) {
        (self.delivered, self.handled)
    }

    /// Buffers take messages once the counts are equal again.
    fn release(&mut self) {
        if self.in_step() {
            self.entries.iter_mut().for_each(|entry| entry.waits = false);
        }
    }

    /// Where the message that begins with the packet payload `first` goes. `whole`: that packet is
    /// all of it. `fetches`: its queue pair can READ for a rendezvous. `take` gives the next
    /// ordinary request.
    ///
    /// `None`: there is no buffer for it, and nothing has changed.
    pub fn accept(
        &mut self,
        first: &[u8],
        whole: bool,
        fetches: bool,
        take: impl FnOnce() -> Option<RecvWr>,
    ) -> Option<Accepted> {
        let ordinary = |request, label| Accepted { request, skip: 0, label, fetch: None };
        let header = Header::parse(first).filter(|header| matches!(header.op, OP_EAGER | OP_RNDV));
        let Some(header) = header else {
            let label = Label::of(WcOpcode::TmNoTag, WcFlags::empty());
            return take().map(|request| ordinary(request, label));
        };
        if let Some(request) = self.matching(header.info.tag) {
            return Some(expected(header, request, first, whole, fetches));
        }
        let request = take()?;
        self.delivered = self.delivered.wrapping_add(1);
        let late = self.delivered.wrapping_sub(self.handled) > MAX_UNREPORTED;
        let flags = if late { WcFlags::TM_SYNC_REQ } else { WcFlags::empty() };
        Some(ordinary(request, Label::of(WcOpcode::TmRecv, flags)))
    }

    /// Takes the oldest buffer for `tag`.
    fn matching(&mut self, tag: u64) -> Option<RecvWr> {
        let fits = |entry: &Tagged| !entry.waits && tag & entry.mask == entry.tag;
        let found = self.entries.iter().position(fits)?;
        Some(self.entries.remove(found)?.request)
    }
}

/// A message that has met a tagged buffer.
fn expected(header: Header, request: RecvWr, first: &[u8], whole: bool, fetches: bool) -> Accepted {
    let arrived = WcFlags::TM_MATCH | WcFlags::TM_DATA_VALID;
    let label = |flags| Label { info: header.info, ..Label::of(WcOpcode::TmRecv, flags) };
    if header.op == OP_EAGER {
        return Accepted { request, skip: TMH_LEN, label: label(arrived), fetch: None };
    }
    let served = fetches && whole && (RNDV_LEN..=MAX_RNDV_LEN).contains(&first.len());
    match header.fetch(first).filter(|_| served) {
        Some(fetch) => {
            let label = label(WcFlags::TM_MATCH);
            Accepted { request, skip: first.len(), label, fetch: Some(fetch) }
        }
        // The program has to go on itself: it finds the request in the buffer, as it came.
        None => {
            let label = Label { status: WcStatus::TmRndvIncomplete, ..label(arrived) };
            Accepted { request, skip: 0, label, fetch: None }
        }
    }
}

#[cfg(test)]
mod tests;
