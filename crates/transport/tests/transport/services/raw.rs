//! Raw packets: a request is a frame, a frame is a receive request.

use crate::support::{Node, Region, Setup, send_wr};
use transport::Counter;
use transport::Error;
use transport::values::*;

fn node() -> Node {
    let mut node = Node::new(QpType::RawPacket, 11, None);
    node.connect(&Setup::new(QpType::RawPacket));
    node
}

fn feed(node: &mut Node, frame: &[u8]) {
    node.with(|qp, cx| qp.receive_frame(frame, cx));
}

fn receives(node: &mut Node, count: u64, len: u32) -> Region {
    let region = node.register(u64::from(len) * count);
    for id in 0..count {
        node.post_recv(id, &[region.sge(id * u64::from(len), len)]);
    }
    region
}

#[test]
fn a_request_goes_out_as_it_is_and_completes() {
    let mut node = node();
    let region = node.register(9000);
    let bytes: Vec<u8> = (0..9000u32).map(|at| at as u8).collect();
    region.set(0, &bytes);
    node.post_send(send_wr(1, SendOp::Send, &[region.sge(0, 10), region.sge(10, 8990)]));
    let mut inline = send_wr(2, SendOp::Send, &[]);
    inline.payload = Payload::Inline(bytes[..14].into());
    node.post_send(inline);
    assert_eq!(node.out.frames, [bytes.clone(), bytes[..14].to_vec()]);
    assert!(node.out.packets.is_empty(), "no packets of RoCE");
    let done: Vec<_> = node.told.sent.iter().map(|d| (d.wr_id, d.status, d.byte_len)).collect();
    assert_eq!(done, [(1, WcStatus::Success, 9000), (2, WcStatus::Success, 14)]);
    assert_eq!(node.counted(Counter::SentPackets), 2);
    assert_eq!(node.counted(Counter::SentBytes), 9014);
}

#[test]
fn a_rate_limit_is_not_supported() {
    let mut raw = node();
    let attr = QpAttr { rate_limit: 5000, ..raw.qp.query() };
    let limited = AttrMask::STATE | AttrMask::RATE_LIMIT;
    assert!(matches!(raw.modify(&attr, limited), Err(Error::NotSupported(_))));
    assert_eq!(raw.qp.query().rate_limit, 0);
    let mut connected = Node::new(QpType::Rc, 11, None);
    connected.connect(&Setup::new(QpType::Rc));
    assert!(matches!(connected.modify(&attr, limited), Err(Error::Invalid(_))));
}

#[test]
fn only_whole_frames_are_sent() {
    let mut node = node();
    let region = node.register(1 << 20);
    for wrong in [
        send_wr(1, SendOp::Send, &[region.sge(0, 13)]),
        send_wr(1, SendOp::Send, &[]),
        send_wr(1, SendOp::Send, &[region.sge(0, (1 << 16) + 1)]),
        send_wr(1, SendOp::SendImm(1), &[region.sge(0, 64)]),
        send_wr(1, SendOp::Write(region.remote(0)), &[region.sge(0, 64)]),
    ] {
        assert!(matches!(node.qp.post_send(wrong), Err(Error::Invalid(_))));
    }
    node.post_send(send_wr(1, SendOp::Send, &[region.sge(0, 1 << 16)]));
    assert_eq!(node.out.frames[0].len(), 1 << 16);
}

#[test]
fn a_frame_fills_a_receive_request_from_its_start() {
    let mut node = node();
    let region = receives(&mut node, 2, 256);
    feed(&mut node, &[7; 60]);
    feed(&mut node, &[8; 256]);
    let done: Vec<_> = node.told.received.iter().map(|d| (d.wr_id, d.byte_len)).collect();
    assert_eq!(done, [(0, 60), (1, 256)]);
    assert!(node.told.received.iter().all(|done| done.flags.is_empty() && done.qp_num == 11));
    assert_eq!(region.get(0, 61), [vec![7; 60], vec![0]].concat());
    feed(&mut node, &[9; 60]);
    assert_eq!(node.counted(Counter::OutOfBuffer), 1);
}

#[test]
fn a_frame_too_long_is_dropped_and_costs_no_request() {
    let mut node = node();
    receives(&mut node, 1, 64);
    feed(&mut node, &[1; 65]);
    assert_eq!(node.counted(Counter::RespLocalLengthError), 1);
    feed(&mut node, &[1; 64]);
    assert_eq!(node.told.received[0].byte_len, 64);
}

#[test]
fn memory_that_cannot_be_written_ends_the_queue_pair() {
    let mut node = node();
    node.post_recv(3, &[Sge { addr: 0, length: 64, lkey: 0 }]);
    node.post_recv(4, &[]);
    feed(&mut node, &[1; 64]);
    let done: Vec<_> = node.told.received.iter().map(|d| (d.wr_id, d.status)).collect();
    assert_eq!(done, [(3, WcStatus::LocProtErr), (4, WcStatus::WrFlushErr)]);
    assert_eq!(node.qp.state(), QpState::Err);
    feed(&mut node, &[1; 64]);
    assert_eq!(node.counted(Counter::RxDropped), 1);
}

#[test]
fn frames_come_from_ready_to_receive_on_and_to_raw_packets_only() {
    let mut early = Node::new(QpType::RawPacket, 11, None);
    feed(&mut early, &[1; 64]);
    assert_eq!(early.counted(Counter::RxDropped), 1);
    let mut datagrams = Node::new(QpType::Ud, 11, None);
    datagrams.connect(&Setup::new(QpType::Ud));
    receives(&mut datagrams, 1, 256);
    feed(&mut datagrams, &[1; 64]);
    assert!(datagrams.told.received.is_empty());
    assert_eq!(datagrams.counted(Counter::RxDropped), 1);
}
