//! Pages of this process that live in a device's memory (`MEMORY_DEVICE_PRIVATE`,
//! `mm/migrate_device.c`).
//!
//! [`PrivateMemory::migrate`] moves pages there, a touch by a processor brings them home:
//! userfaultfd(2) hands the fault to a thread here. A migration write-protects a page, copies it
//! and drops it, so that no store is lost that happens meanwhile: it faults, waits, and lands in
//! the page when that has come home. Pages move in private, anonymous memory that may be written;
//! those that a registration holds in place stay, as pinned ones do.
//!
//! # Who waits for whom
//! Two threads serve. The *reader* takes the kernel's events and never waits for anybody: it
//! answers what needs no more than that (pages never touched, mappings moved or gone) and hands on
//! the rest. The *mover* brings pages home; it waits for devices inside a mirror, which touch only
//! pages that are there. Neither allocates, for a thread that waits for its page may be inside
//! `malloc`, nor touches memory that can be migrated.
//!
//! Calls that go past the interposed ones are seen by their events too, with one exception: a
//! discard of pages that are just being migrated has no effect.

mod moves;
mod serve;
#[cfg(all(test, not(loom)))]
mod tests;
mod vma;

use crate::guard::{Fault, Sink, Source};
use crate::map::populate;
use crate::page_size;
use crate::space::{AddressSpace, Migration};
use crate::sparse::Sparse;
use crate::uffd::Uffd;
use engine_thread::lock;
use serve::Work;
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering::*};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};

/// Pages that migrate at a time.
const CHUNK: u64 = 64;
/// Devices of a process.
const DEVICES: usize = 63;

// An entry is the page's place in a device's memory, or 0. Below the lowest bit of an address it
// has the following.
/// Which device, from 1.
const TAG: u64 = 0x3f;
/// On its way to a device.
const MOVING: u64 = 1 << 6;
/// Unmapped or discarded; only the place remains to be given back.
const DEAD: u64 = 1 << 7;
const FRAME: u64 = !0xfff;

/// The memory of a device that can hold pages of processes (`struct dev_pagemap`). A frame holds
/// one page and is named by its address in this process, which is no memory of the program's.
pub trait DeviceMemory: Send + Sync {
    /// The device, which owns the pages in its memory (`pgmap->owner`).
    fn owner(&self) -> pcie::Address;
    /// Takes up to `most` free frames and names them, each a page.
    fn take(&self, most: usize, taken: &mut dyn FnMut(Sink<'static>));
    /// Takes a frame back. Must not allocate, free or wait.
    fn give(&self, frame: Sink<'static>);
    /// Where peers reach a frame (`get_dma_pfn_for_device` of the series of 2025): an address of
    /// this process, as [`crate::Pages`] has it. `None` if the device shows it to nobody.
    fn dma_address(&self, frame: u64) -> Option<u64>;
}

/// Why nothing was migrated.
#[derive(Debug, thiserror::Error)]
pub enum MigrateError {
    /// Not whole pages, or none (EINVAL).
    #[error("not a range of whole pages")]
    Misaligned,
    /// No page of the range is in private, anonymous memory that may be written (EFAULT).
    #[error("no private anonymous memory that may be written: nothing that could be migrated")]
    NotMovable,
    /// The device's memory is full, or the process has too many devices (ENOMEM).
    #[error("the device has no memory left")]
    Full,
    /// The kernel does not hand over page faults.
    #[error(
        "userfaultfd: {0}; it needs CAP_SYS_PTRACE, vm.unprivileged_userfaultfd=1 or access to \
         /dev/userfaultfd"
    )]
    Userfaultfd(#[from] io::Error),
}

impl MigrateError {
    /// The errno at the C ABI.
    pub fn errno(&self) -> i32 {
        match self {
            MigrateError::Misaligned => libc::EINVAL,
            MigrateError::NotMovable => libc::EFAULT,
            MigrateError::Full => libc::ENOMEM,
            MigrateError::Userfaultfd(error) => error.raw_os_error().unwrap_or(libc::EPERM),
        }
    }
}

/// What has happened so far, in pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct MigrationCounts {
    /// Moved to devices.
    pub to_device: u64,
    /// Brought home.
    pub to_host: u64,
}

/// Who asks for pages, and what for (`struct hmm_range`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RangeFault {
    /// Whether they are to be written (`HMM_PFN_REQ_WRITE`). They are faulted in either way
    /// (`HMM_PFN_REQ_FAULT`).
    pub write: bool,
    /// Take device pages where they are, if their device shows them to peers (`HMM_PFN_ALLOW_P2P`).
    pub allow_p2p: bool,
    /// The device that asks, if its own pages are to be left where they are (`dev_private_owner`).
    pub owner: Option<pcie::Address>,
}

/// A page that is in a device's memory, as [`PrivateMemory::range_fault`] finds it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DevicePage {
    /// The asking device's own: the frame.
    Own {
        /// Address of the page.
        at: u64,
        /// Its place.
        frame: u64,
    },
    /// Another's, which peers reach.
    Peer {
        /// Address of the page.
        at: u64,
        /// Whose.
        device: pcie::Address,
        /// Where peers reach it.
        dma: u64,
    },
}

/// The pages of a process in devices' memories.
pub struct PrivateMemory {
    /// The process that it is of. A forked child has the memory of the processors only.
    pid: u32,
    space: Arc<AddressSpace>,
    uffd: Uffd,
    /// Where each page is, by its number.
    entries: Sparse,
    devices: Box<[OnceLock<Arc<dyn DeviceMemory>>]>,
    /// Guards an entry together with what is done to its page; held for moments.
    lock: Mutex<()>,
    /// One migration at a time, either way.
    turn: Mutex<()>,
    work: Work,
    /// Pages in devices' memories now.
    away: AtomicU64,
    to_device: AtomicU64,
    to_host: AtomicU64,
}

/// While it lives no page leaves home, and none is away.
pub struct AllHome<'a> {
    _turn: MutexGuard<'a, ()>,
}

static PROCESS: OnceLock<&'static PrivateMemory> = OnceLock::new();

fn addr_of(number: u64) -> u64 {
    number * page_size()
}

/// The frame that an entry names.
fn frame(entry: u64) -> Sink<'static> {
    // SAFETY: entries name only what a device's `take` gave, which is vouched for.
    unsafe { Sink::vouched(entry & FRAME, page_size()) }
}

/// The program's page at an address.
fn home_page(at: u64) -> Source<'static> {
    // SAFETY: the program gave the page to be moved, and no reference of ours points into it.
    unsafe { Source::vouched(at, page_size()) }
}

/// The runs of ones in `bits`, as pages from `start` on.
fn runs(start: u64, bits: u64) -> impl Iterator<Item = Range<u64>> {
    let page = page_size();
    let mut from = 0;
    std::iter::from_fn(move || {
        let left = bits.checked_shr(from)?;
        if left == 0 {
            return None;
        }
        let first = from + left.trailing_zeros();
        let len = (bits >> first).trailing_ones();
        from = first + len;
        Some(start + u64::from(first) * page..start + u64::from(from) * page)
    })
}

impl PrivateMemory {
    /// Starts serving a space: this process's, or in a test one of its own. Never ends.
    ///
    /// # Errors
    /// userfaultfd(2)'s, or no thread can be had.
    fn start(space: Arc<AddressSpace>) -> io::Result<&'static PrivateMemory> {
        let private = Box::leak(Box::new(PrivateMemory {
            pid: std::process::id(),
            space,
            uffd: Uffd::new()?,
            entries: Sparse::new(),
            devices: (0..DEVICES).map(|_| OnceLock::new()).collect(),
            lock: Mutex::new(()),
            turn: Mutex::new(()),
            work: Work::new(),
            away: AtomicU64::new(0),
            to_device: AtomicU64::new(0),
            to_host: AtomicU64::new(0),
        }));
        serve::start(private)?;
        private.space.migrates_by(private);
        Ok(private)
    }

    /// That of this process, started by the first call.
    ///
    /// # Errors
    /// userfaultfd(2)'s; ENODEV in a forked child of a process that has one.
    pub fn process() -> io::Result<&'static PrivateMemory> {
        static STARTING: Mutex<()> = Mutex::new(());
        let _starting = lock(&STARTING);
        if let Some(private) = PROCESS.get() {
            let ours = private.pid == std::process::id();
            return if ours {
                Ok(private)
            } else {
                Err(io::Error::from_raw_os_error(libc::ENODEV))
            };
        }
        let private = PrivateMemory::start(AddressSpace::process())?;
        Ok(PROCESS.get_or_init(|| private))
    }

    /// That of this process, if any page ever migrated.
    #[inline]
    pub fn running() -> Option<&'static PrivateMemory> {
        PROCESS.get().copied().filter(|private| private.pid == std::process::id())
    }

    /// What has happened so far.
    pub fn counts(&self) -> MigrationCounts {
        MigrationCounts {
            to_device: self.to_device.load(Relaxed),
            to_host: self.to_host.load(Relaxed),
        }
    }

    /// Moves the pages of `range` to `device` (`migrate_vma_setup`, `_pages`, `_finalize`). Those
    /// that are at a device already, are held in place or cannot be migrated are left out. Gives
    /// how many moved.
    ///
    /// # Errors
    /// Nothing moved because of what [`MigrateError`] says.
    pub fn migrate(
        &self,
        range: &Range<u64>,
        device: &Arc<dyn DeviceMemory>,
    ) -> Result<u64, MigrateError> {
        let page = page_size();
        let aligned = range.start.is_multiple_of(page) && range.end.is_multiple_of(page);
        if !aligned || range.start >= range.end {
            return Err(MigrateError::Misaligned);
        }
        let tag = self.tag(device).ok_or(MigrateError::Full)?;
        let parts = vma::movable(range);
        let mut moved = 0;
        let mut end = if parts.is_empty() { Err(MigrateError::NotMovable) } else { Ok(()) };
        for part in parts {
            let claim = |piece: &Range<u64>| self.uffd.register(piece);
            if let Err(error) = self.space.each_unpinned(&part, claim) {
                end = Err(error.into());
                continue;
            }
            if (part.start / page..part.end / page).any(|n| self.entries.make(n).is_none()) {
                end = Err(MigrateError::Full);
                break;
            }
            for at in (part.start..part.end).step_by((CHUNK * page) as usize) {
                let chunk = at..part.end.min(at + CHUNK * page);
                let Some(more) = self.migrate_chunk(&chunk, tag, &**device) else {
                    end = Err(MigrateError::Full);
                    break;
                };
                moved += more;
            }
        }
        if moved == 0 { end.map(|()| 0) } else { Ok(moved) }
    }

    /// Brings the pages of `range` home. Gives how many came.
    pub fn home(&self, range: &Range<u64>) -> u64 {
        let mut came = 0;
        let mut from = range.start / page_size();
        let end = range.end.div_ceil(page_size());
        while let Some(first) = self.next_away(from..end) {
            let chunk = first..end.min(first + CHUNK);
            came += self.home_chunk(&lock(&self.turn), &chunk);
            from = chunk.end;
        }
        came
    }

    /// Brings everything home and lets nothing leave while the answer lives: for a fork, whose
    /// child has the memory of the processors only. However long that takes: of a page that stayed
    /// away the child would read zeros.
    pub fn all_home(&self) -> AllHome<'_> {
        let turn = lock(&self.turn);
        let mut from = 0;
        while let Some(first) = self.next_away(from..u64::MAX) {
            self.home_chunk(&turn, &(first..first + CHUNK));
            from = first + CHUNK;
        }
        AllHome { _turn: turn }
    }

    /// Makes sure of pages for a device (`hmm_range_fault`): what is not there is faulted in, and
    /// each page in a device's memory is, in this order, left to its owner if that asks, shown to a
    /// peer that may be, or brought home. Names those that are in a device's memory, in order, and
    /// counts those brought home. They may move as soon as this returns; a [`crate::Mirror`]
    /// notices.
    ///
    /// # Errors
    /// Part of the range is not mapped, or not for this access.
    pub fn range_fault(
        &self,
        range: &Range<u64>,
        how: RangeFault,
        found: &mut dyn FnMut(DevicePage),
    ) -> Result<u64, Fault> {
        let page = page_size();
        // as in `settle`: what went before this call has been heard of
        drop(lock(&self.lock));
        let mut came = 0;
        let mut host = range.start;
        let mut outcome = Ok(());
        self.entries.each(&(range.start / page..range.end / page), |number, word| {
            let entry = word.load(Acquire);
            if outcome.is_err() || entry & (MOVING | DEAD) != 0 || entry & FRAME == 0 {
                // one that moves is waited for as host memory
                return;
            }
            let at = addr_of(number);
            let Some(page_found) = self.offered(at, entry, how) else {
                came += self.home(&(at..at + page));
                return;
            };
            if host < at {
                outcome = populate(host, at - host, how.write);
            }
            host = at + page;
            found(page_found);
        });
        outcome?;
        if host < range.end {
            populate(host, range.end - host, how.write)?;
        }
        Ok(came)
    }

    fn offered(&self, at: u64, entry: u64, how: RangeFault) -> Option<DevicePage> {
        let (device, frame) = (self.device(entry)?, entry & FRAME);
        let owner = device.owner();
        if how.owner == Some(owner) {
            return Some(DevicePage::Own { at, frame });
        }
        let dma = device.dma_address(frame).filter(|_| how.allow_p2p)?;
        Some(DevicePage::Peer { at, device: owner, dma })
    }

    fn tag(&self, device: &Arc<dyn DeviceMemory>) -> Option<u64> {
        let same = |slot: &OnceLock<Arc<dyn DeviceMemory>>| {
            Arc::ptr_eq(slot.get_or_init(|| device.clone()), device)
        };
        self.devices.iter().position(same).map(|place| place as u64 + 1)
    }

    fn device(&self, entry: u64) -> Option<&dyn DeviceMemory> {
        let place = ((entry & TAG) as usize).checked_sub(1)?;
        self.devices.get(place)?.get().map(|device| &**device)
    }

    /// The first of the pages that is away.
    fn next_away(&self, numbers: Range<u64>) -> Option<u64> {
        if self.away.load(SeqCst) == 0 {
            return None;
        }
        self.entries.first(&numbers, |_, word| word.load(Acquire) & (MOVING | DEAD) == 0)
    }

    /// Hears of mappings that went before this call, and forgets what they had.
    fn settle(&self, range: &Range<u64>) {
        let page = page_size();
        let numbers = range.start / page..range.end.div_ceil(page);
        let mut dead = false;
        {
            // whoever unmapped went on when the event was read, before it was answered
            let _guard = lock(&self.lock);
            self.entries.each(&numbers, |_, word| dead |= word.load(Acquire) & DEAD != 0);
        }
        if dead {
            self.sweep(range);
        }
    }

    /// `None` when the device has no frame left.
    fn migrate_chunk(
        &self,
        chunk: &Range<u64>,
        tag: u64,
        device: &dyn DeviceMemory,
    ) -> Option<u64> {
        let page = page_size();
        self.settle(chunk);
        let pages = (chunk.end - chunk.start) / page;
        let mut frames = [0; CHUNK as usize];
        let here = |number: &u64| self.entries.get(chunk.start / page + number) == 0;
        let bits = (0..pages).filter(here).fold(0, |bits, number| bits | 1 << number);
        for run in runs(chunk.start, bits) {
            // what was never touched is made, and what is swapped out comes back; what cannot stays
            // out below
            let _ = populate(run.start, run.end - run.start, false);
        }
        let (most, mut taken) = (bits.count_ones() as usize, 0);
        device.take(most, &mut |frame| {
            if taken < most && frame.addr() & !FRAME == 0 && frame.len() == page {
                frames[taken] = frame.addr();
                taken += 1;
            }
        });
        if taken == 0 {
            return (bits == 0).then_some(0);
        }
        let turn = lock(&self.turn);
        let moved = match self.space.begin_move(chunk.clone()) {
            None => 0,
            Some(change) => {
                let moved = self.send(chunk, tag, &mut frames[..taken]);
                self.space.end_move(chunk.clone(), change);
                moved
            }
        };
        drop(turn);
        frames.iter().filter(|frame| **frame != 0).for_each(|&at| device.give(frame(at)));
        Some(moved)
    }
}

impl Migration for PrivateMemory {
    fn release(&self, range: &Range<u64>) {
        if self.pid != std::process::id() {
            return;
        }
        let turn = lock(&self.turn);
        let mut from = range.start / page_size();
        let end = range.end.div_ceil(page_size());
        while let Some(first) = self.next_away(from..end) {
            from = end.min(first + CHUNK);
            self.home_chunk(&turn, &(first..from));
        }
        self.uffd.unregister(range);
    }
}
