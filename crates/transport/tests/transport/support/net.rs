//! Two nodes and a network that loses, corrupts, repeats, reorders and delays, by a seed and in
//! virtual time.

use super::Rng;
use super::memory::PAGE;
use super::node::{Node, Setup};
use std::collections::BTreeMap;
use std::net::Ipv6Addr;
use std::time::{Duration, Instant};
use transport::values::QpType;
use transport::{PageFault, SharedQueue};
use wire::icrc::{Addresses, compute};
use wire::{Headers, ICRC_LEN, MAX_HEADERS_LEN};

/// A packet on its way.
#[derive(Clone, Debug, PartialEq)]
pub struct Packet {
    pub headers: Headers,
    pub payload: Vec<u8>,
}

/// What the network does to packets, in percent and time.
#[derive(Clone, Copy, Debug)]
pub struct Faults {
    pub loss: u64,
    /// How often bits flip on the way, anywhere in the packet.
    pub corrupt: u64,
    pub duplicate: u64,
    pub reorder: u64,
    /// How often a page of registered memory goes, to come back when it is missed.
    pub vanish: u64,
    pub delay: Duration,
}

impl Faults {
    pub const NONE: Faults = Faults {
        loss: 0,
        corrupt: 0,
        duplicate: 0,
        reorder: 0,
        vanish: 0,
        delay: Duration::from_micros(5),
    };

    /// All faults at once, the mixture by a seed: up to 30 % of packets are lost or corrupted.
    pub fn sweep(seed: u64) -> Faults {
        let (loss, corrupt) =
            [(0, 5), (5, 10), (15, 0), (30, 0), (15, 15), (2, 28)][(seed % 6) as usize];
        let mut rng = Rng(seed ^ 0x5eeb);
        let delay = Duration::from_micros(rng.range(1, 500));
        let (duplicate, reorder) = (rng.range(0, 20), rng.range(0, 20));
        Faults { loss, corrupt, duplicate, reorder, delay, ..Faults::NONE }
    }
}

/// Two connected nodes.
pub struct Pair {
    pub nodes: [Node; 2],
    pub faults: Faults,
    pub rng: Rng,
    pub now: Instant,
    /// Packets by time of arrival and order of sending, with their receiver.
    wire: BTreeMap<(Instant, u64), (usize, Packet)>,
    sent: u64,
    /// Page faults by the time when they are served, with their node.
    paging: BTreeMap<(Instant, u64), (usize, PageFault)>,
    /// Page faults that there were.
    pub faulted: u64,
    /// Corrupted packets that failed their check, and those that passed it: it leaves a few bits
    /// out.
    pub corrupted: [u64; 2],
}

impl Pair {
    pub fn new(setup: &Setup, window_bytes: u64, seed: u64, faults: Faults) -> Pair {
        Pair::of([setup.kind; 2], setup, window_bytes, seed, faults)
    }

    /// Nodes of these kinds.
    pub fn of(
        kinds: [QpType; 2],
        setup: &Setup,
        window_bytes: u64,
        seed: u64,
        faults: Faults,
    ) -> Pair {
        Pair::over(kinds, [None, None], setup, window_bytes, seed, faults)
    }

    /// Nodes of these kinds over these shared receive queues.
    pub fn over(
        kinds: [QpType; 2],
        mut shared: [Option<SharedQueue>; 2],
        setup: &Setup,
        window_bytes: u64,
        seed: u64,
        faults: Faults,
    ) -> Pair {
        let mut rng = Rng(seed);
        let psn = [rng.next() as u32 & 0x00ff_ffff, rng.next() as u32 & 0x00ff_ffff];
        let start = Instant::now();
        let nodes = [0usize, 1].map(|me| {
            let shared = shared[me].take();
            let mut node = Node::with_window(kinds[me], 11 + me as u32, shared, window_bytes);
            node.now = start;
            node.polls = seed % 2 == 1;
            let own = Setup {
                kind: kinds[me],
                dest: 12 - me as u32,
                sq_psn: psn[me],
                rq_psn: psn[1 - me],
                ..setup.clone()
            };
            node.connect(&own);
            node
        });
        Pair {
            nodes,
            faults,
            rng,
            now: start,
            wire: BTreeMap::new(),
            sent: 0,
            paging: BTreeMap::new(),
            faulted: 0,
            corrupted: [0; 2],
        }
    }

    /// Puts what the nodes emitted on the wire, and has their page faults served after a while.
    pub fn collect(&mut self) {
        for me in 0..2 {
            for fault in std::mem::take(&mut self.nodes[me].told.faults) {
                let at = self.now + Duration::from_micros(self.rng.range(0, 300));
                self.faulted += 1;
                self.paging.insert((at, self.faulted), (me, fault));
            }
            for packet in self.nodes[me].emitted() {
                check_wire_format(&packet);
                let copies = if self.rng.chance(self.faults.duplicate) { 2 } else { 1 };
                for _ in 0..copies {
                    if self.rng.chance(self.faults.loss) {
                        continue;
                    }
                    let mut at = self.now + self.faults.delay;
                    if self.rng.chance(self.faults.reorder) {
                        at += Duration::from_nanos(self.rng.range(1, 200_000));
                    }
                    let mut packet = packet.clone();
                    if self.rng.chance(self.faults.corrupt) {
                        match corrupted(&packet, &mut self.rng) {
                            Some(passed) => {
                                self.corrupted[1] += 1;
                                packet = passed;
                            }
                            None => {
                                self.corrupted[0] += 1;
                                continue;
                            }
                        }
                    }
                    self.sent += 1;
                    self.wire.insert((at, self.sent), (1 - me, packet));
                }
            }
        }
    }

    /// Goes to the next arrival or deadline. `false`: nothing will ever happen again.
    pub fn step(&mut self) -> bool {
        self.collect();
        let arrival = self.wire.keys().next().map(|(at, _)| *at);
        let deadlines = self.nodes.iter().filter_map(|node| node.qp.deadline());
        let paging = self.paging.keys().next().map(|(at, _)| *at);
        let Some(next) = arrival.into_iter().chain(paging).chain(deadlines).min() else {
            return false;
        };
        self.now = self.now.max(next);
        for node in &mut self.nodes {
            node.now = self.now;
        }
        self.page();
        let mut touched = [false; 2];
        while let Some(entry) = self.wire.first_entry() {
            if entry.key().0 > self.now {
                break;
            }
            let (to, packet) = entry.remove();
            self.nodes[to].receive(&packet);
            touched[to] = true;
        }
        for (node, touched) in self.nodes.iter_mut().zip(touched) {
            if touched {
                node.end_of_batch();
            }
            if node.qp.deadline().is_some_and(|at| at <= self.now) {
                node.with(|qp, cx| qp.timer(cx));
            }
        }
        self.collect();
        true
    }

    /// Pages go, and those that were missed come back in time.
    fn page(&mut self) {
        for me in 0..2 {
            let rams = &self.nodes[me].rams;
            for _ in 0..8 {
                if !self.rng.chance(self.faults.vanish) || rams.is_empty() {
                    continue;
                }
                let ram = &rams[self.rng.next() as usize % rams.len()];
                let page = self.rng.next() % ram.len().div_ceil(PAGE).max(1);
                ram.absent.lock().unwrap().insert(page);
            }
        }
        while let Some(entry) = self.paging.first_entry() {
            if entry.key().0 > self.now {
                break;
            }
            let (me, fault) = entry.remove();
            let packets = self.nodes[me].serve(&fault, true);
            self.nodes[me].out.packets.extend(packets);
        }
    }

    /// Steps until `done`, for at most `limit` of virtual time.
    pub fn run_until(&mut self, limit: Duration, mut done: impl FnMut(&mut Pair) -> bool) {
        let end = self.now + limit;
        let mut idle = 0;
        while !done(self) {
            idle = if self.step() { 0 } else { idle + 1 };
            assert!(idle < 100, "everything stands still; told: {:?}", self.summary());
            assert!(self.now < end, "not done in {limit:?}; told: {:?}", self.summary());
        }
    }

    /// Steps until nothing is left to do.
    pub fn settle(&mut self) {
        let mut steps = 0;
        while self.step() {
            steps += 1;
            assert!(steps < 1_000_000, "never settles: {:?}", self.summary());
        }
    }

    /// A network that often corrupts has done so: a run without says nothing about corruption.
    #[track_caller]
    pub fn assert_corrupted(&self) {
        let [failed, passed] = self.corrupted;
        assert!(self.faults.corrupt < 10 || failed + passed > 0, "{:?}", self.faults);
    }

    fn summary(&self) -> Vec<String> {
        self.nodes
            .iter()
            .map(|node| {
                let sent = node.told.sent.last();
                format!(
                    "{:?} sent {} received {} last {sent:?} events {:?}",
                    node.qp.state(),
                    node.told.sent.len(),
                    node.told.received.len(),
                    node.told.events
                )
            })
            .collect()
    }
}

/// The bytes of a packet from its BTH to its padding.
fn transport_bytes(packet: &Packet) -> Vec<u8> {
    let mut bytes = vec![0; MAX_HEADERS_LEN];
    let len = packet.headers.emit(&mut bytes);
    bytes.truncate(len);
    bytes.extend_from_slice(&packet.payload);
    bytes.resize(bytes.len() + usize::from(packet.headers.bth.pad), 0);
    bytes
}

/// What a receiver makes of a packet of which some bits, its ICRC's too, flipped on the way: mostly
/// nothing.
fn corrupted(packet: &Packet, rng: &mut Rng) -> Option<Packet> {
    let between = Addresses::V6(Ipv6Addr::LOCALHOST, Ipv6Addr::LOCALHOST);
    let icrc = |transport: &[u8]| compute(between, UDP_SOURCE, 0, transport).to_le_bytes();
    let mut bytes = transport_bytes(packet);
    bytes.extend(icrc(&bytes));
    for _ in 0..rng.range(1, 4) {
        let bit = rng.range(0, bytes.len() as u64 * 8 - 1) as usize;
        bytes[bit / 8] ^= 1 << (bit % 8);
    }
    let (transport, found) = bytes.split_last_chunk::<ICRC_LEN>()?;
    if *found != icrc(transport) {
        return None;
    }
    let (headers, payload) = Headers::parse(transport).ok()?;
    Some(Packet { headers, payload: payload.to_vec() })
}

/// The port that packets leave from.
const UDP_SOURCE: u16 = 0xc123;

/// What the transport emits must be a packet of the specification and survive the wire.
fn check_wire_format(packet: &Packet) {
    let bytes = transport_bytes(packet);
    assert!(bytes.len().is_multiple_of(4));
    let (headers, payload) = Headers::parse(&bytes).expect("a packet of the specification");
    assert_eq!((headers, payload), (packet.headers, &packet.payload[..]));
}
