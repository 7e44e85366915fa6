//! Interposition on the C library, for the few places where an unmodified program would go past our
//! libibverbs.
//!
//! The functions defined here under the C library's own names end up exported from the preloaded
//! library, so that a program's calls reach them first. Each keeps the exact semantics of the
//! original, and for everything that is not ours it costs one comparison and one indirect call.
//! Seven matters:
//!
//! - **Files** (`redirect`, `open`, `stat`): `/sys/class/infiniband*`, our PCI functions below
//!   `/sys/devices` and `/dev/infiniband` are looked up in the tree that the environment variable
//!   [`sysfs::ROOT_VARIABLE`] names. Attributes that change are asked from a callback
//!   ([`set_provider`]). Without the variable paths stay untouched, except that an announced uverbs
//!   node ([`announce_uverbs`]) exists.
//! - **Memory** (`memory`): a callback runs before the program unmaps, moves, replaces or discards
//!   memory ([`set_invalidate`]); also before the C library's `free` and `realloc` unmap some
//!   inside themselves (`heap`).
//! - **Signals** (`signals`): once `mm::guard` handles SIGSEGV and SIGBUS, the program's own
//!   actions are kept behind it.
//! - **The connection manager** (`rdma_cm`): what librdmacm writes to `/dev/infiniband/rdma_cm` is
//!   answered by a callback ([`set_rdma_cm`]).
//! - **Netlink** (`netlink`): what programs ask the kernel's RDMA devices for on NETLINK_RDMA
//!   sockets is answered by a callback ([`set_rdma_netlink`]).
//! - **GPUs** (`drm`): requests to and mappings of the nodes below `/dev/dri` that the tree has are
//!   answered by callbacks ([`set_drm`]), mappings of their buffers' descriptors too; nodes of the
//!   machine's own stay what they are.
//! - **Descriptors and processes** (`close`, `process`): a program that closes every descriptor
//!   does not close the engine's (`descriptors::Kept`), and callbacks run in a process that became
//!   a daemon, or could not ([`set_daemon`]), and in one that ends without atexit(3)'s handlers
//!   ([`set_exit`]). Whether the program has said who may trace it is noted ([`names_tracer`]).
//!
//! What takes memory away is found by programs that are linked to it, and not by dlsym(3)
//! (`front`). Calls are passed on to the next definition in the program's lookup order, so that
//! other preloaded libraries, UCX's memory hooks and cancellation keep working; before this
//! library's constructor ran, and where the C library is too old to have the function, the system
//! call is made directly. Nothing is allocated, locked or looked up on these ways, so they are safe
//! inside an allocator, a signal handler or a vfork child.
//!
//! After a fork the child has no callbacks until they are set again: the engine behind them stayed
//! in the parent.
#![cfg(target_os = "linux")]

#[macro_use]
mod front;
#[macro_use]
mod next;
mod close;
mod drm;
mod errno;
mod heap;
mod memory;
mod netlink;
mod open;
mod process;
mod rdma_cm;
mod redirect;
mod signals;
mod stat;

pub use drm::{Drm, MapCall, Mapped, RemapCall, count_nodes, mark_node, set_drm};
pub use heap::watch_heap;
pub use memory::{Invalidate, set_invalidate};
pub use netlink::{RdmaNetlink, set_rdma_netlink};
pub use open::{Provider, set_provider};
pub use process::{Daemon, in_daemon, names_tracer, set_daemon, set_exit};
pub use rdma_cm::{RdmaCm, count_channels, inode_of_channel, mark, set_rdma_cm};
pub use redirect::{announce_uverbs, sysfs_root};

/// Runs before the program, to which errno is 0 (ISO C 7.5): finds the next definitions, so that no
/// later call has to.
extern "C" fn initialise() {
    errno::keeping_errno(|| {
        next::resolve_all();
        heap::initialise();
        process::watch_forks();
        redirect::look_around();
    });
}

// The number puts it before constructors without one, such as those of the crates above.
#[used]
#[unsafe(link_section = ".init_array.00101")]
static INITIALISE: extern "C" fn() = initialise;
