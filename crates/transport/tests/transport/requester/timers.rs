//! Retry counts and timers, as the QP's attributes say.

use super::requester_with;
use crate::support::craft::acknowledge;
use crate::support::{Node, Setup, send_wr};
use std::time::Duration;
use transport::Counter;
use transport::requests::timing::{ack_wait, rnr_wait};
use transport::values::*;
use wire::{Psn, Syndrome};

fn node(change: impl FnOnce(&mut Setup)) -> Node {
    let mut setup = Setup::new(QpType::Rc);
    change(&mut setup);
    let mut node = Node::new(QpType::Rc, 11, None);
    node.connect(&setup);
    let region = node.register(4096);
    node.post_send(send_wr(1, SendOp::Send, &[region.sge(0, 2048)]));
    node.post_send(send_wr(2, SendOp::Send, &[region.sge(0, 8)]));
    node
}

/// Lets time pass without an answer until the QP gives up; how long that took.
fn give_up(node: &mut Node, limit: Duration) -> Option<Duration> {
    let start = node.now;
    while node.told.sent.is_empty() {
        node.now = node.qp.deadline()?;
        if node.now - start > limit {
            return None;
        }
        node.timer();
    }
    Some(node.now - start)
}

#[test]
fn a_silent_peer_costs_each_retry_one_wait() {
    for (timeout, retry_cnt) in [(14, 7), (14, 0), (10, 3), (18, 1), (1, 5)] {
        let mut node = node(|setup| (setup.timeout, setup.retry_cnt) = (timeout, retry_cnt));
        let took = give_up(&mut node, Duration::from_secs(100)).unwrap();
        let waits = (0..=u32::from(retry_cnt)).map(|in_a_row| ack_wait(timeout, in_a_row).unwrap());
        assert_eq!(took, waits.sum::<Duration>(), "timeout {timeout} retries {retry_cnt}");
        let told: Vec<_> = node.told.sent.iter().map(|done| (done.wr_id, done.status)).collect();
        assert_eq!(told, [(1, WcStatus::RetryExcErr), (2, WcStatus::WrFlushErr)]);
        assert_eq!(node.qp.state(), QpState::Err);
        assert_eq!(node.counted(Counter::LocalAckTimeoutErr), u64::from(retry_cnt) + 1);
        assert_eq!(node.counted(Counter::RetryExceededErr), 1);
        assert_eq!(node.qp.deadline(), None);
    }
}

#[test]
fn probes_are_few_within_a_timeout_and_cost_no_retry() {
    let mut node = node(|setup| (setup.timeout, setup.retry_cnt) = (20, 0));
    node.emitted();
    give_up(&mut node, Duration::from_secs(100)).unwrap();
    let packets = node.counted(Counter::Retransmits);
    assert!((2..=6).contains(&packets), "{packets} probes in 4.3 s");
}

#[test]
fn a_long_round_trip_is_probed_for_until_it_is_known() {
    let mut node = requester_with(|setup| setup.timeout = 20);
    let region = node.register(4096);
    let round_trip = Duration::from_millis(30);
    let mut probes = Vec::new();
    for request in 0..20 {
        let before = node.counted(Counter::Retransmits);
        node.post_send(send_wr(request, SendOp::Send, &[region.sge(0, 8)]));
        let arrives = node.now + round_trip;
        while let Some(due) = node.qp.deadline().filter(|due| *due < arrives) {
            node.now = due;
            node.timer();
        }
        node.now = arrives;
        node.feed(&acknowledge(5000 + request as u32, Syndrome::Ack(31)));
        probes.push(node.counted(Counter::Retransmits) - before);
    }
    assert_eq!(node.told.sent.len(), 20);
    assert!(probes[0] > 0, "a packet may be lost");
    assert_eq!(probes[10..].iter().sum::<u64>(), 0, "{probes:?}");
}

#[test]
fn without_a_timeout_the_qp_never_gives_up() {
    let mut node = node(|setup| (setup.timeout, setup.retry_cnt) = (0, 0));
    assert_eq!(give_up(&mut node, Duration::from_secs(3600)), None);
    assert!(node.qp.deadline().is_some(), "it still probes");
    assert_eq!(node.qp.state(), QpState::Rts);
}

#[test]
fn progress_gives_the_retries_back() {
    let mut node = node(|setup| (setup.timeout, setup.retry_cnt) = (14, 2));
    let start = node.now;
    let two = ack_wait(14, 0).unwrap() + ack_wait(14, 1).unwrap();
    for step in 0..8 {
        while node.counted(Counter::LocalAckTimeoutErr) < 2 * (step + 1) {
            node.now = node.qp.deadline().unwrap();
            node.timer();
        }
        node.feed(&acknowledge(5000 + step as u32, Syndrome::Ack(31)));
        assert_eq!(node.qp.state(), QpState::Rts);
    }
    assert_eq!(node.now - start, two * 8, "progress makes the waits short again");
    assert_eq!(node.told.sent[0].status, WcStatus::Success);
}

#[test]
fn a_peer_never_ready_costs_each_retry_one_wait() {
    for (code, rnr_retry) in [(12, 6), (1, 0), (31, 2), (0, 1)] {
        let mut node = node(|setup| setup.rnr_retry = rnr_retry);
        let start = node.now;
        let psn = node.emitted()[0].headers.bth.psn;
        assert_eq!(psn, Psn::new(5000));
        let mut waits = 0;
        loop {
            node.feed(&acknowledge(5000, Syndrome::RnrNak(code)));
            if !node.told.sent.is_empty() {
                break;
            }
            waits += 1;
            let until = node.qp.deadline().unwrap();
            assert_eq!(until, node.now + rnr_wait(code));
            node.now = until;
            assert_eq!(node.timer()[0].psn(), 5000);
        }
        assert_eq!(waits, u32::from(rnr_retry));
        assert_eq!(node.now - start, rnr_wait(code) * waits);
        assert_eq!(node.told.sent[0].status, WcStatus::RnrRetryExcErr);
        assert_eq!(node.told.sent[1].status, WcStatus::WrFlushErr);
        assert_eq!(node.counted(Counter::RnrNakRetryErr), 1);
    }
}

#[test]
fn seven_rnr_retries_are_for_ever() {
    let mut node = node(|setup| (setup.rnr_retry, setup.retry_cnt) = (7, 0));
    for _ in 0..1000 {
        node.feed(&acknowledge(5000, Syndrome::RnrNak(1)));
        node.now = node.qp.deadline().unwrap();
        node.timer();
    }
    assert!(node.told.sent.is_empty());
    assert_eq!(node.qp.state(), QpState::Rts);
}
