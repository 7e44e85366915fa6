use super::super::record::{SAME_ENDS, WITH_ENDS};
use super::*;
use crate::adapter::directory::Directory;
use shm::{Between, RingWriter};
use std::sync::atomic::Ordering::Relaxed;

const BETWEEN: Between = Between { from: 8, to: 9 };

/// A ring from the device at `slot`, which is open, and who writes it.
fn ring(slot: u16) -> (RingWriter, RingFrom) {
    let writer = RingWriter::create(BETWEEN).unwrap();
    let from = from(slot, &writer, &directory());
    (writer, from)
}

fn from(slot: u16, writer: &RingWriter, directory: &Directory) -> RingFrom {
    let reader = RingReader::open(writer, BETWEEN).unwrap();
    RingFrom::new(slot, Reader::open(directory).unwrap(), reader)
}

fn directory() -> Directory {
    Directory::create("peerdma-test", 5).unwrap()
}

fn packet() -> Vec<u8> {
    packet_to(0x1234)
}

/// An acknowledge from and to 127.0.0.1.
fn packet_to(qpn: u16) -> Vec<u8> {
    let mut record = vec![0; 40];
    let loopback = std::net::Ipv4Addr::LOCALHOST.to_ipv6_mapped().octets();
    record[..16].copy_from_slice(&loopback);
    record[16..32].copy_from_slice(&loopback);
    record.extend([0x11, 0x40, 0xff, 0xff, 0, 0]);
    record.extend(qpn.to_be_bytes());
    record.extend([0, 0, 0, 1, 0x1f, 0, 0, 1]);
    record
}

fn received(incoming: &mut Incoming) -> Vec<u32> {
    let mut seen = Vec::new();
    incoming.receive(&mut |row| {
        let qpn = row.dest_qp();
        row.each(&mut |rx| {
            assert_eq!(rx.headers.bth.dest_qp, qpn);
            seen.push(qpn);
            true
        });
        true
    });
    seen
}

#[test]
fn what_is_no_packet_ends_its_ring_only() {
    let garbage: [&[u8]; 4] = [b"", &[0; 40], &[0xff; 200], &[0; MAX_RECORD_LEN + 1]];
    for record in garbage {
        let mut incoming = Incoming::new().unwrap();
        let ((mut bad, from_bad), (mut good, from_good)) = (ring(3), ring(4));
        bad.push(record, WITH_ENDS).unwrap();
        bad.push(&packet(), WITH_ENDS).unwrap();
        good.push(&packet(), WITH_ENDS).unwrap();
        incoming.add(from_bad);
        incoming.add(from_good);
        assert!(bad.is_attached() && good.is_attached());
        assert_eq!(received(&mut incoming), [0x1234], "{} bytes", record.len());
        bad.push(&packet(), WITH_ENDS).unwrap();
        good.push(&packet(), WITH_ENDS).unwrap();
        assert_eq!(received(&mut incoming), [0x1234]);
        assert_eq!(incoming.slots().collect::<Vec<_>>(), [4]);
        assert!(incoming.forget_those_over(), "one broke since the last time");
        assert!(!incoming.forget_those_over());
    }
}

#[test]
fn a_ring_is_read_to_its_end_and_then_forgotten() {
    let mut incoming = Incoming::new().unwrap();
    let mut writers = [3, 4, 5].map(|slot| {
        let writer = RingWriter::create(BETWEEN).unwrap();
        let directory = directory();
        incoming.add(from(slot, &writer, &directory));
        (writer, directory)
    });
    writers[0].0.push(&packet(), WITH_ENDS).unwrap();
    writers[..2].iter().for_each(|(_, directory)| directory.close());
    assert!(incoming.forget_those_over());
    assert_eq!(incoming.rings.len(), 2, "a packet waits in the first");
    assert_eq!(received(&mut incoming), [0x1234]);
    assert!(incoming.forget_those_over());
    let slots: Vec<u16> = incoming.rings.iter().map(|ring| ring.slot).collect();
    assert_eq!(slots, [5]);
}

/// A queue pair that acknowledges and ends may be followed by another with a new ring.
#[test]
fn what_a_former_ring_holds_is_read_first() {
    for turns in 0..3 {
        let mut incoming = Incoming::new().unwrap();
        let ((mut former, from_former), (mut present, from_present)) = (ring(3), ring(3));
        incoming.add(from_former);
        incoming.next = turns;
        former.push(&packet(), WITH_ENDS).unwrap();
        assert!(incoming.doubt(3));
        assert_eq!(incoming.slots().count(), 0);
        incoming.add(from_present);
        present.push(&packet_to(0x77), WITH_ENDS).unwrap();
        assert_eq!(incoming.slots().collect::<Vec<_>>(), [3]);
        assert!(!incoming.doubt(3), "a third has to wait");
        assert_eq!([received(&mut incoming), received(&mut incoming)].concat(), [0x1234, 0x77]);
        assert!(incoming.doubt(3));
        assert!(incoming.forget_those_over());
        assert_eq!(incoming.rings.len(), 1);
    }
}

/// The number of the descriptor that was announced first is the second ring's, too, when it is
/// opened at last.
#[test]
fn a_ring_that_is_announced_twice_is_read_on() {
    let mut incoming = Incoming::new().unwrap();
    let (mut writer, first) = ring(3);
    incoming.add(first);
    for round in 0..3 {
        let packet = packet();
        // The first says its ends.
        let (packet, tag) = match round {
            0 => (&packet[..], WITH_ENDS),
            _ => (&packet[40..], SAME_ENDS),
        };
        writer.push(packet, tag).unwrap();
        if round < 2 {
            assert_eq!(received(&mut incoming), [0x1234]);
        }
        assert!(incoming.doubt(3));
        // One that cannot be opened is announced as well.
        assert!(incoming.doubt(3) && incoming.slots().count() == 0);
        incoming.add(from(3, &writer, &directory()));
        assert_eq!(incoming.slots().collect::<Vec<_>>(), [3]);
    }
    assert_eq!(received(&mut incoming), [0x1234]);
    assert_eq!(incoming.rings.len(), 1);
}

/// Writes numbers of a sequence over the records of a ring, for a while.
fn scribble(ring: &RingReader, seed: u64) {
    let mut random = seed;
    for _ in 0..100_000 {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let at = 192 + (random >> 33) as usize % (shm::RING_BYTES / 8) * 8;
        ring.shm().word(at).store(random >> 7, Relaxed);
    }
}

/// What is looked at twice may differ: whatever is read, it is of the ring.
#[test]
fn a_writer_may_change_what_is_being_read() {
    let (short, mut long) = (packet(), packet());
    // An RDMA WRITE's only packet.
    long[40] = 0x0a;
    long.resize(8192, 0);
    let mut ended = 0;
    for seed in 1..=64 {
        let (mut writer, from) = ring(3);
        let scribbled = RingReader::open(&writer, BETWEEN).unwrap();
        let mut incoming = Incoming::new().unwrap();
        incoming.add(from);
        std::thread::scope(|scope| {
            let scribbler = scope.spawn(|| scribble(&scribbled, seed));
            while !scribbler.is_finished() {
                while writer.push(&long, WITH_ENDS) == Ok(true)
                    && writer.push(&short, WITH_ENDS) == Ok(true)
                {}
                incoming.receive(&mut |row| {
                    row.each(&mut |rx| {
                        let len = rx.payload_len();
                        assert!(len <= MAX_RECORD_LEN, "seed {seed}: {len} bytes");
                        if let Some(in_ring) = rx.in_transit {
                            in_ring.whole(&mut |bytes| assert_eq!(bytes.len(), len));
                        }
                        true
                    });
                    true
                });
            }
        });
        ended += usize::from(incoming.is_empty());
    }
    println!("{ended} of 64 rings were ended");
}

#[test]
fn a_turn_takes_a_part_of_each() {
    let mut incoming = Incoming::new().unwrap();
    for slot in [3, 4] {
        let (mut writer, from) = ring(slot);
        (0..PACKETS_A_TURN).for_each(|_| assert!(writer.push(&packet(), WITH_ENDS).unwrap()));
        incoming.add(from);
    }
    for _ in 0..2 {
        assert!(incoming.has_more());
        assert_eq!(received(&mut incoming).len(), PACKETS_A_TURN);
    }
    assert!(!incoming.has_more());
}

/// A SEND of `payload` from and to 127.0.0.1, without its ends.
fn send_to(qpn: u16, payload: &[u8]) -> Vec<u8> {
    let [high, low] = qpn.to_be_bytes();
    let pad = payload.len().wrapping_neg() % 4;
    let mut packet = vec![4, 0x40 | (pad as u8) << 4, 0xff, 0xff, 0, 0, high, low, 0x80, 0, 0, 1];
    packet.extend_from_slice(payload);
    packet.resize(packet.len() + pad, 0);
    packet
}

/// What is taken as short; `refuses` a queue pair.
fn short(incoming: &mut Incoming, refuses: u32) -> Option<u32> {
    let mut seen = None;
    let taken = incoming.take_short(|ends, short| {
        assert!(ends.src.is_loopback() && ends.dst.is_loopback());
        seen = Some(short.dest_qp());
        short.dest_qp() != refuses
    });
    seen.filter(|_| taken)
}

#[test]
fn short_packets_are_taken_where_nothing_has_to_be_looked_at_before() {
    let mut incoming = Incoming::new().unwrap();
    assert_eq!(short(&mut incoming, 0), None);
    let (mut writer, from) = ring(3);
    incoming.add(from);
    // The first says its ends.
    writer.push(&packet_to(1), WITH_ENDS).unwrap();
    assert_eq!((short(&mut incoming, 0), received(&mut incoming)), (None, vec![1]));
    // Acknowledges in a row, but of SENDs to a queue pair only the last.
    let sends = [send_to(3, b"123"), send_to(4, b"4567"), send_to(4, b"8")];
    writer.push(&packet_to(2)[40..], SAME_ENDS).unwrap();
    sends.iter().for_each(|send| assert!(writer.push(send, SAME_ENDS).unwrap()));
    let three: [_; 3] = std::array::from_fn(|_| short(&mut incoming, 0));
    assert_eq!(three, [Some(2), Some(3), None]);
    assert_eq!(received(&mut incoming), [4, 4]);
    // What is behind may say its ends.
    for (qpn, taken, left) in [(6, Some(5), 1), (5, None, 2)] {
        writer.push(&send_to(5, b"9"), SAME_ENDS).unwrap();
        writer.push(&packet_to(qpn), WITH_ENDS).unwrap();
        assert_eq!((short(&mut incoming, 0), received(&mut incoming).len()), (taken, left));
    }
    writer.push(&send_to(5, &[7; wire::SHORT_PAYLOAD]), SAME_ENDS).unwrap();
    assert_eq!(short(&mut incoming, 0), Some(5));
    // What its queue pair does not take, and what is too long, stays.
    for (packet, refused) in [(send_to(6, b""), 6), (send_to(6, &[7; 1 + wire::SHORT_PAYLOAD]), 0)]
    {
        writer.push(&packet, SAME_ENDS).unwrap();
        assert_eq!((short(&mut incoming, refused), received(&mut incoming)), (None, vec![6]));
    }
    // Behind it is none.
    writer.push(&send_to(7, b"1"), SAME_ENDS).unwrap();
    writer.push(b"no packet", SAME_ENDS).unwrap();
    assert_eq!((short(&mut incoming, 0), incoming.is_empty()), (None, false));
    assert_eq!((received(&mut incoming), incoming.is_empty()), (vec![7], true));
}

#[test]
fn short_packets_of_several_rings_take_turns_and_wait_for_a_former_one() {
    let mut incoming = Incoming::new().unwrap();
    let mut writers = [3, 4].map(|slot| {
        let (mut writer, from) = ring(slot);
        incoming.add(from);
        writer.push(&packet_to(slot), WITH_ENDS).unwrap();
        writer
    });
    assert_eq!(received(&mut incoming).len(), 2);
    for _ in 0..2 {
        writers[0].push(&packet_to(30)[40..], SAME_ENDS).unwrap();
        writers[1].push(&packet_to(40)[40..], SAME_ENDS).unwrap();
    }
    let mut seen: [u32; 4] = std::array::from_fn(|_| short(&mut incoming, 0).unwrap());
    assert_ne!(seen[0], seen[1]);
    seen.sort_unstable();
    assert_eq!(seen, [30, 30, 40, 40]);
    // The device at slot 3 goes over to another ring, while the first still holds something.
    writers[0].push(&packet_to(31)[40..], SAME_ENDS).unwrap();
    let (mut second, from) = ring(3);
    incoming.add(from);
    second.push(&packet_to(32), WITH_ENDS).unwrap();
    assert_eq!(short(&mut incoming, 0), None);
    assert_eq!([received(&mut incoming), received(&mut incoming)].concat(), [31, 32]);
}

#[test]
fn rings_that_are_over_leave_the_rest_in_order() {
    let mut incoming = Incoming::new().unwrap();
    let directories: [Directory; 3] = std::array::from_fn(|_| directory());
    let mut writers: [RingWriter; 3] = std::array::from_fn(|index| {
        let mut writer = RingWriter::create(BETWEEN).unwrap();
        writer.push(&packet_to(1), WITH_ENDS).unwrap();
        incoming.add(from(3 + index as u16, &writer, &directories[index]));
        writer
    });
    while incoming.next != 2 {
        writers[0].push(&packet_to(1)[40..], SAME_ENDS).unwrap();
        received(&mut incoming);
    }
    incoming.rings[0].standing = Standing::HasEnded;
    incoming.rings[1].standing = Standing::HasEnded;
    assert!(incoming.forget_those_over() && incoming.rings.len() == 1);
    assert_eq!(short(&mut incoming, 0), None);
    writers[2].push(&packet_to(9)[40..], SAME_ENDS).unwrap();
    assert_eq!(short(&mut incoming, 0), Some(9));
}
