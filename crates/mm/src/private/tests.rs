//! Real pages of this process, moved to a made-up device and home again.

use super::*;
use crate::guard::{self, AtomicOp};
use crate::{Invalidate, Mapping, Mirror, Reach};
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

/// A device with memory of its own, which it may show to peers.
struct Made {
    memory: Mapping,
    free: Mutex<Vec<u64>>,
    shown: bool,
    number: u8,
}

impl Made {
    fn new(number: u8, pages: u64, shown: bool) -> Arc<Made> {
        let memory = Mapping::anonymous(pages * page_size()).unwrap();
        let free = memory.range().step_by(page_size() as usize).collect();
        Arc::new(Made { memory, free: Mutex::new(free), shown, number })
    }

    fn free(&self) -> usize {
        lock(&self.free).len()
    }

    fn as_device(self: &Arc<Self>) -> Arc<dyn DeviceMemory> {
        self.clone()
    }
}

impl DeviceMemory for Made {
    fn owner(&self) -> pcie::Address {
        format!("0000:{:02x}:00.0", self.number).parse().unwrap()
    }
    fn take(&self, most: usize, taken: &mut dyn FnMut(Sink<'static>)) {
        let mut free = lock(&self.free);
        let left = free.len().saturating_sub(most);
        free.drain(left..).rev().for_each(|at| taken(frame(at)));
    }
    fn give(&self, frame: Sink<'static>) {
        assert!(self.memory.range().contains(&frame.addr()));
        frame.fill(0xaa).unwrap();
        lock(&self.free).push(frame.addr());
    }
    fn dma_address(&self, frame: u64) -> Option<u64> {
        self.shown.then_some(frame)
    }
}

/// One for all tests of this program: a range has one server. A user without the right to
/// userfaultfd(2) for faults of system calls has none, and the test is skipped.
macro_rules! private {
    () => {{
        guard::install();
        match PrivateMemory::process() {
            Ok(private) => private,
            Err(error) if error.raw_os_error() == Some(libc::EPERM) => {
                test_support::skip!("userfaultfd(2): {error}")
            }
            Err(error) => panic!("{error}"),
        }
    }};
}

fn memory(pages: u64) -> Mapping {
    Mapping::anonymous(pages * page_size()).unwrap()
}

fn read(addr: u64) -> u8 {
    let mut byte = [0];
    sink(addr, 1).source().read(&mut byte).unwrap();
    byte[0]
}

fn sink(addr: u64, len: u64) -> Sink<'static> {
    // SAFETY: tests name pages of their own mappings, which no reference points into.
    unsafe { Sink::vouched(addr, len) }
}

/// The memory of this process, and frames wherever they are.
fn source() -> Arc<crate::ProcessPages> {
    Arc::new(crate::ProcessPages::with_devices(sink(0, u64::MAX)))
}

fn write(addr: u64, byte: u8) {
    sink(addr, 1).write(&[byte]).unwrap();
}

fn add(addr: u64, add: u64) -> u64 {
    sink(addr, 8).atomic_u64(AtomicOp::FetchAdd { add }).unwrap()
}

fn away(map: &Mapping) -> u64 {
    let page = page_size();
    let numbers = map.addr() / page..(map.addr() + map.len()) / page;
    let mut away = 0;
    PrivateMemory::process()
        .unwrap()
        .entries
        .each(&numbers, |_, word| away += u64::from(word.load(SeqCst) & DEAD == 0));
    away
}

fn wait_until(what: impl Fn() -> bool) {
    let started = Instant::now();
    while !what() {
        assert!(started.elapsed().as_secs() < 20, "not within 20 seconds");
        std::thread::yield_now();
    }
}

/// Moves `pages` pages of a range. A page that another test's child shares stays for as long as the
/// child lives, so it may take several tries.
fn all_move(
    private: &PrivateMemory,
    range: &Range<u64>,
    device: &Arc<dyn DeviceMemory>,
    pages: u64,
) {
    let started = Instant::now();
    let mut moved = 0;
    while moved < pages {
        assert!(started.elapsed() < Duration::from_secs(10), "{moved} of {pages} pages moved");
        moved += private.migrate(range, device).unwrap();
    }
    assert_eq!(moved, pages);
}

#[test]
fn a_touch_brings_one_page_home() {
    let (private, device, map) = (private!(), Made::new(1, 16, false), memory(4));
    let page = page_size();
    (0..3).for_each(|n| write(map.addr() + n * page + 7, n as u8 + 1));
    // Also the untouched.
    all_move(private, &map.range(), &device.as_device(), 4);
    assert_eq!((away(&map), device.free()), (4, 12));
    assert_eq!(private.migrate(&map.range(), &device.as_device()).unwrap(), 0, "they are there");
    assert_eq!(read(map.addr() + page + 7), 2);
    assert_eq!((away(&map), device.free()), (3, 13));
    write(map.addr() + 3 * page, 9);
    assert_eq!(read(map.addr() + 3 * page), 9);
    assert_eq!(add(map.addr() + 16, 1), 0);
    assert_eq!(away(&map), 1);
    assert_eq!(private.home(&map.range()), 1);
    assert_eq!((read(map.addr() + 7), read(map.addr() + 2 * page + 7)), (1, 3));
    assert_eq!(device.free(), 16);
}

#[test]
fn system_calls_find_their_pages() {
    let (private, device, map) = (private!(), Made::new(1, 4, false), memory(2));
    write(map.addr(), 5);
    all_move(private, &map.range(), &device.as_device(), 2);
    let mut pipe = [0; 2];
    // SAFETY: two descriptors, used and closed here; the buffers are mapped.
    unsafe {
        assert_eq!(libc::pipe(pipe.as_mut_ptr()), 0);
        assert_eq!(libc::write(pipe[1], map.addr() as *const _, 1), 1);
        assert_eq!(libc::read(pipe[0], (map.addr() + page_size()) as *mut _, 1), 1);
        libc::close(pipe[0]);
        libc::close(pipe[1]);
    }
    assert_eq!(read(map.addr() + page_size()), 5);
}

#[test]
fn what_cannot_move_is_said() {
    let (private, device, map) = (private!(), Made::new(1, 2, false), memory(4));
    let page = page_size();
    let device = &device.as_device();
    let range = |from, to| map.addr() + from..map.addr() + to;
    for bad in [range(0, 0), range(1, page), range(0, page + 1)] {
        assert!(matches!(private.migrate(&bad, device), Err(MigrateError::Misaligned)));
    }
    let none = private.migrate(&(0..page), device);
    assert!(matches!(none, Err(MigrateError::NotMovable)), "{none:?}");
    // As many as there is room for.
    all_move(private, &map.range(), device, 2);
    let full = private.migrate(&range(2 * page, 4 * page), device);
    assert!(matches!(full, Err(MigrateError::Full)), "{full:?}");
    private.home(&map.range());
}

/// Holds its range in place, as a pinned registration.
struct Pin(AtomicBool);

impl Invalidate for Pin {
    fn invalidate(&self, _: Range<u64>) {
        self.0.store(true, SeqCst);
    }
    fn holds(&self) -> bool {
        true
    }
}

#[test]
fn pinned_pages_stay() {
    let (private, device, map) = (private!(), Made::new(1, 8, false), memory(4));
    let page = page_size();
    let pin = Arc::new(Pin(AtomicBool::new(false)));
    let pinned = map.addr() + page..map.addr() + 2 * page;
    let registration = AddressSpace::process().register(pinned, pin.clone()).unwrap();
    all_move(private, &map.range(), &device.as_device(), 3);
    assert_eq!(private.home(&map.range()), 3);
    assert!(!pin.0.load(SeqCst), "told of a move as of an unmapping");
    drop(registration);
}

#[test]
fn discarded_and_unmapped_pages_give_their_places_back() {
    let (private, device, map) = (private!(), Made::new(1, 8, false), memory(4));
    let (page, device_memory) = (page_size(), device.as_device());
    (0..4).for_each(|n| write(map.addr() + n * page, 8));
    all_move(private, &map.range(), &device_memory, 4);
    // past the interposed calls, as the C library's own do
    // SAFETY: our own mapping.
    let code = unsafe { libc::madvise(map.addr() as *mut _, page as usize, libc::MADV_DONTNEED) };
    assert_eq!(code, 0);
    assert_eq!(read(map.addr()), 0, "a discarded page is empty");
    wait_until(|| device.free() == 5);
    // SAFETY: as above. Mapped over, so that the place is nobody else's meanwhile.
    unsafe {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
        let at = (map.addr() + page) as *mut _;
        assert_eq!(libc::mmap(at, page as usize, libc::PROT_READ, flags, -1, 0), at);
    }
    wait_until(|| device.free() == 6);
    assert_eq!(away(&map), 2);
    private.home(&map.range());
    assert_eq!(read(map.addr() + 3 * page), 8);
    assert_eq!(device.free(), 8);
}

#[test]
fn moved_mappings_keep_their_pages() {
    let (private, device, map) = (private!(), Made::new(1, 8, false), memory(4));
    let (page, there) = (page_size(), memory(4));
    (0..4).for_each(|n| write(map.addr() + n * page, n as u8 + 1));
    all_move(private, &map.range(), &device.as_device(), 4);
    // SAFETY: both are our own mappings, of this length.
    let moved = unsafe {
        let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
        let (from, len) = (map.addr() as *mut _, map.len() as usize);
        libc::mremap(from, len, len, flags, there.addr() as *mut libc::c_void)
    };
    assert_eq!(moved as u64, there.addr());
    // its place may be somebody else's by now
    std::mem::forget(map);
    assert_eq!((0..4).map(|n| read(there.addr() + n * page)).collect::<Vec<_>>(), [1, 2, 3, 4]);
    assert_eq!(device.free(), 8);
}

/// Stores go on while pages move to and fro: none is lost.
#[test]
fn no_store_is_lost() {
    const PAGES: u64 = 8;
    let (private, device, map) = (private!(), Made::new(1, PAGES, false), memory(PAGES));
    let page = page_size();
    let (moved, done) = (AtomicU64::new(0), AtomicBool::new(false));
    let stored: Vec<u64> = std::thread::scope(|s| {
        let writers: Vec<_> = (0..2u64)
            .map(|writer| {
                let (map, moved) = (&map, &moved);
                s.spawn(move || {
                    let mut stores = 0;
                    while stores < 4000 || moved.load(SeqCst) < 100 {
                        let word = map.addr() + stores % PAGES * page + 8 * writer;
                        // SAFETY: an aligned word of a live mapping, which only this thread writes.
                        let word = unsafe { &*(word as *const AtomicU64) };
                        word.store(word.load(Relaxed) + 1, Relaxed);
                        stores += 1;
                    }
                    stores
                })
            })
            .collect();
        s.spawn(|| {
            while !done.load(SeqCst) {
                let more = private.migrate(&map.range(), &device.as_device());
                moved.fetch_add(more.unwrap_or(0), SeqCst);
            }
        });
        let stored = writers.into_iter().map(|writer| writer.join().unwrap()).collect();
        done.store(true, SeqCst);
        stored
    });
    for (writer, stored) in stored.into_iter().enumerate() {
        let word = |n| map.addr() + n * page + 8 * writer as u64;
        let read = |n| add(word(n), 0);
        assert_eq!((0..PAGES).map(read).sum::<u64>(), stored, "writer {writer}");
    }
    assert_eq!(device.free(), PAGES as usize);
}

/// What [`PrivateMemory::range_fault`] does with a page, by who asks and who has it.
#[test]
fn owners_peers_and_others() {
    let private = private!();
    let page = page_size();
    let how = RangeFault { write: true, allow_p2p: false, owner: None };
    for (shown, allow_p2p, own, kept) in [
        (true, true, false, true),
        (true, false, false, false),
        (false, true, false, false),
        (false, false, true, true),
        (true, true, true, true),
    ] {
        let (device, map) = (Made::new(7, 2, shown), memory(3));
        let away = map.addr() + page..map.addr() + 2 * page;
        write(away.start, 3);
        all_move(private, &away, &device.as_device(), 1);
        let owner = own.then(|| device.owner());
        let mut found = Vec::new();
        let asked = RangeFault { allow_p2p, owner, ..how };
        private.range_fault(&map.range(), asked, &mut |page| found.push(page)).unwrap();
        match (&found[..], own) {
            ([DevicePage::Own { at, frame }], true) => {
                assert_eq!((*at, read(*frame)), (away.start, 3));
            }
            ([DevicePage::Peer { at, device: whose, dma }], false) => {
                assert_eq!((*at, *whose, read(*dma)), (away.start, device.owner(), 3));
            }
            ([], _) => {}
            other => panic!("{other:?}"),
        }
        assert_eq!(!found.is_empty(), kept, "shown {shown}, asked {allow_p2p}, own {own}");
        assert_eq!(device.free(), if kept { 1 } else { 2 });
        assert_eq!(read(away.start), 3);
    }
}

/// A mirror reaches one device and not another: page by page.
#[test]
fn a_mirror_falls_back_page_by_page() {
    let private = private!();
    let page = page_size();
    let (near, far, map) = (Made::new(3, 4, true), Made::new(4, 4, true), memory(4));
    let (reached, near_device) = (near.owner(), near.as_device());
    let reach: Reach = Box::new(move |device| (device == reached).then_some(5));
    let mirror = Mirror::new(source(), &map.range(), page, true, reach);
    let space = AddressSpace::process();
    let registration = space.register(mirror.range(), mirror.clone()).unwrap();
    (0..4).for_each(|n| write(map.addr() + n * page, n as u8));
    let two = map.addr() + page..map.addr() + 3 * page;
    all_move(private, &(two.start..two.start + page), &near_device, 1);
    all_move(private, &(two.start + page..two.end), &far.as_device(), 1);
    mirror.fault(&map.range(), 0).unwrap();
    let counts = mirror.counts();
    assert_eq!((counts.page_peer_mapped, counts.page_peer_fallback), (1, 1));
    assert_eq!((near.free(), far.free()), (3, 4), "the far one came to host memory");
    {
        let inside = mirror.enter();
        assert!(inside.has_peers(&map.range()) && inside.covers(&map.range(), true));
        assert!(!inside.has_peers(&(two.end..two.end + page)));
        let (number, dma) = inside.peer(two.start + 9).unwrap();
        assert_eq!((number, dma % page, read(dma - 9)), (5, 9, 1));
        assert!([0, 2, 3].iter().all(|n| inside.peer(map.addr() + n * page).is_none()));
    }
    // a touch takes the page away from the mirror before it moves
    assert_eq!(read(two.start), 1);
    let inside = mirror.enter();
    assert!(!inside.covers(&two, false) && inside.peer(two.start).is_none());
    drop(inside);
    assert_eq!(near.free(), 4);
    drop(registration);
}

/// Devices use a range while it moves: every access is to the page where it is.
#[test]
fn devices_go_on_while_pages_move() {
    const PAGES: u64 = 4;
    let (private, page) = (private!(), page_size());
    let (device, map) = (Made::new(3, PAGES, true), memory(PAGES));
    let (reached, done) = (device.owner(), AtomicBool::new(false));
    let reach: Reach = Box::new(move |device| (device == reached).then_some(0));
    let mirror = Mirror::new(source(), &map.range(), page, true, reach);
    let registration = AddressSpace::process().register(mirror.range(), mirror.clone()).unwrap();
    std::thread::scope(|s| {
        let mover = s.spawn(|| {
            while !done.load(SeqCst) {
                let _ = private.migrate(&map.range(), &device.as_device());
                private.home(&(map.addr()..map.addr() + page));
            }
        });
        for turn in 0.. {
            if turn >= 3000 && mirror.counts().page_peer_mapped > 50 {
                break;
            }
            let at = map.addr() + turn % PAGES * page;
            loop {
                let inside = mirror.enter();
                if inside.covers(&(at..at + 8), true) {
                    let place = inside.peer(at).map_or(at, |(_, dma)| dma);
                    let old = add(place, 1);
                    assert_eq!(old, turn / PAGES, "turn {turn}");
                    break;
                }
                drop(inside);
                mirror.fault(&(at..at + 8), 0).unwrap();
            }
        }
        done.store(true, SeqCst);
        mover.join().unwrap();
    });
    drop(registration);
}
