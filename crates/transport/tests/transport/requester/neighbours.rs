//! Requests to a neighbour, whose memory is reached without packets.

use super::*;
use crate::support::Neighbour;
use transport::{Budget, Share};

const PART: usize = 512 << 10;

fn beside_a_neighbour() -> (Node, Region) {
    let (mut node, _) = requester();
    node.out.neighbour = Some(Neighbour::default());
    let region = node.register(2 << 20);
    (node, region)
}

fn moved(node: &Node) -> &[(bool, u64, usize)] {
    node.out.neighbour.as_ref().map_or(&[], |neighbour| &neighbour.moved)
}

#[test]
fn a_write_and_a_read_take_no_packet() {
    let (mut node, region) = beside_a_neighbour();
    node.post_send(send_wr(1, SendOp::Write(FAR), &[region.sge(0, 104)]));
    node.post_send(send_wr(2, SendOp::Read(FAR), &[region.sge(0, 8)]));
    assert_eq!(moved(&node), [(true, 0, 104), (false, 0, 8)]);
    assert_eq!(ids(&node), [(1, WcStatus::Success), (2, WcStatus::Success)]);
    assert!(node.emitted().is_empty() && node.qp.deadline().is_none());
    assert_eq!(node.counted(Counter::DirectRequests), 2);
    assert_eq!((node.counted(Counter::SentBytes), node.counted(Counter::RcvdBytes)), (104, 8));
    // The next packet has the PSN that it would have had.
    node.post_send(send_wr(3, SendOp::Send, &[region.sge(0, 8)]));
    assert_eq!(psns(&node.emitted()), [FIRST_PSN]);
}

#[test]
fn bytes_that_a_request_brings_along_go_too() {
    let (mut node, _) = beside_a_neighbour();
    let mut wr = send_wr(1, SendOp::Write(FAR), &[]);
    wr.payload = Payload::Inline(vec![7; 304].into());
    node.post_send(wr);
    assert_eq!(node.out.neighbour.as_ref().map(|n| n.bytes.clone()), Some(vec![7; 304]));
    assert_eq!(ids(&node), [(1, WcStatus::Success)]);
}

#[test]
fn whatever_else_goes_by_packets() {
    let (mut node, region) = beside_a_neighbour();
    let sges = [region.sge(0, 8)];
    let ops = [
        SendOp::WriteImm(FAR, 5),
        SendOp::Send,
        SendOp::FetchAdd { remote: FAR, add: 1 },
        SendOp::Write(FAR),
    ];
    for (id, op) in ops.into_iter().enumerate() {
        let sges = if id == 3 { &sges[..0] } else { &sges[..] };
        node.post_send(send_wr(id as u64, op, sges));
    }
    assert_eq!(node.emitted().len(), 4);
    assert!(moved(&node).is_empty(), "an empty WRITE too, which names no memory");
}

#[test]
fn a_long_request_goes_in_parts_as_the_budget_allows() {
    let (mut node, region) = beside_a_neighbour();
    node.budget = Budget::of(Share::new(512, 600 << 10));
    node.post_send(send_wr(1, SendOp::Write(FAR), &[region.sge(0, 2 << 20)]));
    assert_eq!(moved(&node), [(true, 0, PART), (true, PART as u64, PART)]);
    assert!(ids(&node).is_empty());
    assert!(node.qp.deadline().is_some_and(|deadline| deadline <= node.now), "the rest is due");
    assert!(node.timer().is_empty());
    node.with(|qp, cx| qp.transmit(cx));
    assert_eq!(moved(&node).len(), 4);
    assert_eq!(ids(&node), [(1, WcStatus::Success)]);
    assert_eq!(node.counted(Counter::SentBytes), 2 << 20);
    // The last part has spent the budget, and nothing is left.
    assert_eq!(node.qp.deadline(), None);
}

#[test]
fn behind_a_send_a_short_one_takes_packets_and_a_long_one_waits() {
    let (mut node, region) = beside_a_neighbour();
    node.post_send(send_wr(1, SendOp::Send, &[region.sge(0, 8)]));
    node.post_send(send_wr(2, SendOp::Write(FAR), &[region.sge(0, 8)]));
    node.post_send(send_wr(3, SendOp::Write(FAR), &[region.sge(0, 70000)]));
    node.post_send(send_wr(4, SendOp::Send, &[region.sge(0, 8)]));
    assert_eq!(psns(&node.emitted()), [5000, 5001]);
    assert!(moved(&node).is_empty());
    assert!(node.feed(&ack(5000)).is_empty());
    assert!(moved(&node).is_empty());
    let out = node.feed(&ack(5001));
    assert_eq!(moved(&node), [(true, 0, 70000)]);
    assert_eq!(psns(&out), [5002], "what follows it leaves then");
    node.feed(&ack(5002));
    let all = [1, 2, 3, 4].map(|id| (id, WcStatus::Success));
    assert_eq!(ids(&node), all);
}

#[test]
fn what_is_not_granted_takes_packets_from_its_start() {
    let (mut node, region) = beside_a_neighbour();
    node.out.neighbour = Some(Neighbour { grants: Some(1), ..Neighbour::default() });
    node.post_send(send_wr(1, SendOp::Write(FAR), &[region.sge(0, 600 << 10)]));
    assert_eq!(moved(&node).len(), 1);
    let out = node.emitted();
    assert_eq!(out[0].headers.reth.map(|reth| (reth.va, reth.len)), Some((0x7000, 600 << 10)));
    assert_eq!(node.counted(Counter::DirectRequests), 0);
    node.feed(&nak(5000, NakCode::RemoteAccess));
    assert_eq!(ids(&node), [(1, WcStatus::RemAccessErr)]);
}

#[test]
fn after_a_refusal_the_next_do_not_wait() {
    let (mut node, region) = beside_a_neighbour();
    node.out.neighbour = Some(Neighbour { grants: Some(0), ..Neighbour::default() });
    for id in 0..2 {
        node.post_send(send_wr(id, SendOp::Write(FAR), &[region.sge(0, 70000)]));
    }
    let first = |packet: &Packet| packet.headers.reth.is_some();
    assert_eq!(node.emitted().iter().filter(|packet| first(packet)).count(), 2);
}

/// The kernel copies a short one, or the ends of an unaligned one, byte by byte: whoever moves it
/// looks at each, and what is too long for that goes by packets.
#[test]
fn what_is_no_whole_word_is_looked_at_or_goes_by_packets() {
    let (mut node, region) = beside_a_neighbour();
    let odd = Remote { addr: FAR.addr + 4, ..FAR };
    let some = [(FAR, 4), (odd, 8), (FAR, 100), (odd, 512), (FAR, 513), (odd, 4096), (odd, 4097)];
    for (id, (remote, length)) in some.into_iter().enumerate() {
        node.post_send(send_wr(id as u64, SendOp::Write(remote), &[region.sge(0, length)]));
        let went = moved(&node).last().is_some_and(|(_, _, len)| *len == length as usize);
        assert_eq!(went, length <= 512 || length > 4096, "{length}");
        if !went {
            let last = node.emitted().last().map(Packet::psn);
            node.feed(&ack(last.unwrap()));
        }
    }
    assert_eq!(ids(&node).len(), some.len());
}

/// A look at the peer's memory costs a call to the system.
#[test]
fn who_is_refused_again_and_again_tries_more_seldom() {
    let (mut node, region) = beside_a_neighbour();
    let mut tries = Vec::new();
    for id in 0..40 {
        node.out.neighbour = Some(Neighbour { grants: Some(0), ..Neighbour::default() });
        node.post_send(send_wr(id, SendOp::Write(FAR), &[region.sge(0, 4)]));
        let asked = node.out.neighbour.as_ref().map(|neighbour| neighbour.asked);
        tries.extend((asked == Some(1)).then_some(id));
        node.feed(&ack(FIRST_PSN + id as u32));
    }
    assert_eq!(tries, [0, 1, 4, 11, 26]);
    assert_eq!(ids(&node).len(), 40);
}

/// A call for each costs more than a train for many.
#[test]
fn short_ones_in_company_share_a_train() {
    let (mut node, region) = beside_a_neighbour();
    for id in 0..8 {
        node.qp.post_send(send_wr(id, SendOp::Write(FAR), &[region.sge(0, 8)])).unwrap();
    }
    node.with(|qp, cx| qp.transmit(cx));
    assert_eq!((moved(&node).len(), node.emitted().len()), (0, 8));
}

#[test]
fn local_errors_stay_what_they_are() {
    let mut node = requester_with(|setup| setup.max_rd_atomic = 0);
    node.out.neighbour = Some(Neighbour::default());
    let region = node.register(64);
    node.post_send(send_wr(1, SendOp::Read(FAR), &[region.sge(0, 8)]));
    assert_eq!(ids(&node), [(1, WcStatus::LocQpOpErr)]);
    let (mut node, region) = beside_a_neighbour();
    node.post_send(send_wr(1, SendOp::Write(FAR), &[region.sge(2 << 20, 8)]));
    assert_eq!(ids(&node), [(1, WcStatus::LocProtErr)]);
    assert!(moved(&node).is_empty());
}

#[test]
fn a_part_done_request_ends_before_the_queue_is_drained() {
    let (mut node, region) = beside_a_neighbour();
    node.budget = Budget::of(Share::new(512, 1));
    node.post_send(send_wr(1, SendOp::Write(FAR), &[region.sge(0, 2 << 20)]));
    node.post_send(send_wr(2, SendOp::Write(FAR), &[region.sge(0, 8)]));
    let attr = QpAttr { qp_state: QpState::Sqd, en_sqd_async_notify: true, ..node.qp.query() };
    let mask = AttrMask::STATE | AttrMask::EN_SQD_ASYNC_NOTIFY;
    node.modify(&attr, mask).unwrap();
    assert!(!node.told.events.contains(&EventType::SqDrained));
    while node.qp.deadline().is_some_and(|deadline| deadline <= node.now) {
        node.timer();
        node.with(|qp, cx| qp.transmit(cx));
    }
    assert!(node.told.events.contains(&EventType::SqDrained));
    assert_eq!(ids(&node), [(1, WcStatus::Success)], "what had not begun waits");
}

#[test]
fn an_error_flushes_a_part_done_request() {
    let (mut node, region) = beside_a_neighbour();
    node.budget = Budget::of(Share::new(512, 600 << 10));
    node.post_send(send_wr(1, SendOp::Write(FAR), &[region.sge(0, 2 << 20)]));
    let attr = QpAttr { qp_state: QpState::Err, ..node.qp.query() };
    node.modify(&attr, AttrMask::STATE).unwrap();
    assert_eq!(ids(&node), [(1, WcStatus::WrFlushErr)]);
    assert_eq!(moved(&node).len(), 2);
}
