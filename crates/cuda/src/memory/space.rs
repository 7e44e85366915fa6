//! The addresses that the driver gave out or was told of.

use super::physical::Physical;
use crate::sys::{Mapping, Place};
use crate::{Error, Handle, Res};
use engine_thread::{read, write};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};
use std::sync::{Arc, RwLock};

/// How a program came by addresses of a GPU's memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Origin {
    /// `cuMemAlloc`.
    Alloc,
    /// From the pool of this handle.
    Pool(Handle),
    /// From another process.
    Ipc,
    /// `cuMemMap`, of the physical memory of this handle.
    Mapped(Handle),
}

/// Addresses of a GPU's memory.
pub struct Device {
    /// The addresses themselves; those of [`Origin::Mapped`] are their reservation's.
    pub addresses: Option<Mapping>,
    /// What is behind them.
    pub physical: Arc<Physical>,
    /// From where in that.
    pub offset: u64,
    /// Where they came from.
    pub origin: Origin,
    /// Which devices may use them: only [`Origin::Mapped`] begins without.
    pub access: DeviceAccess,
}

/// What each device may do at a range of addresses (`CUmemAccess_flags`), by its ordinal.
pub struct DeviceAccess(AtomicU64);

impl DeviceAccess {
    /// Bits of one device's flags.
    const BITS: u32 = 2;
    /// Devices that there is room for.
    pub const DEVICES: u32 = u64::BITS / DeviceAccess::BITS;

    /// Every device may do everything.
    pub fn all() -> DeviceAccess {
        DeviceAccess(AtomicU64::new(u64::MAX))
    }

    /// No device may do anything.
    pub fn none() -> DeviceAccess {
        DeviceAccess(AtomicU64::new(0))
    }

    /// Flags of one device.
    pub fn of(&self, ordinal: u32) -> u32 {
        (self.0.load(Acquire) >> (ordinal % DeviceAccess::DEVICES * DeviceAccess::BITS)) as u32 & 3
    }

    /// Sets them.
    pub fn set(&self, ordinal: u32, flags: u32) {
        let at = ordinal % DeviceAccess::DEVICES * DeviceAccess::BITS;
        let set = |word: u64| Some(word & !(3 << at) | u64::from(flags & 3) << at);
        let _ = self.0.fetch_update(AcqRel, Acquire, set);
    }

    fn is_any(&self) -> bool {
        self.0.load(Acquire) != 0
    }
}

/// What is at a range of addresses.
pub enum Memory {
    /// Memory behind a GPU's addresses.
    Device(Device),
    /// Host memory that the driver allocated, with the flags of `cuMemHostAlloc`.
    Host(Mapping, u32),
    /// Host memory of the program's that it registered, with those of `cuMemHostRegister`.
    Registered(u32),
    /// Memory of both (`cuMemAllocManaged`).
    Managed(Mapping),
}

/// A range of addresses.
pub struct Range {
    /// First address.
    pub start: u64,
    /// Length in bytes, as it was asked for.
    pub len: u64,
    /// A number of its own in this process.
    pub id: u64,
    /// The context that it was made in; 0 for what belongs to none.
    pub context: Handle,
    /// Ordinal of the device that it was made for.
    pub ordinal: i32,
    /// What is there.
    pub memory: Memory,
    /// `CU_POINTER_ATTRIBUTE_SYNC_MEMOPS`.
    pub syncs: AtomicBool,
    /// Somebody is about to give it back, maybe a stream.
    goes: AtomicBool,
    /// It was given back: no space has it any more.
    is_gone: AtomicBool,
}

impl Drop for Range {
    fn drop(&mut self) {
        super::exported::forget(self.id);
    }
}

impl Range {
    /// A range that is not in any space yet.
    pub fn new(start: u64, len: u64, context: Handle, ordinal: i32, memory: Memory) -> Range {
        static IDS: AtomicU64 = AtomicU64::new(1);
        let id = IDS.fetch_add(1, Relaxed);
        let [syncs, goes, is_gone] = [const { AtomicBool::new(false) }; 3];
        Range { start, len, id, context, ordinal, memory, syncs, goes, is_gone }
    }

    /// Whether the caller is the first to give it back.
    pub(super) fn is_mine_to_free(&self) -> bool {
        !self.goes.swap(true, AcqRel)
    }

    /// Whether it was given back.
    pub(super) fn is_gone(&self) -> bool {
        self.is_gone.load(Acquire)
    }

    fn went(range: Arc<Range>) -> Arc<Range> {
        range.is_gone.store(true, Release);
        range
    }

    /// The address behind its last one.
    pub fn end(&self) -> u64 {
        self.start + self.len
    }

    /// The memory behind a GPU's addresses.
    pub fn device(&self) -> Option<&Device> {
        match &self.memory {
            Memory::Device(device) => Some(device),
            _ => None,
        }
    }

    /// `len` of its bytes from an address on, as the driver reaches them.
    pub(crate) fn place(&self, addr: u64, len: u64) -> Res<Place> {
        let from = addr.checked_sub(self.start).ok_or(Error::INVALID_VALUE)?;
        let to = from.checked_add(len).filter(|to| *to <= self.len).ok_or(Error::INVALID_VALUE)?;
        let (whole, offset) = match &self.memory {
            Memory::Device(device) if !device.access.is_any() => {
                return Err(Error::INVALID_VALUE);
            }
            Memory::Device(device) => (device.physical.place(), device.offset),
            Memory::Host(mapping, _) | Memory::Managed(mapping) => (mapping.place(), 0),
            Memory::Registered(_) => return Ok(crate::sys::Place::of_program(addr, len)),
        };
        whole.part(offset + from..offset + to).ok_or(Error::INVALID_VALUE)
    }
}

#[derive(Default)]
struct Tables {
    ranges: BTreeMap<u64, Arc<Range>>,
    reserved: BTreeMap<u64, Arc<Mapping>>,
}

impl Tables {
    /// Takes out memory that a program registered and gave back without a word: its addresses are
    /// others' now.
    fn take_stale(&mut self, start: u64, end: u64) -> Vec<Arc<Range>> {
        let is_registered = |range: &Range| matches!(range.memory, Memory::Registered(_));
        let before = self.ranges.range(..start).next_back();
        let first = before.filter(|(_, range)| range.end() > start).map_or(start, |(at, _)| *at);
        let stale = self.ranges.extract_if(first..end, |_, range| is_registered(range));
        stale.map(|(_, range)| Range::went(range)).collect()
    }
}

/// All ranges by their first address, and reservations.
#[derive(Default)]
pub struct Space {
    tables: RwLock<Tables>,
}

impl Space {
    /// Adds a range of addresses that nobody had: they were mapped just now.
    pub fn add(&self, range: Range) -> Arc<Range> {
        let range = Arc::new(range);
        let mut tables = write(&self.tables);
        let stale = tables.take_stale(range.start, range.end());
        tables.ranges.insert(range.start, range.clone());
        drop(tables);
        drop(stale);
        range
    }

    /// Adds a range unless one is there that it touches.
    ///
    /// # Errors
    /// `otherwise`.
    pub fn add_if_free(&self, range: Range, otherwise: Error) -> Res<Arc<Range>> {
        let mut tables = write(&self.tables);
        let before = tables.ranges.range(..range.end()).next_back();
        if before.is_some_and(|(_, other)| other.end() > range.start) {
            return Err(otherwise);
        }
        let range = Arc::new(range);
        tables.ranges.insert(range.start, range.clone());
        Ok(range)
    }

    /// The range that an address is in.
    pub fn at(&self, addr: u64) -> Option<Arc<Range>> {
        let tables = read(&self.tables);
        let (_, range) = tables.ranges.range(..=addr).next_back()?;
        (addr < range.end()).then(|| range.clone())
    }

    /// The range that begins at an address, if it is meant.
    ///
    /// # Errors
    /// `CUDA_ERROR_INVALID_VALUE` where no such one begins.
    pub fn starting_at(&self, start: u64, is_meant: impl Fn(&Range) -> bool) -> Res<Arc<Range>> {
        let found = read(&self.tables).ranges.get(&start).cloned();
        found.filter(|range| is_meant(range)).ok_or(Error::INVALID_VALUE)
    }

    /// Takes that out.
    ///
    /// # Errors
    /// As [`Space::starting_at`].
    pub fn remove(&self, start: u64, is_meant: impl Fn(&Range) -> bool) -> Res<Arc<Range>> {
        let mut tables = write(&self.tables);
        let found = tables.ranges.get(&start).filter(|range| is_meant(range));
        if found.is_none() {
            return Err(Error::INVALID_VALUE);
        }
        tables.ranges.remove(&start).map(Range::went).ok_or(Error::INVALID_VALUE)
    }

    /// Takes out what was made in a context.
    pub fn remove_of(&self, context: Handle) -> Vec<Arc<Range>> {
        self.remove_where(|range| range.context == context)
    }

    /// Takes out all that are meant.
    pub fn remove_where(&self, is_meant: impl Fn(&Range) -> bool) -> Vec<Arc<Range>> {
        let mut tables = write(&self.tables);
        let meant = tables.ranges.extract_if(.., |_, range| is_meant(range));
        meant.map(|(_, range)| Range::went(range)).collect()
    }

    /// All that are meant, in the order of their addresses.
    pub fn filter(&self, is_meant: impl Fn(&Range) -> bool) -> Vec<Arc<Range>> {
        read(&self.tables).ranges.values().filter(|range| is_meant(range)).cloned().collect()
    }

    /// Keeps reserved addresses, which nobody had before.
    pub fn add_reserved(&self, mapping: Mapping) -> u64 {
        let start = mapping.addr();
        let mut tables = write(&self.tables);
        let stale = tables.take_stale(start, start + mapping.len());
        tables.reserved.insert(start, Arc::new(mapping));
        drop(tables);
        drop(stale);
        start
    }

    /// The reservation that `len` addresses are in.
    ///
    /// # Errors
    /// `CUDA_ERROR_INVALID_VALUE`.
    pub fn reserved(&self, addr: u64, len: u64) -> Res<Arc<Mapping>> {
        let end = addr.checked_add(len).ok_or(Error::INVALID_VALUE)?;
        let tables = read(&self.tables);
        let found = tables.reserved.range(..=addr).next_back().map(|(_, mapping)| mapping.clone());
        found.filter(|found| end <= found.addr() + found.len()).ok_or(Error::INVALID_VALUE)
    }

    /// Takes out a reservation that nothing is mapped in.
    ///
    /// # Errors
    /// `CUDA_ERROR_INVALID_VALUE`.
    pub fn remove_reserved(&self, start: u64, len: u64) -> Res<Arc<Mapping>> {
        let mut tables = write(&self.tables);
        let whole = tables.reserved.get(&start).is_some_and(|mapping| mapping.len() == len);
        let end = start.saturating_add(len);
        if !whole || tables.ranges.range(start..end).next().is_some() {
            return Err(Error::INVALID_VALUE);
        }
        tables.reserved.remove(&start).ok_or(Error::INVALID_VALUE)
    }
}
