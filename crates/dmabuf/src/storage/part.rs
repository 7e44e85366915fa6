//! Dma-bufs of a part of a software GPU's buffer, as CUDA's driver exports a range of addresses
//! within an allocation.
//!
//! The descriptor of a part is the buffer's file, opened once more, with a lock of its own
//! (fcntl(2), "Open file description locks") far beyond the file's end: where that lies says where
//! the part does. So the mark goes where the descriptor goes, into other processes too, and ends
//! with its last duplicate; nothing that programs do with a dma-buf changes it, as lseek(2) would a
//! file position. Who holds a descriptor finds its locks, and no others, in `/proc/self/fdinfo`.

use crate::Error;
use crate::fd;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

/// Parts begin and end at a page of the smallest size.
const PAGE: u64 = 4096;
/// A lock of a part is one byte at `MARK | serial | first page | pages`.
const MARK: u64 = 1 << 62;
/// Bits of the page that a part begins at, and of the number of its pages.
const BITS: u32 = 26;
/// So many descriptors may stand for the same part at a time: a byte is locked once.
const SERIALS: u64 = 1 << 9;
/// More than `/proc` says of a descriptor with one lock.
const ABOUT: usize = 4096;

/// A descriptor of `part`, in bytes of what `of` stands for: a software GPU's buffer, or a part of
/// one.
///
/// # Errors
/// [`Error::NotDmaBuf`] for any other file; [`Error::NoSuchPart`] for a part that is empty, is not
/// of whole pages or not all there; [`Error::Part`] where it cannot be opened or marked.
pub fn export_part(of: BorrowedFd<'_>, part: Range<u64>) -> Result<OwnedFd, Error> {
    if crate::id_of(of).is_none() {
        let name = fd::name(of).unwrap_or_else(|| format!("descriptor {}", of.as_raw_fd()));
        return Err(Error::NotDmaBuf(name));
    }
    let size = rustix::fs::fstat(of).map_err(Error::Part)?.st_size.max(0) as u64;
    let whole = stands_for(of, size)?;
    let within = |at: u64| whole.start.checked_add(at).filter(|at| *at <= whole.end);
    let (start, end) = (within(part.start), within(part.end));
    let range = start.zip(end).map(|(start, end)| start..end).ok_or(Error::NoSuchPart)?;
    let mark = mark(&range).ok_or(Error::NoSuchPart)?;
    let new = fd::reopen(of).map_err(Error::Part)?;
    let serial = (0..SERIALS).find(|serial| fd::try_lock(&new, at(mark, *serial)));
    serial.ok_or(Error::Part(Errno::BUSY))?;
    // Where `/proc` does not show it, importers would take the part for all of the buffer.
    match stands_for(new.as_fd(), size) {
        Ok(seen) if seen == range => Ok(new),
        _ => Err(Error::Part(Errno::OPNOTSUPP)),
    }
}

/// Which bytes of a buffer of `size` bytes a descriptor of it stands for.
///
/// # Errors
/// [`Error::NoSuchPart`] for a mark that is none of a part's, or of one that is not there.
pub(crate) fn stands_for(fd: BorrowedFd<'_>, size: u64) -> Result<Range<u64>, Error> {
    let mut about = [0; ABOUT];
    let len = about_descriptor(fd, &mut about).map_err(Error::Part)?;
    let text = about.get(..len).unwrap_or_default();
    let mut marks = text.split(|byte| *byte == b'\n').filter_map(marked);
    let Some(mark) = marks.next() else { return Ok(0..size) };
    let (first, pages) = (mark >> BITS & ((1 << BITS) - 1), mark & ((1 << BITS) - 1));
    let range = first * PAGE..(first + pages) * PAGE;
    if range.is_empty() || range.end > size { Err(Error::NoSuchPart) } else { Ok(range) }
}

/// Where the lock of a part lies, for a part that may be: see [`MARK`].
fn mark(range: &Range<u64>) -> Option<u64> {
    let is_whole = range.start.is_multiple_of(PAGE) && range.end.is_multiple_of(PAGE);
    let pages = range.end.checked_sub(range.start)? / PAGE;
    let first = range.start / PAGE;
    let fits = |number: u64| number < 1 << BITS;
    (is_whole && pages > 0 && fits(first) && fits(pages)).then_some(first << BITS | pages)
}

fn at(mark: u64, serial: u64) -> i64 {
    (MARK | serial << (2 * BITS) | mark).cast_signed()
}

/// What `/proc` says of a descriptor.
fn about_descriptor(fd: BorrowedFd<'_>, about: &mut [u8]) -> Result<usize, Errno> {
    let path = format!("/proc/self/fdinfo/{}", fd.as_raw_fd());
    let file = rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    let mut len = 0;
    while let Some(room) = about.get_mut(len..).filter(|room| !room.is_empty()) {
        match rustix::io::read(&file, room) {
            Ok(0) => break,
            Ok(read) => len += read,
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(len)
}

/// The mark that a line of [`about_descriptor`] tells of, as
/// `lock: 1: OFDLCK  ADVISORY  WRITE -1 00:01:2053 4611686018427387904 4611686018427387904`.
fn marked(line: &[u8]) -> Option<u64> {
    let line = std::str::from_utf8(line).ok()?;
    let mut words = line.strip_prefix("lock:")?.split_ascii_whitespace();
    words.find(|word| *word == "OFDLCK")?;
    let mut ends = words.rev().map(|word| word.parse::<u64>());
    let (end, start) = (ends.next()?.ok()?, ends.next()?.ok()?);
    (start == end && start & MARK != 0).then_some(start & !MARK)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memfd_name;
    use rustix::fs::MemfdFlags;

    const SIZE: u64 = 1 << 20;

    fn buffer() -> OwnedFd {
        let fd = rustix::fs::memfd_create(memfd_name(7), MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&fd, SIZE).unwrap();
        fd
    }

    fn seen(fd: &OwnedFd) -> Result<Range<u64>, Error> {
        stands_for(fd.as_fd(), SIZE)
    }

    #[test]
    fn a_descriptor_says_what_it_stands_for() {
        let whole = buffer();
        assert_eq!(seen(&whole), Ok(0..SIZE));
        let part = |range| export_part(whole.as_fd(), range).unwrap();
        let (one, two, same) = (part(4096..8192), part(0..SIZE), part(4096..8192));
        assert_eq!(
            (seen(&one), seen(&two), seen(&same)),
            (Ok(4096..8192), Ok(0..SIZE), seen(&one))
        );
        assert_eq!(seen(&whole), Ok(0..SIZE), "the marks are others'");
        let copy = one.try_clone().unwrap();
        drop(one);
        rustix::fs::seek(&copy, rustix::fs::SeekFrom::End(0)).unwrap();
        assert_eq!(seen(&copy), Ok(4096..8192));
        let end = part(SIZE - 4096..SIZE);
        assert_eq!(seen(&end), Ok(SIZE - 4096..SIZE));
    }

    #[test]
    fn a_part_of_a_part_begins_there() {
        let whole = buffer();
        let outer = export_part(whole.as_fd(), 8192..65536).unwrap();
        let inner = export_part(outer.as_fd(), 4096..8192).unwrap();
        assert_eq!(seen(&inner), Ok(12288..16384));
        assert_eq!(export_part(outer.as_fd(), 0..61440).err(), Some(Error::NoSuchPart));
    }

    #[test]
    fn what_is_no_part_is_refused() {
        let whole = buffer();
        for (start, end) in [
            (0, 0),
            (8192, 4096),
            (1, 4096),
            (0, 4097),
            (0, SIZE + 4096),
            (SIZE, SIZE + 4096),
            (u64::MAX - 4095, u64::MAX),
        ] {
            let refused = export_part(whole.as_fd(), Range { start, end });
            assert_eq!(refused.err(), Some(Error::NoSuchPart), "{start} {end}");
        }
        let other = rustix::fs::memfd_create("other", MemfdFlags::CLOEXEC).unwrap();
        assert!(matches!(export_part(other.as_fd(), 0..4096), Err(Error::NotDmaBuf(_))));
    }

    /// Whoever may write a buffer may lock what it likes.
    #[test]
    fn a_mark_of_what_is_not_there_is_refused() {
        let pages = SIZE / PAGE;
        for mark in [0, pages << BITS, pages << BITS | 1, pages + 1, (1 << 52) - 1] {
            let forged = fd::reopen(buffer().as_fd()).unwrap();
            assert!(fd::try_lock(&forged, at(mark, 0)));
            assert_eq!(seen(&forged), Err(Error::NoSuchPart), "{mark:#x}");
        }
        let elsewhere = fd::reopen(buffer().as_fd()).unwrap();
        assert!(fd::try_lock(&elsewhere, 4096));
        assert_eq!(seen(&elsewhere), Ok(0..SIZE));
    }

    #[test]
    fn as_many_descriptors_of_a_part_as_there_are_serials() {
        let whole = buffer();
        let all: Vec<OwnedFd> =
            (0..SERIALS).map(|_| export_part(whole.as_fd(), 0..4096).unwrap()).collect();
        assert_eq!(export_part(whole.as_fd(), 0..4096).err(), Some(Error::Part(Errno::BUSY)));
        drop(all);
        export_part(whole.as_fd(), 0..4096).unwrap();
    }

    #[test]
    fn only_a_lock_of_the_descriptor_counts() {
        let line = |kind: &str, start: u64, end: u64| {
            marked(format!("lock:\t1: {kind}  ADVISORY  WRITE -1 00:01:9 {start} {end}").as_bytes())
        };
        assert_eq!(line("OFDLCK", MARK | 5, MARK | 5), Some(5));
        assert_eq!(line("POSIX", MARK | 5, MARK | 5), None);
        assert_eq!(line("OFDLCK", MARK | 5, MARK | 6), None);
        assert_eq!(line("OFDLCK", 5, 5), None);
        assert_eq!(marked(b"lock:\t1: OFDLCK ADVISORY WRITE -1 00:01:9 0 EOF"), None);
        assert_eq!(marked(b"pos:\t4611686018427387909"), None);
        assert_eq!(marked(b"lock: OFDLCK"), None);
    }
}
