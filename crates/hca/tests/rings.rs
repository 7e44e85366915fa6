//! Two devices of one process whose packets pass through rings in shared memory: what arrives, how
//! they are woken, and what happens when one of them goes.

mod ends;

use ends::{End, options};
use hca::*;
use std::time::{Duration, Instant};
use transport::Counter;

/// How long a device may take to stand still.
const PAUSE: Duration = Duration::from_secs(10);

/// Two connected ends, once each reads the other's ring.
fn pair(qp_type: QpType) -> (End, End) {
    let options = options();
    let (a, b) = (End::beside("one", &options, qp_type), End::beside("two", &options, qp_type));
    a.connect(&b);
    b.connect(&a);
    // Packets go by the wire until the other's thread has attached the ring.
    let started = Instant::now();
    loop {
        let before = [&a, &b].map(ring_packets);
        message(&a, &b, 1);
        message(&b, &a, 1);
        // Both of this connection: it may have another way than the one before it.
        if ring_packets(&a) > before[0] && ring_packets(&b) > before[1] {
            return (a, b);
        }
        assert!(started.elapsed() < Duration::from_secs(20), "no ring was attached");
        if qp_type == QpType::Uc {
            // What has once sent by the wire stays there.
            reconnect(&a, &b);
            reconnect(&b, &a);
        }
    }
}

fn ring_packets(end: &End) -> u64 {
    end.counted(Counter::RingPackets)
}

fn receive_at(end: &End, at: usize, length: u32) {
    let wr = RecvWr { wr_id: 9, scatter: [end.sge(at, length)].into_iter().collect() };
    end.qp.post_recv(&mut [Ok(wr)].into_iter()).unwrap();
}

/// Sends a message of so many bytes.
fn message(from: &End, to: &End, length: u32) {
    receive_at(to, 2 << 20, length);
    from.post(SendOp::Send, 0, length);
    let received = to.completion();
    assert_eq!((received.status, received.byte_len), (WcStatus::Success, length));
    assert_eq!(from.completion().status, WcStatus::Success);
}

#[test]
fn messages_of_all_lengths_arrive_whole() {
    for qp_type in [QpType::Rc, QpType::Uc] {
        let (mut a, b) = pair(qp_type);
        for (round, length) in [0, 1, 7, 8, 9, 4095, 4096, 4097, 16_384, 16_385, 70_001, 1 << 20]
            .into_iter()
            .enumerate()
        {
            let before = ring_packets(&a);
            for (i, byte) in a.buffer[..1 << 20].iter_mut().enumerate() {
                *byte = (i * 31 % 251 + round) as u8;
            }
            message(&a, &b, length);
            let length = length as usize;
            assert!(b.buffer[2 << 20..][..length] == a.buffer[..length], "{length} bytes");
            let packets = length.div_ceil(32 << 10).max(1) as u64;
            assert!(ring_packets(&a) - before >= packets, "{qp_type:?}, {length} bytes");
        }
    }
}

/// Devices of one process are no neighbours: what is one-sided passes through the ring, too.
#[test]
fn writes_and_reads_of_all_lengths_arrive_whole() {
    let (mut a, b) = pair(QpType::Rc);
    for (round, length) in
        [1, 900, 1024, 4097, 32_768, 32_769, 100_003, 1 << 20].into_iter().enumerate()
    {
        let before = (ring_packets(&a), ring_packets(&b));
        for (i, byte) in a.buffer[..1 << 20].iter_mut().enumerate() {
            *byte = (i * 37 % 241 + round) as u8;
        }
        a.post(SendOp::Write(b.remote(1 << 20)), 0, length);
        assert_eq!(a.completion().status, WcStatus::Success);
        a.post(SendOp::Read(b.remote(1 << 20)), 2 << 20, length);
        assert_eq!(a.completion().status, WcStatus::Success);
        let length = length as usize;
        for arrived in [&b.buffer[1 << 20..], &a.buffer[2 << 20..]] {
            assert!(arrived[..length] == a.buffer[..length], "{length} bytes");
        }
        let packets = length.div_ceil(32 << 10) as u64;
        assert!(ring_packets(&a) - before.0 > packets && ring_packets(&b) - before.1 >= packets);
    }
}

/// Messages in a row, of which the fifth finds no place for its completion: a queue of two entries
/// has four.
#[test]
fn what_follows_a_lost_completion_is_not_acknowledged() {
    let (a, b) = pair(QpType::Rc);
    b.cq.resize(2, None).unwrap();
    for end in [&a, &b] {
        end.device.pause(Instant::now() + Duration::from_secs(10));
    }
    (0..8).for_each(|_| receive_at(&b, 2 << 20, 8));
    (0..8).for_each(|_| a.post(SendOp::Send, 0, 8));
    let mut received = 0;
    while let Ok(taken) = b.cq.poll(1, &mut |done| assert_eq!(done.status, WcStatus::Success)) {
        received += taken;
    }
    assert_eq!(received, 4, "completions that there was place for");
    let mut sent = 0;
    for _ in 0..1000 {
        a.cq.poll(8, &mut |done| sent += u32::from(done.status == WcStatus::Success)).unwrap();
    }
    assert!(sent <= 4, "{sent} messages were acknowledged");
    [&a, &b].iter().for_each(|end| end.device.resume());
}

/// Nor is the one itself, where they come one at a time, each when the one before is done.
#[test]
fn a_lost_completion_is_not_acknowledged() {
    let (a, b) = pair(QpType::Rc);
    b.cq.resize(2, None).unwrap();
    for end in [&a, &b] {
        end.device.pause(Instant::now() + Duration::from_secs(10));
    }
    (0..5).for_each(|_| receive_at(&b, 2 << 20, 8));
    let mut sent = 0;
    for _ in 0..5 {
        a.post(SendOp::Send, 0, 8);
        (0..4).for_each(|_| b.device.progress());
        for _ in 0..100 {
            a.cq.poll(8, &mut |done| sent += u32::from(done.status == WcStatus::Success)).unwrap();
        }
    }
    assert_eq!(sent, 4, "a queue of two entries has four");
    [&a, &b].iter().for_each(|end| end.device.resume());
}

/// Each is asleep when the other's packet comes.
#[test]
fn who_sleeps_is_woken() {
    let (a, b) = pair(QpType::Rc);
    for _ in 0..50 {
        // Nobody polls there: the engine's thread serves the request.
        a.post(SendOp::Write(b.remote(64)), 0, 4);
        assert_eq!(a.completion().status, WcStatus::Success);
        b.post(SendOp::FetchAdd { remote: a.remote(64), add: 1 }, 128, 8);
        assert_eq!(b.completion().status, WcStatus::Success);
    }
    assert_eq!(a.buffer[64..72], 50u64.to_ne_bytes());
}

#[test]
fn what_a_full_ring_does_not_take_waits() {
    let (a, b) = pair(QpType::Rc);
    for round in 0..20 {
        receive_at(&b, 2 << 20, 2 << 20);
        receive_at(&b, 2 << 20, 2 << 20);
        a.post(SendOp::Send, 0, 2 << 20);
        a.post(SendOp::Send, 0, 2 << 20);
        for _ in 0..2 {
            assert_eq!(a.completion().status, WcStatus::Success, "round {round}");
            assert_eq!(b.completion().byte_len, 2 << 20);
        }
    }
    assert_eq!(a.counted(Counter::RxDropped), 0);
}

/// A target need not be ready to send, as perftest's is not: its answers go by the ring all the
/// same, and wait for room there. More is asked for than it holds, by who reads nothing of it.
#[test]
fn answers_wait_for_room_before_ready_to_send() {
    let (a, b) = pair(QpType::Rc);
    let attr = QpAttr { qp_state: QpState::Reset, ..b.qp.query() };
    b.qp.modify(&attr, AttrMask::STATE).unwrap();
    b.ready_to_receive(&a);
    reconnect(&a, &b);
    let (length, reads) = (64 << 10, 16);
    let started = Instant::now();
    let in_time = || assert!(started.elapsed() < Duration::from_secs(40), "it takes too long");
    let ask = || a.post(SendOp::Read(b.remote(0)), 0, length);
    let end = || assert_eq!(a.completion().status, WcStatus::Success);
    // The window grows, too.
    let mut rounds = 0;
    while rounds < 8 {
        let before = [&a, &b].map(ring_packets);
        for _ in 0..reads {
            ask();
            end();
        }
        rounds += u32::from(ring_packets(&a) > before[0] && ring_packets(&b) > before[1]);
        in_time();
    }
    a.device.pause(Instant::now() + PAUSE);
    let count = || (b.counted(Counter::SentPackets), ring_packets(&b));
    let (sent, by_ring) = count();
    let again = a.counted(Counter::Retransmits);
    (0..reads).for_each(|_| ask());
    // What is left of it then has room for no packet more.
    let in_ring = (shm::RING_BYTES >> 15) as u64 - 4;
    while count().1 < by_ring + in_ring {
        in_time();
        std::thread::yield_now();
    }
    a.device.resume();
    (0..reads).for_each(|_| end());
    let packets = u64::from(reads * (length >> 15));
    assert_eq!(count(), (sent + packets, by_ring + packets));
    // Where it stood for long, it may have asked whether its last request had come.
    let repeated = a.counted(Counter::Retransmits) - again;
    assert!(repeated <= 1, "{repeated} requests came again");
}

/// Its ring is full, and it has not ended: a debugger has it, for instance.
#[test]
fn who_stands_still_gives_a_retry_error() {
    let (a, b) = pair(QpType::Rc);
    b.device.pause(Instant::now() + Duration::from_secs(10));
    for _ in 0..8 {
        a.post(SendOp::Write(b.remote(0)), 0, 1 << 20);
    }
    assert_eq!(a.completion().status, WcStatus::RetryExcErr);
    for _ in 1..8 {
        assert_eq!(a.completion().status, WcStatus::WrFlushErr);
    }
}

fn reconnect(end: &End, to: &End) {
    let attr = QpAttr { qp_state: QpState::Reset, ..end.qp.query() };
    end.qp.modify(&attr, AttrMask::STATE).unwrap();
    end.connect(to);
}

/// Its slot may be another's, and its ring is read no more.
#[test]
fn who_has_gone_gives_a_retry_error_and_who_comes_is_reached_again() {
    let options = options();
    let a = End::beside("one", &options, QpType::Rc);
    for _ in 0..3 {
        let b = End::beside("two", &options, QpType::Rc);
        let again = End::beside("three", &options, QpType::Rc);
        reconnect(&a, &b);
        b.connect(&a);
        message(&a, &b, 100);
        b.device.close();
        drop(b);
        a.post(SendOp::Send, 0, 8);
        assert_eq!(a.completion().status, WcStatus::RetryExcErr);
        reconnect(&a, &again);
        again.connect(&a);
        message(&a, &again, 100);
    }
}

/// What a peer answered before its end is read after it, by the packets that it was asked for in.
#[test]
fn what_a_peer_has_answered_counts_after_its_end() {
    for round in 0..10 {
        let (mut a, b) = pair(QpType::Rc);
        [&a, &b].iter().for_each(|end| end.device.pause(Instant::now() + PAUSE));
        let length = 96 << 10;
        a.post(SendOp::Read(b.remote(0)), 1 << 20, length);
        assert_eq!(b.cq.poll(1, &mut |_| ()).unwrap(), 0);
        let expected = b.buffer[..length as usize].to_vec();
        a.buffer[1 << 20..(1 << 20) + length as usize].fill(0xee);
        b.device.close();
        drop(b);
        assert_eq!(a.completion().status, WcStatus::Success, "round {round}");
        assert!(a.buffer[1 << 20..].starts_with(&expected), "round {round}");
    }
}

/// The peer's only queue pair ends, and with it its ring; its next one has a new ring, which is not
/// read at first. What is refused ends the connection, so nothing would come again.
#[test]
fn an_answer_comes_where_it_can_be_seen_when_the_peer_has_a_new_ring() {
    let (mut a, b) = pair(QpType::Rc);
    let init = QpInit {
        send_cq: Some(a.cq.clone()),
        recv_cq: Some(a.cq.clone()),
        cap: ends::CAP,
        sq_sig_all: true,
        ..QpInit::new(QpType::Rc)
    };
    let next = a.device.create_qp(&a.pd, init).unwrap();
    // It keeps the ring to the peer, which reads that already.
    let _keeper = std::mem::replace(&mut a.qp, next);
    let length = 64 << 10;
    let too_far = b.remote(b.buffer.len() as u64 - u64::from(length) + 1);
    for round in 0..50 {
        let attr = QpAttr { qp_state: QpState::Reset, ..b.qp.query() };
        b.qp.modify(&attr, AttrMask::STATE).unwrap();
        // It is ready, and knows of the old ring only.
        reconnect(&a, &b);
        b.connect(&a);
        a.post(SendOp::Read(too_far), 0, length);
        assert_eq!(a.completion().status, WcStatus::RemAccessErr, "round {round}");
    }
}
