//! Requests that copy memory to memory (PRM "MMO WQE", `struct mlx5_mmo_wqe` of rdma-core's
//! `wqe.h`): no peer hears of them. A queue pair does them only once a command allowed it.
//!
//! Pages must be there: a copy waits for no page fault.

use crate::layout::bits::{be32, be64};
use crate::object::shared::Shared;
use hca::PdId;
use hca::transport::Worked;
use hca::{Access, WcStatus};

/// The opcode of such a request, and the modifier that says copy.
pub(crate) const OPCODE: u8 = 0x2f;
const COPY: u8 = 1;
/// Behind the control segment and one for results, of which a copy has none.
const SOURCE: usize = 32;
const DESTINATION: usize = 48;
const LEN: usize = 64;
/// Longest copy, as a logarithm.
pub(crate) const LOG_MAX: u64 = 20;
/// Bytes that are copied before others get their turn, and parts of keys over other keys after
/// which that is so.
const PART: u64 = 64 << 10;
const PARTS: u64 = 1024;
const PIECE: usize = 4 << 10;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct KeyedAddress {
    lkey: u32,
    addr: u64,
}

/// A copy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Copy {
    source: KeyedAddress,
    destination: KeyedAddress,
    len: u64,
}

/// What an entry describes; `None` if that is no copy that can be done.
pub(crate) fn parse(entry: &[u8]) -> Option<Copy> {
    let segments = entry.get(..LEN)?;
    let place = |at| KeyedAddress { lkey: be32(segments, at + 4), addr: be64(segments, at + 8) };
    let len = be32(segments, SOURCE).into();
    let fits = segments[0] == COPY
        && be32(segments, DESTINATION) == be32(segments, SOURCE)
        && (1..=1 << LOG_MAX).contains(&len);
    fits.then(|| Copy { source: place(SOURCE), destination: place(DESTINATION), len })
}

impl Copy {
    /// Does it for a queue pair in domain `pd`, behind the first `done` bytes, or a part of that.
    pub(crate) fn perform(self, shared: &Shared, pd: PdId, done: u64) -> Result<Worked, WcStatus> {
        let keys = shared.hca.keys();
        let resolve = |place: KeyedAddress, access| {
            let memory = keys.resolve(pd, place.lkey, place.addr, self.len, access);
            memory.map_err(|_| WcStatus::LocProtErr)
        };
        let source = resolve(self.source, Access::empty())?;
        let destination = resolve(self.destination, Access::LOCAL_WRITE)?;
        let (mut piece, parts) = ([0; PIECE], hca::parts_reached());
        let end = self.len.min(done.saturating_add(PART));
        let mut at = done;
        while at < end && hca::parts_reached() - parts < PARTS {
            let here = PIECE.min((end - at) as usize);
            let bytes = &mut piece[..here];
            let copied = source.read(at, bytes).and_then(|()| destination.write(at, bytes));
            copied.map_err(|_| WcStatus::LocProtErr)?;
            at += here as u64;
        }
        let worked = at.saturating_sub(done);
        Ok(if at < self.len { Worked::Part(worked) } else { Worked::All(worked) })
    }
}
