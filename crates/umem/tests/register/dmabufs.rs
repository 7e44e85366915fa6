//! Registrations of dma-bufs, which move and are pinned.

use super::*;

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
