//! Whose the abstract UNIX sockets of this network namespace are, as the kernel tells it
//! (sock_diag(7)).
//!
//! Anybody may bind any abstract name, so a name alone says nothing. A listing with owners does:
//! what it calls ours was bound by this user, whether or not its holder answers. Linux before 5.3
//! lists no owners, and some sandboxes refuse the listing; who holds a name is not known then.

use rustix::io::{Errno, Result};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink, recv, send, socket_with,
};

/// A name that somebody has bound.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Bound {
    /// Without the zero byte in front.
    pub name: String,
    /// Who bound it, where the kernel tells. Of a connection that its listener has not taken yet it
    /// tells root, whoever it is.
    pub uid: Option<u32>,
    /// Whether it is an end of a connection, which has its listener's name.
    pub connected: bool,
}

/// SocketFilter of the sockets to list.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum SocketFilter {
    /// Takes connections.
    Listening,
    /// Neither connected nor listening: all that take datagrams.
    Idle,
    Any,
}

impl SocketFilter {
    /// As bits of the states of include/net/tcp_states.h.
    fn bits(self) -> u32 {
        match self {
            SocketFilter::Listening => 1 << 10,
            SocketFilter::Idle => 1 << 7,
            SocketFilter::Any => u32::MAX,
        }
    }
}

const ESTABLISHED: u8 = 1;

const SOCK_DIAG_BY_FAMILY: u16 = 20;
const REQUEST_DUMP: u16 = 0x301;
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const SHOW_NAME: u32 = 0x01;
const SHOW_UID: u32 = 0x40;
const ATTRIBUTE_NAME: u16 = 0;
const ATTRIBUTE_UID: u16 = 7;
/// Lengths of `nlmsghdr`, `unix_diag_req` and `unix_diag_msg`.
const HEADER: usize = 16;
const REQUEST: usize = 24;
const MESSAGE: usize = 16;
/// The kernel's answers come in pieces of less than 32 KiB; so much is there even where the system
/// has no memory left.
const BUFFER_BYTES: usize = 32 << 10;

/// The abstract names that begin with `prefix` and whose sockets are in a state.
pub(crate) fn names(prefix: &str, state: SocketFilter) -> Result<Vec<Bound>> {
    let flags = SocketFlags::CLOEXEC;
    let protocol = Some(netlink::SOCK_DIAG);
    let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, protocol)?;
    send(&socket, &request(state), SendFlags::empty())?;
    let mut found = Vec::new();
    let mut buffer = vec![0; BUFFER_BYTES];
    loop {
        let (len, _) = match recv(&socket, &mut buffer[..], RecvFlags::empty()) {
            Err(Errno::INTR) => continue,
            received => received?,
        };
        if take(&buffer[..len.min(BUFFER_BYTES)], prefix, &mut found)? {
            return Ok(found);
        }
    }
}

fn request(state: SocketFilter) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(HEADER + REQUEST);
    bytes.extend(((HEADER + REQUEST) as u32).to_ne_bytes());
    bytes.extend(SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    bytes.extend(REQUEST_DUMP.to_ne_bytes());
    // Sequence and port, then family and protocol.
    bytes.extend([0; 8]);
    bytes.extend([AddressFamily::UNIX.as_raw() as u8, 0, 0, 0]);
    bytes.extend(state.bits().to_ne_bytes());
    bytes.extend(0_u32.to_ne_bytes());
    bytes.extend((SHOW_NAME | SHOW_UID).to_ne_bytes());
    // No cookie.
    bytes.extend([0xff; 8]);
    bytes
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

/// Takes one piece of the listing; true at its end.
fn take(mut rest: &[u8], prefix: &str, found: &mut Vec<Bound>) -> Result<bool> {
    while let (Some(len), Some(kind)) = (u32_at(rest, 0), u16_at(rest, 4)) {
        let Some(message) = rest.get(..len as usize).filter(|m| m.len() >= HEADER) else { break };
        let body = &message[HEADER..];
        match kind {
            NLMSG_DONE => return Ok(true),
            NLMSG_ERROR => {
                let errno = u32_at(body, 0).map_or(libc::EIO, |code| (code as i32).wrapping_neg());
                return Err(Errno::from_raw_os_error(errno));
            }
            SOCK_DIAG_BY_FAMILY => found.extend(bound(body, prefix)),
            _ => {}
        }
        rest = rest.get(padded(message.len())..).unwrap_or_default();
    }
    Ok(false)
}

fn padded(len: usize) -> usize {
    len.next_multiple_of(4)
}

/// The socket that a message describes, if it has such a name.
fn bound(body: &[u8], prefix: &str) -> Option<Bound> {
    let mut rest = body.get(MESSAGE..)?;
    let (mut name, mut uid) = (None, None);
    while let (Some(len), Some(kind)) = (u16_at(rest, 0), u16_at(rest, 2)) {
        let Some(data) = rest.get(4..usize::from(len)) else { break };
        match kind {
            ATTRIBUTE_NAME => name = data.strip_prefix(&[0]),
            ATTRIBUTE_UID => uid = u32_at(data, 0),
            _ => {}
        }
        rest = rest.get(padded(len.into())..).unwrap_or_default();
    }
    let name = std::str::from_utf8(name?).ok().filter(|name| name.starts_with(prefix))?;
    Some(Bound { name: name.to_owned(), uid, connected: body.get(2) == Some(&ESTABLISHED) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{SocketAddrUnix, bind, listen, socket};

    fn name(tail: &str) -> String {
        format!("peerdma-census-{}-{tail}", std::process::id())
    }

    fn hold(name: &str, kind: SocketType) -> std::os::fd::OwnedFd {
        let fd = socket(AddressFamily::UNIX, kind, None).unwrap();
        bind(&fd, &SocketAddrUnix::new_abstract_name(name.as_bytes()).unwrap()).unwrap();
        fd
    }

    #[test]
    fn bound_names_are_listed_with_their_owner() {
        let (listening, idle) = (name("listening"), name("idle"));
        let listener = hold(&listening, SocketType::SEQPACKET);
        listen(&listener, 1).unwrap();
        let _deed = hold(&idle, SocketType::DGRAM);
        let uid = Some(rustix::process::geteuid().as_raw());
        let of = |state| names(&name(""), state).unwrap();
        let one = |name| [Bound { name, uid, connected: false }];
        assert_eq!(of(SocketFilter::Listening), one(listening));
        assert_eq!(of(SocketFilter::Idle), one(idle));
        assert_eq!(of(SocketFilter::Any).len(), 2);
    }

    #[test]
    fn cut_answers_do_no_harm() {
        let mut message = vec![0; MESSAGE];
        message.extend([9, 0, 0, 0]);
        message.extend(b"\0pdma\0\0\0");
        message.extend([8, 0, 7, 0, 5, 0, 0, 0]);
        let whole = bound(&message, "pd");
        assert_eq!(whole, Some(Bound { name: "pdma".into(), uid: Some(5), connected: false }));
        for len in 0..message.len() {
            let _ = bound(&message[..len], "pd");
        }
        assert_eq!(bound(&message, "other"), None);
    }
}
