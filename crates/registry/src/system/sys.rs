//! The socket options that rustix lacks: reuseport steering, socket filters, drop counts, peeking,
//! and the peer's credentials (rustix reads a process id of 0, which another PID namespace gives,
//! as non-zero).

use crate::steer::Insn;
use rustix::io::{Errno, Result};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use wire::guard::{self, Groups, Instruction};

fn check(rc: libc::c_int) -> Result<()> {
    if rc == 0 {
        return Ok(());
    }
    let errno = std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO);
    Err(Errno::from_raw_os_error(errno))
}

/// `struct sock_fprog`, whose padding has a name: checkers of a program's memory find what is
/// handed to the kernel unwritten.
#[repr(C)]
struct Program {
    len: u16,
    padding: [u16; 3],
    filter: *const Insn,
}

const _: () = assert!(size_of::<Program>() == size_of::<libc::sock_fprog>());

fn set_program(fd: BorrowedFd<'_>, option: libc::c_int, code: &[Insn]) -> Result<()> {
    let len = u16::try_from(code.len()).map_err(|_| Errno::INVAL)?;
    let program = Program { len, padding: [0; 3], filter: code.as_ptr() };
    // SAFETY: `program` and the code it points to outlive the call, the lengths are theirs, and the
    // kernel only reads them.
    check(unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            libc::SOL_SOCKET,
            option,
            (&raw const program).cast(),
            size_of::<Program>() as libc::socklen_t,
        )
    })
}

/// Steers the reuseport group that this socket is in (`SO_ATTACH_REUSEPORT_CBPF`).
pub(crate) fn steer_group(fd: impl AsFd, code: &[Insn]) -> Result<()> {
    set_program(fd.as_fd(), libc::SO_ATTACH_REUSEPORT_CBPF, code)
}

/// Makes a socket that is to be bound to `port` drop what strangers on this host send
/// (`SO_ATTACH_FILTER`).
pub(crate) fn keep_strangers_out(fd: impl AsFd, port: u16, groups: Groups) -> Result<()> {
    let insn = |Instruction { code, jt, jf, k }| Insn { code, jt, jf, k };
    let code: Vec<Insn> = guard::program(port, groups).into_iter().map(insn).collect();
    set_program(fd.as_fd(), libc::SO_ATTACH_FILTER, &code)
}

fn get<T: Copy>(fd: BorrowedFd<'_>, option: libc::c_int) -> Result<T> {
    let mut value = MaybeUninit::<T>::zeroed();
    let mut len = size_of::<T>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes, the size of `value`.
    check(unsafe {
        libc::getsockopt(
            fd.as_raw_fd(),
            libc::SOL_SOCKET,
            option,
            value.as_mut_ptr().cast(),
            &raw mut len,
        )
    })?;
    // SAFETY: `T` is one of the plain integer structures below, for which zeroes are valid, so it
    // is initialised whatever the kernel wrote.
    Ok(unsafe { value.assume_init() })
}

/// Datagrams that this socket has dropped since it exists (`SO_MEMINFO`, Linux 4.12).
pub(crate) fn drops(fd: impl AsFd) -> Result<u32> {
    const SO_MEMINFO: libc::c_int = 55;
    const SK_MEMINFO_DROPS: usize = 8;
    get::<[u32; 9]>(fd.as_fd(), SO_MEMINFO).map(|info| info[SK_MEMINFO_DROPS])
}

/// Process (0 where it is not visible here) and user at the other end.
pub(crate) fn peer(fd: impl AsFd) -> Result<(i32, u32)> {
    get::<libc::ucred>(fd.as_fd(), libc::SO_PEERCRED).map(|c| (c.pid, c.uid))
}

/// Lets `MSG_PEEK` read a socket's queue record by record, from its first one (`SO_PEEK_OFF`).
pub(crate) fn peek_from_start(fd: impl AsFd) -> Result<()> {
    let zero: libc::c_int = 0;
    // SAFETY: the kernel reads one int, which outlives the call.
    check(unsafe {
        libc::setsockopt(
            fd.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEEK_OFF,
            (&raw const zero).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        )
    })
}
