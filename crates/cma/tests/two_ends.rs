//! Programs at both ends of librdmacm's protocol, in virtual time: which events they see, with
//! which status, in which order.

use cm::{Adapter, Cm, Config, Path};
use cma::{
    Addr, ChannelId, Cma, ConnParam, ConnectParam, Error, EventKind, Local, Neighbour, Param,
};
use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, Instant};

const MS: Duration = Duration::from_millis(1);
/// How long the active side waits for an answer, and how often it asks.
const PATIENCE: Duration = Duration::from_millis((1 << 12) + 2 * (1 << 10));
const SENDINGS: u32 = 16;
const PORT: u16 = 7471;
const CHANNEL: ChannelId = ChannelId(1);
const TCP: u16 = 0x0106;
const UDP: u16 = 0x0111;

fn ip(node: usize) -> Ipv4Addr {
    Ipv4Addr::new(10, 0, 0, node as u8 + 1)
}

fn local(node: usize) -> Local {
    Local { device: 0, ip: ip(node).into(), ifindex: 2, gid_index: 0, mtu: 3 }
}

/// What a program hears of an event.
#[derive(Clone, PartialEq, Eq, Debug)]
struct EventSeen {
    kind: EventKind,
    status: i32,
    uid: u64,
    handle: u32,
    private: Vec<u8>,
}

struct Net {
    cmas: Vec<Cma>,
    now: Instant,
    /// Messages on their way: everything takes a tenth of a millisecond.
    wire: VecDeque<(Instant, Path, [u8; cm::MAD_LEN])>,
    /// How many of the next messages are lost.
    lose: u32,
    qpn: u32,
}

impl Net {
    fn new() -> Net {
        let node = |node: usize| {
            let adapter = Adapter { ca_guid: node as u64, id_prefix: (node as u32) << 22 };
            let mut cm = Cm::new(Config { id_bits: 22, seed: node as u64 });
            cm.attach(0, adapter);
            let mut cma = Cma::new(cm, 1 + node as u64);
            cma.open(CHANNEL);
            cma
        };
        let cmas = (0..2).map(node).collect();
        Net { cmas, now: Instant::now(), wire: VecDeque::new(), lose: 0, qpn: 0 }
    }

    fn run(&mut self, time: Duration) {
        let end = self.now + time;
        loop {
            for cma in &mut self.cmas {
                while let Some((path, mad)) = cma.cm().poll_transmit() {
                    let lost = self.lose > 0;
                    self.lose -= u32::from(lost);
                    if !lost {
                        self.wire.push_back((self.now + MS / 10, path, mad));
                    }
                }
            }
            let arrival = self.wire.front().map(|(at, ..)| *at);
            let deadlines = self.cmas.iter_mut().filter_map(|cma| cma.next_deadline());
            let Some(next) = deadlines.chain(arrival).min().filter(|at| *at <= end) else { break };
            self.now = next.max(self.now);
            if arrival == Some(next)
                && let Some((_, path, mad)) = self.wire.pop_front()
            {
                let back = Path { local: path.remote, remote: path.local, ..path };
                let to = (0..2).find(|node| IpAddr::from(ip(*node)) == path.remote).unwrap();
                self.cmas[to].receive(back, &mad, self.now);
            }
            for cma in &mut self.cmas {
                cma.on_timeout(self.now);
            }
        }
        self.now = end;
    }

    /// Takes all events of a program.
    fn told(&mut self, node: usize) -> Vec<EventSeen> {
        let mut told = Vec::new();
        while let Some(next) = self.next(node) {
            told.push(next);
        }
        told
    }

    fn next(&mut self, node: usize) -> Option<EventSeen> {
        let delivered = self.cmas[node].next_event(CHANNEL).unwrap()?;
        self.cmas[node].delivered(CHANNEL);
        let private = match delivered.event.param {
            Param::Conn(conn) => conn.private_data,
            Param::Datagram(datagram) => datagram.private_data,
            Param::Argument(argument) => argument.to_ne_bytes().to_vec(),
        };
        Some(EventSeen {
            kind: delivered.event.kind,
            status: delivered.event.status,
            uid: delivered.uid,
            handle: delivered.handle,
            private,
        })
    }

    /// Kind and status of the events of a program.
    fn kinds(&mut self, node: usize) -> Vec<(EventKind, i32)> {
        self.told(node).into_iter().map(|told| (told.kind, told.status)).collect()
    }

    fn listen(&mut self, space: u16, at: Ipv4Addr, backlog: u32) -> u32 {
        let cma = &mut self.cmas[1];
        let handle = cma.create(CHANNEL, 1000, space, 0).unwrap();
        let key = cma.key(CHANNEL, handle).unwrap();
        let ours = (!at.is_unspecified()).then(|| local(1));
        cma.bind(key, Addr::V4(at, PORT), ours).unwrap();
        cma.listen(key, backlog).unwrap();
        handle
    }

    /// An id with its route resolved, asking for a connection.
    fn connect(&mut self, space: u16, uid: u64) -> u32 {
        self.connect_as(space, uid, ConnParam::default())
    }

    /// The same with a program's parameters, but for the queue pair.
    fn connect_as(&mut self, space: u16, uid: u64, wanted: ConnParam) -> u32 {
        let cma = &mut self.cmas[0];
        let handle = cma.create(CHANNEL, uid, space, 0).unwrap();
        let key = cma.key(CHANNEL, handle).unwrap();
        cma.bind(key, Addr::V4(ip(0), 1024 + uid as u16), Some(local(0))).unwrap();
        cma.resolve_addr(key, Addr::V4(ip(1), PORT), local(0), None, self.now).unwrap();
        cma.resolve_route(key, 2000).unwrap();
        self.qpn += 1;
        let conn = ConnParam { qp_num: self.qpn, ..wanted };
        let param = ConnectParam { conn, ..ConnectParam::default() };
        cma.connect(key, param, self.now).unwrap();
        let resolved = [(EventKind::AddrResolved, 0), (EventKind::RouteResolved, 0)];
        assert_eq!(self.kinds(0), resolved);
        handle
    }

    fn with<R>(
        &mut self,
        node: usize,
        handle: u32,
        call: impl FnOnce(&mut Cma, cma::Key) -> R,
    ) -> R {
        let key = self.cmas[node].key(CHANNEL, handle).unwrap();
        call(&mut self.cmas[node], key)
    }

    fn accept(&mut self, handle: u32, uid: u64) -> Result<(), Error> {
        self.accept_as(handle, uid, ConnParam::default())
    }

    fn accept_as(&mut self, handle: u32, uid: u64, wanted: ConnParam) -> Result<(), Error> {
        self.qpn += 1;
        let conn = ConnParam { qp_num: self.qpn, ..wanted };
        let param = ConnectParam { conn, ..ConnectParam::default() };
        let now = self.now;
        self.with(1, handle, |cma, key| cma.accept(key, uid, Some(param), now))
    }

    fn destroy(&mut self, node: usize, handle: u32) {
        let now = self.now;
        self.with(node, handle, |cma, key| cma.destroy(key, now)).unwrap();
    }

    /// The program confirms what was accepted, as librdmacm does.
    fn ready(&mut self, handle: u32) {
        let now = self.now;
        self.with(0, handle, |cma, key| cma.accept(key, 0, None, now)).unwrap();
    }

    #[track_caller]
    fn nothing_is_left(&mut self) {
        for node in 0..2 {
            let closed = self.cmas[node].close(CHANNEL, self.now);
            drop(closed);
        }
        self.run(SENDINGS * 2 * (PATIENCE + Duration::from_secs(66)));
        for cma in &mut self.cmas {
            assert_eq!(cma.cm().conversations(), 0);
            assert_eq!(cma.next_deadline(), None);
        }
    }
}

#[test]
fn a_connection_and_its_events() {
    let mut net = Net::new();
    net.listen(TCP, Ipv4Addr::UNSPECIFIED, 0);
    let active = net.connect(TCP, 7);
    net.run(MS);
    let request = net.told(1).remove(0);
    assert_eq!((request.kind, request.uid), (EventKind::ConnectRequest, 1000));
    net.accept(request.handle, 8).unwrap();
    net.run(MS);
    assert_eq!(net.kinds(0), [(EventKind::ConnectResponse, 0)]);
    net.ready(active);
    net.run(MS);
    let told = net.told(1);
    assert_eq!((told[0].kind, told[0].uid), (EventKind::Established, 8));
    // Both at once: each hears of it once.
    let now = net.now;
    net.with(0, active, |cma, key| cma.disconnect(key, now)).unwrap();
    net.with(1, request.handle, |cma, key| cma.disconnect(key, now)).unwrap();
    net.run(Duration::from_secs(3));
    for node in [0, 1] {
        let told = [(EventKind::Disconnected, 0), (EventKind::TimewaitExit, 0)];
        assert_eq!(net.kinds(node), told);
    }
    net.nothing_is_left();
}

/// Each end says how often the other is to try again where it has posted no receive, 7 for ever
/// (rdma_connect(3), kernel `cm_rep_handler`).
#[test]
fn each_end_retries_as_often_as_the_other_wants() {
    const RTS: u32 = 3;
    for (active_wants, passive_wants) in [(7, 0), (0, 7), (3, 200)] {
        let wants = |count| ConnParam { rnr_retry_count: count, ..ConnParam::default() };
        let mut net = Net::new();
        net.listen(TCP, Ipv4Addr::UNSPECIFIED, 0);
        let active = net.connect_as(TCP, 7, wants(active_wants));
        net.run(MS);
        let passive = net.told(1).remove(0).handle;
        net.accept_as(passive, 8, wants(passive_wants)).unwrap();
        net.run(MS);
        net.ready(active);
        net.run(MS);
        for (node, handle, wanted) in [(0, active, passive_wants), (1, passive, active_wants)] {
            let attr = net.with(node, handle, |cma, key| cma.init_qp_attr(key, RTS)).unwrap();
            assert_eq!(attr.rnr_retry, wanted.min(7), "end {node}");
        }
    }
}

#[test]
fn a_program_writes_events_of_its_own() {
    let mut net = Net::new();
    let cma = &mut net.cmas[0];
    let handle = cma.create(CHANNEL, 7, TCP, 0).unwrap();
    let key = cma.key(CHANNEL, handle).unwrap();
    cma.write_event(key, 18, -5, 0x1234).unwrap();
    cma.write_event(key, 19, 0, 16).unwrap();
    for other in [0, 9, 15, 16, 17, 20, u32::MAX] {
        assert_eq!(cma.write_event(key, other, 0, 0), Err(Error::INVAL));
    }
    assert_eq!(cma.take_woken(), [CHANNEL; 2]);
    let told = net.told(0);
    let seen = told.iter().map(|told| (told.kind, told.status, told.uid, told.handle));
    assert!(seen.eq([(EventKind::User, -5, 7, handle), (EventKind::Internal, 0, 7, handle)]));
    assert_eq!(told[0].private, 0x1234_u64.to_ne_bytes());
}

/// Requests beyond the backlog wait at their askers, which repeat them: nobody is refused (kernel
/// `ucma_connect_event_handler`, `cm_destroy_id`).
#[test]
fn a_backlog_that_overflows_only_delays() {
    let mut net = Net::new();
    let listener = net.listen(TCP, Ipv4Addr::UNSPECIFIED, 2);
    let actives: Vec<u32> = (1..=5).map(|uid| net.connect(TCP, uid)).collect();
    net.run(MS);
    let mut passives = Vec::new();
    for expected in [2, 2, 1] {
        let requests = net.told(1);
        assert_eq!(requests.len(), expected);
        for request in requests {
            assert_eq!(request.kind, EventKind::ConnectRequest);
            net.accept(request.handle, 50 + u64::from(request.handle)).unwrap();
            passives.push(request.handle);
        }
        net.run(PATIENCE);
    }
    assert_eq!(net.kinds(0), [(EventKind::ConnectResponse, 0); 5]);
    for active in &actives {
        net.ready(*active);
    }
    net.run(MS);
    assert_eq!(net.kinds(1), [(EventKind::Established, 0); 5]);
    for passive in passives {
        net.destroy(1, passive);
    }
    net.destroy(1, listener);
    net.run(MS);
    assert_eq!(net.kinds(0), [(EventKind::Disconnected, 0); 5]);
    net.nothing_is_left();
}

#[test]
fn a_full_listener_that_never_takes_an_event_times_its_askers_out() {
    let mut net = Net::new();
    net.listen(TCP, Ipv4Addr::UNSPECIFIED, 1);
    net.connect(TCP, 1);
    net.connect(TCP, 2);
    net.run(SENDINGS * PATIENCE + MS);
    // The first is granted time to think, the second nothing.
    assert_eq!(
        net.told(0).iter().map(|t| (t.kind, t.status, t.uid)).collect::<Vec<_>>(),
        [(EventKind::Unreachable, -Error::TIMEDOUT.0, 2)]
    );
    net.nothing_is_left();
}

#[test]
fn a_datagram_service_that_is_full_refuses() {
    let mut net = Net::new();
    net.listen(UDP, Ipv4Addr::UNSPECIFIED, 1);
    net.connect(UDP, 1);
    net.connect(UDP, 2);
    net.run(MS);
    let told = net.told(0);
    assert_eq!((told[0].kind, told[0].status, told[0].uid), (EventKind::Unreachable, 2, 2));
    net.nothing_is_left();
}

#[test]
fn nobody_listens() {
    let mut net = Net::new();
    net.connect(TCP, 1);
    net.run(MS);
    assert_eq!(net.kinds(0), [(EventKind::Rejected, 8)]);
    net.connect(UDP, 2);
    net.run(MS);
    assert_eq!(net.kinds(0), [(EventKind::Unreachable, 1)]);
    net.nothing_is_left();
}

#[test]
fn nobody_is_there() {
    for space in [TCP, UDP] {
        let mut net = Net::new();
        net.lose = u32::MAX;
        net.connect(space, 1);
        net.run(SENDINGS * PATIENCE + MS);
        assert_eq!(net.kinds(0), [(EventKind::Unreachable, -Error::TIMEDOUT.0)]);
        net.nothing_is_left();
    }
}

/// Requests that were not delivered go with their listener; those that were are the program's own.
#[test]
fn a_listener_that_ends() {
    let mut net = Net::new();
    let listener = net.listen(TCP, Ipv4Addr::UNSPECIFIED, 0);
    let first = net.connect(TCP, 1);
    net.connect(TCP, 2);
    net.run(MS);
    let request = net.next(1).unwrap();
    net.destroy(1, listener);
    net.run(MS);
    let told = net.told(0);
    assert_eq!((told[0].kind, told[0].status, told[0].uid), (EventKind::Rejected, 28, 2));
    assert_eq!(told.len(), 1);
    net.accept(request.handle, 5).unwrap();
    net.run(MS);
    assert_eq!(net.kinds(0), [(EventKind::ConnectResponse, 0)]);
    net.ready(first);
    net.run(MS);
    assert_eq!(net.kinds(1), [(EventKind::Established, 0)]);
    net.nothing_is_left();
}

#[test]
fn a_refusal_brings_its_private_data() {
    let mut net = Net::new();
    net.listen(TCP, Ipv4Addr::UNSPECIFIED, 0);
    net.connect(TCP, 1);
    net.run(MS);
    let request = net.told(1).remove(0);
    let now = net.now;
    let reject =
        |reason: u8| move |cma: &mut Cma, key: cma::Key| cma.reject(key, reason, b"no", now);
    assert_eq!(net.with(1, request.handle, reject(5)), Err(Error::INVAL));
    net.with(1, request.handle, reject(0)).unwrap();
    assert_eq!(net.with(1, request.handle, reject(0)), Err(Error::INVAL), "only once");
    net.run(MS);
    let told = net.told(0).remove(0);
    assert_eq!((told.kind, told.status), (EventKind::Rejected, 28));
    assert!(told.private.starts_with(b"no"));
    net.nothing_is_left();
}

/// Where two listen for one service, the one at the address is asked, whichever came first.
#[test]
fn a_listener_at_the_address_goes_before_one_at_all_addresses() {
    for specific_first in [false, true] {
        let mut net = Net::new();
        let order = [(ip(1), 3), (Ipv4Addr::UNSPECIFIED, 4)];
        let order = if specific_first { order } else { [order[1], order[0]] };
        let specific = order.map(|(at, backlog)| (at, net.listen(TCP, at, backlog)));
        let specific = specific.iter().find(|(at, _)| *at == ip(1)).unwrap().1;
        let active = net.connect(TCP, 1);
        net.run(MS);
        net.destroy(1, specific);
        net.run(MS);
        // It was the one that is gone.
        assert_eq!(net.kinds(0), [(EventKind::Rejected, 28)]);
        net.destroy(0, active);
        net.connect(TCP, 2);
        net.run(MS);
        assert_eq!(net.kinds(1), [(EventKind::ConnectRequest, 0)]);
        net.nothing_is_left();
    }
}

/// As with the kernel's neighbours: found late, not found in time, found at the next attempt.
#[test]
fn a_next_hop_is_waited_for() {
    let mut net = Net::new();
    let cma = &mut net.cmas[0];
    let handle = cma.create(CHANNEL, 7, TCP, 0).unwrap();
    let key = cma.key(CHANNEL, handle).unwrap();
    cma.bind(key, Addr::V4(Ipv4Addr::UNSPECIFIED, 1024), None).unwrap();
    let neighbour = Neighbour { ip: ip(1).into(), ifindex: 2 };
    let dst = Addr::V4(ip(1), PORT);
    let begin = net.now;
    let wait = Some((neighbour, begin + 300 * MS));
    // Looks until the end, or until `appears`; answers how often, and when it ended.
    let search = |cma: &mut Cma, begin: Instant, appears: Option<Duration>| {
        let mut looks = 0;
        let mut now = begin;
        while let Some(at) = cma.next_deadline() {
            assert!(at > now);
            now = at;
            assert_eq!(cma.sought(now), [(key, neighbour)]);
            cma.looked(key, appears.is_some_and(|after| now - begin >= after), now);
            looks += 1;
        }
        (looks, now - begin)
    };
    cma.resolve_addr(key, dst, local(0), wait, begin).unwrap();
    let again = cma.resolve_addr(key, dst, local(0), wait, begin);
    assert_eq!(again, Err(Error::INVAL), "one at a time");
    assert_eq!(cma.resolve_route(key, 2000), Err(Error::INVAL), "too early");
    assert_eq!(search(cma, begin, None), (9, 300 * MS));
    assert!(cma.describe(key).unwrap().src.is_any());
    assert_eq!(net.kinds(0), [(EventKind::AddrError, -Error::TIMEDOUT.0)]);
    let cma = &mut net.cmas[0];
    cma.resolve_addr(key, dst, local(0), wait, begin).unwrap();
    assert!(search(cma, begin, Some(20 * MS)).1 < 40 * MS);
    assert_eq!(cma.describe(key).unwrap().src, Addr::V4(ip(0), 1024));
    cma.resolve_route(key, 2000).unwrap();
    assert_eq!(net.kinds(0), [(EventKind::AddrResolved, 0), (EventKind::RouteResolved, 0)]);
    // Who ends meanwhile is not looked for.
    let cma = &mut net.cmas[0];
    let handle = cma.create(CHANNEL, 8, TCP, 0).unwrap();
    let key = cma.key(CHANNEL, handle).unwrap();
    cma.bind(key, Addr::V4(ip(0), 1025), Some(local(0))).unwrap();
    cma.resolve_addr(key, dst, local(0), wait, begin).unwrap();
    net.destroy(0, handle);
    net.nothing_is_left();
}
