//! Bytes in memory that processes share, for guarded copies.

use crate::guard::{Sink, Source};
use shm::{RingReader, RingWriter, Shm};

/// The `len` bytes at `at` of a region, if they are in it.
fn bytes(shm: &Shm, at: usize, len: usize) -> Option<Sink<'_>> {
    shm.addr(at.checked_add(len)?)?;
    // SAFETY: mapped as long as the region is, and sealed, so that it cannot shrink. What Rust code
    // has references to in it are atomics, which others change at any time.
    Some(unsafe { Sink::vouched(shm.addr(at)?, len as u64) })
}

/// Where the bytes of a record go that `ring` has reserved a place for at `at`.
pub fn record_to_write(ring: &RingWriter, at: usize, len: usize) -> Option<Sink<'_>> {
    bytes(ring.shm(), at, len)
}

/// The bytes of the record of `ring` at `at`.
pub fn record_to_read(ring: &RingReader, at: usize, len: usize) -> Option<Source<'_>> {
    bytes(ring.shm(), at, len).map(Sink::source)
}

#[cfg(test)]
mod tests {
    use super::*;
    use shm::{Between, Record};

    const BETWEEN: Between = Between { from: 1, to: 2 };

    #[test]
    fn a_record_is_written_and_read_where_it_is() {
        crate::guard::install();
        let mut writer = RingWriter::create(BETWEEN).unwrap();
        let mut reader = RingReader::open(&writer, BETWEEN).unwrap();
        for round in 0..100u8 {
            let len = 20_001;
            let at = writer.reserve(len).unwrap().unwrap();
            record_to_write(&writer, at, len).unwrap().write(&vec![round; len]).unwrap();
            writer.commit(Record { len, tag: 7 });
            let (at, Record { len, tag }) = reader.peek().unwrap().unwrap();
            assert_eq!(tag, 7);
            let mut read = vec![0; len];
            record_to_read(&reader, at, len).unwrap().read(&mut read).unwrap();
            assert_eq!(read, vec![round; 20_001]);
            reader.take(len);
        }
    }

    #[test]
    fn what_is_outside_is_nowhere() {
        let writer = RingWriter::create(BETWEEN).unwrap();
        let end = writer.shm().bytes();
        assert!(record_to_write(&writer, end, 0).is_some());
        assert!(record_to_write(&writer, end, 1).is_none());
        assert!(record_to_write(&writer, 8, usize::MAX).is_none());
    }
}
