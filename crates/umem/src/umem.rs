//! One registration.

use crate::access::Access;
use crate::gate::Gate;
use crate::{AccessError, Segment};
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

    fn revoke(&self) {
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
}

/// What keeps the memory of a registration, settled in this order when it goes.
#[derive(Default)]
pub(crate) struct Keep {
    pub(crate) _registration: Option<mm::Registration>,
    pub(crate) _pinned: Option<mm::Pinned>,
    pub(crate) attachment: Option<Attachment>,
}

/// One registration.
pub struct Umem {
    pub(crate) shared: Arc<Shared>,
    pub(crate) segments: Box<[Segment]>,
    /// Offset of each segment's first byte.
    pub(crate) starts: Box<[u64]>,
    pub(crate) len: u64,
    pub(crate) writable: bool,
    pub(crate) keep: Keep,
}

impl std::fmt::Debug for Umem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "Umem {{ len: {}, segments: {}, writable: {} }}",
            self.len,
            self.segments.len(),
            self.writable
        )
    }
}

impl Umem {
    /// A registration over fixed segments (tests, device memory, a guest's page list). Segments beyond a total of 2^64 - 1 bytes
    /// are left out.
    pub fn from_segments(segments: Vec<Segment>, writable: bool) -> Arc<Umem> {
        Arc::new(Umem::assemble(Shared::new(), segments, writable, Keep::default()))
    }

    pub(crate) fn assemble(
        shared: Arc<Shared>,
        mut segments: Vec<Segment>,
        writable: bool,
        keep: Keep,
    ) -> Umem {
        segments.retain(|s| s.len > 0);
        let mut starts = Vec::with_capacity(segments.len());
        let mut len = 0u64;
        for segment in &segments {
            let Some(end) = len.checked_add(segment.len) else { break };
            starts.push(len);
            len = end;
        }
        segments.truncate(starts.len());
        Umem { shared, segments: segments.into(), starts: starts.into(), len, writable, keep }
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
        self.keep.attachment.is_some()
    }

    /// Whether accesses are refused for good: by [`Umem::revoke`], or because pages were unmapped.
    pub fn is_revoked(&self) -> bool {
        self.shared.gate.is_shut()
    }

    /// The segments in order, for showing their routes.
    pub fn segments(&self) -> &[Segment] {
        &self.segments
    }

    /// Begins an access; the mapping stays as it is until the guard is dropped.
    ///
    /// Between here and the drop the thread must not allocate, free or wait: an interposed `munmap`, which `malloc` may
    /// have called, waits for those inside.
    ///
    /// # Errors
    /// [`AccessError::Revoked`]; for a kernel dma-buf also [`AccessError::Fault`] if its exporter refuses CPU access.
    #[inline]
    pub fn enter(&self) -> Result<Access<'_>, AccessError> {
        if !self.shared.gate.enter() {
            return Err(AccessError::Revoked);
        }
        if let Some(attachment) = &self.keep.attachment
            && let Err(error) = attachment.enter()
        {
            self.shared.gate.leave();
            return Err(match error {
                dmabuf::Error::Revoked => AccessError::Revoked,
                _ => AccessError::Fault,
            });
        }
        Ok(Access::new(self))
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
