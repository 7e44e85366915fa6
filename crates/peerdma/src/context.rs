//! An opened device, shared by all objects on it. What it says of itself is in `attr`.

use crate::ffi;
use crate::library::Library;
use std::ptr::NonNull;
use std::sync::Arc;
use verbs_sys::{ibv_context, ibv_context_ops};

/// An opened device. Clones share it; it closes when the last object on it is gone.
#[derive(Clone)]
pub struct Context {
    pub(crate) inner: Arc<OpenDevice>,
}

pub(crate) struct OpenDevice {
    pub(crate) library: Library,
    pub(crate) raw: NonNull<ibv_context>,
    name: String,
}

// SAFETY: every verb may be called from any thread at any time (libibverbs is thread safe), and the
// struct itself is not changed after opening.
unsafe impl Send for OpenDevice {}
// SAFETY: as above.
unsafe impl Sync for OpenDevice {}

impl Drop for OpenDevice {
    fn drop(&mut self) {
        // SAFETY: the last owner; every object on the context held a reference and is destroyed.
        unsafe { (self.library.inner.functions.ibv_close_device)(self.raw.as_ptr()) };
    }
}

impl OpenDevice {
    pub(crate) fn functions(&self) -> &ffi::Functions {
        &self.library.inner.functions
    }

    pub(crate) fn ops(&self) -> &ibv_context_ops {
        // SAFETY: the context lives as long as `self`; its operations are set once, at opening.
        unsafe { &(*self.raw.as_ptr()).ops }
    }
}

impl Context {
    /// Takes over a raw context; `None` when it is null.
    ///
    /// # Safety
    /// `raw` is null or a context of `library` that nobody else closes.
    pub(crate) unsafe fn from_raw(
        library: Library,
        raw: *mut ibv_context,
        name: String,
    ) -> Option<Context> {
        Some(Context { inner: Arc::new(OpenDevice { library, raw: NonNull::new(raw)?, name }) })
    }

    /// Name of the device.
    pub fn name(&self) -> &str {
        &self.inner.name
    }
}

impl std::fmt::Debug for Context {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Context").field("name", &self.inner.name).finish()
    }
}
