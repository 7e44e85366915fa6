//! The next hop to a destination, and whether the kernel knows its hardware address: what stands
//! between an address and packets that leave for it. The kernel's routes and neighbours are asked,
//! nothing is sent.

use crate::addresses::netlink::{ask, attributes, ip, u16_at, u32_at};
use std::io;
use std::net::IpAddr;

/// Length of `rtmsg`.
const ROUTE: usize = 12;
/// Length of `ndmsg`.
const NEIGHBOUR: usize = 12;
/// Length of `ifinfomsg`.
const IFINFO: usize = 16;
/// Destination of a neighbour entry (linux/neighbour.h).
const NDA_DST: u16 = 1;
/// States in which an entry's hardware address is used (`NUD_VALID`): permanent, none needed,
/// reachable, probed, stale, delayed.
const VALID: u16 = 0xde;
/// An entry for which the kernel asks at this moment.
const INCOMPLETE: u16 = 0x01;

/// A host on one of this host's networks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Neighbour {
    /// Its address.
    pub ip: IpAddr,
    /// The interface to it.
    pub ifindex: u32,
}

/// What the kernel knows of one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Knowledge {
    /// Its hardware address.
    Known,
    /// It is being asked.
    Asked,
    /// Nothing: nobody asked, or it did not answer.
    Nothing,
}

/// Whether packets from `src` to `dst`, by the interface `ifindex` unless that is 0, stay on this
/// host. To a group they do from an address of loopback, as a port of an InfiniBand subnet has it.
///
/// # Errors
/// When the kernel has no route, or does not say.
pub(crate) fn is_here(dst: IpAddr, src: IpAddr, ifindex: u32) -> io::Result<bool> {
    if dst.is_multicast() {
        return Ok(src.is_loopback());
    }
    if dst.is_loopback() || dst == src {
        return Ok(true);
    }
    ask(libc::RTM_GETROUTE, &route_request(dst, src, ifindex), |kind, body| {
        if kind == libc::RTM_NEWROUTE { Some(*body.get(7)? == libc::RTN_LOCAL) } else { None }
    })
}

impl Neighbour {
    /// The next hop of packets from `src` to `dst`, by the interface `ifindex` unless that is 0.
    /// `None` where no hardware address is needed: on this host, to groups, on links without such
    /// addresses.
    ///
    /// # Errors
    /// When the kernel has no route, or does not say.
    pub fn towards(dst: IpAddr, src: IpAddr, ifindex: u32) -> io::Result<Option<Neighbour>> {
        let route = ask(libc::RTM_GETROUTE, &route_request(dst, src, ifindex), |kind, body| {
            if kind == libc::RTM_NEWROUTE { route(body) } else { None }
        })?;
        let Route::Out { gateway, ifindex } = route else { return Ok(None) };
        let mut link = vec![0; IFINFO];
        link[4..8].copy_from_slice(&ifindex.to_ne_bytes());
        let flags = ask(libc::RTM_GETLINK, &link, |kind, body| {
            if kind == libc::RTM_NEWLINK { u32_at(body, 8) } else { None }
        })?;
        let without = libc::IFF_NOARP | libc::IFF_LOOPBACK | libc::IFF_POINTOPOINT;
        let needed = flags & without as u32 == 0;
        Ok(needed.then_some(Neighbour { ip: gateway.unwrap_or(dst), ifindex }))
    }

    /// What the kernel knows of it now.
    ///
    /// # Errors
    /// When the kernel does not say.
    pub fn knowledge(&self) -> io::Result<Knowledge> {
        let (family, octets) = family_and_octets(self.ip);
        let mut body = vec![0; NEIGHBOUR];
        body[0] = family;
        body[4..8].copy_from_slice(&self.ifindex.to_ne_bytes());
        push(&mut body, NDA_DST, &octets);
        let state = ask(libc::RTM_GETNEIGH, &body, |kind, body| {
            if kind == libc::RTM_NEWNEIGH { u16_at(body, 8) } else { None }
        });
        match state {
            Ok(state) if state & VALID != 0 => Ok(Knowledge::Known),
            Ok(state) if state & INCOMPLETE != 0 => Ok(Knowledge::Asked),
            Ok(_) => Ok(Knowledge::Nothing),
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(Knowledge::Nothing),
            Err(error) => Err(error),
        }
    }
}

fn family_and_octets(ip: IpAddr) -> (u8, Vec<u8>) {
    match ip {
        IpAddr::V4(ip) => (libc::AF_INET as u8, ip.octets().to_vec()),
        IpAddr::V6(ip) => (libc::AF_INET6 as u8, ip.octets().to_vec()),
    }
}

/// Appends an attribute of a multiple of four bytes.
fn push(body: &mut Vec<u8>, kind: u16, data: &[u8]) {
    body.extend((4 + data.len() as u16).to_ne_bytes());
    body.extend(kind.to_ne_bytes());
    body.extend(data);
}

fn route_request(dst: IpAddr, src: IpAddr, ifindex: u32) -> Vec<u8> {
    let mut body = vec![0; ROUTE];
    let (family, to) = family_and_octets(dst);
    let (from_family, from) = family_and_octets(src);
    body[0] = family;
    body[1] = to.len() as u8 * 8;
    push(&mut body, libc::RTA_DST, &to);
    if family == from_family && !src.is_unspecified() {
        body[2] = from.len() as u8 * 8;
        push(&mut body, libc::RTA_SRC, &from);
    }
    if ifindex != 0 {
        push(&mut body, libc::RTA_OIF, &ifindex.to_ne_bytes());
    }
    body
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Route {
    /// It leads to another host.
    Out { gateway: Option<IpAddr>, ifindex: u32 },
    /// It leads to this host, or to a group.
    Here,
}

fn route(body: &[u8]) -> Option<Route> {
    let family = *body.first()?;
    if *body.get(7)? != libc::RTN_UNICAST {
        return Some(Route::Here);
    }
    let (mut gateway, mut ifindex) = (None, None);
    for (kind, data) in attributes(body.get(ROUTE..)?) {
        match kind {
            libc::RTA_GATEWAY => gateway = Some(ip(family, data)?),
            // Of the other family: its number is in front.
            libc::RTA_VIA => gateway = Some(ip(u16_at(data, 0)? as u8, data.get(2..)?)?),
            libc::RTA_OIF => ifindex = u32_at(data, 0),
            _ => {}
        }
    }
    Some(Route::Out { gateway, ifindex: ifindex? })
}

/// Parses `body` as a route, for fuzzing.
pub(crate) fn parse_anything(body: &[u8]) {
    let _ = route(body);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{Ipv4Addr, Ipv6Addr};

    #[test]
    fn this_host_is_no_neighbour() {
        let localhost = IpAddr::from(Ipv4Addr::LOCALHOST);
        assert_eq!(Neighbour::towards(localhost, localhost, 0).unwrap(), None);
    }

    #[test]
    fn nobody_knows_who_was_never_asked() {
        let stranger = Neighbour { ip: Ipv4Addr::new(127, 3, 3, 3).into(), ifindex: 1 };
        assert_eq!(stranger.knowledge().unwrap(), Knowledge::Nothing);
    }

    #[test]
    fn a_gateway_stands_before_the_destination() {
        let mut body = vec![0; ROUTE];
        body[0] = libc::AF_INET as u8;
        body[7] = libc::RTN_UNICAST;
        push(&mut body, libc::RTA_OIF, &7u32.to_ne_bytes());
        let out = |gateway| Some(Route::Out { gateway, ifindex: 7 });
        assert_eq!(route(&body), out(None));
        let direct = body.len();
        push(&mut body, libc::RTA_GATEWAY, &[192, 0, 2, 1]);
        assert_eq!(route(&body), out(Some(Ipv4Addr::new(192, 0, 2, 1).into())));
        body.truncate(direct);
        let mut via = (libc::AF_INET6 as u16).to_ne_bytes().to_vec();
        via.extend(Ipv6Addr::LOCALHOST.octets());
        body.extend((4 + via.len() as u16).to_ne_bytes());
        body.extend(libc::RTA_VIA.to_ne_bytes());
        body.extend(via);
        assert_eq!(route(&body), out(Some(Ipv6Addr::LOCALHOST.into())));
        body[7] = libc::RTN_LOCAL;
        assert_eq!(route(&body), Some(Route::Here));
        for len in 0..body.len() {
            let _ = route(&body[..len]);
        }
    }
}
