//! The port: its state and its GID table, which follow the host's interfaces.
//!
//! Whoever asks gets both as they are at that moment. The progress thread looks as soon as the
//! kernel tells of a change ([`link::Watch`]), so that events come without anybody asking. Where
//! the system does not tell, every question looks.

use engine_thread::lock;
use link::{Changes, GidEntry, GidTable, Interfaces, Watch};
use rustix::fd::{AsFd, BorrowedFd};
use std::io;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard};
use transport::values::EventType;

/// Largest path MTU in bytes.
const MAX_MTU: u32 = 4096;

/// The port of a device; where it has several, what each of them shows: all are on the same
/// interfaces.
pub(crate) struct Port {
    watch: Option<Watch>,
    /// Nothing of the host's changes it.
    fixed: bool,
    /// It is on some of the host's interfaces only.
    limited: bool,
    known: Mutex<Known>,
    /// The active MTU that is known, for whoever asks with each packet.
    active_mtu: AtomicU32,
}

/// What is known of the port.
#[derive(Default)]
pub(crate) struct Known {
    pub(crate) gids: GidTable,
    pub(crate) state: PortStatus,
    /// There was a change that nobody has looked at yet.
    stale: bool,
}

/// Whether the port carries packets.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct PortStatus {
    /// Port state ACTIVE, otherwise DOWN.
    pub(crate) active: bool,
    /// An interface other than loopback was up once.
    wired: bool,
}

impl PortStatus {
    /// What follows when the port has `entries` from now on. A host without a network has an active
    /// port for traffic with itself; where there was a network, the loss of its last interface is
    /// what pulling the cable is to a real port.
    fn next<'a>(self, entries: impl Iterator<Item = &'a GidEntry>) -> PortStatus {
        let (mut wire, mut loopback) = (false, false);
        for entry in entries.filter(|entry| entry.up) {
            wire |= !entry.loopback;
            loopback |= entry.loopback;
        }
        let wired = self.wired || wire;
        PortStatus { active: wire || (loopback && !wired), wired }
    }
}

impl Known {
    /// Takes over `changes` of the table and answers with the events that tell of them.
    fn follow(&mut self, changes: &Changes) -> impl Iterator<Item = EventType> + use<> {
        let before = self.state;
        self.state = before.next(self.gids.iter().map(|(_, entry)| entry));
        let port = match (before.active, self.state.active) {
            (true, false) => Some(EventType::PortErr),
            (false, true) => Some(EventType::PortActive),
            _ => None,
        };
        let moved = !changes.added.is_empty() || !changes.removed.is_empty();
        port.into_iter().chain(moved.then_some(EventType::GidChange))
    }
}

impl Port {
    /// The port over some of the interfaces of the calling thread's network namespace.
    ///
    /// # Errors
    /// When the kernel does not list interfaces and addresses (rtnetlink).
    pub(crate) fn open(interfaces: Interfaces) -> io::Result<Port> {
        // Listening comes first: nothing happens unheard between the two.
        let watch = Watch::open().ok();
        let limited = interfaces != Interfaces::default();
        let mut known = Known { gids: GidTable::on(interfaces), ..Known::default() };
        let changes = known.gids.refresh()?;
        let _ = known.follow(&changes);
        let active_mtu = AtomicU32::new(known.gids.active_mtu());
        Ok(Port { watch, fixed: false, limited, known: Mutex::new(known), active_mtu })
    }

    /// A port of an InfiniBand subnet that is always up, with one address.
    pub(crate) fn of_subnet(ip: IpAddr) -> Port {
        let gids = GidTable::of_loopback(ip);
        let active_mtu = AtomicU32::new(gids.active_mtu());
        let state = PortStatus { active: true, wired: false };
        let known = Mutex::new(Known { gids, state, stale: false });
        Port { watch: None, fixed: true, limited: false, known, active_mtu }
    }

    /// A port of an Ethernet that is always up; who makes it fills its GIDs in.
    pub(crate) fn of_ethernet() -> Port {
        let state = PortStatus { active: true, wired: false };
        let known = Mutex::new(Known { gids: GidTable::default(), state, stale: false });
        let active_mtu = AtomicU32::new(MAX_MTU);
        Port { watch: None, fixed: true, limited: false, known, active_mtu }
    }

    /// Readable when the interfaces changed; `None` where the system does not tell.
    pub(crate) fn watch_fd(&self) -> Option<BorrowedFd<'_>> {
        self.watch.as_ref().map(AsFd::as_fd)
    }

    /// Bytes of the path MTU that all interfaces carried when somebody looked last, 256 to 4096.
    pub(crate) fn active_mtu(&self) -> u32 {
        self.active_mtu.load(Relaxed)
    }

    /// Whether the port takes what is sent to an address of the host's, or to a group.
    pub(crate) fn takes(&self, destination: IpAddr) -> bool {
        !self.limited || destination.is_multicast() || self.known().gids.find(destination).is_some()
    }

    /// What was known when somebody looked last.
    pub(crate) fn known(&self) -> MutexGuard<'_, Known> {
        lock(&self.known)
    }

    /// What is so now. `report` hears of each event in its order, with the port locked: it must
    /// only queue and wake. When the system cannot tell, the last known stands.
    pub(crate) fn now(&self, report: impl FnMut(EventType)) -> MutexGuard<'_, Known> {
        let mut known = self.known();
        known.stale |= !self.fixed && self.watch.as_ref().is_none_or(Watch::changed);
        if known.stale
            && let Ok(changes) = known.gids.refresh()
        {
            known.stale = false;
            self.active_mtu.store(known.gids.active_mtu(), Relaxed);
            known.follow(&changes).for_each(report);
        }
        known
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    fn entry(loopback: bool, up: bool) -> GidEntry {
        let ip = Ipv4Addr::LOCALHOST.into();
        GidEntry { gid: [0; 16], ip, ifindex: 1, ifname: String::new(), mtu: 1500, up, loopback }
    }

    #[test]
    fn loopback_holds_a_port_up_until_there_was_a_wire() {
        let (lo, up, down) = (entry(true, true), entry(false, true), entry(false, false));
        let alone = PortStatus::default().next([&lo].into_iter());
        assert!(alone.active);
        assert!(alone.next([&lo, &down].into_iter()).active, "a bridge without a carrier");
        assert!(!alone.next(std::iter::empty()).active);
        let wired = alone.next([&lo, &up].into_iter());
        assert!(wired.active);
        let pulled = wired.next([&lo, &down].into_iter());
        assert!(!pulled.active);
        assert!(!pulled.next([&lo].into_iter()).active, "set down");
        assert!(pulled.next([&up].into_iter()).active);
    }

    #[test]
    fn events_tell_of_edges_only() {
        let mut known = Known::default();
        let events = |known: &mut Known, changes: Changes| -> Vec<u32> {
            known.follow(&changes).map(|event| event as u32).collect()
        };
        let came = Changes { added: vec![0], ..Changes::default() };
        let slower = Changes { changed: vec![0], ..Changes::default() };
        assert_eq!(events(&mut known, came), [EventType::GidChange as u32]);
        assert_eq!(events(&mut known, slower), []);
        known.state.active = true;
        let gone = Changes { removed: vec![0], ..Changes::default() };
        let expected = [EventType::PortErr as u32, EventType::GidChange as u32];
        assert_eq!(events(&mut known, gone), expected);
    }
}
