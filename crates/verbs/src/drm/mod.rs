//! `/dev/dri`: the platform's GPUs as the software GPU answers for them, in the words of the
//! kernel's amdgpu driver.
//!
//! An open node is one end of a socket pair; all copies of the program's end closed is what ends
//! it. Its buffers are a [`gpu::Gem`] of the GPU that the sysfs tree shows for the node's number; a
//! dma-buf exported from one is the software GPU's own descriptor, so that registering it takes the
//! way of all GPU memory. The process joins the registry with the first export, whose control block
//! it makes known there.

mod cpu_map;
mod pages;
mod peer;
mod request;
mod sync;

pub use cpu_map::{is_device_memory, pins_for_child};
pub use pages::HostPages;
pub use peer::GpuPeer;

use crate::base::ffi::{Errno, INVALID, Res, contained, last_errno};
use crate::platform::{membership, place};
use descriptors::Kept;
use dmabuf::ControlBlocks;
use engine_thread::lock;
use gpu::{Gem, SoftwareGpu};
use registry::Client;
use rustix::io::Errno as System;
use std::collections::HashMap;
use std::ffi::{c_int, c_ulong, c_void};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard};

static DRM: shim::Drm =
    shim::Drm { open, ioctl, map, remap, sync, buffer_mode: dmabuf::MEMFD_MODE, closed };

/// One open node.
struct Node {
    minor: u32,
    gem: Mutex<Gem>,
    end: Kept,
}

/// Open nodes by inode number, and the GPUs that were opened by their address.
#[derive(Default)]
struct OpenNodes {
    nodes: HashMap<u64, Arc<Node>>,
    gpus: HashMap<pcie::Address, SoftwareGpu>,
}

static STATE: Mutex<Option<OpenNodes>> = Mutex::new(None);
/// The process whose nodes these are; a forked child has only copies of their descriptors.
static OWNER: AtomicU32 = AtomicU32::new(0);

/// Lets programs open the nodes, also those that call no verb.
extern "C" fn announce() {
    shim::set_drm(&DRM);
}

#[cfg_attr(not(test), used)]
#[cfg_attr(not(test), unsafe(link_section = ".init_array"))]
static ANNOUNCE: extern "C" fn() = announce;

/// In the process that `daemon(3)` made: the nodes are its own.
pub fn adopt() {
    OWNER.store(std::process::id(), Relaxed);
}

fn state() -> MutexGuard<'static, Option<OpenNodes>> {
    lock(&STATE)
}

fn is_owner() -> bool {
    OWNER.load(Relaxed) == std::process::id()
}

impl From<gpu::Error> for Errno {
    fn from(error: gpu::Error) -> Errno {
        crate::log!("{error}");
        Errno(error.errno())
    }
}

fn open(minor: u32, flags: c_int) -> Result<c_int, c_int> {
    contained(|| {
        if !is_owner() {
            forget_parents();
        }
        let gpu = gpu_of(minor)?;
        let (ours, theirs, inode) = socket(minor, flags)?;
        let node = Node { minor, gem: Mutex::new(Gem::new(gpu)), end: ours };
        state().get_or_insert_default().nodes.insert(inode, Arc::new(node));
        shim::count_nodes(1);
        Ok(theirs.into_raw_fd())
    })
    .map_err(|errno| errno.0)
}

/// In a forked child, before its first node: the parent's buffers are not to be freed here.
fn forget_parents() {
    if OWNER.swap(std::process::id(), Relaxed) != 0
        && let Ok(mut state) = STATE.try_lock()
    {
        std::mem::forget(state.take());
    }
}

/// The GPU that the tree shows for a node.
fn gpu_of(minor: u32) -> Res<SoftwareGpu> {
    let root = shim::sysfs_root().ok_or(Errno(libc::ENXIO))?;
    let link = root.join(format!("dev/char/{}:{minor}/device", sysfs::DRM_MAJOR));
    let device = std::fs::read_link(link).map_err(|_| Errno(libc::ENXIO))?;
    let name = device.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    gpu_at(name.parse().map_err(|_| Errno(libc::ENXIO))?)
}

/// The GPU at an address of the platform.
pub fn gpu_at(address: pcie::Address) -> Res<SoftwareGpu> {
    if !is_owner() {
        forget_parents();
    }
    let mut state = state();
    let gpus = &mut state.get_or_insert_default().gpus;
    if let Some(gpu) = gpus.get(&address) {
        return Ok(gpu.clone());
    }
    let gpu = SoftwareGpu::of(place::gpu(address)?, Arc::new(Controls::default()))?;
    gpus.insert(address, gpu.clone());
    Ok(gpu)
}

/// Our end, the program's, and the inode number of the latter.
fn socket(minor: u32, flags: c_int) -> Res<(Kept, OwnedFd, u64)> {
    let mut pair = [0; 2];
    let kind = libc::SOCK_STREAM | libc::SOCK_CLOEXEC;
    // SAFETY: two places for descriptors.
    if unsafe { libc::socketpair(libc::AF_UNIX, kind, 0, pair.as_mut_ptr()) } != 0 {
        return Err(last_errno());
    }
    // SAFETY: just made, and nobody else's.
    let [theirs, ours] = pair.map(|fd| unsafe { OwnedFd::from_raw_fd(fd) });
    let inode = shim::mark_node(theirs.as_raw_fd(), minor).ok_or(Errno(libc::EIO))?;
    // SAFETY: no pointers are passed.
    unsafe {
        if flags & libc::O_CLOEXEC == 0 {
            libc::fcntl(theirs.as_raw_fd(), libc::F_SETFD, 0);
        }
        if flags & libc::O_NONBLOCK != 0 {
            libc::fcntl(theirs.as_raw_fd(), libc::F_SETFL, libc::O_NONBLOCK);
        }
    }
    Ok((Kept::new(ours), theirs, inode))
}

fn node(inode: u64) -> Res<Arc<Node>> {
    if !is_owner() {
        return Err(Errno(libc::ENODEV));
    }
    let found = state().as_ref().and_then(|state| state.nodes.get(&inode).cloned());
    // A descriptor that came from another process: its buffers are there.
    found.ok_or(Errno(libc::ENODEV))
}

unsafe fn ioctl(inode: u64, request: c_ulong, argument: *mut c_void) -> Result<c_int, c_int> {
    contained(|| {
        mm::guard::install();
        let node = node(inode)?;
        // SAFETY: the program calls ioctl(2).
        unsafe { request::run(&node, request as u32, argument as u64) }
    })
    .map(|()| 0)
    .map_err(|errno| errno.0)
}

unsafe fn map(what: shim::Mapped, call: &shim::MapCall) -> Option<Result<*mut c_void, c_int>> {
    let found = contained(|| {
        let offset = u64::try_from(call.offset).map_err(|_| INVALID)?;
        match what {
            shim::Mapped::Node(inode) => {
                Ok(Some(node(inode)?.gem().mapping(offset, call.len as u64)?))
            }
            shim::Mapped::Buffer => Ok(cpu_map::imported(call.fd).map(|storage| (storage, offset))),
        }
    });
    match found {
        Ok(Some((storage, offset))) => {
            // SAFETY: the caller's promise.
            let mapped = contained(|| unsafe { cpu_map::map(storage, call, offset) });
            Some(mapped.map_err(|errno| errno.0))
        }
        Ok(None) => None,
        Err(errno) => Some(Err(errno.0)),
    }
}

/// Around an `mremap(2)` of a buffer's mapping, which goes at the old place and is watched at the
/// new one.
fn remap(call: &shim::RemapCall, system: &dyn Fn() -> *mut c_void) -> *mut c_void {
    let (old, old_len) = (call.old as u64, call.old_len as u64);
    let Some(moving) = cpu_map::hold(old, old_len) else { return system() };
    let stays = if call.keeps_old { cpu_map::hold(old, old_len) } else { None };
    let mapped = system();
    let (now, len) = match mapped {
        // refused, though it has been announced as gone
        libc::MAP_FAILED => (old, old_len),
        mapped => (mapped as u64, call.new_len as u64),
    };
    if now == old && len <= old_len && cpu_map::around(now, len.max(1)).is_some() {
        moving.end();
    } else {
        moving.settle(now, len);
    }
    match stays {
        Some(stays) if mapped != libc::MAP_FAILED => stays.settle(old, old_len),
        Some(stays) => stays.end(),
        None => {}
    }
    mapped
}

unsafe fn sync(fd: c_int, argument: *mut c_void) -> Result<c_int, c_int> {
    contained(|| sync::sync(fd, argument)).map(|()| 0).map_err(|errno| errno.0)
}

impl Node {
    fn gem(&self) -> MutexGuard<'_, Gem> {
        lock(&self.gem)
    }

    /// Whether it is a render node, which has no display.
    fn renders(&self) -> bool {
        self.minor >= sysfs::DRM_RENDER_BASE_MINOR
    }

    /// Whether no descriptor of the program's is left.
    fn is_closed(&self) -> bool {
        let mut poll = libc::pollfd { fd: self.end.as_raw_fd(), events: 0, revents: 0 };
        // SAFETY: one live pollfd.
        unsafe { libc::poll(&mut poll, 1, 0) == 1 && poll.revents & libc::POLLHUP != 0 }
    }
}

/// A descriptor was closed; if it was a node's last, its buffers go.
fn closed(inode: Option<u64>) {
    if !is_owner() {
        return;
    }
    let _ = contained(|| {
        let mut ended = Vec::new();
        if let Some(state) = state().as_mut() {
            let is_meant = |number: u64| inode.is_none_or(|inode| inode == number);
            state.nodes.retain(|number, node| {
                let ends = is_meant(*number) && node.is_closed();
                if ends {
                    ended.push(node.clone());
                }
                !ends
            });
        }
        shim::count_nodes(-(ended.len() as isize));
        // Outside the lock: the registry's client may end with the last buffer.
        drop(ended);
        Ok(())
    });
}

/// Control blocks through the registry. Its client stays as long as a block is known there.
#[derive(Default)]
struct Controls(Mutex<HashMap<u64, Arc<Client>>>);

impl ControlBlocks for Controls {
    fn publish(&self, id: u64, control: BorrowedFd<'_>) -> Result<(), System> {
        let registry = registry()?;
        ControlBlocks::publish(&*registry, id, control)?;
        lock(&self.0).insert(id, registry);
        Ok(())
    }

    fn withdraw(&self, id: u64) {
        let registry = lock(&self.0).remove(&id);
        if let Some(registry) = registry {
            ControlBlocks::withdraw(&*registry, id);
        }
    }

    fn lookup(&self, id: u64) -> Result<Option<OwnedFd>, System> {
        ControlBlocks::lookup(&*registry()?, id)
    }
}

fn registry() -> Result<Arc<Client>, System> {
    membership::registry().map_err(|errno| System::from_raw_os_error(errno.0))
}
