//! The requester of a reliable connection against hand-made answers, rule by rule. Path MTU 256, first PSN 5000.

use crate::support::craft::*;
use crate::support::{Node, PD, Packet, Region, Setup, port_one, send_wr};
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use transport::Counter;
use transport::Error;
use transport::values::*;
use wire::Position::{First, Last, Middle, Only};
use wire::{NakCode, Operation, Position, Syndrome};

const FIRST_PSN: u32 = 5000;
const FAR: Remote = Remote { addr: 0x7000, rkey: 0x1234 };

fn requester_with(change: impl FnOnce(&mut Setup)) -> Node {
    let mut setup = Setup::new(QpType::Rc);
    change(&mut setup);
    let mut node = Node::new(QpType::Rc, 11, None);
    node.connect(&setup);
    node
}

fn requester() -> (Node, Region) {
    let mut node = requester_with(|_| ());
    let region = node.register(1 << 20);
    (node, region)
}

fn ids(node: &Node) -> Vec<(u64, WcStatus)> {
    node.told.sent.iter().map(|done| (done.wr_id, done.status)).collect()
}

fn psns(packets: &[Packet]) -> Vec<u32> {
    packets.iter().map(Packet::psn).collect()
}

#[test]
fn a_message_is_cut_at_the_path_mtu() {
    let (mut node, region) = requester();
    let bytes: Vec<u8> = (0..600u32).map(|i| i as u8).collect();
    region.set(0, &bytes);
    // Borders of entries and packets differ; one entry is empty.
    let sges = [region.sge(0, 100), region.sge(100, 0), region.sge(100, 300), region.sge(400, 200)];
    let mut wr = send_wr(1, SendOp::WriteImm(FAR, 9), &sges);
    wr.flags |= SendFlags::SOLICITED;
    node.post_send(wr);
    let out = node.emitted();
    assert_eq!(psns(&out), [5000, 5001, 5002]);
    assert_eq!(out.iter().map(Packet::position).collect::<Vec<_>>(), [First, Middle, Last]);
    assert_eq!(out.iter().flat_map(|p| p.payload.clone()).collect::<Vec<_>>(), bytes);
    assert_eq!(out[0].headers.reth.map(|r| (r.va, r.rkey, r.len)), Some((0x7000, 0x1234, 600)));
    assert!(out[1].headers.reth.is_none());
    assert_eq!(out.iter().map(|p| p.headers.imm).collect::<Vec<_>>(), [None, None, Some(9)]);
    assert_eq!(
        out.iter().map(|p| p.headers.bth.solicited).collect::<Vec<_>>(),
        [false, false, true]
    );
    assert!(out[2].headers.bth.ack_req && !out[0].headers.bth.ack_req);
    assert_eq!(out[2].headers.bth.dest_qp, 99);
    assert_eq!(node.counted(Counter::SentPackets), 3);
    assert_eq!(node.counted(Counter::SentBytes), 600);
}

#[test]
fn inline_payload_is_sent_as_it_was_when_posted() {
    let (mut node, _) = requester();
    let mut wr = send_wr(1, SendOp::Send, &[]);
    wr.payload = Payload::Inline(vec![7; 300].into());
    node.post_send(wr);
    let out = node.emitted();
    assert_eq!(out.iter().map(|p| p.payload.len()).collect::<Vec<_>>(), [256, 44]);
    assert_eq!(out[0].payload, [7; 256]);
}

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
fn reads_and_atomics_in_flight_are_bounded() {
    let mut node = requester_with(|setup| setup.max_rd_atomic = 2);
    let region = node.register(4096);
    for id in 0..4 {
        node.post_send(send_wr(id, SendOp::Read(FAR), &[region.sge(0, 8)]));
    }
    node.post_send(send_wr(4, SendOp::Send, &[region.sge(0, 8)]));
    assert_eq!(psns(&node.emitted()), [5000, 5001]);
    assert_eq!(psns(&node.feed(&read_response(Only, 5000, vec![0; 8]))), [5002]);
    assert_eq!(psns(&node.feed(&read_response(Only, 5001, vec![0; 8]))), [5003, 5004]);
}

#[test]
fn without_initiator_resources_a_read_fails() {
    let mut node = requester_with(|setup| setup.max_rd_atomic = 0);
    let region = node.register(64);
    node.post_send(send_wr(1, SendOp::Read(FAR), &[region.sge(0, 8)]));
    assert_eq!(ids(&node), [(1, WcStatus::LocQpOpErr)]);
}

#[test]
pub fn a_fence_waits_for_reads_and_atomics() {
    let (mut node, region) = requester();
    node.post_send(send_wr(1, SendOp::Read(FAR), &[region.sge(0, 8)]));
    let mut fenced = send_wr(2, SendOp::Send, &[region.sge(0, 8)]);
    fenced.flags |= SendFlags::FENCE;
    node.post_send(fenced);
    assert_eq!(psns(&node.emitted()), [5000]);
    let out = node.feed(&read_response(Only, 5000, vec![9; 8]));
    assert_eq!(psns(&out), [5001]);
    assert_eq!(out[0].payload, [9; 8], "the fenced SEND sends what the READ brought");
}

#[test]
fn local_errors_come_after_what_was_posted_before() {
    type Spoil = fn(&mut Node) -> SendWr;
    let cases: [(&str, WcStatus, Spoil); 6] = [
        ("unknown key", WcStatus::LocProtErr, |node| {
            send_wr(2, SendOp::Send, &[Sge { lkey: 0, ..node.register(64).sge(0, 8) }])
        }),
        ("foreign domain", WcStatus::LocProtErr, |node| {
            let region = node.register_as(PdId(PD.0 + 1), 64, Access::LOCAL_WRITE);
            send_wr(2, SendOp::Write(FAR), &[region.sge(0, 8)])
        }),
        ("beyond the end", WcStatus::LocProtErr, |node| {
            send_wr(2, SendOp::Send, &[node.register(64).sge(60, 8)])
        }),
        ("READ into read-only memory", WcStatus::LocProtErr, |node| {
            let region = node.register_as(PD, 64, Access::REMOTE_READ);
            send_wr(2, SendOp::Read(FAR), &[region.sge(0, 8)])
        }),
        ("atomic into too few bytes", WcStatus::LocLenErr, |node| {
            send_wr(2, SendOp::FetchAdd { remote: FAR, add: 1 }, &[node.register(64).sge(0, 4)])
        }),
        ("failing memory", WcStatus::LocProtErr, |node| {
            let region = node.register(64);
            region.ram.broken.store(true, Relaxed);
            send_wr(2, SendOp::Send, &[region.sge(0, 8)])
        }),
    ];
    for (name, status, spoil) in cases {
        println!("{name}");
        let (mut node, region) = requester();
        node.post_send(send_wr(1, SendOp::Send, &[region.sge(0, 8)]));
        let bad = spoil(&mut node);
        node.post_send(bad);
        node.post_send(send_wr(3, SendOp::Send, &[region.sge(0, 8)]));
        assert_eq!(psns(&node.emitted()), [5000]);
        assert!(node.told.sent.is_empty());
        assert_eq!(node.qp.state(), QpState::Rts);
        node.feed(&ack(5000));
        let told = [(1, WcStatus::Success), (2, status), (3, WcStatus::WrFlushErr)];
        assert_eq!(ids(&node), told);
        assert_eq!(node.qp.state(), QpState::Err);
        assert_ne!(node.told.sent[1].vendor_err, u32::MAX);
    }
}

#[test]
fn memory_that_fails_amid_a_message_fails_it() {
    let (mut node, region) = requester();
    let other = node.register(300);
    other.ram.broken.store(true, Relaxed);
    node.post_send(send_wr(1, SendOp::Send, &[region.sge(0, 256), other.sge(0, 300)]));
    assert_eq!(psns(&node.emitted()), [5000]);
    assert_eq!(ids(&node), [(1, WcStatus::LocProtErr)]);

    let (mut node, region) = requester();
    node.post_send(send_wr(1, SendOp::Read(FAR), &[region.sge(0, 8)]));
    region.ram.broken.store(true, Relaxed);
    node.feed(&read_response(Only, 5000, vec![0; 8]));
    assert_eq!(ids(&node), [(1, WcStatus::LocProtErr)]);
}

#[test]
fn a_local_invalidate_waits_its_turn_and_fails_on_a_registration() {
    let (mut node, region) = requester();
    node.post_send(send_wr(1, SendOp::Send, &[region.sge(0, 8)]));
    node.post_send(send_wr(2, SendOp::LocalInvalidate(region.key), &[]));
    assert!(node.told.sent.is_empty());
    node.feed(&ack(5000));
    assert_eq!(ids(&node), [(1, WcStatus::Success), (2, WcStatus::MwBindErr)]);
    assert_eq!(node.told.sent[1].opcode, WcOpcode::LocalInv);
}

#[test]
fn what_is_in_flight_stays_within_the_window() {
    let mut node = Node::with_window(QpType::Rc, 11, None, 20_000);
    node.connect(&Setup::new(QpType::Rc));
    let region = node.register(1 << 20);
    node.post_send(send_wr(1, SendOp::Write(FAR), &[region.sge(0, 1 << 20)]));
    let out = node.emitted();
    // The first packet costs a datagram's overhead, the others their share in a train.
    let flight = out.iter().map(|p| p.payload.len() + 96).sum::<usize>() + 832 - 96;
    assert!(flight <= 20_000 && flight + out[1].payload.len() + 96 > 20_000, "{flight}");
    let asking = out.iter().filter(|p| p.headers.bth.ack_req).count();
    assert!((3..=6).contains(&asking), "about each quarter asks for an acknowledge: {asking}");
    let half = out[out.len() / 2].psn();
    let more = node.feed(&ack(half));
    // What the first packet cost more makes room for two others.
    assert_eq!(more.len(), out.len() / 2 + 1 + 2);
}

#[test]
fn requests_are_checked_when_posted() {
    let (mut node, region) = requester();
    let fine = [region.sge(0, 8)];
    let invalid = |node: &mut Node, wr: SendWr| {
        assert!(matches!(node.qp.post_send(wr), Err(Error::Invalid(_))));
    };
    invalid(&mut node, send_wr(1, SendOp::Send, &[region.sge(0, 1); 9]));
    let mut long = send_wr(1, SendOp::Send, &[]);
    long.payload = Payload::Inline(vec![0; 513].into());
    invalid(&mut node, long);
    let mut read = send_wr(1, SendOp::Read(FAR), &[]);
    read.payload = Payload::Inline(vec![0; 8].into());
    invalid(&mut node, read);
    let mut checksum = send_wr(1, SendOp::Send, &fine);
    checksum.flags |= SendFlags::IP_CSUM;
    invalid(&mut node, checksum);
    let huge = [region.sge(0, u32::MAX)];
    invalid(&mut node, send_wr(1, SendOp::Write(FAR), &huge));
    for _ in 0..256 {
        node.qp.post_send(send_wr(1, SendOp::Send, &fine)).unwrap();
    }
    assert!(matches!(node.qp.post_send(send_wr(1, SendOp::Send, &fine)), Err(Error::NoMemory(_))));
    let recv = RecvWr { wr_id: 1, scatter: [region.sge(0, 1); 9].into_iter().collect() };
    assert!(matches!(node.qp.post_recv(recv), Err(Error::Invalid(_))));
    let recv = RecvWr { wr_id: 1, scatter: Default::default() };
    for _ in 0..256 {
        node.qp.post_recv(recv.clone()).unwrap();
    }
    assert!(matches!(node.qp.post_recv(recv), Err(Error::NoMemory(_))));
}

#[test]
fn operations_are_those_of_the_service() {
    let atomic = SendOp::FetchAdd { remote: FAR, add: 1 };
    let cases: [(SendOp, bool, bool); 7] = [
        (SendOp::Send, true, true),
        (SendOp::SendImm(1), true, true),
        (SendOp::SendInvalidate(1), false, false),
        (SendOp::Write(FAR), true, false),
        (SendOp::WriteImm(FAR, 1), true, false),
        (SendOp::Read(FAR), false, false),
        (atomic, false, false),
    ];
    for (op, uc, ud) in cases {
        for (kind, offered) in [(QpType::Rc, true), (QpType::Uc, uc), (QpType::Ud, ud)] {
            let mut node = Node::new(kind, 11, None);
            node.connect(&Setup::new(kind));
            let mut wr = send_wr(1, op.clone(), &[]);
            if kind == QpType::Ud {
                let ah = port_one();
                wr.datagram = Some(Datagram { ah, remote_qpn: 1, remote_qkey: 1 });
            }
            assert_eq!(node.qp.post_send(wr).is_ok(), offered, "{kind:?} {op:?}");
        }
    }
}

#[test]
fn a_long_message_takes_most_of_the_circle_of_psns() {
    // 2^31 bytes at 256 are 2^23 PSNs, half the circle; posting and beginning it must not confuse anything.
    let mut node = requester_with(|setup| setup.sq_psn = 0x00ff_fff0);
    let region = node.register(64);
    let list: Vec<Sge> = vec![Sge { addr: region.iova, length: 1 << 31, lkey: region.key }];
    node.post_send(send_wr(1, SendOp::Write(FAR), &list));
    assert_eq!(ids(&node), [(1, WcStatus::LocProtErr)], "the memory is not that long");
    let mut node = requester_with(|setup| setup.sq_psn = 0x00ff_fff0);
    let region = node.register(256 * 64);
    node.post_send(send_wr(1, SendOp::Write(FAR), &[region.sge(0, 256 * 64)]));
    let out = node.emitted();
    assert_eq!(out[15].psn(), 0x00ff_ffff);
    assert_eq!(out[16].psn(), 0);
    node.feed(&ack(47));
    assert_eq!(ids(&node), [(1, WcStatus::Success)]);
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
fn a_draining_queue_finishes_what_it_began() {
    let (mut node, region) = requester();
    let big = 1 << 20;
    node.post_send(send_wr(1, SendOp::Write(FAR), &[region.sge(0, big)]));
    node.post_send(send_wr(2, SendOp::Send, &[region.sge(0, 8)]));
    let mut out = node.emitted();
    let attr = QpAttr { qp_state: QpState::Sqd, en_sqd_async_notify: true, ..node.qp.query() };
    node.modify(&attr, AttrMask::STATE | AttrMask::EN_SQD_ASYNC_NOTIFY).unwrap();
    assert!(node.qp.query().sq_draining);
    while node.told.events.is_empty() {
        let last = out.last().unwrap().psn();
        out = node.feed(&ack(last));
    }
    assert_eq!(node.told.events, [EventType::SqDrained]);
    assert_eq!(ids(&node), [(1, WcStatus::Success)]);
    assert!(!node.qp.query().sq_draining);
    node.post_send(send_wr(3, SendOp::Send, &[region.sge(0, 8)]));
    assert!(node.emitted().is_empty());
    let attr = QpAttr { qp_state: QpState::Rts, ..node.qp.query() };
    node.modify(&attr, AttrMask::STATE).unwrap();
    node.with(|qp, cx| qp.transmit(cx));
    assert_eq!(node.emitted().len(), 2);
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
