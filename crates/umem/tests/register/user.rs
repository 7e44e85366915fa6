//! Registrations of this process's memory: their accesses, their errors and their end.

use super::*;

#[test]
fn user_memory_is_read_written_and_counted() {
    let bench = Bench::new();
    let (_fd, map) = memory(3);
    let umem = bench.user(map.addr() + 100, 9000, RW).unwrap();
    assert_eq!((umem.len(), umem.writable(), umem.is_dmabuf()), (9000, true, false));
    let access = umem.enter().unwrap();
    access.write(8990, b"0123456789").unwrap();
    let mut back = [0; 10];
    access.read(8990, &mut back).unwrap();
    assert_eq!(&back, b"0123456789");
    assert_eq!(access.atomic(4, AtomicOp::FetchAdd { add: 3 }), Ok(0));
    assert_eq!(access.atomic(4, AtomicOp::CompareSwap { compare: 3, swap: 8 }), Ok(3));
    assert_eq!(
        access.atomic(5, AtomicOp::FetchAdd { add: 3 }),
        Err(AccessError::OutOfRange),
        "misaligned"
    );
    for (offset, len) in [(8991, 10), (9001, 0), (u64::MAX, 1), (u64::MAX - 3, 8)] {
        assert_eq!(access.read(offset, &mut vec![0; len]), Err(AccessError::OutOfRange));
        assert_eq!(access.write(offset, &vec![0; len]), Err(AccessError::OutOfRange));
        assert_eq!(
            access.atomic(offset, AtomicOp::FetchAdd { add: 0 }),
            Err(AccessError::OutOfRange)
        );
    }
    assert_eq!(access.read(9000, &mut []), Ok(()));
    let route = &umem.segments()[0].route;
    assert_eq!((route.read_bytes(), route.written_bytes()), (10 + 16, 10 + 16));
}

#[test]
fn the_argument_errors_of_user_memory() {
    // kernel-facts section 1, __ib_umem_get_va
    let bench = Bench::new();
    let (fd, map) = memory(2);
    let (addr, page) = (map.addr(), page_size());
    let most = u64::from(u32::MAX) * page;
    let errno = |addr, len, access| bench.user(addr, len, access).unwrap_err().errno();
    for (what, got, expected) in [
        ("step 2: wraps", errno(u64::MAX - 5, 10, RW), libc::EINVAL),
        ("step 2: the page-rounded end wraps", errno(u64::MAX - page, page, RW), libc::EINVAL),
        ("step 2 before 4", errno(u64::MAX, 2, RW | AccessFlags::ON_DEMAND), libc::EINVAL),
        ("step 4: on demand", errno(addr, 1, RW | AccessFlags::ON_DEMAND), libc::EOPNOTSUPP),
        ("step 4 before 5", errno(addr, 0, AccessFlags::ON_DEMAND), libc::EOPNOTSUPP),
        ("step 5: no page", errno(addr, 0, RW), libc::EINVAL),
        ("step 5: too many pages", errno(addr, most + page, RW), libc::EINVAL),
        ("step 7: not all mapped", errno(addr + page, 1 << 40, RW), libc::EFAULT),
        ("step 7: unmapped", errno(0, 1, RO), libc::EFAULT),
        ("step 7: the kernel's half", errno(1 << 63, 4096, RO), libc::EFAULT),
        ("length 0, unaligned: after the pages", errno(addr + 1, 0, RW), libc::EINVAL),
        ("length 0, unaligned and unmapped", errno(1, 0, RW), libc::EFAULT),
    ] {
        assert_eq!(got, expected, "{what}");
    }
    rustix::fs::ftruncate(&fd, page).unwrap();
    assert_eq!(errno(addr, 2 * page, RW), libc::EFAULT, "beyond the end of the file");
    bench.user(addr, page, RW).unwrap();
}

/// The iova of a registration is checked again where its page size is chosen.
#[test]
fn the_page_size_of_a_registration() {
    let bench = Bench::new();
    let (page, offered) = (page_size(), PageSizes::CONNECTX);
    let (_memory, map) = memory(4);
    let user = bench.user(map.addr() + 8, 2 * page, RW).unwrap();
    assert_eq!(user.best_page_size(map.addr() + 8, offered), Ok(Some(page)));
    assert_eq!(user.best_page_size(8, offered), Ok(Some(page)), "another iova of its offset");
    assert_eq!(user.best_page_size(map.addr(), offered), Err(RegError::NoPageSize));
    // a GPU's memory is in larger pages while it is there
    let unit = dmabuf::VRAM_PAGE.max(page);
    let (fd, exporter) = bench.export(21, 4 * unit / page);
    let buffer = bench.dmabuf(fd.as_raw_fd(), unit, 2 * unit).unwrap();
    assert_eq!(buffer.best_page_size(7 * unit, offered), Ok(Some(unit)));
    assert_eq!(buffer.best_page_size(7 * unit + page, offered), Ok(Some(page)));
    assert_eq!(buffer.best_page_size(1, offered), Err(RegError::NoPageSize));
    exporter.move_to(Placement::Host, None, SHORT).unwrap();
    assert_eq!(buffer.best_page_size(7 * unit, offered), Ok(Some(page)));
    let fixed = Umem::from_segments(user.segments().to_vec(), true);
    assert_eq!(fixed.best_page_size(1, offered), Ok(None), "nothing is translated by pages");
}

#[test]
fn read_only_memory_registers_for_reading_only() {
    // this program's text is mapped read-only
    let bench = Bench::new();
    let text = Bench::new as fn() -> Bench as usize as u64;
    assert_eq!(bench.user(text, 16, RW).unwrap_err(), RegError::Fault);
    let umem = bench.user(text, 16, RO).unwrap();
    assert!(!umem.writable());
    let access = umem.enter().unwrap();
    access.read(0, &mut [0; 16]).unwrap();
    assert_eq!(access.write(0, &[0]), Err(AccessError::Fault));
    assert_eq!(access.atomic(0, AtomicOp::FetchAdd { add: 0 }), Err(AccessError::Fault));
}

#[test]
fn unmapping_revokes_and_truncation_faults() {
    #[derive(Default)]
    struct Watcher(AtomicU32);
    impl RevokeWatcher for Watcher {
        fn revoked(&self) {
            self.0.fetch_add(1, SeqCst);
        }
    }
    let bench = Bench::new();
    let (fd, map) = memory(4);
    let page = page_size();
    let other = bench.user(map.addr(), page, RW).unwrap();
    let umem = bench.user(map.addr() + page + 8, page, RW).unwrap();
    let watcher = Arc::new(Watcher::default());
    assert!(umem.watch_revoke(watcher.clone()));
    // the interposed munmap says so before it unmaps; the last page that the range touches counts
    mm::invalidate(map.addr() + 2 * page..map.addr() + 3 * page);
    assert!(umem.is_revoked() && !other.is_revoked());
    assert_eq!(umem.enter().err(), Some(AccessError::Revoked));
    umem.revoke();
    assert_eq!(watcher.0.load(SeqCst), 1);
    rustix::fs::ftruncate(&fd, 0).unwrap();
    let access = other.enter().unwrap();
    assert_eq!(access.read(0, &mut [0]), Err(AccessError::Fault));
    assert_eq!(access.write(0, &[0]), Err(AccessError::Fault));
    drop(access);
    let before = bench.space.registrations();
    drop((umem, other));
    assert!(bench.space.registrations() < before);
}

#[test]
fn pinned_pages_are_accounted_exactly() {
    let (_fd, map) = memory(4);
    let page = page_size();
    let bench = Bench { space: Arc::new(AddressSpace::default()), ..Bench::new() };
    let one = bench.user(map.addr() + page - 1, 2, RW).unwrap();
    assert_eq!(bench.space.pinned_pages(), 2);
    let two = bench.user(map.addr(), 4 * page, RW).unwrap();
    assert_eq!(bench.space.pinned_pages(), 6);
    bench.user(0, 4 * page, RW).unwrap_err();
    drop(one);
    assert_eq!(bench.space.pinned_pages(), 4);
    drop(two);
    assert_eq!((bench.space.pinned_pages(), bench.space.registrations()), (0, 0));
}

#[test]
fn accesses_cross_segment_borders() {
    let (_fd, map) = memory(1);
    let route = Arc::new(pcie::Route::local());
    // SAFETY: the mapping is the test's own, and outlives what is made of it.
    let space = process_space(unsafe { Sink::vouched(map.addr(), map.len()) });
    let at = |offset: u64, len| Segment {
        space: space.clone(),
        addr: map.addr() + offset,
        len,
        route: route.clone(),
    };
    // in memory the pieces lie backwards; an empty one does not disturb
    let umem = Umem::from_segments(vec![at(32, 8), at(500, 0), at(16, 5), at(0, 7)], true);
    assert_eq!((umem.len(), umem.segments().len()), (20, 3));
    let access = umem.enter().unwrap();
    let bytes: Vec<u8> = (1..=20).collect();
    for from in 0..=20 {
        for to in from..=20 {
            access.write(0, &[0; 20]).unwrap();
            access.write(from as u64, &bytes[from..to]).unwrap();
            let mut all = [0; 20];
            access.read(0, &mut all).unwrap();
            assert_eq!(all[from..to], bytes[from..to]);
            assert!(all[..from].iter().chain(&all[to..]).all(|&b| b == 0));
            let mut part = vec![0; to - from];
            access.read(from as u64, &mut part).unwrap();
            assert_eq!(part, bytes[from..to]);
        }
    }
    assert_eq!(access.read(13, &mut [0; 8]), Err(AccessError::OutOfRange));
    access.atomic(0, AtomicOp::FetchAdd { add: 0 }).unwrap();
    assert_eq!(
        access.atomic(8, AtomicOp::FetchAdd { add: 0 }),
        Err(AccessError::OutOfRange),
        "two segments"
    );
    // lengths that do not add up are cut, not wrapped
    let huge = Umem::from_segments(vec![at(0, 8), at(0, u64::MAX)], true);
    assert_eq!(huge.len(), 8);
    let wild = Umem::from_segments(vec![Segment { addr: u64::MAX - 3, ..at(0, 100) }], true);
    assert_eq!(wild.enter().unwrap().read(90, &mut [0; 8]), Err(AccessError::OutOfRange));
    assert_eq!(wild.enter().unwrap().read(0, &mut [0; 2]), Err(AccessError::Fault));
    let empty = Umem::from_segments(Vec::new(), true);
    assert!(empty.is_empty());
    assert_eq!(empty.enter().unwrap().read(0, &mut []), Ok(()));
    assert_eq!(empty.enter().unwrap().read(0, &mut [0]), Err(AccessError::OutOfRange));
}

#[test]
fn revoke_waits_for_an_access() {
    let (_fd, map) = memory(1);
    let bench = Bench::new();
    let umem = bench.user(map.addr(), 8, RW).unwrap();
    let access = umem.enter().unwrap();
    std::thread::scope(|s| {
        let unmap = s.spawn(|| mm::invalidate(map.range()));
        while !umem.is_revoked() {
            std::thread::yield_now();
        }
        assert_eq!(umem.enter().err(), Some(AccessError::Revoked));
        assert!(!unmap.is_finished());
        access.write(0, &[1]).unwrap();
        drop(access);
        unmap.join().unwrap();
    });
}
