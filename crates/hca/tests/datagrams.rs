//! Datagrams between two devices of one process that pass through rings in shared memory: what
//! arrives and in which order, what a full ring does, and what happens when one of them goes.

mod ends;

use ends::{End, QKEY, options};
use hca::*;
use std::sync::Arc;
use std::time::{Duration, Instant};
use transport::Counter;

/// Bytes before a datagram in the memory of who receives it (IBA 11.4.1.2).
const GRH_LEN: usize = 40;
const LIMIT: Duration = Duration::from_secs(20);

fn ends(options: &registry::Options) -> [End; 2] {
    ["one", "two"].map(|name| {
        let end = End::beside(name, options, QpType::Ud);
        end.ready_datagrams();
        end
    })
}

/// Where `from` sends what is for `to`.
fn destination(from: &End, to: &End) -> Datagram {
    let ah: Arc<AddressHandle> = from.device.create_ah(&from.pd, &from.ah()).unwrap();
    Datagram { ah, remote_qpn: to.qp.number(), remote_qkey: QKEY }
}

fn receive_at(end: &End, at: usize, length: u32) {
    let wr = RecvWr { wr_id: at as u64, scatter: [end.sge(at, length)].into_iter().collect() };
    end.qp.post_recv(&mut [Ok(wr)].into_iter()).unwrap();
}

/// Sends a datagram of so many bytes and takes it; where it is.
fn message(from: &End, to: &End, by: &Datagram, length: u32) -> usize {
    let at = 2 << 20;
    receive_at(to, at, length + GRH_LEN as u32);
    from.post_to(SendOp::Send, 0, length, Some(by.clone()));
    let received = to.completion();
    assert_eq!((received.status, received.byte_len), (WcStatus::Success, length + 40));
    assert_eq!(received.src_qp, from.qp.number());
    assert_eq!(from.completion().status, WcStatus::Success);
    at
}

/// Sends until datagrams pass through a ring: they go by the wire until the other's thread has
/// attached it.
fn until_by_ring(from: &End, to: &End, by: &Datagram) {
    let (before, started) = (from.counted(Counter::RingPackets), Instant::now());
    while from.counted(Counter::RingPackets) == before {
        assert!(started.elapsed() < LIMIT, "no ring was attached");
        message(from, to, by, 1);
    }
}

#[test]
fn datagrams_of_all_lengths_arrive_whole_with_their_header() {
    let [mut a, b] = ends(&options());
    let to = destination(&a, &b);
    until_by_ring(&a, &b, &to);
    for (round, length) in [0, 1, 7, 8, 1023, 1024, 1025, 4095, 4096].into_iter().enumerate() {
        for (i, byte) in a.buffer[..4096].iter_mut().enumerate() {
            *byte = (i * 29 % 247 + round) as u8;
        }
        let before = a.counted(Counter::RingPackets);
        let at = message(&a, &b, &to, length);
        assert_eq!(a.counted(Counter::RingPackets), before + 1, "{length} bytes");
        let (grh, payload) = b.buffer[at..].split_at(GRH_LEN);
        assert!(payload[..length as usize] == a.buffer[..length as usize], "{length} bytes");
        // An IPv4 header is in its second half, with both addresses at its end.
        assert_eq!(grh[32..], [127, 0, 0, 1, 127, 0, 0, 1], "{length} bytes");
    }
}

/// Many are under way while they go over from the wire to the ring.
#[test]
fn they_keep_their_order_when_they_go_over() {
    for _ in 0..15 {
        let [mut a, b] = ends(&options());
        let to = destination(&a, &b);
        let (mut sent, mut done, mut received) = (0u64, 0u64, 0u64);
        let (mut by_ring, started) = (0, Instant::now());
        (0..64).for_each(|place| receive_at(&b, (2 << 20) + place * 64, 48));
        while by_ring < 500 {
            assert!(started.elapsed() < LIMIT, "{sent} sent, {received} received");
            if sent - received < 32 && sent - done < 32 {
                a.buffer[..8].copy_from_slice(&sent.to_ne_bytes());
                a.post_to(SendOp::Send, 0, 8, Some(to.clone()));
                sent += 1;
            }
            a.cq.poll(1, &mut |_| done += 1).unwrap();
            let mut at = None;
            b.cq.poll(1, &mut |completion| at = Some(completion.wr_id as usize)).unwrap();
            if let Some(at) = at {
                let number = b.buffer[at + GRH_LEN..][..8].try_into().unwrap();
                assert_eq!(u64::from_ne_bytes(number), received);
                received += 1;
                receive_at(&b, at, 48);
            }
            by_ring = a.counted(Counter::RingPackets);
        }
    }
}

/// As a full socket does: what nobody takes waits, and is not lost on the way.
#[test]
fn a_full_ring_holds_them_back() {
    const ALL: u64 = 400;
    let [a, b] = ends(&options());
    let to = destination(&a, &b);
    until_by_ring(&a, &b, &to);
    let (by_ring, taken) = (a.counted(Counter::RingPackets), b.counted(Counter::RcvdPackets));
    b.device.pause(Instant::now() + LIMIT);
    let (mut sent, mut done) = (0, 0);
    let mut send_more = |most: u64| {
        if sent < most && sent - done < 60 {
            a.post_to(SendOp::Send, 0, 4096, Some(to.clone()));
            sent += 1;
        }
        a.cq.poll(8, &mut |completion| {
            assert_eq!(completion.status, WcStatus::Success);
            done += 1;
        })
        .unwrap();
        done
    };
    let (mut held, mut since) = (0, Instant::now());
    while held < 20 || since.elapsed() < Duration::from_millis(300) {
        let now = send_more(ALL);
        if now != held {
            (held, since) = (now, Instant::now());
        }
        assert!(since.elapsed() < LIMIT, "nothing leaves");
    }
    assert!((20..ALL - 60).contains(&held), "{held} left although nobody reads");
    b.device.resume();
    let deadline = Instant::now() + LIMIT;
    while send_more(ALL) < ALL {
        assert!(Instant::now() < deadline, "the rest does not leave");
    }
    while b.counted(Counter::RcvdPackets) < taken + ALL {
        assert!(Instant::now() < deadline, "the rest does not arrive");
        std::thread::yield_now();
    }
    assert_eq!(a.counted(Counter::RingPackets), by_ring + ALL);
    assert_eq!(b.counted(Counter::OutOfBuffer), ALL, "there was no request for any");
}

#[test]
fn a_wrong_queue_key_is_dropped() {
    let [a, b] = ends(&options());
    let to = destination(&a, &b);
    until_by_ring(&a, &b, &to);
    let dropped = b.counted(Counter::RxDropped);
    let wrong = Datagram { remote_qkey: QKEY + 1, ..to.clone() };
    a.post_to(SendOp::Send, 0, 8, Some(wrong));
    assert_eq!(a.completion().status, WcStatus::Success);
    message(&a, &b, &to, 8);
    assert_eq!(b.counted(Counter::RxDropped), dropped + 1);
}

/// Nobody tells a sender of datagrams; and whoever comes is reached again.
#[test]
fn who_has_gone_is_nobodys_error() {
    let options = options();
    let [a, mut b] = ends(&options);
    for _ in 0..3 {
        let to = destination(&a, &b);
        until_by_ring(&a, &b, &to);
        b.device.close();
        for _ in 0..10 {
            a.post_to(SendOp::Send, 0, 8, Some(to.clone()));
            assert_eq!(a.completion().status, WcStatus::Success);
        }
        drop(b);
        b = End::beside("again", &options, QpType::Ud);
        b.ready_datagrams();
    }
}
