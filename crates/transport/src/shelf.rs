//! Memory that a queue sets aside when it is made, so that posting and receiving ask nobody for
//! any.
//!
//! The lists of most requests are short and lie in the request itself. The store of a longer one
//! comes off a [`Shelf`] of its queue's, made for as many requests as the queue takes, and goes
//! back when the list is dropped, by whomever. A list that was made without a shelf is on the heap.

use crate::error::{Error, Result};
use engine_thread::{ROOM_BYTES, has_memory, lock};
use smallvec::{Array, SmallVec};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard};

const NO_MEMORY: Error = Error::NoMemory("the system has no memory for the queue");

/// An empty queue with room for `places` entries.
///
/// # Errors
/// [`Error::NoMemory`] when there is no memory for them.
pub fn queue_of<T>(places: usize) -> Result<VecDeque<T>> {
    let mut queue = VecDeque::new();
    queue.try_reserve_exact(places).map_err(|_| NO_MEMORY)?;
    Ok(queue)
}

/// An empty list with room for `places` entries.
///
/// # Errors
/// [`Error::NoMemory`] when there is no memory for them.
pub fn list_of<T>(places: usize) -> Result<Vec<T>> {
    let mut list = Vec::new();
    list.try_reserve_exact(places).map_err(|_| NO_MEMORY)?;
    Ok(list)
}

/// Stores for the longest lists that a queue's requests may have; clones share them. Where such a
/// list lies in its request there are none, and the shelf takes no memory.
pub struct Shelf<A: Array>(Option<Arc<Stores<A>>>);

/// Its lock is innermost.
struct Stores<A: Array>(Mutex<Vec<Vec<A::Item>>>);

impl<A: Array> Default for Shelf<A> {
    fn default() -> Shelf<A> {
        Shelf(None)
    }
}

impl<A: Array> Clone for Shelf<A> {
    fn clone(&self) -> Shelf<A> {
        Shelf(self.0.clone())
    }
}

impl<A: Array> Shelf<A> {
    /// Stores for `count` lists of up to `longest` entries each; none where such a list lies in its
    /// request.
    ///
    /// # Errors
    /// [`Error::NoMemory`] when there is no memory for them.
    pub fn new(count: usize, longest: usize) -> Result<Shelf<A>> {
        if count == 0 || longest <= A::size() {
            return Ok(Shelf(None));
        }
        let mut stores = list_of(count)?;
        let at_once = (ROOM_BYTES / size_of::<A::Item>().max(1) / longest / 2).max(1);
        for index in 0..count {
            if index.is_multiple_of(at_once) && !has_memory() {
                return Err(NO_MEMORY);
            }
            stores.push(list_of(longest)?);
        }
        Ok(Shelf(Some(Arc::new(Stores(Mutex::new(stores))))))
    }

    /// An empty list with room for `len` entries.
    ///
    /// # Errors
    /// [`Error::NoMemory`] when all stores are lent, or too short, and there is no memory for
    /// another.
    pub fn lend(&self, len: usize) -> Result<Lent<A>> {
        if len <= A::size() {
            return Ok(Lent::default());
        }
        let take = |stores: &Arc<Stores<A>>| {
            let store = stores.lock().pop_if(|store| store.capacity() >= len)?;
            Some(Lent { items: store.into(), home: Some(stores.clone()) })
        };
        match self.0.as_ref().and_then(take) {
            Some(list) => Ok(list),
            None => Ok(Lent { items: list_of(len)?.into(), home: None }),
        }
    }
}

impl<A: Array> Stores<A> {
    fn lock(&self) -> MutexGuard<'_, Vec<Vec<A::Item>>> {
        lock(&self.0)
    }

    fn take_back(&self, mut store: Vec<A::Item>) {
        store.clear();
        let mut stores = self.lock();
        // A list that grew meanwhile has its own store; what finds no place is not kept.
        if stores.len() < stores.capacity() {
            stores.push(store);
        }
    }
}

/// A list of which the first few entries lie in place; the store of a longer one is its queue's.
pub struct Lent<A: Array> {
    items: SmallVec<A>,
    home: Option<Arc<Stores<A>>>,
}

impl<T: Copy> Lent<[T; 2]> {
    /// A list of one entry.
    pub fn one(entry: T) -> Lent<[T; 2]> {
        Lent { items: SmallVec::from_buf_and_len([entry; 2], 1), home: None }
    }
}

impl Lent<[u8; 32]> {
    /// Makes an empty list one of `len` zeroes.
    pub fn lengthen(&mut self, len: usize) {
        match len {
            0..=32 => self.items = SmallVec::from_buf_and_len([0; 32], len),
            _ => self.items.resize(len, 0),
        }
    }
}

impl<A: Array> Lent<A> {
    /// An empty list.
    pub fn new() -> Lent<A> {
        Lent { items: SmallVec::new(), home: None }
    }

    /// Whether it takes `len` entries without asking for memory.
    pub fn has_room(&self, len: usize) -> bool {
        len <= self.items.capacity()
    }

    /// Appends an entry.
    pub fn push(&mut self, item: A::Item) {
        self.items.push(item);
    }

    /// Shortens the list to `len` entries.
    pub fn truncate(&mut self, len: usize) {
        self.items.truncate(len);
    }
}

impl<A: Array> Drop for Lent<A> {
    fn drop(&mut self) {
        if let Some(home) = self.home.take() {
            home.take_back(std::mem::take(&mut self.items).into_vec());
        }
    }
}

impl<A: Array> Default for Lent<A> {
    fn default() -> Lent<A> {
        Lent::new()
    }
}

impl<A: Array> std::ops::Deref for Lent<A> {
    type Target = [A::Item];
    fn deref(&self) -> &[A::Item] {
        &self.items
    }
}

impl<A: Array> std::ops::DerefMut for Lent<A> {
    fn deref_mut(&mut self) -> &mut [A::Item] {
        &mut self.items
    }
}

impl<A: Array> Extend<A::Item> for Lent<A> {
    fn extend<I: IntoIterator<Item = A::Item>>(&mut self, items: I) {
        self.items.extend(items);
    }
}

impl<A: Array> FromIterator<A::Item> for Lent<A> {
    fn from_iter<I: IntoIterator<Item = A::Item>>(items: I) -> Lent<A> {
        Lent { items: items.into_iter().collect(), home: None }
    }
}

impl<A: Array> From<Vec<A::Item>> for Lent<A> {
    fn from(items: Vec<A::Item>) -> Lent<A> {
        Lent { items: items.into(), home: None }
    }
}

impl<A: Array> From<&[A::Item]> for Lent<A>
where
    A::Item: Clone,
{
    fn from(items: &[A::Item]) -> Lent<A> {
        items.iter().cloned().collect()
    }
}

impl<A: Array, const N: usize> From<[A::Item; N]> for Lent<A> {
    fn from(items: [A::Item; N]) -> Lent<A> {
        items.into_iter().collect()
    }
}

impl<A: Array> Clone for Lent<A>
where
    A::Item: Clone,
{
    fn clone(&self) -> Lent<A> {
        Lent { items: self.items.clone(), home: None }
    }
}

impl<A: Array> PartialEq for Lent<A>
where
    A::Item: PartialEq,
{
    fn eq(&self, other: &Lent<A>) -> bool {
        self.items == other.items
    }
}

impl<A: Array> Eq for Lent<A> where A::Item: Eq {}

impl<A: Array> std::fmt::Debug for Lent<A>
where
    A::Item: std::fmt::Debug,
{
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.items.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type List = Lent<[u8; 2]>;

    #[test]
    fn a_long_list_gives_its_store_back() {
        let shelf = Shelf::<[u8; 2]>::new(2, 5).unwrap();
        let stores = |shelf: &Shelf<_>| shelf.0.as_ref().unwrap().lock().len();
        let mut first: List = shelf.lend(5).unwrap();
        let short = shelf.lend(2).unwrap();
        assert_eq!(stores(&shelf), 1, "a short list needs none");
        first.extend([1, 2, 3, 4, 5]);
        let copy = first.clone();
        drop((first, short));
        assert_eq!((stores(&shelf), copy.len()), (2, 5));
        drop(copy);
        assert_eq!(stores(&shelf), 2, "a copy is its own");
        assert!(shelf.lend(5).unwrap().is_empty(), "what was in a store before does not show");
    }

    #[test]
    fn a_shelf_that_is_empty_lends_from_the_heap() {
        let shelf = Shelf::<[u8; 2]>::new(1, 3).unwrap();
        let both: [List; 2] = [shelf.lend(3).unwrap(), shelf.lend(3).unwrap()];
        drop(both);
        assert_eq!(shelf.0.as_ref().unwrap().lock().len(), 1);
        let longer = shelf.lend(4).unwrap();
        assert!(longer.home.is_none());
    }

    #[test]
    fn what_does_not_fit_into_memory_is_refused() {
        assert!(matches!(queue_of::<u64>(usize::MAX / 16), Err(Error::NoMemory(_))));
        assert!(matches!(Shelf::<[u8; 2]>::new(1, 1 << 62), Err(Error::NoMemory(_))));
        assert!(Shelf::<[u8; 2]>::new(1 << 62, 2).unwrap().0.is_none(), "short lists need none");
    }
}
