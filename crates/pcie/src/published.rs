//! Routes as other processes see them: a table in shared memory of who reached what, over which
//! links, and how many bytes.
//!
//! A [`RouteTable`] belongs to one function and lies in the directory of its device. Entries are
//! added and never removed while the device is open; an entry's first word is set last, so a reader
//! sees it whole or not at all. What a reader finds was written by another process and is checked:
//! an entry that makes no sense is left out.

use crate::{Address, Link, LinkId, MapType, Target};
use engine_thread::lock;
use shm::Shm;
use std::sync::Mutex;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

/// Routes that a table has room for: GPUs and NUMA nodes of a large machine, for a function and its
/// Data Direct one.
const ENTRIES: usize = 64;
/// Hops that an entry has room for.
const HOPS: usize = 28;
const WORDS: usize = 6 + 2 * HOPS;
const ENTRY: usize = WORDS * 8;

mod word {
    pub const READY: usize = 0;
    pub const FUNCTION: usize = 1;
    pub const TARGET: usize = 2;
    /// Map type, with [`super::TRANSLATED`], and above it the number of hops.
    pub const KIND: usize = 3;
    pub const READ_BYTES: usize = 4;
    pub const WRITTEN_BYTES: usize = 5;
    /// Then for each hop what it is, and its rate in bytes per second or 0.
    pub const HOPS: usize = 6;
}

/// The route is that of translated requests.
const TRANSLATED: u64 = 1 << 7;

/// The routes of one device's functions, written by its owner.
#[derive(Debug)]
pub struct RouteTable {
    shm: Shm,
    at: usize,
    used: Mutex<usize>,
}

/// What a route is, for a table.
pub(crate) struct Description<'a> {
    pub function: Address,
    pub target: Target,
    pub map_type: MapType,
    pub translated: bool,
    pub hops: &'a [(LinkId, Option<Link>)],
}

impl RouteTable {
    /// Bytes of shared memory that a table takes.
    pub const BYTES: usize = ENTRIES * ENTRY;

    /// An empty table at byte offset `at` of `shm`, which is zero there.
    pub fn new(shm: Shm, at: usize) -> RouteTable {
        RouteTable { shm, at, used: Mutex::new(0) }
    }

    /// Adds a route; where its counters are, or nothing if the table is full or the route too long.
    pub(crate) fn add(&self, route: &Description<'_>) -> Option<Counters> {
        let mut used = lock(&self.used);
        if *used == ENTRIES || route.hops.len() > HOPS {
            return None;
        }
        let at = self.at + *used * ENTRY;
        *used += 1;
        let store = |index: usize, value: u64| self.shm.word(at + index * 8).store(value, Relaxed);
        store(word::FUNCTION, route.function.to_bits());
        store(word::TARGET, of_target(route.target));
        let translated = if route.translated { TRANSLATED } else { 0 };
        store(word::KIND, route.map_type as u64 | translated | (route.hops.len() as u64) << 8);
        for (i, (hop, link)) in route.hops.iter().enumerate() {
            store(word::HOPS + 2 * i, of_hop(*hop));
            store(word::HOPS + 2 * i + 1, link.map_or(0, |link| link.bytes_per_second()));
        }
        self.shm.word(at + word::READY * 8).store(1, Release);
        Some(Counters { read: at + word::READ_BYTES * 8, written: at + word::WRITTEN_BYTES * 8 })
    }

    pub(crate) fn word(&self, at: usize) -> &std::sync::atomic::AtomicU64 {
        self.shm.word(at)
    }
}

/// Where a route's counters are in a table.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Counters {
    pub read: usize,
    pub written: usize,
}

/// A route of another process.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PublishedRoute {
    /// The function that issues the DMA.
    pub function: Address,
    /// The memory that it leads to.
    pub target: Target,
    /// How the target is mapped.
    pub map_type: MapType,
    /// Whether only requests take it whose addresses are translated already.
    pub translated: bool,
    /// The hops, and their rates in bytes per second where known.
    pub hops: Vec<(LinkId, Option<u64>)>,
    /// Bytes read from the target so far.
    pub read_bytes: u64,
    /// Bytes written to it so far.
    pub written_bytes: u64,
}

/// The routes in the table at byte offset `at` of `shm`, which must lie inside.
pub fn published(shm: &Shm, at: usize) -> Vec<PublishedRoute> {
    (0..ENTRIES).filter_map(|index| read(shm, at + index * ENTRY)).collect()
}

fn read(shm: &Shm, at: usize) -> Option<PublishedRoute> {
    if shm.word(at + word::READY * 8).load(Acquire) != 1 {
        return None;
    }
    let load = |index: usize| shm.word(at + index * 8).load(Relaxed);
    let kind = load(word::KIND);
    let hops = (kind >> 8) as usize;
    if hops > HOPS {
        return None;
    }
    let hop = |i: usize| {
        let rate = load(word::HOPS + 2 * i + 1);
        Some((to_hop(load(word::HOPS + 2 * i))?, Some(rate).filter(|&rate| rate > 0)))
    };
    Some(PublishedRoute {
        function: Address::from_bits(load(word::FUNCTION)),
        target: to_target(load(word::TARGET))?,
        map_type: to_map_type((kind & !TRANSLATED) as u8)?,
        translated: kind & TRANSLATED != 0,
        hops: (0..hops).map(hop).collect::<Option<_>>()?,
        read_bytes: load(word::READ_BYTES),
        written_bytes: load(word::WRITTEN_BYTES),
    })
}

/// Above an address, which has 48 bits, stands what is meant by it.
const TAG: u32 = 56;

fn of_target(target: Target) -> u64 {
    match target {
        Target::Host { numa_node: None } => 1 << TAG,
        Target::Host { numa_node: Some(node) } => 2 << TAG | u64::from(node),
        Target::Function(address) => 3 << TAG | address.to_bits(),
    }
}

fn to_target(word: u64) -> Option<Target> {
    match word >> TAG {
        1 => Some(Target::HOST),
        2 => Some(Target::Host { numa_node: Some(word as u32) }),
        3 => Some(Target::Function(Address::from_bits(word))),
        _ => None,
    }
}

/// NUMA nodes have 10 bits in Linux; 28 are kept.
const NODE: u32 = 28;

fn of_hop(hop: LinkId) -> u64 {
    match hop {
        LinkId::Below(address) => 1 << TAG | address.to_bits(),
        LinkId::Above(address) => 2 << TAG | address.to_bits(),
        LinkId::RootComplex(host) => 3 << TAG | host as u64 & ((1 << TAG) - 1),
        LinkId::Sockets(a, b) => {
            let node = |node: u32| u64::from(node) & ((1 << NODE) - 1);
            4 << TAG | node(a) << NODE | node(b)
        }
    }
}

fn to_hop(word: u64) -> Option<LinkId> {
    let node = |word: u64| (word & ((1 << NODE) - 1)) as u32;
    match word >> TAG {
        1 => Some(LinkId::Below(Address::from_bits(word))),
        2 => Some(LinkId::Above(Address::from_bits(word))),
        3 => Some(LinkId::RootComplex((word & ((1 << TAG) - 1)) as usize)),
        4 => Some(LinkId::Sockets(node(word >> NODE), node(word))),
        _ => None,
    }
}

fn to_map_type(number: u8) -> Option<MapType> {
    [
        MapType::Unknown,
        MapType::None,
        MapType::NotSupported,
        MapType::BusAddr,
        MapType::ThruHostBridge,
    ]
    .into_iter()
    .find(|&map_type| map_type as u8 == number)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Platform;
    use std::path::Path;
    use std::sync::Arc;

    fn table() -> (Arc<RouteTable>, Shm) {
        let (shm, fd) = Shm::create("routes", 64 + RouteTable::BYTES).unwrap();
        let seen = Shm::open(fd).unwrap();
        (Arc::new(RouteTable::new(shm, 64)), seen)
    }

    #[test]
    fn a_reader_sees_routes_hops_and_bytes() {
        let platform = Platform::load(Path::new("dgx")).unwrap();
        let hca = platform.named("peerdma0").unwrap();
        let (table, seen) = table();
        platform.publish(hca.address, table);
        let gpu = |name: &str| Target::Function(platform.named(name).unwrap().address);
        let far = platform.route(hca, gpu("gpu7")).unwrap();
        let host = platform.route(hca, Target::HOST).unwrap();
        far.count_written(5);
        host.count_read(7);
        let routes = published(&seen, 64);
        assert_eq!(routes.len(), 2);
        assert_eq!(routes[0].target, far.target());
        assert_eq!((routes[0].read_bytes, routes[0].written_bytes), (0, 5));
        assert_eq!((far.read_bytes(), far.written_bytes()), (0, 5));
        let hops: Vec<LinkId> = routes[0].hops.iter().map(|(hop, _)| *hop).collect();
        assert_eq!(hops, far.links());
        let rates = |hop| routes[0].hops.iter().find(|(at, _)| *at == hop).unwrap().1;
        assert_eq!(rates(LinkId::Sockets(0, 1)), Some(60_000_000_000));
        assert_eq!(rates(LinkId::RootComplex(1)), None);
        assert_eq!((routes[1].target, routes[1].read_bytes), (Target::HOST, 7));
    }

    #[test]
    fn a_reader_tells_translated_requests_apart() {
        let text = crate::ReadyMade::called(Path::new("default")).unwrap().text;
        let text = text.replace("acs = []", r#"acs = ["RR", "CR", "DT"]"#);
        let platform = Platform::from_toml(&text).unwrap();
        let hca = platform.named("peerdma0").unwrap();
        let gpu = Target::Function(platform.named("gpu0").unwrap().address);
        let (table, seen) = table();
        platform.publish(hca.address, table);
        platform.route(hca, gpu).unwrap().count_read(1);
        platform.translated_route(hca, gpu).unwrap().count_read(2);
        let routes = published(&seen, 64);
        let found: Vec<_> =
            routes.iter().map(|r| (r.translated, r.hops.len(), r.read_bytes)).collect();
        assert_eq!(found, [(false, 5, 1), (true, 2, 2)]);
    }

    #[test]
    fn another_table_begins_at_nought() {
        let platform = Platform::default();
        let hca = platform.named("peerdma0").unwrap();
        platform.route(hca, Target::HOST).unwrap().count_read(3);
        let (table, seen) = table();
        platform.publish(hca.address, table);
        assert!(published(&seen, 64).is_empty());
        assert_eq!(platform.route(hca, Target::HOST).unwrap().read_bytes(), 0);
        assert_eq!(published(&seen, 64).len(), 1);
    }

    #[test]
    fn a_full_table_leaves_routes_out_but_counts_them() {
        let (table, seen) = table();
        let description = |hops| Description {
            function: "0000:18:00.0".parse().unwrap(),
            target: Target::HOST,
            map_type: MapType::None,
            translated: false,
            hops,
        };
        assert!(table.add(&description(&[(LinkId::RootComplex(0), None); HOPS + 1])).is_none());
        for _ in 0..ENTRIES {
            assert!(table.add(&description(&[])).is_some());
        }
        assert!(table.add(&description(&[])).is_none());
        assert_eq!(published(&seen, 64).len(), ENTRIES);
    }

    #[test]
    fn every_word_survives_both_ways_and_nonsense_is_left_out() {
        let address: Address = "1000f:ff:1f.7".parse().unwrap();
        assert_eq!(Address::from_bits(address.to_bits()), address);
        for target in [Target::HOST, Target::Host { numa_node: Some(9) }, Target::Function(address)]
        {
            assert_eq!(to_target(of_target(target)), Some(target));
        }
        for hop in [
            LinkId::Below(address),
            LinkId::Above(address),
            LinkId::RootComplex(77),
            LinkId::Sockets(3, 1023),
        ] {
            assert_eq!(to_hop(of_hop(hop)), Some(hop));
        }
        assert_eq!((to_hop(0), to_target(u64::MAX), to_map_type(5)), (None, None, None));
        let (table, seen) = table();
        for (index, kind) in [(0, u64::MAX), (1, 7)] {
            let at = 64 + index * ENTRY;
            table.word(at + word::KIND * 8).store(kind, Relaxed);
            table.word(at).store(1, Release);
        }
        assert!(published(&seen, 64).is_empty());
    }
}
