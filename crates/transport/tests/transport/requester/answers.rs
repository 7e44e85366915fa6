//! Answers of the peer: acknowledges, NAKs, and what READs and atomics bring.

use super::*;

#[test]
pub fn one_acknowledge_completes_all_before_it_in_order() {
    let (mut node, region) = requester();
    for id in 0..5 {
        let mut wr = send_wr(id, SendOp::Send, &[region.sge(0, 300)]);
        if id == 2 {
            wr.flags = SendFlags::empty();
        }
        node.post_send(wr);
    }
    node.feed(&ack(FIRST_PSN + 8));
    assert_eq!(ids(&node), [0, 1, 3].map(|id| (id, WcStatus::Success)));
    assert_eq!(node.told.sent[0].opcode, WcOpcode::Send);
    node.feed(&ack(FIRST_PSN + 9));
    assert_eq!(node.told.sent.len(), 4);
    assert_eq!(node.qp.deadline(), None, "no timer runs without anything in flight");
}

#[test]
fn acknowledges_out_of_range_are_ignored() {
    let (mut node, region) = requester();
    node.post_send(send_wr(1, SendOp::Send, &[region.sge(0, 8)]));
    for psn in [FIRST_PSN - 1, FIRST_PSN + 1, FIRST_PSN + (1 << 23), 0] {
        node.feed(&ack(psn));
        node.feed(&nak(psn, NakCode::RemoteAccess));
    }
    assert!(node.told.sent.is_empty());
    assert_eq!(node.qp.state(), QpState::Rts);
}

#[test]
fn a_fatal_nak_ends_the_connection_in_order() {
    let cases = [
        (NakCode::InvalidRequest, WcStatus::RemInvReqErr),
        (NakCode::RemoteAccess, WcStatus::RemAccessErr),
        (NakCode::RemoteOperational, WcStatus::RemOpErr),
        (NakCode::InvalidRd, WcStatus::RemInvRdReqErr),
    ];
    for (code, status) in cases {
        let (mut node, region) = requester();
        node.post_recv(77, &[]);
        for id in 0..4 {
            let mut wr = send_wr(id, SendOp::Send, &[region.sge(0, 8)]);
            wr.flags = SendFlags::empty();
            node.post_send(wr);
        }
        node.feed(&nak(FIRST_PSN + 1, code));
        // Errors are reported whether a completion was asked for or not; success is not.
        let flushed = WcStatus::WrFlushErr;
        assert_eq!(ids(&node), [(1, status), (2, flushed), (3, flushed)]);
        assert_eq!(node.told.received[0].wr_id, 77);
        assert_eq!(node.told.received[0].status, flushed);
        assert_eq!(node.qp.state(), QpState::Err);
        assert!(node.told.sent.iter().all(|done| done.solicited));
        // In the error state requests are taken and flushed.
        node.post_send(send_wr(9, SendOp::Send, &[]));
        assert_eq!(ids(&node).last(), Some(&(9, flushed)));
        node.post_recv(78, &[]);
        assert!(node.qp.deadline().is_some());
        node.timer();
        assert_eq!(node.told.received[1].wr_id, 78);
        assert_eq!(node.qp.deadline(), None);
        assert!(node.emitted().is_empty());
    }
}

#[test]
fn a_sequence_nak_goes_back_to_the_missing_packet() {
    let (mut node, region) = requester();
    for id in 0..3 {
        node.post_send(send_wr(id, SendOp::Send, &[region.sge(0, 512)]));
    }
    assert_eq!(node.emitted().len(), 6);
    let out = node.feed(&nak(FIRST_PSN + 3, NakCode::Sequence));
    assert_eq!(psns(&out), [5003, 5004, 5005]);
    assert_eq!(out[0].position(), Last);
    assert_eq!(ids(&node), [(0, WcStatus::Success)]);
    assert_eq!(node.counted(Counter::Retransmits), 3);
    // The same loss is not repaired twice.
    assert!(node.feed(&nak(FIRST_PSN + 3, NakCode::Sequence)).is_empty());
    node.feed(&ack(FIRST_PSN + 5));
    assert_eq!(node.told.sent.len(), 3);
}

#[test]
fn an_acknowledge_may_overtake_a_retransmission() {
    let (mut node, region) = requester();
    node.qp.post_send(send_wr(0, SendOp::Send, &[region.sge(0, 256 * 40)])).unwrap();
    node.qp.post_send(send_wr(1, SendOp::Send, &[region.sge(0, 8)])).unwrap();
    node.with(|qp, cx| qp.transmit(cx));
    node.emitted();
    node.receive(&nak(FIRST_PSN + 1, NakCode::Sequence));
    node.receive(&ack(FIRST_PSN + 40));
    node.end_of_batch();
    assert!(node.emitted().is_empty());
    assert_eq!(node.told.sent.len(), 2);
    assert_eq!(node.qp.deadline(), None);
}

fn answer_read(node: &mut Node, request: &Packet, bytes: &[u8], upto: usize) -> Vec<Packet> {
    let len = request.headers.reth.unwrap().len as usize;
    let packets = len.div_ceil(256).max(1);
    let mut out = Vec::new();
    for i in 0..packets.min(upto) {
        let position = match (i == 0, i + 1 == packets) {
            (true, true) => Only,
            (true, false) => First,
            (false, false) => Middle,
            (false, true) => Last,
        };
        let payload = bytes[i * 256..len.min(i * 256 + 256)].to_vec();
        out.extend(node.feed(&read_response(position, request.psn() + i as u32, payload)));
    }
    out
}

#[test]
fn a_read_is_filled_and_acknowledges_what_came_before() {
    let (mut node, region) = requester();
    let bytes: Vec<u8> = (0..700u32).map(|i| (i * 7) as u8).collect();
    node.post_send(send_wr(0, SendOp::Send, &[region.sge(0, 8)]));
    node.post_send(send_wr(1, SendOp::Read(FAR), &[region.sge(0, 300), region.sge(1000, 400)]));
    node.post_send(send_wr(2, SendOp::Send, &[region.sge(0, 8)]));
    let out = node.emitted();
    // The READ takes the PSNs of its three responses.
    assert_eq!(psns(&out), [5000, 5001, 5004]);
    answer_read(&mut node, &out[1], &bytes, 3);
    assert_eq!(ids(&node), [0, 1].map(|id| (id, WcStatus::Success)));
    assert_eq!((node.told.sent[1].opcode, node.told.sent[1].byte_len), (WcOpcode::RdmaRead, 700));
    assert_eq!(region.get(0, 300), bytes[..300]);
    assert_eq!(region.get(1000, 400), bytes[300..]);
}

#[test]
fn an_answer_beyond_a_read_asks_for_the_missing_rest_again() {
    let (mut node, region) = requester();
    let bytes = vec![5; 700];
    node.post_send(send_wr(1, SendOp::Read(FAR), &[region.sge(0, 700)]));
    node.post_send(send_wr(2, SendOp::Send, &[region.sge(0, 8)]));
    let out = node.emitted();
    answer_read(&mut node, &out[0], &bytes, 1);
    let again = node.feed(&ack(5003));
    assert!(node.told.sent.is_empty());
    assert_eq!(psns(&again), [5001, 5003]);
    let reth = again[0].headers.reth.unwrap();
    assert_eq!((reth.va, reth.rkey, reth.len), (FAR.addr + 256, FAR.rkey, 444));
    assert_eq!(node.counted(Counter::ImpliedNakSeqErr), 1);
    answer_read(&mut node, &again[0], &bytes[256..], 2);
    node.feed(&ack(5003));
    assert_eq!(ids(&node), [1, 2].map(|id| (id, WcStatus::Success)));
    assert_eq!(region.get(0, 700), bytes);
}

#[test]
fn a_large_read_is_several_requests_within_the_window() {
    let (mut node, region) = requester();
    let size = 1 << 20;
    node.post_send(send_wr(1, SendOp::Read(FAR), &[region.sge(0, size)]));
    let mut pending = node.emitted();
    let bytes: Vec<u8> = (0..size).map(|i| (i / 256) as u8).collect();
    let mut next = 0u64;
    let mut requests = 0;
    while !pending.is_empty() {
        let asked: u64 = pending.iter().map(|p| u64::from(p.headers.reth.unwrap().len)).sum();
        assert!(asked <= 256 << 10, "responses in flight stay within the window");
        let request = pending.remove(0);
        let reth = request.headers.reth.unwrap();
        assert_eq!((reth.va, request.psn()), (FAR.addr + next, FIRST_PSN + (next / 256) as u32));
        let more = answer_read(&mut node, &request, &bytes[next as usize..], usize::MAX);
        pending.extend(more);
        next += u64::from(reth.len);
        requests += 1;
    }
    assert!(requests > 4);
    assert_eq!(ids(&node), [(1, WcStatus::Success)]);
    assert_eq!(region.get(0, size as usize), bytes);
}

#[test]
fn a_response_of_the_wrong_size_is_a_bad_response() {
    let cases: [(Position, usize); 4] = [(First, 255), (Only, 256), (Last, 256), (First, 0)];
    for (position, len) in cases {
        let (mut node, region) = requester();
        node.post_send(send_wr(1, SendOp::Read(FAR), &[region.sge(0, 700)]));
        node.feed(&read_response(position, 5000, vec![0; len]));
        assert_eq!(ids(&node), [(1, WcStatus::BadRespErr)]);
        assert_eq!(node.qp.state(), QpState::Err);
    }
}

#[test]
fn an_atomic_brings_the_old_value() {
    let (mut node, region) = requester();
    node.post_send(send_wr(1, SendOp::FetchAdd { remote: FAR, add: 3 }, &[region.sge(16, 8)]));
    let op = SendOp::CompareSwap { remote: FAR, compare: 1, swap: 2 };
    node.post_send(send_wr(2, op, &[region.sge(24, 8)]));
    let out = node.emitted();
    let eth = out.iter().map(|p| p.headers.atomic.unwrap()).collect::<Vec<_>>();
    assert_eq!((eth[0].swap_or_add, eth[1].compare, eth[1].swap_or_add), (3, 1, 2));
    for (psn, value) in [(5000, 11), (5001, 22)] {
        let mut answer = ack(psn);
        answer.headers.bth.opcode.operation = Operation::AtomicAcknowledge;
        answer.headers.atomic_ack = Some(value);
        node.feed(&answer);
    }
    assert_eq!((region.word(16), region.word(24)), (11, 22));
    assert_eq!(node.told.sent[0].opcode, WcOpcode::FetchAdd);
    assert_eq!((node.told.sent[1].opcode, node.told.sent[1].byte_len), (WcOpcode::CompSwap, 8));
}

#[test]
fn a_probe_that_fills_the_gap_brings_the_rest_at_once() {
    let (mut node, region) = requester();
    node.post_send(send_wr(1, SendOp::Send, &[region.sge(0, 256 * 8)]));
    assert_eq!(node.emitted().len(), 8);
    node.now += Duration::from_millis(2);
    let probe = node.timer();
    assert_eq!(psns(&probe), [5000]);
    assert!(probe[0].headers.bth.ack_req);
    let rest = node.feed(&ack(5000));
    assert_eq!(psns(&rest), [5001, 5002, 5003, 5004, 5005, 5006, 5007]);
    assert_eq!(node.counted(Counter::LocalAckTimeoutErr), 0);
}

#[test]
fn a_probe_of_a_slow_peer_changes_nothing() {
    let (mut node, region) = requester();
    node.post_send(send_wr(1, SendOp::Send, &[region.sge(0, 256 * 8)]));
    node.emitted();
    node.now += Duration::from_millis(2);
    node.timer();
    assert!(node.feed(&ack(5003)).is_empty());
    assert!(node.feed(&ack(5007)).is_empty());
    assert_eq!(ids(&node), [(1, WcStatus::Success)]);
}

#[test]
fn an_rnr_nak_makes_everything_wait() {
    let (mut node, region) = requester();
    for id in 0..3 {
        node.post_send(send_wr(id, SendOp::Send, &[region.sge(0, 8)]));
    }
    node.emitted();
    // Code 12 is 0.64 ms.
    assert!(node.feed(&acknowledge(5001, Syndrome::RnrNak(12))).is_empty());
    assert_eq!(ids(&node), [(0, WcStatus::Success)]);
    assert_eq!(node.qp.deadline(), Some(node.now + Duration::from_micros(640)));
    node.post_send(send_wr(3, SendOp::Send, &[region.sge(0, 8)]));
    assert!(node.emitted().is_empty());
    assert!(node.feed(&acknowledge(5001, Syndrome::RnrNak(12))).is_empty());
    node.now += Duration::from_micros(640);
    assert_eq!(psns(&node.timer()), [5001, 5002, 5003]);
}

/// Nothing else is taken before the packet that it does not take yet.
#[test]
fn a_peer_that_is_not_ready_again_and_again_is_sent_little() {
    let (mut node, region) = requester();
    // Of 256 bytes each.
    let all = 5000..5064;
    node.post_send(send_wr(1, SendOp::Send, &[region.sge(0, 16 << 10)]));
    assert_eq!(psns(&node.emitted()), all.clone().collect::<Vec<_>>());
    for tries in 1..20 {
        node.feed(&acknowledge(5000, Syndrome::RnrNak(12)));
        node.now += Duration::from_micros(640);
        let again = psns(&node.timer());
        if tries == 1 {
            assert_eq!(again, all.clone().collect::<Vec<_>>());
        } else {
            assert_eq!(again, [5000, 5001, 5002, 5003], "try {tries}");
        }
    }
    // Now it is ready: what is left comes in few round trips.
    let mut next = 5004;
    for _ in 0..6 {
        next = psns(&node.feed(&ack(next - 1))).last().map_or(next, |last| last + 1);
    }
    assert_eq!(next, all.end);
    node.feed(&ack(5063));
    assert_eq!(ids(&node), [(1, WcStatus::Success)]);
}
