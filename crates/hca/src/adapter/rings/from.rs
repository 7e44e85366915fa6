//! The rings that other processes write and this one reads, in turns of progress.

use super::record::{MAX_RECORD_LEN, parse};
use crate::adapter::directory::Reader;
use link::Datagram;
use rustix::fd::OwnedFd;
use shm::RingReader;

/// Packets that one turn takes.
pub(crate) const PACKETS_A_TURN: usize = 256;
/// Bytes of payload after which a turn takes no more.
const BYTES_A_TURN: usize = 256 << 10;

/// The ring from one other process.
pub(crate) struct RingFrom {
    slot: u16,
    directory: Reader,
    reader: RingReader,
}

impl RingFrom {
    /// The ring of the device with this directory, at `slot`.
    pub(crate) fn new(slot: u16, directory: OwnedFd, reader: RingReader) -> Option<RingFrom> {
        Some(RingFrom { slot, directory: Reader::open(directory).ok()?, reader })
    }

    /// Whether its writer has ended and nothing waits in it.
    fn is_over(&self) -> bool {
        self.directory.is_over() && !self.reader.has_more()
    }
}

/// All rings that are read, by one thread at a time.
pub(crate) struct Incoming {
    rings: Vec<RingFrom>,
    /// The one that is read first in the next turn.
    next: usize,
    record: Box<[u8]>,
}

impl Incoming {
    /// None yet.
    ///
    /// # Errors
    /// ENOMEM.
    pub(crate) fn new() -> std::io::Result<Incoming> {
        let mut record = Vec::new();
        record.try_reserve_exact(MAX_RECORD_LEN).map_err(|_| rustix::io::Errno::NOMEM)?;
        record.resize(MAX_RECORD_LEN, 0);
        Ok(Incoming { rings: Vec::new(), next: 0, record: record.into_boxed_slice() })
    }

    /// Whether there is any.
    pub(crate) fn is_empty(&self) -> bool {
        self.rings.is_empty()
    }

    /// Begins to read `ring`, instead of an earlier one of the same device, and ends with those
    /// that are over.
    pub(crate) fn add(&mut self, ring: RingFrom) {
        self.forget_those_over();
        self.rings.retain(|known| known.slot != ring.slot);
        if ring.slot >= registry::SLOTS {
            return;
        }
        // Where there is no memory it stays unattached, and packets go by UDP.
        if self.rings.try_reserve(1).is_ok() && ring.reader.attach() {
            self.rings.push(ring);
        }
    }

    /// Ends with those that are over; whether there were any.
    pub(super) fn forget_those_over(&mut self) -> bool {
        let before = self.rings.len();
        self.rings.retain(|known| !known.is_over());
        self.rings.len() != before
    }

    /// The slots of the devices that write them.
    pub(super) fn slots(&self) -> impl Iterator<Item = u16> {
        self.rings.iter().map(|ring| ring.slot)
    }

    /// Whether a packet waits in any.
    pub(crate) fn has_more(&self) -> bool {
        self.rings.iter().any(|ring| ring.reader.has_more())
    }

    /// Hands out what a turn takes, ring by ring; answers with the packets. One that holds what is
    /// no packet is not read any more.
    pub(crate) fn receive(&mut self, f: &mut dyn FnMut(Datagram<'_>)) -> usize {
        let Incoming { rings, next, record } = self;
        let (mut packets, mut bytes) = (0, 0);
        let mut broken = None;
        let count = rings.len();
        for at in 0..count {
            let at = (*next + at) % count;
            while packets < PACKETS_A_TURN && bytes < BYTES_A_TURN {
                match take(&mut rings[at].reader, record, f) {
                    Some(Some(len)) => (packets, bytes) = (packets + 1, bytes + len),
                    Some(None) => break,
                    None => {
                        broken = Some(at);
                        break;
                    }
                }
            }
        }
        *next = if count > 0 { (*next + 1) % count } else { 0 };
        if let Some(at) = broken {
            rings.swap_remove(at);
            *next = 0;
        }
        packets
    }
}

/// Takes one packet: its bytes, or that there is none. `None` when the ring holds what is none.
fn take(
    reader: &mut RingReader,
    record: &mut [u8],
    f: &mut dyn FnMut(Datagram<'_>),
) -> Option<Option<usize>> {
    let Some(len) = reader.pop(record).ok()? else { return Some(None) };
    let (ends, headers, payload) = parse(&record[..len])?;
    f(Datagram {
        src: ends.src,
        dst: ends.dst,
        udp_src: 0,
        ifindex: 0,
        traffic_class: ends.traffic_class,
        hop_limit: ends.hop_limit,
        vlan: None,
        headers,
        payload,
    });
    Some(Some(payload.len()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::adapter::directory::Directory;
    use rustix::fd::AsFd;
    use shm::RingWriter;

    /// A ring from the device at `slot`, and who writes it.
    fn ring(slot: u16) -> (RingWriter, RingFrom) {
        let writer = RingWriter::create().unwrap();
        let reader = RingReader::open(writer.as_fd().try_clone_to_owned().unwrap()).unwrap();
        let directory = Directory::create("peerdma-test", 5).unwrap();
        directory.close();
        let directory = directory.as_fd().try_clone_to_owned().unwrap();
        (writer, RingFrom::new(slot, directory, reader).unwrap())
    }

    /// An acknowledge from and to 127.0.0.1.
    fn packet() -> Vec<u8> {
        let mut record = vec![0; 40];
        let loopback = std::net::Ipv4Addr::LOCALHOST.to_ipv6_mapped().octets();
        record[..16].copy_from_slice(&loopback);
        record[16..32].copy_from_slice(&loopback);
        record.extend([0x11, 0x40, 0xff, 0xff, 0, 0, 0x12, 0x34, 0, 0, 0, 1, 0x1f, 0, 0, 1]);
        record
    }

    fn received(incoming: &mut Incoming) -> Vec<u32> {
        let mut seen = Vec::new();
        incoming.receive(&mut |datagram| seen.push(datagram.headers.bth.dest_qp));
        seen
    }

    #[test]
    fn what_is_no_packet_ends_its_ring_only() {
        let garbage: [&[u8]; 4] = [b"", &[0; 40], &[0xff; 200], &[0; MAX_RECORD_LEN + 1]];
        for record in garbage {
            let mut incoming = Incoming::new().unwrap();
            let ((mut bad, from_bad), (mut good, from_good)) = (ring(3), ring(4));
            bad.push(record).unwrap();
            bad.push(&packet()).unwrap();
            good.push(&packet()).unwrap();
            incoming.add(from_bad);
            incoming.add(from_good);
            assert!(bad.is_attached() && good.is_attached());
            assert_eq!(received(&mut incoming), [0x1234], "{} bytes", record.len());
            bad.push(&packet()).unwrap();
            good.push(&packet()).unwrap();
            assert_eq!(received(&mut incoming), [0x1234]);
        }
    }

    #[test]
    fn a_ring_is_read_to_its_end_and_then_forgotten() {
        let mut incoming = Incoming::new().unwrap();
        let (mut writer, from) = ring(3);
        writer.push(&packet()).unwrap();
        incoming.add(from);
        let (mut other, from) = ring(4);
        incoming.add(from);
        assert_eq!(incoming.rings.len(), 2, "a packet waits in the first");
        assert_eq!(received(&mut incoming), [0x1234]);
        other.push(&packet()).unwrap();
        let (_third, from) = ring(5);
        incoming.add(from);
        let slots: Vec<u16> = incoming.rings.iter().map(|ring| ring.slot).collect();
        assert_eq!(slots, [4, 5]);
        // Another from the same slot takes its place.
        let (_fourth, from) = ring(4);
        incoming.add(from);
        assert_eq!(received(&mut incoming), []);
    }

    #[test]
    fn a_turn_takes_a_part_of_each() {
        let mut incoming = Incoming::new().unwrap();
        for slot in [3, 4] {
            let (mut writer, from) = ring(slot);
            (0..PACKETS_A_TURN).for_each(|_| assert!(writer.push(&packet()).unwrap()));
            incoming.add(from);
        }
        for _ in 0..2 {
            assert!(incoming.has_more());
            assert_eq!(received(&mut incoming).len(), PACKETS_A_TURN);
        }
        assert!(!incoming.has_more());
    }
}
