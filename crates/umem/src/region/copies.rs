//! Copies and atomic operations through a registration. An access that finds no page on demand has
//! it brought in and tries again (`ib_umem_odp_map_dma_and_lock`).

use crate::memory::space::{AccessError, Segment};
use crate::region::access::Access;
use crate::region::backing::Backing;
use crate::region::umem::Umem;
use crate::revoke::gate::Gate;
use mm::guard::fold::Fold;
use mm::{AtomicOp, Mirror, PagingCounts, PagingWatcher, Prefetch};
use std::ops::Range;
use std::sync::Arc;

/// Times that an access may find its pages taken away again before it comes again later.
const TRIES: u32 = 8;

impl Umem {
    /// Whether pages are brought in as they are used.
    pub fn is_on_demand(&self) -> bool {
        self.backing.mirror().is_some()
    }

    /// What happened to the pages of an on-demand registration.
    pub fn paging(&self) -> Option<PagingCounts> {
        self.backing.mirror().map(|mirror| mirror.counts())
    }

    /// Has `watcher` hear of what happens to the pages of an on-demand registration; one at most.
    /// Returns whether it was taken.
    pub fn watch_paging(&self, watcher: Arc<dyn PagingWatcher>) -> bool {
        self.backing.mirror().is_some_and(|mirror| mirror.watch(watcher))
    }

    /// Brings in pages of an on-demand registration ahead of their use; nothing is to be done for
    /// any other. An empty range is good anywhere inside.
    ///
    /// # Errors
    /// [`AccessError::OutOfRange`]; [`AccessError::Unmapped`] where there is no page for this
    /// access, except with [`Prefetch::NoFault`].
    pub fn prefetch(&self, offset: u64, len: u64, how: Prefetch) -> Result<(), AccessError> {
        let end = offset.checked_add(len).ok_or(AccessError::OutOfRange)?;
        if end > self.len {
            return Err(AccessError::OutOfRange);
        }
        match (self.backing.mirror(), self.mapped(offset, len)) {
            (Some(mirror), Some(range)) if len > 0 => {
                mirror.prefetch(&range, how).map_err(|_| AccessError::Unmapped)
            }
            _ => Ok(()),
        }
    }

    /// The addresses of bytes of an on-demand registration.
    fn mapped(&self, offset: u64, len: u64) -> Option<Range<u64>> {
        self.translations.first()?.as_ref()?.mapped(offset, len)
    }

    /// Whether an access could be served without waiting for a change of mappings, or a move of
    /// pages, that is in progress. Only on-demand registrations ever are not; an access that fails
    /// is served.
    pub fn is_ready(&self, offset: u64, len: usize, write: bool) -> bool {
        let Some(mirror) = self.backing.mirror() else { return true };
        match self.mapped(offset, len as u64) {
            Some(range) if len > 0 => mirror.is_ready(&range, write),
            _ => true,
        }
    }

    /// Copies out from `offset`. `ahead` bytes after it belong to the same operation.
    ///
    /// # Errors
    /// The errors of [`Umem::enter`] and [`Access::read`].
    #[inline]
    pub fn read(&self, offset: u64, dst: &mut [u8], ahead: u64) -> Result<(), AccessError> {
        let len = dst.len();
        if let Some((segment, addr)) = self.simple(offset, len) {
            let _inside = self.go_in()?;
            segment.space.read(addr, dst)?;
            segment.route.count_read(len as u64);
            return Ok(());
        }
        self.reach(Reach { offset, len, ahead, write: false }, |access| access.read(offset, dst))
    }

    /// As [`Umem::read`]; folds the bytes into `fold` on the way where it can.
    #[inline]
    pub fn read_folding(
        &self,
        offset: u64,
        dst: &mut [u8],
        fold: &mut Fold,
        ahead: u64,
    ) -> Result<(), AccessError> {
        let len = dst.len();
        let mut first = true;
        self.reach(Reach { offset, len, ahead, write: false }, |access| {
            if !std::mem::take(&mut first) {
                // a copy that broke off has folded what it had copied
                *fold = Fold::off();
            }
            access.read_folding(offset, dst, fold)
        })
    }

    /// Copies in at `offset`, in ascending order. `ahead` bytes after it belong to the same
    /// operation.
    ///
    /// # Errors
    /// The errors of [`Umem::enter`] and [`Access::write`].
    #[inline]
    pub fn write(&self, offset: u64, src: &[u8], ahead: u64) -> Result<(), AccessError> {
        if let Some((segment, addr)) = self.simple(offset, src.len()).filter(|_| self.writable) {
            let _inside = self.go_in()?;
            segment.space.write(addr, src)?;
            segment.route.count_written(src.len() as u64);
            return Ok(());
        }
        let reach = Reach { offset, len: src.len(), ahead, write: true };
        self.reach(reach, |access| access.write(offset, src))
    }

    /// Where bytes are of memory that stays where it is and in one piece, as most is: what there is
    /// to ask of others need not be.
    #[inline]
    fn simple(&self, offset: u64, len: usize) -> Option<(&Segment, u64)> {
        let (Backing::User { .. }, [Some(translation)]) = (&self.backing, &*self.translations)
        else {
            return None;
        };
        let [segment] = &*translation.segments else { return None };
        let is_inside = offset.checked_add(len as u64).is_some_and(|end| end <= self.len);
        let addr = segment.addr.checked_add(offset)?;
        (is_inside && self.ats().is_none()).then_some((segment, addr))
    }

    /// Goes inside such memory.
    #[inline]
    fn go_in(&self) -> Result<Inside<'_>, AccessError> {
        let gate = &self.shared.gate;
        if gate.enter() { Ok(Inside(gate)) } else { Err(AccessError::Revoked) }
    }

    /// One atomic operation; see [`Access::atomic`].
    ///
    /// # Errors
    /// The errors of [`Umem::enter`] and [`Access::atomic`].
    #[inline]
    pub fn atomic(&self, offset: u64, op: AtomicOp) -> Result<u64, AccessError> {
        let reach = Reach { offset, len: 8, ahead: 0, write: true };
        self.reach(reach, |access| access.atomic(offset, op))
    }

    /// Does `go` inside. Where pages are brought in on demand, those that `go` misses are, outside,
    /// and it is done again.
    #[inline]
    fn reach<T>(
        &self,
        reach: Reach,
        mut go: impl FnMut(&Access<'_>) -> Result<T, AccessError>,
    ) -> Result<T, AccessError> {
        let missed = go(&self.enter()?);
        match (self.backing.mirror(), missed) {
            (Some(mirror), Err(error)) => self.reach_again(mirror, reach, Err(error), go),
            (_, done) => done,
        }
    }

    #[cold]
    fn reach_again<T>(
        &self,
        mirror: &Mirror,
        reach: Reach,
        mut outcome: Result<T, AccessError>,
        mut go: impl FnMut(&Access<'_>) -> Result<T, AccessError>,
    ) -> Result<T, AccessError> {
        if reach.write && !self.writable {
            return outcome;
        }
        if !matches!(outcome, Err(AccessError::Unmapped | AccessError::Fault)) {
            return outcome;
        }
        let range = self.mapped(reach.offset, reach.len as u64);
        let range = range.ok_or(AccessError::OutOfRange)?;
        let mut turn = mirror.turn(&range);
        for tried in 0..TRIES {
            match outcome {
                Err(AccessError::Unmapped) => {}
                Err(AccessError::Fault) => mirror.found_gone(&range),
                done => return done,
            }
            if tried > 0 {
                turn.insist();
            }
            if !turn.fault(reach.ahead).map_err(|_| AccessError::Unmapped)? {
                return Err(AccessError::Moving);
            }
            outcome = go(&self.enter()?);
        }
        match outcome {
            Err(AccessError::Unmapped) => Err(AccessError::Moving),
            outcome => outcome,
        }
    }
}

/// Who is inside a gate, until it is dropped.
struct Inside<'a>(&'a Gate);

impl Drop for Inside<'_> {
    #[inline]
    fn drop(&mut self) {
        self.0.leave();
    }
}

/// The bytes that an access touches.
#[derive(Clone, Copy)]
struct Reach {
    offset: u64,
    len: usize,
    /// How many more after them the same operation touches.
    ahead: u64,
    write: bool,
}
