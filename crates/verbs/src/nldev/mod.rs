//! NETLINK_RDMA, as `rdma` of iproute2 and UCX speak it: which devices there are, their ports, who
//! uses them.
//!
//! The shim makes the program's socket and hands over what is sent on it ([`request`]); [`answer`]
//! says what that comes to, from what [`world`] finds, and it is sent from another socket to where
//! the program receives. The program's socket is connected to that one, so that nobody else on the
//! machine can answer.

mod answer;
mod message;
mod world;

use crate::base::ffi::{Errno, INVALID, Res, contained, last_errno, set_errno};
use std::ffi::c_int;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::Duration;

static RDMA_NETLINK: shim::RdmaNetlink = shim::RdmaNetlink { request };

/// Most bytes of a request, as the kernel's default for a socket's send buffer would have it.
const MAX_REQUEST: usize = 64 << 10;
/// Most elements of a gather list (UIO_MAXIOV).
const MAX_PARTS: usize = 1024;
/// How long a program that does not read may hold up the rest of an answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// Stack of the thread that sends such a rest.
const STACK_BYTES: usize = 64 << 10;

/// `rdma` calls no verb, so the callbacks are set before the program begins.
#[cfg(not(test))]
#[used]
#[unsafe(link_section = ".init_array")]
static ANNOUNCE: extern "C" fn() = announce;

#[cfg_attr(test, allow(dead_code))]
extern "C" fn announce() {
    shim::set_rdma_netlink(&RDMA_NETLINK);
}

unsafe extern "C-unwind" fn request(fd: c_int, parts: *const libc::iovec, count: usize) -> isize {
    let answered = contained(|| {
        crate::edge::start::start();
        mm::guard::install();
        // SAFETY: the caller's array.
        let request = unsafe { gathered(parts, count) }?;
        let socket = Answering::to(fd)?;
        socket.send(answer::answers(&request, socket.program, &world::Here))?;
        Ok(request.len() as isize)
    });
    answered.unwrap_or_else(|errno| {
        set_errno(errno);
        -1
    })
}

/// All bytes of a gather list; EFAULT where there is no memory.
///
/// # Safety
/// `parts` is null or to `count` elements.
unsafe fn gathered(parts: *const libc::iovec, count: usize) -> Res<Vec<u8>> {
    if count > MAX_PARTS || (parts.is_null() && count > 0) {
        return Err(INVALID);
    }
    let mut bytes = Vec::new();
    for index in 0..count {
        // SAFETY: within the array, by the caller's promise.
        let part = unsafe { *parts.add(index) };
        let start = bytes.len();
        let end = start.checked_add(part.iov_len).filter(|&end| end <= MAX_REQUEST);
        bytes.resize(end.ok_or(Errno(libc::EMSGSIZE))?, 0);
        // SAFETY: the program names its request there: sendmsg(2).
        let from = unsafe { mm::Source::vouched(part.iov_base as u64, part.iov_len as u64) };
        from.read(&mut bytes[start..]).map_err(|_| Errno(libc::EFAULT))?;
    }
    Ok(bytes)
}

/// The socket that an answer comes from.
struct Answering {
    socket: OwnedFd,
    /// Where the program receives.
    program: u32,
}

impl Answering {
    /// One to which `fd`, the program's socket, is connected.
    fn to(fd: c_int) -> Res<Answering> {
        let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC;
        // SAFETY: no pointers.
        let socket = unsafe { libc::socket(libc::AF_NETLINK, kind, libc::NETLINK_USERSOCK) };
        if socket < 0 {
            return Err(last_errno());
        }
        // SAFETY: just made, and nobody else's.
        let socket = unsafe { OwnedFd::from_raw_fd(socket) };
        let ours = bind_apart(socket.as_raw_fd())?;
        if port_of(fd)? == 0 {
            bind(fd, 0)?;
        }
        let address = address(ours);
        // SAFETY: a live address of the length given.
        let connected = unsafe { libc::connect(fd, (&raw const address).cast(), ADDRESS_BYTES) };
        if connected != 0 {
            return Err(last_errno());
        }
        let patience = libc::timeval { tv_sec: PATIENCE.as_secs() as i64, tv_usec: 0 };
        set(socket.as_raw_fd(), libc::SO_SNDTIMEO, &patience);
        Ok(Answering { program: port_of(fd)?, socket })
    }

    /// Sends what the program's receive buffer takes at once, and the rest as it reads.
    fn send(&self, datagrams: Vec<Vec<u8>>) -> Res<()> {
        let mut datagrams = datagrams.into_iter();
        while let Some(datagram) = datagrams.next() {
            match say(self.socket.as_raw_fd(), self.program, &datagram, libc::MSG_DONTWAIT) {
                Err(Errno(libc::EAGAIN)) => {
                    let socket = self.socket.try_clone().map_err(|_| Errno(libc::EMFILE))?;
                    let program = self.program;
                    let rest: Vec<_> = [datagram].into_iter().chain(datagrams).collect();
                    let go_on = move || {
                        for datagram in rest {
                            // A program that closed its socket, or does not read, gets no more.
                            if say(socket.as_raw_fd(), program, &datagram, 0).is_err() {
                                return;
                            }
                        }
                    };
                    let started = engine_thread::spawn(c"peerdma-netlink", STACK_BYTES, go_on);
                    return started.map(drop).map_err(|_| Errno(libc::ENOBUFS));
                }
                done => done?,
            }
        }
        Ok(())
    }
}

const ADDRESS_BYTES: libc::socklen_t = size_of::<libc::sockaddr_nl>() as libc::socklen_t;

fn address(port: u32) -> libc::sockaddr_nl {
    // SAFETY: all-zero is a valid value: every member is an integer.
    let mut address: libc::sockaddr_nl = unsafe { std::mem::zeroed() };
    address.nl_family = libc::AF_NETLINK as libc::sa_family_t;
    address.nl_pid = port;
    address
}

fn bind(fd: c_int, port: u32) -> Res<()> {
    let address = address(port);
    // SAFETY: a live address of the length given.
    match unsafe { libc::bind(fd, (&raw const address).cast(), ADDRESS_BYTES) } {
        0 => Ok(()),
        _ => Err(last_errno()),
    }
}

/// Binds to a port that no program chooses: those are process numbers, or made from them.
fn bind_apart(fd: c_int) -> Res<u32> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let start = std::process::id().wrapping_mul(0x9e37_79b9);
    for _ in 0..256 {
        let port = start.wrapping_add(NEXT.fetch_add(1, Relaxed)) | 1 << 31;
        match bind(fd, port) {
            Err(Errno(libc::EADDRINUSE)) => {}
            done => return done.map(|()| port),
        }
    }
    Err(Errno(libc::EADDRINUSE))
}

fn port_of(fd: c_int) -> Res<u32> {
    let mut address = address(0);
    let mut len = ADDRESS_BYTES;
    // SAFETY: a live address of the length given.
    match unsafe { libc::getsockname(fd, (&raw mut address).cast(), &mut len) } {
        0 => Ok(address.nl_pid),
        _ => Err(last_errno()),
    }
}

fn set<T>(fd: c_int, option: c_int, value: &T) {
    let len = size_of::<T>() as libc::socklen_t;
    // SAFETY: a live value of the length given.
    unsafe {
        libc::setsockopt(fd, libc::SOL_SOCKET, option, std::ptr::from_ref(value).cast(), len)
    };
}

fn say(fd: c_int, to: u32, datagram: &[u8], flags: c_int) -> Res<()> {
    let to = address(to);
    let (at, len) = (datagram.as_ptr().cast(), datagram.len());
    // SAFETY: live bytes and a live address of the lengths given.
    let sent = unsafe { libc::sendto(fd, at, len, flags, (&raw const to).cast(), ADDRESS_BYTES) };
    if sent < 0 { Err(last_errno()) } else { Ok(()) }
}
