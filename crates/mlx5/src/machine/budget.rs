//! What a guest may make the serving process remember: one amount for all of it. Whatever grows
//! with a guest's commands and requests is charged before it is kept, and a command for which
//! nothing is left answers "no resources".
//!
//! Charges are of the size that things have here, or more; what there is a fixed number of
//! (registers, capabilities, the lists of a port) is not charged. Nor is what is bounded by its
//! number instead: flow tables (1024), flow counters (4096), user contexts (2^8) and groups of
//! datagrams (8192 of 56 members each).

use crate::layout::head::Status;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The whole amount, and what is charged of it, in bytes.
#[derive(Debug)]
pub(crate) struct Budget {
    most: u64,
    used: AtomicU64,
}

impl Budget {
    pub(crate) fn new(most: u64) -> Arc<Budget> {
        Arc::new(Budget { most, used: AtomicU64::new(0) })
    }

    /// Charges `bytes`, until the charge is dropped.
    ///
    /// # Errors
    /// [`Status::NoResources`] when that is more than is left.
    pub(crate) fn charge(self: &Arc<Budget>, bytes: u64) -> Result<Charge, Status> {
        let mut charge = Charge { budget: self.clone(), bytes: 0 };
        charge.grow(bytes)?;
        Ok(charge)
    }
}

/// A part of the amount that something takes.
#[derive(Debug)]
pub(crate) struct Charge {
    budget: Arc<Budget>,
    bytes: u64,
}

impl Charge {
    /// Charges `bytes` more.
    ///
    /// # Errors
    /// As [`Budget::charge`]; the charge stays as it was.
    pub(crate) fn grow(&mut self, bytes: u64) -> Result<(), Status> {
        let most = self.budget.most;
        let take = |used: u64| used.checked_add(bytes).filter(|sum| *sum <= most);
        self.budget.used.fetch_update(Relaxed, Relaxed, take).map_err(|_| Status::NoResources)?;
        self.bytes += bytes;
        Ok(())
    }

    /// Charges so much in all that it is `bytes` at least.
    ///
    /// # Errors
    /// As [`Charge::grow`].
    pub(crate) fn raise(&mut self, bytes: u64) -> Result<(), Status> {
        self.grow(bytes.saturating_sub(self.bytes))
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.budget.used.fetch_sub(self.bytes, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_over_is_refused_and_what_ends_is_given_back() {
        let budget = Budget::new(100);
        let mut first = budget.charge(60).unwrap();
        assert_eq!(budget.charge(41).unwrap_err(), Status::NoResources);
        let second = budget.charge(40).unwrap();
        assert_eq!(first.grow(1), Err(Status::NoResources));
        drop(second);
        first.raise(80).unwrap();
        first.raise(10).unwrap();
        assert_eq!(budget.charge(21).unwrap_err(), Status::NoResources);
        assert_eq!(first.grow(u64::MAX), Err(Status::NoResources));
        drop(first);
        assert!(budget.charge(100).is_ok());
    }
}
