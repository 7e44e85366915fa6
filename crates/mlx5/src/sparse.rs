//! A list of entries of which only those that were written take room, in chunks: drivers announce long lists and fill few places.

/// Entries that are stored together.
const CHUNK: usize = 512;

/// Entries by index; those never written are `absent`.
pub(crate) struct Sparse<T> {
    chunks: Vec<Option<Box<[T]>>>,
    absent: T,
}

impl<T: Copy + PartialEq> Sparse<T> {
    /// An empty list.
    pub(crate) fn new(absent: T) -> Sparse<T> {
        Sparse { chunks: Vec::new(), absent }
    }

    pub(crate) fn get(&self, index: u64) -> T {
        let chunk = |index: usize| self.chunks.get(index / CHUNK)?.as_ref()?.get(index % CHUNK);
        usize::try_from(index).ok().and_then(chunk).copied().unwrap_or(self.absent)
    }

    /// The caller bounds `index`: the list of chunks reaches up to it.
    pub(crate) fn set(&mut self, index: u64, entry: T) {
        if entry == self.absent && self.get(index) == entry {
            return;
        }
        let index = index as usize;
        if self.chunks.len() <= index / CHUNK {
            self.chunks.resize_with(index / CHUNK + 1, || None);
        }
        let chunk = &mut self.chunks[index / CHUNK];
        chunk.get_or_insert_with(|| vec![self.absent; CHUNK].into())[index % CHUNK] = entry;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_not_written_is_absent() {
        let mut list = Sparse::new(7);
        list.set(CHUNK as u64 * 3 + 1, 1);
        let around = [0, CHUNK as u64 * 3, CHUNK as u64 * 3 + 1, u64::MAX];
        assert_eq!(around.map(|index| list.get(index)), [7, 7, 1, 7]);
        assert_eq!(list.chunks.iter().flatten().count(), 1);
    }
}
