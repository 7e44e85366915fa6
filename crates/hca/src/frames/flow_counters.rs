//! Counters of flow rules (ibv_create_counters(3)): what to count at which index, and the counts of
//! all rules bound.

use engine_thread::lock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard};
use transport::{Error, Result};

/// What is counted (`enum ibv_counter_description`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FlowCount {
    /// Packets that met the rule.
    Packets,
    /// Their bytes.
    Bytes,
}

#[derive(Default)]
struct Points {
    /// Where each count goes; several at one index add up.
    places: Vec<(u32, FlowCount)>,
    rules: u32,
}

/// A counters object. What is counted is settled before the first rule is bound.
#[derive(Default)]
pub struct FlowCounters {
    packets: AtomicU64,
    bytes: AtomicU64,
    points: Mutex<Points>,
}

impl std::fmt::Debug for FlowCounters {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FlowCounters").field("packets", &self.packets).finish_non_exhaustive()
    }
}

impl FlowCounters {
    /// An object that counts nothing yet.
    pub fn new() -> Arc<FlowCounters> {
        Arc::default()
    }

    fn points(&self) -> MutexGuard<'_, Points> {
        lock(&self.points)
    }

    /// Adds `count` at `index`.
    ///
    /// # Errors
    /// [`Error::Busy`] while a rule is bound.
    pub fn attach(&self, index: u32, count: FlowCount) -> Result<()> {
        let mut points = self.points();
        if points.rules > 0 {
            return Err(Error::Busy("a flow rule is bound to the counters"));
        }
        points.places.push((index, count));
        Ok(())
    }

    /// Binds one more rule, until the value ends.
    ///
    /// # Errors
    /// [`Error::Invalid`] when nothing shall be counted (as mlx5 has it).
    pub fn bind(self: &Arc<Self>) -> Result<BoundCounters> {
        let mut points = self.points();
        if points.places.is_empty() {
            return Err(Error::Invalid("the counters object counts nothing"));
        }
        points.rules += 1;
        Ok(BoundCounters(self.clone()))
    }

    /// Fills in the counts by index, 0 where none was asked for.
    ///
    /// # Errors
    /// [`Error::Invalid`] when no rule is bound (as the kernel has it), or an index lies beyond
    /// `values`.
    pub fn read(&self, values: &mut [u64]) -> Result<()> {
        let points = self.points();
        if points.rules == 0 {
            return Err(Error::Invalid("no flow rule is bound to the counters"));
        }
        if points.places.iter().any(|(index, _)| *index as usize >= values.len()) {
            return Err(Error::Invalid("more counters than room for their values"));
        }
        values.fill(0);
        for (index, count) in &points.places {
            let counted = match count {
                FlowCount::Packets => &self.packets,
                FlowCount::Bytes => &self.bytes,
            };
            if let Some(value) = values.get_mut(*index as usize) {
                *value = value.wrapping_add(counted.load(Relaxed));
            }
        }
        Ok(())
    }

    /// Ends the object's life.
    ///
    /// # Errors
    /// [`Error::Busy`] while a rule is bound.
    pub fn destroy(&self) -> Result<()> {
        match self.points().rules {
            0 => Ok(()),
            _ => Err(Error::Busy("a flow rule is bound to the counters")),
        }
    }
}

/// Counters that a rule is bound to.
#[derive(Debug)]
pub struct BoundCounters(Arc<FlowCounters>);

impl BoundCounters {
    /// A packet of `bytes` bytes met the rule.
    pub fn count(&self, bytes: u64) {
        self.0.packets.fetch_add(1, Relaxed);
        self.0.bytes.fetch_add(bytes, Relaxed);
    }
}

impl Drop for BoundCounters {
    fn drop(&mut self) {
        self.0.points().rules -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_add_up_at_the_indexes_asked_for() {
        let counters = FlowCounters::new();
        for (index, count) in
            [(3, FlowCount::Bytes), (0, FlowCount::Packets), (3, FlowCount::Packets)]
        {
            counters.attach(index, count).unwrap();
        }
        let rules = [counters.bind().unwrap(), counters.bind().unwrap()];
        rules[0].count(100);
        rules[1].count(20);
        let mut values = [9; 5];
        counters.read(&mut values).unwrap();
        assert_eq!(values, [2, 0, 0, 122, 0]);
        assert!(matches!(counters.read(&mut values[..3]), Err(Error::Invalid(_))));
    }

    #[test]
    fn what_is_counted_is_settled_before_a_rule_is_bound() {
        let counters = FlowCounters::new();
        assert!(matches!(counters.bind(), Err(Error::Invalid(_))));
        counters.attach(0, FlowCount::Packets).unwrap();
        assert!(matches!(counters.read(&mut [0]), Err(Error::Invalid(_))));
        let rule = counters.bind().unwrap();
        rule.count(1);
        assert!(matches!(counters.attach(1, FlowCount::Bytes), Err(Error::Busy(_))));
        assert!(matches!(counters.destroy(), Err(Error::Busy(_))));
        drop(rule);
        counters.attach(1, FlowCount::Bytes).unwrap();
        let _rule = counters.bind().unwrap();
        let mut values = [0; 2];
        counters.read(&mut values).unwrap();
        assert_eq!(values, [1, 1], "counts only grow");
    }
}
