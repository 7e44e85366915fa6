//! Posts without a look at the clock, and packets taken at a time that is of before.

use super::*;

/// Two ends of which each posts without a look at the clock while its timer is expected anyway, and
/// takes packets at a time that may be of before; and who is to be looked at when.
struct Clockless {
    world: World,
    looked_at: [Option<Instant>; 2],
    posted: [Vec<u64>; 2],
    rng: Rng,
    start: Instant,
}

impl Clockless {
    fn new(seed: u64) -> Clockless {
        let start = Instant::now();
        let (world, rng) = (World::new(start, true), Rng(seed));
        Clockless { world, looked_at: [None; 2], posted: Default::default(), rng, start }
    }

    fn receive_request(&mut self, me: usize) {
        let end = &mut self.world.ends[me];
        let sge = end.region.sge(REGION_BYTES / 2, 512);
        let _ = end.node.qp.post_recv(RecvWr { wr_id: 1, scatter: [sge].into_iter().collect() });
    }

    /// Answers whether it was posted without the time.
    fn post(&mut self, me: usize, wr_id: u64) -> bool {
        let end = &mut self.world.ends[me];
        let len = self.rng.range(0, SHORT_PAYLOAD as u64) as u32;
        let wr = send_wr(wr_id, SendOp::Send, &[end.region.sge(0, len)]);
        let wr = SendWr { flags: SendFlags::SIGNALED, ..wr };
        let now = (self.looked_at[me].is_none()).then_some(end.node.now);
        let (short, mut packet) = (short_wr(&wr).unwrap(), [0; SHORT_PACKET]);
        match end.node.with(|qp, cx| qp.post_lone(cx.keys, short, &mut packet, now)) {
            Some(_) if self.rng.chance(10) => end.node.qp.forget_lone(),
            Some(len) => {
                end.leave(&packet[..len]);
                self.posted[me].push(wr_id);
                let least = end.node.now + end.node.qp.least_wait();
                self.looked_at[me].get_or_insert(least);
                return now.is_none();
            }
            None => {
                if end.node.qp.post_send(wr).is_ok() {
                    self.posted[me].push(wr_id);
                }
                end.node.with(|qp, cx| qp.transmit(cx));
            }
        }
        false
    }

    fn arrive(&mut self, me: usize) {
        let end = &mut self.world.ends[me];
        let Some(packet) = self.world.wires[me].pop_front() else { return };
        let present = end.node.now;
        if self.rng.chance(50) && present > self.start + Duration::from_millis(3) {
            end.node.now -= Duration::from_millis(2);
        }
        end.feed(&packet);
        end.node.now = present;
    }

    fn wait(&mut self, time: Duration) {
        for (end, at) in self.world.ends.iter_mut().zip(&mut self.looked_at) {
            end.node.now += time;
            if at.take_if(|at| *at <= end.node.now).is_some() {
                end.node.with(|qp, cx| qp.timer(cx));
            }
            end.look();
        }
    }

    fn carry(&mut self) {
        for me in 0..2 {
            let emitted = self.world.ends[me].node.emitted();
            self.world.wires[1 - me].extend(emitted);
        }
    }

    /// Until all is done.
    fn settle(&mut self) {
        for _ in 0..4000 {
            for me in 0..2 {
                self.receive_request(me);
                (0..self.world.wires[me].len()).for_each(|_| self.arrive(me));
            }
            self.wait(Duration::from_micros(700));
            self.carry();
        }
    }
}

#[test]
fn posts_without_a_clock_complete_once_and_in_order() {
    let mut clockless = 0;
    for seed in 0..60 {
        let mut it = Clockless::new(seed);
        for number in 0..500 {
            let me = it.rng.range(0, 1) as usize;
            match it.rng.range(0, 99) {
                0..30 => it.receive_request(me),
                30..50 => {
                    let is_free = !it.world.ends[me].node.qp.has_requests();
                    if is_free || it.rng.chance(4) {
                        clockless += u32::from(it.post(me, number));
                    }
                }
                50..90 => it.arrive(me),
                90..93 => drop(it.world.wires[me].pop_front()),
                93 => {
                    let now = it.world.ends[me].node.now;
                    it.world.ends[me].node.qp.put_off(now);
                }
                94 => it.world.ends[me].node.end_of_batch(),
                95 => it.world.ends[me].node.qp.return_to_path_mtu(),
                _ => {
                    let time = Duration::from_micros(it.rng.range(1, 300));
                    it.wait(time);
                }
            }
            it.carry();
        }
        it.settle();
        for (me, posted) in it.posted.iter().enumerate() {
            let [node, peer] = [me, 1 - me].map(|end| &it.world.ends[end].node);
            let done: Vec<u64> = node.told.sent.iter().map(|done| done.wr_id).collect();
            assert!(node.told.sent.iter().all(|done| done.status == WcStatus::Success));
            assert_eq!((node.qp.state(), &done), (QpState::Rts, posted), "seed {seed}");
            assert_eq!(peer.told.received.len(), posted.len(), "seed {seed}");
            assert_eq!(node.qp.query().sq_psn, peer.qp.query().rq_psn, "seed {seed}");
            assert!(node.qp.has_nothing_under_way() && !node.qp.has_requests());
        }
    }
    assert!(clockless > 600, "{clockless}");
}

#[test]
fn a_reading_of_before_the_post_measures_no_round_trip() {
    let (start, rtt) = (Instant::now(), Duration::from_millis(3));
    let mut end = End::new(11, start, true);
    let mut reading = start;
    for number in 0..400 {
        let wr = send_wr(number, SendOp::Send, &[end.region.sge(0, 8)]);
        assert!(end.post_lone(&SendWr { flags: SendFlags::SIGNALED, ..wr }), "{number}");
        let (sent, psn) = (end.node.now, end.node.qp.query().sq_psn - 1);
        while let Some(at) = end.node.qp.deadline().filter(|at| *at < sent + rtt) {
            end.node.now = at;
            end.look();
        }
        end.node.now = sent + rtt;
        if number % 4 == 0 {
            reading = end.node.now;
        }
        assert!(end.node.qp.acknowledged_short(wire::Psn::new(psn), reading).is_some());
    }
    let probes = end.node.counted(Counter::Retransmits);
    assert!(probes < 10, "the peer was asked {probes} times");
}
