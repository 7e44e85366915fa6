//! The first verb of a process, and what makes it ready for an engine.

use crate::base::hooks::{self, Hooks};
use crate::drm;
use crate::edge::sysfs_face;
use crate::engine::{fork, process};
use crate::platform::device;
use crate::ucma;
use std::sync::Once;

extern "C" fn set_hooks() {
    hooks::set(Hooks { prepare, watch_forks, pins_for_child: drm::pins_for_child, adopt });
}

#[cfg_attr(not(test), used)]
#[cfg_attr(not(test), unsafe(link_section = ".init_array"))]
static SET_HOOKS: extern "C" fn() = set_hooks;

/// What the first verb of a process does: it lets the interposed calls know our device, and makes a
/// bug of ours quiet.
pub(crate) fn start() {
    static ONCE: Once = Once::new();
    // A verb may be called before the library's own initialisers ran.
    set_hooks();
    ONCE.call_once(|| {
        std::panic::set_hook(Box::new(|panic| log!("bug: {panic}")));
        set_callbacks();
    });
}

fn prepare() {
    start();
    #[cfg(feature = "sabotage")]
    crate::base::sabotage::begin();
    mm::guard::install();
    set_callbacks();
    fork::watch();
    process::watch_exit();
}

fn watch_forks() {
    start();
    fork::watch();
}

fn adopt() {
    set_callbacks();
    ucma::adopt();
    drm::adopt();
}

/// Sets whom the interposed calls ask; also after a fork, which forgets them.
pub(crate) fn set_callbacks() {
    (0..).zip(0..device::count()).for_each(|(index, _)| shim::announce_uverbs(index));
    ucma::announce();
    shim::set_exit(process::at_quick_exit);
    shim::set_provider(sysfs_face::attribute);
    shim::set_invalidate(shim::Invalidate {
        begin: |addr, len| mm::Change::into_raw(mm::begin(range(addr, len))),
        end: |addr, len, change| {
            if let Some(change) = mm::Change::from_raw(change) {
                mm::end(range(addr, len), change);
            }
        },
        protect: |addr, len| {
            mm::PrivateMemory::running().map(|private| private.home(&range(addr, len)));
        },
        protected: |addr, len| mm::protected(&range(addr, len)),
        mark: mm::mark,
        gone: |addr, len, mark| mm::gone(range(addr, len), mark),
    });
}

/// The range of an interposed call.
fn range(addr: usize, len: usize) -> std::ops::Range<u64> {
    addr as u64..(addr as u64).saturating_add(len as u64)
}
