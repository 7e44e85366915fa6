//! Requests that change memory keys (PRM "UMR WQE"; `struct mlx5_wqe_umr_ctrl_seg`, `struct mlx5_mkey_seg`): fast registration,
//! local invalidation and binding of memory windows are all of them.
//!
//! Behind the control segment come 48 bytes that say what changes, the new context of 64, and the new part of the list, in the
//! request itself or in memory; behind a list in the request may stand a description of block signatures.

use crate::bits::{be16, be32, be64};
use crate::bsf;
use crate::function::Shared;
use crate::memory_copy;
use crate::mkey::{CONTEXT_LEN, Change};
use crate::opcode::Status;
use crate::psv;
use crate::report::Act;
use crate::tags;
use crate::wqe::Control;
use hca::key::PdId;
use hca::transport::CustomWork;
use hca::{Access, WcStatus};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

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

/// A request as it was read.
pub(crate) struct Request {
    /// The key that it changes; its index counts.
    mkey: u32,
    change: Change,
    /// Where the list is, if not in the request: key, address and bytes.
    list: Option<(u32, u64, u32)>,
}

/// Why an entry is no such request.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub(crate) enum Malformed {
    /// A segment is cut off.
    #[error("the request is too short")]
    Short,
    /// The description of block signatures.
    #[error("{0}")]
    Signatures(#[from] bsf::Unknown),
}

use Malformed::Short;

pub(crate) fn parse(entry: &[u8]) -> Result<Request, Malformed> {
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
    /// Does it on behalf of a queue pair in domain `pd`; `None` for one that is in no domain.
    fn perform(mut self, shared: &Shared, pd: Option<PdId>) -> Result<(), Status> {
        let object = shared.objects.mkeys.get(self.mkey >> 8)?;
        if let (Some((key, addr, len)), Some((_, bytes))) = (self.list, &mut self.change.list) {
            let mut list = vec![0; len as usize];
            let keys = shared.hca.keys();
            let pd = pd.or_else(|| keys.get(key).map(|mkey| mkey.pd)).ok_or(Status::BadResource)?;
            keys.resolve(pd, key, addr, len.into(), Access::empty())
                .ok()
                .and_then(|memory| memory.read(0, &mut list).ok())
                .ok_or(Status::BadParameter)?;
            *bytes = list;
        }
        object.change(shared, pd, &self.change)
    }

    /// As [`perform`](Request::perform); a refusal is told of.
    fn try_perform(self, shared: &Shared, pd: Option<PdId>) -> Result<(), WcStatus> {
        let mkey = self.mkey;
        self.perform(shared, pd).map_err(|status| {
            shared.reports.tell(Act::KeyChange(status), format_args!("key {mkey:#x}"));
            WcStatus::MwBindErr
        })
    }
}

/// What a queue pair does in its turn besides sending.
pub(crate) enum Work {
    /// Changes a key.
    Key(Box<Request>),
    /// Sets the PSV with this number.
    Psv(u32),
    /// Changes a matching list.
    Tags(Box<tags::Request>),
    /// Copies memory.
    Copy(memory_copy::Copy),
}

impl Work {
    /// What an entry of such an opcode asks for.
    pub(crate) fn parse(opcode: u8, entry: &[u8]) -> Result<Work, Malformed> {
        match opcode {
            psv::SET => Ok(Work::Psv(psv::named(entry).ok_or(Short)?)),
            memory_copy::OPCODE => Ok(Work::Copy(memory_copy::parse(entry).ok_or(Short)?)),
            _ => Ok(Work::Key(Box::new(parse(entry)?))),
        }
    }

    /// Does it on behalf of a queue pair in domain `pd`; `None` for one that is in no domain. A refusal is told of.
    pub(crate) fn perform(self, shared: &Shared, pd: Option<PdId>) -> Result<(), WcStatus> {
        match self {
            Work::Key(request) => request.try_perform(shared, pd),
            Work::Copy(copy) => copy.perform(shared, pd.ok_or(WcStatus::LocQpOpErr)?),
            Work::Psv(number) => psv::check(shared, number, pd).map_err(|status| {
                shared.reports.tell(Act::KeyChange(status), format_args!("PSV {number:#x}"));
                WcStatus::MwBindErr
            }),
            Work::Tags(request) => request.perform(),
        }
    }
}

/// Token of a request that does nothing.
pub(crate) const NOTHING: u64 = 0;

/// Requests of one queue pair that wait for their turn among its sends.
pub(crate) struct Waiting {
    shared: Weak<Shared>,
    /// By token.
    requests: Mutex<(u64, HashMap<u64, Work>)>,
    /// Known once the queue pair is made.
    pd: PdId,
}

impl Waiting {
    pub(crate) fn new(shared: &Arc<Shared>, pd: PdId) -> Waiting {
        Waiting { shared: Arc::downgrade(shared), requests: Mutex::default(), pd }
    }

    /// Files a request; gives its token.
    pub(crate) fn add(&self, request: Work) -> u64 {
        let mut requests = self.requests.lock().unwrap_or_else(PoisonError::into_inner);
        requests.0 += 1;
        let token = requests.0;
        requests.1.insert(token, request);
        token
    }

    /// Forgets one that was taken back.
    pub(crate) fn forget(&self, token: u64) {
        self.requests.lock().unwrap_or_else(PoisonError::into_inner).1.remove(&token);
    }

    /// Forgets all of them (RESET, or the error state: they are flushed).
    pub(crate) fn clear(&self) {
        self.requests.lock().unwrap_or_else(PoisonError::into_inner).1.clear();
    }
}

impl CustomWork for Waiting {
    fn perform(&self, token: u64) -> Result<(), WcStatus> {
        if token == NOTHING {
            return Ok(());
        }
        let mut requests = self.requests.lock().unwrap_or_else(PoisonError::into_inner);
        let request = requests.1.remove(&token).ok_or(WcStatus::LocQpOpErr)?;
        drop(requests);
        let shared = self.shared.upgrade().ok_or(WcStatus::LocQpOpErr)?;
        request.perform(&shared, Some(self.pd))
    }
}
