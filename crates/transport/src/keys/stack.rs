//! The keys of Data Direct: of its function, and those over them.

use super::stacked::{Crossing, Ksm, Physical};
use super::table::{Entry, KeyTable};
use crate::error::{Error, Result};
use crate::values::{Access, PdId};
use std::sync::Arc;
use umem::Umem;

/// What a stack of a crossing key and a KSM key is made from.
pub struct StackInit {
    /// The key of the function ([`KeyTable::insert_physical`]), and the domain that it is in.
    pub physical: (u32, PdId),
    /// The program's domain.
    pub pd: PdId,
    /// Address of the first byte.
    pub iova: u64,
    /// Rights.
    pub access: Access,
    /// The memory, attached as the function.
    pub memory: Arc<Umem>,
}

impl KeyTable {
    /// A key whose addresses are those the Data Direct function puts on the bus.
    ///
    /// # Errors
    /// [`Error::NoMemory`] when the device has no key left.
    pub fn insert_physical(&self, pd: PdId, access: Access) -> Result<u32> {
        self.install(Entry::Physical(Physical { pd, access }))
    }

    /// Ends a key of [`KeyTable::insert_physical`].
    pub fn remove_physical(&self, key: u32) {
        drop(self.write().take(key));
    }

    /// A program's key over a KSM key over the key of the function; both.
    ///
    /// # Errors
    /// [`Error::Invalid`] where the addresses end beyond 2^64, [`Error::NoMemory`] when the device
    /// has no key left.
    pub fn insert_stacked(&self, init: StackInit) -> Result<(u32, u32)> {
        let StackInit { physical: (physical, pd), iova, access, memory, .. } = init;
        let len = iova.checked_add(memory.len()).ok_or(Error::Invalid("the range wraps"))?;
        let ksm = Ksm { pd, iova, access, physical, memory: Some(memory) };
        let target = self.install(Entry::Ksm(ksm))?;
        let crossing = Crossing { pd: init.pd, access, target, len };
        let key = self.install(Entry::Crossing(crossing)).inspect_err(|_| self.take_ksm(target))?;
        Ok((key, target))
    }

    fn take_ksm(&self, key: u32) {
        let entry = self.write().take(key);
        if let Some(Entry::Ksm(Ksm { memory: Some(memory), .. })) = entry {
            memory.revoke();
        }
    }

    /// Removes a crossing key and the KSM key below it; returns once no access through them is in
    /// progress. `retract` runs before the places can be used again.
    ///
    /// # Errors
    /// [`Error::Invalid`] when there is no such key.
    pub fn remove_stacked(&self, (key, ksm): (u32, u32), retract: impl FnOnce()) -> Result<()> {
        let mut table = self.write();
        if !matches!(table.find(key), Some(Entry::Crossing(_))) {
            return Err(Error::Invalid("no such key"));
        }
        retract();
        drop(table.take(key));
        drop(table);
        self.take_ksm(ksm);
        Ok(())
    }

    /// The function is gone: removes its keys, and takes the memory from every key over them.
    pub fn take_crossed(&self, physical: [u32; 2]) -> Vec<Arc<Umem>> {
        let mut table = self.write();
        for key in physical {
            table.take(key);
        }
        let entries = table.slots.iter_mut().filter_map(|slot| slot.entry.as_mut());
        let memory = |entry: &mut Entry| match entry {
            Entry::Ksm(ksm) => ksm.memory.take(),
            _ => None,
        };
        entries.filter_map(memory).collect()
    }
}
