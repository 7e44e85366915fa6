//! Which file a range of a process's memory is, from `/proc/PID/maps` (proc_pid_maps(5)).

use super::process::Shown;
use rustix::fs::OFlags;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::ops::Range;

/// Bytes of `maps` that are read at most: some ten thousand mappings, which take a millisecond or
/// two.
const MOST: u64 = 1 << 20;

/// A file as the kernel knows it, without a look at its file system.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct FileId {
    pub(super) device: (u32, u32),
    pub(super) inode: u64,
}

/// Where in a file a range of memory is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Extent {
    pub(super) file: FileId,
    /// Where in it the range begins.
    pub(super) offset: u64,
    /// As `maps` calls it. Inodes of files that have no path are no sign of their own: the kernel
    /// gives a System V segment that of its number.
    pub(super) name: Vec<u8>,
    /// Where the mappings of it end that the range lies in.
    pub(super) end: u64,
}

impl Extent {
    /// That of `range` in a process, if all of it is one piece of a file, mapped as shared, for
    /// writing if it has to be `writable`.
    pub(super) fn of_process(
        process: &Shown,
        range: &Range<u64>,
        writable: bool,
    ) -> Option<Extent> {
        let maps = process.open("maps", OFlags::RDONLY).ok()?;
        Extent::find(BufReader::new(File::from(maps).take(MOST)), range, writable)
    }

    fn find(maps: impl BufRead, range: &Range<u64>, writable: bool) -> Option<Extent> {
        let mut found: Option<Extent> = None;
        for line in maps.split(b'\n') {
            let line = line.ok()?;
            let mapping = Mapped::of_line(&line)?;
            if mapping.range.end <= range.start {
                continue;
            }
            if !mapping.is_shared(writable) {
                return None;
            }
            let extent = match found.take() {
                None => mapping.begins(range.start)?,
                Some(extent) => mapping.goes_on(extent, range.start)?,
            };
            if extent.end >= range.end {
                return Some(extent);
            }
            found = Some(extent);
        }
        None
    }
}

/// A line of `maps`.
struct Mapped<'a> {
    range: Range<u64>,
    rights: &'a [u8],
    offset: u64,
    file: FileId,
    name: &'a [u8],
}

impl<'a> Mapped<'a> {
    fn of_line(line: &'a [u8]) -> Option<Mapped<'a>> {
        let mut words = line.splitn(6, |byte| *byte == b' ');
        let (start, end) = hex_pair(words.next()?, '-')?;
        let rights = words.next()?;
        let offset = hex(text(words.next()?)?)?;
        let (major, minor) = hex_pair(words.next()?, ':')?;
        let device = (u32::try_from(major).ok()?, u32::try_from(minor).ok()?);
        let inode = text(words.next()?)?.parse().ok()?;
        let name = words.next().unwrap_or_default().trim_ascii_start();
        Some(Mapped { range: start..end, rights, offset, file: FileId { device, inode }, name })
    }

    fn is_shared(&self, writable: bool) -> bool {
        let may_read = self.rights.starts_with(if writable { b"rw" } else { b"r" });
        may_read && self.rights.ends_with(b"s") && self.file.inode != 0
    }

    /// The extent that begins in it at address `at`.
    fn begins(&self, at: u64) -> Option<Extent> {
        let offset = self.offset.checked_add(at.checked_sub(self.range.start)?)?;
        Some(Extent { file: self.file, offset, name: self.name.to_vec(), end: self.range.end })
    }

    /// `extent`, which began at address `at`, with this mapping, if that goes on with it.
    fn goes_on(&self, extent: Extent, at: u64) -> Option<Extent> {
        let follows = extent.end == self.range.start
            && extent.file == self.file
            && extent.offset.checked_add(self.range.start - at) == Some(self.offset);
        follows.then_some(Extent { end: self.range.end, ..extent })
    }
}

fn text(word: &[u8]) -> Option<&str> {
    std::str::from_utf8(word).ok()
}

fn hex(word: &str) -> Option<u64> {
    u64::from_str_radix(word, 16).ok()
}

fn hex_pair(word: &[u8], between: char) -> Option<(u64, u64)> {
    let (one, other) = text(word)?.split_once(between)?;
    Some((hex(one)?, hex(other)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAPS: &str = "\
        1000-3000 rw-s 00004000 00:1a 77                         /dev/shm/my file\n\
        3000-4000 rw-s 00006000 00:1a 77                         /dev/shm/my file\n\
        4000-5000 rw-s 00007000 00:1b 77                         /dev/shm/my file\n\
        5000-6000 r--s 00008000 00:1b 77                         /dev/shm/my file\n\
        6000-7000 rw-p 00009000 00:1b 77                         /dev/shm/my file\n\
        7000-8000 rw-s 00000000 00:01 5                          /SYSV00000000 (deleted)\n\
        9000-a000 rw-s 00000000 00:01 6                          /memfd:one (deleted)\n\
        a000-b000 rw-s 00002000 00:01 6                          /memfd:one (deleted)\n\
        b000-c000 rw-p 00000000 00:00 0 \n\
        nonsense\n";

    fn find(range: Range<u64>, writable: bool) -> Option<(u64, u64)> {
        let found = Extent::find(MAPS.as_bytes(), &range, writable)?;
        Some((found.offset, found.end))
    }

    #[test]
    fn one_piece_of_one_file_is_found() {
        let whole = Extent::find(MAPS.as_bytes(), &(0x1800..0x3800), true).unwrap();
        let file = FileId { device: (0, 0x1a), inode: 77 };
        let name = b"/dev/shm/my file".to_vec();
        assert_eq!(whole, Extent { file, offset: 0x4800, name, end: 0x4000 });
        assert_eq!(find(0x1000..0x1001, true), Some((0x4000, 0x3000)));
        let segment = Extent::find(MAPS.as_bytes(), &(0x7010..0x8000), true).unwrap();
        assert!(segment.file.inode == 5 && segment.offset == 0x10);
    }

    #[test]
    fn what_is_no_such_piece_is_not_found() {
        for (why, range) in [
            ("another device", 0x3800..0x4800),
            ("private", 0x6000..0x7000),
            ("nothing behind it", 0x7800..0x8800),
            ("nothing there", 0x8000..0x9000),
            ("begins before", 0x8800..0x9800),
            ("not what follows in the file", 0x9800..0xa800),
            ("anonymous", 0xb000..0xc000),
            ("no line of maps", 0xc000..0xd000),
        ] {
            assert_eq!(find(range, false), None, "{why}");
        }
        assert_eq!(find(0x5000..0x6000, true), None, "not for writing");
        assert_eq!(find(0x5000..0x6000, false), Some((0x8000, 0x6000)));
        assert_eq!(find(0x4000..0x6000, false), Some((0x7000, 0x6000)), "in two mappings");
    }
}
