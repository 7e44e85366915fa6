//! Finds out which socket is at which index of a reuseport group, without its owner's help.
//!
//! The kernel tells nobody the order of a group, and a stopped process cannot say what arrived at
//! its socket. But the host of the registry holds duplicates of all sockets, and each drops what
//! comes from a port of this host other than its own (`wire::guard`). So the host sends a probe for
//! index *i* from an ordinary port (the steering program delivers a probe to the index it names),
//! and looks whose count of dropped datagrams grew. Probes never reach anybody's engine, nobody
//! needs to be awake, and ordinary traffic goes on under the program that is attached.
//!
//! A count may also grow because a receive buffer is full. So it is read around a control without a
//! probe first; sockets that drop by themselves are judged by bursts against as long a control. Of
//! several bursts and controls the least growth counts: it is never less than a burst where that
//! arrived, and a scheduler that keeps the host waiting makes growth larger only. Each finding is
//! repeated until one socket is left.
//!
//! A probe beyond the last index falls to the kernel's hash over the flow. So a source port is
//! sought first whose hash leads to a socket of ours: its probes tell the end of the group. A
//! datagram to itself follows each probe through the loopback's queue; when it is back, the probe
//! has been delivered.

use crate::server::kernel::Family;
use crate::steer;
use crate::system::sys;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrV4, SocketAddrV6, SocketFlags, SocketType,
};
use std::cell::Cell;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

/// Source ports used in turn, so that a probe that was hashed is not found the same again.
const FLOWS: usize = 3;
/// Source ports tried to find one that is hashed to a socket of ours.
const TELLS: usize = 64;
/// How long a datagram to itself may take, on a machine whose softirqs wait for the processor.
const PATIENCE: Duration = Duration::from_millis(200);
/// Rounds until one socket must be left.
const ROUNDS: u32 = 6;
/// Probes against a socket that drops by itself, and how often.
const BURST: u32 = 64;
const BURSTS: u32 = 8;
/// Sockets of others that are searched through.
const FOREIGN: usize = 256;

/// The host cannot send datagrams to itself.
struct Unreachable;

struct Flow {
    socket: OwnedFd,
    own: SocketAddr,
}

struct Prober {
    flows: Vec<Flow>,
    /// Where a control's datagrams end, read by nobody: they cost what probes cost.
    sink: Flow,
    family: Family,
    to: SocketAddr,
    token: u32,
    count: Cell<u64>,
}

fn loopback(family: Family, port: u16) -> SocketAddr {
    let ip: IpAddr = match family {
        Family::V4 => Ipv4Addr::LOCALHOST.into(),
        Family::V6 => Ipv6Addr::LOCALHOST.into(),
    };
    SocketAddr::new(ip, port)
}

/// The address family's number.
pub(crate) fn domain(family: Family) -> AddressFamily {
    match family {
        Family::V4 => AddressFamily::INET,
        Family::V6 => AddressFamily::INET6,
    }
}

/// Takes a socket out of its group: connecting changes its local address, and that detaches it
/// (`udp_lib_rehash`), whoever else holds the socket.
pub(crate) fn expel(family: Family, socket: impl AsFd) -> rustix::io::Result<()> {
    const DISCARD: u16 = 9;
    rustix::net::connect(socket, &loopback(family, DISCARD))
}

/// A new source port.
fn flow(family: Family) -> rustix::io::Result<Flow> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(domain(family), SocketType::DGRAM, flags, None)?;
    rustix::net::bind(&socket, &loopback(family, 0))?;
    let own = rustix::net::getsockname(&socket)?;
    let own = match family {
        Family::V4 => SocketAddr::V4(SocketAddrV4::try_from(own)?),
        Family::V6 => SocketAddr::V6(SocketAddrV6::try_from(own)?),
    };
    Ok(Flow { socket, own })
}

fn read<F: AsFd>(sockets: &[F], which: &[usize]) -> Vec<u32> {
    which.iter().map(|i| sys::drops(&sockets[*i]).unwrap_or(0)).collect()
}

impl Prober {
    fn new(family: Family, port: u16, token: u32) -> Option<Self> {
        let flows = (0..FLOWS).map(|_| flow(family).ok()).collect::<Option<_>>()?;
        let (sink, to) = (flow(family).ok()?, loopback(family, port));
        Some(Prober { flows, sink, family, to, token, count: Cell::new(0) })
    }

    /// Sends the same probe some times, or as many datagrams to the sink as a control, and returns
    /// when all are delivered.
    fn send(&self, flow: &Flow, probe: Option<u32>, times: u32) -> Result<(), Unreachable> {
        self.send_all(flow, &mut std::iter::repeat_n(probe, times as usize))
    }

    /// The same for any probes.
    fn send_all(
        &self,
        flow: &Flow,
        probes: &mut dyn Iterator<Item = Option<u32>>,
    ) -> Result<(), Unreachable> {
        let Flow { socket, own } = flow;
        let count = self.count.get() + 1;
        self.count.set(count);
        let marker = (u64::from(self.token) << 32 | count).to_be_bytes();
        let send = |bytes: &[u8], to| {
            let sent = rustix::net::sendto(socket, bytes, SendFlags::NOSIGNAL, to);
            sent.map(drop).map_err(|_| Unreachable)
        };
        for probe in probes {
            match probe {
                Some(index) => send(&steer::probe(index), &self.to)?,
                None => send(&[0; steer::PROBE_BYTES], &self.sink.own)?,
            }
        }
        send(&marker, own)?;
        let deadline = Instant::now() + PATIENCE;
        // Others may send there too, and without end.
        loop {
            // Before the time is looked at: what is there counts, however late this thread is.
            let mut bytes = [0; steer::PROBE_BYTES];
            let got = rustix::net::recv(socket, &mut bytes[..], RecvFlags::DONTWAIT);
            if got.is_ok_and(|(_, len)| bytes[..len.min(bytes.len())] == marker) {
                return Ok(());
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(Unreachable);
            }
            if got.is_ok() {
                continue;
            }
            let left = Timespec { tv_sec: 0, tv_nsec: left.as_nanos() as _ };
            let _ = poll(&mut [PollFd::new(socket, PollFlags::IN)], Some(&left));
        }
    }

    /// Which of `candidates` drops a probe for this index.
    fn who<F: AsFd>(
        &self,
        flow: &Flow,
        index: u32,
        sockets: &[F],
        candidates: &[usize],
    ) -> Result<Vec<usize>, Unreachable> {
        let before = read(sockets, candidates);
        self.send(flow, None, 1)?;
        let between = read(sockets, candidates);
        self.send(flow, Some(index), 1)?;
        let after = read(sockets, candidates);
        let (mut hit, mut noisy) = (Vec::new(), Vec::new());
        for (i, at) in candidates.iter().enumerate() {
            if before[i] != between[i] {
                noisy.push(*at);
            } else if between[i] != after[i] {
                hit.push(*at);
            }
        }
        if !hit.is_empty() || noisy.is_empty() {
            return Ok(hit);
        }
        self.who_by_bursts(flow, index, sockets, noisy)
    }

    /// The same of candidates that drop by themselves.
    fn who_by_bursts<F: AsFd>(
        &self,
        flow: &Flow,
        index: u32,
        sockets: &[F],
        noisy: Vec<usize>,
    ) -> Result<Vec<usize>, Unreachable> {
        let mut least = vec![(u32::MAX, u32::MAX); noisy.len()];
        for _ in 0..BURSTS {
            let before = read(sockets, &noisy);
            self.send(flow, None, BURST)?;
            let between = read(sockets, &noisy);
            self.send(flow, Some(index), BURST)?;
            let after = read(sockets, &noisy);
            for (i, (control, probed)) in least.iter_mut().enumerate() {
                *control = (*control).min(between[i].wrapping_sub(before[i]));
                *probed = (*probed).min(after[i].wrapping_sub(between[i]));
            }
        }
        let is_hit = |(control, probed): (u32, u32)| {
            probed >= BURST && probed.saturating_sub(control) >= BURST / 2
        };
        let judged = noisy.into_iter().zip(least);
        Ok(judged.filter(|(_, least)| is_hit(*least)).map(|(at, _)| at).collect())
    }

    /// Which socket seems to be at each index, found out for all at once: in a round for each bit
    /// of their numbers, the indices with that bit get a probe, and each socket that drops one has
    /// the bit in its own. One by one takes a look at every socket for every index.
    fn guess<F: AsFd>(&self, sockets: &[F]) -> Result<Vec<Option<usize>>, Unreachable> {
        let all: Vec<usize> = (0..sockets.len()).collect();
        let flow = self.flows.first().ok_or(Unreachable)?;
        // From 1 on: none of them is without a bit.
        let numbers = 1..=sockets.len() as u32;
        let mut found = vec![0; sockets.len()];
        for bit in 0..u32::BITS - numbers.end().leading_zeros() {
            let before = read(sockets, &all);
            let probed = numbers.clone().filter(|number| number >> bit & 1 != 0);
            self.send_all(flow, &mut probed.map(|number| Some(number - 1)))?;
            let after = read(sockets, &all);
            for (socket, number) in found.iter_mut().enumerate() {
                *number |= u32::from(before[socket] != after[socket]) << bit;
            }
        }
        let mut guess = vec![None; sockets.len()];
        for (socket, number) in found.into_iter().enumerate() {
            if let Some(place) = (number as usize).checked_sub(1).and_then(|at| guess.get_mut(at)) {
                *place = Some(socket);
            }
        }
        Ok(guess)
    }

    /// The socket at an index, found the same at least twice. It is looked at the one that is
    /// guessed first.
    fn at<F: AsFd>(
        &self,
        index: u32,
        sockets: &[F],
        guess: Option<usize>,
    ) -> Result<Option<usize>, Unreachable> {
        let mut flows = self.flows.iter().cycle();
        let mut who = |left: &[usize]| match flows.next() {
            Some(flow) => self.who(flow, index, sockets, left),
            None => Err(Unreachable),
        };
        if let Some(guess) = guess
            && who(&[guess])? == [guess]
            && who(&[guess])? == [guess]
        {
            return Ok(Some(guess));
        }
        let all: Vec<usize> = (0..sockets.len()).collect();
        let mut left = who(&all)?;
        if left.is_empty() {
            left = who(&all)?;
        }
        for _ in 1..ROUNDS {
            if left.is_empty() {
                break;
            }
            left = who(&left)?;
            if left.len() < 2 {
                break;
            }
        }
        Ok(if let [only] = left[..] { Some(only) } else { None })
    }

    /// A flow that the kernel's hash leads to a socket of ours, and that socket.
    fn tell<F: AsFd>(&self, sockets: &[F]) -> Result<Option<(Flow, usize)>, Unreachable> {
        let all: Vec<usize> = (0..sockets.len()).collect();
        for _ in 0..TELLS {
            let flow = flow(self.family).map_err(|_| Unreachable)?;
            let hit = self.who(&flow, u32::MAX, sockets, &all)?;
            if let [socket] = self.who(&flow, u32::MAX, sockets, &hit)?[..] {
                return Ok(Some((flow, socket)));
            }
        }
        Ok(None)
    }

    fn order<F: AsFd>(&self, sockets: &[F]) -> Result<Vec<Option<usize>>, Unreachable> {
        let tell = self.tell(sockets)?;
        let is_beyond = |index: u32| match &tell {
            Some((flow, at)) => Ok(!self.who(flow, index, sockets, &[*at])?.is_empty()),
            None => Ok(false),
        };
        // Where it cannot be made, each is searched for.
        let guess = self.guess(sockets).unwrap_or_default();
        let mut order: Vec<Option<usize>> = Vec::new();
        let mut missing = sockets.len();
        while order.len() < sockets.len() + FOREIGN {
            let index = order.len() as u32;
            let guess = guess.get(order.len()).copied().flatten();
            let guess = guess.filter(|at| !order.contains(&Some(*at)));
            let found = if missing > 0 { self.at(index, sockets, guess)? } else { None };
            if found.is_some() && !order.contains(&found) {
                missing -= 1;
            } else if found.is_some() || is_beyond(index)? {
                break;
            }
            order.push(found);
            if missing == 0 && tell.is_none() {
                // Where the group ends is not known; that is as good as one more of others.
                order.push(None);
                break;
            }
        }
        Ok(order)
    }
}

/// The order of a family's group on a port; see [`crate::server::kernel::Kernel::locate`].
pub(crate) fn locate<F: AsFd>(
    family: Family,
    port: u16,
    token: u32,
    sockets: &[F],
) -> Option<Vec<Option<usize>>> {
    let prober = Prober::new(family, port, token)?;
    prober.order(sockets).ok()
}

/// Whether sockets are at their indices; see [`crate::server::kernel::Kernel::are_at`].
pub(crate) fn are_at<F: AsFd>(
    family: Family,
    port: u16,
    token: u32,
    expected: &[(F, u32)],
) -> Option<bool> {
    let prober = Prober::new(family, port, token)?;
    let sockets: Vec<_> = expected.iter().map(|(socket, _)| socket.as_fd()).collect();
    let is_at = |(socket, index): (&BorrowedFd<'_>, u32)| {
        prober.at(index, std::slice::from_ref(socket), None).map(|found| found.is_some())
    };
    let indices = expected.iter().map(|(_, index)| *index);
    let mut found = sockets.iter().zip(indices).map(is_at);
    // The first that is elsewhere, or the first failure, decides.
    match found.find(|is_at| !matches!(is_at, Ok(true))) {
        None => Some(true),
        Some(is_at) => is_at.ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plain(map: &BTreeMap<u16, u32>) -> Vec<steer::Insn> {
        let services = &BTreeMap::new();
        steer::program(steer::Plan { map, leader: 0, services, v6: false })
    }
    use std::collections::BTreeMap;
    use std::net::UdpSocket;

    fn member(family: Family, port: u16) -> OwnedFd {
        crate::system::linux::socket(family, port).unwrap().unwrap()
    }

    fn free_port() -> u16 {
        UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
    }

    /// What the group module assumes about the kernel: bind appends, close and expulsion move the
    /// last socket into the hole, the program sees the UDP payload at offset 0.
    #[test]
    fn the_kernel_orders_a_group_as_assumed() {
        for family in [Family::V4, Family::V6] {
            let port = free_port();
            let Ok(Some(_)) = crate::system::linux::socket(family, 0) else { continue };
            let mut sockets: Vec<OwnedFd> = (0..5).map(|_| member(family, port)).collect();
            sys::steer_group(&sockets[0], &plain(&BTreeMap::new())).unwrap();
            let order = |sockets: &[OwnedFd]| locate(family, port, 1, sockets).unwrap();
            let identity = |n| (0..n).map(Some).collect::<Vec<_>>();
            assert_eq!(order(&sockets), identity(5));

            sockets.swap_remove(1);
            assert_eq!(order(&sockets), identity(4), "close moves the last into the hole");

            let copy = rustix::io::fcntl_dupfd_cloexec(&sockets[0], 0).unwrap();
            expel(family, &copy).unwrap();
            let held = sockets.swap_remove(0);
            assert_eq!(order(&sockets), identity(3), "expulsion works although others hold it");
            drop(held);

            sockets.push(member(family, port));
            assert_eq!(order(&sockets), identity(4), "bind appends");
            let expected: Vec<_> = sockets.iter().zip(0..).collect();
            assert_eq!(are_at(family, port, 2, &expected), Some(true));
            assert_eq!(are_at(family, port, 2, &[(&sockets[3], 2)]), Some(false));
        }
    }

    /// The verifier takes the largest programs, within the option memory that newer kernels allow
    /// by default; older ones allow a sixth, and refuse with ENOMEM.
    #[test]
    fn the_kernel_takes_the_program_for_any_number_of_members() {
        let socket = member(Family::V4, free_port());
        let optmem = std::fs::read_to_string("/proc/sys/net/core/optmem_max").unwrap();
        let enough: bool = optmem.trim().parse::<u32>().unwrap() >= 1 << 16;
        for members in [1, 300, 512, 1023_u32] {
            let map = (0..members).map(|i| ((i * 2 % 1023 + 1) as u16, i * 7 % 1023)).collect();
            let attached = sys::steer_group(&socket, &plain(&map));
            let allowed = enough || members <= 300;
            assert!(attached.is_ok() || !allowed, "{members} members: {attached:?}");
        }
    }

    #[test]
    fn the_order_of_a_large_group_is_found_whatever_is_expected() {
        let port = free_port();
        let mut sockets: Vec<OwnedFd> = (0..300).map(|_| member(Family::V4, port)).collect();
        sys::steer_group(&sockets[0], &plain(&BTreeMap::new())).unwrap();
        sockets.reverse();
        let order = locate(Family::V4, port, 1, &sockets).unwrap();
        assert_eq!(order, (0..300).rev().map(Some).collect::<Vec<_>>());
    }

    #[test]
    fn sockets_of_others_are_seen_as_such() {
        let port = free_port();
        let mut sockets: Vec<OwnedFd> = (0..6).map(|_| member(Family::V4, port)).collect();
        sys::steer_group(&sockets[0], &plain(&BTreeMap::new())).unwrap();
        let _foreign = [sockets.remove(4), sockets.remove(1)];
        let order = locate(Family::V4, port, 1, &sockets).unwrap();
        assert_eq!(order, [Some(0), None, Some(1), Some(2), None, Some(3)]);
    }

    #[test]
    fn a_socket_that_drops_for_other_reasons_confuses_nobody() {
        let port = free_port();
        let sockets: Vec<OwnedFd> = (0..3).map(|_| member(Family::V4, port)).collect();
        sys::steer_group(&sockets[0], &plain(&[(1, 2)].into())).unwrap();
        let flood = UdpSocket::bind("127.0.0.1:0").unwrap();
        let stop = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut packet = [0_u8; 1024];
                packet[5] = 0; // slot 1 is 0x004000
                packet[6] = 0x40;
                while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                    let _ = flood.send_to(&packet, ("127.0.0.1", port));
                }
            });
            while sys::drops(&sockets[2]).unwrap() == 0 {
                std::thread::yield_now();
            }
            let order = locate(Family::V4, port, 7, &sockets);
            stop.store(true, std::sync::atomic::Ordering::Relaxed);
            assert_eq!(order.unwrap(), [Some(0), Some(1), Some(2)]);
        });
    }
}
