//! A device amid an access to a mirror: what it may reach, and where that is.

use super::{Mirror, NUMBER};
use crate::grace::Phase;
use crate::page_size;
use std::ops::Range;

/// A device inside; the pages it asked for stay until this is dropped. Meanwhile the thread must
/// not allocate, free or wait.
pub struct Inside<'a> {
    pub(super) mirror: &'a Mirror,
    pub(super) phase: Phase,
}

impl Inside<'_> {
    /// Whether all pages of `range` are mapped, for writing if `write`. They stay so while this
    /// lives.
    #[inline]
    pub fn covers(&self, range: &Range<u64>, write: bool) -> bool {
        self.mirror.pages(range).is_some_and(|pages| self.mirror.table.covers(&pages, write))
    }

    /// Whether any page of a covered range is in another device's memory.
    #[inline]
    pub fn has_peers(&self, range: &Range<u64>) -> bool {
        !self.mirror.peers.is_unused() && self.finds_peers(range)
    }

    fn finds_peers(&self, range: &Range<u64>) -> bool {
        let pages = self.mirror.pages(range).unwrap_or(0..0);
        let mut any = false;
        self.mirror.peers.each(&pages, |_, _| any = true);
        any
    }

    /// Where a covered address is: the number of a peer and the address there; `None` for host
    /// memory.
    pub fn peer(&self, addr: u64) -> Option<(u16, u64)> {
        let mirror = self.mirror;
        let granule = addr.checked_sub(mirror.range.start)? >> mirror.granule.trailing_zeros();
        let word = mirror.peers.get(granule);
        let number = u16::try_from(word & NUMBER).ok()?.checked_sub(1)?;
        Some((number, (word & !NUMBER) + addr % page_size()))
    }
}

impl Drop for Inside<'_> {
    #[inline]
    fn drop(&mut self) {
        self.mirror.inside.leave(self.phase);
    }
}
