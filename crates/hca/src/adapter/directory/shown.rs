//! A key that neighbours may reach, as the end of its memory's registration sees it: they are kept
//! out with those inside.
//!
//! What keeps them out may be an interposed `munmap` amid a signal handler, so it takes no lock.
//! Who closes first writes why and then changes the generation of the entry; who opens looks at the
//! generation first, then at the reasons, and opens only that generation. That an entry is being
//! written is a reason, too: otherwise who takes back a doubt would open half of it.

use super::Directory;
use super::keys::key_at;
use engine_thread::lock;
use std::sync::atomic::AtomicU8;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, Mutex};
use transport::keys::Mkey;
use umem::{Outsiders, Shown, Umem};

/// The memory may be gone: nobody goes in for now.
const DOUBTED: u8 = 1;
/// The memory is gone.
const SHUT: u8 = 2;
/// The key is gone, and its place may be another's.
const RETRACTED: u8 = 4;
/// The entry is being written, or has not been yet.
const WRITING: u8 = 8;

/// The published entry of one key over one registration.
pub(crate) struct ShownKey {
    directory: Arc<Directory>,
    key: u32,
    open: bool,
    /// Why nobody may go in.
    reasons: AtomicU8,
    /// Whether the key, as it was last published, is plain. Locked while the entry is written:
    /// memory that moves does so, too.
    plain: Mutex<bool>,
}

impl ShownKey {
    /// Key `key`, not published yet. With `open`, neighbours may reach its memory, `umem`, if that
    /// is simple.
    pub(crate) fn new(
        directory: &Arc<Directory>,
        key: u32,
        umem: &Umem,
        open: bool,
    ) -> Arc<ShownKey> {
        let open = open && umem.can_be_shown();
        let (directory, reasons) = (directory.clone(), AtomicU8::new(WRITING));
        let shown = Arc::new(ShownKey { directory, key, open, reasons, plain: Mutex::new(false) });
        if open && !umem.keep_out(shown.clone()) {
            // Another key over the same memory has them kept out.
            shown.reasons.fetch_or(SHUT, SeqCst);
        }
        shown
    }

    /// Publishes what the key stands for now. What is gone or not plain is shown to listings only.
    pub(crate) fn publish(&self, mkey: &Mkey, page_size: Option<u64>) {
        if !self.open {
            return self.directory.list_key(self.key, mkey, page_size);
        }
        let mut plain = lock(&self.plain);
        let reasons = self.reasons.fetch_or(WRITING, SeqCst);
        if reasons & RETRACTED != 0 {
            return;
        }
        *plain = mkey.is_plain();
        let open = reasons & SHUT == 0;
        let closed = self.directory.write_key(self.key, mkey, page_size, open && *plain);
        if !mkey.umem.is_watched() {
            // Nor may it be any more, since it was looked at for the entry.
            self.directory.unwatch_key(self.key);
        }
        self.written(closed, !open);
    }

    /// The entry is written, and its generation `closed`: it becomes valid if nothing speaks
    /// against it, or if only listings act by it.
    fn written(&self, closed: u64, is_listing: bool) {
        self.reasons.fetch_and(!WRITING, SeqCst);
        if is_listing {
            self.directory.open(key_at(self.key), closed);
        } else {
            self.open_unless_for_a_reason();
        }
    }

    /// Makes the entry valid, which is written, if nothing speaks against it. Whoever takes the
    /// last reason back does so.
    fn open_unless_for_a_reason(&self) {
        while let Some(closed) = self.directory.closed(key_at(self.key)) {
            let is_clear = self.reasons.load(SeqCst) == 0;
            if !is_clear || self.directory.open(key_at(self.key), closed) {
                return;
            }
        }
    }

    /// Takes the entry back, before the place of the key can be another's.
    pub(crate) fn retract(&self) {
        let _written = self.open.then(|| lock(&self.plain));
        self.close(SHUT | RETRACTED);
    }

    /// Returns once nobody is inside any more who came by an earlier entry.
    pub(crate) fn wait_for_visitors(&self) {
        self.directory.wait_for_visitors_of_key(self.key);
    }

    fn close(&self, reason: u8) {
        if !self.open {
            self.directory.unlist_key(self.key);
            return;
        }
        let before = self.reasons.fetch_or(reason, SeqCst);
        if before & RETRACTED == 0 {
            self.directory.shut(key_at(self.key));
        }
    }
}

impl Outsiders for ShownKey {
    fn shut(&self) {
        self.close(SHUT);
    }

    fn doubt(&self) {
        self.close(DOUBTED);
    }

    fn settle(&self) {
        self.reasons.fetch_and(!DOUBTED, SeqCst);
        self.open_unless_for_a_reason();
    }

    fn wait(&self) {
        self.wait_for_visitors();
    }

    /// Its entry becomes another one, of the same words.
    fn renew(&self) {
        if self.open && self.reasons.load(SeqCst) & RETRACTED == 0 {
            self.directory.shut(key_at(self.key));
            self.open_unless_for_a_reason();
            self.wait_for_visitors();
        }
    }

    fn unwatched(&self) {
        if self.open && self.reasons.load(SeqCst) & RETRACTED == 0 {
            self.directory.shut(key_at(self.key));
            self.directory.unwatch_key(self.key);
            self.open_unless_for_a_reason();
            self.wait_for_visitors();
        }
    }

    fn moved<'a>(&self, now: &dyn Fn() -> Option<Shown<'a>>) {
        let plain = lock(&self.plain);
        if *plain && self.reasons.load(SeqCst) & SHUT == 0 {
            self.reasons.fetch_or(WRITING, SeqCst);
            let closed = self.directory.write_place(self.key, now());
            self.written(closed, false);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::OPEN;
    use super::super::keys::ShownBuffer;
    use super::*;
    use dmabuf::{AttachRequest, Hold, LocalControls, Placement, Storage, memfd_name};
    use mm::{AddressSpace, Mapping, Sink};
    use rustix::fd::{AsFd, AsRawFd};
    use rustix::fs::{MemfdFlags, SealFlags};
    use std::sync::atomic::AtomicBool;
    use std::time::Duration;
    use transport::values::{Access, PdId};
    use umem::{AccessFlags, DmabufRange};

    const KEY: u32 = 0x0500_0107;

    struct World {
        directory: Arc<Directory>,
        mkey: Mkey,
        memory: &'static Mapping,
    }

    fn world() -> World {
        let directory = Arc::new(Directory::create("peerdma-test", 5).unwrap());
        let platform = pcie::Platform::default();
        let hca = platform.named("peerdma0").unwrap();
        platform.publish(hca.address, Arc::new(directory.route_table().unwrap()));
        let memory: &Mapping = Box::leak(Box::new(Mapping::anonymous(1 << 20).unwrap()));
        let (space, access) = (AddressSpace::process(), AccessFlags::REMOTE_WRITE);
        let access = access | AccessFlags::LOCAL_WRITE;
        let sink: Sink<'static> = memory.sink();
        let umem = Umem::from_user(&space, sink, access, hca, &platform).unwrap();
        let access = Access::REMOTE_WRITE | Access::LOCAL_WRITE;
        World { directory, mkey: Mkey::new(PdId(7), 0x1000, access, umem), memory }
    }

    impl World {
        fn shown(&self, open: bool) -> Arc<ShownKey> {
            let shown = ShownKey::new(&self.directory, KEY, &self.mkey.umem, open);
            shown.publish(&self.mkey, None);
            shown
        }

        /// Where the memory is, and whether a neighbour may reach it; `None` without an entry.
        fn entry(&self) -> Option<(u64, bool)> {
            let reader = self.directory.reader().unwrap();
            let (_, words) = reader.entry::<7>(key_at(KEY))?;
            Some((words[4], words[5] & OPEN != 0))
        }
    }

    #[test]
    fn a_plain_key_is_shown_with_its_place() {
        let world = world();
        let shown = world.shown(true);
        assert_eq!(world.entry(), Some((world.memory.addr(), true)));
        shown.retract();
        assert_eq!(world.entry(), None);
        world.shown(false);
        assert_eq!(world.entry(), Some((0, false)));
    }

    #[test]
    fn a_doubt_hides_it_and_a_revoke_ends_it() {
        let world = world();
        let shown = world.shown(true);
        shown.doubt();
        shown.doubt();
        assert_eq!(world.entry(), None);
        shown.settle();
        assert!(world.entry().is_some());
        shown.settle();
        shown.doubt();
        world.mkey.umem.revoke();
        shown.settle();
        assert_eq!(world.entry(), None, "it is over for good");
        // Whoever publishes it then shows it to listings only.
        shown.publish(&world.mkey, None);
        assert_eq!(world.entry(), Some((0, false)));
    }

    #[test]
    fn who_knew_it_before_its_rights_changed_looks_again() {
        let world = world();
        let shown = world.shown(true);
        let generation = || world.directory.reader().unwrap().entry::<7>(key_at(KEY)).unwrap().0;
        let (before, words) = (generation(), world.entry());
        shown.renew();
        assert!(generation() != before && world.entry() == words);
        shown.doubt();
        shown.renew();
        assert_eq!(world.entry(), None, "it is in doubt all the same");
        shown.settle();
        assert_eq!(world.entry(), words);
        shown.retract();
        shown.renew();
        assert_eq!(world.entry(), None);
    }

    #[test]
    fn what_the_kernel_watches_no_more_is_not_shown_as_watched() {
        use super::super::keys::WATCHED;
        if let Err(error) = mm::can_watch() {
            test_support::skip!("userfaultfd(2): {error}");
        }
        let world = world();
        let shown = world.shown(true);
        let entry = || world.directory.reader().unwrap().entry::<7>(key_at(KEY)).unwrap();
        let (before, words) = entry();
        assert_ne!(words[1] & WATCHED, 0);
        shown.unwatched();
        let (after, now) = entry();
        assert!(after != before && now[1] == words[1] & !WATCHED && world.entry().is_some());
        shown.doubt();
        shown.unwatched();
        assert_eq!(world.entry(), None, "it is in doubt all the same");
    }

    #[test]
    fn a_doubt_before_it_is_written_opens_nothing() {
        let (world, other) = (world(), self::world());
        world.shown(true).retract();
        let shown = ShownKey::new(&world.directory, KEY, &other.mkey.umem, true);
        shown.doubt();
        shown.settle();
        assert_eq!(world.entry(), None, "the entry of the key before");
        shown.doubt();
        shown.publish(&other.mkey, None);
        assert_eq!(world.entry(), None);
        shown.settle();
        assert!(world.entry().is_some());
    }

    /// Memory is changed under a key again and again, amid doubts: whoever finds the entry valid
    /// finds one memory's words, and in the end it is valid.
    #[test]
    fn a_doubt_amid_a_change_shows_no_mixture() {
        let (one, other) = (world(), world());
        let access = one.mkey.access;
        let second = Mkey::new(PdId(8), 0x2000, access, other.mkey.umem.clone());
        let ways = [(7, 0x1000, one.memory.addr()), (8, 0x2000, other.memory.addr())];
        let shown = one.shown(true);
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let doubts = scope.spawn(|| {
                while !over.load(SeqCst) {
                    shown.doubt();
                    shown.settle();
                }
            });
            let looks = scope.spawn(|| {
                let reader = one.directory.reader().unwrap();
                while !over.load(SeqCst) {
                    if let Some((_, words)) = reader.entry::<7>(key_at(KEY)) {
                        let found = (words[0] >> 32, words[2], words[4]);
                        assert!(ways.contains(&found), "{found:x?}");
                    }
                }
            });
            for _ in 0..500_000 {
                shown.publish(&second, None);
                shown.publish(&one.mkey, None);
            }
            over.store(true, SeqCst);
            doubts.join().unwrap();
            looks.join().unwrap();
        });
        assert_eq!(one.entry(), Some((one.memory.addr(), true)));
    }

    /// A software GPU's buffer, and what `world` has, over a part of it.
    fn world_on_gpu() -> (Arc<Storage>, World) {
        const ID: u64 = 0xa11;
        let data = rustix::fs::memfd_create(
            memfd_name(ID),
            MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING,
        );
        let data = data.unwrap();
        rustix::fs::ftruncate(&data, 1 << 20).unwrap();
        rustix::fs::fcntl_add_seals(&data, SealFlags::SHRINK | SealFlags::GROW).unwrap();
        let mut world = world();
        let platform = pcie::Platform::default();
        let function = platform.named("peerdma0").unwrap();
        platform.publish(function.address, Arc::new(world.directory.route_table().unwrap()));
        let gpu = platform.named("gpu0").unwrap().address;
        let storage = Storage::create(data, 1 << 20, ID, gpu, Placement::Vram).unwrap();
        let storage = Arc::new(storage);
        storage.share();
        let fd = storage.data().as_fd().as_raw_fd();
        let range = DmabufRange { fd, offset: 0x4000, len: 0x8000, iova: 0 };
        let request = AttachRequest { function, platform: &platform };
        let controls = LocalControls::default();
        let access = AccessFlags::REMOTE_WRITE | AccessFlags::LOCAL_WRITE;
        let umem = Umem::from_dmabuf(&range, &controls, access, &request, Hold::Dynamic).unwrap();
        world.mkey.umem = umem;
        (storage, world)
    }

    #[test]
    fn a_buffer_is_shown_where_it_is() {
        let (storage, world) = world_on_gpu();
        let shown = world.shown(true);
        let is_at = |placement| {
            let reader = world.directory.reader().unwrap();
            let (_, words) = reader.entry::<7>(key_at(KEY)).unwrap();
            let buffer = ShownBuffer::of_word(words[6]).unwrap();
            let memory = storage.memory(placement).unwrap();
            let control = storage.control().as_fd().as_raw_fd();
            assert_eq!(buffer.control(), control.cast_unsigned());
            (words[4] == memory.addr() + 0x4000 && words[5] & OPEN != 0, buffer.moves())
        };
        assert_eq!(is_at(Placement::Vram), (true, 0));
        assert_eq!(storage.move_to(Placement::Host, None, Duration::ZERO), Ok(true));
        assert_eq!(is_at(Placement::Vram), (true, 0), "nobody has looked yet");
        drop(world.mkey.umem.enter().unwrap());
        assert_eq!(is_at(Placement::Host), (true, 1));
        shown.retract();
        assert_eq!(storage.move_to(Placement::Vram, None, Duration::ZERO), Ok(true));
        drop(world.mkey.umem.enter().unwrap());
        assert_eq!(world.entry(), None, "its place may be another's");
    }

    #[test]
    fn what_is_not_plain_is_not_open() {
        let mut world = world();
        world.mkey.qpn = Some(5);
        world.shown(true);
        assert_eq!(world.entry(), Some((0, false)));
        world.mkey.qpn = None;
        world.mkey.access = Access::LOCAL_WRITE;
        ShownKey::new(&world.directory, KEY, &world.mkey.umem, false).publish(&world.mkey, None);
        assert_eq!(world.entry(), Some((0, false)));
    }
}
