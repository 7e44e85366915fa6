//! Regions whose memory moves, seen through a cache: each test knows which bytes are at which
//! place.

use super::*;
use crate::{AccessError, AccessFlags, DmabufRange, Umem};
use dmabuf::{
    AttachRequest, ControlBlocks, Hold, LocalControls, POISON, Placement, Storage, memfd_name,
};
use mm::{AddressSpace, DevicePage, Fault, Mapping, Pages, Sink, page_size};
use rustix::fs::{MemfdFlags, SealFlags};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;

const RW: AccessFlags = AccessFlags::LOCAL_WRITE;
const LIMIT: Duration = Duration::from_secs(20);

/// Hits, misses, invalidations.
#[derive(Clone, Default)]
struct Counts(Arc<[AtomicU64; 3]>);

impl LookupWatcher for Counts {
    fn looked_up(&self, what: Lookup) {
        let (place, by) = match what {
            Lookup::Hit(by) => (0, by),
            Lookup::Miss(by) => (1, by),
            Lookup::Invalidated(by) => (2, by),
        };
        self.0[place].fetch_add(by, Relaxed);
    }
}

impl Counts {
    fn now(&self) -> [u64; 3] {
        [0, 1, 2].map(|place: usize| self.0[place].load(Relaxed))
    }

    fn cache(&self) -> Arc<TranslationCache> {
        TranslationCache::new(Box::new(self.clone())).unwrap()
    }
}

/// A software GPU's buffer in its memory, and a dynamic registration of it from `offset` on.
fn buffer(id: u64, bytes: u64, offset: u64) -> (OwnedFd, Storage, Arc<Umem>) {
    buffer_on(&pcie::Platform::default(), id, bytes, offset)
}

fn buffer_on(
    platform: &pcie::Platform,
    id: u64,
    bytes: u64,
    offset: u64,
) -> (OwnedFd, Storage, Arc<Umem>) {
    let named = |name| platform.named(name).unwrap();
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let fd = rustix::fs::memfd_create(memfd_name(id), flags).unwrap();
    rustix::fs::ftruncate(&fd, bytes).unwrap();
    rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK).unwrap();
    let own = fd.try_clone().unwrap();
    let storage = Storage::create(own, bytes, id, named("gpu0").address, Placement::Vram).unwrap();
    let controls = LocalControls::default();
    controls.publish(id, storage.control().as_fd()).unwrap();
    let request = AttachRequest { function: named("peerdma0"), platform };
    let range = DmabufRange { fd: fd.as_raw_fd(), offset, len: bytes - offset, iova: offset };
    let umem = Umem::from_dmabuf(&range, &controls, RW, &request, Hold::Dynamic);
    (fd, storage, umem.unwrap())
}

fn byte_at(umem: &Umem, offset: u64) -> u8 {
    let mut byte = [0];
    umem.read(offset, &mut byte, 0).unwrap();
    byte[0]
}

#[test]
fn a_dma_buf_is_asked_for_once_a_unit_and_again_after_a_move() {
    let counts = Counts::default();
    let (_fd, storage, umem) = buffer(0xa751, 256 << 10, 100);
    assert!(umem.translate_by(&counts.cache()));
    umem.write((64 << 10) - 200, &[7; 300], 0).unwrap();
    assert_eq!(counts.now(), [0, 2, 0], "across two units of the buffer");
    let mut back = [0; 300];
    umem.read((64 << 10) - 200, &mut back, 0).unwrap();
    assert_eq!((back, counts.now()), ([7; 300], [2, 2, 0]));
    let mut fold = crate::Fold::off();
    umem.read_folding(0, &mut back, &mut fold, 0).unwrap();
    assert_eq!(umem.atomic(4, crate::AtomicOp::FetchAdd { add: 3 }), Ok(0));
    assert_eq!(counts.now(), [4, 2, 0]);
    storage.move_to(Placement::Host, None, LIMIT).unwrap();
    assert_eq!(byte_at(&umem, (64 << 10) - 101), 7);
    assert_eq!(counts.now(), [4, 3, 2], "both are gone, one was asked for again");
    assert_eq!(byte_at(&umem, (64 << 10) - 102), 7);
    assert_eq!(counts.now(), [5, 3, 2]);
    let route = |target| {
        let of = |s: &crate::Segment| (s.route.target() == target).then(|| s.route.read_bytes());
        umem.segments().iter().find_map(of)
    };
    assert_eq!(route(pcie::Target::HOST), Some(2), "the bytes took the other way");
    umem.revoke();
    assert_eq!(umem.read(0, &mut back, 0), Err(AccessError::Revoked));
    assert_eq!(counts.now(), [5, 3, 2]);
}

/// ACS sends untranslated requests up to the root complex, and lets translated ones pass.
#[test]
fn translated_requests_take_the_way_that_acs_leaves_them() {
    let text = include_str!("../../../pcie/src/platforms/default.toml");
    let platform = text.replace("acs = []", r#"acs = ["RR", "CR", "DT"]"#);
    let platform = pcie::Platform::from_toml(&platform).unwrap();
    let (_fd, _storage, umem) = buffer_on(&platform, 0xa754, 64 << 10, 0);
    let at_root = || {
        let bytes = platform.link_bytes();
        let root = bytes.iter().find(|(link, _)| matches!(link, pcie::LinkId::RootComplex(0)));
        root.map(|(_, bytes)| *bytes)
    };
    umem.write(0, &[1; 100], 0).unwrap();
    assert_eq!(at_root(), Some(100));
    umem.translate_by(&Counts::default().cache());
    umem.write(0, &[2; 100], 0).unwrap();
    assert_eq!((byte_at(&umem, 7), at_root()), (2, Some(100)), "straight through the switch");
}

#[test]
fn only_memory_that_moves_is_cached() {
    let counts = Counts::default();
    let map = leaked(1);
    let fixed = crate::Segment::of_process(map.sink(), Arc::new(pcie::Route::local()));
    let umem = Umem::from_segments(vec![fixed], true);
    assert!(!umem.translate_by(&counts.cache()));
    umem.write(0, b"plain", 0).unwrap();
    assert_eq!(counts.now(), [0; 3]);
}

/// While the buffer moves and the old place is poisoned, nobody sees a byte that was not written.
#[test]
fn no_access_of_a_moving_buffer_uses_a_stale_translation() {
    const BYTES: u64 = 192 << 10;
    let counts = Counts::default();
    let (_fd, storage, umem) = buffer(0xa752, BYTES, 0);
    umem.translate_by(&counts.cache());
    umem.write(0, &vec![1; BYTES as usize], 0).unwrap();
    let (done, reads) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|s| {
        let readers: Vec<_> = (0..2)
            .map(|number| {
                let (umem, done, reads) = (&umem, &done, &reads);
                s.spawn(move || {
                    let mut back = [0; 64];
                    let mut turn = number;
                    while !done.load(SeqCst) {
                        turn += 1;
                        match umem.read(turn * 4099 % (BYTES - 64), &mut back, 0) {
                            Err(AccessError::Moving) => continue,
                            other => other.unwrap(),
                        }
                        assert_eq!(back, [1; 64]);
                        reads.fetch_add(1, Relaxed);
                    }
                })
            })
            .collect();
        for turn in 0..200 {
            let to = if turn % 2 == 0 { Placement::Host } else { Placement::Vram };
            let before = reads.load(Relaxed);
            storage.move_to(to, None, LIMIT).unwrap();
            assert_eq!(byte_at(&umem, 5), 1);
            while reads.load(Relaxed) < before + 4 && !readers.iter().any(|r| r.is_finished()) {
                std::thread::yield_now();
            }
        }
        done.store(true, SeqCst);
        readers.into_iter().for_each(|reader| reader.join().unwrap());
    });
    let [hits, misses, invalidations] = counts.now();
    assert!(hits > 0 && misses > 200 && invalidations > 200, "{hits} {misses} {invalidations}");
}

#[cfg(feature = "sabotage")]
#[test]
fn sabotaged_invalidations_leave_a_moved_buffer_poison() {
    let (_fd, storage, umem) = buffer(0xa753, 64 << 10, 0);
    umem.translate_by(&Counts::default().cache());
    umem.write(0, &[1; 64], 0).unwrap();
    sabotage::without_invalidations(|| {
        storage.move_to(Placement::Host, None, LIMIT).unwrap();
        assert_eq!(byte_at(&umem, 5), POISON, "the stale entry was not used");
    });
    storage.move_to(Placement::Vram, None, LIMIT).unwrap();
    assert_eq!(byte_at(&umem, 5), 1, "taken back after all");
}

fn leaked(pages: u64) -> &'static Mapping {
    Box::leak(Box::new(Mapping::anonymous(pages * page_size()).unwrap()))
}

/// Pages of which the first may be in a GPU's memory: at `frame`, and then not in the host's.
struct Movable {
    home: &'static Mapping,
    frame: &'static Mapping,
    away: Mutex<bool>,
}

impl Pages for Movable {
    fn fault(
        &self,
        range: &Range<u64>,
        _write: bool,
        found: &mut dyn FnMut(DevicePage),
    ) -> Result<u64, Fault> {
        let at = self.home.addr();
        if *self.away.lock().unwrap() && range.contains(&at) {
            let device = pcie::Platform::default().named("gpu0").unwrap().address;
            found(DevicePage::Peer { at, device, dma: self.frame.addr() });
        }
        Ok(0)
    }

    fn to_host(&self, _range: &Range<u64>) {}

    fn resident(&self, _range: &Range<u64>, _found: &mut dyn FnMut(Range<u64>)) {}

    fn devices(&self) -> Option<Sink<'static>> {
        Some(self.frame.sink())
    }
}

struct OnDemand {
    pages: Arc<Movable>,
    space: Arc<AddressSpace>,
    umem: Arc<Umem>,
    counts: Counts,
}

impl OnDemand {
    /// A registration of `pages` pages, with 5 in the first page and 6 in the others.
    fn new(pages: u64) -> OnDemand {
        let (home, frame, page) = (leaked(pages), leaked(1), page_size());
        home.sink().fill(6).unwrap();
        home.sink().part(0, page).unwrap().fill(5).unwrap();
        let pages = Arc::new(Movable { home, frame, away: Mutex::new(false) });
        let platform = pcie::Platform::default();
        let hca = platform.named("peerdma0").unwrap();
        let space = Arc::new(AddressSpace::default());
        let source = pages.clone();
        let memory = home.sink();
        let iova = memory.addr();
        let umem = Umem::on_demand(&space, source, memory, iova, RW, hca, &platform).unwrap();
        let counts = Counts::default();
        assert!(umem.translate_by(&counts.cache()));
        OnDemand { pages, space, umem, counts }
    }

    /// Moves the first page, as migration does, and leaves poison behind.
    fn move_first(&self, away: bool) {
        let page = self.pages.home.sink().part(0, page_size()).unwrap();
        let range = page.addr()..page.addr() + page.len();
        let change = self.space.begin(range.clone()).unwrap();
        let (from, to) = match away {
            true => (page, self.pages.frame.sink()),
            false => (self.pages.frame.sink(), page),
        };
        to.copy_from(from.source()).unwrap();
        from.fill(POISON).unwrap();
        *self.pages.away.lock().unwrap() = away;
        self.space.end(range, change);
    }
}

#[test]
fn on_demand_pages_are_asked_for_once() {
    let region = OnDemand::new(4);
    let (umem, page) = (&region.umem, page_size());
    assert_eq!(byte_at(umem, 9), 5);
    assert_eq!(region.counts.now(), [0, 1, 0]);
    let mut across = [0; 4];
    umem.read(page - 2, &mut across, 0).unwrap();
    assert_eq!((across, region.counts.now()), ([5, 5, 6, 6], [1, 2, 0]), "after its fault");
    region.move_first(true);
    assert_eq!(region.counts.now(), [1, 2, 1]);
    umem.read(page - 2, &mut across, 0).unwrap();
    assert_eq!((across, region.counts.now()), ([5, 5, 6, 6], [2, 3, 1]), "in the GPU's memory");
    assert_eq!(umem.atomic(8, crate::AtomicOp::FetchAdd { add: 0 }), Ok(0x0505_0505_0505_0505));
    region.pages.frame.sink().part(10, 1).unwrap().write(&[9]).unwrap();
    assert_eq!((byte_at(umem, 10), region.counts.now()), (9, [4, 3, 1]));
    region.move_first(false);
    assert_eq!((byte_at(umem, 10), region.counts.now()), (9, [4, 4, 2]));
    assert_eq!(umem.paging().unwrap().page_peer_mapped, 1);
    assert_eq!(umem.read(4 * page - 1, &mut across, 0), Err(AccessError::OutOfRange));
}

#[test]
fn an_entry_for_reading_is_none_for_writing() {
    let region = OnDemand::new(2);
    region.umem.prefetch(0, 2 * page_size(), crate::Prefetch::Read).unwrap();
    assert_eq!(byte_at(&region.umem, 0), 5);
    assert_eq!((region.counts.now(), region.umem.paging().unwrap().page_faults), ([0, 1, 0], 0));
    region.umem.write(0, b"x", 0).unwrap();
    assert_eq!((region.counts.now(), region.umem.paging().unwrap().page_faults), ([0, 2, 0], 1));
    assert_eq!((byte_at(&region.umem, 0), region.counts.now()), (b'x', [1, 2, 0]));
}

/// More pages than the cache has entries, and pieces that no access can hold at once.
#[test]
fn a_cache_that_is_too_small_is_no_obstacle() {
    let region = OnDemand::new(ENTRIES as u64 + 8);
    let (umem, len) = (&region.umem, region.pages.home.len() as usize);
    region.move_first(true);
    let mut all = vec![0; len];
    for _ in 0..2 {
        umem.read(0, &mut all, 0).unwrap();
        assert!(all[..4096].iter().all(|&byte| byte == 5));
        assert!(all[4096..].iter().all(|&byte| byte == 6));
    }
    let [hits, misses, _] = region.counts.now();
    assert_eq!(hits + misses, 2 * (ENTRIES as u64 + 8));
    assert!(misses >= ENTRIES as u64 + 16, "{misses}");
    let all = region.pages.home.range();
    let change = region.space.begin(all.clone()).unwrap();
    assert_eq!(region.counts.now()[2], ENTRIES as u64, "a long range empties it");
    region.space.end(all, change);
}

/// A page goes and comes while it is read and written: what was left behind is never seen, nothing
/// is lost.
#[test]
fn a_moving_page_is_never_stale() {
    let region = OnDemand::new(2);
    let done = AtomicBool::new(false);
    region.pages.home.sink().part(0, page_size()).unwrap().fill(0).unwrap();
    let added = std::thread::scope(|s| {
        let adder = s.spawn(|| {
            let mut turn = 0;
            while !done.load(SeqCst) {
                let old = region.umem.atomic(16, crate::AtomicOp::FetchAdd { add: 1 });
                if old == Err(AccessError::Moving) {
                    continue;
                }
                assert_eq!(old, Ok(turn));
                turn += 1;
            }
            turn
        });
        for turn in 0..500 {
            let before = region.counts.now()[0];
            region.move_first(turn % 2 == 0);
            assert_eq!(byte_at(&region.umem, 100), 0);
            while region.counts.now()[0] < before + 3 && !adder.is_finished() {
                std::thread::yield_now();
            }
        }
        done.store(true, SeqCst);
        adder.join().unwrap()
    });
    assert_eq!(region.umem.atomic(16, crate::AtomicOp::FetchAdd { add: 0 }), Ok(added));
    assert!(region.counts.now()[2] > 0);
}

#[cfg(feature = "sabotage")]
#[test]
fn sabotaged_invalidations_leave_a_page_that_came_home_poison() {
    let region = OnDemand::new(2);
    region.move_first(true);
    assert_eq!(byte_at(&region.umem, 9), 5);
    sabotage::without_invalidations(|| {
        region.move_first(false);
        assert_eq!(byte_at(&region.umem, 9), POISON, "the stale entry was not used");
    });
    // a page that is mapped nowhere is in no cache, or ought not to be: only the next move takes it
    // back
    assert_eq!(byte_at(&region.umem, page_size()), 6);
}
