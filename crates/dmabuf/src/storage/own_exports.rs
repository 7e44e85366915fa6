//! The buffers that this process exports itself: who imports one of them here uses it as the
//! exporter has it, without the registry, a second mapping and a second slot among the users.
//!
//! A buffer is recognised by its file, whose number is given to no other while the exporter has it
//! open. An importer holds a descriptor of the program's open, not the exporter's: by that the
//! exporter sees that the buffer is in use (see `is_open_elsewhere` of the software GPU). All
//! importers of a buffer hold the same one, so that as many as there are cost no descriptors.

use crate::storage::Storage;
use descriptors::Kept;
use engine_thread::lock;
use rustix::fs::OFlags;
use std::collections::BTreeMap;
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, Weak};

/// Device and number of a file.
type File = (u64, u64);

struct Export {
    storage: Weak<Storage>,
    held: Weak<Kept>,
}

static EXPORTS: Mutex<BTreeMap<File, Export>> = Mutex::new(BTreeMap::new());

/// An exporter's buffer, and what an importer holds open while it uses it.
pub(crate) struct OwnExport {
    pub(crate) storage: Arc<Storage>,
    pub(crate) held: Arc<Kept>,
}

fn file(fd: impl AsFd) -> Option<File> {
    rustix::fs::fstat(fd).ok().map(|stat| (stat.st_dev, stat.st_ino))
}

impl Storage {
    /// For an exporter: lets importers in this process use this very value, until
    /// [`Storage::unshare`]. Those that do not find it ask the registry, as other processes do.
    pub fn share(self: &Arc<Self>) {
        if let Some(file) = file(self.data()) {
            let export = Export { storage: Arc::downgrade(self), held: Weak::new() };
            lock(&EXPORTS).insert(file, export);
        }
    }

    /// Takes that back.
    pub fn unshare(&self) {
        if let Some(file) = file(self.data()) {
            lock(&EXPORTS).remove(&file);
        }
    }
}

/// The buffer behind a descriptor of the program's, if this process exports it. One that can only
/// be read is left to its own mapping, which fails as it should; a forked child imports what its
/// parent exports.
pub(crate) fn find(fd: &Arc<Kept>) -> Option<OwnExport> {
    let file = file(fd)?;
    let mut exports = lock(&EXPORTS);
    let export = exports.get_mut(&file)?;
    let storage = export.storage.upgrade().filter(|storage| storage.is_own())?;
    let flags = rustix::fs::fcntl_getfl(fd).ok()?;
    if flags & OFlags::RWMODE != OFlags::RDWR {
        return None;
    }
    let held = export.held.upgrade().unwrap_or_else(|| {
        export.held = Arc::downgrade(fd);
        fd.clone()
    });
    Some(OwnExport { storage, held })
}
