//! What one call does is bounded in packets and in bytes, whatever the peer asks; the rest is due
//! at once, and nothing of it is lost. Path MTU 256.

use crate::support::craft::*;
use crate::support::{Loose, Node, Packet, Region, Setup, send_wr};
use std::sync::Arc;
use std::time::Duration;
use transport::values::*;
use transport::{Budget, Share, SharedQueue};
use wire::{NakCode, Operation};

const FAR: Remote = Remote { addr: 0x7000, rkey: 0x1234 };

fn node(budget: Share) -> (Node, Region) {
    let mut node = Node::new(QpType::Rc, 11, None);
    node.connect(&Setup::new(QpType::Rc));
    let region = node.register(1 << 20);
    node.budget = Budget::of(budget);
    (node, region)
}

/// Answers for four READs that the peer asks for at once, call by call until none comes.
fn four_reads(budget: Share) -> Vec<Vec<Packet>> {
    let (mut node, region) = node(budget);
    let quarter = region.len / 4;
    for part in 0..4 {
        let request = read(
            1000 + part as u32 * 1024,
            region.iova + part * quarter,
            region.key,
            quarter as u32,
        );
        node.receive(&request);
    }
    node.end_of_batch();
    let mut calls = vec![node.emitted()];
    while node.qp.deadline().is_some_and(|deadline| deadline <= node.now) {
        calls.push(node.timer());
    }
    calls
}

#[track_caller]
fn all_in_order(calls: &[Vec<Packet>]) {
    let psns = calls.iter().flatten().map(Packet::psn);
    assert!(psns.eq(1000..1000 + 4096), "each answer once, in order");
}

#[test]
fn long_reads_leave_so_many_packets_at_a_time() {
    let calls = four_reads(Share::new(16, u64::MAX));
    assert!(calls.iter().all(|call| call.len() == 16));
    all_in_order(&calls);
}

#[test]
fn long_reads_leave_so_many_bytes_at_a_time() {
    let calls = four_reads(Share::new(u32::MAX, 1000));
    assert!(calls.iter().all(|call| call.len() == 4), "the fourth packet of 256 bytes spends it");
    all_in_order(&calls);
}

#[test]
fn own_requests_leave_so_much_at_a_time() {
    let (mut node, region) = node(Share::new(8, u64::MAX));
    node.post_send(send_wr(1, SendOp::Write(FAR), &[region.sge(0, 64 * 256)]));
    let mut sent = node.emitted();
    assert_eq!(sent.len(), 8);
    while node.qp.deadline().is_some_and(|deadline| deadline <= node.now) {
        let call = node.timer();
        assert!(call.len() <= 8);
        sent.extend(call);
    }
    assert!(sent.iter().map(Packet::psn).eq(5000..5064));
}

#[test]
fn answers_and_requests_do_not_wait_for_each_other() {
    let (mut node, region) = node(Share::new(8, u64::MAX));
    node.feed(&read(1000, region.iova, region.key, 1 << 20));
    node.post_send(send_wr(1, SendOp::Write(FAR), &[region.sge(0, 64 * 256)]));
    node.emitted();
    for _ in 0..4 {
        let call = node.timer();
        let answers = call.iter().filter(|p| p.operation() == Operation::ReadResponse).count();
        assert_eq!((answers, call.len() - answers), (8, 8));
    }
}

#[test]
fn what_is_put_off_is_due_at_once() {
    let (mut node, region) = node(Share::new(64, u64::MAX));
    node.receive(&read(1000, region.iova, region.key, 4 * 256));
    let now = node.now;
    node.qp.put_off(now);
    assert!(node.emitted().is_empty());
    assert!(node.qp.deadline().is_some_and(|deadline| deadline <= now));
    assert_eq!(node.timer().len(), 4);
    assert!(node.qp.deadline().is_none_or(|deadline| deadline > now));
}

/// Requests of a test of how they end.
const MANY: u64 = 120;

/// A requester with many requests on their way, of which eight may end in a call.
fn many_sends() -> Node {
    let (mut node, region) = node(Share::new(512, u64::MAX));
    for id in 0..MANY {
        node.post_send(send_wr(id, SendOp::Send, &[region.sge(0, 8)]));
    }
    assert_eq!(node.emitted().len() as u64, MANY);
    node.budget = Budget::of(Share::new(512, u64::MAX)).ending(8);
    node
}

/// Calls the timer until nothing is due, eight endings a call; gives what became of each request,
/// in order.
#[track_caller]
fn endings(node: &mut Node) -> Vec<(u64, WcStatus)> {
    let told = |node: &Node| node.told.sent.len() + node.told.received.len();
    assert_eq!(told(node), 8, "of the first call");
    while node.qp.deadline().is_some_and(|deadline| deadline <= node.now) {
        let before = told(node);
        node.timer();
        assert!(told(node) - before <= 8);
    }
    let all = node.told.sent.iter().chain(&node.told.received);
    all.map(|done| (done.wr_id, done.status)).collect()
}

#[test]
fn one_acknowledge_ends_so_many_requests_at_a_time() {
    let mut node = many_sends();
    node.receive(&ack(5000 + MANY as u32 - 1));
    let all: Vec<_> = (0..MANY).map(|id| (id, WcStatus::Success)).collect();
    assert_eq!(endings(&mut node), all);
    assert_eq!(node.qp.deadline(), None, "nothing is awaited any more");
}

#[test]
fn an_older_acknowledge_does_not_replace_the_rest_of_a_later_one() {
    let mut node = many_sends();
    node.receive(&ack(5000 + MANY as u32 - 1));
    node.budget = node.budget.ending(0);
    node.receive(&ack(5000 + 100));
    node.budget = node.budget.ending(8);
    assert_eq!(endings(&mut node).len() as u64, MANY);
}

#[test]
fn the_rest_of_an_acknowledge_ends_a_connection_in_order() {
    let mut node = many_sends();
    node.receive(&nak(5000 + 99, NakCode::RemoteAccess));
    let ended = endings(&mut node);
    let expected = (0..MANY).map(|id| match id {
        0..99 => (id, WcStatus::Success),
        99 => (id, WcStatus::RemAccessErr),
        _ => (id, WcStatus::WrFlushErr),
    });
    assert!(ended.into_iter().eq(expected));
}

/// The same, and a READ behind them.
fn many_sends_and_a_read() -> Node {
    let (mut node, region) = node(Share::new(512, u64::MAX));
    for id in 0..MANY {
        node.post_send(send_wr(id, SendOp::Send, &[region.sge(0, 8)]));
    }
    node.post_send(send_wr(MANY, SendOp::Read(FAR), &[region.sge(0, 8)]));
    assert_eq!(node.emitted().len() as u64, MANY + 1);
    node
}

fn answer_of_the_read() -> Packet {
    read_response(wire::Position::Only, 5000 + MANY as u32, vec![7; 8])
}

#[test]
fn an_answer_that_ends_too_many_requests_is_asked_for_again() {
    let mut node = many_sends_and_a_read();
    node.budget = node.budget.ending(8);
    node.receive(&answer_of_the_read());
    let ended = endings(&mut node);
    assert!(ended.into_iter().eq((0..MANY).map(|id| (id, WcStatus::Success))));
    assert!(node.emitted().is_empty());
    node.now = node.qp.deadline().unwrap();
    let again = node.timer();
    assert_eq!(again.iter().map(Packet::psn).collect::<Vec<_>>(), [5000 + MANY as u32]);
    node.receive(&answer_of_the_read());
    assert_eq!(node.told.sent.len() as u64, MANY + 1);
    assert_eq!(node.qp.deadline(), None);
}

#[test]
fn an_answer_behind_the_rest_of_an_acknowledge_is_taken_if_as_many_may_end() {
    let mut node = many_sends_and_a_read();
    node.budget = node.budget.ending(8);
    node.receive(&ack(5000 + MANY as u32 - 1));
    node.budget = node.budget.ending(MANY as u32);
    node.receive(&answer_of_the_read());
    assert_eq!(node.told.sent.len() as u64, MANY + 1);
    node.timer();
    assert_eq!(node.qp.deadline(), None);
    assert!(node.emitted().is_empty(), "nothing is asked for again");
}

#[test]
fn a_full_queue_is_flushed_so_many_requests_at_a_time() {
    let mut node = many_sends();
    for id in 0..MANY {
        node.post_recv(MANY + id, &[]);
    }
    let error = QpAttr { qp_state: QpState::Err, ..node.qp.query() };
    node.modify(&error, AttrMask::STATE).unwrap();
    node.now += Duration::from_millis(1);
    let all: Vec<_> = (0..2 * MANY).map(|id| (id, WcStatus::WrFlushErr)).collect();
    assert_eq!(endings(&mut node), all);
}

#[test]
fn the_last_receive_of_a_shared_queue_is_told_after_its_flush() {
    let shared = Arc::new(Loose::default());
    let mut node = Node::new(QpType::Rc, 11, Some(SharedQueue::Plain(shared.clone())));
    node.connect(&Setup::new(QpType::Rc));
    let region = node.register(1024);
    let scatter = [region.sge(0, 512)].into_iter().collect();
    shared.0.lock().unwrap().push_back(RecvWr { wr_id: MANY, scatter });
    for id in 0..16 {
        node.post_send(send_wr(id, SendOp::Send, &[region.sge(0, 8)]));
    }
    node.feed(&send(wire::Position::First, 1000, 256));
    node.budget = node.budget.ending(8);
    let error = QpAttr { qp_state: QpState::Err, ..node.qp.query() };
    node.modify(&error, AttrMask::STATE).unwrap();
    while node.told.received.is_empty() {
        assert!(node.told.events.is_empty(), "a receive request is still under way");
        assert!(node.qp.deadline().is_some_and(|deadline| deadline <= node.now));
        node.timer();
    }
    node.timer();
    assert_eq!(node.told.events, [EventType::QpLastWqeReached]);
    assert_eq!(node.qp.deadline(), None);
}

#[test]
fn with_the_device_no_event_but_its_own_is_told() {
    let shared = SharedQueue::Plain(Arc::new(Loose::default()));
    let mut node = Node::new(QpType::Rc, 11, Some(shared));
    node.connect(&Setup::new(QpType::Rc));
    node.with(|qp, cx| qp.end_with_device(cx));
    node.end_of_batch();
    assert!(node.told.events.is_empty());
}

#[test]
fn with_the_device_everything_ends_at_once() {
    let mut node = many_sends();
    node.with(|qp, cx| qp.end_with_device(cx));
    assert_eq!(node.told.sent.len() as u64, MANY);
}
