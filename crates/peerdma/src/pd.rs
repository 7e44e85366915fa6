//! Protection domains.

use crate::context::Context;
use crate::error::{Error, Result};
use std::ptr::NonNull;
use std::sync::Arc;
use verbs_sys::ibv_pd;

impl Context {
    /// A protection domain: only queue pairs and memory of one domain work together.
    pub fn alloc_pd(&self) -> Result<Pd> {
        // SAFETY: the context is open.
        let raw = unsafe { (self.inner.functions().ibv_alloc_pd)(self.inner.raw.as_ptr()) };
        let raw = NonNull::new(raw).ok_or_else(|| Error::last("ibv_alloc_pd"))?;
        Ok(Pd { inner: Arc::new(Domain { context: self.clone(), raw }) })
    }
}

/// A protection domain. Clones share it.
#[derive(Clone)]
pub struct Pd {
    pub(crate) inner: Arc<Domain>,
}

pub(crate) struct Domain {
    pub(crate) context: Context,
    pub(crate) raw: NonNull<ibv_pd>,
}

// SAFETY: see OpenDevice; the handle is only passed to verbs.
unsafe impl Send for Domain {}
// SAFETY: as above.
unsafe impl Sync for Domain {}

impl Drop for Domain {
    fn drop(&mut self) {
        // SAFETY: the last owner; regions and queue pairs of the domain held references and are
        // destroyed.
        unsafe { (self.context.inner.functions().ibv_dealloc_pd)(self.raw.as_ptr()) };
    }
}

impl std::fmt::Debug for Pd {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pd").field("device", &self.inner.context.name()).finish()
    }
}

impl Pd {
    /// The device of the domain.
    pub fn context(&self) -> &Context {
        &self.inner.context
    }
}
