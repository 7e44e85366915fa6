//! Two devices of one process whose packets pass through rings in shared memory: what arrives, how
//! they are woken, and what happens when one of them goes.

mod ends;

use ends::{End, options};
use hca::*;
use std::time::{Duration, Instant};
use transport::Counter;

/// Two connected ends, once each reads the other's ring.
fn pair(qp_type: QpType) -> (End, End) {
    let options = options();
    let (a, b) = (End::beside("one", &options, qp_type), End::beside("two", &options, qp_type));
    a.connect(&b);
    b.connect(&a);
    // Packets go by the wire until the other's thread has attached the ring.
    let started = Instant::now();
    while ring_packets(&a) == 0 || ring_packets(&b) == 0 {
        assert!(started.elapsed() < Duration::from_secs(20), "no ring was attached");
        message(&a, &b, 1);
        message(&b, &a, 1);
    }
    (a, b)
}

fn ring_packets(end: &End) -> u64 {
    end.device.directory().reader().unwrap().counter(Counter::RingPackets)
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
            let packets = length.div_ceil(16 << 10).max(1) as u64;
            assert!(ring_packets(&a) - before >= packets, "{qp_type:?}, {length} bytes");
        }
    }
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
    assert_eq!(a.device.directory().reader().unwrap().counter(Counter::RxDropped), 0);
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
