//! The drop-in libibverbs: the verbs C ABI over the software HCA.
//!
//! `abi` holds the C structs and `exports` the symbols with their versions; every other file is one kind of verbs object.
//! Pointers from C are turned into our objects at the edge (`ffi`, `object`), protocol lives in `hca`, memory in `umem`.
//! Loading the library starts nothing: the engine (`engine`), the one process-wide state, begins with the first open
//! device and ends with the last.
//!
//! What a function may assume is the contract of the verbs manual pages: a pointer is null or to a live object of the
//! right kind, and a struct's counted members are as long as it says. Null is refused with EINVAL. Nothing unwinds into
//! C.
#![cfg(target_os = "linux")]
// The unit tests are built without `exports`, which is what calls most functions.
#![cfg_attr(test, allow(dead_code))]

mod abi;
mod acks;
mod ah;
mod allocator;
mod async_events;
mod baton;
mod buf;
mod channel;
mod compat;
mod context;
mod counters;
mod cq;
mod cq_ex;
mod device;
mod device_private;
mod dm;
mod drm;
mod engine;
mod env;
// A test program has no symbol versions, and its own open(2) and the like.
#[cfg(not(test))]
mod exports;
mod ffi;
mod fifo;
mod flow;
mod fork;
mod fork_lock;
mod fork_state;
mod marshal;
mod memory;
mod mlx5dv;
mod mr;
mod mr_fd;
mod mw;
mod nldev;
mod null_mr;
mod object;
mod pd;
mod post;
mod qp;
mod qp_ex;
mod query;
mod rate;
#[cfg(feature = "sabotage")]
mod sabotage;
mod spare;
mod srq;
mod strings;
mod sysfs_face;
mod sysfs_files;
mod thread_end;
mod tm;
mod ucma;
mod unsupported;
mod wq;
mod xrc;

use std::sync::Once;

/// What the first verb of a process does: it lets the interposed calls know our device, and makes a bug of ours quiet.
fn start() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        std::panic::set_hook(Box::new(|panic| log!("bug: {panic}")));
        engine::set_callbacks();
    });
}
