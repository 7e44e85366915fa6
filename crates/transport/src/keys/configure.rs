//! What becomes of indirect keys.

use super::indirect::{ConfigureError, Indirect};
use super::table::{Entry, KeyTable};
use crate::error::{Error, Result};
use crate::shelf::list_of;
use crate::signature::SignatureError;
use crate::values::PdId;
use crate::values::{Access, IndirectInit, KeyConfig};
use std::sync::Arc;

impl KeyTable {
    /// A new key that is free.
    ///
    /// # Errors
    /// [`Error::NoMemory`] when the device has no key left, or the system none for its entries.
    pub fn insert_indirect(&self, pd: PdId, init: IndirectInit) -> Result<u32> {
        let indirect = Indirect {
            pd,
            init,
            access: Access::empty(),
            repeat: None,
            strides: list_of(init.max_entries.into())?,
            signature: None,
            ledger: Arc::default(),
        };
        self.install(Entry::Indirect(indirect))
    }

    /// What the checks of a key's block signatures found first since this was last called
    /// (mlx5dv_mkey_check(3)).
    ///
    /// # Errors
    /// [`Error::Invalid`] for a key that was not made for them.
    pub fn signature_error(&self, key: u32) -> Result<Option<SignatureError>> {
        match self.read().find(key) {
            Some(Entry::Indirect(indirect)) if indirect.init.signatures => {
                Ok(indirect.ledger.take())
            }
            _ => Err(Error::Invalid("the key was not made for block signatures")),
        }
    }

    /// Ends a key of [`KeyTable::insert_indirect`]. Accesses that were checked go on in the regions
    /// below.
    pub fn remove_indirect(&self, key: u32) {
        let mut table = self.write();
        if matches!(table.find(key), Some(Entry::Indirect(_))) {
            drop(table.take(key));
        }
    }

    /// Gives a key rights and a layout on behalf of a queue pair in domain `pd`.
    ///
    /// # Errors
    /// [`ConfigureError`]; nothing has changed then.
    pub fn configure(
        &self,
        pd: PdId,
        config: &KeyConfig,
    ) -> std::result::Result<(), ConfigureError> {
        match self.write().find_mut(config.key) {
            Some(Entry::Indirect(indirect)) => indirect.configure(pd, config),
            _ => Err(ConfigureError::Key),
        }
    }
}
