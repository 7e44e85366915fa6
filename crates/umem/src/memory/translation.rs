//! The segments of a registration, by offset.

use crate::memory::page_size::Run;
use crate::memory::space::Segment;
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
    /// How the bytes lie in memory; `None` where an adapter needs no pages to reach them.
    pages: Option<Pages>,
}

/// Bytes in aligned blocks, each in one piece.
struct Pages {
    /// DMA address of the first byte: its distance from a block's start counts.
    first: u64,
    block: u64,
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
        let (segments, starts) = (segments.into(), starts.into());
        Translation { segments, starts, len, translated: None, pages: None }
    }

    /// As `new`, of memory whose first byte is at `first` and which lies in one piece in every
    /// aligned block of `block` bytes, a power of two.
    pub(crate) fn in_blocks(segments: Vec<Segment>, first: u64, block: u64) -> Translation {
        Translation { pages: Some(Pages { first, block }), ..Translation::new(segments) }
    }

    /// The scatter/gather table, where there are pages.
    pub(crate) fn runs(&self) -> Option<impl Iterator<Item = Run>> {
        let Pages { first, block } = *self.pages.as_ref()?;
        let run = move |(start, segment): (&u64, &Segment)| Run {
            addr: first.wrapping_add(*start),
            len: segment.len,
            block: Some(block),
        };
        Some(self.starts.iter().zip(&self.segments).map(run))
    }
}
