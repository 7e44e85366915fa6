//! The responder of a reliable connection against hand-made packets, rule by rule. Path MTU 256,
//! first PSN 1000.

pub mod access;
mod in_transit;
pub mod messages;
pub mod placement;
pub mod receives;
pub mod repetitions;
mod replies;
mod rights;
pub mod states;

use crate::support::craft::*;
use crate::support::{Loose, Node, PD, Packet, Region, Setup, send_wr};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use transport::values::*;
use transport::{Counter, SharedQueue};
use wire::Position::{First, Last, Middle, Only};
use wire::{NakCode, Operation, Service, Syndrome};

const FIRST_PSN: u32 = 1000;

fn responder_with(change: impl FnOnce(&mut Setup)) -> Node {
    let mut setup = Setup::new(QpType::Rc);
    change(&mut setup);
    let mut node = Node::new(QpType::Rc, 11, None);
    node.connect(&setup);
    node
}

fn responder() -> Node {
    responder_with(|_| ())
}

/// One message of 1 KiB of receive memory behind `count` receive requests.
fn receives(node: &mut Node, count: u64) -> Region {
    let region = node.register(1024 * count.max(1));
    for id in 0..count {
        node.post_recv(id, &[region.sge(1024 * id, 1024)]);
    }
    region
}

/// The connection must have ended with this NAK and event; nothing was done.
#[track_caller]
fn assert_fatal(node: &Node, out: &[Packet], psn: u32, code: NakCode, event: Option<EventType>) {
    let last = out.last().expect("a NAK");
    assert_eq!((last.nak(), last.psn()), (Some(code), psn));
    assert_eq!(node.qp.state(), QpState::Err);
    assert_eq!(node.told.events, Vec::from_iter(event));
}

#[track_caller]
fn assert_invalid(node: &Node, out: &[Packet], psn: u32) {
    assert_fatal(node, out, psn, NakCode::InvalidRequest, Some(EventType::QpReqErr));
}

#[track_caller]
fn assert_no_access(node: &Node, out: &[Packet], psn: u32) {
    assert_fatal(node, out, psn, NakCode::RemoteAccess, Some(EventType::QpAccessErr));
}
