//! The network between the managers. A whole run follows from one number.

use cm::{
    Adapter, Cm, Config, ConnId, ConnectParams, Ece, Event, Invalid, MAD_LEN, Path, ReplyParams,
    Transport,
};
use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::time::{Duration, Instant};

/// Attributes of the class (IBA table 105).
pub const REQ: u16 = 0x10;
pub const MRA: u16 = 0x11;
pub const REJ: u16 = 0x12;
pub const REP: u16 = 0x13;
pub const RTU: u16 = 0x14;
pub const DREQ: u16 = 0x15;
pub const DREP: u16 = 0x16;
pub const SIDR_REQ: u16 = 0x17;
pub const SIDR_REP: u16 = 0x18;

/// Service that everybody listens for.
pub const SERVICE: u64 = 0x0106_1d2f;
/// ACK timeout of all connections: 4.096 µs · 2^19.
pub const ACK_TIMEOUT: u8 = 19;
/// How long the queue pair rests: the same in whole milliseconds.
pub const TIMEWAIT: Duration = Duration::from_millis(1 << 11);
/// How long an answer may take: the response timeout, 2^20, and twice the way.
pub const PATIENCE: Duration = Duration::from_millis((1 << 12) + 2 * (1 << 10));
/// The same for the passive side, which knows the response timeout only.
pub const PASSIVE_PATIENCE: Duration = Duration::from_millis(1 << 12);
/// What an MRA grants.
pub const THINKING: Duration = Duration::from_millis(1 << 16);
/// A message is sent so often before its sender gives up.
pub const SENDINGS: u32 = 16;

/// SplitMix64.
pub struct Rng(pub u64);

impl Rng {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    /// From `low` to `high`, both included.
    pub fn range(&mut self, low: u64, high: u64) -> u64 {
        low + self.next() % (high - low + 1)
    }

    /// True in `percent` of cases.
    pub fn chance(&mut self, percent: u64) -> bool {
        self.next() % 100 < percent
    }

    pub fn millis(&mut self, low: u64, high: u64) -> Duration {
        Duration::from_millis(self.range(low, high))
    }
}

/// What the network does to messages, in percent.
#[derive(Clone, Copy, Debug, Default)]
pub struct Faults {
    pub loss: u64,
    pub duplicate: u64,
    pub reorder: u64,
    /// At most so many messages of one kind between two nodes are lost one after the other; 0 is no
    /// limit.
    pub in_a_row: u32,
}

/// A message as it was sent.
#[derive(Clone, Copy, Debug)]
pub struct Sent {
    pub at: Instant,
    pub from: usize,
    pub to: usize,
    pub mad: [u8; MAD_LEN],
}

impl Sent {
    pub fn kind(&self) -> u16 {
        u16::from_be_bytes([self.mad[16], self.mad[17]])
    }

    /// Ids of a message that begins with them: the sender's and the receiver's.
    pub fn ids(&self) -> (u32, u32) {
        let word = |at: usize| u32::from_be_bytes(self.mad[at..at + 4].try_into().unwrap());
        (word(24), word(28))
    }

    /// Reason of a REJ.
    pub fn reason(&self) -> u16 {
        u16::from_be_bytes([self.mad[34], self.mad[35]])
    }
}

/// The managers and the network.
pub struct Net {
    pub cms: Vec<Cm>,
    pub now: Instant,
    pub rng: Rng,
    pub faults: Faults,
    /// Nothing arrives within these times.
    pub blackouts: Vec<(Instant, Instant)>,
    /// Everything that was sent, whether it arrived or not.
    pub log: Vec<Sent>,
    /// How many of the next messages of a kind are lost.
    pub lose: HashMap<u16, u32>,
    /// What the managers told.
    pub events: Vec<(usize, Event)>,
    wire: BTreeMap<(Instant, u64), Sent>,
    lost_in_a_row: HashMap<(u16, usize, usize), u32>,
    order: u64,
}

pub fn ip(node: usize) -> IpAddr {
    [10, 0, 0, node as u8 + 1].into()
}

fn node_of(ip: IpAddr) -> usize {
    match ip {
        IpAddr::V4(ip) => usize::from(ip.octets()[3]) - 1,
        IpAddr::V6(_) => unreachable!("nodes have IPv4 addresses"),
    }
}

pub fn path(local: usize, remote: usize) -> Path {
    Path {
        adapter: 0,
        local: ip(local),
        remote: ip(remote),
        ifindex: 1,
        traffic_class: 0,
        hop_limit: 64,
    }
}

impl Net {
    pub fn new(nodes: usize, seed: u64) -> Net {
        let cm = |node: usize| {
            let mut cm = Cm::new(Config { id_bits: 22, seed: seed ^ node as u64 });
            let ca_guid = 0x0200_0000_0000_0000 + node as u64;
            cm.attach(0, Adapter { ca_guid, id_prefix: (node as u32) << 22 });
            cm
        };
        Net {
            cms: (0..nodes).map(cm).collect(),
            now: Instant::now(),
            rng: Rng(seed),
            faults: Faults::default(),
            blackouts: Vec::new(),
            log: Vec::new(),
            lose: HashMap::new(),
            events: Vec::new(),
            wire: BTreeMap::new(),
            lost_in_a_row: HashMap::new(),
            order: 0,
        }
    }

    /// Asks for a connection; `qpn` is the active side's.
    pub fn connect(&mut self, from: usize, to: usize, qpn: u32, private: &[u8]) -> ConnId {
        self.connect_by(path(from, to), qpn, private).expect("there is room")
    }

    /// The same along a path.
    pub fn connect_by(&mut self, path: Path, qpn: u32, private: &[u8]) -> Result<ConnId, Invalid> {
        let params = ConnectParams {
            path,
            service_id: SERVICE,
            transport: Transport::Rc,
            qpn,
            psn: 7,
            responder_resources: 4,
            initiator_depth: 3,
            flow_control: true,
            retry_count: 7,
            rnr_retry_count: 7,
            srq: false,
            mtu: 3,
            ack_timeout: ACK_TIMEOUT,
            rate: 16,
            flow_label: 0,
            ece: Ece::default(),
            local_gid: [1; 16],
            remote_gid: [2; 16],
            private: private.to_vec(),
        };
        self.cms[node_of(path.local)].connect(params, self.now)
    }

    pub fn reply(&mut self, node: usize, conn: ConnId, qpn: u32) -> Result<(), cm::Invalid> {
        self.cms[node].reply(conn, ReplyParams { qpn, ..ReplyParams::default() }, self.now)
    }

    /// A message that nobody's manager sent arrives at once.
    pub fn forge(&mut self, from: usize, to: usize, mad: &[u8; MAD_LEN]) {
        self.cms[to].receive(path(to, from), mad, self.now);
        self.collect();
    }

    fn is_lost(&mut self, sent: &Sent) -> bool {
        if let Some(left) = self.lose.get_mut(&sent.kind())
            && *left > 0
        {
            *left -= 1;
            return true;
        }
        if self.blackouts.iter().any(|(from, to)| (*from..*to).contains(&self.now)) {
            return true;
        }
        let lost = self.rng.chance(self.faults.loss);
        let row = self.lost_in_a_row.entry((sent.kind(), sent.from, sent.to)).or_default();
        let lost = lost && (self.faults.in_a_row == 0 || *row < self.faults.in_a_row);
        *row = if lost { *row + 1 } else { 0 };
        lost
    }

    /// Puts on the wire what the managers want to send, and notes what they tell.
    pub fn collect(&mut self) {
        for from in 0..self.cms.len() {
            while let Some((path, mad)) = self.cms[from].poll_transmit() {
                assert_eq!(path.local, ip(from));
                let sent = Sent { at: self.now, from, to: node_of(path.remote), mad };
                self.log.push(sent);
                let copies = if self.rng.chance(self.faults.duplicate) { 2 } else { 1 };
                for _ in 0..copies {
                    if self.is_lost(&sent) {
                        continue;
                    }
                    let mut at = self.now + Duration::from_micros(50);
                    if self.rng.chance(self.faults.reorder) {
                        at += self.rng.millis(0, 9000);
                    }
                    self.order += 1;
                    self.wire.insert((at, self.order), sent);
                }
            }
            while let Some(event) = self.cms[from].poll_event() {
                self.events.push((from, event));
            }
        }
    }

    /// When something happens next.
    pub fn next(&mut self) -> Option<Instant> {
        self.collect();
        let arrival = self.wire.keys().next().map(|(at, _)| *at);
        let deadlines = self.cms.iter().filter_map(Cm::next_deadline);
        deadlines.chain(arrival).min()
    }

    /// Goes to `at`, at which something arrives or is due.
    pub fn go_to(&mut self, at: Instant) {
        self.now = self.now.max(at);
        while let Some(entry) = self.wire.first_entry()
            && entry.key().0 <= self.now
        {
            let sent = entry.remove();
            self.cms[sent.to].receive(path(sent.to, sent.from), &sent.mad, self.now);
            self.collect();
        }
        for cm in &mut self.cms {
            if cm.next_deadline().is_some_and(|due| due <= self.now) {
                cm.on_timeout(self.now);
            }
        }
        self.collect();
    }

    /// Lets time pass.
    pub fn run(&mut self, time: Duration) {
        let end = self.now + time;
        while let Some(next) = self.next()
            && next <= end
        {
            self.go_to(next);
        }
        self.now = end;
    }

    /// What one manager told since the last call.
    pub fn told(&mut self, node: usize) -> Vec<Event> {
        self.collect();
        let (told, others) =
            std::mem::take(&mut self.events).into_iter().partition(|(at, _)| *at == node);
        self.events = others;
        let told: Vec<(usize, Event)> = told;
        told.into_iter().map(|(_, event)| event).collect()
    }

    /// The only event that one manager told.
    #[track_caller]
    pub fn only(&mut self, node: usize) -> Event {
        let mut told = self.told(node);
        assert_eq!(told.len(), 1, "{told:?}");
        told.remove(0)
    }

    /// Nobody told anything.
    #[track_caller]
    pub fn silent(&mut self) {
        self.collect();
        assert!(self.events.is_empty(), "{:?}", self.events);
    }

    /// How often a kind was sent.
    pub fn count(&self, kind: u16) -> usize {
        self.log.iter().filter(|sent| sent.kind() == kind).count()
    }

    /// When a kind was sent, after `begin`.
    pub fn times(&self, kind: u16, begin: Instant) -> Vec<Duration> {
        let those = self.log.iter().filter(|sent| sent.kind() == kind);
        those.map(|sent| sent.at - begin).collect()
    }

    /// The last message of a kind.
    #[track_caller]
    pub fn last(&self, kind: u16) -> Sent {
        *self.log.iter().rev().find(|sent| sent.kind() == kind).expect("one was sent")
    }

    #[track_caller]
    pub fn request(&mut self, node: usize) -> ConnId {
        match self.only(node) {
            Event::Request(request) => request.conn,
            other => panic!("{other:?}"),
        }
    }

    /// A connection from node 0, QP `qpn`, to node 1, QP `qpn + 1000`: both ends' ids.
    #[track_caller]
    pub fn connected(&mut self, qpn: u32) -> (ConnId, ConnId) {
        let active = self.connect(0, 1, qpn, &[]);
        self.run(Duration::from_millis(1));
        let passive = self.request(1);
        self.reply(1, passive, qpn + 1000).unwrap();
        self.run(Duration::from_millis(1));
        assert!(matches!(self.only(0), Event::Reply(reply) if reply.qpn == qpn + 1000));
        self.cms[0].ready(active).unwrap();
        self.run(Duration::from_millis(1));
        assert_eq!(self.only(1), Event::Established(passive));
        (active, passive)
    }

    /// Nothing is left of any conversation once all have ended by themselves.
    #[track_caller]
    pub fn nothing_is_left(&mut self) {
        self.run(SENDINGS * (PATIENCE + THINKING));
        for (node, cm) in self.cms.iter().enumerate() {
            assert_eq!(cm.conversations(), 0, "conversations of node {node}");
            assert_eq!(cm.next_deadline(), None, "a deadline of node {node}");
        }
    }
}
