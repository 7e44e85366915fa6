//! Many queue pairs of one host and their peers, each on a host of its own, behind one link that
//! all their packets share: it has a rate and a queue, which marks packets and drops them. In
//! virtual time.

use super::net::Packet;
use super::node::{Node, Setup};
use super::{Region, Rng};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use transport::values::*;

/// Bytes that Ethernet, IP, UDP and ICRC put around a packet.
const AROUND: u64 = 14 + 20 + 8 + 4;

/// The link towards the hub.
#[derive(Clone, Copy, Debug)]
pub struct Link {
    /// Bytes a second.
    pub rate: u64,
    /// Bytes that its queue takes; what finds it full is dropped.
    pub capacity: u64,
    /// Bytes in its queue from which on packets are marked as having met congestion, if it marks
    /// any.
    pub marks_above: Option<u64>,
    /// Packets in a thousand that are lost, in either direction.
    pub loss: u64,
    /// How long a packet takes, in either direction, besides its time in the queue.
    pub delay: Duration,
}

impl Default for Link {
    fn default() -> Link {
        Link {
            rate: 1_000_000_000,
            capacity: 1 << 20,
            marks_above: None,
            loss: 0,
            delay: Duration::from_micros(20),
        }
    }
}

/// Who posts the messages.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Poster {
    /// The leaves write to the hub.
    Leaves,
    /// The hub reads from the leaves.
    Hub,
}

/// What each queue pair moves: messages of one kind, one after the other.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    pub poster: Poster,
    pub message: u32,
    /// Messages posted at a time.
    pub depth: usize,
}

/// The host in the middle and those around it.
pub struct Star {
    /// Two ends of each connection: at the hub, at a leaf.
    pub ends: Vec<[Node; 2]>,
    link: Link,
    load: Load,
    regions: Vec<[Region; 2]>,
    /// When the queue of the link will be empty.
    busy_until: Instant,
    rng: Rng,
    pub now: Instant,
    start: Instant,
    /// Packets by time of arrival and order of sending: connection, end, whether it was marked.
    wire: BTreeMap<(Instant, u64), (usize, usize, bool, Packet)>,
    order: u64,
    posted: Vec<u64>,
    pub dropped: u64,
}

const HUB: usize = 0;
const LEAF: usize = 1;

impl Star {
    pub fn new(leaves: usize, link: Link, load: Load, window_bytes: u64, seed: u64) -> Star {
        let now = Instant::now();
        let mut ends = Vec::new();
        let mut regions = Vec::new();
        for _ in 0..leaves {
            let mut pair = [HUB, LEAF].map(|me| {
                let mut node = Node::with_window(QpType::Rc, 11 + me as u32, None, window_bytes);
                node.now = now;
                node.budget = super::node::quantum();
                node.qp.control_congestion(true);
                let (dest, sq_psn, rq_psn) = (12 - me as u32, 100 + me as u32, 101 - me as u32);
                node.connect(&Setup { mtu: 5, dest, sq_psn, rq_psn, ..Setup::new(QpType::Rc) });
                node
            });
            regions.push([HUB, LEAF].map(|me| pair[me].register(load.message.into())));
            ends.push(pair);
        }
        Star {
            ends,
            link,
            load,
            regions,
            busy_until: now,
            rng: Rng(seed),
            now,
            start: now,
            wire: BTreeMap::new(),
            order: 0,
            posted: vec![0; leaves],
            dropped: 0,
        }
    }

    /// Virtual time since the beginning.
    pub fn elapsed(&self) -> Duration {
        self.now - self.start
    }

    /// The end that posts.
    fn poster(&self) -> usize {
        if self.load.poster == Poster::Hub { HUB } else { LEAF }
    }

    /// Messages that are complete, by connection.
    pub fn done(&self) -> Vec<u64> {
        let me = self.poster();
        self.ends.iter().map(|ends| ends[me].told.sent.len() as u64).collect()
    }

    /// A counter, over all queue pairs.
    pub fn counted(&self, what: transport::Counter) -> u64 {
        self.ends.iter().flatten().map(|node| node.counted(what)).sum()
    }

    fn post(&mut self, index: usize) {
        let me = self.poster();
        let Load { message, depth, poster } = self.load;
        let [own, far] = [&self.regions[index][me], &self.regions[index][1 - me]];
        let node = &mut self.ends[index][me];
        while self.posted[index] < (node.told.sent.len() + depth) as u64 {
            let op = match poster {
                Poster::Leaves => SendOp::Write(far.remote(0)),
                Poster::Hub => SendOp::Read(far.remote(0)),
            };
            let wr = super::send_wr(self.posted[index], op, &[own.sge(0, message)]);
            self.posted[index] += 1;
            node.post_send(wr);
        }
    }

    /// Puts what one end emitted on its way.
    fn collect(&mut self, index: usize, me: usize) {
        for packet in self.ends[index][me].emitted() {
            if self.rng.next() % 1000 < self.link.loss {
                self.dropped += 1;
                continue;
            }
            let mut at = self.now;
            let mut marked = false;
            if me == LEAF {
                let bytes = packet.headers.len() as u64 + packet.payload.len() as u64 + AROUND;
                let wait = self.busy_until.saturating_duration_since(self.now);
                let queued = (wait.as_nanos() * u128::from(self.link.rate) / 1_000_000_000) as u64;
                if queued + bytes > self.link.capacity {
                    self.dropped += 1;
                    continue;
                }
                marked = self.link.marks_above.is_some_and(|above| queued > above);
                let takes = Duration::from_nanos(bytes * 1_000_000_000 / self.link.rate);
                self.busy_until = self.busy_until.max(self.now) + takes;
                at = self.busy_until;
            }
            self.order += 1;
            self.wire.insert((at + self.link.delay, self.order), (index, 1 - me, marked, packet));
        }
    }

    /// Runs until `done`, for at most `limit` of virtual time.
    pub fn run_until(&mut self, limit: Duration, mut done: impl FnMut(&Star) -> bool) {
        for index in 0..self.ends.len() {
            self.post(index);
            self.collect(index, self.poster());
        }
        let end = self.now + limit;
        while !done(self) {
            let arrival = self.wire.keys().next().map(|(at, _)| *at);
            let deadlines = self.ends.iter().flatten().filter_map(|node| node.qp.deadline());
            let next = arrival.into_iter().chain(deadlines).min().expect("everything stands still");
            self.now = self.now.max(next);
            assert!(self.now < end, "not done in {limit:?}: {:?}", self.done());
            self.step();
        }
    }

    fn step(&mut self) {
        let mut touched = vec![[false; 2]; self.ends.len()];
        while let Some(entry) = self.wire.first_entry() {
            if entry.key().0 > self.now {
                break;
            }
            let (index, me, marked, packet) = entry.remove();
            let node = &mut self.ends[index][me];
            node.now = self.now;
            node.receive_marked(&packet, marked);
            touched[index][me] = true;
        }
        for (index, touched) in touched.into_iter().enumerate() {
            for me in [HUB, LEAF] {
                let node = &mut self.ends[index][me];
                node.now = self.now;
                if touched[me] {
                    node.end_of_batch();
                }
                if node.qp.deadline().is_some_and(|at| at <= self.now) {
                    node.with(|qp, cx| qp.timer(cx));
                }
                if me == self.poster() {
                    self.post(index);
                }
                self.collect(index, me);
            }
        }
    }
}
