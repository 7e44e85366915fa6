//! Being told that interfaces or addresses of this network namespace changed, as rtnetlink(7) tells
//! every listener: carrier, administrator's up and down, addresses that come, go or pass duplicate
//! detection. What changed is for the listener to look up, so a lost notice does no harm.

use descriptors::Kept;
use rustix::io::Errno;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, bind, recv, socket_with};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};

/// What is listened to.
const GROUPS: i32 = libc::RTMGRP_LINK | libc::RTMGRP_IPV4_IFADDR | libc::RTMGRP_IPV6_IFADDR;
/// Notices taken in one call, so that one who changes addresses without end holds nobody up.
const NOTICES: usize = 1024;

/// A listener; its descriptor is readable while notices wait.
#[derive(Debug)]
pub struct Watch {
    socket: Kept,
}

impl Watch {
    /// Listens in the calling thread's network namespace from now on.
    ///
    /// # Errors
    /// When the system gives no such socket, as in some sandboxes.
    pub fn open() -> io::Result<Watch> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        // Protocol 0 is NETLINK_ROUTE.
        let socket = Kept::new(socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, None)?);
        bind(&socket, &SocketAddrNetlink::new(0, GROUPS as u32))?;
        Ok(Watch { socket })
    }

    /// Takes the notices that wait; answers whether there were any, or some were lost.
    pub fn changed(&self) -> bool {
        let mut changed = false;
        for _ in 0..NOTICES {
            // The kernel drops what does not fit; that something came is all that counts.
            match recv(&self.socket, &mut [0u8; 16][..], RecvFlags::DONTWAIT) {
                Ok(_) | Err(Errno::NOBUFS) => changed = true,
                Err(Errno::INTR) => {}
                Err(_) => break,
            }
        }
        changed
    }
}

impl AsFd for Watch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
