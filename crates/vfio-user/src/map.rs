//! The client's memory as the function sees it: ranges of DMA addresses over files that the client
//! handed in, or over nothing but the client itself.
//!
//! Copies run under the map's read lock and changes take its write lock, so that a range is taken
//! away only after those inside have left: that is the quiescing which DMA_UNMAP promises. A range
//! without a descriptor is reached by messages outside of the lock; there the client keeps the
//! promise, as it performs the access. Each file is mapped once and whole, because a machine with
//! an IOMMU maps single pages of its memory by the thousand.

use crate::client::Client;
use crate::neighbours::Neighbours;
use engine_thread::read;
use mm::guard::fold::Fold;
use mm::{AtomicOp, Mapping, Sink, guard};
use rustix::io::Errno;
use std::collections::{BTreeMap, HashMap};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, RwLock, RwLockReadGuard, RwLockWriteGuard, Weak};
use umem::{AccessError, DmaSpace};

/// Ranges that one client may map at a time: as many as QEMU has as its own limit.
pub(crate) const MAX_RANGES: usize = u16::MAX as usize;

/// The ranges of one function.
#[derive(Debug, Default)]
pub(crate) struct DmaMap {
    ranges: RwLock<Ranges>,
    /// Whether the driver has made the function a bus master.
    master: AtomicBool,
    /// Ranges of the client's own that may be written.
    by_messages: AtomicUsize,
    neighbours: Neighbours,
}

#[derive(Debug, Default)]
struct Ranges {
    /// By first address. They do not overlap.
    by_address: BTreeMap<u64, Range>,
    files: HashMap<FileId, Weak<Mapping>>,
    client: Option<Arc<Client>>,
}

/// A range from its key in the map to `last`, both included.
#[derive(Debug)]
struct Range {
    last: u64,
    writable: bool,
    backing: Backing,
}

#[derive(Debug)]
enum Backing {
    /// Its first byte lies at `offset` of a file's mapping.
    File { offset: u64, file: Arc<Mapping> },
    /// The client moves the bytes.
    Client,
}

impl Range {
    /// Whether whoever writes there asks the client.
    fn asks(&self) -> bool {
        self.writable && matches!(self.backing, Backing::Client)
    }
}

/// Device and inode: what makes two descriptors the same file.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct FileId(u64, u64);

/// Where one piece of an access lies.
enum Piece<'a> {
    /// Here, while the map is locked.
    Here(Sink<'a>),
    There(Arc<Client>),
}

impl DmaMap {
    pub(crate) fn beside(neighbours: Neighbours) -> DmaMap {
        DmaMap { neighbours, ..DmaMap::default() }
    }

    fn read_lock(&self) -> RwLockReadGuard<'_, Ranges> {
        read(&self.ranges)
    }

    fn write_lock(&self) -> RwLockWriteGuard<'_, Ranges> {
        engine_thread::write(&self.ranges)
    }

    /// A new client, with nothing mapped.
    pub(crate) fn connect(&self, client: Arc<Client>) {
        guard::install();
        let mut ranges = self.write_lock();
        self.by_messages.store(0, Ordering::Relaxed);
        *ranges = Ranges { client: Some(client), ..Ranges::default() };
    }

    /// The client has gone and its memory with it.
    pub(crate) fn disconnect(&self) {
        self.set_master(false);
        let _old = {
            let mut ranges = self.write_lock();
            self.by_messages.store(0, Ordering::Relaxed);
            std::mem::take(&mut *ranges)
        };
    }

    /// Whether the function may reach memory at all: bit 2 of its command register. When this
    /// answers no access that it forbids is under way.
    pub(crate) fn set_master(&self, allowed: bool) {
        self.master.store(allowed, Ordering::Release);
        drop(self.write_lock());
    }

    pub(crate) fn writes_by_messages(&self) -> bool {
        self.by_messages.load(Ordering::Relaxed) > 0
    }

    /// Maps `size` bytes of `file` from `offset` on, or of a neighbour's or the client's, at
    /// `address`.
    ///
    /// # Errors
    /// `INVAL` for a range that is empty or ends past the last address, `EXIST` for one that
    /// overlaps another, `NOSPC` for one too many, else why the file cannot be mapped.
    pub(crate) fn map(
        &self,
        address: u64,
        size: u64,
        writable: bool,
        file: Option<(OwnedFd, u64)>,
    ) -> Result<(), Errno> {
        let last = last(address, size)?;
        let mut ranges = self.write_lock();
        if ranges.by_address.range(..=last).next_back().is_some_and(|(_, r)| r.last >= address) {
            return Err(Errno::EXIST);
        }
        if ranges.by_address.len() >= MAX_RANGES {
            return Err(Errno::NOSPC);
        }
        let backing = match file {
            None => {
                let machine = ranges.client.as_ref().and_then(|client| client.machine());
                let beside =
                    machine.and_then(|machine| self.neighbours.find(machine, address, size));
                match beside {
                    Some((memory, offset)) => Backing::File { offset, file: memory },
                    None => Backing::Client,
                }
            }
            Some((file, offset)) => {
                let end = offset.checked_add(size).ok_or(Errno::INVAL)?;
                Backing::File { offset, file: ranges.whole(&file, end)? }
            }
        };
        let range = Range { last, writable, backing };
        self.by_messages.fetch_add(range.asks().into(), Ordering::Relaxed);
        ranges.by_address.insert(address, range);
        Ok(())
    }

    /// Takes away every range that lies in `[address, address + size)`. When it answers, no access
    /// to them is under way.
    ///
    /// # Errors
    /// `INVAL` for an empty range, one past the last address, or one that would cut a mapped range:
    /// nothing changes then.
    pub(crate) fn unmap(&self, address: u64, size: u64) -> Result<(), Errno> {
        let last = last(address, size)?;
        let mut ranges = self.write_lock();
        let before = ranges.by_address.range(..address).next_back();
        let cut_before = before.is_some_and(|(_, range)| range.last >= address);
        let inside = ranges.by_address.range(address..=last);
        if cut_before || inside.clone().next_back().is_some_and(|(_, range)| range.last > last) {
            return Err(Errno::INVAL);
        }
        let gone: Vec<u64> = inside.map(|(&first, _)| first).collect();
        for first in gone {
            let asked = ranges.by_address.remove(&first).is_some_and(|range| range.asks());
            self.by_messages.fetch_sub(asked.into(), Ordering::Relaxed);
        }
        Ok(())
    }

    /// Takes away every range.
    pub(crate) fn unmap_all(&self) {
        let mut ranges = self.write_lock();
        self.by_messages.store(0, Ordering::Relaxed);
        ranges.by_address.clear();
        ranges.files.clear();
    }

    /// Calls `act` for each piece of an access that one range holds: with its place, and where it
    /// lies in the access.
    fn pieces(
        &self,
        addr: u64,
        len: usize,
        write: bool,
        mut act: impl FnMut(Piece, u64, std::ops::Range<usize>) -> Result<(), AccessError>,
    ) -> Result<(), AccessError> {
        let mut done = 0;
        while done < len {
            let from = addr.checked_add(done as u64).ok_or(AccessError::Fault)?;
            let ranges = self.read_lock();
            // Under the lock: who takes the right away waits for it.
            if !self.master.load(Ordering::Acquire) {
                return Err(AccessError::Fault);
            }
            let (first, range) = ranges.find(from).ok_or(AccessError::Fault)?;
            if write && !range.writable {
                return Err(AccessError::Fault);
            }
            let room = usize::try_from(range.last - from).unwrap_or(usize::MAX).saturating_add(1);
            let piece = done..done + room.min(len - done);
            done = piece.end;
            match &range.backing {
                Backing::File { offset, file } => {
                    let bytes = file.sink().part(offset + (from - first), piece.len() as u64)?;
                    act(Piece::Here(bytes), from, piece)?;
                }
                Backing::Client => {
                    let client = ranges.client.clone().ok_or(AccessError::Fault)?;
                    drop(ranges);
                    act(Piece::There(client), from, piece)?;
                }
            }
        }
        Ok(())
    }
}

/// The last address of a range.
fn last(address: u64, size: u64) -> Result<u64, Errno> {
    size.checked_sub(1).and_then(|more| address.checked_add(more)).ok_or(Errno::INVAL)
}

impl Ranges {
    /// The range that `address` lies in, and its first address.
    fn find(&self, address: u64) -> Option<(u64, &Range)> {
        let (&first, range) = self.by_address.range(..=address).next_back()?;
        (range.last >= address).then_some((first, range))
    }

    /// The mapping of a whole file, `end` bytes at least.
    fn whole(&mut self, file: &OwnedFd, end: u64) -> Result<Arc<Mapping>, Errno> {
        let status = rustix::fs::fstat(file)?;
        let size = u64::try_from(status.st_size).unwrap_or(0);
        if end > size {
            return Err(Errno::INVAL);
        }
        let id = FileId(status.st_dev, status.st_ino);
        let known = self.files.get(&id).and_then(Weak::upgrade);
        if let Some(mapping) = known.filter(|mapping| mapping.len() >= end) {
            return Ok(mapping);
        }
        let mapping = Mapping::shared(file.as_fd(), size)
            .map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::NOMEM))?;
        let mapping = Arc::new(mapping);
        self.files.retain(|_, mapping| mapping.strong_count() > 0);
        self.files.insert(id, Arc::downgrade(&mapping));
        Ok(mapping)
    }
}

impl DmaSpace for DmaMap {
    fn read(&self, addr: u64, dst: &mut [u8]) -> Result<(), AccessError> {
        self.pieces(addr, dst.len(), false, |place, from, piece| match place {
            Piece::Here(bytes) => Ok(bytes.source().read(&mut dst[piece])?),
            Piece::There(client) => client.dma_read(from, &mut dst[piece]),
        })
    }

    fn read_folding(&self, addr: u64, dst: &mut [u8], fold: &mut Fold) -> Result<(), AccessError> {
        self.pieces(addr, dst.len(), false, |place, from, piece| match place {
            Piece::Here(bytes) => Ok(bytes.source().read_folding(&mut dst[piece], fold)?),
            Piece::There(client) => {
                *fold = Fold::off();
                client.dma_read(from, &mut dst[piece])
            }
        })
    }

    fn write(&self, addr: u64, src: &[u8]) -> Result<(), AccessError> {
        self.pieces(addr, src.len(), true, |place, from, piece| match place {
            Piece::Here(bytes) => Ok(bytes.write(&src[piece])?),
            Piece::There(client) => client.dma_write(from, &src[piece]),
        })
    }

    fn atomic(&self, addr: u64, op: AtomicOp) -> Result<u64, AccessError> {
        let mut old = Err(AccessError::Fault);
        self.pieces(addr, 8, true, |place, _, piece| match place {
            Piece::Here(bytes) if piece == (0..8) => {
                old = bytes.atomic_u64(op).map_err(AccessError::from);
                Ok(())
            }
            _ => Err(AccessError::Fault),
        })?;
        old
    }
}

#[cfg(test)]
mod tests;
