//! One registration.

use crate::access::Access;
use crate::ats::{TranslationCache, Translations};
use crate::gate::Gate;
use crate::peer::PeerHold;
use crate::translation::Translation;
use crate::{AccessError, DmaSpace, Segment};
use dmabuf::Attachment;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering::AcqRel};
use std::sync::{Arc, OnceLock};

/// Told once that a registration is no longer valid, however that came about. Those inside may not have left yet.
///
/// The caller may be an interposed `munmap` that `malloc` called: an implementation must not allocate, free, or wait for
/// anyone who might.
pub trait RevokeWatcher: Send + Sync {
    /// No access begins from now on.
    fn revoked(&self);
}

/// The part of a registration that the address space's notifier shares.
pub(crate) struct Shared {
    pub(crate) gate: Gate,
    watcher: OnceLock<Arc<dyn RevokeWatcher>>,
    told: AtomicBool,
}

impl Shared {
    pub(crate) fn new() -> Arc<Shared> {
        Arc::new(Shared {
            gate: Gate::new(),
            watcher: OnceLock::new(),
            told: AtomicBool::new(false),
        })
    }

    pub(crate) fn revoke(&self) {
        self.gate.shut();
        self.tell();
        self.gate.wait();
    }

    fn tell(&self) {
        if let Some(watcher) = self.watcher.get()
            && self.gate.is_shut()
            && !self.told.swap(true, AcqRel)
        {
            watcher.revoked();
        }
    }
}

impl mm::Invalidate for Shared {
    fn invalidate(&self, _range: Range<u64>) {
        self.revoke();
    }

    fn doubt(&self) {
        self.gate.doubt();
    }

    fn settle(&self) {
        self.gate.settle();
    }

    fn holds(&self) -> bool {
        !self.gate.is_shut()
    }
}

/// What keeps the memory of a registration, settled in this order when it goes.
#[derive(Default)]
pub(crate) struct Keep {
    pub(crate) registration: Option<mm::Registration>,
    pub(crate) _pinned: Option<mm::Pinned>,
    pub(crate) attachment: Option<Arc<Attachment>>,
    /// Only of registrations whose pages are brought in on demand.
    pub(crate) mirror: Option<Arc<mm::Mirror>>,
    pub(crate) peer: Option<Arc<PeerHold>>,
    /// Of on-demand registrations: the ways to other devices' memories, by the numbers that the mirror has.
    pub(crate) peers: Vec<Peer>,
    /// Likewise: where the pages are that lie in those memories.
    pub(crate) devices: Option<Arc<dyn DmaSpace>>,
}

/// Bytes of a dma-buf that one entry of a translation cache covers: a page of NVIDIA's GPUs.
const DMABUF_UNIT: u64 = 64 << 10;

/// The ways to another device's memory.
pub(crate) struct Peer {
    pub(crate) route: Arc<pcie::Route>,
    /// Where translated requests take another.
    pub(crate) translated: Option<Arc<pcie::Route>>,
}

/// One registration.
pub struct Umem {
    pub(crate) shared: Arc<Shared>,
    /// By the index of the place that a dma-buf may be at; one for other memory.
    pub(crate) translations: Box<[Option<Translation>]>,
    pub(crate) len: u64,
    pub(crate) writable: bool,
    pub(crate) keep: Keep,
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
    /// A registration over fixed segments (tests, device memory, a guest's page list). Segments beyond a total of 2^64 - 1 bytes
    /// are left out.
    pub fn from_segments(segments: Vec<Segment>, writable: bool) -> Arc<Umem> {
        let translations = vec![Some(Translation::new(segments))];
        Arc::new(Umem::assemble(Shared::new(), translations, writable, Keep::default()))
    }

    pub(crate) fn assemble(
        shared: Arc<Shared>,
        translations: Vec<Option<Translation>>,
        writable: bool,
        keep: Keep,
    ) -> Umem {
        let len = translations.iter().flatten().map(|t| t.len).min().unwrap_or(0);
        let (translations, ats) = (translations.into(), OnceLock::new());
        Umem { shared, translations, len, writable, keep, ats }
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
        self.keep.attachment.is_some() && !self.is_peer()
    }

    /// Whether a Peer-Direct client gave the memory.
    pub fn is_peer(&self) -> bool {
        self.keep.peer.is_some()
    }

    /// Whether the end of its mapping is noticed however the program ends it: the kernel tells, or there is no mapping of the
    /// program's. Otherwise only interposed calls tell.
    pub fn is_watched(&self) -> bool {
        let pages_follow = self.keep.mirror.is_some();
        pages_follow || self.keep.registration.as_ref().is_none_or(mm::Registration::is_watched)
    }

    /// Whether accesses are refused for good: by [`Umem::revoke`], or because pages were unmapped.
    pub fn is_revoked(&self) -> bool {
        self.shared.gate.is_shut()
    }

    /// The segments in order, for showing their routes. Those of a dma-buf that moves are of the place it is at now.
    pub fn segments(&self) -> &[Segment] {
        let place = self.keep.attachment.as_ref().map_or(0, |a| a.dmabuf().place());
        self.translations.get(place).and_then(Option::as_ref).map_or(&[], |t| &t.segments)
    }

    /// How often an access found that the dma-buf had moved, and mapped it again.
    pub fn faults(&self) -> u64 {
        self.keep.attachment.as_ref().map_or(0, |attachment| attachment.faults())
    }

    /// Keeps the translations of this registration in a function's cache from now on, if its memory may move: an on-demand one, or
    /// a dma-buf's. Returns whether it does.
    pub fn translate_by(&self, cache: &Arc<TranslationCache>) -> bool {
        let Some(segment) = self.segments().first() else { return false };
        let translations = match &self.keep.mirror {
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
                Arc::new(Translations::new(cache, origin, DMABUF_UNIT.max(mm::page_size())))
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

    /// Begins an access; the mapping stays as it is until the guard is dropped. A dma-buf that has moved is mapped anew; one that
    /// moves at this moment is not waited for.
    ///
    /// Between here and the drop the thread must not allocate, free or wait: an interposed `munmap`, which `malloc` may
    /// have called, waits for those inside.
    ///
    /// # Errors
    /// [`AccessError::Revoked`]; for a dma-buf also [`AccessError::Moving`], [`AccessError::Fault`] if its exporter refuses CPU access or a move takes too
    /// long, [`AccessError::Unreachable`] if it moved where the HCA does not reach it.
    #[inline]
    pub fn enter(&self) -> Result<Access<'_>, AccessError> {
        loop {
            if !self.shared.gate.enter() {
                return Err(AccessError::Revoked);
            }
            let place = match &self.keep.attachment {
                None => Ok(0),
                Some(attachment) => attachment.enter(),
            };
            match place {
                Ok(place) => match self.translations.get(place) {
                    Some(Some(translation)) => {
                        let inside = self.keep.mirror.as_deref().map(mm::Mirror::enter);
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

    /// Helps an access that a dma-buf refused for the moment. Nobody is inside here.
    #[cold]
    fn fault(&self, error: dmabuf::Error) -> Result<(), AccessError> {
        let refused = |error| match error {
            dmabuf::Error::Revoked => AccessError::Revoked,
            dmabuf::Error::Unreachable(_) => AccessError::Unreachable,
            _ => AccessError::Fault,
        };
        let (Some(attachment), dmabuf::Error::NotMapped | dmabuf::Error::Moving(_)) =
            (&self.keep.attachment, &error)
        else {
            return Err(refused(error));
        };
        let forget = || {
            if let Some(ats) = self.ats() {
                ats.invalidate_all(self.len);
            }
        };
        attachment.fault(forget).map_err(refused)?.map(drop).ok_or(AccessError::Moving)
    }

    #[inline]
    pub(crate) fn leave(&self) {
        if let Some(attachment) = &self.keep.attachment {
            attachment.leave();
        }
        self.shared.gate.leave();
    }

    /// Refuses further accesses and returns once those inside have left. Idempotent.
    pub fn revoke(&self) {
        self.shared.revoke();
    }

    /// Asks for `watcher` to be told when the registration is revoked (at most one watcher, set before the memory is
    /// shared with anyone). Returns whether it was taken; one that comes after a revoke is told at once.
    pub fn watch_revoke(&self, watcher: Arc<dyn RevokeWatcher>) -> bool {
        let taken = self.shared.watcher.set(watcher).is_ok();
        self.shared.tell();
        taken
    }
}

/// Saves the first accesses their page faults; device mappings cannot be populated and need it not, and what is missing
/// shows as a fault of the access.
pub(crate) fn populate(segments: &[Segment]) {
    for segment in segments {
        let _ = mm::populate(segment.addr, segment.len, true);
    }
}
