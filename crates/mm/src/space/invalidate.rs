//! Who hears of changes of an address space's pages, and what they promise in return.

use std::ops::Range;

/// Whoever registered a range, called before pages of it are unmapped.
pub trait Invalidate: Send + Sync {
    /// Stops using the registration; returns once no access is in progress. Must not allocate or
    /// free memory, and must not drop a [`Registration`](super::Registration): `malloc` may be the
    /// caller.
    fn invalidate(&self, range: Range<u64>);

    /// The kernel is done with a change that [`Invalidate::invalidate`] told of. The same rules
    /// hold.
    fn invalidated(&self, _range: Range<u64>) {}

    /// Pages of the range are about to move to a device's memory or home: lets go of them as for
    /// [`Invalidate::invalidate`], or does nothing if it [`holds`](Invalidate::holds) them or does
    /// not care.
    fn moving(&self, _range: Range<u64>) {}

    /// The end of what [`Invalidate::moving`] told of.
    fn moved(&self, _range: Range<u64>) {}

    /// Whether the range is still what was registered is in doubt: lets nobody use it until
    /// [`Invalidate::settle`], and returns when nobody does. The rules of
    /// [`Invalidate::invalidate`] hold.
    fn doubt(&self) {}

    /// The end of what [`Invalidate::doubt`] began.
    fn settle(&self) {}

    /// The program's rights to pages of the range have changed: nobody acts by those of before when
    /// it returns. The rules of [`Invalidate::invalidate`] hold.
    fn protected(&self) {}

    /// The kernel tells no more, or never did, of what becomes of the range: nobody relies on that
    /// when it returns. The rules of [`Invalidate::invalidate`] hold.
    fn unwatched(&self) {}

    /// Whether the pages are held where they are, as pinned ones.
    fn holds(&self) -> bool {
        false
    }
}

/// Who moves pages to devices' memories, and for that has the kernel hand it the faults of their
/// ranges.
pub(crate) trait Migration: Send + Sync {
    /// Brings the pages of `range` home for good: their faults are the kernel's again, until they
    /// are migrated anew.
    fn release(&self, range: &Range<u64>);
}
