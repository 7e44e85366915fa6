//! Counters that entries of flow tables name (PRM `traffic_counter`): frames that an entry was
//! found for, and their bytes.

use crate::layout::head::{Answer, Status};
use crate::request::steering::{AllocFlowCounter, DeallocFlowCounter, QueryFlowCounter};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Counters that there can be.
pub(crate) const MAX_COUNTERS: u64 = 1 << 12;
/// Counters of one query, as a logarithm.
pub(crate) const LOG_MAX_QUERY: u64 = 10;

/// What one counter counts.
#[derive(Default)]
pub(super) struct Traffic {
    frames: AtomicU64,
    bytes: AtomicU64,
}

impl Traffic {
    pub(super) fn add(&self, bytes: usize) {
        self.frames.fetch_add(1, Relaxed);
        self.bytes.fetch_add(bytes as u64, Relaxed);
    }
}

/// All counters of flows, by number.
#[derive(Default)]
pub(super) struct FlowCounters(BTreeMap<u32, Arc<Traffic>>);

impl FlowCounters {
    pub(super) fn get(&self, number: u32) -> Result<Arc<Traffic>, Status> {
        self.0.get(&number).cloned().ok_or(Status::BadResource)
    }

    /// `ALLOC_FLOW_COUNTER`: one at a time.
    pub(super) fn alloc(&mut self, request: &AllocFlowCounter) -> Answer {
        if request.flow_counter_bulk != 0 {
            return Err(Status::BadParameter);
        }
        let free = (1..=MAX_COUNTERS as u32).find(|number| !self.0.contains_key(number));
        let number = free.ok_or(Status::NoResources)?;
        self.0.insert(number, Arc::default());
        let mut answer = vec![0; 8];
        answer[..4].copy_from_slice(&number.to_be_bytes());
        Ok(answer)
    }

    /// `DEALLOC_FLOW_COUNTER`.
    pub(super) fn dealloc(&mut self, request: &DeallocFlowCounter) -> Answer {
        let number = request.flow_counter_id;
        let traffic = self.0.get(&number).ok_or(Status::BadResource)?;
        if Arc::strong_count(traffic) > 1 {
            return Err(Status::Busy);
        }
        self.0.remove(&number);
        Ok(vec![0; 8])
    }

    /// `QUERY_FLOW_COUNTER`: some numbers in a row, where those that are not given out count
    /// nothing.
    pub(super) fn query(&self, request: &QueryFlowCounter) -> Answer {
        let count = request.num_of_counters.max(1);
        if u64::from(count) > 1 << LOG_MAX_QUERY {
            return Err(Status::Limits);
        }
        let first = request.flow_counter_id;
        let take = |value: &AtomicU64| {
            if request.clear { value.swap(0, Relaxed) } else { value.load(Relaxed) }
        };
        let mut answer = vec![0; 8];
        for step in 0..count {
            let traffic = first.checked_add(step).and_then(|number| self.0.get(&number));
            let [frames, bytes] =
                traffic.map_or([0; 2], |traffic| [take(&traffic.frames), take(&traffic.bytes)]);
            answer.extend(frames.to_be_bytes());
            answer.extend(bytes.to_be_bytes());
        }
        Ok(answer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn query(flow_counter_id: u32, num_of_counters: u32, clear: bool) -> QueryFlowCounter {
        QueryFlowCounter { clear, num_of_counters, flow_counter_id }
    }

    #[test]
    fn what_was_met_is_counted_until_it_is_cleared() {
        let mut counters = FlowCounters::default();
        assert_eq!(counters.alloc(&AllocFlowCounter::default()).unwrap()[..4], [0, 0, 0, 1]);
        let used = counters.get(1).unwrap();
        used.add(60);
        used.add(100);
        let mut answer = vec![0; 8];
        answer.extend([0u64, 0, 2, 160].into_iter().flat_map(u64::to_be_bytes));
        assert_eq!(counters.query(&query(0, 2, true)).unwrap(), answer);
        assert_eq!(counters.query(&query(1, 0, false)).unwrap(), [0; 24], "cleared");
        assert_eq!(counters.query(&query(u32::MAX, 2, false)).unwrap(), [0; 40]);
        assert_eq!(counters.query(&query(0, 0xffff, false)), Err(Status::Limits));
        let about = DeallocFlowCounter { flow_counter_id: 1 };
        assert_eq!(counters.dealloc(&about), Err(Status::Busy));
        drop(used);
        counters.dealloc(&about).unwrap();
        assert_eq!(counters.dealloc(&about), Err(Status::BadResource));
        let many = AllocFlowCounter { flow_counter_bulk: 1 };
        assert_eq!(counters.alloc(&many), Err(Status::BadParameter), "128 at once");
    }
}
