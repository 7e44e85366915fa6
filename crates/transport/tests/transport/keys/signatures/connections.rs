//! Messages of connections over keys with signatures, and send queues that stop at a bad one.

use super::*;

/// A pair, and on each side memory of `len` bytes under a key with these signatures.
fn signed_pair(
    faults: Faults,
    mtu: u32,
    seed: u64,
    len: usize,
    rules: [BlockSignature; 2],
) -> (Pair, [Region; 2], [u32; 2]) {
    let setup = Setup { timeout: 8, mtu, ..Setup::new(QpType::Rc) };
    let mut pair = Pair::new(&setup, 64 << 10, seed, faults);
    let regions = [0, 1].map(|side: usize| pair.nodes[side].register(len as u64));
    let mut rules = rules.into_iter();
    let keys = [0, 1].map(|side: usize| {
        signed(&mut pair.nodes[side], &regions[side], len, rules.next().unwrap())
    });
    (pair, regions, keys)
}

#[test]
fn messages_of_all_kinds_carry_their_fields_over_a_bad_network() {
    let limit = Duration::from_secs(60);
    // Memory of the one side has CRC-32C behind 520 bytes, of the other nothing; the wire has
    // T10-DIF behind 512.
    let (own, wire) = (Some(crc(GuardKind::Crc32c, 520)), Some(dif(512)));
    let data: Vec<u8> = (0..520u32 * 40).map(|at| (at / 7 * at) as u8).collect();
    let (lies, passes) = (image(&data, &own), image(&data, &wire));
    for seed in 0..6 {
        let faults = Faults { loss: 10, duplicate: 10, reorder: 0, ..Faults::NONE };
        let rules =
            [None, own].map(|memory| BlockSignature::new(memory, wire, 0xff, None).unwrap());
        let mtu = [1, 3, 5][seed as usize % 3];
        let (mut pair, regions, keys) = signed_pair(faults, mtu, seed, lies.len(), rules);
        // Of two domains with fields of their own a local request counts as memory does.
        let near = Sge { addr: 0, length: lies.len() as u32, lkey: keys[1] };
        let plain = Sge { addr: 0, length: data.len() as u32, lkey: keys[0] };
        let far = Remote { addr: 0, rkey: keys[0] };
        let ops = [SendOp::Write(far), SendOp::Send, SendOp::Read(far)];
        for (number, op) in ops.into_iter().enumerate() {
            let reads = matches!(op, SendOp::Read(_));
            regions[0].set(0, &vec![0; lies.len()]);
            regions[1].set(0, &vec![0; lies.len()]);
            if reads {
                regions[0].set(0, &data);
            } else {
                regions[1].set(0, &lies);
            }
            pair.nodes[0].post_recv(1, &[plain]);
            pair.nodes[1].post_send(send_wr(2, op, &[near]));
            pair.run_until(limit, |pair| pair.nodes[1].told.sent.len() == number + 1);
            let done = &pair.nodes[1].told.sent[number];
            assert_eq!(done.status, WcStatus::Success);
            assert_eq!(done.byte_len as usize, passes.len());
            assert!(regions[0].get(0, data.len()) == data, "{number}");
            assert!(regions[1].get(0, lies.len()) == lies, "{number}");
        }
        assert_eq!(pair.nodes[0].told.received[0].byte_len as usize, passes.len());
        for (node, key) in pair.nodes.iter().zip(keys) {
            assert_eq!(node.keys.signature_error(key), Ok(None));
        }
    }
}

#[test]
fn a_receive_has_room_for_what_the_wire_brings() {
    let wire = Some(dif(512));
    let strip = || BlockSignature::new(None, wire, 0xff, None).unwrap();
    let (mut pair, regions, keys) = signed_pair(Faults::NONE, 5, 1, 2048, [strip(), strip()]);
    let data: Vec<u8> = (0..1024).map(|at| (at % 251) as u8).collect();
    regions[1].set(0, &data);
    let sge = |side: usize, addr, length| Sge { addr, length, lkey: keys[side] };
    // Two entries, and plain memory behind them.
    let behind = regions[0].sge(1500, 16);
    let entries = [sge(0, 0, 512), Sge { length: 0, ..behind }, sge(0, 512, 512), behind];
    pair.nodes[0].post_recv(1, &entries);
    pair.nodes[1].post_send(send_wr(2, SendOp::Send, &[sge(1, 0, 1024)]));
    pair.settle();
    assert_eq!(pair.nodes[0].told.received[0].status, WcStatus::Success);
    assert_eq!(pair.nodes[0].told.received[0].byte_len, 1040);
    assert!(regions[0].get(0, 1024) == data);
    assert_eq!(pair.nodes[0].keys.signature_error(keys[0]), Ok(None));
    // One byte too many is too many.
    regions[1].set(1024, &[1; 16]);
    let (room, message) = (sge(0, 0, 1024), [sge(1, 0, 1024), regions[1].sge(1024, 1)]);
    pair.nodes[0].post_recv(3, &[room]);
    pair.nodes[1].post_send(send_wr(4, SendOp::Send, &message));
    pair.settle();
    assert_eq!(pair.nodes[0].told.received[1].status, WcStatus::LocLenErr);
}

fn fenced(wr: SendWr) -> SendWr {
    SendWr { flags: SendFlags::SIGNALED | SendFlags::FENCE, ..wr }
}

/// A pair whose second end stops at bad signatures. Its memory has CRC-32 behind 512 bytes, and
/// none passes.
fn stopping() -> (Pair, [Region; 2], [u32; 2]) {
    let crc = Some(crc(GuardKind::Crc32, 512));
    let check = || BlockSignature::new(crc, None, 0xf0, None).unwrap();
    let (mut pair, regions, keys) = signed_pair(Faults::NONE, 1, 3, 1032, [check(), check()]);
    pair.nodes[1].qp.stop_at_bad_signatures();
    regions[1].set(0, &image(&[7; 1024], &crc));
    (pair, regions, keys)
}

fn go_on(pair: &mut Pair) {
    let attr = QpAttr { qp_state: QpState::Rts, ..pair.nodes[1].qp.query() };
    pair.nodes[1].modify(&attr, AttrMask::STATE).unwrap();
    pair.nodes[1].with(|qp, cx| qp.transmit(cx));
    pair.settle();
}

fn told(pair: &Pair) -> Vec<(u64, WcStatus)> {
    pair.nodes[1].told.sent.iter().map(|done| (done.wr_id, done.status)).collect()
}

pub fn a_queue_stops_at_a_bad_signature() {
    let (mut pair, regions, keys) = stopping();
    let sge = |at, length| Sge { addr: at, length, lkey: keys[1] };
    let far = SendOp::Write(regions[0].remote(0));
    let answer = || fenced(send_wr(9, SendOp::Send, &[regions[1].sge(0, 16)]));
    pair.nodes[0].post_recv(1, &[regions[0].sge(600, 16)]);
    pair.nodes[0].post_recv(2, &[regions[0].sge(600, 16)]);
    // What is right passes.
    pair.nodes[1].post_send(send_wr(8, far.clone(), &[sge(0, 1024)]));
    pair.nodes[1].post_send(answer());
    pair.settle();
    assert_eq!(told(&pair), [(8, WcStatus::Success), (9, WcStatus::Success)]);
    assert_eq!(pair.nodes[1].qp.state(), QpState::Rts);
    assert!(pair.nodes[1].qp.cancel_sends(9).is_err(), "nothing is drained");
    // The second block is wrong: the data passes, the answer does not.
    regions[1].set(516 + 3, &[0xaa]);
    pair.nodes[1].post_send(send_wr(8, far, &[sge(0, 1024)]));
    pair.nodes[1].post_send(answer());
    pair.nodes[1].post_send(answer());
    pair.settle();
    assert_eq!(told(&pair)[2..], [(8, WcStatus::Success)]);
    assert_eq!(pair.nodes[1].told.events, [EventType::SqDrained]);
    assert_eq!(pair.nodes[1].qp.state(), QpState::Sqd);
    let error = pair.nodes[1].keys.signature_error(keys[1]).unwrap().unwrap();
    assert_eq!((error.fault, error.offset), (SignatureFault::Guard, 516));
    assert_eq!(pair.nodes[0].told.received.len(), 1);
    // Each is cancelled once, and completes in its turn.
    assert_eq!(pair.nodes[1].qp.cancel_sends(8).unwrap(), 0);
    assert_eq!(pair.nodes[1].qp.cancel_sends(9).unwrap(), 2);
    assert_eq!(pair.nodes[1].qp.cancel_sends(9).unwrap(), 0);
    pair.nodes[1].post_send(send_wr(10, SendOp::Send, &[regions[1].sge(0, 16)]));
    assert_eq!(told(&pair).len(), 3);
    go_on(&mut pair);
    let all = [(9, WcStatus::Success), (9, WcStatus::Success), (10, WcStatus::Success)];
    assert_eq!(told(&pair)[3..], all);
    assert!(pair.nodes[1].told.sent[3..].iter().all(|done| done.opcode == WcOpcode::Send));
    assert_eq!(pair.nodes[0].told.received.len(), 2);
    assert_eq!(pair.nodes[1].told.events.len(), 1);
}

#[test]
fn a_queue_that_stops_goes_on_with_what_was_cancelled() {
    a_queue_stops_at_a_bad_signature();
}

#[test]
fn what_a_read_brings_stops_a_queue_as_well() {
    // Here the wire has the fields, which are checked and stripped where the READ ends.
    let wire = Some(crc(GuardKind::Crc32, 512));
    let check = || BlockSignature::new(None, wire, 0xf0, None).unwrap();
    let (mut pair, regions, keys) = signed_pair(Faults::NONE, 1, 4, 1024, [check(), check()]);
    pair.nodes[1].qp.stop_at_bad_signatures();
    let data = Sge { addr: 0, length: 512, lkey: keys[1] };
    let plain = regions[0].remote(0);
    pair.nodes[0].post_recv(1, &[regions[0].sge(600, 16)]);
    pair.nodes[1].post_send(send_wr(1, SendOp::Read(plain), &[data]));
    pair.nodes[1].post_send(fenced(send_wr(2, SendOp::Send, &[regions[1].sge(0, 16)])));
    pair.settle();
    assert_eq!(told(&pair), [(1, WcStatus::Success)]);
    assert_eq!(pair.nodes[1].told.events, [EventType::SqDrained]);
    assert_eq!(pair.nodes[1].qp.cancel_sends(2).unwrap(), 1);
    // In the error state a cancelled request is flushed as any other.
    let attr = QpAttr { qp_state: QpState::Err, ..pair.nodes[1].qp.query() };
    pair.nodes[1].modify(&attr, AttrMask::STATE).unwrap();
    assert_eq!(told(&pair)[1..], [(2, WcStatus::WrFlushErr)]);
}

#[test]
fn a_queue_stops_although_nothing_follows_and_again_later() {
    let (mut pair, regions, keys) = stopping();
    regions[1].set(0, &[0xaa]);
    let data = Sge { addr: 0, length: 512, lkey: keys[1] };
    for round in 1..=3 {
        pair.nodes[1].post_send(send_wr(1, SendOp::Write(regions[0].remote(0)), &[data]));
        pair.settle();
        assert_eq!(told(&pair).len(), round);
        assert_eq!(pair.nodes[1].told.events.len(), round);
        assert_eq!(pair.nodes[1].qp.state(), QpState::Sqd);
        assert!(!pair.nodes[1].qp.query().sq_draining);
        go_on(&mut pair);
        assert_eq!(pair.nodes[1].qp.state(), QpState::Rts);
    }
    // One that was not asked to does not.
    pair.nodes[0].post_send(send_wr(
        1,
        SendOp::Write(regions[1].remote(0)),
        &[Sge { addr: 0, length: 512, lkey: keys[0] }],
    ));
    regions[0].set(0, &[0xaa]);
    pair.settle();
    assert_eq!(pair.nodes[0].qp.state(), QpState::Rts);
}
