//! Interfaces and addresses of this network namespace, as rtnetlink(7) lists them. The kernel's
//! answers are read as bytes with every length checked.

use crate::socket::buffer;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socket_with,
};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::OwnedFd;

/// Length of `nlmsghdr`.
const HEADER: usize = 16;
/// Length of `ifinfomsg`.
const IFINFO: usize = 16;
/// Length of `ifaddrmsg`.
const IFADDR: usize = 8;
/// Flag in an answer: what was listed changed meanwhile (linux/netlink.h).
const NLM_F_DUMP_INTR: u16 = 0x10;
/// Listings before one that keeps changing is taken as it is.
const ATTEMPTS: usize = 8;
/// The kernel's answers come in pieces of at most 32 KiB.
const BUFFER_BYTES: usize = 64 << 10;

/// A network interface.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Interface {
    pub(crate) index: u32,
    pub(crate) name: String,
    pub(crate) mtu: u32,
    /// Set up by its administrator.
    pub(crate) up: bool,
    /// Has a carrier as well.
    pub(crate) running: bool,
    pub(crate) loopback: bool,
}

/// An address on an interface.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Address {
    pub(crate) ifindex: u32,
    pub(crate) ip: IpAddr,
    /// Duplicate detection passed or was not wanted: packets may be sent from it.
    pub(crate) usable: bool,
}

/// Lists all interfaces.
pub(crate) fn interfaces() -> io::Result<Vec<Interface>> {
    let mut found = Vec::new();
    dump(libc::RTM_GETLINK, IFINFO, &mut found, |kind, body| {
        if kind == libc::RTM_NEWLINK { interface(body) } else { None }
    })?;
    Ok(found)
}

/// Lists all addresses, IPv4 and IPv6.
pub(crate) fn addresses() -> io::Result<Vec<Address>> {
    let mut found = Vec::new();
    dump(libc::RTM_GETADDR, IFADDR, &mut found, |kind, body| {
        if kind == libc::RTM_NEWADDR { address(body) } else { None }
    })?;
    Ok(found)
}

fn interface(body: &[u8]) -> Option<Interface> {
    let index = u32_at(body, 4)?;
    let flags = u32_at(body, 8)?;
    let (mut name, mut mtu) = (None, None);
    for (kind, data) in attributes(body.get(IFINFO..)?) {
        match kind {
            libc::IFLA_IFNAME => name = Some(text(data)),
            libc::IFLA_MTU => mtu = u32_at(data, 0),
            _ => {}
        }
    }
    let has = |flag: i32| flags & flag as u32 != 0;
    Some(Interface {
        index,
        name: name?,
        mtu: mtu?,
        up: has(libc::IFF_UP),
        running: has(libc::IFF_UP) && has(libc::IFF_RUNNING),
        loopback: has(libc::IFF_LOOPBACK),
    })
}

fn address(body: &[u8]) -> Option<Address> {
    let family = *body.first()?;
    let mut flags = u32::from(*body.get(2)?);
    let ifindex = u32_at(body, 4)?;
    let (mut local, mut address) = (None, None);
    for (kind, data) in attributes(body.get(IFADDR..)?) {
        match kind {
            // On a point-to-point link IFA_ADDRESS is the peer's.
            libc::IFA_LOCAL => local = ip(family, data),
            libc::IFA_ADDRESS => address = ip(family, data),
            libc::IFA_FLAGS => flags = u32_at(data, 0)?,
            _ => {}
        }
    }
    let has = |flag: u32| flags & flag != 0;
    let tentative = has(libc::IFA_F_TENTATIVE) && !has(libc::IFA_F_OPTIMISTIC);
    let usable = !tentative && !has(libc::IFA_F_DADFAILED);
    Some(Address { ifindex, ip: local.or(address)?, usable })
}

/// Parses `body` as every kind of entry.
pub fn parse_anything(body: &[u8]) {
    let _ = (interface(body), address(body));
    crate::addresses::neighbour::parse_anything(body);
}

pub(crate) fn ip(family: u8, data: &[u8]) -> Option<IpAddr> {
    match i32::from(family) {
        libc::AF_INET => Some(Ipv4Addr::from(<[u8; 4]>::try_from(data).ok()?).into()),
        libc::AF_INET6 => Some(Ipv6Addr::from(<[u8; 16]>::try_from(data).ok()?).into()),
        _ => None,
    }
}

fn text(data: &[u8]) -> String {
    let end = data.iter().position(|byte| *byte == 0).unwrap_or(data.len());
    String::from_utf8_lossy(&data[..end]).into_owned()
}

/// Kind and data of each attribute (rtattr), as long as they fit.
pub(crate) fn attributes(mut rest: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let len = usize::from(u16_at(rest, 0)?);
        let kind = u16_at(rest, 2)? & !(libc::NLA_F_NESTED | libc::NLA_F_NET_BYTEORDER) as u16;
        let data = rest.get(4..len)?;
        rest = rest.get(len.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, data))
    })
}

/// Asks for a listing and gives type and body of each message to `read`.
fn dump<T>(
    request: u16,
    body_len: usize,
    found: &mut Vec<T>,
    read: impl Fn(u16, &[u8]) -> Option<T>,
) -> io::Result<()> {
    for _ in 0..ATTEMPTS {
        found.clear();
        let socket = socket_with(
            AddressFamily::NETLINK,
            SocketType::RAW,
            SocketFlags::CLOEXEC,
            // Protocol 0 is NETLINK_ROUTE.
            None,
        )?;
        let mut message = vec![0; HEADER + body_len];
        message[..4].copy_from_slice(&((HEADER + body_len) as u32).to_ne_bytes());
        message[4..6].copy_from_slice(&request.to_ne_bytes());
        let flags = (libc::NLM_F_REQUEST | libc::NLM_F_DUMP) as u16;
        message[6..8].copy_from_slice(&flags.to_ne_bytes());
        send(&socket, &message, SendFlags::empty())?;
        if listing(&socket, found, &read, false)? {
            break;
        }
    }
    Ok(())
}

/// Asks for one thing and gives type and body of the answer to `read`.
pub(crate) fn ask<T>(
    request: u16,
    body: &[u8],
    read: impl Fn(u16, &[u8]) -> Option<T>,
) -> io::Result<T> {
    let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, None)?;
    let mut message = vec![0; HEADER];
    message[..4].copy_from_slice(&((HEADER + body.len()) as u32).to_ne_bytes());
    message[4..6].copy_from_slice(&request.to_ne_bytes());
    message[6..8].copy_from_slice(&(libc::NLM_F_REQUEST as u16).to_ne_bytes());
    message.extend(body);
    send(&socket, &message, SendFlags::empty())?;
    let mut found = Vec::new();
    listing(&socket, &mut found, &read, true)?;
    found.pop().ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// Sets the loopback interface up, which is down in a new network namespace.
///
/// # Errors
/// EPERM for who may not administer this namespace.
pub fn set_loopback_up() -> io::Result<()> {
    const LOOPBACK: u32 = 1;
    let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, None)?;
    let mut message = vec![0; HEADER + IFINFO];
    message[..4].copy_from_slice(&((HEADER + IFINFO) as u32).to_ne_bytes());
    message[4..6].copy_from_slice(&libc::RTM_NEWLINK.to_ne_bytes());
    let flags = (libc::NLM_F_REQUEST | libc::NLM_F_ACK) as u16;
    message[6..8].copy_from_slice(&flags.to_ne_bytes());
    // index, flags and which of them are meant (ifinfomsg)
    for (at, word) in [(4, LOOPBACK), (8, libc::IFF_UP as u32), (12, libc::IFF_UP as u32)] {
        message[HEADER + at..HEADER + at + 4].copy_from_slice(&word.to_ne_bytes());
    }
    send(&socket, &message, SendFlags::empty())?;
    let mut answer = [0; 256];
    let (len, _) = recv(&socket, &mut answer[..], RecvFlags::empty())?;
    match u32_at(&answer[..len], HEADER).map(|errno| errno as i32) {
        Some(0) => Ok(()),
        Some(errno) => Err(io::Error::from_raw_os_error(errno.wrapping_neg())),
        None => Err(io::ErrorKind::InvalidData.into()),
    }
}

/// Reads a listing to its end, or one answer. Answers whether it is of one moment.
fn listing<T>(
    socket: &OwnedFd,
    found: &mut Vec<T>,
    read: &impl Fn(u16, &[u8]) -> Option<T>,
    single: bool,
) -> io::Result<bool> {
    let mut buffer = buffer::zeroed(BUFFER_BYTES)?;
    let mut steady = true;
    loop {
        let (len, _) = match recv(socket, &mut buffer[..], RecvFlags::empty()) {
            Err(rustix::io::Errno::INTR) => continue,
            result => result?,
        };
        let mut rest = &buffer[..len];
        if rest.is_empty() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        while !rest.is_empty() {
            let short = || io::Error::new(io::ErrorKind::InvalidData, "netlink message cut short");
            let len = u32_at(rest, 0).ok_or_else(short)? as usize;
            let kind = u16_at(rest, 4).ok_or_else(short)?;
            let flags = u16_at(rest, 6).ok_or_else(short)?;
            let body = rest.get(HEADER..len).ok_or_else(short)?;
            steady &= flags & NLM_F_DUMP_INTR == 0;
            match i32::from(kind) {
                libc::NLMSG_DONE => return Ok(steady),
                libc::NLMSG_ERROR => {
                    let errno = u32_at(body, 0).ok_or_else(short)? as i32;
                    return Err(io::Error::from_raw_os_error(errno.wrapping_neg()));
                }
                _ => found.extend(read(kind, body)),
            }
            rest = rest.get(len.next_multiple_of(4)..).unwrap_or_default();
        }
        if single {
            return Ok(steady);
        }
    }
}

pub(crate) fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

pub(crate) fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_is_listed() {
        let all = interfaces().unwrap();
        let lo = all.iter().find(|interface| interface.loopback).unwrap();
        assert_eq!((lo.index, lo.name.as_str()), (1, "lo"));
        if lo.up {
            let localhost = IpAddr::from(Ipv4Addr::LOCALHOST);
            let expected = Address { ifindex: 1, ip: localhost, usable: true };
            assert!(addresses().unwrap().contains(&expected));
        }
    }

    fn attribute(out: &mut Vec<u8>, kind: u16, data: &[u8]) {
        out.extend(((4 + data.len()) as u16).to_ne_bytes());
        out.extend(kind.to_ne_bytes());
        out.extend(data);
        out.resize(out.len().next_multiple_of(4), 0);
    }

    #[test]
    fn addresses_under_duplicate_detection_are_not_usable() {
        let mut body = vec![libc::AF_INET6 as u8, 64, 0, 0, 7, 0, 0, 0];
        attribute(&mut body, libc::IFA_ADDRESS, &Ipv6Addr::LOCALHOST.octets());
        let steady = body.len();
        attribute(&mut body, libc::IFA_FLAGS, &libc::IFA_F_TENTATIVE.to_ne_bytes());
        let read = address(&body).unwrap();
        assert_eq!(read, Address { ifindex: 7, ip: Ipv6Addr::LOCALHOST.into(), usable: false });
        assert!(address(&body[..steady]).unwrap().usable);
    }

    #[test]
    fn own_end_of_a_point_to_point_link_counts() {
        let mut body = vec![libc::AF_INET as u8, 32, 0, 0, 7, 0, 0, 0];
        attribute(&mut body, libc::IFA_ADDRESS, &[192, 0, 2, 2]);
        attribute(&mut body, libc::IFA_LOCAL, &[192, 0, 2, 1]);
        assert_eq!(address(&body).unwrap().ip, IpAddr::from([192, 0, 2, 1]));
    }

    #[test]
    fn cut_messages_do_no_harm() {
        let mut body = vec![libc::AF_INET as u8, 32, 0, 0, 7, 0, 0, 0];
        attribute(&mut body, libc::IFA_LOCAL, &[192, 0, 2, 1]);
        for len in 0..body.len() {
            assert_eq!(address(&body[..len]), None);
            assert_eq!(interface(&body[..len]), None);
        }
    }
}
