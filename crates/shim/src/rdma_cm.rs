//! `/dev/infiniband/rdma_cm`: the descriptors that librdmacm writes its commands to.
//!
//! An open channel is a socket whose other end is the engine's, so that it can be polled,
//! duplicated and made non-blocking, and so that the engine sees when its last copy is closed. Its
//! permission bits mark it ([`mark`]); while no channel is open, the functions here cost one load.

use core::ffi::{c_int, c_void};
use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering};

use libc::{dev_t, mode_t, size_t, ssize_t};

use crate::errno::fail;
use crate::{drm, netlink};

/// Who answers for the connection manager's device.
pub struct RdmaCm {
    /// Opens a channel with the flags of `open(2)`: a descriptor that was marked, or an errno.
    pub open: fn(c_int) -> Result<c_int, c_int>,
    /// `write(2)` to the channel of an inode number; sets errno. A cancellation point where it
    /// waits.
    ///
    /// # Safety
    /// The buffer need not be readable.
    pub write: unsafe extern "C-unwind" fn(c_int, u64, *const c_void, size_t) -> ssize_t,
    /// A descriptor of the channel of this inode number was closed, or perhaps of any.
    pub closed: fn(Option<u64>),
}

static RDMA_CM: AtomicPtr<RdmaCm> = AtomicPtr::new(core::ptr::null_mut());
static CHANNELS: AtomicUsize = AtomicUsize::new(0);

/// Permission bits that nobody gives a socket.
const MARK: mode_t = 0o1753;

/// Sets who answers. It stays set in a forked child.
pub fn set_rdma_cm(rdma_cm: &'static RdmaCm) {
    RDMA_CM.store(core::ptr::from_ref(rdma_cm).cast_mut(), Ordering::Release);
}

/// Counts open channels.
pub fn count_channels(by: isize) {
    CHANNELS.fetch_add(by as usize, Ordering::Relaxed);
}

/// Marks a new socket as a channel and answers its inode number.
pub fn mark(fd: c_int) -> Option<u64> {
    if system!(SYS_fchmod, fd, MARK) != 0 {
        return None;
    }
    inode_of_channel(fd)
}

fn rdma_cm() -> Option<&'static RdmaCm> {
    // SAFETY: null or from a static reference.
    unsafe { RDMA_CM.load(Ordering::Acquire).as_ref() }
}

pub(crate) fn open(flags: c_int) -> c_int {
    let Some(rdma_cm) = rdma_cm() else { return fail(libc::ENXIO) };
    (rdma_cm.open)(flags).unwrap_or_else(fail)
}

/// The device's number: the kernel's own where its connection manager is loaded too, which
/// librdmacm then asks over netlink.
pub(crate) fn device() -> dev_t {
    static DEVICE: AtomicU64 = AtomicU64::new(0);
    let known = DEVICE.load(Ordering::Relaxed);
    if known != 0 {
        return known;
    }
    let device = kernels_device().unwrap_or(libc::makedev(sysfs::MISC_MAJOR, sysfs::RDMA_CM_MINOR));
    DEVICE.store(device, Ordering::Relaxed);
    device
}

fn kernels_device() -> Option<dev_t> {
    let path = c"/sys/class/misc/rdma_cm/dev";
    let fd = system!(SYS_openat, libc::AT_FDCWD, path.as_ptr(), libc::O_CLOEXEC);
    if fd < 0 {
        return None;
    }
    let mut text = [0u8; 32];
    let len = system!(SYS_read, fd, text.as_mut_ptr(), text.len());
    system!(SYS_close, fd);
    let text = core::str::from_utf8(text.get(..usize::try_from(len).ok()?)?).ok()?;
    let (major, minor) = text.trim_end().split_once(':')?;
    Some(libc::makedev(major.parse().ok()?, minor.parse().ok()?))
}

fn is_channel(stat: &libc::stat) -> bool {
    stat.st_mode == libc::S_IFSOCK | MARK
}

/// The inode number of a channel, if `fd` is a descriptor of one.
pub fn inode_of_channel(fd: c_int) -> Option<u64> {
    let mut stat = MaybeUninit::<libc::stat>::uninit();
    if system!(SYS_fstat, fd, stat.as_mut_ptr()) != 0 {
        return None;
    }
    // SAFETY: filled by the call above.
    let stat = unsafe { stat.assume_init() };
    is_channel(&stat).then_some(stat.st_ino)
}

/// The inode number of an open channel's descriptor.
#[inline]
pub(crate) fn channel(fd: c_int) -> Option<u64> {
    if CHANNELS.load(Ordering::Relaxed) == 0 {
        return None;
    }
    inode_of_channel(fd)
}

/// Reports that a descriptor of a channel was closed.
pub(crate) fn closed(inode: u64) {
    if let Some(rdma_cm) = rdma_cm() {
        (rdma_cm.closed)(Some(inode));
    }
}

/// Reports that many descriptors were closed.
pub(crate) fn many_closed() {
    if CHANNELS.load(Ordering::Relaxed) != 0
        && let Some(rdma_cm) = rdma_cm()
    {
        (rdma_cm.closed)(None);
    }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn write(fd: c_int, buffer: *const c_void, len: size_t) -> ssize_t {
    if let Some(inode) = channel(fd)
        && let Some(rdma_cm) = rdma_cm()
    {
        // SAFETY: it checks the buffer.
        return unsafe { (rdma_cm.write)(fd, inode, buffer, len) };
    }
    // SAFETY: it checks the buffer.
    if let Some(sent) = unsafe { netlink::written(fd, buffer, len) } {
        return sent;
    }
    pass!(WRITE(fd, buffer, len), SYS_write, fd, buffer, len)
}

/// Makes what fstat says of a channel or a GPU's node what it would say of the device.
///
/// # Safety
/// `stat` was filled.
unsafe fn disguise(code: c_int, stat: *mut libc::stat) -> c_int {
    if code == 0 {
        // SAFETY: as the caller promises.
        let stat = unsafe { &mut *stat };
        drm::disguise(stat);
        if CHANNELS.load(Ordering::Relaxed) != 0 && is_channel(stat) {
            stat.st_mode = libc::S_IFCHR | 0o666;
            stat.st_rdev = device();
        }
    }
    code
}

macro_rules! fstat_functions {
    ($($fstat:ident $fxstat:ident)*) => {$(
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $fstat(fd: c_int, stat: *mut libc::stat) -> c_int {
            let code = pass!(FSTAT(fd, stat), SYS_fstat, fd, stat);
            // SAFETY: filled when the code says so.
            unsafe { disguise(code, stat) }
        }

        #[unsafe(no_mangle)]
        unsafe extern "C" fn $fxstat(version: c_int, fd: c_int, stat: *mut libc::stat) -> c_int {
            let code = pass!(FXSTAT(version, fd, stat), SYS_fstat, fd, stat);
            // SAFETY: filled when the code says so.
            unsafe { disguise(code, stat) }
        }
    )*};
}

fstat_functions!(fstat __fxstat fstat64 __fxstat64);
