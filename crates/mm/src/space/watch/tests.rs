use super::*;
use crate::map::Mapping;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::AtomicBool;

/// The notices that a registration got.
#[derive(Default)]
struct Seen {
    gone: Mutex<Vec<Range<u64>>>,
    doubted: AtomicBool,
    unwatched: AtomicBool,
}

impl Invalidate for Seen {
    fn invalidate(&self, range: Range<u64>) {
        lock(&self.gone).push(range);
    }
    fn doubt(&self) {
        self.doubted.store(true, SeqCst);
    }
    fn settle(&self) {
        self.doubted.store(false, SeqCst);
    }
    fn unwatched(&self) {
        // before anybody is let in again
        self.unwatched.store(self.doubted.load(SeqCst), SeqCst);
    }
    fn holds(&self) -> bool {
        lock(&self.gone).is_empty()
    }
}

/// Memory whose end is its taker's.
fn memory(pages: u64) -> Range<u64> {
    let map = Mapping::anonymous(pages * page_size()).unwrap();
    let range = map.range();
    std::mem::forget(map);
    range
}

fn unmap(range: &Range<u64>) {
    let (addr, len) = (range.start as usize, (range.end - range.start) as usize);
    // SAFETY: memory that the tests mapped for this.
    assert_eq!(unsafe { libc::syscall(libc::SYS_munmap, addr, len) }, 0);
}

/// A space with one pinned registration of `range`; where this process may not watch, the end of
/// the test as skipped.
macro_rules! watched {
    ($range:expr) => {{
        if let Err(error) = can_watch() {
            test_support::skip!("userfaultfd(2): {error}");
        }
        watched($range)
    }};
}

fn watched(range: &Range<u64>) -> (Arc<AddressSpace>, Arc<Seen>, Registration) {
    let (space, seen) = (Arc::new(AddressSpace::new()), Arc::new(Seen::default()));
    let registration = space.register_pinned(range.clone(), seen.clone()).unwrap();
    assert!(registration.is_watched());
    (space, seen, registration)
}

/// Waits for the watcher's round to be over, as a registration does.
fn settle(space: &AddressSpace) {
    drop(lock(&space.kernel.get().unwrap().round));
}

#[test]
fn bare_calls_are_told() {
    type Way = fn(&Range<u64>);
    let ways: [(&str, Way); 4] = [
        ("munmap", unmap),
        ("madvise", |range| {
            let (addr, len) = (range.start as usize, (range.end - range.start) as usize);
            // SAFETY: memory that the tests mapped for this.
            let code = unsafe { libc::syscall(libc::SYS_madvise, addr, len, libc::MADV_DONTNEED) };
            assert_eq!(code, 0);
        }),
        ("mremap", |range| {
            let there = memory((range.end - range.start) / page_size());
            let len = (range.end - range.start) as usize;
            let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
            let (from, to) = (range.start as usize, there.start as usize);
            // SAFETY: memory that the tests mapped for this.
            let moved = unsafe { libc::syscall(libc::SYS_mremap, from, len, len, flags, to) };
            assert_eq!(moved as u64, there.start);
        }),
        ("mmap over it", |range| {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
            let (addr, len) = (range.start as usize, (range.end - range.start) as usize);
            // SAFETY: memory that the tests mapped for this.
            let mapped = unsafe {
                libc::syscall(libc::SYS_mmap, addr, len, libc::PROT_READ, flags, -1, 0usize)
            };
            assert_eq!(mapped as u64, range.start);
        }),
    ];
    for (name, way) in ways {
        let range = memory(8);
        let (space, seen, registration) = watched!(&range);
        let page = page_size();
        way(&(range.start + 2 * page..range.start + 4 * page));
        settle(&space);
        let taken = range.start + 2 * page..range.start + 4 * page;
        assert_eq!(*lock(&seen.gone), vec![taken], "{name}");
        assert!(!registration.is_watched(), "{name}: there is nothing to watch for any more");
        assert!(!seen.doubted.load(SeqCst), "{name}");
        // what is left of it is nobody's business
        unmap(&range);
        settle(&space);
        assert_eq!(lock(&seen.gone).len(), 1, "{name}");
        drop(registration);
    }
}

/// All kinds of mappings that this kernel lets be watched, and none that costs the program a fault.
#[test]
fn shared_memory_is_watched() {
    // SAFETY: a fresh descriptor, owned at once.
    let fd = unsafe { OwnedFd::from_raw_fd(libc::memfd_create(c"watch".as_ptr(), 1)) };
    // SAFETY: our own descriptor.
    assert_eq!(unsafe { libc::ftruncate(fd.as_raw_fd(), 4 * page_size() as i64) }, 0);
    let map = Mapping::shared(fd.as_fd(), 4 * page_size()).unwrap();
    let (space, seen, registration) = watched!(&map.range());
    map.sink().write(&[7; 100]).unwrap();
    drop(map);
    settle(&space);
    assert_eq!(lock(&seen.gone).len(), 1);
    drop(registration);
}

/// The kernel's own word, by which the mappings need not be looked up.
#[test]
fn who_watches_is_told_of_huge_pages() {
    const HUGE: u64 = 2 << 20;
    let range = memory(4);
    let (space, _, registration) = watched!(&range);
    assert!(registration.base_pages);
    assert_eq!(registration.mapped_page_size(&range), page_size());
    let flags = libc::MFD_HUGETLB | libc::MFD_HUGE_2MB;
    // SAFETY: a fresh descriptor, owned at once.
    let fd = unsafe { libc::memfd_create(c"watch".as_ptr(), flags) };
    if fd < 0 {
        test_support::skip!("this kernel has no huge pages of 2 MiB");
    }
    // SAFETY: as above.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    // SAFETY: our own descriptor.
    assert_eq!(unsafe { libc::ftruncate(fd.as_raw_fd(), HUGE as i64) }, 0);
    let map = Mapping::shared_without_pages(fd.as_fd(), HUGE).unwrap();
    let huge = space.register_pinned(map.range(), Arc::new(Seen::default())).unwrap();
    assert!(!huge.base_pages);
}

#[test]
fn nobody_is_inside_when_the_unmapping_returns() {
    let range = memory(1);
    let (space, seen, registration) = watched!(&range);
    let other = memory(1);
    let beside = Arc::new(Seen::default());
    let second = space.register_pinned(other.clone(), beside.clone()).unwrap();
    unmap(&range);
    // either it is still doubted or it got its notice; never neither
    let doubted = seen.doubted.load(SeqCst);
    assert!(doubted || !lock(&seen.gone).is_empty());
    settle(&space);
    assert!(lock(&beside.gone).is_empty() && !beside.doubted.load(SeqCst));
    assert!(second.is_watched());
    drop((registration, second));
    unmap(&other);
}

#[test]
fn a_mapping_in_the_same_place_is_not_told_of_the_old_one() {
    let mut range = memory(4);
    for _ in 0..200 {
        let (space, seen, registration) = watched!(&range);
        unmap(&range);
        let again = memory(4);
        let later = Arc::new(Seen::default());
        let second = space.register_pinned(again.clone(), later.clone()).unwrap();
        settle(&space);
        assert_eq!(lock(&seen.gone).len(), 1);
        assert!(lock(&later.gone).is_empty() && second.is_watched());
        drop((registration, second));
        range = again;
    }
    unmap(&range);
}

#[test]
fn overlapping_registrations_are_watched_each() {
    let (range, page) = (memory(8), page_size());
    let (space, seen, registration) = watched!(&range);
    let within = Arc::new(Seen::default());
    let inner = range.start + 2 * page..range.start + 4 * page;
    let second = space.register_pinned(inner, within.clone()).unwrap();
    drop(registration);
    unmap(&(range.start..range.start + page));
    settle(&space);
    assert!(lock(&seen.gone).is_empty() && lock(&within.gone).is_empty());
    unmap(&range);
    settle(&space);
    // told in the words of the call that took it
    assert_eq!(*lock(&within.gone), [range]);
    drop(second);
}

#[test]
fn an_interposed_call_leaves_the_kernel_nothing_to_tell() {
    let range = memory(2);
    let (space, seen, registration) = watched!(&range);
    let change = space.begin(range.clone()).unwrap();
    assert!(!registration.is_watched());
    unmap(&range);
    space.end(range.clone(), change);
    settle(&space);
    assert_eq!(*lock(&seen.gone), [range]);
    drop(registration);
}

#[test]
fn another_userfaultfd_keeps_its_range() {
    let range = memory(2);
    if let Err(error) = can_watch() {
        test_support::skip!("userfaultfd(2): {error}");
    }
    let others = Uffd::for_events().unwrap();
    others.watch(&range).unwrap();
    let space = Arc::new(AddressSpace::new());
    let registration = space.register_pinned(range.clone(), Arc::new(Seen::default())).unwrap();
    assert!(!registration.is_watched());
    drop((registration, others));
    unmap(&range);
}

/// A bare close_range(2) takes the descriptor, and what is unmapped then nobody tells.
#[test]
fn whoever_is_watched_no_more_hears_of_it() {
    let range = memory(4);
    let (space, seen, registration) = watched!(&range);
    space.kernel.get().unwrap().uffd.lose();
    unmap(&range);
    while !seen.unwatched.load(SeqCst) || seen.doubted.load(SeqCst) {
        std::thread::yield_now();
    }
    assert!(!registration.is_watched() && space.kernel.get().is_none());
    let other = memory(1);
    let second = space.register_pinned(other.clone(), Arc::new(Seen::default())).unwrap();
    assert!(!second.is_watched());
    unmap(&other);
}
