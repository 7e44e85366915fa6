//! Registrations: what most keys stand for.

use super::mem_ref::MemRef;
use super::rights::{KeyError, check_rights};
use super::signed::Signed;
use super::span::Span;
use crate::values::Access;
use crate::values::PdId;
use std::sync::Arc;
use umem::Umem;

/// What a key stands for.
#[derive(Clone)]
pub struct Mkey {
    /// Protection domain.
    pub pd: PdId,
    /// Address of the first byte as peers and work requests name it.
    pub iova: u64,
    /// Rights.
    pub access: Access,
    /// The memory.
    pub umem: Arc<Umem>,
    /// Only peers of this queue pair may use it.
    pub qpn: Option<u32>,
    /// Peers may invalidate it, which revokes its memory.
    pub invalidated_by_peers: bool,
    /// Fields behind the blocks of its memory, or of what passes on the wire.
    pub signed: Option<Signed>,
}

impl Mkey {
    /// A key of a registration: open to every queue pair of its domain, and only its owner ends it.
    pub fn new(pd: PdId, iova: u64, access: Access, umem: Arc<Umem>) -> Mkey {
        Mkey { pd, iova, access, umem, qpn: None, invalidated_by_peers: false, signed: None }
    }

    /// Whether peers of every queue pair of its domain may reach its memory as it is.
    pub fn is_plain(&self) -> bool {
        let remote = self.access.intersects(Access::REMOTE_WRITE | Access::REMOTE_READ);
        remote && self.signed.is_none() && self.qpn.is_none()
    }

    /// Whether peers of `qpn` may use it.
    pub(crate) fn is_open_to(&self, qpn: u32) -> bool {
        self.qpn.is_none_or(|own| own == qpn)
    }

    pub(crate) fn resolve(
        &self,
        pd: PdId,
        va: u64,
        len: u64,
        access: Access,
    ) -> std::result::Result<MemRef, KeyError> {
        check_rights(self.pd == pd, self.access, access)?;
        self.range(va, len)
    }

    /// As [`Mkey::resolve`], with the block signatures of this key, whose number is `key`.
    pub(super) fn resolve_span(
        &self,
        key: u32,
        pd: PdId,
        span: Span,
        access: Access,
    ) -> std::result::Result<MemRef, KeyError> {
        let Some((va, len)) = span.part() else {
            return self.resolve(pd, self.iova, self.umem.len(), access);
        };
        let Some(signed) = &self.signed else { return self.resolve(pd, va, len, access) };
        check_rights(self.pd == pd, self.access, access)?;
        let offset = va.checked_sub(self.iova).ok_or(KeyError::Range)?;
        let on_wire = signed.range(offset, len, span.is_local())?;
        signed.resolve(key, on_wire, self.umem.len(), |offset, len| {
            MemRef::within(&self.umem, 0, offset, len)
        })
    }

    /// The `len` bytes from `va` on, if all are in the registration.
    pub(crate) fn range(&self, va: u64, len: u64) -> std::result::Result<MemRef, KeyError> {
        MemRef::within(&self.umem, self.iova, va, len)
    }
}
