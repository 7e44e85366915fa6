//! What the state of the queue pair has to do with what arrives, and the events that are raised.

use super::*;

#[test]
fn the_first_packet_in_rtr_establishes_communication() {
    let mut node = responder_with(|setup| setup.stop_at_rtr = true);
    receives(&mut node, 2);
    assert!(node.feed(&send(Only, FIRST_PSN, 8))[0].is_ack());
    node.feed(&send(Only, FIRST_PSN + 1, 8));
    assert_eq!(node.told.events, [EventType::CommEst]);
    assert_eq!(node.told.received.len(), 2);
}

#[test]
fn the_last_receive_of_a_shared_queue_is_told() {
    let shared = Arc::new(Loose::default());
    let mut node = Node::new(QpType::Rc, 11, Some(SharedQueue::Plain(shared.clone())));
    node.connect(&Setup::new(QpType::Rc));
    let region = node.register(1024);
    for wr_id in [5, 6] {
        let scatter = [region.sge(0, 512)].into_iter().collect();
        shared.0.lock().unwrap().push_back(RecvWr { wr_id, scatter });
    }
    node.feed(&send(First, FIRST_PSN, 256));
    let out = node.feed(&send(First, FIRST_PSN + 1, 256));
    assert_eq!(out.last().unwrap().nak(), Some(NakCode::InvalidRequest));
    assert_eq!(node.told.events, [EventType::QpReqErr, EventType::QpLastWqeReached]);
    // The QP flushes what it had taken; the other request stays for other QPs.
    let told: Vec<_> = node.told.received.iter().map(|done| (done.wr_id, done.status)).collect();
    assert_eq!(told, [(5, WcStatus::WrFlushErr)]);
    assert_eq!(shared.0.lock().unwrap().len(), 1);
}

#[test]
fn the_last_receive_of_an_idle_queue_pair_is_told_once() {
    for srq in [Some(SharedQueue::Plain(Arc::new(Loose::default()))), None] {
        let shared = srq.is_some();
        let mut node = Node::new(QpType::Rc, 11, srq);
        node.connect(&Setup::new(QpType::Rc));
        for _ in 0..2 {
            let error = QpAttr { qp_state: QpState::Err, ..node.qp.query() };
            node.modify(&error, AttrMask::STATE).unwrap();
            node.end_of_batch();
            let told = if shared { vec![EventType::QpLastWqeReached] } else { vec![] };
            assert_eq!(node.told.events, told);
        }
        // A new life has a new end.
        let reset = QpAttr { qp_state: QpState::Reset, ..node.qp.query() };
        node.modify(&reset, AttrMask::STATE).unwrap();
        node.connect(&Setup::new(QpType::Rc));
        let error = QpAttr { qp_state: QpState::Err, ..node.qp.query() };
        node.modify(&error, AttrMask::STATE).unwrap();
        assert_eq!(node.told.events.len(), if shared { 2 } else { 0 });
    }
}

#[test]
fn the_end_of_a_connection_is_told_once() {
    let mut node = Node::new(QpType::Rc, 11, Some(SharedQueue::Plain(Arc::new(Loose::default()))));
    node.connect(&Setup::new(QpType::Rc));
    let region = node.register(32 << 10);
    // A long READ is granted, the next request is refused, and then the READ's memory fails.
    node.receive(&read(FIRST_PSN, region.iova, region.key, 32 << 10));
    node.receive(&write(Only, FIRST_PSN + 128, 8).reth(region.iova, region.key ^ 0xff00, 8));
    region.ram.broken.store(true, Relaxed);
    node.end_of_batch();
    let out = node.emitted();
    assert_eq!((out.len(), out[0].psn()), (1, FIRST_PSN));
    assert_eq!(out[0].nak(), Some(NakCode::RemoteOperational));
    assert_eq!(node.told.events, [EventType::QpAccessErr, EventType::QpLastWqeReached]);
}

#[test]
fn what_can_report_nothing_ends_with_an_event() {
    let mut node = responder();
    receives(&mut node, 2);
    node.receive(&send(Only, FIRST_PSN, 8));
    for _ in 0..2 {
        node.with(|qp, cx| qp.fail(cx));
    }
    node.end_of_batch();
    assert!(node.emitted().is_empty(), "what was not reported is not acknowledged");
    assert_eq!((node.qp.state(), &node.told.events[..]), (QpState::Err, &[EventType::QpFatal][..]));
    assert_eq!(node.told.received[1].status, WcStatus::WrFlushErr);
    let mut idle = Node::new(QpType::Rc, 11, None);
    idle.with(|qp, cx| qp.fail(cx));
    assert_eq!((idle.qp.state(), idle.told.events.len()), (QpState::Reset, 0));
}

#[test]
pub fn packets_of_another_partition_or_service_are_dropped() {
    let mut foreign = send(Only, FIRST_PSN, 8);
    foreign.headers.bth.pkey = 0x8001;
    let mut none = send(Only, FIRST_PSN, 8);
    none.headers.bth.pkey = 0x8000;
    let unreliable = packet(Service::Uc, Operation::Send, Only, FIRST_PSN).payload(8);
    let datagram = packet(Service::Ud, Operation::Send, Only, FIRST_PSN).payload(8);
    let xrc = packet(Service::Xrc, Operation::Send, Only, FIRST_PSN).payload(8);
    let mut node = responder();
    receives(&mut node, 8);
    for (count, packet) in [foreign, none, unreliable, datagram, xrc].iter().enumerate() {
        assert!(node.feed(packet).is_empty());
        assert_eq!(node.counted(Counter::RxDropped), count as u64 + 1);
    }
    assert!(node.told.received.is_empty());
    // A limited member may talk to a full one.
    let mut limited = send(Only, FIRST_PSN, 8);
    limited.headers.bth.pkey = 0x7fff;
    assert!(node.feed(&limited)[0].is_ack());
}

#[test]
fn packets_in_a_deaf_state_are_dropped() {
    let mut node = Node::new(QpType::Rc, 11, None);
    assert!(node.feed(&send(Only, 0, 8)).is_empty());
    let mut node = responder();
    receives(&mut node, 1);
    let attr = QpAttr { qp_state: QpState::Err, ..node.qp.query() };
    node.modify(&attr, AttrMask::STATE).unwrap();
    assert!(node.feed(&send(Only, FIRST_PSN, 8)).is_empty());
    assert_eq!(node.counted(Counter::RxDropped), 1);
}

#[test]
fn a_draining_qp_still_receives() {
    let mut node = responder();
    receives(&mut node, 1);
    let attr = QpAttr { qp_state: QpState::Sqd, ..node.qp.query() };
    node.modify(&attr, AttrMask::STATE).unwrap();
    assert!(node.feed(&send(Only, FIRST_PSN, 8))[0].is_ack());
}

#[test]
fn answers_to_nothing_are_ignored() {
    let mut node = responder();
    for packet in [
        ack(4999),
        ack(5000),
        nak(5000, NakCode::RemoteAccess),
        read_response(Only, 5000, vec![0; 4]),
        acknowledge(5000, Syndrome::RnrNak(3)),
    ] {
        assert!(node.feed(&packet).is_empty());
    }
    assert_eq!(node.qp.state(), QpState::Rts);
    assert!(node.told.sent.is_empty() && node.told.events.is_empty());
}
