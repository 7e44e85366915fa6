//! What the host says: which of its addresses leads to a destination, which device has it, and
//! whether the next hop answers; which ports are free for all, and the registry as
//! the place of claims.

use super::channel::Channel;
use crate::base::ffi::{Errno, Res};
use crate::connection::neighbour::{DISCARD, any_like, is_known, socket_addr};
use crate::platform::{device, place};
use cma::{Local, Neighbour};
use link::GidTable;
use rustix::net::sockopt;
use std::net::{IpAddr, UdpSocket};
use std::ops::RangeInclusive;

/// `net.ipv4.ip_local_port_range` where it cannot be read.
const LOCAL_PORTS: RangeInclusive<u16> = 32768..=60999;
/// `net.ipv4.ip_unprivileged_port_start` likewise.
const FIRST_UNPRIVILEGED_PORT: u16 = 1024;

fn errno(error: &std::io::Error) -> Errno {
    Errno(error.raw_os_error().unwrap_or(libc::EIO))
}

/// Number of the device that an address of this host belongs to: the first that is on its
/// interface.
fn owner(ip: IpAddr, ifindex: u32) -> Option<usize> {
    if device::count() == 1 {
        return Some(0);
    }
    let table = GidTable::new().ok()?;
    let ours = || table.iter().map(|(_, entry)| entry).filter(|entry| entry.ip == ip);
    let entry = ours().find(|entry| entry.ifindex == ifindex).or_else(|| ours().next())?;
    place::first_on(&entry.ifname)
}

/// Opens every device that an address of this host may be of: who listens at all addresses is asked
/// at each.
pub fn open_all(channel: &Channel) -> Res<()> {
    place::owners().into_iter().try_for_each(|number| channel.device(number).map(|_| ()))
}

/// What an address of this host is among those of its device, which is opened; `ifindex` 0 means
/// any interface.
pub fn local(channel: &Channel, ip: IpAddr, ifindex: u32) -> Option<Local> {
    let number = owner(ip, ifindex)?;
    let engine = channel.device(number).ok()?;
    let device = &engine.device;
    let mtu = device.port(1).ok()?.active_mtu as u8;
    let gids = device.gids(1).ok()?;
    let ours = |entry: &&hca::GidEntry| entry.ip == ip;
    let there = |entry: &&hca::GidEntry| ours(entry) && entry.ifindex == ifindex;
    let entry = gids.iter().find(there).or_else(|| gids.iter().find(ours))?;
    let gid_index = entry.index as u8;
    Some(Local { device: number, ip, ifindex: entry.ifindex, gid_index, mtu })
}

/// The address of this host that packets to `dst` leave from, which is `src` if that is given, and
/// the next hop if its hardware address is not known yet: the kernel asks for it from now on.
pub fn route(
    channel: &Channel,
    src: Option<IpAddr>,
    dst: IpAddr,
    scope: u32,
) -> Res<(Local, Option<Neighbour>)> {
    let from = socket_addr(src.unwrap_or(any_like(dst)), scope, 0);
    let socket = UdpSocket::bind(from).map_err(|error| errno(&error))?;
    socket.connect(socket_addr(dst, scope, DISCARD)).map_err(|error| errno(&error))?;
    let ip = socket.local_addr().map_err(|error| errno(&error))?.ip().to_canonical();
    let ip = if ip == dst && src.is_none() { beside(channel, dst)? } else { ip };
    let local = local(channel, ip, scope).ok_or(Errno(libc::ENODEV))?;
    let mtu = route_mtu(channel, &socket, dst).unwrap_or(local.mtu);
    let local = Local { mtu, ..local };
    // Where the kernel does not say, nothing can be waited for.
    let hop = link::Neighbour::towards(dst, ip, scope).ok().flatten();
    let hop = hop.map(|hop| Neighbour { ip: hop.ip, ifindex: hop.ifindex });
    Ok((local, hop.filter(|hop| !is_known(*hop))))
}

/// The path MTU to `dst`, which `socket` is connected to, as `enum ibv_mtu`: what the kernel's
/// route carries, be it more or less than the interfaces of the device have in common. Addresses of
/// this host are reached over loopback. What leads to a virtual machine is not known.
fn route_mtu(channel: &Channel, socket: &UdpSocket, dst: IpAddr) -> Option<u8> {
    if channel.engine().device.is_of_ethernet(dst) {
        return None;
    }
    let bytes = match dst {
        IpAddr::V4(_) => sockopt::ip_mtu(socket),
        IpAddr::V6(_) => sockopt::ipv6_mtu(socket),
    };
    u8::try_from(wire::mtu::of_interface(bytes.ok()?)?).ok()
}

/// The address that packets leave from to `dst`, one of this host's. To itself that is the address;
/// but where it is a virtual machine's as well, what is sent there goes to that, and the answer
/// must come to another address: the most alike.
fn beside(channel: &Channel, dst: IpAddr) -> Res<IpAddr> {
    let device = &channel.engine().device;
    if dst.is_loopback() || !device.is_of_ethernet(dst) {
        return Ok(dst);
    }
    let table = GidTable::new().map_err(|error| errno(&error))?;
    let others = table.iter().filter(|(_, entry)| entry.up && !entry.ip.is_loopback());
    let others = others.map(|(_, entry)| entry.ip).filter(|ip| ip.is_ipv4() == dst.is_ipv4());
    let free = others.filter(|ip| !device.is_of_ethernet(*ip));
    free.max_by_key(|ip| common_bits(*ip, dst)).ok_or(Errno(libc::ENETUNREACH))
}

/// Leading bits that two addresses of one family have in common.
fn common_bits(one: IpAddr, other: IpAddr) -> u32 {
    let bits = |ip: IpAddr| u128::from_be_bytes(link::gid_of_ip(ip));
    (bits(one) ^ bits(other)).leading_zeros()
}

fn sysctl(name: &str) -> Option<Vec<u16>> {
    let text = std::fs::read_to_string(format!("/proc/sys/net/ipv4/{name}")).ok()?;
    text.split_whitespace().map(|word| word.parse().ok()).collect()
}

/// Ports for those who do not care.
pub fn local_ports() -> RangeInclusive<u16> {
    match sysctl("ip_local_port_range").as_deref() {
        Some([first, last]) if first <= last => *first..=*last,
        _ => LOCAL_PORTS,
    }
}

/// Whether the program may bind to a port.
pub fn may_bind(port: u16) -> bool {
    let first = sysctl("ip_unprivileged_port_start").and_then(|words| words.first().copied());
    // SAFETY: no preconditions.
    port == 0 || port >= first.unwrap_or(FIRST_UNPRIVILEGED_PORT) || unsafe { libc::geteuid() } == 0
}
