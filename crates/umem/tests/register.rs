//! Registrations of this process's memory and of dma-bufs: their checks, their accesses and their end.
#![cfg(not(loom))]

use dmabuf::{ControlBlocks, Hold, LocalControls, POISON, Placement, Storage, memfd_name};
use mm::{AddressSpace, Mapping, Sink, page_size};
use pcie::Platform;
use rustix::fs::{MemfdFlags, SealFlags};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::time::Duration;
use umem::check::{access_flags, dmabuf_access, page_offset, rereg};
use umem::{
    AccessError, AccessFlags, AtomicOp, Offered, RegError, Rereg, RevokeWatcher, Segment, Umem,
    process_space,
};

const RW: AccessFlags = AccessFlags::LOCAL_WRITE;
const RO: AccessFlags = AccessFlags::REMOTE_READ;

fn memfd(name: &str, size: u64) -> OwnedFd {
    let fd =
        rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
    rustix::fs::ftruncate(&fd, size).unwrap();
    fd
}

/// Memory of this test at a place that nobody else knows.
fn memory(pages: u64) -> (OwnedFd, Mapping) {
    let len = pages * page_size();
    let fd = memfd("umem-test", len);
    let map = Mapping::shared(fd.as_fd(), len).unwrap();
    (fd, map)
}

struct Bench {
    space: Arc<AddressSpace>,
    platform: Platform,
    controls: LocalControls,
}

impl Bench {
    fn new() -> Bench {
        Bench {
            space: AddressSpace::process(),
            platform: Platform::default(),
            controls: LocalControls::default(),
        }
    }
    fn user(&self, addr: u64, len: u64, access: AccessFlags) -> Result<Arc<Umem>, RegError> {
        let hca = self.platform.named("peerdma0").unwrap();
        // SAFETY: tests write through mappings of their own only, which no reference points into.
        let memory = unsafe { Sink::vouched(addr, len) };
        Umem::from_user(&self.space, memory, access, hca, &self.platform)
    }
    fn dmabuf(&self, fd: i32, offset: u64, len: u64) -> Result<Arc<Umem>, RegError> {
        self.held(fd, offset, len, Hold::Dynamic)
    }
    fn held(&self, fd: i32, offset: u64, len: u64, hold: Hold) -> Result<Arc<Umem>, RegError> {
        let hca = self.platform.named("peerdma0").unwrap();
        Umem::from_dmabuf_fd(fd, &self.controls, offset, len, RW, hca, &self.platform, hold)
    }
    fn export(&self, id: u64, pages: u64) -> (OwnedFd, Storage) {
        let gpu = self.platform.named("gpu0").unwrap().address;
        let size = pages * page_size();
        let fd = memfd(&memfd_name(id), size);
        rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK).unwrap();
        let own = fd.try_clone().unwrap();
        let storage = Storage::create(own, size, id, gpu, Placement::Vram).unwrap();
        self.controls.publish(id, storage.control().as_fd()).unwrap();
        (fd, storage)
    }
}

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

#[test]
fn gpu_memory_by_descriptor() {
    let bench = Bench::new();
    let page = page_size();
    let (fd, control) = bench.export(1, 3);
    let umem = bench.dmabuf(fd.as_raw_fd(), page + 8, page).unwrap();
    assert_eq!((umem.len(), umem.is_dmabuf()), (page, true));
    umem.enter().unwrap().write(0, b"peer").unwrap();
    let mut data = [0; 4];
    rustix::io::pread(&fd, &mut data, page + 8).unwrap();
    assert_eq!(&data, b"peer");
    let route = &umem.segments()[0].route;
    assert_eq!((route.map_type(), route.written_bytes()), (pcie::MapType::BusAddr, 4));
    // the program may close its descriptor
    drop(fd);
    umem.enter().unwrap().read(0, &mut data).unwrap();
    assert_eq!(umem.enter().unwrap().read(page, &mut [0]), Err(AccessError::OutOfRange));
    control.revoke(SHORT).unwrap();
    assert_eq!(umem.enter().err(), Some(AccessError::Revoked));
}

const SHORT: Duration = Duration::from_millis(50);

#[test]
fn a_dma_buf_moves_under_its_registration() {
    let bench = Bench::new();
    let page = page_size();
    let (fd, exporter) = bench.export(11, 2);
    let umem = bench.dmabuf(fd.as_raw_fd(), page, page).unwrap();
    let route = |umem: &Umem| umem.segments()[0].route.map_type();
    umem.enter().unwrap().write(7, b"moves").unwrap();
    assert_eq!((route(&umem), umem.faults()), (pcie::MapType::BusAddr, 0));
    assert_eq!(exporter.move_to(Placement::Host, None, SHORT), Ok(true));
    let mut bytes = [0; 5];
    umem.enter().unwrap().read(7, &mut bytes).unwrap();
    assert_eq!((&bytes, umem.faults()), (b"moves", 1));
    assert_eq!((route(&umem), umem.segments()[0].route.read_bytes()), (pcie::MapType::None, 5));
    // what the program still maps of the old place is poison
    rustix::io::pread(&fd, &mut bytes, page + 7).unwrap();
    assert_eq!(bytes, [POISON; 5]);
    umem.enter().unwrap().write(7, b"again").unwrap();
    exporter.move_to(Placement::Vram, None, SHORT).unwrap();
    umem.enter().unwrap().read(7, &mut bytes).unwrap();
    assert_eq!((&bytes, umem.faults()), (b"again", 2));
    rustix::io::pread(&fd, &mut bytes, page + 7).unwrap();
    assert_eq!(&bytes, b"again");
    exporter.revoke(SHORT).unwrap();
    assert_eq!(umem.enter().err(), Some(AccessError::Revoked));
}

#[test]
fn a_move_waits_for_the_access_and_the_access_for_the_move() {
    let bench = Bench::new();
    let (fd, exporter) = bench.export(12, 1);
    let umem = bench.dmabuf(fd.as_raw_fd(), 0, page_size()).unwrap();
    let access = umem.enter().unwrap();
    access.write(0, &[1]).unwrap();
    std::thread::scope(|s| {
        let moves = s.spawn(|| exporter.move_to(Placement::Host, None, Duration::from_secs(60)));
        while !exporter.control().state().is_closed() {
            std::thread::yield_now();
        }
        let reads = s.spawn(|| {
            let mut byte = [0];
            while umem.enter().map(|access| access.read(0, &mut byte).unwrap())
                == Err(AccessError::Moving)
            {
                std::thread::yield_now();
            }
            byte
        });
        access.write(0, &[2]).unwrap();
        drop(access);
        assert_eq!(moves.join().unwrap(), Ok(true));
        assert_eq!(reads.join().unwrap(), [2]);
    });
}

#[test]
fn an_access_does_not_wait_for_a_move() {
    let bench = Bench::new();
    let (fd, exporter) = bench.export(14, 1);
    let umem = bench.dmabuf(fd.as_raw_fd(), 0, page_size()).unwrap();
    let inside = bench.dmabuf(fd.as_raw_fd(), 0, page_size()).unwrap();
    let access = inside.enter().unwrap();
    std::thread::scope(|s| {
        // It lasts for as long as somebody is inside.
        let moves = s.spawn(|| exporter.move_to(Placement::Host, None, Duration::from_secs(60)));
        while !exporter.control().state().is_closed() {
            std::thread::yield_now();
        }
        let begun = std::time::Instant::now();
        for _ in 0..100 {
            assert_eq!(umem.read(0, &mut [0], 0), Err(AccessError::Moving));
            assert_eq!(umem.write(0, &[0], 0), Err(AccessError::Moving));
        }
        assert!(begun.elapsed() < Duration::from_secs(1), "{:?}", begun.elapsed());
        drop(access);
        assert_eq!(moves.join().unwrap(), Ok(true));
    });
    assert_eq!(umem.read(0, &mut [0], 0), Ok(()));
}

#[test]
fn a_pinned_dma_buf_stays() {
    let bench = Bench::new();
    let (fd, exporter) = bench.export(13, 1);
    for hold in [Hold::Pinned, Hold::PinnedRevocable] {
        let umem = bench.held(fd.as_raw_fd(), 0, page_size(), hold).unwrap();
        let error = exporter.move_to(Placement::Host, None, SHORT).unwrap_err();
        assert_eq!(error.errno(), libc::EBUSY, "{hold:?}: {error}");
        assert_eq!(exporter.revoke(SHORT).is_ok(), hold == Hold::PinnedRevocable);
        assert_eq!(umem.enter().is_err(), hold == Hold::PinnedRevocable);
    }
}

#[test]
fn the_argument_errors_of_dma_bufs() {
    // kernel-facts section 3, check order 6 to 10
    let bench = Bench::new();
    let page = page_size();
    let (fd, control) = bench.export(2, 2);
    let good = fd.as_raw_fd();
    let (pipe, _writer) = std::io::pipe().unwrap();
    let errno = |fd, offset, len| bench.dmabuf(fd, offset, len).unwrap_err().errno();
    for (what, got, expected) in [
        ("step 6 before 7", errno(-1, u64::MAX, 2), libc::EINVAL),
        ("step 7: the probe of NCCL and UCX", errno(-1, 0, 4096), libc::EBADF),
        ("step 7: not a dma-buf", errno(pipe.as_raw_fd(), 0, 4096), libc::EINVAL),
        ("step 7 before 8 and 9", errno(-1, 3 * page, 0), libc::EBADF),
        ("step 8: beyond the end", errno(good, page, page + 1), libc::EINVAL),
        ("step 9: no page", errno(good, page, 0), libc::EINVAL),
        ("length 0, unaligned", errno(good, 1, 0), libc::EINVAL),
    ] {
        assert_eq!(got, expected, "{what}");
    }
    assert_eq!(
        bench.dmabuf(good, page, page + 1).unwrap_err(),
        RegError::BeyondBuffer { size: 2 * page, end: 2 * page + 1 }
    );
    control.revoke(SHORT).unwrap();
    assert_eq!(errno(good, 0, page), libc::ENODEV, "step 10: the exporter's");
    assert_eq!(errno(good, 0, 0), libc::EINVAL, "step 9 before 10");
}

#[test]
fn the_checks_before_registration() {
    use AccessFlags as A;
    let all = Offered { on_demand: true, flush_global: true, flush_persistent: true };
    let errno = |bits: u32, offered| {
        access_flags(A::from_bits_retain(bits), offered).map_err(|e| e.errno())
    };
    assert_eq!(errno(0, Offered::default()), Ok(()));
    assert_eq!(errno(0x1f, Offered::default()), Ok(()));
    assert_eq!(errno(1 << 20 | 1 << 29, Offered::default()), Ok(()), "optional bits");
    assert_eq!(errno(1 << 30, all), Err(libc::EINVAL));
    assert_eq!(errno(1 << 10, all), Err(libc::EINVAL));
    assert_eq!(errno(A::REMOTE_WRITE.bits(), all), Err(libc::EINVAL));
    assert_eq!(errno(A::REMOTE_ATOMIC.bits(), all), Err(libc::EINVAL));
    for bit in [A::ON_DEMAND, A::FLUSH_GLOBAL, A::FLUSH_PERSISTENT] {
        assert_eq!(errno(bit.bits(), all), Ok(()));
        assert_eq!(errno(bit.bits(), Offered::default()), Err(libc::EOPNOTSUPP));
    }
    for bit in A::all().iter() {
        let taken = A::LOCAL_WRITE
            | A::REMOTE_READ
            | A::REMOTE_WRITE
            | A::REMOTE_ATOMIC
            | A::RELAXED_ORDERING;
        assert_eq!(dmabuf_access(bit).is_ok(), taken.contains(bit), "{bit:?}");
    }
    let page = page_size();
    assert_eq!(page_offset(page + 3, 7 * page + 3), Ok(()));
    assert_eq!(page_offset(page + 3, 7 * page + 2), Err(RegError::PageOffset));
}

#[test]
fn the_checks_of_re_registration() {
    let bench = Bench::new();
    let (fd, _control) = bench.export(3, 1);
    let (_memory, map) = memory(1);
    let writable = bench.user(map.addr(), 8, RW).unwrap();
    let read_only = bench.user(map.addr(), 8, RO).unwrap();
    let dmabuf = bench.dmabuf(fd.as_raw_fd(), 0, 8).unwrap();
    let at = |umem: &Umem, flags, iova, access| {
        rereg(flags, (0, iova), access, Offered::default(), umem).map_err(|e| e.errno())
    };
    for (what, got, expected) in [
        ("nothing", at(&writable, 0, 0, RW), Err(libc::EINVAL)),
        ("unknown flag", at(&writable, 8, 0, RW), Err(libc::EOPNOTSUPP)),
        ("unknown before page offset", at(&writable, 9, 1, RW), Err(libc::EOPNOTSUPP)),
        ("page offset", at(&writable, 1, 1, RW), Err(libc::EINVAL)),
        ("page offset counts only with a translation", at(&writable, 2, 1, RW), Ok(Rereg::PD)),
        ("bad access", at(&writable, 4, 0, AccessFlags::REMOTE_WRITE), Err(libc::EINVAL)),
        (
            "bad access before dma-buf",
            at(&dmabuf, 4, 0, AccessFlags::REMOTE_WRITE),
            Err(libc::EINVAL),
        ),
        ("dma-buf", at(&dmabuf, 2, 0, RW), Err(libc::EOPNOTSUPP)),
        ("read-only memory", at(&read_only, 4, 0, RW), Err(libc::EACCES)),
        (
            "read-only memory, moved",
            at(&read_only, 5, 0, RW),
            Ok(Rereg::ACCESS | Rereg::TRANSLATION),
        ),
        ("all", at(&writable, 7, 0, RW), Ok(Rereg::all())),
    ] {
        assert_eq!(got, expected, "{what}");
    }
}
