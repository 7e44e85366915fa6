//! A peer's port that says how much it takes (priority flow control): a reliable connection fills
//! it and waits, loses nothing and asks again. Path MTU 256.

use crate::support::craft::*;
use crate::support::{Node, Packet, Region, Setup, send_wr};
use std::time::Duration;
use transport::values::*;
use wire::Position::Only;

const TRAIN: u64 = 64 << 10;
const FAR: Remote = Remote { addr: 0x7000, rkey: 0x1234 };

fn node() -> (Node, Region) {
    let mut node = Node::new(QpType::Rc, 11, None);
    node.connect(&Setup::new(QpType::Rc));
    let region = node.register(1 << 20);
    (node, region)
}

fn bytes(packets: &[Packet]) -> u64 {
    packets.iter().map(|packet| packet.payload.len() as u64).sum()
}

/// The queue pair waits and asks again soon, in vain.
fn asks_in_vain(node: &mut Node) {
    let deadline = node.qp.deadline().expect("it asks again");
    assert!(deadline > node.now && deadline <= node.now + Duration::from_millis(1));
    node.now = deadline;
    assert!(node.timer().is_empty());
}

#[test]
fn requests_go_a_train_at_a_time_while_there_is_room() {
    let (mut node, region) = node();
    node.out.room = Some(TRAIN);
    // Within the window that a connection begins with.
    let message = 80 << 10;
    node.post_send(send_wr(1, SendOp::Write(FAR), &[region.sge(0, message)]));
    let mut sent = node.emitted();
    assert!((TRAIN / 2..=TRAIN).contains(&bytes(&sent)), "{}", bytes(&sent));
    asks_in_vain(&mut node);
    while bytes(&sent) < message.into() {
        node.out.room = Some(TRAIN);
        node.now = node.qp.deadline().unwrap();
        let train = node.timer();
        assert!(!train.is_empty() && bytes(&train) <= TRAIN);
        sent.extend(train);
    }
    let first = sent[0].psn();
    assert!(
        sent.iter().zip(first..).all(|(packet, psn)| packet.psn() == psn),
        "each once, in order"
    );
}

#[test]
fn an_acknowledge_asks_the_port_too() {
    let (mut node, region) = node();
    node.out.room = Some(TRAIN);
    node.post_send(send_wr(1, SendOp::Write(FAR), &[region.sge(0, 2 * TRAIN as u32)]));
    let sent = node.emitted();
    node.out.room = Some(TRAIN);
    let more = node.feed(&ack(sent[0].psn()));
    assert_eq!(more[0].psn(), sent.last().unwrap().psn() + 1);
}

#[test]
fn what_a_read_brings_waits_where_it_leaves() {
    let (mut node, region) = node();
    node.out.room = Some(0);
    // The request itself is no load.
    node.post_send(send_wr(1, SendOp::Read(FAR), &[region.sge(0, 1 << 20)]));
    assert!(!node.emitted().is_empty());
    let request = read(1000, region.iova, region.key, 2 * TRAIN as u32);
    assert!(node.feed(&request).is_empty());
    asks_in_vain(&mut node);
    node.out.room = Some(TRAIN);
    let mut answered = bytes(&node.timer());
    assert!(answered > 0 && answered <= TRAIN);
    while answered < 2 * TRAIN {
        node.out.room = Some(TRAIN);
        node.now = node.qp.deadline().unwrap();
        let more = bytes(&node.timer());
        assert!(more > 0 && more <= TRAIN);
        answered += more;
    }
    assert_eq!(answered, 2 * TRAIN);
}

#[test]
fn acknowledges_pass_a_full_port() {
    let (mut node, region) = node();
    node.out.room = Some(0);
    let write = write(Only, 1000, 4).reth(region.iova, region.key, 4);
    assert!(node.feed(&write)[0].is_ack());
}
