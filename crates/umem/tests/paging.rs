//! On-demand registrations of real memory of this process, with the interposed calls played by the
//! test.

#![cfg(not(loom))]

use mm::{AddressSpace, Mapping, PagingCounts, Prefetch, ProcessPages, Sink, page_size};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::*};
use umem::{AccessError, AccessFlags, AtomicOp, Fold, RegError, RevokeWatcher, Umem};

const PAGES: u64 = 16;
const RW: AccessFlags = AccessFlags::LOCAL_WRITE;

/// A file of [`PAGES`] pages and a mapping of it.
fn memory() -> (OwnedFd, Mapping) {
    mm::guard::install();
    let file = memfd_create("paging-test", MemfdFlags::CLOEXEC).unwrap();
    ftruncate(&file, PAGES * page_size()).unwrap();
    let map = Mapping::shared(file.as_fd(), PAGES * page_size()).unwrap();
    (file, map)
}

fn try_register(
    (addr, len, iova): (u64, u64, u64),
    access: AccessFlags,
) -> Result<(Arc<AddressSpace>, Arc<Umem>), RegError> {
    let platform = pcie::Platform::default();
    let hca = platform.named("peerdma0").unwrap();
    let space = Arc::new(AddressSpace::default());
    let access = access | AccessFlags::ON_DEMAND;
    let source = Arc::new(ProcessPages::default());
    // SAFETY: tests write through mappings of their own only, which no reference points into.
    let memory = unsafe { Sink::vouched(addr, len) };
    Umem::on_demand(&space, source, memory, iova, access, hca, &platform).map(|umem| (space, umem))
}

fn register(map: &Mapping, access: AccessFlags) -> (Arc<AddressSpace>, Arc<Umem>) {
    try_register((map.addr(), map.len(), map.addr()), access).unwrap()
}

#[test]
fn pages_come_as_they_are_used() {
    let (_file, map) = memory();
    let (_space, umem) = register(&map, RW);
    assert!(umem.is_on_demand());
    assert_eq!(umem.paging(), Some(PagingCounts::default()));
    let page = page_size() as usize;
    umem.write(page as u64 - 3, b"across", 0).unwrap();
    let mut back = [0; 6];
    umem.read(page as u64 - 3, &mut back, 0).unwrap();
    assert_eq!(&back, b"across");
    assert_eq!(umem.paging().unwrap().page_faults, 2);
    assert_eq!(umem.atomic(5 * page as u64, AtomicOp::FetchAdd { add: 7 }), Ok(0));
    assert_eq!(umem.paging().unwrap().page_faults, 3);
    let mut fold = Fold::off();
    umem.read_folding(8 * page as u64, &mut back, &mut fold, 3 * page as u64).unwrap();
    assert_eq!(umem.paging().unwrap().page_faults, 7, "what follows comes with it");
    umem.write(11 * page as u64, &back, 0).unwrap();
    assert_eq!(umem.paging().unwrap().page_faults, 7);
}

#[test]
fn an_invalidation_is_no_revoke() {
    struct RevokeFlag(AtomicBool);
    impl RevokeWatcher for RevokeFlag {
        fn revoked(&self) {
            self.0.store(true, SeqCst);
        }
    }
    let told = Arc::new(RevokeFlag(AtomicBool::new(false)));
    let (file, map) = memory();
    let (space, umem) = register(&map, RW);
    umem.watch_revoke(told.clone());
    umem.write(0, b"old", 0).unwrap();
    // what an interposed madvise(MADV_REMOVE) does
    let change = space.begin(map.range()).unwrap();
    ftruncate(&file, 0).unwrap();
    ftruncate(&file, PAGES * page_size()).unwrap();
    space.end(map.range(), change);
    let mut back = [9; 3];
    umem.read(0, &mut back, 0).unwrap();
    assert_eq!(back, [0; 3], "the new page");
    umem.write(0, b"new", 0).unwrap();
    let counts = umem.paging().unwrap();
    assert_eq!((counts.page_faults, counts.page_invalidations), (2, 1));
    assert!(!umem.is_revoked() && !told.0.load(SeqCst));
    umem.revoke();
    assert_eq!(umem.write(0, b"x", 0), Err(AccessError::Revoked));
    drop(umem);
    assert_eq!(space.registrations(), 0);
}

#[test]
fn memory_that_goes_unsaid_is_noticed() {
    let (file, map) = memory();
    let (_space, umem) = register(&map, RW);
    umem.write(0, &[1; 64], 0).unwrap();
    ftruncate(&file, 0).unwrap();
    assert_eq!(umem.write(0, &[2; 64], 0), Err(AccessError::Unmapped));
    assert_eq!(umem.read(0, &mut [0; 64], 0), Err(AccessError::Unmapped));
    assert_eq!(umem.paging().unwrap().page_invalidations, 1);
    ftruncate(&file, PAGES * page_size()).unwrap();
    let mut back = [9; 64];
    umem.read(0, &mut back, 0).unwrap();
    assert_eq!(back, [0; 64]);
}

#[test]
fn rights_and_range_hold() {
    let (_file, map) = memory();
    let (_space, readable) = register(&map, AccessFlags::empty());
    assert_eq!(readable.write(0, b"x", 0), Err(AccessError::Fault));
    assert_eq!(readable.paging().unwrap().page_faults, 0);
    let end = map.len();
    assert_eq!(readable.read(end - 1, &mut [0; 2], 0), Err(AccessError::OutOfRange));
    assert_eq!(readable.read(end, &mut [], 0), Ok(()), "no byte, no page");
    assert_eq!(readable.prefetch(end - 1, 2, Prefetch::Read), Err(AccessError::OutOfRange));
    assert_eq!(readable.prefetch(end, 0, Prefetch::Read), Ok(()));
}

#[test]
fn advice_brings_pages_in_or_does_not() {
    let (_file, map) = memory();
    let (_space, umem) = register(&map, RW);
    umem.prefetch(0, 2 * page_size(), Prefetch::NoFault).unwrap();
    assert_eq!(umem.paging().unwrap(), PagingCounts::default());
    umem.prefetch(0, 2 * page_size(), Prefetch::Write).unwrap();
    umem.write(0, &[1; 100], 0).unwrap();
    let counts = umem.paging().unwrap();
    assert_eq!((counts.page_prefetch, counts.page_faults), (2, 0));
}

#[test]
fn pages_that_are_there_are_mapped_at_registration() {
    let (_file, map) = memory();
    mm::populate(map.addr(), map.len(), true).unwrap();
    let (_space, umem) = register(&map, RW);
    umem.read(0, &mut [0; 4000], 0).unwrap();
    assert_eq!(umem.paging().unwrap(), PagingCounts::default());
}

#[test]
fn an_implicit_registration_reaches_everything_that_is_mapped() {
    let (_file, map) = memory();
    let (_space, umem) = try_register((0, u64::MAX, 0), RW).unwrap();
    assert_eq!(umem.len(), u64::MAX);
    umem.write(map.addr() + 5, b"here", 0).unwrap();
    let mut back = [0; 4];
    umem.read(map.addr() + 5, &mut back, 0).unwrap();
    assert_eq!(&back, b"here");
    assert_eq!(umem.paging().unwrap().page_faults, 1);
    umem.write(map.addr() + 2 * page_size(), &[1; 1024], 4 * page_size() - 1024).unwrap();
    let counts = umem.paging().unwrap();
    assert_eq!((counts.page_faults, counts.page_faults_handled), (5, 2));
    for nowhere in [0, 1 << 63, u64::MAX - 8] {
        assert_eq!(umem.read(nowhere, &mut back, 0), Err(AccessError::Unmapped), "{nowhere:#x}");
    }
}

#[test]
fn bad_registrations_have_the_kernels_errno() {
    let huge = AccessFlags::HUGETLB;
    let refused = |what, access| try_register(what, access).err().map(|error| error.errno());
    assert_eq!(refused((0, u64::MAX, 4096), RW), Some(libc::EINVAL));
    assert_eq!(refused((0, u64::MAX, 0), RW | huge), Some(libc::EINVAL));
    assert_eq!(refused((4096, u64::MAX - 100, 4096), RW), Some(libc::EOVERFLOW));
    assert_eq!(refused((u64::MAX - 5, 5, u64::MAX - 5), RW), Some(libc::EOVERFLOW));
    assert_eq!(refused((4096, 0, 4096), RW), Some(libc::EINVAL));
    assert_eq!(refused((4097, 0, 4097), RW), None, "one page, of which no byte is registered");
    assert_eq!(refused((4096, 1 << 60, 4096), RW), None, "nothing is looked at yet");
}

/// A program that discards the pages of an operation again and again, in several threads, without a
/// pause.
#[test]
fn pages_discarded_without_pause_hold_no_operation_up() {
    const BYTES: usize = 8 << 12;
    let (_file, map) = memory();
    let (space, umem) = register(&map, RW);
    let done = AtomicBool::new(false);
    let begun = std::time::Instant::now();
    std::thread::scope(|s| {
        for _ in 0..3 {
            s.spawn(|| {
                let range = map.addr()..map.addr() + BYTES as u64;
                while !done.load(Relaxed) {
                    space.invalidate(range.clone());
                }
            });
        }
        let mut back = vec![0; BYTES];
        for round in 0..50 {
            let bytes = vec![round; BYTES];
            while umem.write(0, &bytes, 0) == Err(AccessError::Moving) {}
            while umem.read(0, &mut back, 0) == Err(AccessError::Moving) {}
            if back != bytes {
                break;
            }
        }
        done.store(true, Relaxed);
        assert!(back == [49; BYTES]);
    });
    assert!(begun.elapsed() < std::time::Duration::from_secs(30), "{:?}", begun.elapsed());
}
