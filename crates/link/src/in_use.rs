//! What is kept once, however many use it: each value goes with the last who does.

use engine_thread::lock;
use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex, Weak};

/// Values that are remembered before those are looked for that nobody uses any more.
const FEW: usize = 64;

/// Values in use, by what tells them apart.
pub(crate) struct InUse<K, T>(Mutex<Known<K, T>>);

struct Known<K, T> {
    values: HashMap<K, Weak<T>>,
    /// How many were in use when that was last looked at.
    used: usize,
}

impl<K, T> Default for InUse<K, T> {
    fn default() -> InUse<K, T> {
        InUse(Mutex::new(Known { values: HashMap::new(), used: 0 }))
    }
}

impl<K: Eq + Hash, T> InUse<K, T> {
    /// The value of `key`, which `make` makes if nobody uses it.
    pub(crate) fn get(&self, key: K, make: impl FnOnce() -> T) -> Arc<T> {
        let mut known = lock(&self.0);
        if let Some(value) = known.values.get(&key).and_then(Weak::upgrade) {
            return value;
        }
        known.forget_unused();
        let value = Arc::new(make());
        // What finds no place serves who asked for it.
        if known.values.try_reserve(1).is_ok() {
            known.values.insert(key, Arc::downgrade(&value));
        }
        value
    }
}

impl<K: Eq + Hash, T> Known<K, T> {
    /// Looks for them once they may be half of all.
    fn forget_unused(&mut self) {
        if self.values.len() >= FEW.max(2 * self.used) {
            self.values.retain(|_, value| value.strong_count() > 0);
            self.used = self.values.len();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_made_once_while_it_is_used() {
        let values = InUse::default();
        let first = values.get(1, || "first");
        assert!(Arc::ptr_eq(&first, &values.get(1, || "second")));
        assert_eq!(*values.get(2, || "another"), "another");
        drop(first);
        assert_eq!(*values.get(1, || "second"), "second");
    }

    #[test]
    fn what_nobody_uses_is_forgotten() {
        let values = InUse::default();
        let get = |key: u32| values.get(key, || key);
        let kept: Vec<_> = (1..100).map(get).collect();
        (1000..3000).for_each(|key| drop(get(key)));
        assert!(lock(&values.0).values.len() <= 2 * kept.len());
        drop(kept);
        (1000..3000).for_each(|key| drop(get(key)));
        assert!(lock(&values.0).values.len() <= FEW);
    }
}
