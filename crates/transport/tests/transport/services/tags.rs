//! A reliable connection over a queue that matches tags: eager messages, and rendezvous that the
//! HCA serves itself.

use crate::support::craft::*;
use crate::support::{Faults, Node, PD, Packet, Pair, QUEUE_PD, Region, Setup, TagQueue, send_wr};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use transport::Error;
use transport::SharedQueue;
use transport::queues::tags::{TagOp, TagWr};
use transport::values::*;
use wire::Position::{First, Last, Only};
use wire::{NakCode, Operation, Syndrome};

const FIRST_PSN: u32 = 1000;
const SEND_PSN: u32 = 5000;
const RNDV: u8 = 1;
const FIN: u8 = 2;
const EAGER: u8 = 3;
const BOTH: WcFlags = WcFlags::TM_MATCH.union(WcFlags::TM_DATA_VALID);

fn header(op: u8, tag: u64) -> Vec<u8> {
    [&[op, 0, 0, 0][..], &(tag as u32 + 7).to_be_bytes(), &tag.to_be_bytes()].concat()
}

fn rendezvous(tag: u64, addr: u64, rkey: u32, len: u32) -> Vec<u8> {
    let asked = [&addr.to_be_bytes()[..], &rkey.to_be_bytes(), &len.to_be_bytes()].concat();
    [header(RNDV, tag), asked].concat()
}

fn message(psn: u32, bytes: Vec<u8>) -> Packet {
    let mut packet = send(Only, psn, bytes.len());
    packet.payload = bytes;
    packet
}

struct Receiver {
    node: Node,
    queue: Arc<TagQueue>,
    region: Region,
}

/// An RC queue pair in RTS over a queue that matches tags; 8 KiB of memory in the queue's domain.
fn receiver(change: impl FnOnce(&mut Setup)) -> Receiver {
    let queue = TagQueue::new();
    let mut node = Node::new(QpType::Rc, 11, Some(SharedQueue::Tags(queue.clone())));
    let mut setup = Setup::new(QpType::Rc);
    change(&mut setup);
    node.connect(&setup);
    let region = node.register_as(QUEUE_PD, 8192, Access::LOCAL_WRITE);
    Receiver { node, queue, region }
}

#[test]
fn an_expected_message_lies_in_its_buffer_without_the_header() {
    let Receiver { mut node, queue, region } = receiver(|_| ());
    queue.add(5, 0xaa, &[region.sge(0, 100), region.sge(200, 300)]);
    let mut first = send(First, FIRST_PSN, 256);
    first.payload[..16].copy_from_slice(&header(EAGER, 0xaa));
    assert!(node.feed(&first.no_ack_req()).is_empty());
    assert!(node.feed(&send(Last, FIRST_PSN + 1, 4).imm(9))[0].is_ack());
    let told = queue.told();
    let done = told[0];
    assert_eq!((told.len(), done.wr_id, done.byte_len, done.imm_or_key), (1, 5, 244, 9));
    assert_eq!((done.opcode, done.status), (WcOpcode::TmRecv, WcStatus::Success));
    assert_eq!(done.flags, BOTH | WcFlags::WITH_IMM);
    assert_eq!(done.tm, TmInfo { tag: 0xaa, app_ctx: 0xb1 });
    assert_eq!(region.get(0, 101), [vec![0xa5; 100], vec![0]].concat());
    assert_eq!(region.get(200, 145), [vec![0xa5; 144], vec![0]].concat());
    assert!(node.told.received.is_empty());
}

#[test]
fn an_unexpected_message_takes_an_ordinary_request_whole_or_waits_for_one() {
    let Receiver { mut node, queue, region } = receiver(|_| ());
    let packet = message(FIRST_PSN, header(EAGER, 1));
    let out = node.feed(&packet);
    assert!(matches!(out[0].headers.aeth.unwrap().syndrome, Syndrome::RnrNak(12)));
    queue.post(6, region.sge(0, 64));
    assert!(node.feed(&packet)[0].is_ack());
    let done = queue.told()[0];
    assert_eq!((done.wr_id, done.opcode, done.byte_len), (6, WcOpcode::TmRecv, 16));
    assert_eq!((done.flags, done.tm), (WcFlags::empty(), TmInfo::default()));
    assert_eq!(region.get(0, 16), header(EAGER, 1));
    // The repetition of a message is no second message.
    assert!(node.feed(&packet)[0].is_ack());
    assert_eq!(queue.told().len(), 1);
}

#[test]
fn a_write_with_immediate_takes_an_ordinary_request_and_completes_at_the_queue() {
    let Receiver { mut node, queue, region } = receiver(|_| ());
    queue.post(6, region.sge(0, 0));
    let target = node.register(64);
    let packet = write(Only, FIRST_PSN, 8).reth(target.iova, target.key, 8).imm(3);
    assert!(node.feed(&packet)[0].is_ack());
    let done = queue.told()[0];
    assert_eq!((done.wr_id, done.opcode, done.imm_or_key), (6, WcOpcode::RecvRdmaWithImm, 3));
    assert!(node.told.received.is_empty());
}

/// The first message of a tag is unexpected, so the second may not meet the buffer that is posted
/// too late for the first.
#[test]
pub fn messages_of_one_tag_keep_their_order() {
    let Receiver { mut node, queue, region } = receiver(|_| ());
    for wr_id in [6, 7] {
        queue.post(wr_id, region.sge(0, 64));
    }
    node.feed(&message(FIRST_PSN, header(EAGER, 1)));
    let request = RecvWr { wr_id: 5, scatter: [region.sge(64, 64)].into_iter().collect() };
    let add = TagOp::Add { request, tag: 1, mask: u64::MAX };
    let op = |op, handled| TagWr { wr_id: 0, op, signaled: false, handled };
    let apply = |wr| queue.list.lock().unwrap().apply(wr).unwrap().flags;
    assert_eq!(apply(op(add, None)), WcFlags::TM_SYNC_REQ);
    node.feed(&message(FIRST_PSN + 1, header(EAGER, 1)));
    assert_eq!(apply(op(TagOp::Sync, Some(2))), WcFlags::empty());
    node.feed(&message(FIRST_PSN + 2, header(EAGER, 1)));
    assert_eq!(queue.told().iter().map(|done| done.wr_id).collect::<Vec<_>>(), [6, 7, 5]);
}

#[test]
fn what_a_rendezvous_loses_is_asked_for_again() {
    let Receiver { mut node, queue, region } = receiver(|_| ());
    let timeout = |node: &mut Node| {
        node.now = node.qp.deadline().expect("something is awaited");
        node.timer()
    };
    queue.add(5, 1, &[region.sge(0, 512)]);
    let request = message(FIRST_PSN, rendezvous(1, 0x9000, 0x77, 300));
    let first = node.feed(&request);
    // Its acknowledge is lost: the repetition begins no second rendezvous.
    let again = node.feed(&request);
    assert!(again.len() == 1 && again[0].is_ack());
    // The READ is lost.
    assert_eq!(timeout(&mut node)[0], first[1]);
    // The second response is lost: the rest is asked for.
    node.feed(&read_response(First, SEND_PSN, vec![1; 256]));
    let rest = &timeout(&mut node)[0];
    assert_eq!((rest.operation(), rest.psn()), (Operation::ReadRequest, SEND_PSN + 1));
    let asked = rest.headers.reth.unwrap();
    assert_eq!((asked.va, asked.len), (0x9100, 44));
    let fin = node.feed(&read_response(Only, SEND_PSN + 1, vec![2; 44]));
    assert_eq!(region.get(0, 300), [vec![1; 256], vec![2; 44]].concat());
    // The FIN is lost, and comes again.
    assert_eq!(timeout(&mut node)[0], fin[0]);
    assert_eq!((fin[0].operation(), fin[0].psn()), (Operation::Send, SEND_PSN + 2));
    node.feed(&ack(SEND_PSN + 2));
    assert_eq!((queue.told().len(), node.qp.deadline()), (2, None));
}

#[test]
pub fn a_rendezvous_is_read_and_then_answered() {
    let Receiver { mut node, queue, region } = receiver(|_| ());
    queue.add(5, 0xaa, &[region.sge(0, 100), region.sge(200, 1000)]);
    let out = node.feed(&message(FIRST_PSN, rendezvous(0xaa, 0x9000, 0x77, 300)));
    assert!(out[0].is_ack());
    assert_eq!(
        (out.len(), out[1].operation(), out[1].psn()),
        (2, Operation::ReadRequest, SEND_PSN)
    );
    let asked = out[1].headers.reth.unwrap();
    assert_eq!((asked.va, asked.rkey, asked.len), (0x9000, 0x77, 300));
    let met = queue.told()[0];
    assert_eq!((met.wr_id, met.flags, met.byte_len), (5, WcFlags::TM_MATCH, 0));
    assert_eq!(met.tm, TmInfo { tag: 0xaa, app_ctx: 0xb1 });
    assert!(node.feed(&read_response(First, SEND_PSN, vec![1; 256])).is_empty());
    let out = node.feed(&read_response(Last, SEND_PSN + 1, vec![2; 44]));
    assert_eq!((out.len(), out[0].operation(), out[0].psn()), (1, Operation::Send, SEND_PSN + 2));
    assert_eq!(out[0].payload, header(FIN, 0xaa));
    let told = queue.told();
    let done = told[1];
    assert_eq!((told.len(), done.wr_id, done.byte_len), (2, 5, 300));
    assert_eq!((done.opcode, done.flags), (WcOpcode::TmRecv, WcFlags::TM_DATA_VALID));
    assert_eq!((done.status, done.tm), (WcStatus::Success, TmInfo::default()));
    assert_eq!(region.get(0, 100), [1; 100]);
    assert_eq!(region.get(200, 201), [vec![1; 156], vec![2; 44], vec![0]].concat());
    node.feed(&ack(SEND_PSN + 2));
    assert!(node.told.sent.is_empty() && node.told.events.is_empty());
}

#[test]
fn a_rendezvous_takes_no_place_of_the_programs_requests() {
    let Receiver { mut node, queue, region } = receiver(|_| ());
    let source = node.register(64);
    let posted = |node: &mut Node| node.qp.post_send(send_wr(1, SendOp::Send, &[source.sge(0, 8)]));
    for _ in 0..256 {
        posted(&mut node).unwrap();
    }
    queue.add(5, 1, &[region.sge(0, 8)]);
    node.feed(&message(FIRST_PSN, rendezvous(1, 0x9000, 0x77, 8)));
    assert!(matches!(posted(&mut node), Err(Error::NoMemory(_))));
    for sent in 0..256 {
        node.feed(&ack(SEND_PSN + sent));
    }
    assert_eq!(node.told.sent.len(), 256);
    for _ in 0..256 {
        posted(&mut node).unwrap();
    }
    assert!(matches!(posted(&mut node), Err(Error::NoMemory(_))));
    node.feed(&read_response(Only, SEND_PSN + 256, vec![1; 8]));
    assert_eq!(queue.told().len(), 2);
}

#[test]
fn what_the_queue_pair_cannot_read_is_left_to_the_program() {
    for change in
        [(|setup: &mut Setup| setup.max_rd_atomic = 0) as fn(&mut Setup), |setup: &mut Setup| {
            setup.stop_at_rtr = true
        }]
    {
        let Receiver { mut node, queue, region } = receiver(change);
        queue.add(5, 1, &[region.sge(0, 64)]);
        let request = rendezvous(1, 0x9000, 0x77, 8);
        let out = node.feed(&message(FIRST_PSN, request.clone()));
        assert!(out.len() == 1 && out[0].is_ack());
        let done = queue.told()[0];
        assert_eq!((done.status, done.flags), (WcStatus::TmRndvIncomplete, BOTH));
        assert_eq!((done.byte_len, region.get(0, 32)), (32, request));
    }
}

#[test]
fn a_message_longer_than_its_buffer_ends_the_connection() {
    for bytes in [[header(EAGER, 1), vec![1; 9]].concat(), rendezvous(1, 0x9000, 0x77, 9)] {
        let Receiver { mut node, queue, region } = receiver(|_| ());
        queue.add(5, 1, &[region.sge(0, 8)]);
        let out = node.feed(&message(FIRST_PSN, bytes));
        assert_eq!((out.len(), out[0].nak()), (1, Some(NakCode::InvalidRequest)));
        let told = queue.told();
        assert_eq!((told.len(), told[0].wr_id, told[0].status), (1, 5, WcStatus::LocLenErr));
        assert_eq!(told[0].opcode, WcOpcode::TmRecv);
        assert_eq!(node.qp.state(), QpState::Err);
    }
}

#[test]
fn a_read_that_fails_completes_the_buffer_with_its_status() {
    // The peer refuses, or the buffer's own key is wrong: it counts in the queue's domain, not in
    // the queue pair's.
    for (foreign, status) in [(false, WcStatus::RemAccessErr), (true, WcStatus::LocProtErr)] {
        let Receiver { mut node, queue, region } = receiver(|_| ());
        let others = node.register_as(PD, 64, Access::LOCAL_WRITE);
        queue.add(5, 1, &[if foreign { others.sge(0, 8) } else { region.sge(0, 8) }]);
        node.feed(&message(FIRST_PSN, rendezvous(1, 0x9000, 0x77, 8)));
        if !foreign {
            node.feed(&nak(SEND_PSN, NakCode::RemoteAccess));
        }
        let told = queue.told();
        let done = told[1];
        assert_eq!((told.len(), done.wr_id, done.status), (2, 5, status));
        assert_eq!((done.opcode, done.flags), (WcOpcode::TmRecv, WcFlags::empty()));
        assert_eq!((node.qp.state(), node.told.sent.len()), (QpState::Err, 0));
    }
}

#[test]
fn the_end_of_the_connection_flushes_buffers_in_use_only() {
    let Receiver { mut node, queue, region } = receiver(|_| ());
    for tag in 1..4 {
        queue.add(tag, tag, &[region.sge(0, 512)]);
    }
    node.feed(&message(FIRST_PSN, rendezvous(1, 0x9000, 0x77, 8)));
    let mut first = send(First, FIRST_PSN + 1, 256);
    first.payload[..16].copy_from_slice(&header(EAGER, 2));
    node.feed(&first);
    let error = QpAttr { qp_state: QpState::Err, ..node.qp.query() };
    node.modify(&error, AttrMask::STATE).unwrap();
    let told = queue.told();
    let flushed: Vec<_> = told[1..].iter().map(|c| (c.wr_id, c.opcode, c.status)).collect();
    let by = (WcOpcode::TmRecv, WcStatus::WrFlushErr);
    assert_eq!(flushed, [(1, by.0, by.1), (2, by.0, by.1)]);
    assert!(node.told.received.is_empty() && node.told.sent.is_empty());
    assert_eq!(node.told.events, [EventType::QpLastWqeReached]);
}

#[test]
fn a_fin_that_fails_is_told_as_an_event() {
    let Receiver { mut node, queue, region } = receiver(|_| ());
    queue.add(5, 1, &[region.sge(0, 8)]);
    node.feed(&message(FIRST_PSN, rendezvous(1, 0x9000, 0x77, 8)));
    node.feed(&read_response(Only, SEND_PSN, vec![1; 8]));
    node.feed(&nak(SEND_PSN + 1, NakCode::InvalidRequest));
    assert_eq!((queue.told().len(), node.qp.state()), (2, QpState::Err));
    assert_eq!(node.told.events, [EventType::QpFatal, EventType::QpLastWqeReached]);
}

/// Eager messages and rendezvous among the receiver's own requests, over networks that lose, repeat
/// and reorder: each buffer gets its message once, each rendezvous one FIN, in order.
#[test]
fn every_rendezvous_ends_once_over_a_bad_network() {
    const ROUNDS: u64 = 40;
    const SPAN: u64 = 4096;
    for seed in 0..8 {
        let faults = Faults { loss: 10, duplicate: 10, reorder: 10, ..Faults::NONE };
        let setup = Setup { timeout: 8, ..Setup::new(QpType::Rc) };
        let queue = TagQueue::new();
        let shared = [None, Some(SharedQueue::Tags(queue.clone()))];
        let mut pair = Pair::over([QpType::Rc; 2], shared, &setup, 64 << 10, seed, faults);
        let source = pair.nodes[0].register(ROUNDS * SPAN);
        let fins = pair.nodes[0].register(64 * ROUNDS);
        let own = pair.nodes[1].register(64);
        let into = pair.nodes[1].register_as(QUEUE_PD, ROUNDS * SPAN, Access::LOCAL_WRITE);
        let bytes = pair.rng.bytes((ROUNDS * SPAN) as usize);
        source.set(0, &bytes);
        let mut lengths = Vec::new();
        for round in 0..ROUNDS {
            let len = pair.rng.range(0, SPAN - 64) as u32;
            lengths.push(len);
            let place = round * SPAN;
            queue.add(round, round, &[into.sge(place, 10), into.sge(place + 10, SPAN as u32 - 10)]);
            let wr = if round % 3 == 0 {
                source.set(place, &header(EAGER, round));
                source.sge(place, 16 + len)
            } else {
                let at = source.remote(place + 32);
                source.set(place, &rendezvous(round, at.addr, at.rkey, len));
                pair.nodes[0].post_recv(round, &[fins.sge(64 * round, 64)]);
                source.sge(place, 32)
            };
            pair.nodes[0].post_send(send_wr(round, SendOp::Send, &[wr]));
            if round % 5 == 0 {
                pair.nodes[0].post_recv(1000, &[fins.sge(0, 64)]);
                pair.nodes[1].post_send(send_wr(round, SendOp::Send, &[own.sge(0, 8)]));
            }
        }
        let all = ROUNDS as usize + (0..ROUNDS).filter(|round| round % 3 != 0).count();
        pair.run_until(Duration::from_secs(120), |pair| {
            let told = pair.nodes.iter().map(|node| node.told.sent.len());
            queue.told().len() == all && told.eq([ROUNDS as usize, 8])
        });
        pair.settle();
        let told = queue.told();
        assert!(told.iter().all(|c| c.status == WcStatus::Success), "seed {seed}");
        assert_eq!(told.len(), all);
        let arrived: Vec<_> =
            told.iter().filter(|c| c.flags.contains(WcFlags::TM_DATA_VALID)).collect();
        assert_eq!(arrived.len(), ROUNDS as usize);
        for done in arrived {
            let (round, len) = (done.wr_id, lengths[done.wr_id as usize]);
            assert_eq!(done.byte_len, len);
            let from = round * SPAN + if round % 3 == 0 { 16 } else { 32 };
            assert_eq!(into.get(round * SPAN, len as usize), source.get(from, len as usize));
        }
        // What the sender received: a FIN for each rendezvous, and the receiver's own messages.
        let received = &pair.nodes[0].told.received;
        assert_eq!(received.len(), all - ROUNDS as usize + 8);
        assert_eq!(received.iter().filter(|c| c.byte_len == 16).count(), all - ROUNDS as usize);
        assert!(pair.nodes.iter().all(|node| node.told.events.is_empty()));
    }
}

#[test]
fn a_matched_message_waits_for_a_buffer_that_moves() {
    let Receiver { mut node, queue, region } = receiver(|_| ());
    queue.add(5, 0xaa, &[region.sge(0, 600)]);
    queue.add(6, 0xaa, &[region.sge(1000, 600)]);
    let first = |psn| {
        let mut packet = send(First, psn, 256);
        packet.payload[..16].copy_from_slice(&header(EAGER, 0xaa));
        packet
    };
    for (wr_id, psn) in [(5, FIRST_PSN), (6, FIRST_PSN + 2)] {
        region.ram.moving.store(true, Relaxed);
        for _ in 0..3 {
            let out = node.feed(&first(psn));
            assert!(matches!(out[0].headers.aeth.unwrap().syndrome, Syndrome::RnrNak(_)));
            node.now = node.qp.deadline().unwrap();
            node.timer();
        }
        region.ram.moving.store(false, Relaxed);
        node.feed(&first(psn));
        assert!(node.feed(&send(Last, psn + 1, 4))[0].is_ack());
        let done = *queue.told().last().unwrap();
        assert_eq!((done.wr_id, done.byte_len, done.status), (wr_id, 244, WcStatus::Success));
        assert_eq!(done.tm, TmInfo { tag: 0xaa, app_ctx: 0xb1 });
    }
    assert_eq!(queue.told().len(), 2, "each was matched once");
}
