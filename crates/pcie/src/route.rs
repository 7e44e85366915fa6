//! Routes: the way of the bytes between a function and a target, counted.

use crate::machine::{Acs, AcsBits, Function, Machine};
use crate::pace::{Direction, Pacer, RouteClocks};
use crate::published::{Counters, Description, RouteTable};
use crate::verdict::{MapType, Verdict, verdict};
use crate::{Address, Link, LinkId};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Where a function's DMA goes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Target {
    /// Host memory, on a NUMA node if known.
    Host {
        /// The node.
        numa_node: Option<u32>,
    },
    /// The memory of a function, through its BAR.
    Function(Address),
}

impl Target {
    /// Host memory wherever it lies.
    pub const HOST: Target = Target::Host { numa_node: None };
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Target::Host { numa_node: None } => write!(f, "host memory"),
            Target::Host { numa_node: Some(node) } => write!(f, "host memory of node {node}"),
            Target::Function(address) => write!(f, "{address}"),
        }
    }
}

/// Why there is no route, in words.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{function} cannot reach {target} ({map_type}): {reason}")]
pub struct Unreachable {
    /// The function that wanted to.
    pub function: Address,
    /// What it wanted to reach.
    pub target: Target,
    /// `NotSupported` or `Unknown`.
    pub map_type: MapType,
    /// Cause and remedy.
    pub reason: String,
}

/// How one PCIe function reaches a target; counts the bytes that take it.
#[derive(Debug)]
pub struct Route {
    function: Option<Address>,
    target: Target,
    map_type: MapType,
    distance: u32,
    links: Vec<LinkId>,
    /// How many of them lead up from the function; the others lead down to the target.
    ascending: usize,
    bytes_per_second: Option<u64>,
    counted: Counted,
    clocks: RouteClocks,
    /// Only requests take it whose addresses are translated already.
    translated: bool,
}

/// Where a route's bytes are counted.
#[derive(Debug)]
enum Counted {
    /// In the route itself.
    Here { read: AtomicU64, written: AtomicU64 },
    /// Where other processes see them.
    Published { table: Arc<RouteTable>, at: Counters },
}

impl Counted {
    fn here() -> Counted {
        Counted::Here { read: AtomicU64::new(0), written: AtomicU64::new(0) }
    }

    fn read(&self) -> &AtomicU64 {
        match self {
            Counted::Here { read, .. } => read,
            Counted::Published { table, at } => table.word(at.read),
        }
    }

    fn written(&self) -> &AtomicU64 {
        match self {
            Counted::Here { written, .. } => written,
            Counted::Published { table, at } => table.word(at.written),
        }
    }
}

impl Route {
    /// A route within one piece of memory, over no link: for tests and for memory that no function
    /// stands before.
    pub fn local() -> Route {
        Route {
            function: None,
            target: Target::HOST,
            map_type: MapType::None,
            distance: 0,
            links: Vec::new(),
            ascending: 0,
            bytes_per_second: None,
            counted: Counted::here(),
            clocks: RouteClocks::default(),
            translated: false,
        }
    }

    /// The same over these links, of which so many lead up.
    fn over(self, machine: &Machine, (links, ascending): (Vec<LinkId>, usize)) -> Route {
        let bytes_per_second = narrowest(machine, &links);
        Route { links, ascending, bytes_per_second, ..self }
    }

    /// Counts in `table` from now on, if it has room.
    pub(crate) fn publish(&mut self, machine: &Machine, table: &Arc<RouteTable>) {
        let Some(function) = self.function else { return };
        let hops: Vec<(LinkId, Option<Link>)> =
            self.links.iter().map(|&link| (link, machine.link(link))).collect();
        let Route { target, map_type, translated, .. } = *self;
        let description = Description { function, target, map_type, translated, hops: &hops };
        if let Some(at) = table.add(&description) {
            self.counted = Counted::Published { table: table.clone(), at };
        }
    }

    /// Whether bytes that take it occupy links.
    pub fn is_paced(&self) -> bool {
        !(self.clocks.read.is_empty() && self.clocks.written.is_empty())
    }

    /// Occupies links from now on as long as they would take.
    pub(crate) fn pace(&mut self, machine: &Machine, pacer: &mut Pacer) {
        let mut clocks = |from_function: Direction| {
            let hops = self.links.iter().enumerate();
            let clock = hops.filter_map(|(index, &link)| {
                let rate = machine.link(link)?.bytes_per_second();
                let ascends = index < self.ascending;
                let way = if ascends { from_function } else { from_function.reverse() };
                Some(pacer.clock(link, way, rate))
            });
            clock.collect()
        };
        // What the function writes climbs from it; what it reads comes down to it.
        self.clocks = RouteClocks { written: clocks(Direction::Up), read: clocks(Direction::Down) };
    }

    /// The function that issues the DMA; `None` for [`Route::local`].
    pub fn function(&self) -> Option<Address> {
        self.function
    }
    /// The memory that it leads to.
    pub fn target(&self) -> Target {
        self.target
    }
    /// How the target is mapped; `None` for host memory.
    pub fn map_type(&self) -> MapType {
        self.map_type
    }
    /// Whether only requests take it whose addresses are translated already, as ACS may leave them
    /// a way of their own.
    pub fn is_translated(&self) -> bool {
        self.translated
    }

    /// P2PDMA distance; 0 for host memory.
    pub fn distance(&self) -> u32 {
        self.distance
    }
    /// The hops, from the function to the target.
    pub fn links(&self) -> &[LinkId] {
        &self.links
    }
    /// Rate of the narrowest link in bytes per second, if any is known.
    pub fn bytes_per_second(&self) -> Option<u64> {
        self.bytes_per_second
    }
    /// Counts bytes that the function read from the target.
    #[inline]
    pub fn count_read(&self, bytes: u64) {
        self.counted.read().fetch_add(bytes, Relaxed);
        self.clocks.occupy_read(bytes);
    }
    /// Counts bytes that the function wrote to the target.
    #[inline]
    pub fn count_written(&self, bytes: u64) {
        self.counted.written().fetch_add(bytes, Relaxed);
        self.clocks.occupy_written(bytes);
    }
    /// Where in the shared memory of its table bytes read and bytes written are counted, where
    /// other processes see them.
    pub fn published_at(&self) -> Option<(usize, usize)> {
        match &self.counted {
            Counted::Published { at, .. } => Some((at.read, at.written)),
            Counted::Here { .. } => None,
        }
    }
    /// Bytes read so far.
    pub fn read_bytes(&self) -> u64 {
        self.counted.read().load(Relaxed)
    }
    /// Bytes written so far.
    pub fn written_bytes(&self) -> u64 {
        self.counted.written().load(Relaxed)
    }
}

impl fmt::Display for Route {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.function {
            Some(function) => write!(f, "{function} to {}", self.target)?,
            None => write!(f, "local")?,
        }
        if self.map_type != MapType::None {
            write!(f, ", {}", self.map_type)?;
        }
        if self.translated {
            write!(f, ", translated")?;
        }
        for (i, link) in self.links.iter().enumerate() {
            write!(f, "{} {link}", if i == 0 { " via" } else { "," })?;
        }
        Ok(())
    }
}

/// Finds the route by the machine's rules.
pub(crate) fn find(
    machine: &Machine,
    function: &Function,
    target: Target,
) -> Result<Route, Unreachable> {
    let refuse = |map_type, reason: String| Unreachable {
        function: function.address,
        target,
        map_type,
        reason,
    };
    let (map_type, distance, way) = match target {
        Target::Host { numa_node } => {
            let mut links: Vec<LinkId> = links_above(machine, function, None).collect();
            if let Some(host) = machine.host_of(function) {
                links.push(LinkId::RootComplex(host));
                links.extend(between_nodes(machine.hosts()[host].numa_node, numa_node));
            }
            let ascending = links.len();
            (MapType::None, 0, (links, ascending))
        }
        Target::Function(address) => {
            let provider = machine.function(address).ok_or_else(|| {
                refuse(MapType::NotSupported, "no such function on this platform".into())
            })?;
            let verdict = verdict(machine, provider, function);
            if matches!(verdict.map_type, MapType::NotSupported | MapType::Unknown) {
                return Err(refuse(verdict.map_type, verdict.reason));
            }
            (verdict.map_type, verdict.distance, peer_links(machine, function, provider, &verdict))
        }
    };
    let route =
        Route { function: Some(function.address), target, map_type, distance, ..Route::local() };
    Ok(route.over(machine, way))
}

/// The route of translated requests with relaxed ordering (PCIe Base 6.12.1), where it is another:
/// through the common switch although ACS sends untranslated requests up to the root complex.
/// Direct Translated P2P lets requests pass, and redirected completions are only those without
/// relaxed ordering.
pub(crate) fn find_translated(
    machine: &Machine,
    function: &Function,
    target: Target,
) -> Option<Route> {
    let Target::Function(address) = target else { return None };
    let provider = machine.function(address)?;
    let verdict = verdict(machine, provider, function);
    let passes = |port: &Address| match machine.function(*port)?.acs {
        Acs::Enabled(bits) => {
            Some(bits.contains(AcsBits::DT) || !bits.intersects(AcsBits::RR | AcsBits::EC))
        }
        _ => None,
    };
    let redirected = verdict.map_type == MapType::ThruHostBridge && verdict.common.is_some();
    let is_direct = function.ats == Some(true)
        && redirected
        && verdict.unread.is_empty()
        && verdict.redirects.iter().all(|port| passes(port) == Some(true));
    if !is_direct {
        return None;
    }
    let (map_type, distance) = (verdict.map_type, verdict.distance);
    let straight = Verdict { map_type: MapType::BusAddr, ..verdict };
    let way = peer_links(machine, function, provider, &straight);
    let route =
        Route { function: Some(function.address), target, map_type, distance, ..Route::local() };
    Some(Route { translated: true, ..route.over(machine, way) })
}

/// The links above a function, from it upwards, up to and without the bridge `until`'s own upstream
/// link.
fn links_above<'a>(
    machine: &'a Machine,
    function: &'a Function,
    until: Option<Address>,
) -> impl Iterator<Item = LinkId> + 'a {
    let uppers = machine.upwards(function).skip(1).map(Some).chain([None]);
    machine
        .upwards(function)
        .zip(uppers)
        // a port above the function carries the link below it, also when the paths turn round at
        // that very port
        .take_while(move |(lower, _)| until != Some(lower.address))
        .filter_map(|(lower, upper)| match upper {
            Some(port) if port.is_downstream_port() => Some(LinkId::Below(port.address)),
            _ if !lower.is_downstream_port() && lower.link.is_some() => {
                Some(LinkId::Above(lower.address))
            }
            _ => None,
        })
}

/// The way between two functions on a machine that is only looked at.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RoutePlan {
    /// What P2PDMA says.
    pub verdict: Verdict,
    /// The hops from client to provider: over the host bridge where the verdict sends them there,
    /// else by the nearest common bridge, also where there is no verdict for it.
    pub links: Vec<LinkId>,
    /// Rate of the narrowest hop in bytes per second, if any is known and none is hidden.
    pub bytes_per_second: Option<u64>,
}

/// The way by which `client` would reach the memory of `provider`.
pub fn route_plan(machine: &Machine, provider: &Function, client: &Function) -> RoutePlan {
    let verdict = verdict(machine, provider, client);
    let (links, _) = peer_links(machine, client, provider, &verdict);
    // a bridge that is not shown may be narrower
    let shown = [provider, client].iter().all(|function| machine.shows_bridges_above(function));
    let bytes_per_second = narrowest(machine, &links).filter(|_| shown);
    RoutePlan { verdict, links, bytes_per_second }
}

fn narrowest(machine: &Machine, links: &[LinkId]) -> Option<u64> {
    links.iter().filter_map(|&link| Some(machine.link(link)?.bytes_per_second())).min()
}

/// The hops from client to provider, and how many of them lead up.
fn peer_links(
    machine: &Machine,
    client: &Function,
    provider: &Function,
    verdict: &Verdict,
) -> (Vec<LinkId>, usize) {
    let through = verdict.map_type == MapType::ThruHostBridge || verdict.common.is_none();
    let until = if through { None } else { verdict.common };
    let mut links: Vec<LinkId> = links_above(machine, client, until).collect();
    if through {
        let (a, b) = (machine.host_of(client), machine.host_of(provider));
        links.extend(a.map(LinkId::RootComplex));
        if a != b {
            let node = |host: Option<usize>| host.and_then(|h| machine.hosts()[h].numa_node);
            links.extend(between_nodes(node(a), node(b)));
            links.extend(b.map(LinkId::RootComplex));
        }
    }
    let ascending = links.len();
    let down: Vec<LinkId> = links_above(machine, provider, until).collect();
    for link in down.into_iter().rev() {
        // two functions of one device turn round at the port above them: one link, not two
        if through || links.last() != Some(&link) {
            links.push(link);
        }
    }
    (links, ascending)
}

fn between_nodes(a: Option<u32>, b: Option<u32>) -> Option<LinkId> {
    match (a, b) {
        (Some(a), Some(b)) if a != b => Some(LinkId::Sockets(a.min(b), a.max(b))),
        _ => None,
    }
}
