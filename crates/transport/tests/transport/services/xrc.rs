//! Extended reliable connections: a sending half, a receiving half, and the queues that packets
//! name.

use crate::support::craft::packet;
use crate::support::{Faults, Node, PD, Packet, Pair, QUEUE_PD, Setup, XRCD, send_wr};
use std::time::Duration;
use transport::Error;
use transport::FaultedWork;
use transport::values::*;
use wire::Position::{First, Last, Only};
use wire::{NakCode, Operation, Position, Service};

const FIRST_PSN: u32 = 1000;
const FAR: Remote = Remote { addr: 0x7000, rkey: 0x1234 };
const QUEUE: u32 = 0x00ab_cdef;

fn half(kind: QpType) -> Node {
    let mut node = Node::new(kind, 11, None);
    node.connect(&Setup::new(kind));
    node
}

fn request(operation: Operation, position: Position, psn: u32, len: usize) -> Packet {
    let mut packet = packet(Service::Xrc, operation, position, psn).payload(len);
    packet.headers.xrc_srqn = Some(QUEUE);
    packet
}

fn request_for(wr_id: u64, sge: Sge) -> RecvWr {
    RecvWr { wr_id, scatter: [sge].into_iter().collect() }
}

#[test]
fn a_message_goes_to_the_queue_it_names() {
    let mut node = half(QpType::XrcRecv);
    let region = node.register_as(QUEUE_PD, 1024, Access::LOCAL_WRITE);
    let queue = node.xrc_queue(QUEUE, XRCD, QUEUE_PD);
    let other = node.xrc_queue(QUEUE + 1, XRCD, QUEUE_PD);
    for (queue, wr_id) in [(&queue, 5), (&other, 6)] {
        queue.requests.0.lock().unwrap().push_back(request_for(wr_id, region.sge(0, 512)));
    }
    node.feed(&request(Operation::Send, First, FIRST_PSN, 256));
    // What names the queue is the packet that begins the message.
    let mut last = request(Operation::Send, Last, FIRST_PSN + 1, 10);
    last.headers.xrc_srqn = Some(QUEUE + 1);
    let out = node.feed(&last);
    assert!(out[0].is_ack() && out[0].headers.bth.opcode.service == Service::Xrc);
    assert_eq!((out[0].headers.xrc_srqn, out[0].psn(), out[0].msn()), (None, FIRST_PSN + 1, 1));
    let told = queue.told.lock().unwrap();
    assert_eq!((told.len(), told[0].wr_id, told[0].byte_len), (1, 5, 266));
    assert_eq!((told[0].qp_num, told[0].status), (11, WcStatus::Success));
    assert!(other.told.lock().unwrap().is_empty() && node.told.received.is_empty());
    assert_eq!(region.get(0, 267), [vec![0xa5; 266], vec![0]].concat());
}

#[test]
fn a_message_waits_for_the_memory_of_its_request() {
    let mut node = half(QpType::XrcRecv);
    let region = node.register_as(QUEUE_PD, 1024, Access::LOCAL_WRITE);
    let queue = node.xrc_queue(QUEUE, XRCD, QUEUE_PD);
    queue.requests.0.lock().unwrap().push_back(request_for(5, region.sge(0, 512)));
    let sends = [(First, 256), (Last, 10)];
    for (page, (position, len)) in sends.into_iter().enumerate() {
        region.ram.absent.lock().unwrap().insert(page as u64);
        let packet = request(Operation::Send, position, FIRST_PSN + page as u32, len);
        for _ in 0..2 {
            let out = node.feed(&packet);
            assert!(matches!(out[0].headers.aeth.unwrap().syndrome, wire::Syndrome::RnrNak(12)));
        }
        let fault = node.told.faults.remove(0);
        assert_eq!((fault.work, fault.done), (FaultedWork::Receive(5), page as u32 * 256));
        assert!(node.told.faults.is_empty() && node.serve(&fault, true).is_empty());
        assert!(node.feed(&packet).iter().all(|packet| packet.is_ack()));
    }
    let told = queue.told.lock().unwrap();
    assert_eq!((told.len(), told[0].wr_id, told[0].byte_len), (1, 5, 266));
    assert_eq!(region.get(0, 267), [vec![0xa5; 266], vec![0]].concat());
}

#[test]
fn an_empty_queue_asks_the_peer_to_wait() {
    let mut node = half(QpType::XrcRecv);
    node.xrc_queue(QUEUE, XRCD, QUEUE_PD);
    let out = node.feed(&request(Operation::Send, Only, FIRST_PSN, 8));
    let syndrome = out[0].headers.aeth.unwrap().syndrome;
    assert!(matches!(syndrome, wire::Syndrome::RnrNak(12)));
}

#[test]
fn keys_are_judged_by_the_domain_of_the_queue() {
    let all = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
    for (pd, good) in [(QUEUE_PD, true), (PD, false)] {
        let mut node = half(QpType::XrcRecv);
        node.xrc_queue(QUEUE, XRCD, QUEUE_PD);
        let region = node.register_as(pd, 64, all);
        let write = request(Operation::Write, Only, FIRST_PSN, 8).reth(region.iova, region.key, 8);
        let out = node.feed(&write);
        assert_eq!(out[0].is_ack(), good);
        if good {
            let mut read = request(Operation::ReadRequest, Only, FIRST_PSN + 1, 0);
            read = read.reth(region.iova, region.key, 8);
            let out = node.feed(&read);
            assert_eq!((out.len(), out[0].operation()), (1, Operation::ReadResponse));
            assert_eq!(out[0].payload, [0xa5; 8]);
            // A repeated READ is judged by it as well.
            assert_eq!(node.feed(&read)[0].payload, [0xa5; 8]);
            // A repeated WRITE changes nothing.
            region.set(0, &[1; 8]);
            assert!(node.feed(&write)[0].is_ack());
            assert_eq!(region.get(0, 8), [1; 8]);
        } else {
            assert_eq!(out[0].nak(), Some(NakCode::RemoteAccess));
        }
    }
}

#[test]
fn a_queue_that_does_not_exist_is_an_invalid_request() {
    let mut node = half(QpType::XrcRecv);
    let out = node.feed(&request(Operation::Send, Only, FIRST_PSN, 8));
    assert_eq!(out[0].nak(), Some(NakCode::InvalidRequest));
    assert_eq!(
        (node.qp.state(), &node.told.events[..]),
        (QpState::Err, &[EventType::QpReqErr][..])
    );
}

#[test]
pub fn a_queue_of_another_domain_cannot_be_named() {
    let mut node = half(QpType::XrcRecv);
    let region = node.register_as(QUEUE_PD, 64, Access::LOCAL_WRITE);
    let queue = node.xrc_queue(QUEUE, XrcdId(XRCD.0 + 1), QUEUE_PD);
    queue.requests.0.lock().unwrap().push_back(request_for(5, region.sge(0, 64)));
    let out = node.feed(&request(Operation::Send, Only, FIRST_PSN, 8));
    assert_eq!(out[0].nak(), Some(NakCode::RemoteAccess));
    assert_eq!((node.qp.state(), queue.told.lock().unwrap().len()), (QpState::Err, 0));
}

#[test]
fn an_error_reports_the_request_in_use_at_its_queue_only() {
    let mut node = half(QpType::XrcRecv);
    let region = node.register_as(QUEUE_PD, 1024, Access::LOCAL_WRITE);
    let queue = node.xrc_queue(QUEUE, XRCD, QUEUE_PD);
    for wr_id in 0..3 {
        queue.requests.0.lock().unwrap().push_back(request_for(wr_id, region.sge(0, 512)));
    }
    node.feed(&request(Operation::Send, First, FIRST_PSN, 256));
    let error = QpAttr { qp_state: QpState::Err, ..node.qp.query() };
    node.modify(&error, AttrMask::STATE).unwrap();
    let told = queue.told.lock().unwrap();
    assert_eq!((told.len(), told[0].wr_id, told[0].status), (1, 0, WcStatus::WrFlushErr));
    assert_eq!(queue.requests.0.lock().unwrap().len(), 2, "the others stay for other QPs");
    // One byte too many for the request.
    let mut node = half(QpType::XrcRecv);
    let region = node.register_as(QUEUE_PD, 1024, Access::LOCAL_WRITE);
    let queue = node.xrc_queue(QUEUE, XRCD, QUEUE_PD);
    queue.requests.0.lock().unwrap().push_back(request_for(9, region.sge(0, 7)));
    let out = node.feed(&request(Operation::Send, Only, FIRST_PSN, 8));
    assert_eq!(out[0].nak(), Some(NakCode::InvalidRequest));
    assert_eq!(queue.told.lock().unwrap()[0].status, WcStatus::LocLenErr);
}

#[test]
fn each_half_does_its_part_only() {
    let mut sender = half(QpType::XrcSend);
    let region = sender.register(64);
    sender.xrc_queue(QUEUE, XRCD, QUEUE_PD);
    assert!(sender.feed(&request(Operation::Send, Only, FIRST_PSN, 8)).is_empty());
    let mut wr = send_wr(1, SendOp::Send, &[region.sge(0, 8)]);
    wr.xrc_srqn = QUEUE;
    sender.post_send(wr);
    let out = sender.emitted();
    let opcode = out[0].headers.bth.opcode;
    assert_eq!((opcode.service, opcode.to_byte()), (Service::Xrc, 0xa4));
    assert_eq!(out[0].headers.xrc_srqn, Some(QUEUE));
    let receive = RecvWr { wr_id: 1, scatter: SgList::new() };
    assert!(matches!(sender.qp.post_recv(receive.clone()), Err(Error::Invalid(_))));
    let mut receiver = half(QpType::XrcRecv);
    assert!(matches!(receiver.qp.post_recv(receive), Err(Error::Invalid(_))));
    let refused = receiver.qp.post_send(send_wr(1, SendOp::Write(FAR), &[region.sge(0, 8)]));
    assert!(matches!(refused, Err(Error::Invalid(_))));
    // A packet of another service is not for either.
    let mut rc = request(Operation::Send, Only, FIRST_PSN, 8);
    rc.headers.bth.opcode.service = Service::Rc;
    receiver.xrc_queue(QUEUE, XRCD, QUEUE_PD);
    assert!(receiver.feed(&rc).is_empty());
}

/// Every operation, to two queues in turn, over networks that lose and repeat: each message arrives
/// once, in order, where it shall.
#[test]
fn every_operation_over_a_bad_network() {
    for seed in 0..6 {
        let faults = Faults { loss: 12, duplicate: 12, reorder: 0, ..Faults::NONE };
        let setup = Setup { timeout: 8, ..Setup::new(QpType::Rc) };
        let kinds = [QpType::XrcSend, QpType::XrcRecv];
        let mut pair = Pair::of(kinds, &setup, 64 << 10, seed, faults);
        let source = pair.nodes[0].register(4096);
        let all = Access::LOCAL_WRITE
            | Access::REMOTE_WRITE
            | Access::REMOTE_READ
            | Access::REMOTE_ATOMIC;
        let far = pair.nodes[1].register_as(QUEUE_PD, 1 << 16, all);
        let queues = [QUEUE, QUEUE + 1].map(|n| pair.nodes[1].xrc_queue(n, XRCD, QUEUE_PD));
        let bytes = pair.rng.bytes(4096);
        source.set(0, &bytes);
        far.set(0, &[0; 8]);
        for round in 0..60u64 {
            let which = (round % 2) as usize;
            let len = pair.rng.range(1, 2000) as u32;
            let at = 1024 * (round + 1);
            let op = match round % 6 {
                0 | 1 => SendOp::SendImm(round as u32),
                2 => SendOp::Write(far.remote(at)),
                3 => SendOp::WriteImm(far.remote(at), round as u32),
                4 => SendOp::FetchAdd { remote: far.remote(0), add: 1 },
                _ => SendOp::Read(far.remote(1024)),
            };
            if matches!(op, SendOp::SendImm(_) | SendOp::WriteImm(..)) {
                let into = request_for(round, far.sge(at, 2048));
                queues[which].requests.0.lock().unwrap().push_back(into);
            }
            let len = if matches!(op, SendOp::FetchAdd { .. }) { 8 } else { len.min(1000) };
            let mut wr = send_wr(round, op, &[source.sge(2048, len)]);
            wr.xrc_srqn = QUEUE + which as u32;
            pair.nodes[0].post_send(wr);
        }
        pair.run_until(Duration::from_secs(60), |pair| pair.nodes[0].told.sent.len() == 60);
        let sent: Vec<_> = pair.nodes[0].told.sent.iter().map(|c| (c.wr_id, c.status)).collect();
        assert_eq!(sent, (0..60).map(|id| (id, WcStatus::Success)).collect::<Vec<_>>());
        assert_eq!(far.word(0), 10, "each fetch-and-add once");
        for (which, queue) in queues.iter().enumerate() {
            let told = queue.told.lock().unwrap();
            let wanted: Vec<u32> = (0..60u32)
                .filter(|round| round % 2 == which as u32 && matches!(round % 6, 0 | 1 | 3))
                .collect();
            assert_eq!(told.iter().map(|c| c.imm_or_key).collect::<Vec<_>>(), wanted);
            assert!(told.iter().all(|c| c.status == WcStatus::Success));
        }
    }
}
