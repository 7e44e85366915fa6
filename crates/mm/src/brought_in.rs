//! Which bytes of a mapping have been brought in, so that nobody walks all of its pages again for
//! each registration.
//!
//! They stay unless somebody punches holes into the file, for which whoever asks looks, or the
//! kernel swaps pages out, which shows as a page fault of an access: a registration does not keep
//! pages from that either.

use engine_thread::lock;
use std::ops::Range;
use std::sync::Mutex;

/// One range of such bytes; others may be there too.
#[derive(Default, Debug)]
pub struct BroughtIn(Mutex<Range<u64>>);

impl BroughtIn {
    /// Calls `bring_in`, which answers whether it could, unless all of `range` was there and
    /// nothing `is_lost`.
    pub fn ensure(
        &self,
        range: Range<u64>,
        is_lost: impl FnOnce() -> bool,
        bring_in: impl FnOnce() -> bool,
    ) {
        if (!self.holds(&range) || is_lost()) && bring_in() {
            self.add(range);
        }
    }

    fn holds(&self, range: &Range<u64>) -> bool {
        let known = lock(&self.0);
        known.start <= range.start && range.end <= known.end
    }

    /// Ranges that touch each other become one; of others the longer is kept.
    fn add(&self, range: Range<u64>) {
        let mut known = lock(&self.0);
        if range.start <= known.end && known.start <= range.end {
            *known = known.start.min(range.start)..known.end.max(range.end);
        } else if range.end - range.start > known.end - known.start {
            *known = range;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_there_is_not_brought_in_again() {
        let known = BroughtIn::default();
        let brings = |range: Range<u64>, could: bool| {
            let mut called = false;
            let bring_in = || {
                called = true;
                could
            };
            known.ensure(range, || false, bring_in);
            called
        };
        assert!(brings(10..20, false));
        assert!(brings(10..20, true));
        assert!(!brings(10..20, true) && !brings(12..13, true));
        assert!(brings(20..30, true) && brings(5..12, true));
        assert!(!brings(5..30, true), "what touches is one");
        assert!(brings(40..50, true) && brings(40..50, true), "the longer is kept");
        assert!(brings(100..200, true) && !brings(100..200, true));
        assert!(brings(5..30, true));
        let mut again = false;
        known.ensure(110..120, || true, || std::mem::replace(&mut again, true));
        assert!(again, "what is lost is brought in again");
    }
}
