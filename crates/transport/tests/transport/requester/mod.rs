//! The requester of a reliable connection against hand-made answers, rule by rule. Path MTU 256,
//! first PSN 5000.

pub mod answers;
mod neighbours;
mod pauses;
pub mod requests;
mod timers;

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
