//! Which pages the kernel maps a range by: those of huge page files are larger than the base page,
//! and each lies in one piece.

use crate::page_size;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// `PROCMAP_QUERY` of `linux/fs.h`: `_IOWR('f', 17, struct procmap_query)`.
const PROCMAP_QUERY: libc::c_ulong = 0xc068_6611;

/// `struct procmap_query` of `linux/fs.h`.
#[repr(C)]
#[derive(Default)]
struct Query {
    size: u64,
    query_flags: u64,
    query_addr: u64,
    vma_start: u64,
    vma_end: u64,
    vma_flags: u64,
    vma_page_size: u64,
    vma_offset: u64,
    inode: u64,
    dev_major: u32,
    dev_minor: u32,
    vma_name_size: u32,
    build_id_size: u32,
    vma_name_addr: u64,
    build_id_addr: u64,
}

/// Whether the kernel may know the request; one before Linux 6.11 does not, and is asked once.
static TELLS: AtomicBool = AtomicBool::new(true);

/// The smallest page size, a power of two, of the mappings that `range` lies in. The base page's
/// where the kernel does not tell (before Linux 6.11, or without `/proc`) or nothing is mapped.
pub(crate) fn mapped_page_size(range: &Range<u64>) -> u64 {
    let page = page_size();
    let within_one = range.is_empty() || range.start / page == (range.end - 1) / page;
    if within_one || !TELLS.load(Relaxed) {
        return page;
    }
    let Some(maps) = Maps::open() else { return page };
    let (mut at, mut smallest) = (range.start, u64::MAX);
    while at < range.end {
        match maps.mapping(at) {
            Some((end, size)) if size > page && size.is_power_of_two() && end > at => {
                smallest = smallest.min(size);
                at = end;
            }
            _ => return page,
        }
    }
    smallest
}

/// An open `maps`, by raw system calls: the C library's are interposed by the shim.
struct Maps(i32);

impl Maps {
    fn open() -> Option<Maps> {
        let path = c"/proc/self/maps";
        let flags = libc::O_RDONLY | libc::O_CLOEXEC;
        // SAFETY: the path is terminated.
        let fd = unsafe { libc::syscall(libc::SYS_openat, libc::AT_FDCWD, path.as_ptr(), flags) };
        (fd >= 0).then_some(Maps(fd as i32))
    }

    /// End and page size of the mapping that `addr` is in.
    fn mapping(&self, addr: u64) -> Option<(u64, u64)> {
        let mut query =
            Query { size: size_of::<Query>() as u64, query_addr: addr, ..Query::default() };
        // SAFETY: the kernel reads and writes `query`, which says its size; no buffer is named.
        let done = unsafe { libc::syscall(libc::SYS_ioctl, self.0, PROCMAP_QUERY, &raw mut query) };
        if done != 0 && std::io::Error::last_os_error().raw_os_error() == Some(libc::ENOTTY) {
            TELLS.store(false, Relaxed);
        }
        (done == 0).then_some((query.vma_end, query.vma_page_size))
    }
}

impl Drop for Maps {
    fn drop(&mut self) {
        // SAFETY: the descriptor is ours.
        unsafe { libc::syscall(libc::SYS_close, self.0) };
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::Mapping;
    use std::os::fd::{AsFd, FromRawFd, OwnedFd};

    fn mapping(flags: libc::c_uint, len: u64) -> Option<Mapping> {
        // SAFETY: a fresh descriptor, owned at once, of a size that is ours to set.
        let fd = unsafe {
            let fd = libc::memfd_create(c"pages-test".as_ptr(), libc::MFD_CLOEXEC | flags);
            (fd >= 0 && libc::ftruncate(fd, len as i64) == 0).then(|| OwnedFd::from_raw_fd(fd))?
        };
        Mapping::shared_without_pages(fd.as_fd(), len).ok()
    }

    #[test]
    fn ordinary_memory_has_base_pages() {
        let page = page_size();
        let map = mapping(0, 64 * page).unwrap();
        assert_eq!(mapped_page_size(&map.range()), page);
        assert_eq!(mapped_page_size(&(0..1 << 30)), page, "nothing is mapped");
        assert_eq!(mapped_page_size(&(5..5)), page);
    }

    #[test]
    fn a_mapping_is_told_by_its_end_and_page_size() {
        let page = page_size();
        let map = mapping(0, 8 * page).unwrap();
        match Maps::open().unwrap().mapping(map.addr() + page) {
            Some((end, size)) => assert!(end >= map.range().end && size == page),
            None => test_support::skip!("this kernel has no PROCMAP_QUERY"),
        }
    }

    #[test]
    fn huge_pages_are_told() {
        const HUGE: u64 = 2 << 20;
        let Some(map) = mapping(libc::MFD_HUGETLB | libc::MFD_HUGE_2MB, 2 * HUGE) else {
            test_support::skip!("this kernel has no huge pages of 2 MiB");
        };
        if Maps::open().unwrap().mapping(map.addr()).is_none() {
            test_support::skip!("this kernel has no PROCMAP_QUERY");
        }
        assert_eq!(mapped_page_size(&map.range()), HUGE);
        assert_eq!(mapped_page_size(&(map.addr() + 5..map.addr() + HUGE)), HUGE);
    }
}
