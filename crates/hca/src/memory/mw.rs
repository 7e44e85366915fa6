//! Memory windows as objects; what they are is in the key table ([`transport::keys`]).

use crate::adapter::Adapter;
use crate::memory::pd::{Belonging, Pd};
use std::sync::Arc;
use transport::Result;
use transport::values::MwType;

/// A memory window. Dropping it ends it.
pub struct Mw {
    adapter: Arc<Adapter>,
    key: u32,
    mw_type: MwType,
    pd: Belonging,
}

impl std::fmt::Debug for Mw {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Mw {{ first key: {:#x} }}", self.key)
    }
}

impl Mw {
    pub(crate) fn new(adapter: &Arc<Adapter>, pd: &Arc<Pd>, mw_type: MwType) -> Result<Arc<Mw>> {
        let key = adapter.keys().insert_window(pd.id(), mw_type)?;
        Ok(Arc::new(Mw { adapter: adapter.clone(), key, mw_type, pd: Belonging::new(pd) }))
    }

    /// Its first key. Later ones differ in the low 8 bits.
    pub fn key(&self) -> u32 {
        self.key
    }

    /// The window's type.
    pub fn mw_type(&self) -> MwType {
        self.mw_type
    }

    /// Protection domain.
    pub fn pd(&self) -> &Arc<Pd> {
        self.pd.pd()
    }
}

impl Drop for Mw {
    fn drop(&mut self) {
        // The window was inserted by `new` and only we remove it.
        let _ = self.adapter.keys().remove_window(self.key);
    }
}
