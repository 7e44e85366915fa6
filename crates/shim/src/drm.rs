//! `/dev/dri`: the nodes that the software GPUs answer at.
//!
//! An open node is a socket whose other end is the engine's: it can be polled and duplicated, and
//! the engine sees when its last copy is closed. Its permission bits mark it and hold the node's
//! minor number ([`mark_node`]). Requests of `ioctl(2)` and mappings of such a descriptor are
//! answered by callbacks ([`set_drm`]); while no node is open, the functions here cost one load.

use core::ffi::{c_int, c_ulong, c_void};
use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

use libc::{dev_t, mode_t, off_t};

use crate::errno::{errno, fail, set_errno};

/// What a program maps.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mapped {
    /// The node of an inode number.
    Node(u64),
    /// A buffer by its descriptor.
    Buffer,
}

/// The arguments of `mmap(2)`.
#[derive(Clone, Copy, Debug)]
pub struct MapCall {
    /// Where to, or a hint.
    pub address: *mut c_void,
    /// Length in bytes.
    pub len: usize,
    /// `PROT_*`.
    pub protection: c_int,
    /// `MAP_*`.
    pub flags: c_int,
    /// What.
    pub fd: c_int,
    /// From where in it.
    pub offset: off_t,
}

/// The arguments of `mremap(2)`, as far as mappings of buffers ask.
#[derive(Clone, Copy, Debug)]
pub struct RemapCall {
    /// Where it is.
    pub old: *mut c_void,
    /// Its length in bytes.
    pub old_len: usize,
    /// The length it is to have.
    pub new_len: usize,
    /// Whether the old place stays mapped (`MREMAP_DONTUNMAP`).
    pub keeps_old: bool,
}

/// Who answers for the GPUs' nodes. Errors are errno values.
pub struct Drm {
    /// Opens the node of a minor number with the flags of `open(2)`: a descriptor that was marked.
    pub open: fn(u32, c_int) -> Result<c_int, c_int>,
    /// `ioctl(2)` on the node of an inode number.
    ///
    /// # Safety
    /// The argument need not point to memory.
    pub ioctl: unsafe fn(u64, c_ulong, *mut c_void) -> Result<c_int, c_int>,
    /// `mmap(2)` of a node, or of a buffer's descriptor; `None` leaves it to the system.
    ///
    /// # Safety
    /// As for `mmap(2)`.
    pub map: unsafe fn(Mapped, &MapCall) -> Option<Result<*mut c_void, c_int>>,
    /// Makes a call of `mremap(2)`, and answers what it did.
    pub remap: fn(&RemapCall, &dyn Fn() -> *mut c_void) -> *mut c_void,
    /// `DMA_BUF_IOCTL_SYNC` with this argument on a buffer's descriptor.
    ///
    /// # Safety
    /// The argument need not point to memory.
    pub sync: unsafe fn(c_int, *mut c_void) -> Result<c_int, c_int>,
    /// Permission bits that mark a buffer's memory file.
    pub buffer_mode: mode_t,
    /// A descriptor of the node of this inode number was closed, or perhaps of any.
    pub closed: fn(Option<u64>),
}

static DRM: AtomicPtr<Drm> = AtomicPtr::new(core::ptr::null_mut());
static NODES: AtomicUsize = AtomicUsize::new(0);

/// Permission bits that nobody gives a socket; the other nine are the minor number.
const MARK: mode_t = 0o7000;
const MINOR: mode_t = 0o777;

/// Sets who answers. It stays set in a forked child.
pub fn set_drm(drm: &'static Drm) {
    DRM.store(core::ptr::from_ref(drm).cast_mut(), Ordering::Release);
}

/// Counts open nodes.
pub fn count_nodes(by: isize) {
    NODES.fetch_add(by as usize, Ordering::Relaxed);
}

/// Marks a new socket as the node of a minor number below 512 and answers its inode number.
pub fn mark_node(fd: c_int, minor: u32) -> Option<u64> {
    let minor = mode_t::try_from(minor).ok().filter(|minor| *minor <= MINOR)?;
    if system!(SYS_fchmod, fd, MARK | minor) != 0 {
        return None;
    }
    stat(fd).filter(is_node).map(|stat| stat.st_ino)
}

fn drm() -> Option<&'static Drm> {
    // SAFETY: null or from a static reference.
    unsafe { DRM.load(Ordering::Acquire).as_ref() }
}

pub(crate) fn open(minor: u32, flags: c_int) -> c_int {
    let Some(drm) = drm() else { return fail(libc::ENXIO) };
    (drm.open)(minor, flags).unwrap_or_else(fail)
}

/// Device number of a node.
pub(crate) fn device(minor: u32) -> dev_t {
    libc::makedev(sysfs::DRM_MAJOR, minor)
}

fn stat(fd: c_int) -> Option<libc::stat> {
    let mut stat = MaybeUninit::<libc::stat>::uninit();
    // SAFETY: filled when the call succeeds.
    (system!(SYS_fstat, fd, stat.as_mut_ptr()) == 0).then(|| unsafe { stat.assume_init() })
}

fn is_node(stat: &libc::stat) -> bool {
    stat.st_mode & !MINOR == libc::S_IFSOCK | MARK
}

/// The inode number of an open node's descriptor.
#[inline]
pub(crate) fn node(fd: c_int) -> Option<u64> {
    if NODES.load(Ordering::Relaxed) == 0 {
        return None;
    }
    stat(fd).filter(is_node).map(|stat| stat.st_ino)
}

/// Reports that a descriptor of a node was closed.
pub(crate) fn closed(inode: u64) {
    if let Some(drm) = drm() {
        (drm.closed)(Some(inode));
    }
}

/// Reports that many descriptors were closed.
pub(crate) fn many_closed() {
    if NODES.load(Ordering::Relaxed) != 0
        && let Some(drm) = drm()
    {
        (drm.closed)(None);
    }
}

/// Makes what fstat says of a node's socket what it would say of the node.
pub(crate) fn disguise(stat: &mut libc::stat) {
    if NODES.load(Ordering::Relaxed) != 0 && is_node(stat) {
        stat.st_rdev = device(stat.st_mode & MINOR);
        stat.st_mode = libc::S_IFCHR | 0o666;
    }
}

/// `DMA_BUF_IOCTL_SYNC` (`include/uapi/linux/dma-buf.h`): `_IOW('b', 0, struct dma_buf_sync)`.
const DMA_BUF_IOCTL_SYNC: c_ulong = 1 << 30 | 8 << 16 | (b'b' as c_ulong) << 8;

/// The answer to a request that is not the system's.
#[inline]
fn answered(fd: c_int, request: c_ulong, argument: *mut c_void) -> Option<c_int> {
    let inode = node(fd);
    if inode.is_none() && request != DMA_BUF_IOCTL_SYNC {
        return None;
    }
    let drm = drm()?;
    let before = errno();
    let answer = match inode {
        // SAFETY: it checks the argument.
        Some(inode) => unsafe { (drm.ioctl)(inode, request, argument) },
        // SAFETY: as above.
        None if is_buffer(&stat(fd)?, drm) => unsafe { (drm.sync)(fd, argument) },
        None => return None,
    };
    Some(answer.map_or_else(fail, |code| {
        set_errno(before);
        code
    }))
}

fn is_buffer(stat: &libc::stat, drm: &Drm) -> bool {
    stat.st_mode == libc::S_IFREG | drm.buffer_mode
}

/// Variadic in C. Its third argument is passed in the same register as a named one on the
/// architectures supported.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn ioctl(fd: c_int, request: c_ulong, argument: *mut c_void) -> c_int {
    if let Some(answer) = answered(fd, request, argument) {
        return answer;
    }
    pass!(IOCTL(fd, request, argument), SYS_ioctl, fd, request, argument)
}

/// Makes a call of `mremap(2)`, with whoever answers for the buffer that may be mapped there.
#[inline]
pub(crate) fn remap(call: &RemapCall, system: &dyn Fn() -> *mut c_void) -> *mut c_void {
    match drm() {
        Some(drm) => (drm.remap)(call, system),
        None => system(),
    }
}

/// Maps what is a node's or a buffer's; `None` leaves the call to the system.
#[inline]
pub(crate) fn map(call: &MapCall) -> Option<*mut c_void> {
    if call.fd < 0 || call.flags & libc::MAP_ANONYMOUS != 0 {
        return None;
    }
    let drm = drm()?;
    // Libraries and data files are mapped privately.
    let shared = call.flags & libc::MAP_TYPE != libc::MAP_PRIVATE;
    if !shared && NODES.load(Ordering::Relaxed) == 0 {
        return None;
    }
    let stat = stat(call.fd)?;
    let what = if is_node(&stat) {
        Mapped::Node(stat.st_ino)
    } else if shared && is_buffer(&stat, drm) {
        Mapped::Buffer
    } else {
        return None;
    };
    // SAFETY: the caller's own arguments.
    let mapped = unsafe { (drm.map)(what, call) }?;
    Some(mapped.unwrap_or_else(|errno| {
        set_errno(errno);
        libc::MAP_FAILED
    }))
}
