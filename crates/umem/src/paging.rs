//! On-demand registrations: nothing is resident at first; an access finds its pages mapped, or has them faulted in and tries
//! again (`ib_umem_odp_get`, `ib_umem_odp_alloc_implicit`, `ib_umem_odp_map_dma_and_lock`).

use crate::translation::Translation;
use crate::umem::{Keep, Peer, Shared, Umem};
use crate::{Access, AccessError, AccessFlags, AtomicOp, Fold, RegError, Segment, process_space};
use mm::{
    AddressSpace, Mirror, Pages, PagingCounts, PagingWatcher, Prefetch, Reach as Reaches, Sink,
    page_size,
};
use std::ops::Range;
use std::sync::Arc;

/// Times that an access may find its pages taken away again before it comes again later.
const TRIES: u32 = 8;
/// Bytes of a huge page (HPAGE_SHIFT on x86-64, and on aarch64 with 4 KiB pages).
const HUGE_PAGE: u64 = 2 << 20;

impl Umem {
    /// Registers `memory` on demand: the pages that are there are mapped, no other is brought in. Address 0 and length 2^64 - 1
    /// are the whole address space, whose pages are mapped as they are used (an implicit registration).
    ///
    /// # Errors
    /// In this order: [`RegError::ImplicitIova`], [`RegError::ImplicitHuge`], [`RegError::OnDemandOverflow`], [`RegError::Pages`],
    /// [`RegError::Unreachable`].
    pub fn on_demand(
        space: &Arc<AddressSpace>,
        source: Arc<dyn Pages>,
        memory: Sink<'static>,
        iova: u64,
        access: AccessFlags,
        function: &pcie::Function,
        platform: &pcie::Platform,
    ) -> Result<Arc<Umem>, RegError> {
        let (addr, len) = (memory.addr(), memory.len());
        let huge = access.contains(AccessFlags::HUGETLB);
        let implicit = addr == 0 && len == u64::MAX;
        if implicit && iova != 0 {
            return Err(RegError::ImplicitIova);
        }
        if implicit && huge {
            return Err(RegError::ImplicitHuge);
        }
        let granule = if huge { HUGE_PAGE } else { page_size() };
        if !implicit {
            let end = addr.checked_add(len).and_then(|end| end.checked_next_multiple_of(granule));
            if end.ok_or(RegError::OnDemandOverflow)? == addr & !(granule - 1) {
                return Err(RegError::Pages(0));
            }
        }
        let route = platform.route(function, pcie::Target::HOST)?;
        let writable = access.wants_write();
        let (reach, peers) = peers(function, platform);
        let range = addr..addr.saturating_add(len);
        let devices = source.devices().map(process_space);
        let mirror = Mirror::new(source, &range, granule, writable, reach);
        // watched before the pages are looked at: an unmap in between is not missed
        let registration = space.register(mirror.range(), mirror.clone())?;
        if !implicit {
            mirror.snapshot();
        }
        let segment = Segment::of_process(memory, route);
        let keep = Keep {
            registration: Some(registration),
            mirror: Some(mirror),
            peers,
            devices,
            ..Keep::default()
        };
        let translation = Translation::new(vec![segment]);
        Ok(Arc::new(Umem::assemble(Shared::new(), vec![Some(translation)], writable, keep)))
    }

    /// Whether pages are brought in as they are used.
    pub fn is_on_demand(&self) -> bool {
        self.keep.mirror.is_some()
    }

    /// What happened to the pages of an on-demand registration.
    pub fn paging(&self) -> Option<PagingCounts> {
        self.keep.mirror.as_ref().map(|mirror| mirror.counts())
    }

    /// Asks for `watcher` to be told what happens to the pages of an on-demand registration; one at most. Returns whether it was
    /// taken.
    pub fn watch_paging(&self, watcher: Arc<dyn PagingWatcher>) -> bool {
        self.keep.mirror.as_ref().is_some_and(|mirror| mirror.watch(watcher))
    }

    /// Brings in pages of an on-demand registration ahead of their use; nothing is to be done for any other. An empty range is
    /// good anywhere inside.
    ///
    /// # Errors
    /// [`AccessError::OutOfRange`]; [`AccessError::Unmapped`] where there is no page for this access, except with
    /// [`Prefetch::NoFault`].
    pub fn prefetch(&self, offset: u64, len: u64, how: Prefetch) -> Result<(), AccessError> {
        let end = offset.checked_add(len).ok_or(AccessError::OutOfRange)?;
        if end > self.len {
            return Err(AccessError::OutOfRange);
        }
        match (&self.keep.mirror, self.mapped(offset, len)) {
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

    /// Whether an access could be served without waiting for a change of mappings, or a move of pages, that is in progress. Only
    /// on-demand registrations ever are not; an access that fails is served.
    pub fn is_ready(&self, offset: u64, len: usize, write: bool) -> bool {
        let Some(mirror) = &self.keep.mirror else { return true };
        match self.mapped(offset, len as u64) {
            Some(range) if len > 0 => mirror.is_ready(&range, write),
            _ => true,
        }
    }

    /// Copies out from `offset`. `ahead` bytes after it belong to the same operation.
    ///
    /// # Errors
    /// Those of [`Umem::enter`] and [`Access::read`].
    #[inline]
    pub fn read(&self, offset: u64, dst: &mut [u8], ahead: u64) -> Result<(), AccessError> {
        let len = dst.len();
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

    /// Copies in at `offset`, in ascending order. `ahead` bytes after it belong to the same operation.
    ///
    /// # Errors
    /// Those of [`Umem::enter`] and [`Access::write`].
    #[inline]
    pub fn write(&self, offset: u64, src: &[u8], ahead: u64) -> Result<(), AccessError> {
        let reach = Reach { offset, len: src.len(), ahead, write: true };
        self.reach(reach, |access| access.write(offset, src))
    }

    /// One atomic operation; see [`Access::atomic`].
    ///
    /// # Errors
    /// Those of [`Umem::enter`] and [`Access::atomic`].
    #[inline]
    pub fn atomic(&self, offset: u64, op: AtomicOp) -> Result<u64, AccessError> {
        let reach = Reach { offset, len: 8, ahead: 0, write: true };
        self.reach(reach, |access| access.atomic(offset, op))
    }

    /// Does `go` inside. Where pages are brought in on demand, those that `go` misses are, outside, and it is done again.
    #[inline]
    fn reach<T>(
        &self,
        reach: Reach,
        mut go: impl FnMut(&Access<'_>) -> Result<T, AccessError>,
    ) -> Result<T, AccessError> {
        let missed = go(&self.enter()?);
        match (&self.keep.mirror, missed) {
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

/// The GPUs whose memory `function` reaches, for a mirror, and the ways there.
fn peers(function: &pcie::Function, platform: &pcie::Platform) -> (Reaches, Vec<Peer>) {
    let (mut addresses, mut routes) = (Vec::new(), Vec::new());
    for gpu in platform.with_role(pcie::Role::Gpu) {
        let target = pcie::Target::Function(gpu.address);
        if let Ok(route) = platform.route(function, target) {
            addresses.push(gpu.address);
            routes.push(Peer { route, translated: platform.translated_route(function, target) });
        }
    }
    let reach = move |device| {
        let number = addresses.iter().position(|address| *address == device)?;
        u16::try_from(number).ok()
    };
    (Box::new(reach), routes)
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
