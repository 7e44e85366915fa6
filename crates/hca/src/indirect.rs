//! Indirect keys as objects; what they are is in the key table ([`transport::keys`]).

use crate::device::Device;
use crate::pd::{Belonging, Pd};
use std::sync::Arc;
use transport::signature::SignatureError;
use transport::values::IndirectInit;
use transport::{Error, Result};

/// Entries that one key may have.
pub const MAX_KEY_ENTRIES: u16 = 1024;

/// An indirect key. Dropping it ends it.
pub struct IndirectKey {
    device: Arc<Device>,
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
    /// lkey and rkey.
    pub fn key(&self) -> u32 {
        self.key
    }

    /// What it was made from.
    pub fn init(&self) -> &IndirectInit {
        &self.init
    }

    /// [`transport::keys::KeyTable::signature_error`] of it.
    ///
    /// # Errors
    /// As there.
    pub fn signature_error(&self) -> Result<Option<SignatureError>> {
        self.device.keys().signature_error(self.key)
    }
}

impl Drop for IndirectKey {
    fn drop(&mut self) {
        self.device.keys().remove_indirect(self.key);
    }
}

impl Device {
    /// An indirect key that is free.
    ///
    /// # Errors
    /// [`Error::Invalid`] for more entries than [`MAX_KEY_ENTRIES`], [`Error::NoMemory`] when no key is left.
    pub fn create_indirect_key(
        &self,
        pd: &Arc<Pd>,
        init: IndirectInit,
    ) -> Result<Arc<IndirectKey>> {
        self.alive()?;
        if init.max_entries > MAX_KEY_ENTRIES {
            return Err(Error::Invalid("more entries than an indirect key may have"));
        }
        let device = self.arc()?;
        let key = self.keys().insert_indirect(pd.id(), init)?;
        Ok(Arc::new(IndirectKey { device, key, init, _pd: Belonging::new(pd) }))
    }
}
