//! Messages of one or more packets: their order, their lengths, and when they are acknowledged.

use super::*;

/// Packets of a message: place and length of payload.
type Parts = Vec<(wire::Position, usize)>;

/// A program that sees its last message come, and ends the connection in the same turn.
#[test]
fn what_the_program_knows_of_is_acknowledged_before_it_ends_the_connection() {
    for end in [QpState::Err, QpState::Reset] {
        let mut node = responder();
        let _region = receives(&mut node, 2);
        node.receive(&send(Only, FIRST_PSN, 100));
        assert_eq!(node.told.received.len(), 1, "the program knows");
        let attr = QpAttr { qp_state: end, ..node.qp.query() };
        node.modify(&attr, AttrMask::STATE).unwrap();
        let out = node.emitted();
        assert!(out.len() == 1 && out[0].is_ack() && out[0].psn() == FIRST_PSN, "{end:?}: {out:?}");
    }
}

#[test]
fn send_consumes_a_receive_and_is_acknowledged() {
    let mut node = responder();
    let region = receives(&mut node, 2);
    let mut packet = send(Only, FIRST_PSN, 100).imm(0xdead_beef);
    packet.headers.bth.solicited = true;
    let out = node.feed(&packet);
    assert_eq!(out.len(), 1);
    assert!(out[0].is_ack());
    assert_eq!((out[0].psn(), out[0].msn()), (FIRST_PSN, 1));
    assert_eq!(out[0].headers.bth.dest_qp, 99);
    let done = node.told.received[0];
    assert_eq!((done.wr_id, done.status, done.byte_len), (0, WcStatus::Success, 100));
    assert_eq!((done.flags, done.imm_or_key), (WcFlags::WITH_IMM, 0xdead_beef));
    assert!(done.solicited);
    assert_eq!((done.qp_num, done.src_qp), (11, 99));
    assert_eq!(region.get(0, 101), [vec![0xa5; 100], vec![0]].concat());
    let out = node.feed(&send(First, FIRST_PSN + 1, 256));
    assert_eq!((out[0].psn(), out[0].msn()), (FIRST_PSN + 1, 1), "the message is not complete");
    let out = node.feed(&send(Last, FIRST_PSN + 2, 1));
    assert_eq!((out[0].psn(), out[0].msn()), (FIRST_PSN + 2, 2));
    assert_eq!(node.told.received[1].byte_len, 257);
    assert!(!node.told.received[1].solicited);
}

#[test]
fn acknowledges_of_a_batch_are_one() {
    let mut node = responder();
    receives(&mut node, 10);
    for i in 0..10 {
        node.receive(&send(Only, FIRST_PSN + i, 8));
    }
    node.end_of_batch();
    let out = node.emitted();
    assert_eq!(out.len(), 1);
    assert_eq!((out[0].psn(), out[0].msn()), (FIRST_PSN + 9, 10));
}

/// Although both came in one batch, and the answer leaves at its end.
#[test]
fn a_short_read_shows_memory_as_it_was_before_later_requests() {
    type Later = fn(&mut Node, &Region) -> Packet;
    let cases: [(&str, Later); 3] = [
        ("WRITE", |_, region| write(Only, FIRST_PSN + 1, 8).reth(region.iova, region.key, 8)),
        ("atomic", |_, region| fetch_add(FIRST_PSN + 1, region.iova, region.key)),
        ("SEND", |node, region| {
            node.post_recv(1, &[region.sge(0, 8)]);
            send(Only, FIRST_PSN + 1, 8)
        }),
    ];
    for (name, later) in cases {
        let mut node = responder();
        let region = node.register(1024);
        region.set(0, &[1; 8]);
        let later = later(&mut node, &region);
        node.receive(&read(FIRST_PSN, region.iova, region.key, 8));
        node.receive(&later);
        node.end_of_batch();
        let out = node.emitted();
        assert_eq!(out[0].payload, [1; 8], "{name}");
        assert_eq!((out.len(), out[1].psn()), (2, FIRST_PSN + 1), "{name}");
        assert_ne!(region.get(0, 8), [1; 8], "{name}");
    }
}

/// Where the READ's memory is gone, the request after it is not served.
#[test]
fn what_comes_after_a_read_that_fails_changes_nothing() {
    let mut node = responder();
    let (gone, region) = (node.register(1024), node.register(1024));
    node.receive(&read(FIRST_PSN, gone.iova, gone.key, 8));
    node.keys.remove(gone.key, || ()).unwrap();
    node.receive(&write(Only, FIRST_PSN + 1, 8).reth(region.iova, region.key, 8));
    node.end_of_batch();
    let out = node.emitted();
    assert_no_access(&node, &out, FIRST_PSN);
    assert_eq!(region.get(0, 8), [0; 8]);
}

#[test]
pub fn a_gap_is_reported_once_until_progress() {
    let mut node = responder();
    receives(&mut node, 8);
    let out = node.feed(&send(Only, FIRST_PSN + 1, 8));
    assert_eq!(out.len(), 1);
    assert_eq!((out[0].nak(), out[0].psn()), (Some(NakCode::Sequence), FIRST_PSN));
    assert!(node.feed(&send(Only, FIRST_PSN + 2, 8)).is_empty());
    assert!(node.feed(&send(Only, FIRST_PSN + 3, 8)).is_empty());
    assert!(node.told.received.is_empty());
    assert!(node.feed(&send(Only, FIRST_PSN, 8))[0].is_ack());
    let out = node.feed(&send(Only, FIRST_PSN + 2, 8));
    assert_eq!((out[0].nak(), out[0].psn()), (Some(NakCode::Sequence), FIRST_PSN + 1));
    assert_eq!(node.counted(Counter::OutOfSequence), 4);
    assert_eq!(node.qp.state(), QpState::Rts);
}

#[test]
fn psns_wrap() {
    let mut node = responder_with(|setup| setup.rq_psn = 0x00ff_ffff);
    receives(&mut node, 4);
    assert_eq!(node.feed(&send(Only, 0x00ff_ffff, 8))[0].psn(), 0x00ff_ffff);
    assert_eq!(node.feed(&send(Only, 0, 8))[0].psn(), 0);
    // Before the expected PSN by the circle, although the number is larger.
    assert!(node.feed(&send(Only, 0x00ff_ffff, 8))[0].is_ack());
    assert_eq!(node.told.received.len(), 2);
    assert_eq!(node.counted(Counter::DuplicateRequest), 1);
}

#[test]
pub fn a_write_is_placed_whole() {
    let mut node = responder();
    let region = node.register(1024);
    node.feed(&write(First, FIRST_PSN, 256).reth(region.iova, region.key, 300));
    let out = node.feed(&write(Last, FIRST_PSN + 1, 44));
    assert!(out[0].is_ack());
    assert_eq!(region.get(0, 300), [0xa5; 300]);
    assert_eq!(region.get(300, 8), [0; 8]);
}

#[test]
fn order_of_packets_within_a_message() {
    let region_packet = |node: &mut Node, position, psn, len| {
        let region = node.register(1024);
        write(position, psn, len).reth(region.iova, region.key, 1024)
    };
    type Prepare = fn(&mut Node, u32) -> u32;
    let idle: Prepare = |_, psn| psn;
    let in_send: Prepare = |node, psn| {
        receives(node, 2);
        node.feed(&send(First, psn, 256));
        psn + 1
    };
    let in_write: Prepare = |node, psn| {
        let region = node.register(1024);
        node.feed(&write(First, psn, 256).reth(region.iova, region.key, 1024));
        psn + 1
    };
    let cases: [(&str, Prepare, Packet); 13] = [
        ("middle of no SEND", idle, send(Middle, 0, 256)),
        ("last of no SEND", idle, send(Last, 0, 8)),
        ("middle of no WRITE", idle, write(Middle, 0, 256)),
        ("last of no WRITE", idle, write(Last, 0, 8)),
        ("first within a SEND", in_send, send(First, 0, 256)),
        ("only within a SEND", in_send, send(Only, 0, 8)),
        ("WRITE middle within a SEND", in_send, write(Middle, 0, 256)),
        ("WRITE last within a SEND", in_send, write(Last, 0, 8)),
        ("READ within a SEND", in_send, read(0, 0, 0, 0)),
        ("SEND middle within a WRITE", in_write, send(Middle, 0, 256)),
        ("SEND only within a WRITE", in_write, send(Only, 0, 8)),
        ("first within a WRITE", in_write, write(First, 0, 256)),
        ("atomic within a WRITE", in_write, fetch_add(0, 0, 0)),
    ];
    for (name, prepare, mut packet) in cases {
        println!("{name}");
        let mut node = responder();
        let psn = prepare(&mut node, FIRST_PSN);
        if packet.operation() == Operation::Write && packet.position().starts() {
            packet = region_packet(&mut node, packet.position(), 0, packet.payload.len());
        }
        packet.headers.bth.psn = wire::Psn::new(psn);
        let out = node.feed(&packet);
        assert_invalid(&node, &out, psn);
        let flushed = node.told.received.iter().all(|done| done.status == WcStatus::WrFlushErr);
        assert!(flushed, "{name}");
    }
}

#[test]
pub fn payload_fits_its_place() {
    // (packets, the last of which is wrong)
    let cases: [(&str, Parts); 8] = [
        ("first shorter than the MTU", vec![(First, 255)]),
        ("first longer than the MTU", vec![(First, 257)]),
        ("middle shorter", vec![(First, 256), (Middle, 0)]),
        ("middle longer", vec![(First, 256), (Middle, 260)]),
        ("empty last", vec![(First, 256), (Last, 0)]),
        ("last longer", vec![(First, 256), (Last, 257)]),
        ("only longer", vec![(Only, 257)]),
        ("second middle shorter", vec![(First, 256), (Middle, 256), (Middle, 255)]),
    ];
    for (name, packets) in cases {
        for of_write in [false, true] {
            println!("{name}, WRITE {of_write}");
            let mut node = responder();
            let region = receives(&mut node, 2);
            let mut out = Vec::new();
            let mut psn = FIRST_PSN;
            for (position, len) in &packets {
                let packet = if of_write {
                    let total = if *position == Only { *len as u32 } else { 1024 };
                    let packet = write(*position, psn, *len);
                    if position.starts() {
                        packet.reth(region.iova, region.key, total)
                    } else {
                        packet
                    }
                } else {
                    send(*position, psn, *len)
                };
                out = node.feed(&packet);
                psn += 1;
            }
            assert_invalid(&node, &out, psn - 1);
        }
    }
    let mut node = responder();
    let region = node.register(64);
    let out = node.feed(&read(FIRST_PSN, region.iova, region.key, 8).payload(4));
    assert_invalid(&node, &out, FIRST_PSN);
}

#[test]
pub fn a_write_keeps_to_its_announced_length() {
    let cases: [(&str, u32, Parts); 7] = [
        ("only shorter", 100, vec![(Only, 99)]),
        ("only longer", 100, vec![(Only, 101)]),
        ("first of a message of one packet", 256, vec![(First, 256)]),
        ("last too early", 800, vec![(First, 256), (Last, 44)]),
        ("last too long", 300, vec![(First, 256), (Last, 45)]),
        ("middle where the last should be", 300, vec![(First, 256), (Middle, 256)]),
        ("longer than 2^31", (1 << 31) + 1, vec![(First, 256)]),
    ];
    for (name, announced, packets) in cases {
        println!("{name}");
        let mut node = responder();
        let region = node.register(1024);
        let mut out = Vec::new();
        let mut psn = FIRST_PSN;
        for (position, len) in &packets {
            let packet = write(*position, psn, *len);
            let packet = if position.starts() {
                packet.reth(region.iova, region.key, announced)
            } else {
                packet
            };
            out = node.feed(&packet);
            psn += 1;
        }
        assert_invalid(&node, &out, psn - 1);
    }
}

#[test]
fn a_long_read_leaves_room_for_others() {
    let mut node = responder();
    let region = node.register(1 << 20);
    node.receive(&read(FIRST_PSN, region.iova, region.key, 1 << 20));
    node.receive(&write(Only, FIRST_PSN + 4096, 4).reth(region.iova, region.key, 4));
    node.end_of_batch();
    let mut out = node.emitted();
    let a_call = out.len();
    assert!(a_call > 0 && a_call < 1024);
    let mut calls = 1;
    while let Some(deadline) = node.qp.deadline() {
        assert!(deadline <= node.now, "the rest is due now");
        let more = node.timer();
        assert!(!more.is_empty() && more.len() <= a_call);
        out.extend(more);
        calls += 1;
    }
    assert!(calls > 4);
    assert_eq!(out.len(), 4097);
    for (number, packet) in out.iter().enumerate() {
        assert_eq!(packet.psn(), FIRST_PSN + number as u32, "answers in the order of requests");
    }
    assert!(out[4096].is_ack());
}

#[test]
fn an_acknowledge_comes_with_the_end_of_a_message_or_when_asked_for() {
    let mut node = responder();
    receives(&mut node, 2);
    assert!(node.feed(&send(First, FIRST_PSN, 256).no_ack_req()).is_empty());
    assert_eq!(node.feed(&send(Middle, FIRST_PSN + 1, 256)).len(), 1);
    assert_eq!(node.feed(&send(Last, FIRST_PSN + 2, 1).no_ack_req()).len(), 1);
}
