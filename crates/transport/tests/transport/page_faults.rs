//! Memory that is not there: who meets it waits, until whoever keeps it says that it is there or never will be.

use crate::support::craft::*;
use crate::support::{Node, PAGE, Packet, Region, Setup, send_wr};
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use transport::values::*;
use transport::{FaultSide, FaultedWork, PageFault, Verdict};
use wire::Position::{First, Last, Middle, Only};
use wire::{NakCode, Operation, Syndrome};

const FIRST_PSN: u32 = 1000;
const FIRST_SENT: u32 = 5000;
const PACKET: usize = 256;

fn node() -> (Node, Region) {
    let mut setup = Setup::new(QpType::Rc);
    setup.min_rnr_timer = 17;
    let mut node = Node::new(QpType::Rc, 11, None);
    node.connect(&setup);
    let region = node.register(8 * PAGE);
    (node, region)
}

/// Takes a page away.
fn take(region: &Region, page: u64) {
    region.ram.absent.lock().unwrap().insert(page);
}

fn fault(node: &mut Node) -> PageFault {
    assert_eq!(node.told.faults.len(), 1, "one fault");
    node.told.faults.remove(0)
}

/// Whether the only answer is to come again.
fn waits(out: &[Packet]) -> bool {
    out.len() == 1 && out[0].headers.aeth.map(|aeth| aeth.syndrome) == Some(Syndrome::RnrNak(17))
}

fn write_packets(region: &Region) -> [Packet; 2] {
    let Remote { addr, rkey } = region.remote(0);
    [write(First, FIRST_PSN, PACKET).reth(addr, rkey, 300), write(Last, FIRST_PSN + 1, 44)]
}

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

/// Memory below a list of keys: what is refused there is looked up again when this is over.
fn below() -> (Node, Region) {
    let (node, region) = node();
    region.ram.below.store(true, Relaxed);
    (node, region)
}

/// The fault at hand is refused, and its wait passes; how long that was.
fn refuse_for_now(node: &mut Node) -> Duration {
    let fault = fault(node);
    assert!(fault.missing.below);
    assert!(node.answer(&fault, Verdict::RefusedBelow).is_empty());
    let (now, until) = (node.now, node.qp.deadline().expect("it looks again"));
    assert!(node.timer().is_empty() && node.told.faults.is_empty(), "not yet");
    node.now = until;
    until - now
}

#[test]
fn a_list_may_change_while_what_it_named_is_refused() {
    for served in [true, false] {
        let (mut node, region) = below();
        take(&region, 0);
        node.post_send(send_wr(1, SendOp::Send, &[region.sge(0, 8)]));
        let begun = node.now;
        let waits: Vec<u128> = (0..11)
            .map(|_| {
                let wait = refuse_for_now(&mut node).as_millis();
                assert!(node.timer().is_empty() && node.told.sent.is_empty());
                wait
            })
            .collect();
        assert_eq!(
            (&waits[..4], node.now - begun),
            (&[1, 2, 4, 8][..], Duration::from_millis(2047))
        );
        let fault = fault(&mut node);
        if served {
            assert_eq!(node.serve(&fault, true).len(), 1);
            // The next time begins anew.
            take(&region, 1);
            node.post_send(send_wr(2, SendOp::Send, &[region.sge(PAGE, 8)]));
            assert_eq!(refuse_for_now(&mut node), Duration::from_millis(1));
        } else {
            node.answer(&fault, Verdict::RefusedBelow);
            assert_eq!(node.told.sent[0].status, WcStatus::LocProtErr);
            assert_eq!(node.qp.state(), QpState::Err);
        }
    }
}

#[test]
fn every_side_looks_again() {
    // What a peer writes and reads.
    let (mut one, region) = below();
    let Remote { addr, rkey } = region.remote(0);
    let [first, _] = write_packets(&region);
    let rest = read(FIRST_PSN + 2, addr, rkey, 8);
    take(&region, 0);
    for request in [&first, &rest] {
        assert!(waits(&one.feed(request)));
        refuse_for_now(&mut one);
        assert!(one.timer().is_empty() && one.told.faults.is_empty(), "the peer comes again");
        assert!(waits(&one.feed(request)));
        refuse_for_now(&mut one);
        one.timer();
        assert!(waits(&one.feed(request)));
        let fault = fault(&mut one);
        one.serve(&fault, true);
        if request.psn() == FIRST_PSN {
            assert!(one.feed(request).iter().all(Packet::is_ack));
            one.feed(&write(Last, FIRST_PSN + 1, 44));
            take(&region, 0);
        }
    }
    assert_eq!(one.feed(&rest)[0].payload, region.get(0, 8));
    // What its own READ brings.
    let (mut one, region) = below();
    take(&region, 0);
    one.post_send(send_wr(1, SendOp::Read(region.remote(0)), &[region.sge(0, 8)]));
    one.emitted();
    one.feed(&read_response(Only, FIRST_SENT, vec![7; 8]));
    refuse_for_now(&mut one);
    assert_eq!(one.timer()[0].operation(), Operation::ReadRequest);
    one.feed(&read_response(Only, FIRST_SENT, vec![7; 8]));
    let fault = fault(&mut one);
    one.serve(&fault, true);
    one.feed(&read_response(Only, FIRST_SENT, vec![7; 8]));
    assert_eq!((one.told.sent.len(), region.get(0, 8)), (1, vec![7; 8]));
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

/// Time passes until the side that waits looks again.
fn look_again(node: &mut Node) -> Vec<Packet> {
    let deadline = node.qp.deadline().expect("it looks again by itself");
    assert!(deadline > node.now && deadline <= node.now + Duration::from_millis(1));
    node.now = deadline;
    node.timer()
}

#[test]
fn a_peers_requests_wait_for_a_move() {
    let (mut node, region) = node();
    node.post_recv(1, &[region.sge(0, 512)]);
    let [first, last] = write_packets(&region);
    let Remote { addr, rkey } = region.remote(0);
    let requests = [
        first,
        last,
        send(First, FIRST_PSN + 2, PACKET),
        send(Last, FIRST_PSN + 3, 30),
        fetch_add(FIRST_PSN + 4, addr + 2 * PAGE, rkey),
        read(FIRST_PSN + 5, addr, rkey, 100),
    ];
    for packet in requests {
        region.ram.moving.store(true, Relaxed);
        for _ in 0..3 {
            assert!(waits(&node.feed(&packet)), "{:?} does not wait", packet.operation());
            assert!(look_again(&mut node).is_empty());
        }
        region.ram.moving.store(false, Relaxed);
        let out = node.feed(&packet);
        assert!(!waits(&out) && out.iter().all(|packet| packet.nak().is_none()));
    }
    assert_eq!((node.told.received.len(), node.told.received[0].byte_len), (1, 286));
    assert_eq!(region.word(2 * PAGE), 1, "added once");
    assert!(node.told.events.is_empty() && node.told.faults.is_empty(), "nobody is asked");
}

#[test]
fn the_rest_of_a_read_waits_for_a_move() {
    let (mut node, region) = node();
    region.set(0, &[7; 600]);
    let Remote { addr, rkey } = region.remote(0);
    node.receive(&read(FIRST_PSN, addr, rkey, 600));
    region.ram.moving.store(true, Relaxed);
    node.end_of_batch();
    assert!(waits(&node.emitted()));
    region.ram.moving.store(false, Relaxed);
    let out = node.feed(&read(FIRST_PSN, addr, rkey, 600));
    assert_eq!(out.iter().map(|packet| packet.payload.len()).sum::<usize>(), 600);
}

/// What was on its way behind a READ that is put off comes again behind it: its error must not take the READ's place.
#[test]
fn nothing_overtakes_a_read_that_waits() {
    let (mut node, region) = node();
    node.post_recv(1, &[region.sge(0, 512)]);
    region.set(0, &[7; 600]);
    let Remote { addr, rkey } = region.remote(0);
    let first = read(FIRST_PSN, addr, rkey, 600);
    let behind = [
        send(Only, FIRST_PSN + 3, 8),
        fetch_add(FIRST_PSN + 4, addr + 4 * PAGE, rkey),
        write(Only, FIRST_PSN + 5, 4).reth(addr, !rkey, 4),
    ];
    node.receive(&first);
    region.ram.moving.store(true, Relaxed);
    node.end_of_batch();
    assert!(waits(&node.emitted()));
    for packet in &behind {
        assert!(node.feed(packet).is_empty(), "{:?} is served", packet.operation());
    }
    assert_eq!((node.told.received.len(), region.word(4 * PAGE)), (0, 0));
    region.ram.moving.store(false, Relaxed);
    assert_eq!(node.feed(&first).len(), 3, "the whole READ");
    let out: Vec<Packet> = behind.iter().flat_map(|packet| node.feed(packet)).collect();
    assert!(out[0].is_ack() && out[1].operation() == Operation::AtomicAcknowledge);
    assert_eq!((out[2].nak(), out.len()), (Some(NakCode::RemoteAccess), 3));
}

/// Two READs are put off, and come again one by one: nothing new goes before the second either.
#[test]
fn each_read_that_was_put_off_holds_back_what_is_new() {
    let (mut node, region) = node();
    let Remote { addr, rkey } = region.remote(0);
    let reads = [read(FIRST_PSN, addr, rkey, 600), read(FIRST_PSN + 3, addr, rkey, 600)];
    reads.iter().for_each(|read| node.receive(read));
    region.ram.moving.store(true, Relaxed);
    node.end_of_batch();
    assert!(waits(&node.emitted()));
    region.ram.moving.store(false, Relaxed);
    assert_eq!(node.feed(&reads[0]).len(), 3);
    node.receive(&reads[1]);
    region.ram.moving.store(true, Relaxed);
    node.end_of_batch();
    assert!(waits(&node.emitted()));
    region.ram.moving.store(false, Relaxed);
    let wrong = write(Only, FIRST_PSN + 6, 4).reth(addr, !rkey, 4);
    assert!(node.feed(&wrong).is_empty(), "it overtook a READ");
    assert_eq!(node.feed(&reads[1]).len(), 3);
    assert_eq!(node.feed(&wrong)[0].nak(), Some(NakCode::RemoteAccess));
}

/// A READ asked for again by mistake meets a move: the peer has had its answer and will not ask for it a third time.
#[test]
fn a_repeated_read_that_waits_holds_nothing_up() {
    let (mut node, region) = node();
    let Remote { addr, rkey } = region.remote(0);
    let first = read(FIRST_PSN, addr, rkey, 600);
    assert_eq!(node.feed(&first).len(), 3);
    node.receive(&first);
    region.ram.moving.store(true, Relaxed);
    node.end_of_batch();
    assert!(waits(&node.emitted()));
    region.ram.moving.store(false, Relaxed);
    let out = node.feed(&write(Only, FIRST_PSN + 3, 4).reth(addr, rkey, 4));
    assert!(out[0].is_ack() && out.len() == 1);
}

/// The memory of a READ that was put off is gone when the peer asks again: that ends the connection, as it would have at first.
#[test]
fn a_read_that_waited_may_fail() {
    let (mut node, region) = node();
    let Remote { addr, rkey } = region.remote(0);
    let first = read(FIRST_PSN, addr, rkey, 600);
    node.receive(&first);
    region.ram.moving.store(true, Relaxed);
    node.end_of_batch();
    assert!(waits(&node.emitted()));
    let out = node.feed(&read(FIRST_PSN, addr, !rkey, 600));
    assert_eq!((out[0].nak(), out.len()), (Some(NakCode::RemoteAccess), 1));
    assert_eq!(node.qp.state(), QpState::Err);
}

#[test]
fn own_requests_and_what_they_bring_wait_for_a_move() {
    let (mut node, region) = node();
    region.set(0, &[3; 256]);
    region.ram.moving.store(true, Relaxed);
    node.post_send(send_wr(1, SendOp::Send, &[region.sge(0, 256)]));
    assert!(node.emitted().is_empty() && look_again(&mut node).is_empty());
    region.ram.moving.store(false, Relaxed);
    let sent = look_again(&mut node);
    assert_eq!((sent.len(), &sent[0].payload[..]), (1, &[3; 256][..]));
    node.feed(&ack(FIRST_SENT));

    let far = Remote { addr: 0x7000, rkey: 0x1234 };
    node.post_send(send_wr(2, SendOp::Read(far), &[region.sge(0, 100)]));
    node.emitted();
    region.ram.moving.store(true, Relaxed);
    let answer = || read_response(Only, FIRST_SENT + 1, vec![9; 100]);
    assert!(node.feed(&answer()).is_empty());
    region.ram.moving.store(false, Relaxed);
    let asked = look_again(&mut node);
    assert_eq!((asked.len(), asked[0].operation()), (1, Operation::ReadRequest), "asked again");
    node.feed(&answer());
    assert_eq!(region.get(0, 100), [9; 100]);
    let told: Vec<_> = node.told.sent.iter().map(|done| (done.wr_id, done.status)).collect();
    assert_eq!(told, [(1, WcStatus::Success), (2, WcStatus::Success)]);
}
