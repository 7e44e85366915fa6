//! The system calls of the UDP path that rustix does not offer: `sendmmsg`, `recvmmsg` and the UDP
//! socket options. Unsafe code is here and in `packet`, a CRC kernel apart; the rest hands in and
//! gets slices.

use crate::socket::buffer;
use crate::socket::cmsg::Control;
use crate::socket::name::Name;
use std::io;
use std::mem;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr;
use wire::guard;

/// Most messages of one [`send`].
pub(crate) const MAX_SEND: usize = 16;
/// Most messages of one [`Slots::receive`].
pub(crate) const MAX_RECEIVE: usize = 16;
/// Room for one received message: the longest UDP datagram or GRO train fits.
pub(crate) const SLOT_BYTES: usize = 65536;

/// A message on its way out.
pub(crate) struct Outgoing<'a> {
    pub(crate) to: &'a Name,
    pub(crate) control: &'a Control,
    pub(crate) bytes: &'a [u8],
}

/// Sends up to [`MAX_SEND`] messages in order, waiting for room in the socket's buffer. Answers how
/// many the kernel took, or why it refused the first.
pub(crate) fn send<'a>(
    fd: BorrowedFd<'_>,
    messages: impl Iterator<Item = Outgoing<'a>>,
) -> io::Result<usize> {
    let mut vectors = [libc::iovec { iov_base: ptr::null_mut(), iov_len: 0 }; MAX_SEND];
    // SAFETY: mmsghdr is plain C data for which all zeroes is a valid value.
    let mut headers: [libc::mmsghdr; MAX_SEND] = unsafe { mem::zeroed() };
    let mut count = 0;
    for ((message, vector), header) in messages.zip(&mut vectors).zip(&mut headers) {
        vector.iov_base = message.bytes.as_ptr().cast_mut().cast();
        vector.iov_len = message.bytes.len();
        let header = &mut header.msg_hdr;
        header.msg_name = message.to.as_bytes().as_ptr().cast_mut().cast();
        header.msg_namelen = message.to.as_bytes().len() as libc::socklen_t;
        header.msg_iov = vector;
        header.msg_iovlen = 1;
        header.msg_control = message.control.as_bytes().as_ptr().cast_mut().cast();
        header.msg_controllen = message.control.as_bytes().len() as _;
        count += 1;
    }
    loop {
        // SAFETY: the first `count` headers point at vectors, names, control messages and bytes
        // that live through this call with the lengths given; sendmmsg only reads through them.
        let sent = unsafe { libc::sendmmsg(fd.as_raw_fd(), headers.as_mut_ptr(), count, 0) };
        if sent >= 0 {
            return Ok(sent as usize);
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

/// Buffers for received messages.
pub(crate) struct Slots {
    bytes: Box<[u8]>,
    infos: Box<[Info]>,
}

/// What the kernel says about a received message.
#[derive(Clone, Copy)]
struct Info {
    from: Name,
    control: Control,
    len: usize,
    cut: bool,
}

/// A received message.
pub(crate) struct Incoming<'a> {
    pub(crate) from: &'a Name,
    pub(crate) control: &'a Control,
    pub(crate) bytes: &'a [u8],
    /// The message or its control messages were longer than our buffers.
    pub(crate) cut: bool,
}

impl Slots {
    pub(crate) fn new() -> io::Result<Slots> {
        let info = Info { from: Name::EMPTY, control: Control::new(), len: 0, cut: false };
        Ok(Slots {
            bytes: buffer::zeroed(MAX_RECEIVE * SLOT_BYTES)?,
            infos: buffer::filled(info, MAX_RECEIVE)?,
        })
    }

    /// Takes up to `limit` waiting messages without waiting for any, and answers how many.
    pub(crate) fn receive(&mut self, fd: BorrowedFd<'_>, limit: usize) -> io::Result<usize> {
        let mut vectors = [libc::iovec { iov_base: ptr::null_mut(), iov_len: 0 }; MAX_RECEIVE];
        // SAFETY: mmsghdr is plain C data for which all zeroes is a valid value.
        let mut headers: [libc::mmsghdr; MAX_RECEIVE] = unsafe { mem::zeroed() };
        let slots = self.bytes.chunks_exact_mut(SLOT_BYTES).zip(&mut self.infos).take(limit);
        let mut count = 0;
        for (((bytes, info), vector), header) in slots.zip(&mut vectors).zip(&mut headers) {
            vector.iov_base = bytes.as_mut_ptr().cast();
            vector.iov_len = bytes.len();
            let header = &mut header.msg_hdr;
            header.msg_name = info.from.space().as_mut_ptr().cast();
            header.msg_namelen = info.from.space().len() as libc::socklen_t;
            header.msg_iov = vector;
            header.msg_iovlen = 1;
            header.msg_control = info.control.space().as_mut_ptr().cast();
            header.msg_controllen = info.control.space().len() as _;
            count += 1;
        }
        let received = loop {
            // SAFETY: the first `count` headers point at vectors, names, control buffers and slots
            // of `self`, which is borrowed exclusively, with their true lengths.
            let received = unsafe {
                libc::recvmmsg(
                    fd.as_raw_fd(),
                    headers.as_mut_ptr(),
                    count,
                    libc::MSG_DONTWAIT as _,
                    ptr::null_mut(),
                )
            };
            if received >= 0 {
                break received as usize;
            }
            let error = io::Error::last_os_error();
            match error.kind() {
                io::ErrorKind::Interrupted => {}
                io::ErrorKind::WouldBlock => break 0,
                _ => return Err(error),
            }
        };
        for (info, header) in self.infos.iter_mut().zip(&headers[..received]) {
            info.len = (header.msg_len as usize).min(SLOT_BYTES);
            let header = &header.msg_hdr;
            info.from.set_len(header.msg_namelen as usize);
            info.control.set_len(header.msg_controllen as _);
            info.cut = header.msg_flags & (libc::MSG_TRUNC | libc::MSG_CTRUNC) != 0;
        }
        Ok(received)
    }

    /// The message that the last [`Slots::receive`] put at `index`.
    pub(crate) fn get(&self, index: usize) -> Incoming<'_> {
        let info = &self.infos[index];
        let start = index * SLOT_BYTES;
        Incoming {
            from: &info.from,
            control: &info.control,
            bytes: &self.bytes[start..start + info.len],
            cut: info.cut,
        }
    }
}

/// Sets an option whose value is a C `int`.
pub(crate) fn set_option(
    fd: BorrowedFd<'_>,
    level: i32,
    option: i32,
    value: i32,
) -> io::Result<()> {
    // SAFETY: the pointer is to an int that lives through the call, and the length is its.
    let rc = unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            level,
            option,
            (&raw const value).cast(),
            size_of::<i32>() as libc::socklen_t,
        )
    };
    if rc == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Reads an option into as many 32-bit words as the kernel has, up to `N`; the others stay 0.
pub(crate) fn option<const N: usize>(
    fd: BorrowedFd<'_>,
    level: i32,
    option: i32,
) -> io::Result<[u32; N]> {
    let mut words = [0; N];
    let mut len = size_of_val(&words) as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes into `words`, which is that long.
    let rc = unsafe {
        libc::getsockopt(fd.as_raw_fd(), level, option, words.as_mut_ptr().cast(), &raw mut len)
    };
    if rc == 0 { Ok(words) } else { Err(io::Error::last_os_error()) }
}

/// Words of SO_MEMINFO (linux/sock_diag.h, Linux 4.12).
const SO_MEMINFO: i32 = 55;
const SK_MEMINFO_RMEM_ALLOC: usize = 0;
const SK_MEMINFO_RCVBUF: usize = 1;
const SK_MEMINFO_DROPS: usize = 8;

fn memory_info(fd: BorrowedFd<'_>) -> io::Result<[u32; SK_MEMINFO_DROPS + 1]> {
    option(fd, libc::SOL_SOCKET, SO_MEMINFO)
}

/// What waits in a socket's receive buffer, and what it holds, both in bytes as the kernel charges
/// them.
pub(crate) fn receive_backlog(fd: BorrowedFd<'_>) -> io::Result<(u64, u64)> {
    let words = memory_info(fd)?;
    Ok((words[SK_MEMINFO_RMEM_ALLOC].into(), words[SK_MEMINFO_RCVBUF].into()))
}

/// Datagrams or trains that the kernel dropped for want of receive buffer; 0 where it does not
/// tell.
pub(crate) fn receive_drops(fd: BorrowedFd<'_>) -> u64 {
    memory_info(fd).map_or(0, |words| words[SK_MEMINFO_DROPS].into())
}

/// Makes the socket drop whatever arrives.
pub(crate) fn drop_arrivals(fd: BorrowedFd<'_>) -> io::Result<()> {
    // BPF_RET | BPF_K with 0: keep no byte of the packet.
    filter(fd, &[guard::Instruction { code: 0x06, jt: 0, jf: 0, k: 0 }])
}

/// Makes a socket that is to be bound to UDP `port` drop what strangers on this host send
/// ([`wire::guard`]).
///
/// # Errors
/// Those of `SO_ATTACH_FILTER`.
pub fn keep_strangers_out(fd: BorrowedFd<'_>, port: u16, groups: guard::Groups) -> io::Result<()> {
    filter(fd, &guard::program(port, groups))
}

/// `struct sock_fprog`, whose padding has a name: checkers of a program's memory find what is
/// handed to the kernel unwritten.
#[repr(C)]
struct Program {
    len: u16,
    padding: [u16; 3],
    filter: *const libc::sock_filter,
}

const _: () = assert!(size_of::<Program>() == size_of::<libc::sock_fprog>());

fn filter(fd: BorrowedFd<'_>, program: &[guard::Instruction]) -> io::Result<()> {
    let insn = |&guard::Instruction { code, jt, jf, k }: &_| libc::sock_filter { code, jt, jf, k };
    let program: Vec<_> = program.iter().map(insn).collect();
    let filter = Program { len: program.len() as u16, padding: [0; 3], filter: program.as_ptr() };
    // SAFETY: the kernel copies the program, which lives through the call with the length given.
    let rc = unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_ATTACH_FILTER,
            (&raw const filter).cast(),
            size_of_val(&filter) as libc::socklen_t,
        )
    };
    if rc == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
