use super::*;
use crate::channel::Channel;
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use std::sync::atomic::AtomicBool;

const PAGE: u64 = 4096;

fn client() -> (Arc<Client>, OwnedFd) {
    let (ours, theirs) =
        socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap();
    (Arc::new(Client::new(Channel::new(ours).unwrap())), theirs)
}

fn memory(pages: u64) -> OwnedFd {
    let fd = memfd_create("map", MemfdFlags::CLOEXEC).unwrap();
    rustix::fs::ftruncate(&fd, pages * PAGE).unwrap();
    fd
}

/// A map whose function is a bus master, with `file` at each of `ranges`: address, offset in pages,
/// pages, writable.
fn map(file: &OwnedFd, ranges: &[(u64, u64, u64, bool)]) -> DmaMap {
    let map = DmaMap::default();
    map.connect(client().0);
    map.set_master(true);
    for &(address, offset, pages, writable) in ranges {
        let file = (file.try_clone().unwrap(), offset * PAGE);
        map.map(address, pages * PAGE, writable, Some(file)).unwrap();
    }
    map
}

#[test]
fn an_access_crosses_ranges_that_meet_and_no_gap() {
    let file = memory(4);
    // Page 2 of the file lies below page 0.
    let map = map(&file, &[(0x10_0000, 2, 1, true), (0x10_1000, 0, 1, true)]);
    let bytes: Vec<u8> = (0..=255).collect();
    map.write(0x10_0f80, &bytes).unwrap();
    let mut back = vec![0; 256];
    map.read(0x10_0f80, &mut back).unwrap();
    assert_eq!(back, bytes);
    let mut low = [0; 128];
    rustix::io::pread(&file, &mut low, 2 * PAGE + 0xf80).unwrap();
    assert_eq!(low, bytes[..128]);
    assert_eq!(map.read(0x10_1f80, &mut back), Err(AccessError::Fault), "past the end");
    assert_eq!(map.read(0xf_ffff, &mut back), Err(AccessError::Fault), "before the start");
    assert_eq!(map.read(u64::MAX, &mut back), Err(AccessError::Fault), "wraps");
}

#[test]
fn atomics_are_done_where_the_word_lies() {
    let file = memory(1);
    let map = map(&file, &[(0, 0, 1, true)]);
    map.write(8, &5u64.to_ne_bytes()).unwrap();
    assert_eq!(map.atomic(8, AtomicOp::FetchAdd { add: 3 }), Ok(5));
    assert_eq!(map.atomic(8, AtomicOp::CompareSwap { compare: 8, swap: 1 }), Ok(8));
    assert_eq!(map.atomic(9, AtomicOp::FetchAdd { add: 3 }), Err(AccessError::Fault));
    assert_eq!(map.atomic(PAGE, AtomicOp::FetchAdd { add: 3 }), Err(AccessError::Fault));
    let mut word = [0; 8];
    map.read(8, &mut word).unwrap();
    assert_eq!(u64::from_ne_bytes(word), 1);
}

#[test]
fn a_read_only_range_and_a_function_that_is_no_master_are_not_written() {
    let file = memory(1);
    let map = map(&file, &[(0, 0, 1, false)]);
    assert_eq!(map.write(0, &[1]), Err(AccessError::Fault));
    assert_eq!(map.read(0, &mut [0]), Ok(()));
    map.set_master(false);
    assert_eq!(map.read(0, &mut [0]), Err(AccessError::Fault));
}

#[test]
fn ranges_that_overlap_or_wrap_are_refused() {
    let file = memory(4);
    let map = map(&file, &[(0x10_0000, 0, 2, true)]);
    let at = |address, size| map.map(address, size, true, None);
    assert_eq!(at(0x10_1000, PAGE), Err(Errno::EXIST));
    assert_eq!(at(0xf_f000, 2 * PAGE), Err(Errno::EXIST));
    assert_eq!(at(0, u64::MAX), Err(Errno::EXIST));
    assert_eq!(at(u64::MAX, 2), Err(Errno::INVAL));
    assert_eq!(at(7, 0), Err(Errno::INVAL));
    assert_eq!(at(u64::MAX - 4095, PAGE), Ok(()), "the last page of all");
    let beyond = (file.try_clone().unwrap(), 3 * PAGE);
    assert_eq!(map.map(0, 2 * PAGE, true, Some(beyond)), Err(Errno::INVAL), "past the file");
}

#[test]
fn unmapping_takes_whole_ranges_only() {
    let file = memory(4);
    let map = map(&file, &[(0x1000, 0, 2, true), (0x3000, 2, 1, true)]);
    assert_eq!(map.unmap(0x1000, PAGE), Err(Errno::INVAL), "cuts the first");
    assert_eq!(map.unmap(0x2000, 2 * PAGE), Err(Errno::INVAL), "cuts the first");
    assert_eq!(map.read(0x1000, &mut [0; 0x3000]), Ok(()));
    assert_eq!(map.unmap(0, 3 * PAGE), Ok(()));
    assert_eq!(map.read(0x1000, &mut [0]), Err(AccessError::Fault));
    assert_eq!(map.read(0x3000, &mut [0]), Ok(()));
    map.unmap_all();
    assert_eq!(map.read(0x3000, &mut [0]), Err(AccessError::Fault));
}

#[test]
fn a_file_that_shrinks_faults_and_nobody_dies() {
    let file = memory(2);
    let map = map(&file, &[(0, 0, 2, true)]);
    rustix::fs::ftruncate(&file, 0).unwrap();
    assert_eq!(map.write(0, &[1; 64]), Err(AccessError::Fault));
    assert_eq!(map.atomic(0, AtomicOp::FetchAdd { add: 1 }), Err(AccessError::Fault));
}

#[test]
fn a_file_is_mapped_once_for_all_its_ranges() {
    let file = memory(64);
    let ranges: Vec<_> = (0..64).map(|page| (page * 2 * PAGE, page, 1, true)).collect();
    let map = map(&file, &ranges);
    assert_eq!(map.read_lock().files.len(), 1);
    map.write(62 * PAGE, &[7; 16]).unwrap();
    let mut bytes = [0; 16];
    rustix::io::pread(&file, &mut bytes, 31 * PAGE).unwrap();
    assert_eq!(bytes, [7; 16]);
}

/// What DMA_UNMAP promises: after it answers, nothing is written any more.
#[test]
fn unmapping_waits_for_those_inside() {
    let file = memory(256);
    let map = map(&file, &[(0, 0, 256, true)]);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let ones = vec![1; 256 * PAGE as usize];
            let mut rounds = 0;
            while !stop.load(Ordering::Relaxed) {
                rounds += u32::from(map.write(0, &ones).is_ok());
            }
            rounds
        });
        for _ in 0..50 {
            map.unmap(0, 256 * PAGE).unwrap();
            let zeros = vec![0; PAGE as usize];
            for page in 0..256 {
                rustix::io::pwrite(&file, &zeros, page * PAGE).unwrap();
            }
            let mut bytes = vec![0; 256 * PAGE as usize];
            rustix::io::pread(&file, &mut bytes, 0).unwrap();
            assert!(bytes.iter().all(|&byte| byte == 0), "written after the unmap was answered");
            map.map(0, 256 * PAGE, true, Some((file.try_clone().unwrap(), 0))).unwrap();
        }
        stop.store(true, Ordering::Relaxed);
        writer.join().unwrap();
    });
}

#[test]
fn the_serving_thread_does_not_wait_for_itself() {
    let map = DmaMap::default();
    let (client, _other) = client();
    map.connect(client);
    map.set_master(true);
    map.map(0, PAGE, true, None).unwrap();
    assert_eq!(map.read(0, &mut [0]), Err(AccessError::Fault));
}
