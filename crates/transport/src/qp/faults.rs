//! Page faults: memory behind a valid key is not there now, and whoever keeps it will say when it
//! is.
//!
//! On-demand memory of this process is brought in within the access ([`umem::Umem::read`]). Memory
//! that a front end keeps elsewhere answers [`AccessError::NotPresent`] instead, and the side of
//! the queue pair that met it waits: requests stay in their queue, a peer's request or the rest of
//! a READ is answered "receiver not ready". Nothing waits inside an access, and whatever was begun
//! is begun again, so a packet may be placed twice but nothing takes effect twice.
//! [`Transport::resume`](super::Transport::resume) goes on, or fails what waited.
//!
//! A buffer that is being moved ([`AccessError::Moving`]) is such memory too, but nobody says when
//! it is there again: the access looks again by itself.
//!
//! A list of keys may change while an access is on its way through it: whoever keeps the memory has
//! given up a key below, and has not listed another in its place yet. What he refuses then
//! ([`Verdict::RefusedBelow`](super::Verdict::RefusedBelow)) is looked up again from the key that
//! the request names, a little later each time, before it fails.

use super::cx::Cx;
use super::page_fault::{FaultSide, FaultedWork, Missing, PageFault};
use crate::executor::Landing;
use crate::requests::wqe::Wqe;
use crate::values::Remote;
use smallvec::SmallVec;
use std::time::{Duration, Instant};
use umem::AccessError;
use wire::Psn;

/// How often in a row memory below a list of keys may be refused. Each time the guest, or whoever
/// keeps it, has run for a while: on a busy host that says more than any time.
const REFUSALS: u32 = 11;
/// How long the first refusal is waited after; the next ones twice as long each, 2047 ms in all.
///
/// That is how late a true error below a list is. It is not shorter because nothing tells it from a
/// driver that has the new key still to list: that is done in a work queue of a guest that may be
/// emulated on a busy host, and an error that comes too soon ends a queue pair that did nothing
/// wrong, whereas a late one ends only the queue pair that earned it. No thread and no other queue
/// pair waits meanwhile; a peer hears "receiver not ready".
const FIRST_LOOK: Duration = Duration::from_millis(1);
/// How long a move is waited for at a time. Its exporter knows who may
/// move a buffer for how long, and fails accesses after that.
const NEXT_LOOK: Duration = Duration::from_millis(1);

/// The part of a [`PageFault`] that the side which meets it knows.
pub(crate) struct Met {
    pub(crate) work: FaultedWork,
    pub(crate) write: bool,
    pub(crate) done: u32,
    pub(crate) packet: usize,
    pub(crate) ahead: u64,
    /// The send request's first PSN, or that of the answer.
    pub(crate) first: Psn,
    /// The peer may have had the answer long ago.
    pub(crate) repeated: bool,
}

impl Met {
    /// The next packet of a message meets it, which fills a receive request.
    pub(crate) fn landing(landing: &Landing, packet: usize) -> Met {
        let ahead = landing.room().saturating_sub(packet as u64);
        let (work, done) = (FaultedWork::Receive(landing.wr_id()), landing.filled() as u32);
        Met { work, write: true, done, packet, ahead, first: Psn::default(), repeated: false }
    }

    /// A datagram meets it.
    pub(crate) fn datagram(landing: &Landing, parts: &[&[u8]]) -> Met {
        let work = FaultedWork::Receive(landing.wr_id());
        let packet = parts.iter().map(|part| part.len()).sum();
        Met { work, write: true, done: 0, packet, ahead: 0, first: Psn::default(), repeated: false }
    }

    /// A send request meets it after `done` bytes: its own payload, or an answer that lands
    /// (`write`).
    pub(crate) fn sending(wqe: &Wqe, done: u32, packet: usize, write: bool) -> Met {
        let work = FaultedWork::Send(wqe.wr.wr_id);
        let ahead = u64::from(wqe.length.saturating_sub(done)).saturating_sub(packet as u64);
        Met { work, write, done, packet, ahead, first: wqe.first, repeated: false }
    }

    /// A peer's operation on `len` bytes meets it.
    pub(crate) fn remote(remote: Remote, len: u32, done: u32, packet: usize) -> Met {
        let work = FaultedWork::Remote(remote, len);
        let ahead = u64::from(len.saturating_sub(done)).saturating_sub(packet as u64);
        Met { work, write: true, done, packet, ahead, first: Psn::default(), repeated: false }
    }
}

/// A fault that nobody has served yet.
pub(crate) struct Open {
    id: u64,
    /// It was refused, or waits for a move, and is over then.
    until: Option<Instant>,
    pub(crate) error: AccessError,
    pub(crate) work: FaultedWork,
    pub(crate) first: Psn,
    pub(crate) repeated: bool,
}

/// Refusals in a row, and of which key's memory.
#[derive(Clone, Copy, Default)]
struct Refusals {
    key: u32,
    count: u32,
}

/// The faults of one queue pair.
#[derive(Default)]
pub(crate) struct Faults {
    ids: u64,
    /// At most one of each side. Most queue pairs never have any, and few more than one.
    open: SmallVec<[(FaultSide, Open); 1]>,
    refusals: [Refusals; 4],
}

impl Faults {
    /// Whether no side waits.
    pub(crate) fn are_none(&self) -> bool {
        self.open.is_empty()
    }

    pub(crate) fn is_open(&self, side: FaultSide) -> bool {
        self.open.iter().any(|(of, _)| *of == side)
    }

    /// Nobody waits any more; what was open is never served.
    pub(crate) fn clear(&mut self) {
        self.open.clear();
        self.refusals = Default::default();
    }

    /// When what was refused is looked up again.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.open.iter().filter_map(|(_, open)| open.until).min()
    }

    /// Ends the waits that are over.
    pub(crate) fn look_again(&mut self, now: Instant) {
        self.open.retain(|(_, open)| open.until.is_none_or(|until| until > now));
    }

    /// Fault `id` was refused below a list: it waits a little longer, unless that happened too
    /// often in a row.
    pub(crate) fn refused_below(&mut self, id: u64, now: Instant) -> bool {
        let Some((side, open)) = self.open.iter_mut().find(|(_, open)| open.id == id) else {
            return false;
        };
        let AccessError::NotPresent { key, .. } = open.error else { return false };
        let refusals = &mut self.refusals[*side as usize];
        if refusals.key != key {
            *refusals = Refusals { key, count: 0 };
        }
        let again = refusals.count < REFUSALS;
        if again {
            open.until = Some(now + FIRST_LOOK * (1 << refusals.count));
            refusals.count += 1;
        }
        again
    }

    /// Whether `side` waits for `error` to be mended: it is a page fault, and somebody took it.
    pub(crate) fn waits(
        &mut self,
        side: FaultSide,
        error: AccessError,
        met: Met,
        cx: &mut Cx<'_>,
    ) -> bool {
        let (missing, until) = match error {
            AccessError::NotPresent { key, len, addr, below } => {
                (Some(Missing { key, addr, len, below }), None)
            }
            AccessError::Moving => (None, Some(cx.now + NEXT_LOOK)),
            _ => return false,
        };
        if self.is_open(side) {
            return true;
        }
        if self.open.try_reserve(1).is_err() {
            return false;
        }
        self.ids += 1;
        let id = self.ids;
        let Met { work, write, done, packet, ahead, first, repeated } = met;
        // It is open before anybody hears of it: the answer may come at once.
        self.open.push((side, Open { id, until, error, work, first, repeated }));
        let Some(missing) = missing else { return true };
        let taken = cx.sink.page_fault(PageFault {
            id,
            side,
            missing,
            write,
            work,
            done,
            packet: u32::try_from(packet).unwrap_or(u32::MAX),
            ahead: u32::try_from(ahead).unwrap_or(u32::MAX),
        });
        if !taken {
            self.open.retain(|(_, open)| open.id != id);
        }
        taken
    }

    pub(crate) fn close(&mut self, id: u64) -> Option<(FaultSide, Open)> {
        let at = self.open.iter().position(|(_, open)| open.id == id)?;
        let (side, open) = self.open.swap_remove(at);
        self.refusals[side as usize] = Refusals::default();
        Some((side, open))
    }
}
