//! The system calls of packet sockets (packet(7)) that rustix does not offer: binding one to an
//! interface, asking for its address, joining what it lets in.

use std::io;
use std::mem;
use std::os::fd::{AsRawFd, BorrowedFd};
use wire::ethernet::Mac;

/// What a packet socket says of the interface that it is bound to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Bound {
    pub(crate) mac: Mac,
    pub(crate) loopback: bool,
}

/// Binds a packet socket to an interface. `protocol` is what it receives, 0 for nothing.
///
/// # Errors
/// ENODEV without such an interface, EOPNOTSUPP for one that carries no Ethernet frames.
pub(crate) fn bind(fd: BorrowedFd<'_>, ifindex: u32, protocol: u16) -> io::Result<Bound> {
    // SAFETY: sockaddr_ll is plain C data for which all zeroes is a valid value.
    let mut name: libc::sockaddr_ll = unsafe { mem::zeroed() };
    name.sll_family = libc::AF_PACKET as _;
    name.sll_protocol = protocol.to_be();
    name.sll_ifindex = i32::try_from(ifindex).map_err(|_| no_device())?;
    if ifindex == 0 {
        return Err(no_device());
    }
    let mut len = size_of_val(&name) as libc::socklen_t;
    // SAFETY: the address is a live local of the length given; the kernel reads it.
    if unsafe { libc::bind(fd.as_raw_fd(), (&raw const name).cast(), len) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel writes at most `len` bytes into the live local, which is that long.
    let rc = unsafe { libc::getsockname(fd.as_raw_fd(), (&raw mut name).cast(), &raw mut len) };
    if rc != 0 {
        return Err(io::Error::last_os_error());
    }
    let loopback = name.sll_hatype == libc::ARPHRD_LOOPBACK;
    let [m0, m1, m2, m3, m4, m5, ..] = name.sll_addr;
    let mac = [m0, m1, m2, m3, m4, m5];
    if usize::from(name.sll_halen) != mac.len()
        || !(loopback || name.sll_hatype == libc::ARPHRD_ETHER)
    {
        return Err(rustix::io::Errno::OPNOTSUPP.into());
    }
    Ok(Bound { mac, loopback })
}

fn no_device() -> io::Error {
    rustix::io::Errno::NODEV.into()
}

/// Lets in what the interface would drop: `libc::PACKET_MR_ALLMULTI` or `libc::PACKET_MR_PROMISC`.
/// It ends with the socket.
pub(crate) fn join(fd: BorrowedFd<'_>, ifindex: u32, kind: i32) -> io::Result<()> {
    // SAFETY: packet_mreq is plain C data for which all zeroes is a valid value.
    let mut request: libc::packet_mreq = unsafe { mem::zeroed() };
    request.mr_ifindex = i32::try_from(ifindex).map_err(|_| no_device())?;
    request.mr_type = kind as _;
    // SAFETY: the pointer is to a live local, and the length is its.
    let rc = unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            libc::SOL_PACKET,
            libc::PACKET_ADD_MEMBERSHIP,
            (&raw const request).cast(),
            size_of_val(&request) as libc::socklen_t,
        )
    };
    if rc == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
