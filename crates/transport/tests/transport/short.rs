//! Short messages, by the calls that are made for them and without: whatever happens, packets,
//! completions, memory and the time of the next look are the same.

mod clockless;

use crate::support::{Node, PAGE, Packet, Region, Rng, Setup, send_wr};
use std::collections::VecDeque;
use std::time::{Duration, Instant};
use transport::values::*;
use transport::{Counter, PageFault, ShortPayload, ShortWr};
use wire::{ACK_LEN, Headers, MAX_HEADERS_LEN, SHORT_PACKET, SHORT_PAYLOAD, Short};

const SEEDS: u64 = 150;
const STEPS: usize = 400;
/// Of each node, the first half for what is sent and the rest for what comes.
const REGION_BYTES: u64 = 4 * PAGE;

impl Packet {
    /// Its bytes without the ICRC.
    fn bytes(&self) -> Vec<u8> {
        let mut head = [0; MAX_HEADERS_LEN];
        let len = self.headers.emit(&mut head);
        let mut bytes = head[..len].to_vec();
        bytes.extend_from_slice(&self.payload);
        bytes.resize(bytes.len() + usize::from(self.headers.bth.pad), 0);
        bytes
    }

    fn of(bytes: &[u8]) -> Packet {
        let (headers, payload) = Headers::parse(bytes).unwrap();
        Packet { headers, payload: payload.to_vec() }
    }
}

/// One end, and whether it makes the calls for short messages.
struct End {
    node: Node,
    region: Region,
    shortens: bool,
    /// How often one of them did what there was to do.
    shortened: u64,
    /// How often a request was posted by one.
    alone: u64,
    faults: VecDeque<PageFault>,
}

impl End {
    fn new(qpn: u32, start: Instant, shortens: bool) -> End {
        let mut node = Node::with_window(QpType::Rc, qpn, None, 64 << 10);
        node.now = start;
        let region = node.register(REGION_BYTES);
        let setup = Setup { dest: 23 - qpn, sq_psn: 1000 * qpn, ..Setup::new(QpType::Rc) };
        node.connect(&Setup { rq_psn: 1000 * (23 - qpn), retry_cnt: 7, rnr_retry: 7, ..setup });
        End { node, region, shortens, shortened: 0, alone: 0, faults: VecDeque::new() }
    }

    fn count(&mut self, what: Counter, by: u64) {
        self.node.with(|_, cx| cx.counters.count(what, by));
    }

    fn post_send(&mut self, wr: SendWr) {
        if self.shortens && self.post_lone(&wr) {
            return;
        }
        // Where it is refused, what is there is asked for all the same.
        let _ = self.node.qp.post_send(wr);
        self.transmit();
    }

    fn post_lone(&mut self, wr: &SendWr) -> bool {
        let Some(wr) = short_wr(wr) else { return false };
        let mut packet = [0; SHORT_PACKET];
        let made = self.node.with(|qp, cx| qp.post_lone(cx.keys, wr, &mut packet, Some(cx.now)));
        match made {
            Some(len) if len % 8 != 0 => self.leave(&packet[..len]),
            Some(_) => {
                self.node.qp.forget_lone();
                return false;
            }
            None => return false,
        }
        assert_eq!(self.node.qp.lone_deadline(), self.node.qp.deadline());
        self.alone += 1;
        true
    }

    /// A packet made by a call for short messages leaves.
    fn leave(&mut self, packet: &[u8]) {
        let packet = Packet::of(packet);
        self.count(Counter::SentPackets, 1);
        self.count(Counter::SentBytes, packet.payload.len() as u64);
        self.node.out.packets.push(packet);
        self.shortened += 1;
    }

    fn transmit(&mut self) {
        let mut packet = [0; SHORT_PACKET];
        let made = match self.shortens {
            true => self.node.with(|qp, cx| qp.make_short(cx.keys, &mut packet)),
            false => None,
        };
        // Where there is no room for the packet it does not leave, and nothing has happened.
        match made.filter(|len| len % 8 != 0) {
            Some(len) => {
                let bytes = self.node.with(|qp, cx| qp.sent_short(cx.now));
                self.leave(&packet[..len]);
                assert_eq!(bytes, self.node.out.packets.last().unwrap().payload.len() as u64);
            }
            None => self.node.with(|qp, cx| qp.transmit(cx)),
        }
    }

    fn feed(&mut self, packet: &Packet) {
        if !self.shortens || !self.feed_short(packet) {
            self.node.receive(packet);
            self.node.end_of_batch();
        }
    }

    fn feed_short(&mut self, packet: &Packet) -> bool {
        let bytes = packet.bytes();
        match Short::parse(&bytes) {
            None => false,
            Some(Short::Ack(ack)) => self.node.with(|qp, cx| {
                let Some(done) = qp.acknowledged_short(ack.psn, cx.now) else { return false };
                done.into_iter().for_each(|done| cx.sink.sent(done));
                true
            }),
            Some(Short::Send(send, payload)) => {
                let done = self.node.with(|qp, cx| {
                    let mtu = qp.path_mtu();
                    qp.take_short(&send, payload, cx.keys, (cx.now, mtu))
                });
                let Some(done) = done else { return false };
                self.node.told.received.push(done);
                if send.psn.get().is_multiple_of(4) {
                    // There is no room for it.
                    self.node.qp.owe_short_ack();
                    self.node.with(|qp, cx| qp.end_of_batch(cx));
                    return true;
                }
                let mut ack = [0; ACK_LEN];
                self.node.qp.short_ack().emit(&mut ack);
                self.node.out.packets.push(Packet::of(&ack));
                self.count(Counter::SentPackets, 1);
                true
            }
        }
        .then(|| self.shortened += 1)
        .is_some()
    }

    fn look(&mut self) {
        if self.node.qp.deadline().is_some_and(|deadline| deadline <= self.node.now) {
            self.node.with(|qp, cx| qp.timer(cx));
        }
    }
}

/// The same request by its call, if it may be one for that.
fn short_wr(wr: &SendWr) -> Option<ShortWr> {
    let imm = wr.op.plain_send()?;
    let payload = match &wr.payload {
        Payload::Gather(list) => ShortPayload::Memory(*list.first()?),
        Payload::Inline(bytes) => ShortPayload::Inline(bytes.clone()),
    };
    Some(ShortWr { wr_id: wr.wr_id, imm, flags: wr.flags, payload })
}

/// What a step does, the same to both.
#[derive(Clone, Debug)]
enum Step {
    Receive(u32, u32),
    Send(SendOp, u64, u32, SendFlags, bool),
    /// The oldest packet to this end arrives.
    Arrive,
    Lose,
    Wait(Duration),
    /// Nothing new is posted.
    Transmit,
    /// A page is away, or one that was missed comes back.
    Vanish(u64),
    Serve,
    /// Sending stops, or goes on.
    Drain(bool),
    Fail,
    /// A call for which there is no reason just now.
    Idle(u64),
}

fn step(rng: &mut Rng) -> Step {
    let at = rng.range(0, 40);
    match rng.range(0, 100) {
        // Now and then too short, or under a wrong key.
        0..22 => {
            let rare = rng.range(0, 199);
            let least = if rare < 2 { 0 } else { 256 };
            let key = if rare == 2 { 77 } else { 0 };
            Step::Receive(rng.range(least, 512) as u32, key)
        }
        22..36 => {
            let solicited = if rng.chance(20) { SendFlags::SOLICITED } else { SendFlags::empty() };
            let signaled = if rng.chance(80) { SendFlags::SIGNALED } else { SendFlags::empty() };
            let fence = if rng.chance(10) { SendFlags::FENCE } else { SendFlags::empty() };
            let remote = Remote { addr: 0x10_0000 + REGION_BYTES / 2, rkey: 0 };
            let op = match rng.range(0, 19) {
                0 => SendOp::Write(remote),
                1 => SendOp::Read(remote),
                2..7 => SendOp::SendImm(rng.next() as u32),
                _ => SendOp::Send,
            };
            let len = rng.range(0, SHORT_PAYLOAD as u64 + 20) as u32;
            let inline = rng.chance(40) && !matches!(op, SendOp::Read(_));
            Step::Send(op, at * 8, len, solicited | signaled | fence, inline)
        }
        36..90 => Step::Arrive,
        90..92 => Step::Transmit,
        92..94 => Step::Lose,
        94..97 => Step::Wait(Duration::from_micros(rng.range(1, 3000))),
        97 => Step::Vanish(rng.range(0, REGION_BYTES / PAGE - 1)),
        98..100 => Step::Serve,
        _ if rng.chance(2) => Step::Fail,
        _ if rng.chance(40) => Step::Drain(rng.chance(30)),
        _ => Step::Idle(rng.range(0, 3)),
    }
}

/// Two ends, and the packets on their way to each.
struct World {
    ends: [End; 2],
    wires: [VecDeque<Packet>; 2],
}

impl World {
    fn new(start: Instant, shortens: bool) -> World {
        let ends = [11, 12].map(|qpn| End::new(qpn, start, shortens));
        let mut world = World { ends, wires: Default::default() };
        let mut rng = Rng(1);
        for end in &mut world.ends {
            end.region.set(0, &rng.bytes(REGION_BYTES as usize));
        }
        world
    }

    fn take(&mut self, me: usize, step: &Step) {
        let rkey = self.ends[1 - me].region.key;
        let end = &mut self.ends[me];
        match step.clone() {
            Step::Receive(len, key) => {
                let sge = end.region.sge(REGION_BYTES / 2, len);
                let sge = Sge { lkey: sge.lkey ^ key, ..sge };
                let wr = RecvWr { wr_id: u64::from(len), scatter: [sge].into_iter().collect() };
                let _ = end.node.qp.post_recv(wr);
            }
            Step::Send(op, at, len, flags, inline) => {
                let op = match op {
                    SendOp::Write(remote) => SendOp::Write(Remote { rkey, ..remote }),
                    SendOp::Read(remote) => SendOp::Read(Remote { rkey, ..remote }),
                    other => other,
                };
                let wr = send_wr(at, op, &[end.region.sge(at, len)]);
                let bytes = end.region.get(at, len as usize);
                let payload =
                    if inline { Payload::Inline(bytes[..].into()) } else { wr.payload.clone() };
                end.post_send(SendWr { flags, payload, ..wr });
            }
            Step::Arrive => {
                if let Some(packet) = self.wires[me].pop_front() {
                    end.feed(&packet);
                }
            }
            Step::Lose => drop(self.wires[me].pop_front()),
            Step::Wait(time) => {
                for end in &mut self.ends {
                    end.node.now += time;
                    end.look();
                }
            }
            Step::Transmit => end.transmit(),
            Step::Drain(drains) => {
                let state = if drains { QpState::Sqd } else { QpState::Rts };
                let attr =
                    QpAttr { qp_state: state, en_sqd_async_notify: true, ..end.node.qp.query() };
                let mask = if drains { AttrMask::EN_SQD_ASYNC_NOTIFY } else { AttrMask::empty() };
                let _ = end.node.modify(&attr, AttrMask::STATE | mask);
                end.transmit();
            }
            Step::Fail => {
                let attr = QpAttr { qp_state: QpState::Err, ..end.node.qp.query() };
                end.node.modify(&attr, AttrMask::STATE).unwrap();
            }
            Step::Idle(0) => end.node.end_of_batch(),
            Step::Idle(1) => {
                let now = end.node.now;
                end.node.qp.put_off(now);
            }
            Step::Idle(2) => {
                let wr = |at| send_wr(at, SendOp::Send, &[end.region.sge(at, 9)]);
                let _ = end.node.qp.post_sends(&mut vec![wr(0), wr(8)]);
                end.transmit();
            }
            Step::Idle(_) => end.node.qp.return_to_path_mtu(),
            Step::Vanish(page) => {
                end.region.ram.absent.lock().unwrap().insert(page);
            }
            Step::Serve => {
                if let Some(fault) = end.faults.pop_front() {
                    let emitted = end.node.serve(&fault, true);
                    self.wires[1 - me].extend(emitted);
                }
            }
        }
        for me in 0..2 {
            let emitted = self.ends[me].node.emitted();
            self.wires[1 - me].extend(emitted);
            let faults = std::mem::take(&mut self.ends[me].node.told.faults);
            self.ends[me].faults.extend(faults);
        }
    }

    /// All that can be seen of it.
    fn seen(&self) -> String {
        let of_end = |end: &End| {
            let Node { qp, told, now, .. } = &end.node;
            let until = qp.deadline().map(|at| at.checked_duration_since(*now));
            let counts = Counter::ALL.iter().map(|&what| (what.name(), end.node.counted(what)));
            let counts: Vec<_> = counts.filter(|(_, count)| *count > 0).collect();
            let tail = |done: &[Completion]| done[done.len().saturating_sub(2)..].to_vec();
            format!(
                "{:?}\nsent {} {:?}\nreceived {} {:?}\n{:?}\n{until:?} {:?} {counts:?}",
                qp.query(),
                told.sent.len(),
                tail(&told.sent),
                told.received.len(),
                tail(&told.received),
                told.events,
                qp.has_nothing_under_way(),
            )
        };
        // Keys are not the same in both worlds.
        let mut wires = self.wires.clone();
        for reth in wires.iter_mut().flatten().filter_map(|packet| packet.headers.reth.as_mut()) {
            reth.rkey = 0;
        }
        format!("{}\n{}\n{wires:?}", of_end(&self.ends[0]), of_end(&self.ends[1]))
    }

    fn memory(&self) -> [Vec<u8>; 2] {
        [0, 1].map(|me| self.ends[me].region.get(0, REGION_BYTES as usize))
    }
}

#[test]
fn short_messages_are_what_they_are_by_all_calls() {
    let (mut shortened, mut alone, mut refused, mut failed) = (0, 0, 0, 0);
    for seed in 0..SEEDS {
        let (mut rng, start) = (Rng(seed), Instant::now());
        let [mut one, mut other] = [false, true].map(|shortens| World::new(start, shortens));
        for number in 0..STEPS {
            let (me, step) = (rng.range(0, 1) as usize, step(&mut rng));
            one.take(me, &step);
            other.take(me, &step);
            let [long, short] = [one.seen(), other.seen()];
            let differs = long.lines().zip(short.lines()).find(|(one, other)| one != other);
            assert!(differs.is_none(), "seed {seed}, step {number} {step:?}:\n{differs:#?}");
        }
        assert!(one.memory() == other.memory(), "seed {seed}");
        shortened += other.ends.iter().map(|end| end.shortened).sum::<u64>();
        alone += other.ends.iter().map(|end| end.alone).sum::<u64>();
        let counted = |what| other.ends.iter().map(|end| end.node.counted(what)).sum::<u64>();
        refused += counted(Counter::OutOfBuffer) + counted(Counter::Retransmits);
        failed += u64::from(other.ends.iter().any(|end| end.node.qp.state() == QpState::Err));
        assert_eq!(one.ends.iter().map(|end| end.shortened).sum::<u64>(), 0);
    }
    println!(
        "{shortened} calls did it, {alone} of them posts, {refused} were repeated, {failed} of {SEEDS} failed"
    );
    assert!(shortened > 20 * SEEDS && alone > 2 * SEEDS);
    assert!(refused > SEEDS && (SEEDS / 10..SEEDS).contains(&failed));
}
