//! The operations of each service over networks that lose up to 30 % of packets, corrupt, repeat,
//! reorder and delay them. More of what reliable connections do there is in `rc_lossy`, `placement`
//! and `windows`.

use crate::support::{Faults, PD, Pair, QUEUE_PD, Region, Setup, XRCD, port_one, send_wr};
use std::collections::BTreeSet;
use std::time::Duration;
use transport::keys::KeyError;
use transport::values::*;

/// Number of the first XRC queue; the second is next to it.
const QUEUE: u32 = 0x1234;
/// Numbers of a [`Pair`]'s QPs.
const SENDER: u32 = 11;
const RECEIVER: u32 = 12;
/// Bytes of a request's place in each memory.
const PLACE: u64 = 2048;
/// Requests of a sweep.
const COUNT: u64 = 48;
/// Key tags of windows, when bound.
const BOUND: u32 = 5;

/// A sender, its receiver, and where their requests have their bytes.
struct Sweep {
    pair: Pair,
    own: Region,
    far: Region,
    inbox: Region,
    /// What the memories hold at first.
    ours: Vec<u8>,
    theirs: Vec<u8>,
    /// A window of each node for each request; the receiver's are bound.
    windows: [Vec<u32>; 2],
}

impl Sweep {
    /// Queue pairs of `kinds`; the receiver's memory is in `domain`.
    fn new(kinds: [QpType; 2], domain: PdId, seed: u64) -> Sweep {
        let faults = Faults::sweep(seed);
        println!("{kinds:?}, seed {seed}, {faults:?}");
        let remote = Access::REMOTE_READ | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
        let remote = remote | Access::FLUSH_GLOBAL;
        let access = match kinds[0] {
            QpType::Rc | QpType::XrcSend => remote,
            _ => Access::REMOTE_WRITE,
        };
        let setup = Setup { timeout: 8, access, ..Setup::new(kinds[0]) };
        let mut pair = Pair::of(kinds, &setup, 64 << 10, seed, faults);
        let rights = Access::LOCAL_WRITE | Access::MW_BIND | remote;
        let len = COUNT * PLACE;
        let own = pair.nodes[0].register_as(PD, len, rights);
        let far = pair.nodes[1].register_as(domain, len + 8, rights);
        let inbox = pair.nodes[1].register_as(domain, 2 * len, rights);
        let (ours, theirs) = (pair.rng.bytes(len as usize), pair.rng.bytes(len as usize));
        own.set(0, &ours);
        (0..COUNT).for_each(|id| own.set(id * PLACE, &id.to_ne_bytes()));
        let ours_now = own.get(0, len as usize);
        far.set(0, &theirs);
        let new = |node: usize, pd| {
            let keys = &pair.nodes[node].keys;
            (0..COUNT).map(|_| keys.insert_window(pd, MwType::Two).unwrap()).collect()
        };
        let windows: [Vec<u32>; 2] = [new(0, PD), new(1, domain)];
        let sweep = Sweep { pair, own, far, inbox, ours: ours_now, theirs, windows };
        for id in 0..COUNT {
            let bind = sweep.bind(1, id);
            sweep.pair.nodes[1].keys.bind((domain, RECEIVER), &bind).unwrap();
        }
        sweep
    }

    /// Binds a node's window of request `id`.
    fn bind(&self, node: usize, id: u64) -> Bind {
        let region = [&self.own, &self.far][node];
        Bind {
            window: self.windows[node][id as usize],
            key: BOUND,
            region: region.key,
            addr: region.iova,
            len: 64,
            access: Access::REMOTE_READ.bits(),
        }
    }

    fn bound(&self, node: usize, id: u64) -> u32 {
        self.windows[node][id as usize] & !0xff | BOUND
    }

    /// Whether a node's window of request `id` has been invalidated since it was bound.
    fn is_free(&self, node: usize, pd: PdId, id: u64) -> bool {
        let qpn = [SENDER, RECEIVER][node];
        let again = self.pair.nodes[node].keys.invalidate((pd, qpn), self.bound(node, id));
        again == Err(KeyError::NotBound)
    }

    /// Operation and length of request `id` on a reliable service.
    fn reliable(&self, id: u64) -> (SendOp, u32) {
        let to = self.far.remote(id * PLACE);
        let counter = self.far.remote(COUNT * PLACE);
        let whole = id.is_multiple_of(24);
        let compare = u64::from_ne_bytes(self.their(id, 8).try_into().unwrap());
        match id % 12 {
            0 => (SendOp::Send, 1500),
            1 => (SendOp::SendImm(id as u32), 700),
            2 => (SendOp::SendInvalidate(self.bound(1, id)), 300),
            3 => (SendOp::Write(to), 2000),
            4 => (SendOp::WriteImm(to, id as u32), 1000),
            5 => (SendOp::Read(to), 1900),
            6 => (SendOp::CompareSwap { remote: to, compare, swap: id }, 8),
            7 => (SendOp::FetchAdd { remote: counter, add: 1 }, 8),
            8 => (SendOp::AtomicWrite(to), 8),
            9 => (SendOp::Flush(Flush { remote: to, len: 64, placement: 1, whole }), 0),
            10 => (SendOp::BindMw(self.bind(0, id)), 0),
            _ => (SendOp::LocalInvalidate(self.bound(0, id - 1)), 0),
        }
    }

    /// Operation and length of request `id` on UC.
    fn unreliable(&self, id: u64) -> (SendOp, u32) {
        let to = self.far.remote(id * PLACE);
        match id % 6 {
            0 => (SendOp::Send, 1500),
            1 => (SendOp::SendImm(id as u32), 70),
            2 => (SendOp::Write(to), 2000),
            3 => (SendOp::WriteImm(to, id as u32), 100),
            4 => (SendOp::BindMw(self.bind(0, id)), 0),
            _ => (SendOp::LocalInvalidate(self.bound(0, id - 1)), 0),
        }
    }

    fn our(&self, id: u64, len: usize) -> &[u8] {
        &self.ours[(id * PLACE) as usize..][..len]
    }

    fn their(&self, id: u64, len: usize) -> &[u8] {
        &self.theirs[(id * PLACE) as usize..][..len]
    }

    fn request(&self, id: u64, op: SendOp, len: u32) -> SendWr {
        let local = matches!(op, SendOp::BindMw(_) | SendOp::LocalInvalidate(_) | SendOp::Flush(_));
        let sges = [self.own.sge(id * PLACE, len)];
        send_wr(id, op, if local { &[] } else { &sges })
    }

    /// Runs until a reliable service has carried everything, and judges that.
    #[track_caller]
    fn until_all_sent(&mut self) {
        let limit = Duration::from_secs(600);
        self.pair.run_until(limit, |pair| pair.nodes[0].told.sent.len() == COUNT as usize);
        self.pair.settle();
        self.all_sent();
    }

    /// Whether request `id` of a reliable service takes a receive.
    fn receives(id: u64) -> bool {
        matches!(id % 12, 0 | 1 | 2 | 4)
    }

    /// Every request of the sender has completed, in order and well.
    #[track_caller]
    fn all_sent(&self) {
        self.pair.assert_corrupted();
        let sent: Vec<_> =
            self.pair.nodes[0].told.sent.iter().map(|c| (c.wr_id, c.status)).collect();
        assert_eq!(sent, (0..COUNT).map(|id| (id, WcStatus::Success)).collect::<Vec<_>>());
        assert!(self.pair.nodes.iter().all(|node| node.qp.state() == QpState::Rts));
    }

    /// What each request of a reliable service asked for has happened, once; the receiver's memory
    /// is in `domain`.
    #[track_caller]
    fn all_done_once(&self, domain: PdId) {
        for id in 0..COUNT {
            let (place, now) = (id * PLACE, |len| self.far.get(id * PLACE, len));
            match id % 12 {
                0 => assert_eq!(self.is_message(place, 0, 1500), id),
                1 => assert_eq!(self.is_message(place, 0, 700), id),
                2 => {
                    assert!(self.is_free(1, domain, id) && self.is_message(place, 0, 300) == id)
                }
                3 => assert!(now(2000) == self.our(id, 2000)),
                4 => assert!(now(1000) == self.our(id, 1000)),
                5 => assert!(self.own.get(place, 1900) == self.their(id, 1900)),
                6 => {
                    assert_eq!(now(8), id.to_ne_bytes());
                    assert_eq!(self.own.get(place, 8), self.their(id, 8));
                }
                7 => assert_eq!(self.own.word(place), id / 12),
                8 => assert_eq!(now(8), self.our(id, 8)),
                11 => assert!(self.is_free(0, PD, id - 1)),
                _ => {}
            }
        }
        assert_eq!(self.far.word(COUNT * PLACE), COUNT / 12);
    }

    /// The message in the inbox at `at` is, behind `skip` bytes, what the request that it names
    /// sent.
    #[track_caller]
    fn is_message(&self, at: u64, skip: u64, byte_len: u32) -> u64 {
        let got = self.inbox.get(at + skip, byte_len as usize - skip as usize);
        let id = u64::from_ne_bytes(got[..8].try_into().unwrap());
        assert!(id < COUNT && got == self.our(id, got.len()), "request {id}");
        id
    }
}

#[test]
fn xrc_does_everything_once_and_in_order() {
    for seed in 0..12 {
        let mut sweep = Sweep::new([QpType::XrcSend, QpType::XrcRecv], QUEUE_PD, seed);
        let queues =
            [QUEUE, QUEUE + 1].map(|number| sweep.pair.nodes[1].xrc_queue(number, XRCD, QUEUE_PD));
        for id in 0..COUNT {
            let (op, len) = sweep.reliable(id);
            let queue = (id / 12 % 2) as usize;
            if Sweep::receives(id) {
                let scatter = [sweep.inbox.sge(id * PLACE, 2000)].into_iter().collect();
                queues[queue].requests.0.lock().unwrap().push_back(RecvWr { wr_id: id, scatter });
            }
            let mut wr = sweep.request(id, op, len);
            wr.xrc_srqn = QUEUE + queue as u32;
            sweep.pair.nodes[0].post_send(wr);
        }
        sweep.until_all_sent();
        for (which, queue) in queues.iter().enumerate() {
            let told: Vec<u64> = queue.told.lock().unwrap().iter().map(|c| c.wr_id).collect();
            let consumes = |id: &u64| id / 12 % 2 == which as u64 && Sweep::receives(*id);
            assert_eq!(told, (0..COUNT).filter(consumes).collect::<Vec<_>>());
        }
        sweep.all_done_once(QUEUE_PD);
    }
}

#[test]
fn reliable_connections_do_everything_once_and_in_order() {
    for seed in 0..12 {
        let mut sweep = Sweep::new([QpType::Rc; 2], PD, seed);
        for id in 0..COUNT {
            if Sweep::receives(id) {
                sweep.pair.nodes[1].post_recv(id, &[sweep.inbox.sge(id * PLACE, 2000)]);
            }
            let (op, len) = sweep.reliable(id);
            let wr = sweep.request(id, op, len);
            sweep.pair.nodes[0].post_send(wr);
        }
        sweep.until_all_sent();
        let received: Vec<u64> =
            sweep.pair.nodes[1].told.received.iter().map(|c| c.wr_id).collect();
        assert_eq!(received, (0..COUNT).filter(|id| Sweep::receives(*id)).collect::<Vec<_>>());
        sweep.all_done_once(PD);
    }
}

/// Nothing is repaired there. Each request completes when it is out, each message that arrives is
/// whole and as it was sent, and memory holds nothing but what was there or was written.
#[test]
fn unreliable_connections_deliver_whole_messages_or_none() {
    let mut arrived = BTreeSet::new();
    for seed in 0..12 {
        let mut sweep = Sweep::new([QpType::Uc; 2], PD, seed);
        for at in 0..2 * COUNT {
            sweep.pair.nodes[1].post_recv(at, &[sweep.inbox.sge(at * PLACE, 2000)]);
        }
        for id in 0..COUNT {
            let (op, len) = sweep.unreliable(id);
            let wr = sweep.request(id, op, len);
            sweep.pair.nodes[0].post_send(wr);
            sweep.pair.step();
        }
        sweep.pair.settle();
        sweep.all_sent();
        for done in &sweep.pair.nodes[1].told.received {
            assert_eq!(done.status, WcStatus::Success);
            match done.opcode {
                WcOpcode::RecvRdmaWithImm => {
                    let id = u64::from(done.imm_or_key);
                    assert!(id % 6 == 3 && sweep.far.get(id * PLACE, 100) == sweep.our(id, 100));
                    arrived.insert(id % 6);
                }
                _ => {
                    let id = sweep.is_message(done.wr_id * PLACE, 0, done.byte_len);
                    assert_eq!(done.byte_len, [1500, 70][(id % 6) as usize]);
                    arrived.insert(id % 6);
                }
            }
        }
        for id in 0..COUNT {
            let now = sweep.far.get(id * PLACE, PLACE as usize);
            let written = if matches!(id % 6, 2 | 3) { sweep.our(id, 2000) } else { &[] };
            for (at, byte) in now.into_iter().enumerate() {
                let new = written.get(at).is_some_and(|written| byte == *written);
                assert!(
                    new || byte == sweep.their(id, PLACE as usize)[at],
                    "request {id}, byte {at}"
                );
            }
            assert!(id % 6 != 5 || sweep.is_free(0, PD, id - 1));
        }
    }
    assert_eq!(arrived, BTreeSet::from([0, 1, 3]), "some of each kind came through");
}

#[test]
fn datagrams_arrive_as_they_were_sent_or_not_at_all() {
    for seed in 0..12 {
        let mut sweep = Sweep::new([QpType::Ud; 2], PD, seed);
        for at in 0..2 * COUNT {
            sweep.pair.nodes[1].post_recv(at, &[sweep.inbox.sge(at * PLACE, 2000)]);
        }
        let ah = port_one();
        let remote_qkey = Setup::new(QpType::Ud).qkey;
        for id in 0..COUNT {
            let len = 8 + (id * 37 % 1900) as u32;
            let op = if id % 2 == 0 { SendOp::Send } else { SendOp::SendImm(id as u32) };
            let mut wr = sweep.request(id, op, len);
            wr.datagram = Some(Datagram { ah: ah.clone(), remote_qpn: RECEIVER, remote_qkey });
            sweep.pair.nodes[0].post_send(wr);
            sweep.pair.step();
        }
        sweep.pair.settle();
        sweep.all_sent();
        let received = &sweep.pair.nodes[1].told.received;
        assert!(received.len() as u64 > COUNT / 3, "{} arrived", received.len());
        for done in received {
            assert_eq!((done.status, done.src_qp), (WcStatus::Success, SENDER));
            let id = sweep.is_message(done.wr_id * PLACE, 40, done.byte_len);
            assert_eq!(u64::from(done.byte_len), 40 + 8 + id * 37 % 1900);
            let imm = (id % 2 == 1).then_some(id as u32);
            assert_eq!(done.flags.contains(WcFlags::WITH_IMM).then_some(done.imm_or_key), imm);
        }
    }
}
