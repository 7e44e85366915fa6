//! Several copies in one call, each with what it may assume of its source.

use crate::calls::copy::by_address;
use crate::current::ready;
use crate::driver::Location;
use crate::error::{Error, Res, answer};
use crate::ffi::{In, Way};

/// `cudaMemcpyAttributes`. Where memory should be is a hint, and so are the flags.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Attributes {
    order: u32,
    hints: [Location; 2],
    flags: u32,
}

/// `cudaMemcpyFlagPreferOverlapWithCompute`, the only flag.
const FLAGS: u32 = 1;

impl Attributes {
    /// Whether the source must have been read before the call ends
    /// (`cudaMemcpySrcAccessOrderDuringApiCall`).
    ///
    /// # Errors
    /// `cudaErrorInvalidValue` where there is no such order, or no such flag.
    fn ends_with_the_call(&self) -> Res<bool> {
        match self.order {
            1 | 3 if self.flags & !FLAGS == 0 => Ok(false),
            2 if self.flags & !FLAGS == 0 => Ok(true),
            _ => Err(Error::INVALID_VALUE),
        }
    }
}

/// Copies as a program gives them: arrays of destinations, sources and lengths, and of attributes
/// with the first copy that each is for.
pub struct Batch {
    pub to: In<u64>,
    pub from: In<u64>,
    pub bytes: In<u64>,
    pub count: u64,
    pub attributes: In<Attributes>,
    pub firsts: In<u64>,
    pub kinds: u64,
}

impl Batch {
    /// Queues the copies. Where one is refused, `at` is its index, and those before it are queued.
    ///
    /// # Errors
    /// `cudaErrorInvalidValue` for the stream that all threads share and where a copy has no
    /// attributes, and those of a copy.
    pub fn queue(&self, stream: u64, at: &mut u64) -> Res {
        let len = |count: u64| usize::try_from(count).map_err(|_| Error::INVALID_VALUE);
        let (count, kinds) = (len(self.count)?, len(self.kinds)?);
        if matches!(stream, 0 | 1) || kinds > count {
            return Err(Error::INVALID_VALUE);
        }
        let firsts = self.firsts.array(kinds)?;
        let is_right = firsts.first() == Some(&0)
            && firsts.is_sorted_by(|one, next| one < next)
            && firsts.last().is_some_and(|last| *last < self.count);
        if !is_right {
            return Err(Error::INVALID_VALUE);
        }
        let mut must_end = false;
        for attributes in self.attributes.array(kinds)? {
            must_end |= attributes.ends_with_the_call()?;
        }
        let (to, from, bytes) =
            (self.to.array(count)?, self.from.array(count)?, self.bytes.array(count)?);
        let mut copies = (0..).zip(to.into_iter().zip(from).zip(bytes));
        let queued = copies.try_for_each(|(index, ((to, from), bytes))| {
            by_address(to, from, bytes, Way::Queued(stream)).inspect_err(|_| *at = index)
        });
        // also for those before one that is refused
        queued.and(if must_end { end(stream) } else { Ok(()) })
    }
}

/// One copy with attributes.
///
/// # Errors
/// Those of the copy, and `cudaErrorInvalidValue` for attributes that are none.
pub fn queue_one(to: u64, from: u64, bytes: u64, how: In<Attributes>, stream: u64) -> Res {
    let must_end = how.get()?.ends_with_the_call()?;
    by_address(to, from, bytes, Way::Queued(stream))?;
    if must_end { end(stream) } else { Ok(()) }
}

/// Waits until all copies of the stream are done.
fn end(stream: u64) -> Res {
    answer((ready()?.cuStreamSynchronize)(stream))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_structure_has_the_size_of_the_header() {
        assert_eq!(size_of::<Attributes>(), 24);
    }
}
