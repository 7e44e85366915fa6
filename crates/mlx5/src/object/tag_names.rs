//! What a driver calls the entries of a matching list.

use engine_thread::lock;
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard};

/// What the driver calls the entries of a list.
#[derive(Default)]
pub(crate) struct TagNames(Mutex<Given>);

#[derive(Default)]
pub(crate) struct Given {
    /// Index of the next entry.
    pub(crate) next: u16,
    /// What the HCA calls each, by index; of those that are gone too.
    pub(crate) handles: HashMap<u16, u32>,
}

impl TagNames {
    pub(crate) fn lock(&self) -> MutexGuard<'_, Given> {
        lock(&self.0)
    }
}
