//! Memory that is being moved: nobody says when it is there again, and the access looks itself.

use super::*;

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

/// What was on its way behind a READ that is put off comes again behind it: its error must not take
/// the READ's place.
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

/// A READ asked for again by mistake meets a move: the peer has had its answer and will not ask for
/// it a third time.
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

/// WRITEs behind a long READ were executed before it was put off. The peer hears with the first
/// that all are done, and repeats no other one.
#[test]
fn what_was_done_behind_a_read_that_was_put_off_need_not_come_again() {
    const LEN: u32 = 20 << 10;
    let (mut node, _) = node();
    let region = node.register(128 * PAGE);
    let Remote { addr, rkey } = region.remote(0);
    let first = read(FIRST_PSN, addr, rkey, LEN);
    let behind = FIRST_PSN + LEN / PACKET as u32;
    let writes = [0, 1, 2, 3].map(|n| write(Only, behind + n, 4).reth(addr, rkey, 4));
    node.receive(&first);
    writes.iter().for_each(|write| node.receive(write));
    region.ram.moving.store(true, Relaxed);
    node.end_of_batch();
    assert!(waits(&node.emitted()));
    region.ram.moving.store(false, Relaxed);
    let bytes: usize = node.feed(&first).iter().map(|packet| packet.payload.len()).sum();
    assert_eq!(bytes, LEN as usize);
    let out = node.feed(&writes[0]);
    assert!(out.len() == 1 && out[0].is_ack() && out[0].psn() == behind + 3);
    let out = node.feed(&write(Only, behind + 4, 4).reth(addr, rkey, 4));
    assert!(out.len() == 1 && out[0].is_ack(), "it is new, and nothing is before it");
}

/// The memory of a READ that was put off is gone when the peer asks again: that ends the
/// connection, as it would have at first.
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
