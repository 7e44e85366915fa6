//! Memory windows in the key table.

use super::mem_ref::MemRef;
use super::rights::KeyError;
use crate::sabotage::{self, Sabotage};
use crate::values::PdId;
use crate::values::{Access, MwType};

/// What a window is bound to.
pub(crate) struct Binding {
    /// Key of the registration.
    pub(super) region: u32,
    pub(super) memory: MemRef,
    /// Address of the first byte as peers name it.
    pub(super) base: u64,
    pub(super) access: Access,
    /// The QP that bound it.
    pub(super) qpn: u32,
}

/// A window in the key table.
pub(crate) struct Window {
    pub(super) pd: PdId,
    pub(super) mw_type: MwType,
    pub(super) binding: Option<Binding>,
}

impl Window {
    /// Checks an access by the peer of QP `qpn`.
    pub(crate) fn resolve(
        &self,
        pd: PdId,
        qpn: u32,
        va: u64,
        len: u64,
        access: Access,
    ) -> std::result::Result<MemRef, KeyError> {
        let binding = self.binding_of(pd, qpn)?;
        if !binding.access.contains(access) && !sabotage::on(Sabotage::SkipKeyAccess) {
            return Err(KeyError::Denied);
        }
        binding.memory.part(va.checked_sub(binding.base).ok_or(KeyError::Range)?, len)
    }

    /// As [`Window::resolve`], for all that the window is bound to.
    pub(crate) fn resolve_whole(
        &self,
        pd: PdId,
        qpn: u32,
        access: Access,
    ) -> std::result::Result<MemRef, KeyError> {
        let binding = self.binding_of(pd, qpn)?;
        self.resolve(pd, qpn, binding.base, binding.memory.len(), access)
    }

    pub(super) fn binding_of(&self, pd: PdId, qpn: u32) -> std::result::Result<&Binding, KeyError> {
        if self.pd != pd && !sabotage::on(Sabotage::SkipPdCheck) {
            return Err(KeyError::ForeignPd);
        }
        let binding = self.binding.as_ref().ok_or(KeyError::NotBound)?;
        let foreign = self.mw_type == MwType::Two && binding.qpn != qpn;
        if foreign && !sabotage::on(Sabotage::SkipWindowQp) {
            return Err(KeyError::NotBound);
        }
        Ok(binding)
    }
}
