//! The MKEY table: key and rights to a registration. Every check of a key happens in [`KeyTable::resolve`].
// SKELETON: bodies follow.

use crate::types::Access;
use std::sync::Arc;
use umem::{AccessError, AtomicOp, Umem};

/// Identity of a protection domain within one device.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct PdId(pub u32);

/// Why a key does not give access (IBA 10.6.3: all are one "access violation" to the peer).
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum KeyError {
    /// No such key, or one of an earlier registration.
    #[error("no such key")]
    Unknown,
    /// The key belongs to another protection domain.
    #[error("key of another protection domain")]
    ForeignPd,
    /// The key lacks the right.
    #[error("the key does not grant this access")]
    Denied,
    /// The range leaves the registration.
    #[error("range outside the registration")]
    Range,
}

/// A checked range under a key. Holding it keeps the key's memory object, not its mapping: each access enters anew and
/// fails once the key is gone.
#[derive(Clone)]
pub struct MemRef {
    umem: Arc<Umem>,
    offset: u64,
    len: u64,
}

impl MemRef {
    /// Length in bytes.
    pub fn len(&self) -> u64 {
        self.len
    }
    /// Copies out from `at`, counted from the start of the range.
    pub fn read(&self, at: u64, dst: &mut [u8]) -> Result<(), AccessError> {
        self.umem.enter()?.read(self.offset + at, dst)
    }
    /// Copies in at `at`.
    pub fn write(&self, at: u64, src: &[u8]) -> Result<(), AccessError> {
        self.umem.enter()?.write(self.offset + at, src)
    }
    /// One atomic on the word at the start of the range.
    pub fn atomic(&self, op: AtomicOp) -> Result<u64, AccessError> {
        self.umem.enter()?.atomic(self.offset, op)
    }
}

/// All keys of one device.
pub struct KeyTable;

impl KeyTable {
    /// An empty table whose key tags start at random.
    pub fn new() -> KeyTable {
        todo!()
    }
    /// Installs a key over `umem`; lkey and rkey are the same number.
    pub fn insert(&self, pd: PdId, umem: Arc<Umem>, iova: u64, access: Access) -> crate::Result<u32> {
        let _ = (pd, umem, iova, access);
        todo!()
    }
    /// Removes a key; returns once no access through it is in progress.
    pub fn remove(&self, key: u32) -> crate::Result<()> {
        let _ = key;
        todo!()
    }
    /// Checks key, PD, rights (all bits of `access`; LOCAL_READ is the empty set) and range. A length of 0 resolves
    /// for any key (IBA 9.7.4.1.6): callers skip the call then.
    pub fn resolve(
        &self,
        pd: PdId,
        key: u32,
        va: u64,
        len: u64,
        access: Access,
    ) -> Result<MemRef, KeyError> {
        let _ = (pd, key, va, len, access);
        todo!()
    }
    /// Invalidates a key by a local or remote invalidate; only type-2 windows allow it.
    pub fn invalidate(&self, pd: PdId, key: u32) -> Result<(), KeyError> {
        let _ = (pd, key);
        todo!()
    }
}
