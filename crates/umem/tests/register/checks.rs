//! The checks before a registration and a re-registration.

use super::*;

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
