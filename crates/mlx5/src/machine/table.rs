//! Objects by number, and the numbers that are given out. A table's lock is never held while the
//! HCA is called: its callbacks come with its own locks held.

use crate::layout::head::Status;
use engine_thread::{read, write};
use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::RwLock;

/// Objects of one kind by number.
pub(crate) struct Table<T>(RwLock<HashMap<u32, T>>);

impl<T> Default for Table<T> {
    fn default() -> Table<T> {
        Table(RwLock::default())
    }
}

impl<T: Clone> Table<T> {
    pub(crate) fn get(&self, number: u32) -> Result<T, Status> {
        let table = read(&self.0);
        table.get(&number).cloned().ok_or(Status::BadResource)
    }

    pub(crate) fn insert(&self, number: u32, object: T) {
        write(&self.0).insert(number, object);
    }

    pub(crate) fn remove(&self, number: u32) -> Result<T, Status> {
        let mut table = write(&self.0);
        table.remove(&number).ok_or(Status::BadResource)
    }

    /// All numbers; none are left.
    pub(crate) fn take_numbers(&self) -> Vec<u32> {
        let mut table = write(&self.0);
        table.drain().map(|(number, _)| number).collect()
    }

    /// All objects; none are left.
    pub(crate) fn take_all(&self) -> Vec<T> {
        let mut table = write(&self.0);
        table.drain().map(|(_, object)| object).collect()
    }
}

/// Numbers that are given out, the least free one first; each step takes time that hardly depends
/// on how many are out.
pub(crate) struct Numbers {
    all: Range<u32>,
    /// Runs of numbers that nobody has, none next to another: where each begins, and where it has
    /// ended.
    free: BTreeMap<u32, u32>,
}

impl Numbers {
    /// All of them are free.
    pub(crate) fn within(all: Range<u32>) -> Numbers {
        let mut numbers = Numbers { all: all.clone(), free: BTreeMap::new() };
        numbers.file(all);
        numbers
    }

    fn file(&mut self, run: Range<u32>) {
        if !run.is_empty() {
            self.free.insert(run.start, run.end);
        }
    }

    /// The run that a free number is in.
    fn run(&self, number: u32) -> Option<Range<u32>> {
        let (&start, &end) = self.free.range(..=number).next_back()?;
        (number < end).then_some(start..end)
    }

    /// Gives out the least free number.
    ///
    /// # Errors
    /// [`Status::NoResources`] when none is free.
    pub(crate) fn take(&mut self) -> Result<u32, Status> {
        let (start, end) = self.free.pop_first().ok_or(Status::NoResources)?;
        self.file(start + 1..end);
        Ok(start)
    }

    /// Gives out this number.
    ///
    /// # Errors
    /// [`Status::NoResources`] when it is not free.
    pub(crate) fn claim(&mut self, number: u32) -> Result<(), Status> {
        let run = self.run(number).ok_or(Status::NoResources)?;
        self.free.remove(&run.start);
        self.file(run.start..number);
        self.file(number + 1..run.end);
        Ok(())
    }

    /// The number is free again.
    ///
    /// # Errors
    /// [`Status::BadResource`] when it was not given out.
    pub(crate) fn give_back(&mut self, number: u32) -> Result<(), Status> {
        if !self.all.contains(&number) || self.run(number).is_some() {
            return Err(Status::BadResource);
        }
        let before = number.checked_sub(1).and_then(|before| self.run(before));
        let start = before.map_or(number, |run| run.start);
        let end = self.free.remove(&(number + 1)).unwrap_or(number + 1);
        self.free.insert(start, end);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn the_least_free_number_is_given_out() {
        let mut numbers = Numbers::within(1..5);
        assert_eq!([(); 4].map(|()| numbers.take()), [Ok(1), Ok(2), Ok(3), Ok(4)]);
        assert_eq!(numbers.take(), Err(Status::NoResources));
        for number in [3, 1] {
            assert_eq!(numbers.give_back(number), Ok(()));
            assert_eq!(numbers.give_back(number), Err(Status::BadResource), "twice");
        }
        assert_eq!([(); 2].map(|()| numbers.take()), [Ok(1), Ok(3)]);
        for stranger in [0, 5, u32::MAX] {
            assert_eq!(numbers.give_back(stranger), Err(Status::BadResource));
            assert_eq!(numbers.claim(stranger), Err(Status::NoResources));
        }
        assert_eq!(Numbers::within(7..7).take(), Err(Status::NoResources));
        let mut last = Numbers::within(u32::MAX - 1..u32::MAX);
        assert_eq!(last.take(), Ok(u32::MAX - 1));
        assert_eq!(last.give_back(u32::MAX - 1), Ok(()));
    }

    /// Against a plain set, in an order that is the same each time.
    #[test]
    fn any_order_of_steps_is_as_a_set_of_free_numbers() {
        const ALL: Range<u32> = 1..24;
        let mut numbers = Numbers::within(ALL);
        let mut free: BTreeSet<u32> = ALL.collect();
        let mut seed = 1u32;
        for _ in 0..20_000 {
            seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let number = (seed >> 8) % 26;
            match seed >> 30 {
                0 => assert_eq!(numbers.take(), free.pop_first().ok_or(Status::NoResources)),
                1 => {
                    let claimed = free.remove(&number).then_some(()).ok_or(Status::NoResources);
                    assert_eq!(numbers.claim(number), claimed);
                }
                _ => {
                    let given = ALL.contains(&number) && free.insert(number);
                    let back = given.then_some(()).ok_or(Status::BadResource);
                    assert_eq!(numbers.give_back(number), back);
                }
            }
            let runs: Vec<_> = numbers.free.iter().collect();
            assert!(runs.windows(2).all(|two| two[0].1 < two[1].0), "{runs:?} are apart");
        }
    }

    /// With a search among those that are out this would take minutes.
    #[test]
    fn many_numbers_are_no_slower_than_few() {
        let mut numbers = Numbers::within(1..1 << 24);
        for round in 0..3 {
            for number in 1..=300_000 {
                assert_eq!(numbers.take(), Ok(number), "round {round}");
            }
            for number in (1..=300_000).rev() {
                assert_eq!(numbers.give_back(number), Ok(()), "round {round}");
            }
        }
    }
}
