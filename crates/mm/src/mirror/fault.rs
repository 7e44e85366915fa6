//! How pages come into a mirror: by a fault, ahead of their use, or because they are there.
//!
//! What is brought in is mapped only if no invalidation of the same addresses began meanwhile. An
//! access whose pages keep going away insists ([`Turn`]), and changes of its addresses wait for it.

use super::ranges::MirrorState;
use super::{Mirror, NUMBER, Paging};
use crate::guard::Fault;
use crate::page_size;
use crate::private::DevicePage;
use engine_thread::{wait, wait_timeout};
use std::ops::Range;
use std::sync::atomic::Ordering::*;
use std::time::{Duration, Instant};

/// Bytes after a fault that are brought in with it, if the same operation will touch them.
const AHEAD: u64 = 256 << 10;
/// Times that a fault may lose to invalidations of its addresses before it is given up for now.
const TRIES: u32 = 8;
/// How long a fault waits for invalidations in progress.
const PATIENCE: Duration = Duration::from_micros(500);
/// Bytes of a snapshot that are mapped at a time.
const SNAPSHOT: u64 = 64 << 20;
/// Bytes from the start of a range that a snapshot looks at: what lies beyond is faulted in when it
/// is touched.
const SNAPSHOT_MOST: u64 = 16 << 30;

/// How pages are to be brought in ahead of their use (`enum ib_uverbs_advise_mr_advice`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Prefetch {
    /// The device will read them.
    Read,
    /// The device will write them.
    Write,
    /// Only those that are there already.
    NoFault,
}

/// An access to a range: its faults, and once it insists a moment without invalidations of the
/// range.
pub struct Turn<'a> {
    mirror: &'a Mirror,
    range: Range<u64>,
    /// It stands among [`MirrorState::turns`].
    placed: bool,
}

impl Turn<'_> {
    /// From now on until this is dropped changes of the range wait for a moment before they begin.
    pub fn insist(&mut self) {
        let mut state = self.mirror.lock();
        self.place(&mut state);
    }

    fn place(&mut self, state: &mut MirrorState) {
        if !self.placed {
            self.placed = state.turns.add(&self.range);
        }
    }

    /// Brings in all of the range, and if it can up to `ahead` bytes after it. `false`: changes of
    /// it go on; the access is to come again.
    ///
    /// # Errors
    /// Part of the range is outside, not mapped, or not for this access.
    pub fn fault(&mut self, ahead: u64) -> Result<bool, Fault> {
        let mirror = self.mirror;
        let need = mirror.align(&self.range).ok_or(Fault)?;
        let upto = self.range.end.saturating_add(ahead.min(AHEAD)).min(mirror.range.end);
        let more = mirror.align(&(need.start..upto)).filter(|more| *more != need);
        let whole = more.and_then(|more| mirror.bring_at_once(&more));
        let brought = match whole {
            Some(pages) => Some(pages),
            None => mirror.bring(&need, mirror.writable, self, Some(PATIENCE))?,
        };
        if let Some(pages) = brought {
            mirror.tally.add(Paging::Faulted(pages));
        }
        Ok(brought.is_some())
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        if self.placed {
            self.mirror.lock().turns.remove(&self.range);
            self.mirror.ended.notify_all();
        }
    }
}

impl Mirror {
    /// Begins an access to `range`.
    pub fn turn(&self, range: &Range<u64>) -> Turn<'_> {
        Turn { mirror: self, range: range.clone(), placed: false }
    }

    /// [`Turn::fault`] of an access that never insists.
    ///
    /// # Errors
    /// As there.
    pub fn fault(&self, range: &Range<u64>, ahead: u64) -> Result<bool, Fault> {
        self.turn(range).fault(ahead)
    }

    /// Brings `range` in ahead of its use.
    ///
    /// # Errors
    /// As [`Mirror::fault`]; never for [`Prefetch::NoFault`] inside the range.
    pub fn prefetch(&self, range: &Range<u64>, how: Prefetch) -> Result<(), Fault> {
        let need = self.align(range).ok_or(Fault)?;
        let pages = match how {
            Prefetch::NoFault => self.take_resident(&need),
            Prefetch::Read | Prefetch::Write => {
                let (mut turn, write) = (self.turn(&need), how == Prefetch::Write);
                self.bring(&need, write, &mut turn, None)?.ok_or(Fault)?
            }
        };
        self.tally.add(Paging::Prefetched(pages));
        Ok(())
    }

    /// Maps for reading what is there now and brings nothing in: how a registration begins. Counted
    /// as nothing.
    pub fn snapshot(&self) {
        let end = self.range.end.min(self.range.start.saturating_add(SNAPSHOT_MOST));
        self.take_resident(&(self.range.start..end));
    }

    /// Faults `range` in and maps it, unless changes of it are in progress for `patience`. Gives
    /// the number of pages that could not be reached so before.
    fn bring(
        &self,
        range: &Range<u64>,
        write: bool,
        turn: &mut Turn<'_>,
        patience: Option<Duration>,
    ) -> Result<Option<u64>, Fault> {
        let pages = self.pages(range).filter(|pages| self.table.make_room(pages)).ok_or(Fault)?;
        for _ in 0..TRIES {
            let Some(since) = self.begin(range, Some(turn), patience) else { return Ok(None) };
            if let Some(new) = self.bring_once(range, &pages, write, since)? {
                return Ok(Some(new));
            }
            turn.insist();
        }
        Ok(None)
    }

    /// Brings `range` in if no change of it is in progress or comes in between.
    fn bring_at_once(&self, range: &Range<u64>) -> Option<u64> {
        let pages = self.pages(range).filter(|pages| self.table.make_room(pages))?;
        let since = self.begin(range, None, Some(Duration::ZERO))?;
        self.bring_once(range, &pages, self.writable, since).ok()?
    }

    /// Faults `range` in and maps it, unless it has changed since; a page that is out of reach is
    /// brought home first.
    fn bring_once(
        &self,
        range: &Range<u64>,
        pages: &Range<u64>,
        write: bool,
        mut since: u64,
    ) -> Result<Option<u64>, Fault> {
        for _ in 0..TRIES {
            let (mut peers, mut strangers) = (Vec::new(), Vec::new());
            let came = self.source.fault(range, write, &mut |found| match self.place(found) {
                Ok(peer) => peers.push(peer),
                Err(at) => strangers.push(at),
            })?;
            // only these: what is reached where it is stays there
            strangers.iter().for_each(|&at| self.source.to_host(&(at..at + page_size())));
            let fallback = came + strangers.len() as u64;
            if fallback > 0 {
                self.tally.add(Paging::PeerFallback(fallback));
                // coming home was a change
                let Some(now) = self.begin(range, None, Some(PATIENCE)) else { return Ok(None) };
                since = now;
                continue;
            }
            let new = self.map_unless_changed(range, pages, write, since, &peers);
            if new.is_some() && !peers.is_empty() {
                self.tally.add(Paging::PeerMapped(peers.len() as u64));
            }
            return Ok(new);
        }
        Ok(None)
    }

    /// What to map for a page in a device's memory: granule and word; or its address, if it is out
    /// of reach.
    fn place(&self, found: DevicePage) -> Result<(u64, u64), u64> {
        let (at, device, dma) = match found {
            DevicePage::Own { at, .. } => return Err(at),
            DevicePage::Peer { at, device, dma } => (at, device, dma),
        };
        let number = (self.reach)(device).map(|number| u64::from(number) + 1);
        let number = number.filter(|number| *number <= NUMBER && dma & NUMBER == 0);
        let granule = at.checked_sub(self.range.start).map(|from| from / self.granule);
        match (number, granule) {
            // a larger granule has one place only
            (Some(number), Some(granule))
                if self.granule == page_size() && self.peers.make(granule).is_some() =>
            {
                Ok((granule, dma | number))
            }
            _ => Err(at),
        }
    }

    /// Maps what of `range` is there now, for reading: whether it could be written too, only a
    /// fault finds out.
    fn take_resident(&self, range: &Range<u64>) -> u64 {
        let mut new = 0;
        let mut at = range.start;
        while at < range.end {
            let part = at..range.end.min(at.saturating_add(SNAPSHOT.max(self.granule)));
            at = part.end;
            let Some(since) = self.begin(&part, Some(&mut self.turn(&part)), None) else { break };
            let mut found: Vec<Range<u64>> = Vec::new();
            self.source.resident(&part, &mut |here| match found.last_mut() {
                Some(last) if last.end == here.start => last.end = here.end,
                _ => found.push(here),
            });
            for here in found {
                // only granules that are there as a whole
                let mask = self.granule - 1;
                let whole = (here.start + mask) & !mask..here.end & !mask;
                if let Some(pages) = self.pages(&whole)
                    && self.table.make_room(&pages)
                {
                    // what an invalidation has taken meanwhile is not there any more
                    new += self.map_unless_changed(&whole, &pages, false, since, &[]).unwrap_or(0);
                }
            }
        }
        new
    }

    /// Waits until no invalidation of `range` is in progress, for `patience` at most, and insists
    /// if one follows the other. Gives what [`MirrorState::changed`] compares with.
    fn begin(
        &self,
        range: &Range<u64>,
        mut turn: Option<&mut Turn<'_>>,
        patience: Option<Duration>,
    ) -> Option<u64> {
        let mut state = self.lock();
        if !state.busy(range) {
            return Some(state.sequence);
        }
        let deadline = patience.map(|patience| Instant::now() + patience);
        loop {
            let left = deadline.map(|at| at.saturating_duration_since(Instant::now()));
            state = match left {
                Some(Duration::ZERO) => return None,
                Some(left) => wait_timeout(&self.ended, state, left),
                None => wait(&self.ended, state),
            };
            if !state.busy(range) {
                return Some(state.sequence);
            }
            if let Some(turn) = &mut turn {
                turn.place(&mut state);
            }
        }
    }

    fn map_unless_changed(
        &self,
        range: &Range<u64>,
        pages: &Range<u64>,
        write: bool,
        since: u64,
        peers: &[(u64, u64)],
    ) -> Option<u64> {
        let state = self.lock();
        if state.changed(range, since) {
            return None;
        }
        // before the page can be reached: whoever finds it mapped finds its place
        for &(granule, word) in peers {
            self.peers.word(granule)?.store(word, SeqCst);
        }
        Some(self.table.map(pages, write))
    }
}
