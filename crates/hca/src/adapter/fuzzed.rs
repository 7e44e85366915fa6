//! What another process of the host may write to, without a device around it, for those who fuzz it
//! and look into it: rings and directories. Not part of the API.

use super::attach::{between, ring_from};
use super::directory::neighbour::{Neighbour, Wanted};
use super::directory::{self, Directory, Reader};
use super::rings::{Incoming, PACKETS_A_TURN, RING_MTU};
use mm::OtherProcess;
use rustix::fd::{AsFd, OwnedFd};
use shm::RingWriter;
use transport::Rx;
use transport::values::Remote;

/// Where the parts of a directory begin: its header, counters, QPs, MKEYs, routes, groups, passes
/// and announced rings.
pub const PARTS: [usize; 8] = directory::PARTS;
/// Bytes that the passes take: a count of those who wait, and then a line for each.
pub const PASSES_LEN: usize = shm::Passes::BYTES;

/// Short packets that are taken before others.
const SHORT_PACKETS: usize = 4;
/// A process that everybody may ask for memory, and that gives none: its copies are never made.
const NOBODY: u32 = 1;

/// A ring from the device at a slot with one directory to the device with another.
pub fn ring_between(slot: u16, from: &Directory, to: &Directory) -> Option<RingWriter> {
    RingWriter::create(between((slot, from.token()), to.token())).ok()
}

/// The rings that one device reads.
pub struct ReadRings(Incoming);

impl ReadRings {
    /// None yet; `None` where there is no memory.
    pub fn new() -> Option<ReadRings> {
        Some(ReadRings(Incoming::new().ok()?))
    }

    /// Attaches what was announced in the device's directory.
    pub fn attach(&mut self, directory: &Directory) {
        for slot in (0..registry::SLOTS).filter(|slot| directory.has_announced(*slot)) {
            if !self.0.doubt(slot) {
                continue;
            }
            let announced = directory.take_announced(slot);
            let to = directory.token();
            if let Some(ring) = announced.and_then(|announced| ring_from(slot, to, announced)) {
                self.0.add(ring);
            }
        }
    }

    /// The slots of the devices whose rings are read.
    pub fn slots(&self) -> impl Iterator<Item = u16> {
        self.0.slots()
    }

    /// One turn: the queue pairs that packets were for, all of whose payload was looked at. Short
    /// ones are taken first, as a turn does.
    ///
    /// # Panics
    /// When a turn takes more than it may, or there is less payload than a packet says.
    pub fn receive(&mut self) -> Vec<u32> {
        let mut seen = Vec::new();
        self.0.forget_those_over();
        while seen.len() < SHORT_PACKETS
            && self.0.take_short(|_, short| {
                seen.push(short.dest_qp());
                true
            })
        {}
        let short = seen.len();
        let mut look = |rx: &Rx<'_>| {
            seen.push(rx.headers.bth.dest_qp);
            let Some(in_ring) = rx.in_transit else { return };
            let len = in_ring.bytes();
            assert!(len <= RING_MTU as usize, "{len} bytes of payload");
            let mut looked_at = false;
            in_ring.whole(&mut |bytes| {
                assert_eq!(bytes.len(), len);
                looked_at = true;
            });
            assert!(looked_at && in_ring.copy(len, &mut [0]).is_err());
        };
        let packets = self.0.receive(&mut |row| {
            let qpn = row.dest_qp();
            row.each(&mut |rx| {
                look(rx);
                rx.headers.bth.dest_qp == qpn
            });
            true
        });
        assert!(short + packets == seen.len() && packets <= PACKETS_A_TURN);
        seen
    }
}

/// A request to another process.
#[derive(Clone, Copy, Debug)]
pub struct Request {
    /// The queue pair that makes it.
    pub qpn: u32,
    /// The one that it is made to.
    pub dest_qpn: u32,
    /// The addresses of its packets, as one number.
    pub ends: u64,
    /// Where it is for.
    pub addr: u64,
    /// By this key.
    pub rkey: u32,
    /// Bytes.
    pub length: u32,
    /// Whether it is a WRITE, or else a READ.
    pub write: bool,
}

/// Where the request would reach by this directory of another process, if it is granted there.
/// Counts its bytes in the directory, and moves none.
pub fn reached(fd: OwnedFd, request: Request) -> Option<u64> {
    let Request { qpn, dest_qpn, ends, addr, rkey, length, write } = request;
    // What it says of a word in that process's memory is looked at as well.
    drop(Neighbour::agree(fd.try_clone().ok()?, NOBODY));
    let neighbour = Neighbour::of(Reader::open(fd.as_fd()).ok()?, OtherProcess::new(NOBODY)?)?;
    let remote = Remote { addr, rkey };
    let (pid, goes_on) = (0, false);
    let now = std::time::Instant::now();
    let wanted = Wanted { pid, qpn, dest_qpn, ends, remote, length, goes_on, write, now };
    let found = neighbour.find(&wanted)?;
    let visit = neighbour.visit(&found)?;
    visit.count(0, length.into(), true);
    Some(visit.addr())
}
