//! A list of entries of which only those that were written take room, in chunks: drivers announce
//! long lists and fill few places.

use crate::layout::head::Status;
use crate::machine::budget::{Budget, Charge};
use std::sync::Arc;

/// Entries that are stored together.
const CHUNK: usize = 512;

/// An empty list with room for so many.
///
/// # Errors
/// [`Status::NoResources`] when the process has no memory for them.
pub(crate) fn room<T>(entries: usize) -> Result<Vec<T>, Status> {
    let mut list = Vec::new();
    list.try_reserve_exact(entries).map_err(|_| Status::NoResources)?;
    Ok(list)
}

/// Entries by index; those never written are `absent`.
pub(crate) struct Sparse<T> {
    chunks: Vec<Option<Box<[T]>>>,
    absent: T,
    charge: Charge,
}

impl<T: Copy + PartialEq> Sparse<T> {
    /// An empty list, whose room `budget` pays for.
    ///
    /// # Errors
    /// [`Status::NoResources`].
    pub(crate) fn new(absent: T, budget: &Arc<Budget>) -> Result<Sparse<T>, Status> {
        Ok(Sparse { chunks: Vec::new(), absent, charge: budget.charge(0)? })
    }

    pub(crate) fn get(&self, index: u64) -> T {
        let chunk = |index: usize| self.chunks.get(index / CHUNK)?.as_ref()?.get(index % CHUNK);
        usize::try_from(index).ok().and_then(chunk).copied().unwrap_or(self.absent)
    }

    /// The caller bounds `index`: the list of chunks reaches up to it.
    ///
    /// # Errors
    /// [`Status::NoResources`] when there is no room for one more chunk; the entry stays as it was.
    pub(crate) fn set(&mut self, index: u64, entry: T) -> Result<(), Status> {
        if entry == self.absent && self.get(index) == entry {
            return Ok(());
        }
        let index = index as usize;
        let (chunk, len) = (index / CHUNK, self.chunks.len());
        if self.chunks.get(chunk).is_none_or(Option::is_none) {
            let places = (chunk + 1).saturating_sub(len) * size_of::<Option<Box<[T]>>>();
            self.charge.grow((places + CHUNK * size_of::<T>()) as u64)?;
            let mut entries = room(CHUNK)?;
            entries.resize(CHUNK, self.absent);
            let more = (chunk + 1).saturating_sub(len);
            self.chunks.try_reserve(more).map_err(|_| Status::NoResources)?;
            self.chunks.resize_with(len + more, || None);
            self.chunks[chunk] = Some(entries.into());
        }
        if let Some(entries) = &mut self.chunks[chunk] {
            entries[index % CHUNK] = entry;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_not_written_is_absent() {
        let mut list = Sparse::new(7, &Budget::new(1 << 20)).unwrap();
        list.set(CHUNK as u64 * 3 + 1, 1).unwrap();
        let around = [0, CHUNK as u64 * 3, CHUNK as u64 * 3 + 1, u64::MAX];
        assert_eq!(around.map(|index| list.get(index)), [7, 7, 1, 7]);
        assert_eq!(list.chunks.iter().flatten().count(), 1);
    }

    #[test]
    fn each_chunk_is_paid_for_and_a_list_that_ends_gives_all_back() {
        let room = 2 * (CHUNK * size_of::<u64>() + 2 * size_of::<usize>()) as u64;
        let budget = Budget::new(room);
        let mut list = Sparse::new(0u64, &budget).unwrap();
        list.set(0, 1).unwrap();
        list.set(CHUNK as u64, 1).unwrap();
        list.set(1, 1).unwrap();
        assert_eq!(list.set(2 * CHUNK as u64, 1), Err(Status::NoResources));
        assert_eq!(list.get(2 * CHUNK as u64), 0);
        drop(list);
        assert!(budget.charge(room).is_ok());
    }
}
