//! NETLINK_RDMA: the sockets by which `rdma` of iproute2, librdmacm and UCX ask the kernel for RDMA
//! devices.
//!
//! Such a socket is made as one between programs (NETLINK_USERSOCK), so that binding, waiting and
//! receiving are the kernel's own, and its permission bits mark it. What the program sends to the
//! kernel on it is answered by a callback ([`set_rdma_netlink`]). Until the first of them is made,
//! the functions here cost one load.

use core::ffi::{c_int, c_void};
use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering};

use libc::{iovec, mode_t, msghdr, size_t, sockaddr, sockaddr_nl, socklen_t, ssize_t};

/// Who answers for the kernel.
pub struct RdmaNetlink {
    /// Takes the requests that a program sends on a socket, and puts the answers where it receives
    /// them; as `sendmsg(2)`, errno included.
    ///
    /// # Safety
    /// The pointer is to as many elements as the count says; the memory they name need not be
    /// readable.
    pub request: unsafe extern "C-unwind" fn(c_int, *const iovec, size_t) -> ssize_t,
}

static RDMA_NETLINK: AtomicPtr<RdmaNetlink> = AtomicPtr::new(core::ptr::null_mut());
/// There was such a socket in this process.
static ANY: AtomicBool = AtomicBool::new(false);
/// Descriptors that such a socket was made with, one bit each. A copy that the program made
/// elsewhere has none.
static MADE: [AtomicU64; 64] = [const { AtomicU64::new(0) }; 64];

/// Permission bits that nobody gives a socket.
const MARK: mode_t = 0o1752;

/// Sets who answers. It stays set in a forked child.
pub fn set_rdma_netlink(rdma_netlink: &'static RdmaNetlink) {
    RDMA_NETLINK.store(core::ptr::from_ref(rdma_netlink).cast_mut(), Ordering::Release);
}

fn rdma_netlink() -> Option<&'static RdmaNetlink> {
    // SAFETY: null or from a static reference.
    unsafe { RDMA_NETLINK.load(Ordering::Acquire).as_ref() }
}

fn made(fd: c_int) -> Option<(&'static AtomicU64, u64)> {
    let fd = usize::try_from(fd).ok()?;
    Some((MADE.get(fd / 64)?, 1 << (fd % 64)))
}

fn is_marked(fd: c_int) -> bool {
    let mut stat = MaybeUninit::<libc::stat>::uninit();
    if system!(SYS_fstat, fd, stat.as_mut_ptr()) != 0 {
        return false;
    }
    // SAFETY: filled by the call above.
    unsafe { stat.assume_init() }.st_mode == libc::S_IFSOCK | MARK
}

/// Who answers what is sent on `fd` without an address.
#[inline]
fn unaddressed(fd: c_int) -> Option<&'static RdmaNetlink> {
    if !ANY.load(Ordering::Relaxed) {
        return None;
    }
    let (word, bit) = made(fd)?;
    if word.load(Ordering::Relaxed) & bit == 0 {
        return None;
    }
    if !is_marked(fd) {
        // The number is another file's by now.
        word.fetch_and(!bit, Ordering::Relaxed);
        return None;
    }
    rdma_netlink()
}

/// Who answers what is sent on `fd` to the address of `len` bytes at `to`.
///
/// # Safety
/// `to` is null or an address of that length, as a caller of `sendto` promises.
unsafe fn addressed(fd: c_int, to: *const c_void, len: socklen_t) -> Option<&'static RdmaNetlink> {
    if !ANY.load(Ordering::Relaxed) {
        return None;
    }
    if to.is_null() {
        return unaddressed(fd);
    }
    if (len as usize) < size_of::<sockaddr_nl>() {
        return None;
    }
    // SAFETY: as long as that, by the caller's promise.
    let to = unsafe { to.cast::<sockaddr_nl>().read_unaligned() };
    let to_kernel = c_int::from(to.nl_family) == libc::AF_NETLINK && to.nl_pid == 0;
    if to_kernel && is_marked(fd) { rdma_netlink() } else { None }
}

/// What `write(2)` to `fd` comes to, if it is such a socket.
///
/// # Safety
/// The buffer need not be readable.
pub(crate) unsafe fn written(fd: c_int, buffer: *const c_void, len: size_t) -> Option<ssize_t> {
    let answerer = unaddressed(fd)?;
    let part = iovec { iov_base: buffer.cast_mut(), iov_len: len };
    // SAFETY: one element.
    Some(unsafe { (answerer.request)(fd, &part, 1) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    let asks = domain == libc::AF_NETLINK && protocol == libc::NETLINK_RDMA;
    if !asks || rdma_netlink().is_none() {
        return pass!(SOCKET(domain, kind, protocol), SYS_socket, domain, kind, protocol);
    }
    let fd = system!(SYS_socket, domain, kind, libc::NETLINK_USERSOCK) as c_int;
    if fd < 0 {
        return fd;
    }
    if system!(SYS_fchmod, fd, MARK) != 0 {
        system!(SYS_close, fd);
        return crate::errno::fail(libc::EPROTONOSUPPORT);
    }
    if let Some((word, bit)) = made(fd) {
        word.fetch_or(bit, Ordering::Relaxed);
    }
    ANY.store(true, Ordering::Relaxed);
    fd
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn send(
    fd: c_int,
    buffer: *const c_void,
    len: size_t,
    flags: c_int,
) -> ssize_t {
    // SAFETY: it checks the buffer.
    if let Some(sent) = unsafe { written(fd, buffer, len) } {
        return sent;
    }
    pass!(SEND(fd, buffer, len, flags), SYS_sendto, fd, buffer, len, flags, 0, 0)
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn sendto(
    fd: c_int,
    buffer: *const c_void,
    len: size_t,
    flags: c_int,
    to: *const sockaddr,
    to_len: socklen_t,
) -> ssize_t {
    // SAFETY: the caller's address.
    if let Some(answerer) = unsafe { addressed(fd, to.cast(), to_len) } {
        let part = iovec { iov_base: buffer.cast_mut(), iov_len: len };
        // SAFETY: one element.
        return unsafe { (answerer.request)(fd, &part, 1) };
    }
    pass!(
        SENDTO(fd, buffer, len, flags, to, to_len),
        SYS_sendto,
        fd,
        buffer,
        len,
        flags,
        to,
        to_len
    )
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t {
    if ANY.load(Ordering::Relaxed) && !message.is_null() {
        // SAFETY: the caller's message.
        let parts = unsafe { &*message };
        // SAFETY: the caller's address.
        if let Some(answerer) = unsafe { addressed(fd, parts.msg_name, parts.msg_namelen) } {
            // SAFETY: the caller's array.
            return unsafe { (answerer.request)(fd, parts.msg_iov, parts.msg_iovlen as size_t) };
        }
    }
    pass!(SENDMSG(fd, message, flags), SYS_sendmsg, fd, message, flags)
}
