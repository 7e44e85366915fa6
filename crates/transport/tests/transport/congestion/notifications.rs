//! Marks of the network and what is told of them, packet by packet.

use crate::support::craft::*;
use crate::support::{Node, Packet, Setup, send_wr};
use std::time::Duration;
use transport::Counter;
use transport::values::*;
use wire::Position::Only;
use wire::{Operation, Psn, Service};

const MTU: u32 = 4096;
const FAR: Remote = Remote { addr: 0x9000, rkey: 0x1234 };
const PERIOD: Duration = Duration::from_micros(50);

fn node(kind: QpType, on: bool) -> Node {
    let mut node = Node::with_window(kind, 11, None, 16 << 20);
    node.qp.control_congestion(on);
    node.connect(&Setup { mtu: 5, ..Setup::new(kind) });
    node
}

fn notification() -> Packet {
    let mut packet = packet(Service::Notification, Operation::CongestionNotification, Only, 0);
    packet.headers.bth.becn = true;
    packet
}

/// What the node answers to a packet, in operations.
fn answers(node: &mut Node, packet: &Packet, marked: bool) -> Vec<Operation> {
    node.receive_marked(packet, marked);
    node.end_of_batch();
    node.emitted().iter().map(Packet::operation).collect()
}

#[test]
fn a_marked_packet_is_told_to_its_sender_once_in_a_while() {
    use Operation::{Acknowledge, CongestionNotification};
    let mut node = node(QpType::Rc, true);
    let region = node.register(256);
    let write = |psn| write(Only, psn, 16).reth(region.iova, region.key, 16);
    assert_eq!(answers(&mut node, &write(1000), false), [Acknowledge]);
    node.receive_marked(&write(1001), true);
    node.receive_marked(&write(1002), true);
    node.end_of_batch();
    let out = node.emitted();
    assert_eq!(out.len(), 2);
    let bth = out[0].headers.bth;
    assert_eq!(bth.opcode.to_byte(), 0x81);
    assert_eq!((bth.dest_qp, bth.becn, bth.psn, out[0].payload.len()), (99, true, Psn::new(0), 0));
    assert!(out[1].is_ack());
    node.now += PERIOD - Duration::from_nanos(1);
    assert_eq!(answers(&mut node, &write(1003), true), [Acknowledge]);
    node.now += Duration::from_nanos(1);
    assert_eq!(answers(&mut node, &write(1004), true), [CongestionNotification, Acknowledge]);
    assert_eq!(node.counted(Counter::EcnMarkedPackets), 4);
    assert_eq!(node.counted(Counter::CnpSent), 2);
}

#[test]
fn the_mark_of_a_packet_in_transit_counts_once() {
    let mut node = node(QpType::Rc, true);
    let region = node.register(256);
    // Its payload goes straight to its place.
    let placed = write(Only, 1000, 16).reth(region.iova, region.key, 16);
    assert_eq!(node.feed_in_transit_marked(&placed, true).len(), 2);
    assert_eq!(node.counted(Counter::EcnMarkedPackets), 1);
    // This packet is looked at first.
    let looked_at = read(1001, region.iova, region.key, 16);
    assert_eq!(node.feed_in_transit_marked(&looked_at, true).len(), 1);
    assert_eq!(node.counted(Counter::EcnMarkedPackets), 2);
    // A notification has nothing to be placed.
    assert!(node.feed_in_transit_marked(&notification(), false).is_empty());
    assert_eq!(node.counted(Counter::CnpHandled), 1);
}

#[test]
fn the_mark_of_an_answer_is_told_too() {
    let mut node = node(QpType::Rc, true);
    let region = node.register(256);
    node.post_send(send_wr(1, SendOp::Read(FAR), &[region.sge(0, 100)]));
    node.emitted();
    let answer = read_response(Only, 5000, vec![1; 100]);
    assert_eq!(answers(&mut node, &answer, true), [Operation::CongestionNotification]);
    assert_eq!(node.told.sent.len(), 1);
}

#[test]
fn nothing_is_told_or_heeded_where_it_is_off() {
    let mut node = node(QpType::Rc, false);
    let region = node.register(1 << 20);
    let write = write(Only, 1000, 16).reth(region.iova, region.key, 16);
    assert_eq!(answers(&mut node, &write, true), [Operation::Acknowledge]);
    assert!(answers(&mut node, &notification(), true).is_empty());
    node.post_send(send_wr(1, SendOp::Write(FAR), &[region.sge(0, 128 << 10)]));
    assert_eq!(node.emitted().len(), 31, "the window, and no pace");
    let counted = |what| node.counted(what);
    assert_eq!(counted(Counter::CnpIgnored), 1);
    let others = [Counter::EcnMarkedPackets, Counter::CnpSent, Counter::CnpHandled];
    assert_eq!(others.map(counted), [0; 3]);
}

/// Packets that a node sends in `time`, by its timers alone.
fn sent_in(node: &mut Node, time: Duration) -> usize {
    let end = node.now + time;
    let mut sent = node.emitted().len();
    while let Some(at) = node.qp.deadline().filter(|at| *at < end) {
        node.now = node.now.max(at);
        sent += node.timer().len();
    }
    node.now = end;
    sent
}

/// Has a node be told of congestion until it sends as slowly as it may.
fn slow_down(node: &mut Node) {
    for _ in 0..100 {
        assert!(answers(node, &notification(), false).is_empty());
        node.now += PERIOD;
    }
    assert_eq!(node.counted(Counter::CnpHandled), 100);
}

#[test]
fn requests_answers_and_unreliable_messages_keep_to_the_pace() {
    // Half a megabyte a second is a packet in 8 ms.
    let time = Duration::from_micros(290);
    // Requests.
    let mut requester = node(QpType::Rc, true);
    let region = requester.register(1 << 20);
    slow_down(&mut requester);
    requester.post_send(send_wr(1, SendOp::Write(FAR), &[region.sge(0, 16 * MTU)]));
    assert_eq!(sent_in(&mut requester, time), 1);
    // The answers to a READ.
    let mut responder = node(QpType::Rc, true);
    let region = responder.register(1 << 20);
    slow_down(&mut responder);
    responder.receive(&read(1000, region.iova, region.key, 16 * MTU));
    responder.end_of_batch();
    assert_eq!(sent_in(&mut responder, time), 1);
    // Messages that nobody answers.
    let mut unreliable = node(QpType::Uc, true);
    let region = unreliable.register(1 << 20);
    slow_down(&mut unreliable);
    unreliable.post_send(send_wr(1, SendOp::Send, &[region.sge(0, 16 * MTU)]));
    assert_eq!(sent_in(&mut unreliable, time), 1);
    // Nobody tells of congestion any more, and the others leave as well.
    for node in [&mut requester, &mut responder, &mut unreliable] {
        assert!(sent_in(node, Duration::from_millis(50)) >= 15);
    }
}

#[test]
fn a_connection_made_anew_knows_of_no_congestion() {
    let mut node = node(QpType::Rc, true);
    let region = node.register(1 << 20);
    slow_down(&mut node);
    let reset = QpAttr { qp_state: QpState::Reset, ..node.qp.query() };
    node.modify(&reset, AttrMask::STATE).unwrap();
    node.connect(&Setup { mtu: 5, ..Setup::new(QpType::Rc) });
    node.post_send(send_wr(1, SendOp::Write(FAR), &[region.sge(0, 64 << 10)]));
    assert_eq!(node.emitted().len(), 16);
}
