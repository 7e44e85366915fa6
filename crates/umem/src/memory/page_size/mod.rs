//! The page size of a registration: the largest by which an adapter can translate all of it, chosen
//! as `ib_umem_find_best_pgsz` does. Where none suits there is no registration: for a range without
//! a byte, and for an iova whose offset inside the smallest page is not the memory's.
//!
//! Only page starts are translated; the bits below come from the iova. So the iova and the DMA
//! address must agree in them wherever bytes that follow each other are not at addresses that do,
//! and such places inside must be at the start of a page.

/// Page sizes that an adapter translates by: a bitmap, in which each is a bit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PageSizes(u64);

impl PageSizes {
    /// A ConnectX's: 4 KiB to 2 GiB, by `log_page_size` of its memory keys without the capability
    /// for more.
    pub const CONNECTX: PageSizes = PageSizes(up_to(31) & !up_to(11));

    /// Those that a key of address and length pairs (KSM) takes over memory at `iova`, which
    /// must begin a page of it.
    #[must_use]
    pub fn starting_at(self, iova: u64) -> PageSizes {
        PageSizes(self.0 & up_to(iova.trailing_zeros()))
    }

    pub(crate) fn contains(self, size: u64) -> bool {
        self.0 & size != 0
    }
}

/// The bits up to this one, itself included.
const fn up_to(bit: u32) -> u64 {
    if bit >= 63 { u64::MAX } else { (1 << (bit + 1)) - 1 }
}

/// One entry of a scatter/gather table, or many of one size.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Run {
    /// DMA address of the first byte.
    pub(crate) addr: u64,
    pub(crate) len: u64,
    /// Aligned blocks of so many bytes, a power of two, are in one piece each; what lies where
    /// beyond that is unknown. `None` where all of it is in one piece.
    pub(crate) block: Option<u64>,
}

/// The best page size for bytes at `iova`, which lie where `runs` says; `None` where none suits.
pub(crate) fn best(sizes: PageSizes, iova: u64, runs: impl Iterator<Item = Run>) -> Option<u64> {
    // Ones where a page must not reach: in which iova and DMA address differ, or where a page would
    // go on beyond an end inside.
    let mut refused = 0;
    let (mut va, mut end) = (iova, None);
    for run in runs {
        if end != Some(run.addr) {
            let inside = if end.is_some() { va } else { 0 };
            refused |= (run.addr ^ va) | inside;
        }
        refused |= run.block.unwrap_or(0);
        va = va.wrapping_add(run.len);
        end = Some(run.addr.wrapping_add(run.len));
    }
    // A page larger than the one that holds everything is of no use; an empty range has no last
    // byte that it could hold.
    let last = (va != iova).then(|| va.wrapping_sub(1))?;
    let changing = u64::BITS - (last ^ iova).leading_zeros();
    refused |= sizes.0 & !changing.checked_sub(1).map_or(0, up_to);
    let fit = sizes.0 & up_to(refused.trailing_zeros());
    (fit != 0).then(|| 1 << fit.ilog2())
}

#[cfg(all(test, not(loom)))]
mod tests;
