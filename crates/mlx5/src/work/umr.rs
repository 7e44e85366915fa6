//! Requests that change memory keys (PRM "UMR WQE"; `struct mlx5_wqe_umr_ctrl_seg`,
//! `struct mlx5_mkey_seg`): fast registration, local invalidation and binding of memory windows are
//! all of them.
//!
//! Behind the control segment come 48 bytes that say what changes, the new context of 64, and the
//! new part of the list, in the request itself or in memory; behind a list in the request may stand
//! a description of block signatures.

use crate::keys::changer::Changer;
use crate::keys::psv;
use crate::layout::bits::{be16, be32, be64};
use crate::layout::bsf;
use crate::layout::head::Status;
use crate::layout::mkc::CONTEXT_LEN;
use crate::layout::request::RequestId;
use crate::layout::tag_cqe::TAG_OPCODE;
use crate::layout::wqe::{self, Control};
use crate::machine::report::Act;
use crate::machine::sparse;
use crate::object::qp::{Entry, Queues, Receives};
use crate::object::shared::Shared;
use crate::work::key_change::Change;
use crate::work::{memory_copy, tags};
use hca::transport::{CustomWork, Worked};
use hca::{Access, WcStatus};
use std::sync::{Arc, Weak};

/// The opcode of such a request.
pub(crate) const OPCODE: u8 = 0x25;

const CONTROL_LEN: usize = 48;
const HEAD_LEN: usize = 16 + CONTROL_LEN + CONTEXT_LEN;
/// In the flags: the list follows in the request.
const INLINE: u8 = 1 << 7;
/// Fail if the key is free.
const CHECK_FREE: u8 = 2 << 5;
/// Fail if it is not.
const CHECK_NOT_FREE: u8 = 1 << 5;
/// The list begins at an offset.
const OFFSET: u8 = 1 << 4;
const OCTOWORD: u64 = 16;
/// Bytes of a list in memory that are read at once, and the parts of keys over other keys that it
/// may lie in.
const PIECE: usize = 4 << 10;
const MAX_PARTS: u64 = 1 << 16;
/// How much longer it takes to store a list's bytes than to copy them.
const LISTED: u64 = 4;

/// A request as it was read.
struct Request {
    /// The key that it changes; its index counts.
    mkey: u32,
    change: Change,
    /// Where the list is, if not in the request: key, address and bytes.
    list: Option<(u32, u64, u32)>,
}

/// Why an entry is no such request.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
enum Malformed {
    /// A segment is cut off.
    #[error("the request is too short")]
    Short,
    /// The description of block signatures.
    #[error("{0}")]
    Signatures(#[from] bsf::Unknown),
}

use Malformed::Short;

fn parse(entry: &[u8]) -> Result<Request, Malformed> {
    let control = Control::parse(entry);
    let umr = entry.get(16..16 + CONTROL_LEN).ok_or(Short)?;
    let context = entry.get(16 + CONTROL_LEN..HEAD_LEN).ok_or(Short)?;
    let context = context.try_into().map_err(|_| Short)?;
    let flags = umr[0];
    let octowords = u64::from(be16(umr, 4));
    let offset = match flags & OFFSET {
        0 => 0,
        _ => (u64::from(be32(umr, 16)) << 16 | u64::from(be16(umr, 6))) * OCTOWORD,
    };
    let rest = &entry[HEAD_LEN..];
    let (written, list) = if octowords == 0 {
        (None, None)
    } else if flags & INLINE != 0 {
        let len = (octowords * OCTOWORD) as usize;
        // Drivers round the count up further than the entry goes.
        (Some((offset, rest[..len.min(rest.len())].to_vec())), None)
    } else {
        let segment = rest.get(..16).ok_or(Short)?;
        let len = be32(segment, 0).min((octowords * OCTOWORD) as u32);
        (Some((offset, Vec::new())), Some((be32(segment, 4), be64(segment, 8), len)))
    };
    let format = match flags & (OFFSET | INLINE) {
        INLINE if be16(umr, 6) != 0 => {
            // It stands behind the list.
            let at = octowords as usize * OCTOWORD as usize;
            let units = usize::from(be16(umr, 6));
            let bytes = rest.get(at..at + units * OCTOWORD as usize).ok_or(Short)?;
            Some(bsf::parse(bytes.try_into().map_err(|_| bsf::Unknown)?)?)
        }
        _ => None,
    };
    let free = match flags & (CHECK_FREE | CHECK_NOT_FREE) {
        CHECK_FREE => Some(false),
        CHECK_NOT_FREE => Some(true),
        _ => None,
    };
    let change = Change { mask: be64(umr, 8), context, list: written, format, free };
    Ok(Request { mkey: control.immediate(), change, list })
}

impl Request {
    /// What it takes, as bytes that are copied.
    fn cost(&self) -> u64 {
        let given = self.change.list.as_ref().map_or(0, |(_, bytes)| bytes.len() as u64);
        given + self.list.map_or(0, |(_, _, len)| u64::from(len) * LISTED)
    }

    fn perform(mut self, shared: &Shared, changer: Changer) -> Result<(), Status> {
        let object = shared.objects.mkeys.get(self.mkey >> 8)?;
        if let (Some((key, addr, len)), Some((_, bytes))) = (self.list, &mut self.change.list) {
            let mut list = sparse::room(len as usize)?;
            list.resize(len as usize, 0);
            let keys = shared.hca.keys();
            let pd = changer
                .pd
                .or_else(|| keys.get(key).map(|mkey| mkey.pd))
                .ok_or(Status::BadResource)?;
            let memory = keys.resolve(pd, key, addr, len.into(), Access::empty());
            let memory = memory.map_err(|_| Status::BadParameter)?;
            let parts = hca::parts_reached();
            for (at, piece) in (0..).step_by(PIECE).zip(list.chunks_mut(PIECE)) {
                memory.read(at, piece).map_err(|_| Status::BadParameter)?;
                if hca::parts_reached() - parts > MAX_PARTS {
                    return Err(Status::Limits);
                }
            }
            *bytes = list;
        }
        object.change(shared, changer, &self.change)
    }

    /// As [`perform`](Request::perform); a refusal is reported.
    fn try_perform(self, shared: &Shared, changer: Changer) -> Result<(), WcStatus> {
        let mkey = self.mkey;
        self.perform(shared, changer).map_err(|status| {
            shared.reports.tell(Act::KeyChange(status), format_args!("key {mkey:#x}"));
            WcStatus::MwBindErr
        })
    }
}

/// What a queue pair does in its turn besides sending.
enum Work {
    Nothing,
    /// Changes a key.
    Key(Box<Request>),
    /// Sets the PSV with this number.
    Psv(u32),
    /// Changes a matching list.
    Tags(Box<tags::Request>),
    /// Copies memory.
    Copy(memory_copy::Copy),
}

/// The requests of one queue pair that are no sends. The HCA knows them by what they are called in
/// the queue, and each is read there when its turn comes, as hardware does: so nothing is kept of
/// those that are flushed, taken back or refused.
pub(crate) struct OwnWork {
    shared: Weak<Shared>,
    queues: Arc<Queues>,
    changer: Changer,
}

impl OwnWork {
    pub(crate) fn new(shared: &Arc<Shared>, queues: Arc<Queues>, changer: Changer) -> OwnWork {
        OwnWork { shared: Arc::downgrade(shared), queues, changer }
    }
}

/// Does what an entry asks for behind the first `done` bytes, or a part of it. A refusal is
/// told of.
pub(crate) fn perform_now(
    shared: &Shared,
    queues: &Queues,
    changer: Changer,
    entry: &Entry,
    done: u64,
) -> Result<Worked, WcStatus> {
    let all = |cost| move |()| Worked::All(cost);
    match parse_work(shared, queues, entry).map_err(|_| WcStatus::LocQpOpErr)? {
        Work::Nothing => Ok(Worked::All(0)),
        Work::Key(request) => {
            let cost = request.cost();
            request.try_perform(shared, changer).map(all(cost))
        }
        Work::Copy(copy) => copy.perform(shared, changer.pd.ok_or(WcStatus::LocQpOpErr)?, done),
        Work::Psv(number) => {
            let set = psv::check(&shared.objects.psvs, number, changer.pd).map_err(|status| {
                shared.reports.tell(Act::KeyChange(status), format_args!("PSV {number:#x}"));
                WcStatus::MwBindErr
            });
            set.map(all(0))
        }
        Work::Tags(request) => request.perform().map(all(0)),
    }
}

fn parse_work(shared: &Shared, queues: &Queues, entry: &Entry) -> Result<Work, Malformed> {
    match entry.id.opcode {
        wqe::NOP => Ok(Work::Nothing),
        psv::SET => Ok(Work::Psv(psv::named(&entry.bytes).ok_or(Short)?)),
        memory_copy::OPCODE => Ok(Work::Copy(memory_copy::parse(&entry.bytes).ok_or(Short)?)),
        TAG_OPCODE => {
            // The list of the queue that the pair's receives are taken from.
            let Receives::Shared(number) = queues.receives else { return Err(Short) };
            let queue = shared.objects.srqs.get(number).map_err(|_| Short)?;
            let request = tags::parse(queue, entry.id, &entry.bytes).map_err(|_| Short)?;
            Ok(Work::Tags(Box::new(request)))
        }
        _ => Ok(Work::Key(Box::new(parse(&entry.bytes)?))),
    }
}

impl CustomWork for OwnWork {
    fn perform(&self, token: u64, done: u64) -> Result<Worked, WcStatus> {
        let id = RequestId::from_wr_id(token);
        let shared = self.shared.upgrade().ok_or(WcStatus::LocQpOpErr)?;
        // A driver that overwrites what it posted has posted something else than it rang for.
        let entry = self.queues.read(id.counter).filter(|entry| entry.id == id);
        let entry = entry.ok_or(WcStatus::LocQpOpErr);
        entry
            .and_then(|entry| perform_now(&shared, &self.queues, self.changer, &entry, done))
            .inspect_err(|_| {
                shared
                    .reports
                    .tell(Act::Request(id.opcode), format_args!("request {:#x}", id.counter));
            })
    }
}
