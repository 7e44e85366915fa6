//! The queue pairs of a device, and which number the next one gets.
//!
//! Numbers come in an order that only the device knows, and each comes once before any comes again:
//! nobody tells the next one from those before, and a late packet to a queue pair that is gone
//! finds nobody.

use crate::adapter::directory::MAX_QPS;
use crate::objects::cq::Cq;
use crate::objects::qp::Qp;
use engine_thread::{read, write};
use registry::QPN_INDEX_BITS;
use std::collections::HashSet;
use std::hash::{BuildHasher, RandomState};
use std::ops::Range;
use std::sync::{Arc, RwLock, RwLockReadGuard, RwLockWriteGuard};
use transport::Result;
use transport::list_of;

/// Bits of a number within the device's slot.
const BITS: u32 = MAX_QPS.ilog2();

/// The queue pairs of a device, with their lock.
pub(crate) struct Qps {
    slot: u16,
    table: RwLock<QpTable>,
}

impl Qps {
    /// The table of the device with `slot`, with none in it yet.
    ///
    /// # Errors
    /// [`Error::NoMemory`](crate::Error::NoMemory) when the system has none for them.
    pub(crate) fn new(slot: u16) -> Result<Qps> {
        Ok(Qps { slot, table: RwLock::new(QpTable::new()?) })
    }

    fn read(&self) -> RwLockReadGuard<'_, QpTable> {
        read(&self.table)
    }

    pub(crate) fn write(&self) -> RwLockWriteGuard<'_, QpTable> {
        write(&self.table)
    }

    /// The number of the queue pair at a place of the table.
    pub(crate) fn number_at(&self, place: usize) -> u32 {
        u32::from(self.slot) << QPN_INDEX_BITS | place as u32
    }

    /// The queue pair of a number, if it is ours and alive.
    pub(crate) fn find(&self, number: u32) -> Option<Arc<Qp>> {
        if number >> QPN_INDEX_BITS != u32::from(self.slot) {
            return None;
        }
        self.read().get(number).cloned()
    }

    pub(crate) fn all(&self) -> Vec<Arc<Qp>> {
        self.read().iter().cloned().collect()
    }

    /// Numbers of those that complete at `cq`.
    pub(crate) fn users_of(&self, cq: &Cq) -> Vec<u32> {
        let table = self.read();
        table.iter().filter(|qp| qp.completes_at(cq)).map(|qp| qp.number()).collect()
    }
}

/// All queue pairs of one device by their numbers.
pub(crate) struct QpTable {
    places: Vec<Option<Arc<Qp>>>,
    /// Places that no queue pair gets.
    set_aside: HashSet<usize>,
    order: Order,
    /// Where in the order the search for a free place goes on.
    next: usize,
    used: usize,
}

impl QpTable {
    /// An empty table.
    ///
    /// # Errors
    /// [`Error::NoMemory`](crate::Error::NoMemory) when the system has none for it.
    pub(crate) fn new() -> Result<QpTable> {
        let mut places = list_of(MAX_QPS)?;
        places.resize_with(MAX_QPS, || None);
        let order = Order(RandomState::new());
        Ok(QpTable { places, set_aside: HashSet::new(), order, next: 0, used: 0 })
    }

    /// The queue pair of a number of this device.
    pub(crate) fn get(&self, number: u32) -> Option<&Arc<Qp>> {
        self.places[place(number)].as_ref()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Arc<Qp>> {
        self.places.iter().flatten()
    }

    /// How many queue pairs there are.
    pub(crate) fn used(&self) -> usize {
        self.used
    }

    fn is_free(&self, place: usize) -> bool {
        self.places[place].is_none() && !self.set_aside.contains(&place)
    }

    /// The place of the next queue pair, unless all are in use.
    pub(crate) fn free_place(&mut self) -> Option<usize> {
        let turn = (self.next..self.next + MAX_QPS).find(|&turn| self.is_free(self.order.at(turn)));
        let turn = turn?;
        self.next = (turn + 1) % MAX_QPS;
        Some(self.order.at(turn))
    }

    pub(crate) fn insert(&mut self, qp: Arc<Qp>) {
        let place = place(qp.number());
        self.places[place] = Some(qp);
        self.used += 1;
    }

    pub(crate) fn remove(&mut self, number: u32) {
        let removed = self.places[place(number)].take();
        self.used -= usize::from(removed.is_some());
    }

    /// Sets `count` places aside, one after the other, which no queue pair has or gets; gives the
    /// first.
    pub(crate) fn set_aside(&mut self, count: usize) -> Option<usize> {
        let mut ranges = (1..MAX_QPS / count.max(1)).map(|step| step * count..(step + 1) * count);
        let range: Range<usize> =
            ranges.find(|range| range.clone().all(|place| self.is_free(place)))?;
        self.set_aside.extend(range.clone());
        Some(range.start)
    }

    /// Ends what [`QpTable::set_aside`] did.
    pub(crate) fn give_back(&mut self, first: u32, count: usize) {
        let first = place(first);
        (first..first.saturating_add(count)).for_each(|place| {
            self.set_aside.remove(&place);
        });
    }
}

fn place(number: u32) -> usize {
    number as usize % MAX_QPS
}

/// A secret order of all places: a Feistel network over the two halves of a place.
struct Order(RandomState);

impl Order {
    /// The place whose turn it is, counted modulo the number of places.
    fn at(&self, turn: usize) -> usize {
        const HALF: usize = (1 << (BITS / 2)) - 1;
        let (mut left, mut right) = (turn >> (BITS / 2) & HALF, turn & HALF);
        for round in 0..4 {
            let mixed = self.0.hash_one((round, right)) as usize & HALF;
            (left, right) = (right, left ^ mixed);
        }
        left << (BITS / 2) | right
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_place_has_its_turn_and_nobody_knows_when() {
        let order = Order(RandomState::new());
        let places: HashSet<usize> = (0..MAX_QPS).map(|turn| order.at(turn)).collect();
        assert_eq!(places.len(), MAX_QPS);
        assert_eq!(order.at(MAX_QPS + 5), order.at(5));
        let step = |turn| (order.at(turn + 1) + MAX_QPS - order.at(turn)) % MAX_QPS;
        let steps: HashSet<usize> = (0..200).map(step).collect();
        assert!(steps.len() > 150, "of 200 steps only {} differ", steps.len());
    }

    #[test]
    fn what_is_set_aside_no_queue_pair_gets() {
        let mut table = QpTable::new().unwrap();
        let first = table.set_aside(MAX_QPS / 4).unwrap();
        let aside = first..first + MAX_QPS / 4;
        for _ in 0..MAX_QPS {
            assert!(!aside.contains(&table.free_place().unwrap()));
        }
        table.give_back(first as u32, MAX_QPS / 4);
        assert!((0..MAX_QPS).any(|_| aside.contains(&table.free_place().unwrap())));
    }
}
