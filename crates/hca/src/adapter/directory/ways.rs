//! How the bytes of a key's memory are reached: by calls to the system at first, and by a view once
//! that is worth it.

use mm::{Loan, NotLent, Sink, View};
use std::sync::Arc;

/// Requests to one entry after which its memory is mapped here: that costs as much as they do.
pub(super) const OFTEN: u32 = 8;

/// How the bytes of an entry's memory are reached.
pub(super) enum Way {
    /// By calls to the system, so many so far.
    Calls(u32),
    /// They are mapped here, or were.
    Mapped(Loan),
    /// By calls, always.
    CallsOnly,
}

/// Memory that is mapped here, as a request reaches it.
pub(super) struct Seen {
    view: Arc<View>,
    /// Where in it the request's first byte is.
    offset: u64,
}

impl Seen {
    /// So many bytes from `at` on, counted from the request's first byte.
    pub(super) fn memory(&self, at: u64, len: u64) -> Option<Sink<'_>> {
        self.view.memory(self.offset.checked_add(at)?, len)
    }

    /// Brings so many bytes from `at` on in.
    pub(super) fn bring_in(&self, at: u64, len: u64) {
        self.view.bring_in(self.offset.saturating_add(at), len);
    }

    /// Whether nobody has asked for the view before.
    pub(super) fn is_new(&self) -> bool {
        self.view.is_new()
    }

    /// Whether process `pid`, this one, has it mapped.
    pub(super) fn is_of(&self, pid: u32) -> bool {
        self.view.is_of(pid)
    }
}

impl Way {
    /// The view for a request to `addr` there, if there is to be one: after so many requests that
    /// are `often`, by what `borrow` answers.
    pub(super) fn seen(
        &mut self,
        addr: u64,
        often: u32,
        borrow: impl FnOnce() -> Result<Loan, NotLent>,
    ) -> Option<Seen> {
        let at = |loan: &Loan| loan.at(addr).map(|(view, offset)| Seen { view, offset });
        let known = match self {
            Way::Mapped(loan) => at(loan),
            Way::Calls(calls) if *calls < often => {
                *calls += 1;
                return None;
            }
            Way::Calls(_) => None,
            Way::CallsOnly => return None,
        };
        known.or_else(|| {
            let borrowed = borrow();
            let seen = borrowed.as_ref().ok().and_then(at);
            *self = match borrowed {
                Ok(loan) => Way::Mapped(loan),
                Err(NotLent::Never) => Way::CallsOnly,
                Err(NotLent::NotNow) => Way::Calls(0),
            };
            seen
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mm::Mapping;

    fn lend() -> Loan {
        let mapping = Mapping::anonymous_shared(4096).unwrap();
        Loan::new(View::lend(mapping, 0, 4096).unwrap(), 0x1000)
    }

    #[test]
    fn what_is_used_often_is_borrowed_once() {
        let mut way = Way::Calls(0);
        let mut asked = 0;
        for request in 0..3 * OFTEN {
            let seen = way.seen(0x1010, OFTEN, || {
                asked += 1;
                Ok(lend())
            });
            assert_eq!(seen.is_some(), request >= OFTEN);
            if let Some(seen) = seen {
                assert!(seen.memory(0, 4080).is_some() && seen.memory(1, 4080).is_none());
                assert!(seen.is_of(std::process::id()) && !seen.is_of(1));
            }
        }
        assert_eq!(asked, 1);
        assert!(way.seen(0xfff, OFTEN, || Err(NotLent::NotNow)).is_none(), "before it begins");
        assert!(matches!(way, Way::Calls(0)), "it may work later");
    }

    #[test]
    fn what_is_never_lent_is_asked_for_once() {
        let mut way = Way::Calls(OFTEN);
        assert!(way.seen(0x1000, OFTEN, || Err(NotLent::Never)).is_none());
        assert!(way.seen(0x1000, OFTEN, || unreachable!()).is_none());
    }
}
