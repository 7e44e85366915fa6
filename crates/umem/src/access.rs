//! An access in progress: the data path. No allocation, no lock; one counter moves per segment touched.

use crate::translation::Translation;
use crate::{AccessError, AtomicOp, DmaSpace, Segment, Umem};
use mm::guard::fold::Fold;

/// An access in progress. Offsets count from the start of the registration.
pub struct Access<'a> {
    umem: &'a Umem,
    translation: &'a Translation,
    /// Holds on-demand pages in place.
    inside: Option<mm::Inside<'a>>,
}

impl Drop for Access<'_> {
    #[inline]
    fn drop(&mut self) {
        self.umem.leave();
    }
}

impl<'a> Access<'a> {
    #[inline]
    pub(crate) fn new(
        umem: &'a Umem,
        translation: &'a Translation,
        inside: Option<mm::Inside<'a>>,
    ) -> Access<'a> {
        Access { umem, translation, inside }
    }

    /// Refuses a range that leaves the registration, and one with on-demand pages that are not mapped now.
    #[inline]
    fn check(&self, offset: u64, len: usize, write: bool) -> Result<(), AccessError> {
        match offset.checked_add(len as u64) {
            Some(end) if end <= self.umem.len => {}
            _ => return Err(AccessError::OutOfRange),
        }
        if write && !self.umem.writable {
            return Err(AccessError::Fault);
        }
        match &self.inside {
            Some(inside) if len > 0 => self.check_mapped(inside, offset, len, write),
            _ => Ok(()),
        }
    }

    fn check_mapped(
        &self,
        inside: &mm::Inside<'_>,
        offset: u64,
        len: usize,
        write: bool,
    ) -> Result<(), AccessError> {
        let start = self.translation.segments.first().and_then(|s| s.addr.checked_add(offset));
        let start = start.ok_or(AccessError::OutOfRange)?;
        let end = start.checked_add(len as u64).ok_or(AccessError::OutOfRange)?;
        if inside.covers(&(start..end), write) { Ok(()) } else { Err(AccessError::Unmapped) }
    }

    /// Copies `dst.len()` bytes out.
    #[inline]
    pub fn read(&self, offset: u64, dst: &mut [u8]) -> Result<(), AccessError> {
        self.check(offset, dst.len(), false)?;
        let mut rest = dst;
        if let Some(inside) = self.among_peers(offset, rest.len()) {
            return self.pages(inside, offset, rest.len(), |space, addr, route, len| {
                let (piece, tail) = std::mem::take(&mut rest).split_at_mut(len);
                rest = tail;
                space.read(addr, piece)?;
                route.count_read(len as u64);
                Ok(())
            });
        }
        if let [segment] = &*self.translation.segments {
            return read_one(segment, offset, rest);
        }
        self.pieces(offset, rest.len(), |segment, at, len| {
            let (piece, tail) = std::mem::take(&mut rest).split_at_mut(len);
            rest = tail;
            read_one(segment, at, piece)
        })
    }

    /// As [`read`](Access::read); folds the bytes into `fold` on the way where they lie in one segment.
    #[inline]
    pub fn read_folding(
        &self,
        offset: u64,
        dst: &mut [u8],
        fold: &mut Fold,
    ) -> Result<(), AccessError> {
        let [segment] = &*self.translation.segments else {
            *fold = Fold::off();
            return self.read(offset, dst);
        };
        if self.among_peers(offset, dst.len()).is_some() {
            *fold = Fold::off();
            return self.read(offset, dst);
        }
        self.check(offset, dst.len(), false)?;
        let addr = segment.addr.checked_add(offset).ok_or(AccessError::OutOfRange)?;
        segment.space.read_folding(addr, dst, fold)?;
        segment.route.count_read(dst.len() as u64);
        Ok(())
    }

    /// Copies `src` in, in ascending order. Fails with [`AccessError::Fault`] on a read-only registration.
    #[inline]
    pub fn write(&self, offset: u64, src: &[u8]) -> Result<(), AccessError> {
        self.check(offset, src.len(), true)?;
        let mut rest = src;
        if let Some(inside) = self.among_peers(offset, rest.len()) {
            return self.pages(inside, offset, rest.len(), |space, addr, route, len| {
                let (piece, tail) = rest.split_at(len);
                rest = tail;
                space.write(addr, piece)?;
                route.count_written(len as u64);
                Ok(())
            });
        }
        if let [segment] = &*self.translation.segments {
            return write_one(segment, offset, rest);
        }
        self.pieces(offset, rest.len(), |segment, at, len| {
            let (piece, tail) = rest.split_at(len);
            rest = tail;
            write_one(segment, at, piece)
        })
    }

    /// One atomic operation on an aligned word; returns the old value. A word that is not aligned in memory, or that two
    /// segments share, is [`AccessError::OutOfRange`].
    pub fn atomic(&self, offset: u64, op: AtomicOp) -> Result<u64, AccessError> {
        self.check(offset, 8, true)?;
        let (index, at) = self.locate(offset).ok_or(AccessError::OutOfRange)?;
        let segment = &self.translation.segments[index];
        let addr = segment.addr.checked_add(at).ok_or(AccessError::OutOfRange)?;
        if segment.len - at < 8 || !addr.is_multiple_of(8) {
            return Err(AccessError::OutOfRange);
        }
        if let Some(inside) = self.among_peers(offset, 8) {
            let mut old = Err(AccessError::OutOfRange);
            self.pages(inside, offset, 8, |space, addr, route, _| {
                old = space.atomic(addr, op);
                route.count_read(8);
                route.count_written(8);
                Ok(())
            })?;
            return old;
        }
        let old = segment.space.atomic(addr, op)?;
        segment.route.count_read(8);
        segment.route.count_written(8);
        Ok(old)
    }

    /// For a checked range of on-demand pages of which some are in other devices' memories.
    #[inline]
    fn among_peers(&self, offset: u64, len: usize) -> Option<&mm::Inside<'a>> {
        let inside = self.inside.as_ref()?;
        let start = self.translation.segments.first()?.addr.checked_add(offset)?;
        let end = start.checked_add(len as u64)?;
        inside.has_peers(&(start..end)).then_some(inside)
    }

    /// Calls `each(space, address, route, length)` for the pages of a checked on-demand range, in order, wherever they are.
    fn pages(
        &self,
        inside: &mm::Inside<'a>,
        offset: u64,
        len: usize,
        mut each: impl FnMut(&dyn DmaSpace, u64, &pcie::Route, usize) -> Result<(), AccessError>,
    ) -> Result<(), AccessError> {
        let segment = self.translation.segments.first().ok_or(AccessError::OutOfRange)?;
        let mut at = segment.addr.checked_add(offset).ok_or(AccessError::OutOfRange)?;
        let mut left = len;
        while left > 0 {
            let page_left = mm::page_size() - at % mm::page_size();
            let piece = usize::try_from(page_left).map_or(left, |room| room.min(left));
            let (addr, route) = match inside.peer(at) {
                None => (at, &segment.route),
                Some((number, dma)) => {
                    let route = self.umem.keep.peers.get(usize::from(number));
                    (dma, route.ok_or(AccessError::Unreachable)?)
                }
            };
            each(&*segment.space, addr, route, piece)?;
            at += piece as u64;
            left -= piece;
        }
        Ok(())
    }

    /// The segment that holds `offset`, and the place in it.
    fn locate(&self, offset: u64) -> Option<(usize, u64)> {
        let index =
            self.translation.starts.partition_point(|&start| start <= offset).checked_sub(1)?;
        Some((index, offset - self.translation.starts[index]))
    }

    /// Calls `each(segment, place, length)` for the pieces of a checked range, in order.
    fn pieces(
        &self,
        offset: u64,
        len: usize,
        mut each: impl FnMut(&Segment, u64, usize) -> Result<(), AccessError>,
    ) -> Result<(), AccessError> {
        let mut left = len;
        if left == 0 {
            return Ok(());
        }
        let (mut index, mut at) = self.locate(offset).ok_or(AccessError::OutOfRange)?;
        while left > 0 {
            let segment = self.translation.segments.get(index).ok_or(AccessError::OutOfRange)?;
            let piece = usize::try_from(segment.len - at).map_or(left, |room| room.min(left));
            each(segment, at, piece)?;
            left -= piece;
            index += 1;
            at = 0;
        }
        Ok(())
    }
}

#[inline]
fn read_one(segment: &Segment, at: u64, dst: &mut [u8]) -> Result<(), AccessError> {
    let addr = segment.addr.checked_add(at).ok_or(AccessError::OutOfRange)?;
    segment.space.read(addr, dst)?;
    segment.route.count_read(dst.len() as u64);
    Ok(())
}

#[inline]
fn write_one(segment: &Segment, at: u64, src: &[u8]) -> Result<(), AccessError> {
    let addr = segment.addr.checked_add(at).ok_or(AccessError::OutOfRange)?;
    segment.space.write(addr, src)?;
    segment.route.count_written(src.len() as u64);
    Ok(())
}
