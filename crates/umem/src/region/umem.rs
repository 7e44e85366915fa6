//! One registration.

use crate::ats::{TranslationCache, Translations, translation_unit};
use crate::memory::page_size::{self, PageSizes};
use crate::memory::space::{AccessError, Segment};
use crate::memory::translation::Translation;
use crate::region::access::Access;
use crate::region::backing::Backing;
use crate::request::error::RegError;
use crate::revoke::{Outsiders, RevokeWatcher, Shared, Shown};
use std::ops::Range;
use std::sync::{Arc, OnceLock};

/// One registration.
pub struct Umem {
    pub(crate) shared: Arc<Shared>,
    /// By the index of the place that a dma-buf may be at; one for other memory.
    pub(crate) translations: Box<[Option<Translation>]>,
    pub(crate) len: u64,
    pub(crate) writable: bool,
    pub(crate) backing: Backing,
    ats: OnceLock<Arc<Translations>>,
}

impl std::fmt::Debug for Umem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "Umem {{ len: {}, segments: {}, writable: {} }}",
            self.len,
            self.segments().len(),
            self.writable
        )
    }
}

impl Umem {
    /// A registration over fixed segments (tests, device memory, a guest's page list). Segments
    /// beyond a total of 2^64 - 1 bytes are left out.
    pub fn from_segments(segments: Vec<Segment>, writable: bool) -> Arc<Umem> {
        let translations = vec![Some(Translation::new(segments))];
        Arc::new(Umem::assemble(Shared::new(), translations, writable, Backing::Fixed))
    }

    pub(crate) fn assemble(
        shared: Arc<Shared>,
        translations: Vec<Option<Translation>>,
        writable: bool,
        backing: Backing,
    ) -> Umem {
        let len = translations.iter().flatten().map(|t| t.len).min().unwrap_or(0);
        let (translations, ats) = (translations.into(), OnceLock::new());
        Umem { shared, translations, len, writable, backing, ats }
    }

    /// Length in bytes.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether the length is 0.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether local and remote writes are possible.
    pub fn writable(&self) -> bool {
        self.writable
    }

    /// Whether it is a registration of a dma-buf.
    pub fn is_dmabuf(&self) -> bool {
        matches!(self.backing, Backing::DmaBuf(_))
    }

    /// Whether a Peer-Direct client gave the memory.
    pub fn is_peer(&self) -> bool {
        matches!(self.backing, Backing::Peer { .. })
    }

    /// Whether the end of its mapping is noticed however the program ends it: the kernel tells, or
    /// there is no mapping of the program's. Otherwise only interposed calls tell.
    pub fn is_watched(&self) -> bool {
        self.backing.is_watched()
    }

    /// Whether accesses are refused for good: by [`Umem::revoke`], or because pages were unmapped.
    pub fn is_revoked(&self) -> bool {
        self.shared.gate.is_shut()
    }

    /// The segments in order, for showing their routes. Those of a dma-buf that moves are of the
    /// place it is at now.
    pub fn segments(&self) -> &[Segment] {
        self.translation().map_or(&[], |t| &t.segments)
    }

    /// The translation that holds now.
    pub(crate) fn translation(&self) -> Option<&Translation> {
        let place = self.backing.attachment().map_or(0, |a| a.dmabuf().place());
        self.translations.get(place).and_then(Option::as_ref)
    }

    /// The page size by which an adapter that offers `sizes` translates this registration at
    /// `iova`: for a dma-buf that moves, where it is now; that of its pages for an on-demand one.
    /// `None` for memory that needs no pages: fixed segments.
    ///
    /// # Errors
    /// [`RegError::NoPageSize`].
    pub fn best_page_size(&self, iova: u64, sizes: PageSizes) -> Result<Option<u64>, RegError> {
        let best = match (self.backing.mirror(), self.translation()) {
            (Some(mirror), _) => Some(mirror.granule()).filter(|&size| sizes.contains(size)),
            (None, Some(translation)) => match translation.runs() {
                Some(runs) => page_size::best(sizes, iova, runs),
                None => return Ok(None),
            },
            // A buffer that is not mapped now has none to lose.
            (None, None) => return Ok(None),
        };
        best.map(Some).ok_or(RegError::NoPageSize)
    }

    /// How often an access found that the dma-buf had moved, and mapped it again.
    pub fn faults(&self) -> u64 {
        self.backing.attachment().map_or(0, |attachment| attachment.faults())
    }

    /// Keeps the translations of this registration in a function's cache from now on, if its memory
    /// may move: an on-demand one, or a dma-buf's. Returns whether it does.
    pub fn translate_by(&self, cache: &Arc<TranslationCache>) -> bool {
        let Some(segment) = self.segments().first() else { return false };
        let translations = match self.backing.mirror() {
            Some(mirror) => {
                let origin = segment.addr - mirror.range().start;
                let translations = Arc::new(Translations::new(cache, origin, mirror.granule()));
                // before anything is kept: nothing that is unmapped is missed
                if !mirror.cache(translations.clone()) {
                    return true;
                }
                translations
            }
            None if self.is_dmabuf() => {
                let origin = segment.addr % mm::page_size();
                Arc::new(Translations::new(cache, origin, translation_unit()))
            }
            None => return false,
        };
        let _ = self.ats.set(translations);
        true
    }

    #[inline]
    pub(crate) fn ats(&self) -> Option<&Translations> {
        self.ats.get().map(|translations| &**translations)
    }

    /// Begins an access; the mapping stays as it is until the guard is dropped. A dma-buf that has
    /// moved is mapped anew; one that moves at this moment is not waited for.
    ///
    /// Between here and the drop the thread must not allocate, free or wait: an interposed
    /// `munmap`, which `malloc` may have called, waits for those inside.
    ///
    /// # Errors
    /// [`AccessError::Revoked`]; for a dma-buf also [`AccessError::Moving`], [`AccessError::Fault`]
    /// if its exporter refuses CPU access or a move takes too long, [`AccessError::Unreachable`] if
    /// it moved where the HCA does not reach it.
    #[inline]
    pub fn enter(&self) -> Result<Access<'_>, AccessError> {
        loop {
            if !self.shared.gate.enter() {
                return Err(AccessError::Revoked);
            }
            let place = match self.backing.attachment() {
                None => Ok(0),
                Some(attachment) => attachment.enter(),
            };
            match place {
                Ok(place) => match self.translations.get(place) {
                    Some(Some(translation)) => {
                        let inside = self.backing.mirror().map(|mirror| mirror.enter());
                        return Ok(Access::new(self, translation, place, inside));
                    }
                    _ => {
                        self.leave();
                        return Err(AccessError::Unreachable);
                    }
                },
                Err(error) => {
                    self.shared.gate.leave();
                    self.fault(error)?;
                }
            }
        }
    }

    /// As [`Umem::enter`], for who is inside another registration already, or this one: never
    /// waits. What changes just now, or has to be mapped anew first, is [`AccessError::Moving`].
    ///
    /// # Errors
    /// That; [`AccessError::Unreachable`] for on-demand memory, and where the function does not
    /// reach the buffer.
    pub fn try_enter(&self) -> Result<Access<'_>, AccessError> {
        if self.backing.mirror().is_some() {
            return Err(AccessError::Unreachable);
        }
        if !self.shared.gate.try_enter() {
            return Err(AccessError::Moving);
        }
        let place = self.backing.attachment().map_or(Ok(0), |attachment| attachment.enter());
        let Ok(place) = place else {
            self.shared.gate.leave();
            return Err(AccessError::Moving);
        };
        match self.translations.get(place) {
            Some(Some(translation)) => Ok(Access::new(self, translation, place, None)),
            _ => {
                self.leave();
                Err(AccessError::Unreachable)
            }
        }
    }

    /// Whether some of the `len` bytes from `offset` on may be among those at the addresses `range`
    /// of this process: of memory in one piece that is known.
    pub fn may_lie_over(&self, offset: u64, len: u64, range: &Range<u64>) -> bool {
        let Some(at) = self.addresses(offset, len) else { return true };
        at.start < range.end && range.start < at.end
    }

    /// The addresses of `len` bytes from `offset` on, of memory that is in one piece and may be
    /// shown.
    pub fn addresses(&self, offset: u64, len: u64) -> Option<Range<u64>> {
        let translation = self.translation().filter(|_| self.can_be_shown())?;
        let is_one = translation.segments.len() == 1;
        translation.mapped(offset, len).filter(|_| is_one)
    }

    /// Helps an access that a dma-buf refused for the moment. Nobody is inside here.
    #[cold]
    fn fault(&self, error: dmabuf::Error) -> Result<(), AccessError> {
        let refused = |error| match error {
            dmabuf::Error::Revoked => AccessError::Revoked,
            dmabuf::Error::Unreachable(_) => AccessError::Unreachable,
            _ => AccessError::Fault,
        };
        let (Some(attachment), dmabuf::Error::NotMapped | dmabuf::Error::Moving(_)) =
            (self.backing.attachment(), &error)
        else {
            return Err(refused(error));
        };
        let forget = || {
            if let Some(ats) = self.ats() {
                ats.invalidate_all(self.len);
            }
        };
        let settled = attachment.fault(forget).map_err(refused)?;
        settled.map(drop).ok_or(AccessError::Moving)?;
        self.shared.moved(&|| self.shown());
        Ok(())
    }

    #[inline]
    pub(crate) fn leave(&self) {
        if let Some(attachment) = self.backing.attachment() {
            attachment.leave();
        }
        self.shared.gate.leave();
    }

    /// Refuses further accesses and returns once those inside have left. Idempotent.
    pub fn revoke(&self) {
        self.shared.revoke();
    }

    /// Whether the memory is such as may be shown to others than this process: pages that stay
    /// resident, or a buffer that others can keep in its place.
    pub fn can_be_shown(&self) -> bool {
        match self.backing.attachment() {
            Some(attachment) => attachment.control().is_some(),
            None => matches!(self.backing, Backing::User { .. }),
        }
    }

    /// Where the memory is now, for others than this process, if that is simple: it can be shown,
    /// is in one piece, and no link on the way there is paced.
    pub fn shown(&self) -> Option<Shown<'_>> {
        // The moves first: where the buffer is after more of them is not taken for its place.
        let buffer = match self.backing.attachment() {
            Some(attachment) => Some((attachment.control()?, attachment.moves()?)),
            None => None,
        };
        let translation = self.translation()?;
        let [segment] = &*translation.segments else { return None };
        let translated = self.ats().is_some();
        let other = translation.translated.as_ref().filter(|_| translated);
        let route = other.unwrap_or(&segment.route);
        if !self.can_be_shown() || route.is_paced() {
            return None;
        }
        let watched = self.is_watched();
        Some(Shown { addr: segment.addr, route, buffer, translated, watched })
    }

    /// Has `outsiders` kept out whenever those inside are (one at most, set before they can go in).
    /// Returns whether it was taken; they are shut out at once after a revoke.
    pub fn keep_out(&self, outsiders: Arc<dyn Outsiders>) -> bool {
        self.shared.keep_out(outsiders)
    }

    /// Has `watcher` called when the registration is revoked (at most one watcher, set before the
    /// memory is shared with anyone). Returns whether it was taken; one that comes after a revoke
    /// is called at once.
    pub fn watch_revoke(&self, watcher: Arc<dyn RevokeWatcher>) -> bool {
        let taken = self.shared.watcher.set(watcher).is_ok();
        self.shared.tell();
        taken
    }
}
