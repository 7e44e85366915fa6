//! The MKEY table: key and rights to a registration. Every check of a key happens in
//! [`KeyTable::resolve`].
//!
//! A key is a 7-bit salt, a 17-bit place and an 8-bit tag. Tags start at random and change with
//! every use of a place, and places are reused as late as possible, so a stale key of an earlier
//! registration, or of a dead process, hits nothing. Salts are random and never 0, so a stranger
//! does not guess a key by counting, even where whoever registers chooses the tag, as the drivers
//! of a guest do.

use super::indirect::Indirect;
use super::region::Mkey;
use super::stacked::{Crossing, Ksm, Physical};
use super::window::{Binding, Window};
use crate::error::{Error, Result};
use crate::sabotage::{self, Sabotage};
use crate::values::PdId;
use crate::values::{Access, MwType};
use engine_thread::{read, write};
use std::collections::VecDeque;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, RwLock, RwLockReadGuard, RwLockWriteGuard};
use umem::Umem;

/// Keys that one device can hold: the directory has a place for each.
pub const MAX_KEYS: usize = 1 << 17;
/// Where in a key the salt begins; below the place is the tag.
const SALT_AT: u32 = MAX_KEYS.ilog2() + TAG_BITS;
const TAG_BITS: u32 = 8;

/// What a place of the table holds.
pub(crate) enum Entry {
    /// A registration, and how many windows are bound to it.
    Region { mkey: Mkey, windows: u32 },
    /// A memory window.
    Window(Window),
    /// Whatever the Data Direct function reaches, by its DMA address.
    Physical(Physical),
    /// Parts of that, by their DMA addresses.
    Ksm(Ksm),
    /// A program's key over such parts.
    Crossing(Crossing),
    /// Parts of other keys.
    Indirect(Indirect),
}

pub(crate) struct Slot {
    salt: u8,
    pub(crate) tag: u8,
    pub(crate) entry: Option<Entry>,
}

pub(crate) struct Slots {
    pub(crate) slots: Vec<Slot>,
    free: VecDeque<u32>,
    /// Keys that there ever were.
    filed: u64,
    /// Windows that are bound.
    pub(crate) bound: usize,
}

/// All keys of one device.
///
/// One lock guards the table. It is never held while memory is touched: [`KeyTable::resolve`] hands
/// out a [`MemRef`](super::MemRef), whose accesses enter the registration itself.
pub struct KeyTable {
    slots: RwLock<Slots>,
    random: RandomState,
    /// How often what keys stand for may have changed.
    changes: AtomicU64,
}

impl Default for KeyTable {
    fn default() -> KeyTable {
        KeyTable::new()
    }
}

impl KeyTable {
    /// An empty table whose key tags start at random.
    pub fn new() -> KeyTable {
        // Place 0 stays empty: a zeroed key must never be valid.
        let slots = vec![Slot { salt: 0, tag: 0, entry: None }];
        KeyTable {
            slots: RwLock::new(Slots { slots, free: VecDeque::new(), filed: 0, bound: 0 }),
            random: RandomState::new(),
            changes: AtomicU64::new(0),
        }
    }

    pub(crate) fn read(&self) -> RwLockReadGuard<'_, Slots> {
        read(&self.slots)
    }

    pub(crate) fn write(&self) -> RwLockWriteGuard<'_, Slots> {
        let slots = write(&self.slots);
        self.changes.fetch_add(1, SeqCst);
        slots
    }

    /// A number that is another once what any key stands for has changed. Whoever keeps what a key
    /// gave asks for it first, and again before each use.
    pub(crate) fn changes(&self) -> u64 {
        self.changes.load(SeqCst)
    }

    /// Installs a key over `umem`; lkey and rkey are the same number.
    ///
    /// # Errors
    /// [`Error::NoMemory`] when the device has no key left.
    pub fn insert(&self, pd: PdId, umem: Arc<Umem>, iova: u64, access: Access) -> Result<u32> {
        self.install(Entry::Region { mkey: Mkey::new(pd, iova, access, umem), windows: 0 })
    }

    /// The same, with the low 8 bits of the key as the front end wants them.
    ///
    /// # Errors
    /// As [`KeyTable::insert`].
    pub fn insert_tagged(&self, tag: u8, mkey: Mkey) -> Result<u32> {
        self.file(Entry::Region { mkey, windows: 0 }, Some(tag))
    }

    /// Files `entry` under a new key.
    pub(crate) fn install(&self, entry: Entry) -> Result<u32> {
        self.file(entry, None)
    }

    fn file(&self, entry: Entry, tag: Option<u8>) -> Result<u32> {
        let mut table = self.write();
        let [salt, first_tag, ..] = self.random.hash_one(table.filed).to_ne_bytes();
        let place = if table.slots.len() < MAX_KEYS {
            let place = table.slots.len() as u32;
            // A key that goes finds its place among the free ones as well.
            let gone = table.slots.len() + 1 - table.free.len();
            let room = table.slots.try_reserve(1).and_then(|()| table.free.try_reserve(gone));
            room.map_err(|_| Error::NoMemory("the system has no memory for the key"))?;
            table.slots.push(Slot { salt: 0, tag: first_tag, entry: None });
            place
        } else {
            table.free.pop_front().ok_or(Error::NoMemory("all memory keys are in use"))?
        };
        table.filed += 1;
        let slot = &mut table.slots[place as usize];
        slot.salt = (salt >> (SALT_AT - 24)).max(1);
        slot.tag = tag.unwrap_or_else(|| slot.tag.wrapping_add(1));
        slot.entry = Some(entry);
        Ok(u32::from(slot.salt) << SALT_AT | place << TAG_BITS | u32::from(slot.tag))
    }

    /// Changes what `key` stands for (re-registration); the number stays.
    ///
    /// # Errors
    /// [`Error::Busy`] while windows are bound to it, [`Error::Invalid`] when the key is gone.
    pub fn replace(&self, key: u32, new: Mkey) -> Result<Mkey> {
        self.exchange(key, None, new)
    }

    /// The same, and the low 8 bits of the key become `tag`; the number that it has then.
    ///
    /// # Errors
    /// As [`KeyTable::replace`].
    pub fn replace_tagged(&self, key: u32, tag: u8, new: Mkey) -> Result<(u32, Mkey)> {
        let old = self.exchange(key, Some(tag), new)?;
        Ok((key & !0xff | u32::from(tag), old))
    }

    fn exchange(&self, key: u32, tag: Option<u8>, new: Mkey) -> Result<Mkey> {
        let mut table = self.write();
        let old = match table.find_mut(key) {
            Some(Entry::Region { windows: 1.., .. }) => return Err(BOUND),
            Some(Entry::Region { mkey, .. }) => std::mem::replace(mkey, new),
            _ => return Err(Error::Invalid("no such key")),
        };
        if let (Some(tag), Some(slot)) = (tag, table.slot_mut(key)) {
            slot.tag = tag;
        }
        Ok(old)
    }

    /// Removes the key of a registration and revokes its memory; returns once no access through it
    /// is in progress. Windows that are still bound to it lose it. `retract` runs before the place
    /// can be used again.
    ///
    /// # Errors
    /// [`Error::Invalid`] when there is no such key.
    pub fn remove(&self, key: u32, retract: impl FnOnce()) -> Result<()> {
        self.take_region(key, true, retract)
    }

    /// The same, but not while a window is bound to it (IBA 10.6.7.2.6).
    ///
    /// # Errors
    /// [`Error::Busy`] then.
    pub fn remove_unbound(&self, key: u32, retract: impl FnOnce()) -> Result<()> {
        self.take_region(key, false, retract)
    }

    fn take_region(&self, key: u32, bound_too: bool, retract: impl FnOnce()) -> Result<()> {
        let mut table = self.write();
        let windows = match table.find(key) {
            Some(Entry::Region { windows, .. }) => *windows,
            _ => return Err(Error::Invalid("no such key")),
        };
        if windows > 0 {
            if !bound_too {
                return Err(BOUND);
            }
            table.unbind_all(|_, binding| binding.region == key);
        }
        retract();
        let entry = table.take(key);
        drop(table);
        if let Some(Entry::Region { mkey, .. }) = entry {
            mkey.umem.revoke();
        }
        Ok(())
    }

    /// Whether `key` stands for a memory window.
    pub fn is_window(&self, key: u32) -> bool {
        matches!(self.read().find(key), Some(Entry::Window(_)))
    }

    /// What `look` finds at the registration that `key` stands for.
    pub(crate) fn look_at<T>(&self, key: u32, look: impl FnOnce(&Mkey) -> Option<T>) -> Option<T> {
        match self.read().find(key) {
            Some(Entry::Region { mkey, .. }) => look(mkey),
            _ => None,
        }
    }

    /// The registration that `key` stands for.
    pub fn get(&self, key: u32) -> Option<Mkey> {
        match self.read().find(key) {
            Some(Entry::Region { mkey, .. }) => Some(mkey.clone()),
            _ => None,
        }
    }
}

/// Why a registration cannot go or change.
const BOUND: Error = Error::Busy("memory windows are bound to the region");

/// Where in the table `key` is.
pub fn place_of(key: u32) -> usize {
    (key >> TAG_BITS) as usize % MAX_KEYS
}

fn is_salt_of(slot: &Slot, key: u32) -> bool {
    u32::from(slot.salt) == key >> SALT_AT || sabotage::on(Sabotage::SkipRkeyCheck)
}

impl Slots {
    /// The place of `key`, whatever its tag.
    pub(crate) fn slot(&self, key: u32) -> Option<&Slot> {
        self.slots.get(place_of(key)).filter(|slot| is_salt_of(slot, key))
    }

    /// The same, to change.
    pub(crate) fn slot_mut(&mut self, key: u32) -> Option<&mut Slot> {
        self.slots.get_mut(place_of(key)).filter(|slot| is_salt_of(slot, key))
    }

    pub(crate) fn find(&self, key: u32) -> Option<&Entry> {
        let slot = self.slot(key)?;
        if slot.tag == key as u8 || sabotage::on(Sabotage::SkipRkeyCheck) {
            slot.entry.as_ref()
        } else {
            None
        }
    }

    pub(crate) fn find_mut(&mut self, key: u32) -> Option<&mut Entry> {
        let slot = self.slot_mut(key)?;
        if slot.tag == key as u8 { slot.entry.as_mut() } else { None }
    }

    /// Empties the place of `key`, whatever its tag, for later use.
    pub(crate) fn take(&mut self, key: u32) -> Option<Entry> {
        let entry = self.slot_mut(key)?.entry.take()?;
        self.free.push_back(place_of(key) as u32);
        Some(entry)
    }

    /// Takes the memory from every window whose binding `which` picks.
    pub(crate) fn unbind_all(&mut self, which: impl Fn(MwType, &Binding) -> bool) {
        let mut regions = Vec::new();
        for slot in &mut self.slots {
            if let Some(Entry::Window(Window { mw_type, binding, .. })) = &mut slot.entry
                && let Some(gone) = binding.take_if(|binding| which(*mw_type, binding))
            {
                regions.push(gone.region);
            }
        }
        regions.into_iter().for_each(|region| self.release(region));
    }

    /// One window less is bound to `region`.
    pub(super) fn release(&mut self, region: u32) {
        self.bound -= 1;
        if let Some(Entry::Region { windows, .. }) = self.find_mut(region) {
            *windows -= 1;
        }
    }
}
