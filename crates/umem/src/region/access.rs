//! An access in progress: the data path. No allocation, no lock; one counter moves per segment
//! touched.

use crate::ats::pieces::Pieces;
use crate::ats::{Located, Lookup, Translations};
use crate::memory::space::{AccessError, DmaSpace};
use crate::memory::translation::Translation;
use crate::region::backing::{Backing, OnDemand};
use crate::region::umem::Umem;
use mm::guard::fold::Fold;
use mm::{AtomicOp, Sink, Source};

/// An access in progress. Offsets count from the start of the registration.
pub struct Access<'a> {
    umem: &'a Umem,
    translation: &'a Translation,
    /// Index of the place that it is of.
    place: u16,
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
        place: usize,
        inside: Option<mm::Inside<'a>>,
    ) -> Access<'a> {
        Access { umem, translation, place: place as u16, inside }
    }

    /// What is needed to touch a range: it must not leave the registration, and on-demand pages
    /// must be mapped. Where translations are cached, gives the pieces that the range is in.
    #[inline]
    fn plan(&self, offset: u64, len: usize, write: bool) -> Result<Option<Pieces>, AccessError> {
        match offset.checked_add(len as u64) {
            Some(end) if end <= self.umem.len => {}
            _ => return Err(AccessError::OutOfRange),
        }
        if write && !self.umem.writable {
            return Err(AccessError::Fault);
        }
        if let Some(ats) = self.umem.ats()
            && let Some(pieces) = self.translate(ats, offset, len, write)?
        {
            return Ok(Some(pieces));
        }
        match &self.inside {
            Some(inside) if len > 0 => self.check_mapped(inside, offset, len, write)?,
            _ => {}
        }
        Ok(None)
    }

    fn check_mapped(
        &self,
        inside: &mm::Inside<'_>,
        offset: u64,
        len: usize,
        write: bool,
    ) -> Result<(), AccessError> {
        let range = self.translation.mapped(offset, len as u64).ok_or(AccessError::OutOfRange)?;
        if inside.covers(&range, write) { Ok(()) } else { Err(AccessError::Unmapped) }
    }

    /// Finds a range by the cache, and asks the owner of the memory for what is not there. `None`
    /// for what lies in too many pieces, or in segments.
    #[inline]
    fn translate(
        &self,
        ats: &Translations,
        offset: u64,
        len: usize,
        write: bool,
    ) -> Result<Option<Pieces>, AccessError> {
        let [segment] = &*self.translation.segments else { return Ok(None) };
        let (mut pieces, mut hits, mut misses) = (Pieces::new(), 0, 0);
        let (mut at, end) = (offset, offset + len as u64);
        while at < end {
            let (unit, within) = ats.unit(at).ok_or(AccessError::OutOfRange)?;
            let located = match ats.look(unit, write) {
                Ok(located) => {
                    hits += 1;
                    located
                }
                Err(missed) => {
                    let first = segment.addr.checked_add(at).and_then(|a| a.checked_sub(within));
                    let first = first.ok_or(AccessError::OutOfRange)?;
                    let located = self.ask_owner(first, ats.unit_bytes(), write)?;
                    misses += 1;
                    ats.fill(unit, located, missed);
                    located
                }
            };
            let piece = (ats.unit_bytes() - within).min(end - at);
            if !pieces.push(located.addr.wrapping_add(within), located.number, piece) {
                return Ok(None);
            }
            at += piece;
        }
        if hits > 0 {
            ats.tell(Lookup::Hit(hits));
        }
        if misses > 0 {
            ats.tell(Lookup::Miss(misses));
        }
        Ok(Some(pieces))
    }

    /// Where the unit is that begins at the mapped address `first`.
    fn ask_owner(&self, first: u64, bytes: u64, write: bool) -> Result<Located, AccessError> {
        let Some(inside) = &self.inside else {
            return Ok(Located { addr: first, number: self.place, writable: true });
        };
        let unit = first..first.checked_add(bytes).ok_or(AccessError::OutOfRange)?;
        let writable = inside.covers(&unit, true);
        if !writable && (write || !inside.covers(&unit, false)) {
            return Err(AccessError::Unmapped);
        }
        Ok(match inside.peer(first) {
            None => Located { addr: first, number: 0, writable },
            Some((number, addr)) => Located { addr, number: number + 1, writable },
        })
    }

    /// The way that a number of [`Located`] names, of translated requests: to host memory or a peer
    /// of an on-demand registration, or to a place of a dma-buf.
    fn way(&self, number: u16) -> Result<(&dyn DmaSpace, &pcie::Route), AccessError> {
        if self.inside.is_some() {
            return self.way_on_demand(number, true);
        }
        let place = self.umem.translations.get(usize::from(number)).and_then(Option::as_ref);
        let place = place.ok_or(AccessError::Unreachable)?;
        let segment = place.segments.first().ok_or(AccessError::Unreachable)?;
        Ok((&*segment.space, place.translated.as_ref().unwrap_or(&segment.route)))
    }

    /// As [`Access::way`], for an on-demand registration.
    fn way_on_demand(
        &self,
        number: u16,
        translated: bool,
    ) -> Result<(&dyn DmaSpace, &pcie::Route), AccessError> {
        let host = self.translation.segments.first().ok_or(AccessError::Unreachable)?;
        let Some(number) = usize::from(number).checked_sub(1) else {
            return Ok((&*host.space, &host.route));
        };
        let Backing::OnDemand(OnDemand { peers: Some(peers), .. }) = &self.umem.backing else {
            return Err(AccessError::Unreachable);
        };
        let way = peers.ways.get(number).ok_or(AccessError::Unreachable)?;
        let other = way.translated.as_ref().filter(|_| translated);
        Ok((&*peers.memory, other.unwrap_or(&way.route)))
    }

    /// Calls `each(space, address, route, length)` for pieces, in order.
    #[inline]
    fn each_piece(
        &self,
        pieces: &Pieces,
        mut each: impl FnMut(&dyn DmaSpace, u64, &pcie::Route, usize) -> Result<(), AccessError>,
    ) -> Result<(), AccessError> {
        pieces.found().iter().try_for_each(|piece| {
            let (space, route) = self.way(piece.number)?;
            each(space, piece.addr, route, piece.len as usize)
        })
    }

    /// Copies `dst.len()` bytes out.
    #[inline]
    pub fn read(&self, offset: u64, dst: &mut [u8]) -> Result<(), AccessError> {
        let plan = self.plan(offset, dst.len(), false)?;
        self.read_planned(plan, offset, dst)
    }

    #[inline]
    fn read_planned(
        &self,
        plan: Option<Pieces>,
        offset: u64,
        dst: &mut [u8],
    ) -> Result<(), AccessError> {
        let len = dst.len();
        let mut rest = dst;
        self.walk(plan, offset, len, |space, addr, route, len| {
            let (piece, tail) = std::mem::take(&mut rest).split_at_mut(len);
            rest = tail;
            space.read(addr, piece)?;
            route.count_read(len as u64);
            Ok(())
        })
    }

    /// Calls `each(space, address, route, length)` for the parts that a planned range lies in, in
    /// order.
    #[inline]
    fn walk(
        &self,
        plan: Option<Pieces>,
        offset: u64,
        len: usize,
        mut each: impl FnMut(&dyn DmaSpace, u64, &pcie::Route, usize) -> Result<(), AccessError>,
    ) -> Result<(), AccessError> {
        if let Some(pieces) = plan {
            return self.each_piece(&pieces, each);
        }
        if let Some(inside) = self.among_peers(offset, len) {
            return self.pages(inside, offset, len, each);
        }
        if let [segment] = &*self.translation.segments {
            let addr = segment.addr.checked_add(offset).ok_or(AccessError::OutOfRange)?;
            return each(&*segment.space, addr, &segment.route, len);
        }
        self.pieces(offset, len, each)
    }

    /// As [`read`](Access::read); folds the bytes into `fold` on the way where they lie in one
    /// piece.
    #[inline]
    pub fn read_folding(
        &self,
        offset: u64,
        dst: &mut [u8],
        fold: &mut Fold,
    ) -> Result<(), AccessError> {
        let plan = self.plan(offset, dst.len(), false)?;
        let (space, addr, route) = match (&plan, &*self.translation.segments) {
            (Some(pieces), _) if let [piece] = pieces.found() => {
                let (space, route) = self.way(piece.number)?;
                (space, piece.addr, route)
            }
            (None, [segment]) if self.among_peers(offset, dst.len()).is_none() => {
                let addr = segment.addr.checked_add(offset).ok_or(AccessError::OutOfRange)?;
                (&*segment.space, addr, &*segment.route)
            }
            _ => {
                *fold = Fold::off();
                return self.read_planned(plan, offset, dst);
            }
        };
        space.read_folding(addr, dst, fold)?;
        route.count_read(dst.len() as u64);
        Ok(())
    }

    /// Copies `src` in, in ascending order. Fails with [`AccessError::Fault`] on a read-only
    /// registration.
    #[inline]
    pub fn write(&self, offset: u64, src: &[u8]) -> Result<(), AccessError> {
        let plan = self.plan(offset, src.len(), true)?;
        let mut rest = src;
        self.walk(plan, offset, src.len(), |space, addr, route, len| {
            let (piece, tail) = rest.split_at(len);
            rest = tail;
            space.write(addr, piece)?;
            route.count_written(len as u64);
            Ok(())
        })
    }

    /// Has `each` read `len` bytes where they are, piece by piece in order.
    /// [`AccessError::Unreachable`] where they are no memory of this process.
    pub fn read_in_place(
        &self,
        offset: u64,
        len: usize,
        each: &mut dyn FnMut(Source<'_>) -> Result<(), AccessError>,
    ) -> Result<(), AccessError> {
        let plan = self.plan(offset, len, false)?;
        self.walk(plan, offset, len, |space, addr, route, len| {
            each(space.in_place(addr, len as u64).ok_or(AccessError::Unreachable)?.source())?;
            route.count_read(len as u64);
            Ok(())
        })
    }

    /// Has `each` write `len` bytes where they are, piece by piece in order; as
    /// [`Access::read_in_place`]. Fails with [`AccessError::Fault`] on a read-only registration.
    pub fn write_in_place(
        &self,
        offset: u64,
        len: usize,
        each: &mut dyn FnMut(Sink<'_>) -> Result<(), AccessError>,
    ) -> Result<(), AccessError> {
        let plan = self.plan(offset, len, true)?;
        self.walk(plan, offset, len, |space, addr, route, len| {
            each(space.in_place(addr, len as u64).ok_or(AccessError::Unreachable)?)?;
            route.count_written(len as u64);
            Ok(())
        })
    }

    /// One atomic operation on an aligned word; returns the old value. A word that is not aligned
    /// in memory, or that two segments share, is [`AccessError::OutOfRange`].
    pub fn atomic(&self, offset: u64, op: AtomicOp) -> Result<u64, AccessError> {
        let plan = self.plan(offset, 8, true)?;
        let (index, at) = self.locate(offset).ok_or(AccessError::OutOfRange)?;
        let segment = &self.translation.segments[index];
        let addr = segment.addr.checked_add(at).ok_or(AccessError::OutOfRange)?;
        if segment.len - at < 8 || !addr.is_multiple_of(8) {
            return Err(AccessError::OutOfRange);
        }
        let mut old = Err(AccessError::OutOfRange);
        self.walk(plan, offset, 8, |space, addr, route, _| {
            old = Ok(space.atomic(addr, op)?);
            route.count_read(8);
            route.count_written(8);
            Ok(())
        })?;
        old
    }

    /// For a checked range of on-demand pages of which some are in other devices' memories.
    #[inline]
    fn among_peers(&self, offset: u64, len: usize) -> Option<&mm::Inside<'a>> {
        let inside = self.inside.as_ref()?;
        inside.has_peers(&self.translation.mapped(offset, len as u64)?).then_some(inside)
    }

    /// Calls `each(space, address, route, length)` for the pages of a checked on-demand range, in
    /// order, wherever they are.
    fn pages(
        &self,
        inside: &mm::Inside<'a>,
        offset: u64,
        len: usize,
        mut each: impl FnMut(&dyn DmaSpace, u64, &pcie::Route, usize) -> Result<(), AccessError>,
    ) -> Result<(), AccessError> {
        let range = self.translation.mapped(offset, len as u64).ok_or(AccessError::OutOfRange)?;
        let mut at = range.start;
        while at < range.end {
            let page_left = mm::page_size() - at % mm::page_size();
            let piece = page_left.min(range.end - at);
            let (addr, number) = match inside.peer(at) {
                None => (at, 0),
                Some((number, dma)) => (dma, number + 1),
            };
            let (space, route) = self.way_on_demand(number, false)?;
            each(space, addr, route, piece as usize)?;
            at += piece;
        }
        Ok(())
    }

    /// The segment that holds `offset`, and the place in it.
    fn locate(&self, offset: u64) -> Option<(usize, u64)> {
        let index =
            self.translation.starts.partition_point(|&start| start <= offset).checked_sub(1)?;
        Some((index, offset - self.translation.starts[index]))
    }

    /// Calls `each(space, address, route, length)` for the segments of a checked range, in order.
    fn pieces(
        &self,
        offset: u64,
        len: usize,
        mut each: impl FnMut(&dyn DmaSpace, u64, &pcie::Route, usize) -> Result<(), AccessError>,
    ) -> Result<(), AccessError> {
        let mut left = len;
        if left == 0 {
            return Ok(());
        }
        let (mut index, mut at) = self.locate(offset).ok_or(AccessError::OutOfRange)?;
        while left > 0 {
            let segment = self.translation.segments.get(index).ok_or(AccessError::OutOfRange)?;
            let piece = usize::try_from(segment.len - at).map_or(left, |room| room.min(left));
            let addr = segment.addr.checked_add(at).ok_or(AccessError::OutOfRange)?;
            each(&*segment.space, addr, &segment.route, piece)?;
            left -= piece;
            index += 1;
            at = 0;
        }
        Ok(())
    }
}
