//! Memory whose pages somebody brings in, or says that he never will.

use super::*;

#[test]
fn a_peers_requests_wait() {
    let (mut node, region) = node();
    node.post_recv(1, &[region.sge(0, 16), region.sge(3 * PAGE, 512)]);
    let [first, last] = write_packets(&region);
    let Remote { addr, rkey } = region.remote(0);
    let requests = [
        (first, 0, FaultedWork::Remote(region.remote(0), 300), 0),
        (last, 1, FaultedWork::Remote(region.remote(0), 300), 256),
        (send(First, FIRST_PSN + 2, PACKET), 3, FaultedWork::Receive(1), 0),
        (send(Last, FIRST_PSN + 3, 30), 4, FaultedWork::Receive(1), 256),
        (
            fetch_add(FIRST_PSN + 4, addr + 2 * PAGE, rkey),
            2,
            FaultedWork::Remote(region.remote(2 * PAGE), 8),
            0,
        ),
    ];
    for (packet, page, work, done) in requests {
        take(&region, page);
        assert!(waits(&node.feed(&packet)), "{:?} does not wait", packet.operation());
        assert!(waits(&node.feed(&packet)), "{:?} does not wait again", packet.operation());
        let fault = fault(&mut node);
        assert_eq!((fault.side, fault.work, fault.done), (FaultSide::Service, work, done));
        assert!(fault.write && fault.missing.addr / PAGE == page);
        assert!(node.serve(&fault, true).is_empty());
        let out = node.feed(&packet);
        assert!(!waits(&out) && out[0].nak().is_none(), "{:?}", packet.operation());
    }
    assert_eq!(node.told.received.len(), 1);
    assert_eq!(node.told.received[0].byte_len, 286);
    assert_eq!(region.get(0, 300), [0xa5; 300]);
    assert_eq!(region.get(3 * PAGE, 270), [0xa5; 270]);
    assert_eq!(region.ram.atomics.load(std::sync::atomic::Ordering::Relaxed), 2);
    assert_eq!(region.word(2 * PAGE), 1, "added once");
    assert!(node.told.events.is_empty());
}

#[test]
fn what_cannot_be_served_ends_the_connection() {
    for refused_at_once in [false, true] {
        let (mut one, region) = node();
        one.told.refuses_faults = refused_at_once;
        take(&region, 0);
        let [first, _] = write_packets(&region);
        let out = one.feed(&first);
        let fault = fault(&mut one);
        let out = if refused_at_once { out } else { one.serve(&fault, false) };
        assert_eq!(out[0].nak(), Some(NakCode::RemoteAccess));
        assert_eq!(out[0].psn(), FIRST_PSN);
        assert_eq!(one.qp.state(), QpState::Err);

        for packets in [
            vec![send(Only, FIRST_PSN, 8)],
            vec![send(First, FIRST_PSN, PACKET), send(Last, FIRST_PSN + 1, 8)],
        ] {
            let (mut one, region) = node();
            one.told.refuses_faults = refused_at_once;
            one.post_recv(7, &[region.sge(0, 512)]);
            take(&region, packets.len() as u64 - 1);
            let out = packets.iter().map(|packet| one.feed(packet)).last().unwrap();
            let fault = one.told.faults.remove(0);
            let out = if refused_at_once { out } else { one.serve(&fault, false) };
            assert_eq!(out[0].nak(), Some(NakCode::RemoteOperational));
            let told: Vec<_> = one.told.received.iter().map(|d| (d.wr_id, d.status)).collect();
            assert_eq!(told, [(7, WcStatus::LocProtErr)]);
        }
    }
}

#[test]
fn the_rest_of_a_read_waits() {
    let (mut node, region) = node();
    region.set(0, &[7; 600]);
    take(&region, 1);
    let Remote { addr, rkey } = region.remote(0);
    let out = node.feed(&read(FIRST_PSN, addr, rkey, 600));
    assert_eq!((out[0].position(), out[0].payload.len()), (First, PACKET), "what is there");
    assert!(waits(&out[1..]) && out[1].psn() == FIRST_PSN + 1);
    let rest = read(FIRST_PSN + 1, addr + PAGE, rkey, 344);
    assert!(waits(&node.feed(&rest)));
    let fault = fault(&mut node);
    assert_eq!(fault.side, FaultSide::Answers);
    assert_eq!((fault.done, fault.ahead, fault.write), (256, 88, false));
    assert!(node.serve(&fault, true).is_empty());
    let out = node.feed(&rest);
    assert_eq!((out[0].position(), out[1].position(), out.len()), (First, Last, 2));
    assert_eq!(out[0].payload, [7; PACKET]);
    assert!(node.feed(&write(Only, FIRST_PSN + 3, 4).reth(addr, rkey, 4))[0].is_ack());

    take(&region, 2);
    assert!(waits(&node.feed(&read(FIRST_PSN + 4, addr + PAGE, rkey, 300))[1..]));
    let fault = node.told.faults.remove(0);
    let out = node.serve(&fault, false);
    assert_eq!(out[0].nak(), Some(NakCode::RemoteAccess));
    assert_eq!((out[0].psn(), out.len()), (FIRST_PSN + 5, 1));
    assert_eq!(node.qp.state(), QpState::Err);
}

#[test]
fn a_send_request_waits_for_its_payload() {
    let (mut node, region) = node();
    region.set(0, &[3; 600]);
    take(&region, 1);
    node.post_send(send_wr(1, SendOp::Send, &[region.sge(0, 600)]));
    node.post_send(send_wr(2, SendOp::Send, &[region.sge(5 * PAGE, 1)]));
    assert_eq!(node.emitted().len(), 1, "what is there");
    let fault = fault(&mut node);
    assert_eq!((fault.side, fault.work), (FaultSide::Requests, FaultedWork::Send(1)));
    assert_eq!((fault.done, fault.packet, fault.ahead), (256, 256, 88));
    assert!(node.feed(&ack(FIRST_SENT)).is_empty());
    let out = node.serve(&fault, true);
    let psns: Vec<u32> = out.iter().map(|packet| packet.psn()).collect();
    assert_eq!(psns, [FIRST_SENT + 1, FIRST_SENT + 2, FIRST_SENT + 3]);
    assert_eq!(out[0].payload, [3; PACKET]);
    assert!(node.serve(&fault, false).is_empty(), "it is over");
    node.feed(&ack(FIRST_SENT + 3));
    assert_eq!(node.told.sent.len(), 2);
}

#[test]
fn a_send_request_fails_in_its_turn() {
    let (mut node, region) = node();
    take(&region, 1);
    node.post_send(send_wr(1, SendOp::Send, &[region.sge(0, 8)]));
    node.post_send(send_wr(2, SendOp::Send, &[region.sge(PAGE, 8)]));
    node.emitted();
    let fault = fault(&mut node);
    node.serve(&fault, false);
    assert!(node.told.sent.is_empty());
    node.feed(&ack(FIRST_SENT));
    let told: Vec<_> = node.told.sent.iter().map(|done| (done.wr_id, done.status)).collect();
    assert_eq!(told, [(1, WcStatus::Success), (2, WcStatus::LocProtErr)]);
    assert_eq!(node.qp.state(), QpState::Err);
}

#[test]
fn what_a_read_brings_is_asked_for_again() {
    let (mut node, region) = node();
    node.post_send(send_wr(1, SendOp::Read(region.remote(0)), &[region.sge(0, 600)]));
    assert_eq!(node.emitted().len(), 1);
    take(&region, 1);
    assert!(node.feed(&read_response(First, FIRST_SENT, vec![1; PACKET])).is_empty());
    assert!(node.feed(&read_response(Middle, FIRST_SENT + 1, vec![2; PACKET])).is_empty());
    assert!(node.feed(&read_response(Last, FIRST_SENT + 2, vec![3; 88])).is_empty());
    let fault = fault(&mut node);
    assert_eq!((fault.side, fault.write, fault.done), (FaultSide::Landing, true, 256));
    assert!(node.qp.deadline().is_none(), "no timer runs while it waits");
    let out = node.serve(&fault, true);
    assert_eq!((out[0].operation(), out[0].psn()), (Operation::ReadRequest, FIRST_SENT + 1));
    assert_eq!(out[0].headers.reth.unwrap().len, 344);
    node.feed(&read_response(First, FIRST_SENT + 1, vec![2; PACKET]));
    node.feed(&read_response(Last, FIRST_SENT + 2, vec![3; 88]));
    assert_eq!(node.told.sent.len(), 1);
    assert_eq!(region.get(0, 600), [vec![1; 256], vec![2; 256], vec![3; 88]].concat());

    take(&region, 0);
    node.post_send(send_wr(2, SendOp::Read(region.remote(0)), &[region.sge(0, 8)]));
    node.feed(&read_response(Only, FIRST_SENT + 3, vec![9; 8]));
    let fault = node.told.faults.remove(0);
    node.serve(&fault, false);
    assert_eq!(node.told.sent[1].status, WcStatus::LocProtErr);
}

/// Whatever ends the queue pair's wait, an answer that comes later means nothing.
#[test]
fn an_answer_may_come_too_late() {
    for to in [QpState::Err, QpState::Reset] {
        let (mut node, region) = node();
        take(&region, 0);
        let [first, _] = write_packets(&region);
        node.feed(&first);
        node.post_send(send_wr(1, SendOp::Send, &[region.sge(0, 8)]));
        let attr = QpAttr { qp_state: to, ..node.qp.query() };
        node.modify(&attr, AttrMask::STATE).unwrap();
        assert_eq!(node.told.faults.len(), 2);
        for fault in std::mem::take(&mut node.told.faults) {
            assert!(node.serve(&fault, fault.id == 1).is_empty());
        }
        assert_eq!(node.qp.state(), to);
        let due = if to == QpState::Err { vec![WcStatus::WrFlushErr] } else { vec![] };
        assert_eq!(node.told.sent.iter().map(|done| done.status).collect::<Vec<_>>(), due);
    }
}

/// Unreliable services lose the message at hand, and nothing else.
#[test]
fn an_unreliable_message_is_lost() {
    for kind in [QpType::Uc, QpType::Ud] {
        let mut node = Node::new(kind, 11, None);
        node.connect(&Setup::new(kind));
        let region = node.register(8 * PAGE);
        node.post_recv(1, &[region.sge(0, 300)]);
        take(&region, 0);
        let message = |psn| {
            let mut packet = send(Only, psn, 16);
            packet.headers.bth.opcode.service =
                if kind == QpType::Uc { wire::Service::Uc } else { wire::Service::Ud };
            if kind == QpType::Ud {
                packet.headers.deth = Some(wire::Deth { qkey: 0x1111_1111, src_qp: 9 });
            }
            packet
        };
        node.feed(&message(FIRST_PSN));
        node.feed(&message(FIRST_PSN + 1));
        let fault = fault(&mut node);
        assert!(node.told.received.is_empty());
        node.serve(&fault, true);
        node.feed(&message(FIRST_PSN + 2));
        assert_eq!(node.told.received.len(), 1, "{kind:?}");
        assert_eq!(node.told.received[0].status, WcStatus::Success);
        take(&region, 1);
        let to = (kind == QpType::Uc).then_some(SendOp::Send);
        if let Some(op) = to {
            node.post_send(send_wr(3, op, &[region.sge(PAGE, 8)]));
            let fault = node.told.faults.remove(0);
            assert_eq!(node.serve(&fault, true).len(), 1);
            assert_eq!(node.told.sent.len(), 1);
        }
    }
}
