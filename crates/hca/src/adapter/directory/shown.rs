//! A key that neighbours may reach, as the end of its memory's registration sees it: they are kept
//! out with those inside.
//!
//! What keeps them out may be an interposed `munmap` amid a signal handler, so nothing here takes a
//! lock. Who closes first writes why and then changes the generation of the entry; who opens looks
//! at the generation first, then at the reasons, and opens only that generation.

use super::{Directory, key_at};
use std::sync::Arc;
use std::sync::atomic::AtomicU8;
use std::sync::atomic::Ordering::SeqCst;
use transport::keys::Mkey;
use umem::{Outsiders, Umem};

/// The memory may be gone: nobody goes in for now.
const DOUBTED: u8 = 1;
/// The memory is gone.
const SHUT: u8 = 2;
/// The key is gone, and its place may be another's.
const RETRACTED: u8 = 4;

/// The published entry of one key over one registration.
pub(crate) struct ShownKey {
    directory: Arc<Directory>,
    key: u32,
    open: bool,
    /// Why nobody may go in.
    reasons: AtomicU8,
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
        let open = open && umem.shown().is_some();
        let (directory, reasons) = (directory.clone(), AtomicU8::new(0));
        let shown = Arc::new(ShownKey { directory, key, open, reasons });
        if open && !umem.keep_out(shown.clone()) {
            // Another key over the same memory has them kept out.
            shown.reasons.fetch_or(SHUT, SeqCst);
        }
        shown
    }

    /// Publishes what the key stands for now. What is gone or not plain is shown to listings only.
    pub(crate) fn publish(&self, mkey: &Mkey, page_size: Option<u64>) {
        let reasons = self.reasons.load(SeqCst);
        if reasons & RETRACTED != 0 {
            return;
        }
        let open = self.open && reasons & SHUT == 0;
        let closed = self.directory.write_key(self.key, mkey, page_size, open);
        if !open || self.reasons.load(SeqCst) == 0 {
            self.directory.open(key_at(self.key), closed);
        }
    }

    /// Takes the entry back, before the place of the key can be another's.
    pub(crate) fn retract(&self) {
        self.close(SHUT | RETRACTED);
    }

    /// Returns once nobody is inside any more who came by an earlier entry.
    pub(crate) fn wait_for_visitors(&self) {
        self.directory.wait_for_visitors_of_key(self.key);
    }

    fn close(&self, reason: u8) {
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
        let closed = self.directory.closed(key_at(self.key));
        let before = self.reasons.fetch_and(!DOUBTED, SeqCst);
        if let Some(closed) = closed.filter(|_| before == DOUBTED) {
            self.directory.open(key_at(self.key), closed);
        }
    }

    fn wait(&self) {
        self.wait_for_visitors();
    }
}

#[cfg(test)]
mod tests {
    use super::super::OPEN;
    use super::*;
    use mm::{AddressSpace, Mapping, Sink};
    use transport::values::{Access, PdId};
    use umem::AccessFlags;

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
            let (_, words) = reader.entry::<6>(key_at(KEY))?;
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
