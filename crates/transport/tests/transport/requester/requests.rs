//! Requests that are posted: checked, cut into packets, and held back where they must wait.

use super::*;

#[test]
fn a_message_is_cut_at_the_path_mtu() {
    let (mut node, region) = requester();
    let bytes: Vec<u8> = (0..600u32).map(|i| i as u8).collect();
    region.set(0, &bytes);
    // Borders of entries and packets differ; one entry is empty.
    let sges = [region.sge(0, 100), region.sge(100, 0), region.sge(100, 300), region.sge(400, 200)];
    let mut wr = send_wr(1, SendOp::WriteImm(FAR, 9), &sges);
    wr.flags |= SendFlags::SOLICITED;
    node.post_send(wr);
    let out = node.emitted();
    assert_eq!(psns(&out), [5000, 5001, 5002]);
    assert_eq!(out.iter().map(Packet::position).collect::<Vec<_>>(), [First, Middle, Last]);
    assert_eq!(out.iter().flat_map(|p| p.payload.clone()).collect::<Vec<_>>(), bytes);
    assert_eq!(out[0].headers.reth.map(|r| (r.va, r.rkey, r.len)), Some((0x7000, 0x1234, 600)));
    assert!(out[1].headers.reth.is_none());
    assert_eq!(out.iter().map(|p| p.headers.imm).collect::<Vec<_>>(), [None, None, Some(9)]);
    assert_eq!(
        out.iter().map(|p| p.headers.bth.solicited).collect::<Vec<_>>(),
        [false, false, true]
    );
    assert!(out[2].headers.bth.ack_req && !out[0].headers.bth.ack_req);
    assert_eq!(out[2].headers.bth.dest_qp, 99);
    assert_eq!(node.counted(Counter::SentPackets), 3);
    assert_eq!(node.counted(Counter::SentBytes), 600);
}

#[test]
fn inline_payload_is_sent_as_it_was_when_posted() {
    let (mut node, _) = requester();
    let mut wr = send_wr(1, SendOp::Send, &[]);
    wr.payload = Payload::Inline(vec![7; 300].into());
    node.post_send(wr);
    let out = node.emitted();
    assert_eq!(out.iter().map(|p| p.payload.len()).collect::<Vec<_>>(), [256, 44]);
    assert_eq!(out[0].payload, [7; 256]);
}

#[test]
fn reads_and_atomics_in_flight_are_bounded() {
    let mut node = requester_with(|setup| setup.max_rd_atomic = 2);
    let region = node.register(4096);
    for id in 0..4 {
        node.post_send(send_wr(id, SendOp::Read(FAR), &[region.sge(0, 8)]));
    }
    node.post_send(send_wr(4, SendOp::Send, &[region.sge(0, 8)]));
    assert_eq!(psns(&node.emitted()), [5000, 5001]);
    assert_eq!(psns(&node.feed(&read_response(Only, 5000, vec![0; 8]))), [5002]);
    assert_eq!(psns(&node.feed(&read_response(Only, 5001, vec![0; 8]))), [5003, 5004]);
}

#[test]
fn without_initiator_resources_a_read_fails() {
    let mut node = requester_with(|setup| setup.max_rd_atomic = 0);
    let region = node.register(64);
    node.post_send(send_wr(1, SendOp::Read(FAR), &[region.sge(0, 8)]));
    assert_eq!(ids(&node), [(1, WcStatus::LocQpOpErr)]);
}

#[test]
pub fn a_fence_waits_for_reads_and_atomics() {
    let (mut node, region) = requester();
    node.post_send(send_wr(1, SendOp::Read(FAR), &[region.sge(0, 8)]));
    let mut fenced = send_wr(2, SendOp::Send, &[region.sge(0, 8)]);
    fenced.flags |= SendFlags::FENCE;
    node.post_send(fenced);
    assert_eq!(psns(&node.emitted()), [5000]);
    let out = node.feed(&read_response(Only, 5000, vec![9; 8]));
    assert_eq!(psns(&out), [5001]);
    assert_eq!(out[0].payload, [9; 8], "the fenced SEND sends what the READ brought");
}

#[test]
fn a_local_invalidate_waits_its_turn_and_fails_on_a_registration() {
    let (mut node, region) = requester();
    node.post_send(send_wr(1, SendOp::Send, &[region.sge(0, 8)]));
    node.post_send(send_wr(2, SendOp::LocalInvalidate(region.key), &[]));
    assert!(node.told.sent.is_empty());
    node.feed(&ack(5000));
    assert_eq!(ids(&node), [(1, WcStatus::Success), (2, WcStatus::MwBindErr)]);
    assert_eq!(node.told.sent[1].opcode, WcOpcode::LocalInv);
}

#[test]
fn what_is_in_flight_stays_within_the_window() {
    let mut node = Node::with_window(QpType::Rc, 11, None, 20_000);
    node.connect(&Setup::new(QpType::Rc));
    let region = node.register(1 << 20);
    node.post_send(send_wr(1, SendOp::Write(FAR), &[region.sge(0, 1 << 20)]));
    let out = node.emitted();
    // The first packet costs a datagram's overhead, the others their share in a train.
    let flight = out.iter().map(|p| p.payload.len() + 96).sum::<usize>() + 832 - 96;
    assert!(flight <= 20_000 && flight + out[1].payload.len() + 96 > 20_000, "{flight}");
    let asking = out.iter().filter(|p| p.headers.bth.ack_req).count();
    assert!((3..=6).contains(&asking), "about each quarter asks for an acknowledge: {asking}");
    let half = out[out.len() / 2].psn();
    let more = node.feed(&ack(half));
    // What the first packet cost more makes room for two others.
    assert_eq!(more.len(), out.len() / 2 + 1 + 2);
}

#[test]
fn requests_are_checked_when_posted() {
    let (mut node, region) = requester();
    let fine = [region.sge(0, 8)];
    let invalid = |node: &mut Node, wr: SendWr| {
        assert!(matches!(node.qp.post_send(wr), Err(Error::Invalid(_))));
    };
    invalid(&mut node, send_wr(1, SendOp::Send, &[region.sge(0, 1); 9]));
    let mut long = send_wr(1, SendOp::Send, &[]);
    long.payload = Payload::Inline(vec![0; 513].into());
    invalid(&mut node, long);
    let mut read = send_wr(1, SendOp::Read(FAR), &[]);
    read.payload = Payload::Inline(vec![0; 8].into());
    invalid(&mut node, read);
    let mut checksum = send_wr(1, SendOp::Send, &fine);
    checksum.flags |= SendFlags::IP_CSUM;
    invalid(&mut node, checksum);
    let huge = [region.sge(0, u32::MAX)];
    invalid(&mut node, send_wr(1, SendOp::Write(FAR), &huge));
    for _ in 0..256 {
        node.qp.post_send(send_wr(1, SendOp::Send, &fine)).unwrap();
    }
    assert!(matches!(node.qp.post_send(send_wr(1, SendOp::Send, &fine)), Err(Error::NoMemory(_))));
    let recv = RecvWr { wr_id: 1, scatter: [region.sge(0, 1); 9].into_iter().collect() };
    assert!(matches!(node.qp.post_recv(recv), Err(Error::Invalid(_))));
    let recv = RecvWr { wr_id: 1, scatter: Default::default() };
    for _ in 0..256 {
        node.qp.post_recv(recv.clone()).unwrap();
    }
    assert!(matches!(node.qp.post_recv(recv), Err(Error::NoMemory(_))));
}

#[test]
fn operations_are_those_of_the_service() {
    let atomic = SendOp::FetchAdd { remote: FAR, add: 1 };
    let cases: [(SendOp, bool, bool); 7] = [
        (SendOp::Send, true, true),
        (SendOp::SendImm(1), true, true),
        (SendOp::SendInvalidate(1), false, false),
        (SendOp::Write(FAR), true, false),
        (SendOp::WriteImm(FAR, 1), true, false),
        (SendOp::Read(FAR), false, false),
        (atomic, false, false),
    ];
    for (op, uc, ud) in cases {
        for (kind, offered) in [(QpType::Rc, true), (QpType::Uc, uc), (QpType::Ud, ud)] {
            let mut node = Node::new(kind, 11, None);
            node.connect(&Setup::new(kind));
            let mut wr = send_wr(1, op.clone(), &[]);
            if kind == QpType::Ud {
                let ah = port_one();
                wr.datagram = Some(Datagram { ah, remote_qpn: 1, remote_qkey: 1 });
            }
            assert_eq!(node.qp.post_send(wr).is_ok(), offered, "{kind:?} {op:?}");
        }
    }
}

#[test]
fn a_long_message_takes_most_of_the_circle_of_psns() {
    // 2^31 bytes at 256 are 2^23 PSNs, half the circle; posting and beginning it must not confuse
    // anything.
    let mut node = requester_with(|setup| setup.sq_psn = 0x00ff_fff0);
    let region = node.register(64);
    let list: Vec<Sge> = vec![Sge { addr: region.iova, length: 1 << 31, lkey: region.key }];
    node.post_send(send_wr(1, SendOp::Write(FAR), &list));
    assert_eq!(ids(&node), [(1, WcStatus::LocProtErr)], "the memory is not that long");
    let mut node = requester_with(|setup| setup.sq_psn = 0x00ff_fff0);
    let region = node.register(256 * 64);
    node.post_send(send_wr(1, SendOp::Write(FAR), &[region.sge(0, 256 * 64)]));
    let out = node.emitted();
    assert_eq!(out[15].psn(), 0x00ff_ffff);
    assert_eq!(out[16].psn(), 0);
    node.feed(&ack(47));
    assert_eq!(ids(&node), [(1, WcStatus::Success)]);
}

#[test]
fn a_draining_queue_finishes_what_it_began() {
    let (mut node, region) = requester();
    let big = 1 << 20;
    node.post_send(send_wr(1, SendOp::Write(FAR), &[region.sge(0, big)]));
    node.post_send(send_wr(2, SendOp::Send, &[region.sge(0, 8)]));
    let mut out = node.emitted();
    let attr = QpAttr { qp_state: QpState::Sqd, en_sqd_async_notify: true, ..node.qp.query() };
    node.modify(&attr, AttrMask::STATE | AttrMask::EN_SQD_ASYNC_NOTIFY).unwrap();
    assert!(node.qp.query().sq_draining);
    while node.told.events.is_empty() {
        let last = out.last().unwrap().psn();
        out = node.feed(&ack(last));
    }
    assert_eq!(node.told.events, [EventType::SqDrained]);
    assert_eq!(ids(&node), [(1, WcStatus::Success)]);
    assert!(!node.qp.query().sq_draining);
    node.post_send(send_wr(3, SendOp::Send, &[region.sge(0, 8)]));
    assert!(node.emitted().is_empty());
    let attr = QpAttr { qp_state: QpState::Rts, ..node.qp.query() };
    node.modify(&attr, AttrMask::STATE).unwrap();
    node.with(|qp, cx| qp.transmit(cx));
    assert_eq!(node.emitted().len(), 2);
}

#[test]
fn local_errors_come_after_what_was_posted_before() {
    type Spoil = fn(&mut Node) -> SendWr;
    let cases: [(&str, WcStatus, Spoil); 6] = [
        ("unknown key", WcStatus::LocProtErr, |node| {
            send_wr(2, SendOp::Send, &[Sge { lkey: 0, ..node.register(64).sge(0, 8) }])
        }),
        ("foreign domain", WcStatus::LocProtErr, |node| {
            let region = node.register_as(PdId(PD.0 + 1), 64, Access::LOCAL_WRITE);
            send_wr(2, SendOp::Write(FAR), &[region.sge(0, 8)])
        }),
        ("beyond the end", WcStatus::LocProtErr, |node| {
            send_wr(2, SendOp::Send, &[node.register(64).sge(60, 8)])
        }),
        ("READ into read-only memory", WcStatus::LocProtErr, |node| {
            let region = node.register_as(PD, 64, Access::REMOTE_READ);
            send_wr(2, SendOp::Read(FAR), &[region.sge(0, 8)])
        }),
        ("atomic into too few bytes", WcStatus::LocLenErr, |node| {
            send_wr(2, SendOp::FetchAdd { remote: FAR, add: 1 }, &[node.register(64).sge(0, 4)])
        }),
        ("failing memory", WcStatus::LocProtErr, |node| {
            let region = node.register(64);
            region.ram.broken.store(true, Relaxed);
            send_wr(2, SendOp::Send, &[region.sge(0, 8)])
        }),
    ];
    for (name, status, spoil) in cases {
        println!("{name}");
        let (mut node, region) = requester();
        node.post_send(send_wr(1, SendOp::Send, &[region.sge(0, 8)]));
        let bad = spoil(&mut node);
        node.post_send(bad);
        node.post_send(send_wr(3, SendOp::Send, &[region.sge(0, 8)]));
        assert_eq!(psns(&node.emitted()), [5000]);
        assert!(node.told.sent.is_empty());
        assert_eq!(node.qp.state(), QpState::Rts);
        node.feed(&ack(5000));
        let told = [(1, WcStatus::Success), (2, status), (3, WcStatus::WrFlushErr)];
        assert_eq!(ids(&node), told);
        assert_eq!(node.qp.state(), QpState::Err);
        assert_ne!(node.told.sent[1].vendor_err, u32::MAX);
    }
}

#[test]
fn memory_that_fails_amid_a_message_fails_it() {
    let (mut node, region) = requester();
    let other = node.register(300);
    other.ram.broken.store(true, Relaxed);
    node.post_send(send_wr(1, SendOp::Send, &[region.sge(0, 256), other.sge(0, 300)]));
    assert_eq!(psns(&node.emitted()), [5000]);
    assert_eq!(ids(&node), [(1, WcStatus::LocProtErr)]);

    let (mut node, region) = requester();
    node.post_send(send_wr(1, SendOp::Read(FAR), &[region.sge(0, 8)]));
    region.ram.broken.store(true, Relaxed);
    node.feed(&read_response(Only, 5000, vec![0; 8]));
    assert_eq!(ids(&node), [(1, WcStatus::LocProtErr)]);
}
