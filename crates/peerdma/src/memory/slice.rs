//! Parts of regions: what work requests name at this end and at the far one.

use crate::error::{Error, Result};
use std::marker::PhantomData;
use std::ops::{Bound, RangeBounds};
use verbs_sys::ibv_sge;

/// Bytes of a local region that a work request reads or writes.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub struct LocalSlice<'a> {
    pub(crate) sge: ibv_sge,
    _region: PhantomData<&'a ()>,
}

impl LocalSlice<'_> {
    /// The bytes that `sge` names, of a region that outlives the slice.
    pub(super) fn new(sge: ibv_sge) -> Self {
        LocalSlice { sge, _region: PhantomData }
    }

    /// Length in bytes.
    pub fn len(&self) -> u32 {
        self.sge.length
    }
    /// Whether there is no byte.
    pub fn is_empty(&self) -> bool {
        self.sge.length == 0
    }
}

/// Bytes of a region at the far end, as a value to send there: address, length, key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct RemoteSlice {
    /// Address of the first byte in the owner's terms.
    pub addr: u64,
    /// Length in bytes.
    pub len: u64,
    /// The key the owner gave away.
    pub rkey: u32,
}

impl RemoteSlice {
    /// A part, by byte offsets from the start.
    pub fn slice(&self, range: impl RangeBounds<u64>) -> Result<RemoteSlice> {
        let (offset, len) = resolve(range, self.len)?;
        Ok(RemoteSlice { addr: self.addr.wrapping_add(offset), len, rkey: self.rkey })
    }
}

/// Offset and length of a range over `size` bytes.
pub(super) fn resolve(range: impl RangeBounds<u64>, size: u64) -> Result<(u64, u64)> {
    let start = match range.start_bound() {
        Bound::Included(&start) => start,
        Bound::Excluded(&start) => start.saturating_add(1),
        Bound::Unbounded => 0,
    };
    let end = match range.end_bound() {
        Bound::Included(&end) => end.saturating_add(1),
        Bound::Excluded(&end) => end,
        Bound::Unbounded => size,
    };
    let len = end.checked_sub(start).filter(|_| end <= size);
    len.map(|len| (start, len)).ok_or(Error::Range {
        offset: start,
        len: end.saturating_sub(start),
        size,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_stay_inside() {
        assert_eq!(resolve(.., 10).unwrap(), (0, 10));
        assert_eq!(resolve(3..=9, 10).unwrap(), (3, 7));
        assert_eq!(resolve(10..10, 10).unwrap(), (10, 0));
        assert!(resolve(3..11, 10).is_err());
        #[allow(clippy::reversed_empty_ranges, reason = "the bad range is the point")]
        let reversed = 5..4;
        assert!(resolve(reversed, 10).is_err());
        assert!(resolve(u64::MAX..=u64::MAX, 10).is_err());
    }

    #[test]
    fn a_remote_slice_of_a_slice_keeps_key_and_bounds() {
        let whole = RemoteSlice { addr: 0x1000, len: 100, rkey: 7 };
        let part = whole.slice(10..20).unwrap();
        assert_eq!(part, RemoteSlice { addr: 0x100a, len: 10, rkey: 7 });
        assert!(part.slice(5..11).is_err());
    }
}
