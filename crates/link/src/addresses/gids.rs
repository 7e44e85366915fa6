//! The GID table of a port: every address of every interface that is up.
//!
//! All entries are RoCEv2. At first the table is sorted so that index 0 is the address that most
//! programs want: routable IPv4, then global IPv6, then link-local, loopback last; interfaces with
//! a carrier before those without. From then on indices are stable: an address that goes leaves a
//! hole, and one that comes takes the first hole, its old one before others.

use crate::addresses::netlink::{self, Address, Interface};
use std::collections::HashSet;
use std::io;
use std::net::{IpAddr, Ipv6Addr};

/// How many entries a table has.
pub const GID_TABLE_LEN: usize = 256;

/// Bytes that stand around the payload of a packet at most: IPv6 and UDP header, and the longest
/// transport headers that go with payload (BTH, XRCETH, RETH, immediate data) with the ICRC. An
/// interface with the customary RoCE MTU of 4200 so carries 4096.
const PACKET_OVERHEAD_BYTES: u32 = 40 + 8 + (12 + 4 + 16 + 4) + 4;

/// An address of this host, as a GID.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GidEntry {
    /// The address itself; IPv4 as an IPv4-mapped IPv6 address (IBA A17.8).
    pub gid: [u8; 16],
    /// The address.
    pub ip: IpAddr,
    /// Index of its interface.
    pub ifindex: u32,
    /// Name of its interface.
    pub ifname: String,
    /// MTU of its interface in bytes.
    pub mtu: u32,
    /// Whether the interface has a carrier. Interfaces that are set down have no entries.
    pub up: bool,
    /// Whether the interface is loopback.
    pub loopback: bool,
}

impl GidEntry {
    /// What stands in a place that nobody had.
    fn nobody() -> GidEntry {
        GidEntry {
            gid: [0; 16],
            ip: Ipv6Addr::UNSPECIFIED.into(),
            ifindex: 0,
            ifname: String::new(),
            mtu: 0,
            up: false,
            loopback: false,
        }
    }
}

/// What [`GidTable::refresh`] found: indices.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Changes {
    /// New entries.
    pub added: Vec<usize>,
    /// Entries that are gone.
    pub removed: Vec<usize>,
    /// Entries whose interface changed its name, MTU or carrier.
    pub changed: Vec<usize>,
}

impl Changes {
    /// Whether nothing changed.
    pub fn is_empty(&self) -> bool {
        self.added.is_empty() && self.removed.is_empty() && self.changed.is_empty()
    }
}

/// The interfaces that a port is on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Interfaces {
    /// Those of these names.
    Only(Vec<String>),
    /// All but those of these names.
    AllBut(Vec<String>),
}

impl Default for Interfaces {
    fn default() -> Interfaces {
        Interfaces::AllBut(Vec::new())
    }
}

impl Interfaces {
    /// Whether the interface of this name is one of them.
    pub fn have(&self, name: &str) -> bool {
        match self {
            Interfaces::Only(names) => names.iter().any(|own| own == name),
            Interfaces::AllBut(names) => names.iter().all(|other| other != name),
        }
    }
}

/// The GIDs of a port, by index.
#[derive(Default)]
pub struct GidTable {
    interfaces: Interfaces,
    slots: Vec<Slot>,
    /// Addresses of this host's other interfaces.
    elsewhere: Vec<IpAddr>,
}

struct Slot {
    entry: GidEntry,
    /// False in a hole, which remembers who was there.
    present: bool,
}

impl GidTable {
    /// Reads the addresses of the calling thread's network namespace.
    ///
    /// # Errors
    /// When the kernel does not list interfaces and addresses (rtnetlink).
    pub fn new() -> io::Result<GidTable> {
        GidTable::of(Interfaces::default())
    }

    /// The same of some interfaces.
    ///
    /// # Errors
    /// As [`GidTable::new`].
    pub fn of(interfaces: Interfaces) -> io::Result<GidTable> {
        let mut table = GidTable::on(interfaces);
        table.refresh()?;
        Ok(table)
    }

    /// A table of these interfaces that nobody filled yet.
    pub fn on(interfaces: Interfaces) -> GidTable {
        GidTable { interfaces, ..GidTable::default() }
    }

    /// A table of `ip` alone, an address of the loopback interface.
    pub fn of_loopback(ip: IpAddr) -> GidTable {
        let entry = GidEntry {
            gid: gid_of_ip(ip),
            ip,
            ifindex: 1,
            ifname: "lo".to_owned(),
            mtu: 65536,
            up: true,
            loopback: true,
        };
        GidTable { slots: vec![Slot { entry, present: true }], ..GidTable::default() }
    }

    /// Puts `entry` at `index`, or empties it, in a table that follows no interface. Beyond
    /// [`GID_TABLE_LEN`] is no place.
    pub fn set(&mut self, index: usize, entry: Option<GidEntry>) {
        if index >= GID_TABLE_LEN {
            return;
        }
        let nobody = || Slot { entry: GidEntry::nobody(), present: false };
        if self.slots.len() <= index {
            self.slots.resize_with(index + 1, nobody);
        }
        self.slots[index] = match entry {
            Some(entry) => Slot { entry, present: true },
            None => nobody(),
        };
    }

    /// Reads the addresses again.
    ///
    /// # Errors
    /// As [`GidTable::new`]; the table then stays as it was.
    pub fn refresh(&mut self) -> io::Result<Changes> {
        let addresses = netlink::addresses()?;
        Ok(self.update(entries(&netlink::interfaces()?, &addresses)))
    }

    fn update(&mut self, all: Vec<GidEntry>) -> Changes {
        let (mut now, others): (Vec<_>, Vec<_>) =
            all.into_iter().partition(|entry| self.interfaces.have(&entry.ifname));
        self.elsewhere = others.into_iter().map(|entry| entry.ip).collect();
        let mut changes = Changes::default();
        for (index, slot) in self.slots.iter_mut().enumerate() {
            let same =
                |entry: &GidEntry| (entry.ip, entry.ifindex) == (slot.entry.ip, slot.entry.ifindex);
            match now.iter().position(same) {
                Some(found) => {
                    let entry = now.remove(found);
                    if !slot.present {
                        changes.added.push(index);
                    } else if slot.entry != entry {
                        changes.changed.push(index);
                    }
                    *slot = Slot { entry, present: true };
                }
                None if slot.present => {
                    slot.present = false;
                    changes.removed.push(index);
                }
                None => {}
            }
        }
        for entry in now {
            let slot = Slot { entry, present: true };
            let index = self.slots.iter().position(|slot| !slot.present);
            match index {
                Some(index) => self.slots[index] = slot,
                None if self.slots.len() < GID_TABLE_LEN => self.slots.push(slot),
                None => break,
            }
            changes.added.push(index.unwrap_or(self.slots.len() - 1));
        }
        changes.added.sort_unstable();
        changes
    }

    /// The entry at `index`; `None` for a hole and beyond the end.
    pub fn get(&self, index: usize) -> Option<&GidEntry> {
        self.slots.get(index).filter(|slot| slot.present).map(|slot| &slot.entry)
    }

    /// Every entry with its index.
    pub fn iter(&self) -> impl Iterator<Item = (usize, &GidEntry)> {
        let slots = self.slots.iter().enumerate();
        slots.filter(|(_, slot)| slot.present).map(|(index, slot)| (index, &slot.entry))
    }

    /// The first entry of an address. IPv4-mapped addresses count as IPv4.
    pub fn find(&self, ip: IpAddr) -> Option<(usize, &GidEntry)> {
        let ip = ip.to_canonical();
        self.iter().find(|(_, entry)| entry.ip == ip)
    }

    /// Whether an address is this host's, on whichever interface.
    pub fn is_here(&self, ip: IpAddr) -> bool {
        self.find(ip).is_some() || self.elsewhere.contains(&ip.to_canonical())
    }

    /// The largest path MTU of InfiniBand, 256 to 4096 bytes, whose packets fit every interface
    /// with an entry and a carrier; loopback counts only where there is no other.
    pub fn active_mtu(&self) -> u32 {
        let least = |loopback| {
            let alike = self.iter().filter(move |(_, e)| e.up && e.loopback == loopback);
            alike.map(|(_, entry)| entry.mtu).min()
        };
        let least = least(false).or_else(|| least(true)).unwrap_or(u32::MAX);
        [4096, 2048, 1024, 512]
            .into_iter()
            .find(|mtu| mtu + PACKET_OVERHEAD_BYTES <= least)
            .unwrap_or(256)
    }
}

/// The addresses that interfaces of this network namespace have now, however many: a table holds
/// the first [`GID_TABLE_LEN`] only. IPv4 addresses are plain ones.
///
/// # Errors
/// As [`GidTable::new`].
pub fn addresses_on(interfaces: &Interfaces) -> io::Result<HashSet<IpAddr>> {
    let all = entries(&netlink::interfaces()?, &netlink::addresses()?);
    Ok(all.into_iter().filter(|entry| interfaces.have(&entry.ifname)).map(|e| e.ip).collect())
}

/// The address that a GID stands for.
pub fn ip_of_gid(gid: [u8; 16]) -> IpAddr {
    Ipv6Addr::from(gid).to_canonical()
}

/// The GID of an address.
pub fn gid_of_ip(ip: IpAddr) -> [u8; 16] {
    match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
        IpAddr::V6(ip) => ip.octets(),
    }
}

fn entries(interfaces: &[Interface], addresses: &[Address]) -> Vec<GidEntry> {
    let mut entries: Vec<_> = addresses
        .iter()
        .filter(|address| address.usable)
        .filter_map(|address| {
            let mut owners = interfaces.iter().filter(|interface| interface.up);
            let owner = owners.find(|interface| interface.index == address.ifindex)?;
            Some(GidEntry {
                gid: gid_of_ip(address.ip),
                ip: address.ip,
                ifindex: owner.index,
                ifname: owner.name.clone(),
                mtu: owner.mtu,
                up: owner.running,
                loopback: owner.loopback,
            })
        })
        .collect();
    entries.sort_by_key(|entry| (entry.loopback, kind(entry.ip), !entry.up, entry.ifindex));
    entries
}

/// IPv4, global IPv6, link-local.
fn kind(ip: IpAddr) -> u8 {
    match ip {
        IpAddr::V4(ip) => 2 * u8::from(ip.is_link_local()),
        IpAddr::V6(ip) => 1 + u8::from(ip.is_unicast_link_local()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn interface(index: u32, mtu: u32) -> Interface {
        let loopback = index == 1;
        let name = format!("if{index}");
        Interface { index, name, mtu, up: true, running: true, loopback }
    }

    fn address(ifindex: u32, ip: &str) -> Address {
        Address { ifindex, ip: ip.parse().unwrap(), usable: true }
    }

    fn listed(table: &GidTable) -> Vec<(usize, String)> {
        table.iter().map(|(index, entry)| (index, entry.ip.to_string())).collect()
    }

    #[test]
    fn order_puts_routable_ipv4_first_and_loopback_last() {
        let mut bridge = interface(2, 1500);
        bridge.running = false;
        let mut down = interface(4, 1500);
        down.up = false;
        let interfaces = [interface(1, 65536), bridge, interface(3, 1500), down];
        let mut tentative = address(3, "2001:db8::9");
        tentative.usable = false;
        let addresses = [
            address(1, "127.0.0.1"),
            address(2, "172.17.0.1"),
            address(3, "192.0.2.1"),
            address(4, "192.0.2.9"),
            address(1, "::1"),
            address(3, "fe80::1"),
            address(3, "2001:db8::1"),
            tentative,
        ];
        let mut table = GidTable::default();
        table.update(entries(&interfaces, &addresses));
        let order = ["192.0.2.1", "172.17.0.1", "2001:db8::1", "fe80::1", "127.0.0.1", "::1"];
        assert!(listed(&table).iter().map(|(_, ip)| ip.as_str()).eq(order));
        assert_eq!(table.get(0).unwrap().gid[10..], [0xff, 0xff, 192, 0, 2, 1]);
        assert_eq!(table.find("::ffff:192.0.2.1".parse().unwrap()).unwrap().0, 0);
        assert_eq!(ip_of_gid(table.get(0).unwrap().gid), table.get(0).unwrap().ip);
        assert!(!table.get(1).unwrap().up);
    }

    #[test]
    fn indices_are_stable() {
        let interfaces = [interface(1, 65536), interface(2, 1500)];
        let (a, b) = (address(2, "192.0.2.1"), address(2, "192.0.2.2"));
        let (c, lo) = (address(2, "192.0.2.3"), address(1, "127.0.0.1"));
        let mut table = GidTable::default();
        let changes = table.update(entries(&interfaces, &[a, b, lo]));
        assert_eq!(changes, Changes { added: vec![0, 1, 2], ..Changes::default() });

        let changes = table.update(entries(&interfaces, &[b, lo]));
        assert_eq!(changes, Changes { removed: vec![0], ..Changes::default() });
        assert_eq!(table.get(0), None);
        assert_eq!(table.get(1).unwrap().ip, b.ip);

        let changes = table.update(entries(&interfaces, &[lo]));
        assert_eq!(changes, Changes { removed: vec![1], ..Changes::default() });
        // Both holes are free; b goes back to its own, c takes the first.
        let changes = table.update(entries(&interfaces, &[c, b, lo]));
        assert_eq!(changes, Changes { added: vec![0, 1], ..Changes::default() });
        assert_eq!(table.get(0).unwrap().ip, c.ip);
        assert_eq!(table.get(1).unwrap().ip, b.ip);
        assert_eq!(table.get(2).unwrap().ip, lo.ip);

        let slower = [interface(1, 65536), interface(2, 1400)];
        let changes = table.update(entries(&slower, &[c, b, lo]));
        assert_eq!(changes, Changes { changed: vec![0, 1], ..Changes::default() });
        assert!(table.update(entries(&slower, &[c, b, lo])).is_empty());
    }

    #[test]
    fn a_port_has_the_addresses_of_its_interfaces() {
        let interfaces = [interface(1, 65536), interface(2, 1500), interface(3, 1500)];
        let addresses =
            [address(1, "127.0.0.1"), address(2, "192.0.2.1"), address(3, "198.51.100.1")];
        let named = || vec!["if2".to_owned()];
        let mut only = GidTable::on(Interfaces::Only(named()));
        only.update(entries(&interfaces, &addresses));
        assert_eq!(listed(&only), [(0, "192.0.2.1".to_owned())]);
        let mut others = GidTable::on(Interfaces::AllBut(named()));
        others.update(entries(&interfaces, &addresses));
        let rest = [(0, "198.51.100.1".to_owned()), (1, "127.0.0.1".to_owned())];
        assert_eq!(listed(&others), rest);
        assert!(others.is_here("192.0.2.1".parse().unwrap()));
        assert!(!others.is_here("192.0.2.2".parse().unwrap()));
        let changes = others.update(entries(&interfaces, &addresses[..2]));
        assert_eq!(changes.removed, [0]);
    }

    #[test]
    fn a_full_table_takes_no_more() {
        let many: Vec<_> =
            (0..300).map(|low| address(2, &format!("10.0.{}.{}", low / 250, low % 250))).collect();
        let mut table = GidTable::default();
        let changes = table.update(entries(&[interface(2, 1500)], &many));
        assert_eq!(changes.added.len(), GID_TABLE_LEN);
        assert_eq!(table.iter().count(), GID_TABLE_LEN);
        assert_eq!(table.get(GID_TABLE_LEN), None);
        // The first hole goes to one that waited outside.
        let changes = table.update(entries(&[interface(2, 1500)], &many[1..]));
        assert_eq!((changes.removed, changes.added), (vec![0], vec![0]));
    }

    #[test]
    fn active_mtu_fits_the_smallest_interface() {
        let table = |mtus: &[u32]| {
            let mut interfaces = vec![interface(1, 65536)];
            let mut addresses = vec![address(1, "127.0.0.1")];
            for (index, mtu) in (2..).zip(mtus) {
                interfaces.push(interface(index, *mtu));
                addresses.push(address(index, &format!("10.0.0.{index}")));
            }
            let mut table = GidTable::default();
            table.update(entries(&interfaces, &addresses));
            table
        };
        for (mtus, active) in [
            (&[][..], 4096),
            (&[9000], 4096),
            (&[4200], 4096),
            (&[4183], 2048),
            (&[1500], 1024),
            (&[9000, 1400], 1024),
            (&[576], 256),
            (&[68], 256),
        ] {
            assert_eq!(table(mtus).active_mtu(), active, "{mtus:?}");
        }
        assert_eq!(GidTable::default().active_mtu(), 4096);
        let mut alone = GidTable::default();
        alone.update(entries(&[interface(1, 1500)], &[address(1, "127.0.0.1")]));
        assert_eq!(alone.active_mtu(), 1024, "loopback, where there is no other");
    }
}
