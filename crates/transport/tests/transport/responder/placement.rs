//! ATOMIC WRITE and FLUSH (IBA A19), against hand-made packets and over bad networks. Path MTU 256.

use crate::support::craft::{nak, packet, read_response};
use crate::support::{Faults, Node, PD, Packet, Pair, Region, Setup, send_wr};
use std::time::Duration;
use transport::Error;
use transport::values::*;
use wire::Position::Only;
use wire::{Feth, NakCode, Operation, Service};

const FIRST_PSN: u32 = 1000;
const SQ_PSN: u32 = 5000;
const GLOBAL: u8 = 1;
const PERSISTENT: u8 = 2;

fn node_with(access: Access, max_rd_atomic: u8) -> Node {
    let mut node = Node::new(QpType::Rc, 11, None);
    node.connect(&Setup { access, max_rd_atomic, ..Setup::new(QpType::Rc) });
    node
}

const ALL: Access = Access::REMOTE_WRITE.union(Access::REMOTE_READ).union(Access::FLUSH_GLOBAL);

fn node() -> Node {
    node_with(ALL, 4)
}

fn region(node: &mut Node) -> Region {
    node.register_as(PD, 1024, Access::LOCAL_WRITE | ALL)
}

fn atomic_write(psn: u32, va: u64, key: u32, value: u64) -> Packet {
    let mut packet = packet(Service::Rc, Operation::AtomicWrite, Only, psn).reth(va, key, 8);
    packet.payload = value.to_ne_bytes().to_vec();
    packet
}

fn flush(psn: u32, remote: Remote, len: u32, placement: u8, level: u8) -> Packet {
    let packet = packet(Service::Rc, Operation::Flush, Only, psn);
    let mut packet = packet.reth(remote.addr, remote.rkey, len);
    packet.headers.feth = Some(Feth { placement, level });
    packet
}

/// Whether `out` is the answer: one READ response without data.
#[track_caller]
fn answered(out: &[Packet], psn: u32) {
    assert_eq!(
        (out.len(), out[0].operation(), out[0].position()),
        (1, Operation::ReadResponse, Only)
    );
    assert_eq!((out[0].psn(), out[0].payload.len(), out[0].nak()), (psn, 0, None));
}

#[track_caller]
fn refused(mut node: Node, packet: &Packet, code: NakCode) {
    let out = node.feed(packet);
    assert_eq!(out.last().and_then(Packet::nak), Some(code));
    assert_eq!(node.qp.state(), QpState::Err);
}

#[test]
fn eight_bytes_are_written_and_answered_by_an_empty_read_response() {
    let mut node = node();
    let region = region(&mut node);
    region.set(0, &[7; 24]);
    let out =
        node.feed(&atomic_write(FIRST_PSN, region.iova + 8, region.key, 0x1122_3344_5566_7788));
    answered(&out, FIRST_PSN);
    assert_eq!(out[0].msn(), 1);
    assert_eq!(
        (region.word(8), region.get(0, 8), region.get(16, 8)),
        (0x1122_3344_5566_7788, vec![7; 8], vec![7; 8])
    );
    // The same value once more: no endless search for a change.
    answered(
        &node.feed(&atomic_write(
            FIRST_PSN + 1,
            region.iova + 8,
            region.key,
            0x1122_3344_5566_7788,
        )),
        FIRST_PSN + 1,
    );
    assert!(node.told.received.is_empty() && node.told.events.is_empty());
}

#[test]
fn an_atomic_write_keeps_to_its_form() {
    type Spoil = fn(&mut Packet);
    let cases: [(NakCode, Spoil); 6] = [
        (NakCode::InvalidRequest, |packet| packet.headers.reth.as_mut().unwrap().va += 4),
        (NakCode::InvalidRequest, |packet| packet.headers.reth.as_mut().unwrap().len = 16),
        (NakCode::InvalidRequest, |packet| packet.payload.truncate(4)),
        (NakCode::InvalidRequest, |packet| packet.payload.extend([0; 8])),
        (NakCode::RemoteAccess, |packet| packet.headers.reth.as_mut().unwrap().va += 1024),
        (NakCode::RemoteAccess, |packet| packet.headers.reth.as_mut().unwrap().rkey ^= 1),
    ];
    for (code, spoil) in cases {
        let mut node = node();
        let region = region(&mut node);
        let mut packet = atomic_write(FIRST_PSN, region.iova, region.key, 5);
        spoil(&mut packet);
        refused(node, &packet, code);
        assert_eq!(region.get(0, 1024), [0; 1024]);
    }
    let mut node = node_with(Access::REMOTE_READ | Access::FLUSH_GLOBAL, 4);
    let open = region(&mut node);
    refused(node, &atomic_write(FIRST_PSN, open.iova, open.key, 5), NakCode::InvalidRequest);
    let mut node = self::node();
    let closed = node.register_as(PD, 64, Access::LOCAL_WRITE | Access::REMOTE_READ);
    refused(node, &atomic_write(FIRST_PSN, closed.iova, closed.key, 5), NakCode::RemoteAccess);
}

#[test]
fn a_flush_of_a_range_or_of_all_is_answered() {
    let mut node = node();
    let region = region(&mut node);
    answered(&node.feed(&flush(FIRST_PSN, region.remote(8), 1016, GLOBAL, 0)), FIRST_PSN);
    answered(&node.feed(&flush(FIRST_PSN + 1, region.remote(0), 0, GLOBAL, 0)), FIRST_PSN + 1);
    // Address and length do not count for the whole region.
    let anywhere = Remote { addr: 0, rkey: region.key };
    answered(&node.feed(&flush(FIRST_PSN + 2, anywhere, u32::MAX >> 1, GLOBAL, 1)), FIRST_PSN + 2);
    assert!(node.told.received.is_empty() && node.told.events.is_empty());
}

#[test]
fn a_flush_keeps_to_its_form_and_range() {
    for (change, code) in [
        ((8, 1017, GLOBAL, 0), NakCode::RemoteAccess),
        ((0, 16, 0, 0), NakCode::InvalidRequest),
        ((0, 16, 4, 0), NakCode::InvalidRequest),
        ((0, 16, GLOBAL, 2), NakCode::InvalidRequest),
        ((0, u32::MAX, GLOBAL, 0), NakCode::InvalidRequest),
    ] {
        let (at, len, placement, level) = change;
        let mut node = node();
        let region = region(&mut node);
        refused(node, &flush(FIRST_PSN, region.remote(at), len, placement, level), code);
    }
    for level in [0, 1] {
        let mut node = node();
        let foreign = node.register_as(PdId(PD.0 + 1), 64, Access::LOCAL_WRITE | ALL);
        refused(
            node,
            &flush(FIRST_PSN, foreign.remote(0), 8, GLOBAL, level),
            NakCode::RemoteAccess,
        );
        let mut node = self::node();
        let gone = region(&mut node);
        node.keys.remove(gone.key, || ()).unwrap();
        refused(node, &flush(FIRST_PSN, gone.remote(0), 8, GLOBAL, level), NakCode::RemoteAccess);
    }
}

#[test]
pub fn a_flush_needs_its_right_of_qp_and_key() {
    for level in [0, 1] {
        let mut node = node_with(Access::REMOTE_WRITE | Access::REMOTE_READ, 4);
        let open = region(&mut node);
        refused(node, &flush(FIRST_PSN, open.remote(0), 8, GLOBAL, level), NakCode::InvalidRequest);
        let mut node = self::node();
        let closed = node.register(64);
        refused(node, &flush(FIRST_PSN, closed.remote(0), 8, GLOBAL, level), NakCode::RemoteAccess);
        for placement in [PERSISTENT, PERSISTENT | GLOBAL] {
            let mut node = self::node();
            let open = region(&mut node);
            let asks = flush(FIRST_PSN, open.remote(0), 8, placement, level);
            refused(node, &asks, NakCode::InvalidRequest);
        }
    }
}

#[test]
pub fn a_repeated_one_is_answered_and_not_done_again() {
    let mut node = node();
    let region = region(&mut node);
    let write = atomic_write(FIRST_PSN, region.iova, region.key, 5);
    let asks = flush(FIRST_PSN + 1, region.remote(0), 8, GLOBAL, 0);
    answered(&node.feed(&write), FIRST_PSN);
    answered(&node.feed(&asks), FIRST_PSN + 1);
    region.set(0, &9u64.to_ne_bytes());
    node.keys.remove(region.key, || ()).unwrap();
    answered(&node.feed(&asks), FIRST_PSN + 1);
    answered(&node.feed(&write), FIRST_PSN);
    let region = self::region(&mut node);
    let write = atomic_write(FIRST_PSN + 2, region.iova, region.key, 5);
    answered(&node.feed(&write), FIRST_PSN + 2);
    region.set(0, &9u64.to_ne_bytes());
    answered(&node.feed(&write), FIRST_PSN + 2);
    assert_eq!((region.word(0), node.qp.state()), (9, QpState::Rts));
}

#[test]
fn the_requester_waits_for_the_answer_and_for_resources() {
    let mut node = node_with(ALL, 2);
    let local = node.register(64);
    let far = Remote { addr: 0x7000, rkey: 0x1234 };
    let value = |wr_id, value: u64| SendWr {
        payload: Payload::Inline(value.to_ne_bytes().into()),
        ..send_wr(wr_id, SendOp::AtomicWrite(far), &[])
    };
    let asks = Flush { remote: far, len: 4096, placement: GLOBAL, whole: true };
    node.post_send(value(1, 0x0102_0304_0506_0708));
    node.post_send(send_wr(2, SendOp::Flush(asks), &[]));
    node.post_send(value(3, 3));
    node.post_send(SendWr {
        flags: SendFlags::SIGNALED | SendFlags::FENCE,
        ..send_wr(4, SendOp::Send, &[local.sge(0, 8)])
    });
    let out = node.emitted();
    assert_eq!(out.len(), 2, "the responder has resources for two");
    assert_eq!(out[0].payload, 0x0102_0304_0506_0708u64.to_ne_bytes());
    assert_eq!(out[0].headers.bth.opcode.to_byte(), 0x1d);
    assert_eq!(
        out[0].headers.reth.map(|reth| (reth.va, reth.rkey, reth.len)),
        Some((0x7000, 0x1234, 8))
    );
    assert_eq!(out[1].headers.bth.opcode.to_byte(), 0x1c);
    assert_eq!(out[1].headers.feth, Some(Feth { placement: GLOBAL, level: 1 }));
    assert_eq!(out[1].headers.reth.map(|reth| (reth.va, reth.len)), Some((0x7000, 4096)));
    let out = node.feed(&read_response(Only, SQ_PSN, Vec::new()));
    assert_eq!((out.len(), out[0].operation()), (1, Operation::AtomicWrite));
    node.feed(&read_response(Only, SQ_PSN + 1, Vec::new()));
    let out = node.feed(&read_response(Only, SQ_PSN + 2, Vec::new()));
    assert_eq!((out.len(), out[0].operation()), (1, Operation::Send), "the fence held it up");
    let sent: Vec<_> = node.told.sent.iter().map(|c| (c.wr_id, c.opcode)).collect();
    assert_eq!(
        sent,
        [(1, WcOpcode::AtomicWrite), (2, WcOpcode::Flush), (3, WcOpcode::AtomicWrite)]
    );
    // An answer with data is none, and a NAK ends it as any.
    for (answer, status) in [
        (read_response(Only, SQ_PSN, vec![1; 8]), WcStatus::BadRespErr),
        (nak(SQ_PSN, NakCode::RemoteAccess), WcStatus::RemAccessErr),
    ] {
        let mut node = self::node();
        node.post_send(send_wr(2, SendOp::Flush(asks), &[]));
        node.feed(&answer);
        assert_eq!(node.told.sent[0].status, status);
    }
}

#[test]
fn what_cannot_be_right_is_refused_at_once() {
    let mut node = node();
    let local = node.register(64);
    let far = Remote { addr: 0x7000, rkey: 0x1234 };
    let misaligned = Remote { addr: 0x7004, ..far };
    let asks = Flush { remote: far, len: 8, placement: GLOBAL, whole: false };
    for (op, len) in [
        (SendOp::AtomicWrite(far), 4),
        (SendOp::AtomicWrite(far), 16),
        (SendOp::AtomicWrite(misaligned), 8),
        (SendOp::Flush(Flush { placement: 0, ..asks }), 0),
        (SendOp::Flush(Flush { placement: 4, ..asks }), 0),
        (SendOp::Flush(Flush { len: u32::MAX, ..asks }), 0),
    ] {
        let refused = node.qp.post_send(send_wr(1, op.clone(), &[local.sge(0, len)]));
        assert!(matches!(refused, Err(Error::Invalid(_))), "{op:?}");
    }
    let mut node = Node::new(QpType::Uc, 11, None);
    node.connect(&Setup::new(QpType::Uc));
    for op in [SendOp::AtomicWrite(far), SendOp::Flush(asks)] {
        assert!(
            matches!(node.qp.post_send(send_wr(1, op.clone(), &[])), Err(Error::Invalid(_))),
            "{op:?}"
        );
    }
}

/// A WRITE, a FLUSH of it and an ATOMIC WRITE that says so: whoever sees the word sees the data,
/// whatever the network does.
#[test]
fn data_then_flush_then_word_over_a_bad_network() {
    for seed in 0..12 {
        let faults = Faults::sweep(seed);
        println!("seed {seed}, {faults:?}");
        let setup = Setup { access: ALL, timeout: 8, ..Setup::new(QpType::Rc) };
        let mut pair = Pair::new(&setup, 64 << 10, seed, faults);
        let source = pair.nodes[0].register(1 << 16);
        let far = pair.nodes[1].register_as(PD, 1 << 16, Access::LOCAL_WRITE | ALL);
        let bytes = pair.rng.bytes(1 << 16);
        source.set(0, &bytes);
        for round in 0..40u64 {
            let at = 8 + 1500 * round;
            let asks = Flush {
                remote: far.remote(at),
                len: 1000,
                placement: GLOBAL,
                whole: round % 2 == 0,
            };
            let word = Payload::Inline((round + 1).to_ne_bytes().into());
            let node = &mut pair.nodes[0];
            node.post_send(send_wr(
                3 * round,
                SendOp::Write(far.remote(at)),
                &[source.sge(at, 1000)],
            ));
            node.post_send(send_wr(3 * round + 1, SendOp::Flush(asks), &[]));
            let write = send_wr(3 * round + 2, SendOp::AtomicWrite(far.remote(0)), &[]);
            node.post_send(SendWr { payload: word, ..write });
        }
        let mut seen = 0;
        pair.run_until(Duration::from_secs(60), |pair| {
            let word = far.word(0);
            assert!(word >= seen, "the word never goes back");
            seen = word;
            for round in 0..word {
                let at = 8 + 1500 * round;
                assert_eq!(far.get(at, 1000), bytes[at as usize..][..1000]);
            }
            pair.nodes[0].told.sent.len() == 120
        });
        pair.assert_corrupted();
        let sent: Vec<_> = pair.nodes[0].told.sent.iter().map(|c| (c.wr_id, c.status)).collect();
        assert_eq!(sent, (0..120).map(|id| (id, WcStatus::Success)).collect::<Vec<_>>());
        assert_eq!(far.word(0), 40);
    }
}
