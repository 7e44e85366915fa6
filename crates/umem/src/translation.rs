//! The segments of a registration, by offset.

use crate::Segment;
use std::ops::Range;
use std::sync::Arc;

/// Segments in order, and where each begins.
pub(crate) struct Translation {
    pub(crate) segments: Box<[Segment]>,
    /// Offset of each segment's first byte.
    pub(crate) starts: Box<[u64]>,
    pub(crate) len: u64,
    /// Where translated requests take another way than the segments'.
    pub(crate) translated: Option<Arc<pcie::Route>>,
}

impl Translation {
    /// The addresses of `len` bytes from `offset` on, of memory in one segment.
    #[inline]
    pub(crate) fn mapped(&self, offset: u64, len: u64) -> Option<Range<u64>> {
        let start = self.segments.first()?.addr.checked_add(offset)?;
        Some(start..start.checked_add(len)?)
    }

    /// Empty segments, and those beyond a total of 2^64 - 1 bytes, are left out.
    pub(crate) fn new(mut segments: Vec<Segment>) -> Translation {
        segments.retain(|s| s.len > 0);
        let mut starts = Vec::with_capacity(segments.len());
        let mut len = 0u64;
        for segment in &segments {
            let Some(end) = len.checked_add(segment.len) else { break };
            starts.push(len);
            len = end;
        }
        segments.truncate(starts.len());
        Translation { segments: segments.into(), starts: starts.into(), len, translated: None }
    }
}
