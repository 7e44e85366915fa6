//! The MKEY table: key and rights to a registration. Every check of a key happens in [`KeyTable::resolve`].
//!
//! A key is a 24-bit index and an 8-bit tag. Tags start at random and change with every use of an index, and
//! indices are reused as late as possible, so a stale key of an earlier registration, or of a dead process, hits
//! nothing.

use crate::error::{Error, Result};
use crate::sabotage::{self, Sabotage};
use crate::types::Access;
use std::collections::VecDeque;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use umem::{AccessError, AtomicOp, Umem};

/// Keys that one device can hold: the directory has a place for each.
pub const MAX_KEYS: usize = 1 << 16;

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

    /// Whether the range is empty.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Copies out from `at`, counted from the start of the range.
    pub fn read(&self, at: u64, dst: &mut [u8]) -> std::result::Result<(), AccessError> {
        let offset = self.place(at, dst.len())?;
        self.umem.enter()?.read(offset, dst)
    }

    /// Copies in at `at`.
    pub fn write(&self, at: u64, src: &[u8]) -> std::result::Result<(), AccessError> {
        let offset = self.place(at, src.len())?;
        self.umem.enter()?.write(offset, src)
    }

    /// One atomic on the word at the start of the range.
    pub fn atomic(&self, op: AtomicOp) -> std::result::Result<u64, AccessError> {
        let offset = self.place(0, 8)?;
        self.umem.enter()?.atomic(offset, op)
    }

    fn place(&self, at: u64, len: usize) -> std::result::Result<u64, AccessError> {
        match at.checked_add(len as u64) {
            Some(end) if end <= self.len => Ok(self.offset + at),
            _ => Err(AccessError::OutOfRange),
        }
    }
}

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
}

struct Slot {
    tag: u8,
    mkey: Option<Mkey>,
}

struct Slots {
    slots: Vec<Slot>,
    free: VecDeque<u32>,
}

/// All keys of one device.
///
/// One lock guards the table. It is never held while memory is touched: [`KeyTable::resolve`] hands out a
/// [`MemRef`], whose accesses enter the registration itself.
pub struct KeyTable {
    slots: RwLock<Slots>,
    random: RandomState,
}

impl Default for KeyTable {
    fn default() -> KeyTable {
        KeyTable::new()
    }
}

impl KeyTable {
    /// An empty table whose key tags start at random.
    pub fn new() -> KeyTable {
        // Index 0 stays empty: a zeroed key must never be valid.
        let slots = vec![Slot { tag: 0, mkey: None }];
        KeyTable {
            slots: RwLock::new(Slots { slots, free: VecDeque::new() }),
            random: RandomState::new(),
        }
    }

    fn read(&self) -> RwLockReadGuard<'_, Slots> {
        self.slots.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Slots> {
        self.slots.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Installs a key over `umem`; lkey and rkey are the same number.
    ///
    /// # Errors
    /// [`Error::NoMemory`] when the device has no key left.
    pub fn insert(&self, pd: PdId, umem: Arc<Umem>, iova: u64, access: Access) -> Result<u32> {
        let mkey = Mkey { pd, iova, access, umem };
        let mut table = self.write();
        let index = if table.slots.len() < MAX_KEYS {
            let index = table.slots.len() as u32;
            let tag = self.random.hash_one(index) as u8;
            table.slots.push(Slot { tag, mkey: None });
            index
        } else {
            table.free.pop_front().ok_or(Error::NoMemory("all memory keys are in use"))?
        };
        let slot = &mut table.slots[index as usize];
        slot.tag = slot.tag.wrapping_add(1);
        slot.mkey = Some(mkey);
        Ok(index << 8 | u32::from(slot.tag))
    }

    /// Changes what `key` stands for (re-registration); the number stays.
    pub fn replace(&self, key: u32, mkey: Mkey) -> Result<Mkey> {
        let mut table = self.write();
        let slot = table.find_mut(key).ok_or(Error::Invalid("no such key"))?;
        slot.mkey.replace(mkey).ok_or(Error::Invalid("no such key"))
    }

    /// Removes a key and revokes its memory; returns once no access through it is in progress.
    pub fn remove(&self, key: u32) -> Result<()> {
        let mkey = {
            let mut table = self.write();
            let slot = table.find_mut(key).ok_or(Error::Invalid("no such key"))?;
            let mkey = slot.mkey.take();
            table.free.push_back(key >> 8);
            mkey
        };
        if let Some(mkey) = mkey {
            mkey.umem.revoke();
        }
        Ok(())
    }

    /// What `key` stands for.
    pub fn get(&self, key: u32) -> Option<Mkey> {
        self.read().find(key).cloned()
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
    ) -> std::result::Result<MemRef, KeyError> {
        let table = self.read();
        let mkey = table.find(key).ok_or(KeyError::Unknown)?;
        if mkey.pd != pd && !sabotage::on(Sabotage::SkipPdCheck) {
            return Err(KeyError::ForeignPd);
        }
        if !mkey.access.contains(access) && !sabotage::on(Sabotage::SkipKeyAccess) {
            return Err(KeyError::Denied);
        }
        let offset = va.checked_sub(mkey.iova).ok_or(KeyError::Range)?;
        let end = offset.checked_add(len).ok_or(KeyError::Range)?;
        if end > mkey.umem.len() && !sabotage::on(Sabotage::SkipRangeCheck) {
            return Err(KeyError::Range);
        }
        Ok(MemRef { umem: mkey.umem.clone(), offset, len })
    }

    /// Invalidates a key by a local or remote invalidate. Only memory windows of type 2 can be invalidated (IBA
    /// 10.6.7.2.4) and keys of registrations are none, so every key is refused.
    pub fn invalidate(&self, pd: PdId, key: u32) -> std::result::Result<(), KeyError> {
        let table = self.read();
        let mkey = table.find(key).ok_or(KeyError::Unknown)?;
        Err(if mkey.pd == pd { KeyError::Denied } else { KeyError::ForeignPd })
    }
}

impl Slots {
    fn find(&self, key: u32) -> Option<&Mkey> {
        let slot = self.slots.get((key >> 8) as usize)?;
        if slot.tag == key as u8 || sabotage::on(Sabotage::SkipRkeyCheck) {
            slot.mkey.as_ref()
        } else {
            None
        }
    }

    fn find_mut(&mut self, key: u32) -> Option<&mut Slot> {
        let slot = self.slots.get_mut((key >> 8) as usize)?;
        (slot.tag == key as u8 && slot.mkey.is_some()).then_some(slot)
    }
}
