//! The responder of a reliable connection against hand-made packets, rule by rule. Path MTU 256, first PSN 1000.

use crate::support::craft::*;
use crate::support::{Loose, Node, PD, Packet, Region, Setup};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use transport::values::*;
use transport::{Counter, SharedQueue};
use wire::Position::{First, Last, Middle, Only};
use wire::{NakCode, Operation, Service, Syndrome};

const FIRST_PSN: u32 = 1000;

/// Packets of a message: place and length of payload.
type Parts = Vec<(wire::Position, usize)>;

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
fn a_repeated_write_is_acknowledged_and_not_done() {
    let mut node = responder();
    let region = node.register(256);
    let packet = write(Only, FIRST_PSN, 16).reth(region.iova, region.key, 16);
    node.feed(&packet);
    region.set(0, &[1; 16]);
    let out = node.feed(&packet);
    assert!(out[0].is_ack());
    assert_eq!((out[0].psn(), out[0].msn()), (FIRST_PSN, 1));
    assert_eq!(region.get(0, 16), [1; 16]);
    assert_eq!(node.counted(Counter::DuplicateRequest), 1);
}

#[test]
pub fn a_repeated_atomic_gives_the_saved_result() {
    let mut node = responder();
    let region = node.register(64);
    region.set(8, &41u64.to_ne_bytes());
    let packet = fetch_add(FIRST_PSN, region.iova + 8, region.key);
    for _ in 0..3 {
        let out = node.feed(&packet);
        assert_eq!(out.len(), 1);
        assert_eq!(out[0].operation(), Operation::AtomicAcknowledge);
        assert_eq!((out[0].psn(), out[0].headers.atomic_ack), (FIRST_PSN, Some(41)));
    }
    assert_eq!(region.word(8), 42);
    assert_eq!(region.ram.atomics.load(Relaxed), 1);
    // Four responder resources: the fifth atomic pushes the first result out, and its repetition stays unanswered.
    for i in 1..=4 {
        node.feed(&fetch_add(FIRST_PSN + i, region.iova + 8, region.key));
    }
    assert!(node.feed(&packet).is_empty());
    let out = node.feed(&fetch_add(FIRST_PSN + 1, region.iova + 8, region.key));
    assert_eq!(out[0].headers.atomic_ack, Some(42));
    assert_eq!(region.word(8), 46);
}

#[test]
fn a_repeated_read_starts_where_it_asks() {
    let mut node = responder();
    let region = node.register(1000);
    let bytes: Vec<u8> = (0..1000u32).map(|i| i as u8).collect();
    region.set(0, &bytes);
    let out = node.feed(&read(FIRST_PSN, region.iova, region.key, 1000));
    let positions: Vec<_> = out.iter().map(Packet::position).collect();
    assert_eq!(positions, [First, Middle, Middle, Last]);
    let psns: Vec<_> = out.iter().map(Packet::psn).collect();
    assert_eq!(psns, [FIRST_PSN, FIRST_PSN + 1, FIRST_PSN + 2, FIRST_PSN + 3]);
    assert_eq!(out.iter().flat_map(|p| p.payload.clone()).collect::<Vec<_>>(), bytes);
    assert!(out[0].headers.aeth.is_some() && out[1].headers.aeth.is_none());
    assert_eq!(out[3].msn(), 1);
    let out = node.feed(&read(FIRST_PSN + 2, region.iova + 512, region.key, 488));
    let positions: Vec<_> = out.iter().map(Packet::position).collect();
    assert_eq!(positions, [First, Last]);
    assert_eq!(out[0].psn(), FIRST_PSN + 2);
    assert_eq!(out.iter().flat_map(|p| p.payload.clone()).collect::<Vec<_>>(), bytes[512..]);
    // A repetition that reaches beyond what was asked for stays unanswered.
    assert!(node.feed(&read(FIRST_PSN + 2, region.iova, region.key, 1000)).is_empty());
    // One whose memory is gone is refused, and the connection stays: the requester may have had the data.
    region.ram.broken.store(true, Relaxed);
    let out = node.feed(&read(FIRST_PSN, region.iova, region.key, 1000));
    assert_eq!(
        (out.len(), out[0].nak(), out[0].psn()),
        (1, Some(NakCode::RemoteOperational), FIRST_PSN)
    );
    node.keys.remove(region.key, || ()).unwrap();
    let out = node.feed(&read(FIRST_PSN + 1, region.iova + 256, region.key, 744));
    assert_eq!(
        (out.len(), out[0].nak(), out[0].psn()),
        (1, Some(NakCode::RemoteAccess), FIRST_PSN + 1)
    );
    assert_eq!((node.qp.state(), node.told.events.len()), (QpState::Rts, 0));
    // The next request takes the PSN after the READ's.
    receives(&mut node, 1);
    assert!(node.feed(&send(Only, FIRST_PSN + 4, 8))[0].is_ack());
}

#[test]
fn a_repetition_before_a_read_is_acknowledged_no_further_than_itself() {
    let mut node = responder();
    let region = node.register(64);
    let packet = write(Only, FIRST_PSN, 16).reth(region.iova, region.key, 16);
    node.feed(&packet);
    node.feed(&read(FIRST_PSN + 1, region.iova, region.key, 16));
    // An ACK of the READ's PSN would tell the requester that its response was lost.
    assert_eq!(node.feed(&packet)[0].psn(), FIRST_PSN);
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

/// A WRITE of two packets, a READ and an atomic with this key and address must all be refused and do nothing.
#[track_caller]
fn assert_guarded(register: impl Fn(&mut Node) -> (Region, u64, u32), atomic_too: bool) {
    let kinds = if atomic_too { 3 } else { 2 };
    for kind in 0..kinds {
        let mut node = responder();
        let (region, va, rkey) = register(&mut node);
        let before = region.get(0, region.len as usize);
        let packet = match kind {
            0 => write(First, FIRST_PSN, 256).reth(va, rkey, 512),
            1 => read(FIRST_PSN, va, rkey, 512),
            _ => fetch_add(FIRST_PSN, va & !7, rkey),
        };
        let out = node.feed(&packet);
        assert_eq!(region.get(0, region.len as usize), before, "nothing was written");
        assert_eq!(out.len(), 1, "nothing but the NAK is said");
        assert_no_access(&node, &out, FIRST_PSN);
        assert_eq!(node.counted(Counter::RespRemoteAccessErrors), 1);
    }
}

#[test]
pub fn a_stale_key_gives_no_access() {
    assert_guarded(
        |node| {
            let region = node.register(1024);
            let stale = region.key ^ 1;
            (region.clone(), region.iova, stale)
        },
        true,
    );
}

#[test]
fn an_unknown_key_gives_no_access() {
    assert_guarded(
        |node| {
            let r = node.register(1024);
            (r.clone(), r.iova, 0)
        },
        true,
    );
    assert_guarded(
        |node| {
            let r = node.register(1024);
            (r.clone(), r.iova, u32::MAX)
        },
        true,
    );
    assert_guarded(
        |node| {
            let region = node.register(1024);
            node.keys.remove(region.key, || ()).unwrap();
            (region.clone(), region.iova, region.key)
        },
        true,
    );
}

#[test]
pub fn a_key_of_another_domain_gives_no_access() {
    let all =
        Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
    assert_guarded(
        |node| {
            let region = node.register_as(PdId(PD.0 + 1), 1024, all);
            (region.clone(), region.iova, region.key)
        },
        true,
    );
}

#[test]
pub fn a_key_gives_only_its_rights() {
    assert_guarded(
        |node| {
            let region = node.register_as(PD, 1024, Access::LOCAL_WRITE);
            (region.clone(), region.iova, region.key)
        },
        true,
    );
    // Each right alone gives nothing else.
    let rights = [Access::REMOTE_WRITE, Access::REMOTE_READ, Access::REMOTE_ATOMIC];
    for (given, right) in rights.into_iter().enumerate() {
        for asked in 0..3 {
            let mut node = responder();
            let region = node.register_as(PD, 1024, Access::LOCAL_WRITE | right);
            let packet = match asked {
                0 => write(Only, FIRST_PSN, 8).reth(region.iova, region.key, 8),
                1 => read(FIRST_PSN, region.iova, region.key, 8),
                _ => fetch_add(FIRST_PSN, region.iova, region.key),
            };
            let out = node.feed(&packet);
            assert_eq!(out[0].nak().is_none(), given == asked, "{right:?}, operation {asked}");
        }
    }
}

#[test]
pub fn a_range_stays_within_its_registration() {
    let cases: [fn(&Region) -> u64; 4] = [
        |region| region.iova + region.len - 256,
        |region| region.iova - 8,
        |region| region.iova + region.len,
        |_| u64::MAX - 100,
    ];
    for (number, va) in cases.into_iter().enumerate() {
        let atomic_too = number > 0;
        assert_guarded(
            |node| {
                let region = node.register(1024);
                (region.clone(), va(&region), region.key)
            },
            atomic_too,
        );
    }
}

#[test]
fn zero_length_names_no_memory() {
    let mut node = responder();
    let out = node.feed(&write(Only, FIRST_PSN, 0).reth(0xdead, 0xdead, 0));
    assert!(out[0].is_ack());
    let out = node.feed(&read(FIRST_PSN + 1, 0xdead, 0xdead, 0));
    assert_eq!((out[0].operation(), out[0].position()), (Operation::ReadResponse, Only));
    assert!(out[0].payload.is_empty());
    receives(&mut node, 1);
    assert!(node.feed(&send(Only, FIRST_PSN + 2, 0))[0].is_ack());
    assert_eq!(node.told.received[0].byte_len, 0);
}

#[test]
pub fn a_qp_offers_only_what_it_was_told_to() {
    let rights = [Access::REMOTE_WRITE, Access::REMOTE_READ, Access::REMOTE_ATOMIC];
    for (given, right) in rights.into_iter().enumerate() {
        for asked in 0..3 {
            let mut node = responder_with(|setup| setup.access = right);
            let region = node.register(1024);
            let packet = match asked {
                0 => write(Only, FIRST_PSN, 8).reth(region.iova, region.key, 8),
                1 => read(FIRST_PSN, region.iova, region.key, 8),
                _ => fetch_add(FIRST_PSN, region.iova, region.key),
            };
            let out = node.feed(&packet);
            if given == asked {
                assert!(out[0].nak().is_none());
            } else {
                assert_invalid(&node, &out, FIRST_PSN);
            }
        }
    }
}

#[test]
fn atomics_are_aligned() {
    for offset in 1..8 {
        let mut node = responder();
        let region = node.register(64);
        let out = node.feed(&fetch_add(FIRST_PSN, region.iova + offset, region.key));
        assert_invalid(&node, &out, FIRST_PSN);
        assert_eq!(region.ram.atomics.load(Relaxed), 0);
    }
}

#[test]
fn responder_resources_are_bounded() {
    for atomics in [false, true] {
        let mut node = responder();
        let region = node.register(64);
        for i in 0..5 {
            let psn = FIRST_PSN + i;
            node.receive(&match atomics {
                false => read(psn, region.iova, region.key, 8),
                true => fetch_add(psn, region.iova, region.key),
            });
        }
        node.end_of_batch();
        let out = node.emitted();
        assert_eq!(out.len(), 5, "four answers and a NAK");
        assert_invalid(&node, &out, FIRST_PSN + 4);
        if atomics {
            assert_eq!(region.word(0), 4);
        }
    }
    let mut node = responder_with(|setup| setup.max_rd_atomic = 0);
    let region = node.register(64);
    let out = node.feed(&read(FIRST_PSN, region.iova, region.key, 8));
    assert_invalid(&node, &out, FIRST_PSN);
}

#[test]
pub fn without_a_receive_the_peer_is_told_to_wait() {
    let mut node = responder_with(|setup| setup.min_rnr_timer = 17);
    let rnr = Some(Syndrome::RnrNak(17));
    let out = node.feed(&send(First, FIRST_PSN, 256));
    assert_eq!(out.len(), 1);
    assert_eq!(out[0].headers.aeth.map(|aeth| aeth.syndrome), rnr);
    assert_eq!(out[0].psn(), FIRST_PSN);
    // What follows is neither done nor answered.
    assert!(node.feed(&send(Last, FIRST_PSN + 1, 8)).is_empty());
    assert_eq!(node.counted(Counter::OutOfBuffer), 1);
    let region = receives(&mut node, 1);
    assert!(node.feed(&send(First, FIRST_PSN, 256))[0].is_ack());
    assert!(node.feed(&send(Last, FIRST_PSN + 1, 8))[0].is_ack());
    assert_eq!(node.told.received.len(), 1);
    assert_eq!(region.get(0, 264), [0xa5; 264]);
}

#[test]
fn an_immediate_without_a_receive_waits_with_its_data() {
    let mut node = responder();
    let region = node.register(1024);
    let only = write(Only, FIRST_PSN, 16).reth(region.iova, region.key, 16).imm(5);
    let out = node.feed(&only);
    assert!(matches!(out[0].headers.aeth.unwrap().syndrome, Syndrome::RnrNak(_)));
    assert_eq!(region.get(0, 16), [0; 16]);
    node.post_recv(1, &[]);
    assert!(node.feed(&only)[0].is_ack());
    assert_eq!(region.get(0, 16), [0xa5; 16]);
    let done = node.told.received[0];
    assert_eq!((done.opcode, done.byte_len, done.imm_or_key), (WcOpcode::RecvRdmaWithImm, 16, 5));
    // In a longer message only the last packet has to wait.
    assert!(
        node.feed(&write(First, FIRST_PSN + 1, 256).reth(region.iova, region.key, 300))[0].is_ack()
    );
    let last = write(Last, FIRST_PSN + 2, 44).imm(6);
    let out = node.feed(&last);
    assert!(matches!(out[0].headers.aeth.unwrap().syndrome, Syndrome::RnrNak(_)));
    assert_eq!(out[0].psn(), FIRST_PSN + 2);
    node.post_recv(2, &[]);
    assert!(node.feed(&last)[0].is_ack());
    assert_eq!(node.told.received[1].byte_len, 300);
}

#[test]
fn a_receive_too_short_is_a_local_length_error() {
    for first in [true, false] {
        let mut node = responder();
        let region = node.register(1024);
        node.post_recv(1, &[region.sge(0, 200), region.sge(512, if first { 0 } else { 100 })]);
        node.post_recv(2, &[region.sge(0, 1024)]);
        let mut psn = FIRST_PSN;
        let mut out = node.feed(&send(First, psn, 256));
        if !first {
            psn += 1;
            out = node.feed(&send(Last, psn, 45));
        }
        assert_fatal(&node, &out, psn, NakCode::InvalidRequest, None);
        let told: Vec<_> =
            node.told.received.iter().map(|done| (done.wr_id, done.status)).collect();
        assert_eq!(told, [(1, WcStatus::LocLenErr), (2, WcStatus::WrFlushErr)]);
    }
}

#[test]
fn a_receive_without_access_is_a_local_protection_error() {
    type Spoil = fn(&mut Node) -> Sge;
    let cases: [(&str, Spoil); 5] = [
        ("unknown key", |node| Sge { lkey: 0, ..node.register(256).sge(0, 256) }),
        ("read-only key", |node| node.register_as(PD, 256, Access::REMOTE_READ).sge(0, 256)),
        ("foreign domain", |node| {
            node.register_as(PdId(PD.0 + 1), 256, Access::LOCAL_WRITE).sge(0, 256)
        }),
        ("beyond the end", |node| node.register(256).sge(1, 256)),
        ("memory gone", |node| {
            let region = node.register(256);
            region.ram.broken.store(true, Relaxed);
            region.sge(0, 256)
        }),
    ];
    for (name, spoil) in cases {
        println!("{name}");
        let mut node = responder();
        let sge = spoil(&mut node);
        node.post_recv(1, &[sge]);
        let out = node.feed(&send(Only, FIRST_PSN, 8));
        assert_fatal(&node, &out, FIRST_PSN, NakCode::RemoteOperational, None);
        assert_eq!(node.told.received[0].status, WcStatus::LocProtErr);
    }
}

#[test]
fn a_bad_entry_that_no_byte_reaches_does_no_harm() {
    let mut node = responder();
    let region = node.register(256);
    node.post_recv(1, &[region.sge(0, 8), Sge { addr: 0, length: 8, lkey: 0 }]);
    assert!(node.feed(&send(Only, FIRST_PSN, 8))[0].is_ack());
}

#[test]
pub fn failing_memory_is_a_remote_operational_error() {
    let mut node = responder();
    let region = node.register(1024);
    region.ram.broken.store(true, Relaxed);
    let out = node.feed(&write(Only, FIRST_PSN, 8).reth(region.iova, region.key, 8));
    let event = Some(EventType::QpFatal);
    assert_fatal(&node, &out, FIRST_PSN, NakCode::RemoteOperational, event);

    let mut node = responder();
    let region = node.register(1024);
    node.receive(&read(FIRST_PSN, region.iova, region.key, 1024));
    region.ram.broken.store(true, Relaxed);
    node.end_of_batch();
    let out = node.emitted();
    assert_fatal(&node, &out, FIRST_PSN, NakCode::RemoteOperational, event);
}

#[test]
fn a_registration_that_ends_amid_a_message_ends_its_access() {
    let mut node = responder();
    let region = node.register(1024);
    node.feed(&write(First, FIRST_PSN, 256).reth(region.iova, region.key, 512));
    node.keys.remove(region.key, || ()).unwrap();
    let out = node.feed(&write(Last, FIRST_PSN + 1, 256));
    assert_no_access(&node, &out, FIRST_PSN + 1);
    assert_eq!(region.get(256, 256), [0; 256]);
}

#[test]
fn a_key_that_is_no_window_cannot_be_invalidated() {
    let mut node = responder();
    let region = receives(&mut node, 1);
    let out = node.feed(&send(Only, FIRST_PSN, 8).invalidate(region.key));
    assert_no_access(&node, &out, FIRST_PSN);
    assert_eq!(node.told.received[0].status, WcStatus::WrFlushErr);
}

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
    let region = node.register(1024);
    // A READ is granted, the next request is refused, and then the READ's memory fails.
    node.receive(&read(FIRST_PSN, region.iova, region.key, 8));
    node.receive(&write(Only, FIRST_PSN + 1, 8).reth(region.iova, region.key ^ 0xff00, 8));
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
