//! Indirect keys as objects; what they are is in the key table ([`transport::keys`]).

use crate::adapter::Adapter;
use crate::memory::pd::{Belonging, Pd};
use std::sync::Arc;
use transport::signature::SignatureError;
use transport::values::IndirectInit;
use transport::{Error, Result};

/// Entries that one key may have.
pub const MAX_KEY_ENTRIES: u16 = 1024;

/// An indirect key. Dropping it ends it.
pub struct IndirectKey {
    adapter: Arc<Adapter>,
    key: u32,
    init: IndirectInit,
    _pd: Belonging,
}

impl std::fmt::Debug for IndirectKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "IndirectKey {{ key: {:#x} }}", self.key)
    }
}

impl IndirectKey {
    pub(crate) fn new(
        adapter: &Arc<Adapter>,
        pd: &Arc<Pd>,
        init: IndirectInit,
    ) -> Result<Arc<IndirectKey>> {
        if init.max_entries > MAX_KEY_ENTRIES {
            return Err(Error::Invalid("more entries than an indirect key may have"));
        }
        let key = adapter.keys().insert_indirect(pd.id(), init)?;
        let adapter = adapter.clone();
        Ok(Arc::new(IndirectKey { adapter, key, init, _pd: Belonging::new(pd) }))
    }

    /// lkey and rkey.
    pub fn key(&self) -> u32 {
        self.key
    }

    /// What the key was made from.
    pub fn init(&self) -> &IndirectInit {
        &self.init
    }

    /// What [`transport::keys::KeyTable::signature_error`] says of the key.
    ///
    /// # Errors
    /// The same.
    pub fn signature_error(&self) -> Result<Option<SignatureError>> {
        self.adapter.keys().signature_error(self.key)
    }
}

impl Drop for IndirectKey {
    fn drop(&mut self) {
        self.adapter.keys().remove_indirect(self.key);
    }
}
