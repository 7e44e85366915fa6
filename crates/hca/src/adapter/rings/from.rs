//! The rings that other processes write and this one reads, in turns of progress.

use super::in_ring::InRing;
use super::record::{Ends, HEAD_LEN, LONG, MAX_RECORD_LEN, packet_at, parse};
use crate::adapter::directory::Reader;
use link::Datagram;
use shm::{Record, RingReader};
use transport::executor::InTransit;
use wire::{BTH_LEN, Opcode};

/// Takes a packet, and its payload if that is still in the ring; `false`: not now.
pub(crate) type Each<'a> = dyn FnMut(&Datagram<'_>, Option<&dyn InTransit>) -> bool + 'a;

/// Packets that one turn takes.
pub(crate) const PACKETS_A_TURN: usize = 256;
/// Bytes of payload after which a turn takes no more.
const BYTES_A_TURN: usize = 256 << 10;

/// What is known of a ring's writer.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Standing {
    /// It writes this ring.
    Writes,
    /// It has announced a ring that could not be opened, if it is not this one.
    MayHaveEnded,
    /// It has ended with this one, and another is read.
    HasEnded,
}

/// The ring from one other process.
pub(crate) struct RingFrom {
    slot: u16,
    directory: Reader,
    reader: RingReader,
    /// Of the latest record that had any.
    ends: Option<Ends>,
    standing: Standing,
}

impl RingFrom {
    /// The ring of the device with this directory, at `slot`.
    pub(crate) fn new(slot: u16, directory: Reader, reader: RingReader) -> RingFrom {
        RingFrom { slot, directory, reader, ends: None, standing: Standing::Writes }
    }

    /// What the oldest packet does, and the queue pair that it is for, if there is one. `None` when
    /// the ring holds what is none.
    fn peek(&mut self) -> Option<Option<(Opcode, u32)>> {
        let Some((at, record)) = self.reader.peek().ok()? else { return Some(None) };
        let (packet, mut begin) = (packet_at(record.tag)?, [0; BTH_LEN]);
        if record.len < packet + BTH_LEN {
            return None;
        }
        self.reader.read(at + packet, &mut begin);
        let (opcode, dest_qp) = wire::peek(&begin);
        Some(Some((opcode?, dest_qp)))
    }

    /// Takes the oldest packet if it is for this queue pair and `f` takes it: the bytes of its
    /// payload. `None` when the ring holds what is none.
    fn take(&mut self, qpn: u32, record: &mut [u8], f: &mut Each<'_>) -> Option<Option<usize>> {
        let RingFrom { reader, ends, .. } = self;
        let Some((at, Record { len, tag })) = reader.peek().ok()? else { return Some(None) };
        let long = len > LONG;
        let (head, scratch) = record.split_at_mut_checked(if long { HEAD_LEN } else { len })?;
        reader.read(at, head);
        let (ends, headers, payload, before) = parse(tag, head, ends)?;
        if headers.bth.dest_qp != qpn {
            return Some(None);
        }
        let (payload, in_ring) = match long {
            false => (payload, None),
            true => {
                let in_ring = InRing::new(reader, (at, len), (before, &headers), scratch)?;
                (&[][..], Some(in_ring))
            }
        };
        let payload_len = in_ring.as_ref().map_or(payload.len(), InTransit::bytes);
        let datagram = Datagram {
            src: ends.src,
            dst: ends.dst,
            udp_src: 0,
            ifindex: 0,
            traffic_class: ends.traffic_class,
            hop_limit: ends.hop_limit,
            vlan: None,
            headers,
            payload,
        };
        if !f(&datagram, in_ring.as_ref().map(|payload| payload as &dyn InTransit)) {
            return Some(None);
        }
        reader.take(len);
        Some(Some(payload_len))
    }

    /// Whether its writer has ended, or ended with it, and nothing waits in it.
    fn is_over(&self) -> bool {
        let has_ended = self.standing == Standing::HasEnded || self.directory.is_over();
        has_ended && !self.reader.has_more()
    }
}

/// All rings that are read, by one thread at a time.
pub(crate) struct Incoming {
    rings: Vec<RingFrom>,
    /// The one that is read first in the next turn.
    next: usize,
    /// One was ended since it was last asked.
    broke: bool,
    record: Box<[u8]>,
}

impl Incoming {
    /// None yet.
    ///
    /// # Errors
    /// ENOMEM.
    pub(crate) fn new() -> std::io::Result<Incoming> {
        let mut record = Vec::new();
        record
            .try_reserve_exact(HEAD_LEN + MAX_RECORD_LEN)
            .map_err(|_| rustix::io::Errno::NOMEM)?;
        record.resize(HEAD_LEN + MAX_RECORD_LEN, 0);
        let record = record.into_boxed_slice();
        Ok(Incoming { rings: Vec::new(), next: 0, broke: false, record })
    }

    /// Whether there is any.
    pub(crate) fn is_empty(&self) -> bool {
        self.rings.is_empty()
    }

    /// The device at `slot` has announced a ring, and may not write the one that is read any more.
    /// Whether the new one may be looked at: not while one before holds packets, so that there are
    /// two of a device at most, and that one's are taken first.
    pub(crate) fn doubt(&mut self, slot: u16) -> bool {
        self.forget_those_over();
        let mut of_slot = self.rings.iter_mut().filter(|known| known.slot == slot);
        of_slot.all(|known| {
            let has_ended = known.standing == Standing::HasEnded;
            if !has_ended {
                known.standing = Standing::MayHaveEnded;
            }
            !has_ended
        })
    }

    /// Begins to read `ring`, after which its device writes no earlier one; one that is read already
    /// is read on.
    pub(crate) fn add(&mut self, ring: RingFrom) {
        let is_new = match ring.slot < registry::SLOTS && self.rings.try_reserve(1).is_ok() {
            true => ring.reader.attach(),
            // Where there is no memory it stays unattached, and packets go by UDP.
            false => return,
        };
        let of_slot = self.rings.iter_mut().filter(|known| known.slot == ring.slot);
        for known in of_slot.filter(|known| known.standing != Standing::HasEnded) {
            // The descriptor that was announced for the ring before may have become this one's by
            // the time it was opened.
            known.standing = if is_new { Standing::HasEnded } else { Standing::Writes };
        }
        if is_new {
            self.rings.push(ring);
        }
    }

    /// Ends with those that are over; whether there were any, or one broke since the last time.
    pub(in crate::adapter) fn forget_those_over(&mut self) -> bool {
        let before = self.rings.len();
        self.rings.retain(|known| !known.is_over());
        std::mem::take(&mut self.broke) || self.rings.len() != before
    }

    /// The slots of the devices that write them.
    pub(in crate::adapter) fn slots(&self) -> impl Iterator<Item = u16> {
        let read = self.rings.iter().filter(|ring| ring.standing == Standing::Writes);
        read.map(|ring| ring.slot)
    }

    /// Whether a packet waits in any.
    pub(crate) fn has_more(&self) -> bool {
        self.rings.iter().any(|ring| ring.reader.has_more())
    }

    /// Hands out what a turn takes, ring by ring and in rows for one queue pair, until `visit`
    /// takes no more; answers with the packets. A ring that holds what is no packet is not read any
    /// more.
    pub(crate) fn receive(&mut self, visit: &mut dyn FnMut(&mut Row<'_>) -> bool) -> usize {
        let Incoming { rings, next, broke, record } = self;
        let mut taken = Share { packets: 0, bytes: 0 };
        let mut broken = None;
        let count = rings.len();
        let mut goes_on = true;
        for at in 0..count {
            let at = (*next + at) % count;
            if waits_for_another(rings, at) {
                continue;
            }
            while goes_on && !taken.is_over() {
                let (first, qpn) = match rings[at].peek() {
                    Some(Some(first)) => first,
                    Some(None) => break,
                    None => {
                        broken = Some(at);
                        break;
                    }
                };
                let mut row = Row { rings, at, qpn, first, record, taken, broken: false };
                goes_on = visit(&mut row);
                let stuck = row.taken.packets == taken.packets;
                taken = row.taken;
                if row.broken {
                    broken = Some(at);
                    break;
                }
                // What nobody takes now waits for the next turn.
                if stuck {
                    break;
                }
            }
        }
        *next = if count > 0 { (*next + 1) % count } else { 0 };
        if let Some(at) = broken {
            rings.swap_remove(at);
            (*next, *broke) = (0, true);
        }
        taken.packets
    }
}

/// Whether a ring that the device of this one wrote before still holds packets.
fn waits_for_another(rings: &[RingFrom], at: usize) -> bool {
    let has_ended = |ring: &RingFrom| ring.standing == Standing::HasEnded;
    let (before, ring) = (rings.iter().filter(|ring| has_ended(ring)), &rings[at]);
    !has_ended(ring)
        && before.filter(|other| other.slot == ring.slot).any(|other| other.reader.has_more())
}

/// What a turn has taken.
#[derive(Clone, Copy)]
struct Share {
    packets: usize,
    bytes: usize,
}

impl Share {
    /// Whether it takes no more.
    fn is_over(self) -> bool {
        self.packets >= PACKETS_A_TURN || self.bytes >= BYTES_A_TURN
    }
}

/// The oldest packets of a ring, as far as they are for one queue pair.
pub(crate) struct Row<'a> {
    rings: &'a mut [RingFrom],
    /// Which of them.
    at: usize,
    qpn: u32,
    /// What the first of them does.
    first: Opcode,
    record: &'a mut [u8],
    taken: Share,
    broken: bool,
}

impl Row<'_> {
    /// The queue pair.
    pub(crate) fn dest_qp(&self) -> u32 {
        self.qpn
    }

    /// Whether the first of them is a request.
    pub(crate) fn begins_with_request(&self) -> bool {
        !self.first.is_response()
    }

    /// Hands out those that the turn takes, until `f` takes no more.
    pub(crate) fn each(&mut self, f: &mut Each<'_>) {
        while !self.taken.is_over() {
            match self.rings[self.at].take(self.qpn, self.record, f) {
                Some(Some(bytes)) => {
                    self.taken.packets += 1;
                    self.taken.bytes += bytes;
                }
                Some(None) => return,
                None => {
                    self.broken = true;
                    return;
                }
            }
        }
    }

    /// Whether nothing waits in any ring.
    pub(crate) fn was_all(&self) -> bool {
        // Its own first: as long as more comes by that, there is no need to look further.
        let has_more = |ring: &RingFrom| ring.reader.has_more();
        !has_more(&self.rings[self.at]) && !self.rings.iter().any(has_more)
    }
}

#[cfg(test)]
mod tests {
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
            row.each(&mut |datagram, _| {
                assert_eq!(datagram.headers.bth.dest_qp, qpn);
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
                        row.each(&mut |datagram, in_ring| {
                            let len = in_ring.map_or(datagram.payload.len(), InTransit::bytes);
                            assert!(len <= MAX_RECORD_LEN, "seed {seed}: {len} bytes");
                            if let Some(in_ring) = in_ring {
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
}
