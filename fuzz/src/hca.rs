//! Targets of the crate `hca`: what it shares with other processes of the host.

use crate::steps::Steps;
use hca::Access;
use hca::directory::{Directory, Reader};
use hca::fuzzed::{PARTS, ReadRings, Request, reached, ring_between};
use rustix::io::{pread, pwrite};
use shm::{Record, RingWriter};
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::OnceLock;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

/// Bytes of each part of a directory that an input covers.
const WINDOW: usize = 512;
const IMAGE: usize = WINDOW * PARTS.len();
/// Parts that only their owner changes: header, MKEYs, groups, announced rings.
const OF_THE_OWNER: [usize; 4] = [0, 3, 5, 7];

/// A directory whose tables are large, and the first bytes of its parts when it was fresh; targets
/// write over them.
fn template() -> &'static (Directory, Vec<u8>) {
    static TEMPLATE: OnceLock<(Directory, Vec<u8>)> = OnceLock::new();
    TEMPLATE.get_or_init(|| {
        let directory = Directory::create("fuzz", 1).expect("a memfd");
        let fresh = image(&directory);
        (directory, fresh)
    })
}

/// The first bytes of all parts.
fn image(directory: &Directory) -> Vec<u8> {
    let mut bytes = vec![0; IMAGE];
    for (place, part) in PARTS.iter().zip(bytes.chunks_mut(WINDOW)) {
        let _ = pread(directory.as_fd(), part, *place as u64);
    }
    bytes
}

/// The directory, with these bytes at the beginnings of its parts.
fn written_over(data: &[u8]) -> &'static Directory {
    let (directory, fresh) = template();
    let covered = data.len().min(IMAGE);
    let bytes = [&data[..covered], &fresh[covered..]].concat();
    for (place, part) in PARTS.iter().zip(bytes.chunks(WINDOW)) {
        let _ = pwrite(directory.as_fd(), part, *place as u64);
    }
    directory
}

/// A directory is written by another process while it is read: any words may be in it. The input is
/// written over the beginnings of its parts.
pub fn directory(data: &[u8]) {
    let Ok(reader) = Reader::open(written_over(data)) else { return };
    let _ = (reader.name(), reader.pid(), reader.guid(), reader.counters().count());
    let _ = (reader.data_direct(), reader.is_on_subnet());
    assert!(reader.first_qps(64).iter().all(|qp| qp.number < 1 << 24));
    let _ = (reader.first_keys(64), reader.memberships(), reader.routes());
    let asked = reader.ask_data_direct(true);
    let _ = reader.wait_done(asked, Duration::ZERO);
}

/// A valid header.
pub fn directory_seeds() -> Vec<Vec<u8>> {
    vec![template().1.clone(), template().1[..2048].to_vec()]
}

/// A request to a neighbour, and what that says in its directory of its queue pairs and its memory:
/// first the request, then the beginnings of the directory's parts. Nothing but counts and passes
/// is written there.
pub fn neighbour(data: &[u8]) {
    let mut steps = Steps::new(data);
    let request = Request {
        qpn: steps.word() as u32,
        dest_qpn: steps.word() as u32,
        ends: steps.word(),
        addr: steps.word(),
        rkey: steps.word() as u32,
        length: steps.word() as u32,
        write: steps.byte().is_multiple_of(2),
    };
    let directory = written_over(data.get(REQUEST_LEN..).unwrap_or_default());
    let Ok(fd) = directory.as_fd().try_clone_to_owned() else { return };
    let before = image(directory);
    let _ = reached(fd, request);
    let after = image(directory);
    for part in OF_THE_OWNER {
        let window = part * WINDOW..(part + 1) * WINDOW;
        assert_eq!(before[window.clone()], after[window], "part {part} of the directory");
    }
}

const REQUEST_LEN: usize = 6 * 8 + 1;
/// The queue pair and the key of the seeds, their entries, and the words of one.
const QPN: u64 = 5;
const KEY: u64 = 3 << 8 | 7;
const QP_AT: usize = 2 * WINDOW + 5 * 64;
const KEY_AT: usize = 3 * WINDOW + 3 * 64;
/// Of the header: who holds the directory.
const HOLDER_AT: usize = 160;
const OPEN: u64 = 1 << 63;

fn put(bytes: &mut [u8], words: &[u64]) {
    for (place, word) in bytes.chunks_mut(8).zip(words) {
        place.copy_from_slice(&word.to_le_bytes());
    }
}

/// A WRITE and a READ that are granted, in a process that was never asked.
pub fn neighbour_seeds() -> Vec<Vec<u8>> {
    let rights = u64::from((Access::REMOTE_WRITE | Access::REMOTE_READ).bits());
    let counts = PARTS[4] as u64 + 32;
    let seed = |write: u8| {
        let mut seed = vec![0; REQUEST_LEN];
        put(&mut seed, &[9, QPN, 77, 0x1100, KEY, 0x200]);
        seed[REQUEST_LEN - 1] = write;
        let mut bytes = template().1.clone();
        put(&mut bytes[HOLDER_AT..], &[1234]);
        put(&mut bytes[QP_AT..], &[1, QPN | 2 << 32, 6 | 9 << 32, rights | OPEN, 77]);
        let route = OPEN | counts | (counts + 8) << 31;
        put(&mut bytes[KEY_AT..], &[1, KEY | 6 << 32, rights, 0x1000, 0x1000, 0x7000, route]);
        [seed, bytes].concat()
    };
    let seeds = vec![seed(0), seed(1)];
    let granted = |request: &Vec<u8>| {
        let directory = written_over(&request[REQUEST_LEN..]);
        let fd = directory.as_fd().try_clone_to_owned().expect("a descriptor");
        let (rkey, write) = (KEY as u32, request[REQUEST_LEN - 1] == 0);
        let (qpn, dest_qpn, ends) = (9, QPN as u32, 77);
        let wanted = Request { qpn, dest_qpn, ends, addr: 0x1100, rkey, length: 0x200, write };
        reached(fd, wanted) == Some(0x7100)
    };
    assert!(seeds.iter().all(granted), "the seeds say what is granted");
    seeds
}

/// The slot of a device that keeps to the rules, and the queue pair that its packets are for. Those
/// of the hostile one are odd.
const GOOD_SLOT: u16 = 4;
const HOSTILE_SLOT: u16 = 3;
const GOOD_QP: u32 = 0xabcde;
/// Turns that bring all that an honest device wrote, however much others did.
const TURNS: usize = 64;
/// Words of a ring before its records.
const WORDS_BEFORE: usize = 24;
/// Tags of records: with the ends of their packet, and with those of the one before.
const WITH_ENDS: u16 = 0;
const SAME_ENDS: u16 = 1;
/// Of the header of a directory: whether the device is closed.
const CLOSED_AT: u64 = 192;

/// An acknowledge from and to 127.0.0.1.
fn packet(dest_qp: u32) -> Vec<u8> {
    let mut record = vec![0; 40];
    let loopback = std::net::Ipv4Addr::LOCALHOST.to_ipv6_mapped().octets();
    record[..16].copy_from_slice(&loopback);
    record[16..32].copy_from_slice(&loopback);
    record.extend([0x11, 0x40, 0xff, 0xff]);
    record.extend(dest_qp.to_be_bytes());
    record.extend([0, 0, 0, 1, 0x1f, 0, 0, 1]);
    record
}

/// A device that reads rings, and the two that it reads.
struct Rings {
    own: &'static Directory,
    reads: ReadRings,
    hostile: RingWriter,
    good: RingWriter,
    pushed: usize,
    taken: usize,
}

/// Whom announced rings are of: this process, by the descriptors of a ring and a directory.
fn announced(ring: i32, directory: i32) -> u64 {
    let fd = |fd: i32| u64::from(fd.cast_unsigned()) & 0x1f_ffff;
    u64::from(std::process::id()) << 42 | fd(ring) << 21 | fd(directory)
}

impl Rings {
    fn new(own: &'static Directory) -> Option<Rings> {
        let hostile = ring_between(HOSTILE_SLOT, &of_the_hostile().0, own)?;
        let good = ring_between(GOOD_SLOT, own, own)?;
        let reads = ReadRings::new()?;
        let mut rings = Rings { own, reads, hostile, good, pushed: 0, taken: 0 };
        let directory = own.as_fd().as_raw_fd();
        rings.announce(GOOD_SLOT, announced(rings.good.as_fd().as_raw_fd(), directory));
        Some(rings)
    }

    fn announce(&mut self, slot: u16, word: u64) {
        let place = PARTS[7] as u64 + u64::from(slot) * 8;
        let _ = pwrite(self.own.as_fd(), &word.to_ne_bytes(), place);
        self.reads.attach(self.own);
    }

    /// The hostile device writes a word of its ring.
    fn write(&self, at: usize, value: u64) {
        self.hostile.shm().word(at * 8).store(value, SeqCst);
    }

    /// It writes a record that begins with these bytes.
    fn record(&mut self, begin: &[u8], record: Record) {
        let len = record.len;
        let Ok(Some(at)) = self.hostile.reserve(len) else { return };
        for (index, bytes) in begin[..begin.len().min(len)].chunks(8).enumerate() {
            let mut word = [0; 8];
            word[..bytes.len()].copy_from_slice(bytes);
            self.write(at / 8 + index, u64::from_ne_bytes(word));
        }
        self.hostile.commit(record);
    }

    /// A packet by the good ring, and a turn.
    fn turn(&mut self, with_packet: bool) {
        let whole = packet(GOOD_QP);
        // The first says its ends.
        let (packet, tag) = match self.pushed {
            0 => (&whole[..], WITH_ENDS),
            _ => (&whole[40..], SAME_ENDS),
        };
        self.pushed += usize::from(with_packet && self.good.push(packet, tag) == Ok(true));
        let slots: Vec<u16> = self.reads.slots().collect();
        let seen = self.reads.receive();
        self.taken += seen.iter().filter(|&&qp| qp == GOOD_QP).count();
        assert!(seen.is_empty() || !slots.is_empty());
        assert!(self.reads.slots().any(|slot| slot == GOOD_SLOT), "an honest ring was ended");
    }
}

/// The directory of the hostile device, and a file that is no ring.
fn of_the_hostile() -> &'static (Directory, File) {
    static OF_THE_HOSTILE: OnceLock<(Directory, File)> = OnceLock::new();
    OF_THE_HOSTILE.get_or_init(|| {
        let directory = Directory::create("hostile", 2).expect("a memfd");
        (directory, File::open("/dev/null").expect("it is always there"))
    })
}

/// Rings that a hostile process announces and writes, beside one that is as it should be. Steps: 0
/// and 1 write a record, the second a long one of which only its begin is given; 2 and 3 write any
/// word of the ring; 4 passes on a record that it has not written; 5 announces a ring; 6 closes the
/// device or opens it again; 7 is a turn.
pub fn rings(data: &[u8]) {
    let own = written_over(&[]);
    let Some(mut rings) = Rings::new(own) else { return };
    let (hostile, wrong) = of_the_hostile();
    let _ = pwrite(hostile.as_fd(), &0u64.to_ne_bytes(), CLOSED_AT);
    let mut steps = Steps::new(data);
    let fds = [
        rings.hostile.as_fd().as_raw_fd(),
        hostile.as_fd().as_raw_fd(),
        own.as_fd().as_raw_fd(),
        wrong.as_raw_fd(),
    ];
    rings.announce(HOSTILE_SLOT, announced(fds[0], fds[1]));
    while let Some(step) = steps.next() {
        match step % 8 {
            0 => {
                let len = usize::from(steps.byte());
                let tag = u16::from(steps.byte() % 3);
                let _ = rings.hostile.push(steps.bytes(len), tag);
            }
            1 => {
                let (begin, len) = (usize::from(steps.byte()), usize::from(steps.short()));
                let tag = u16::from(steps.byte() % 3);
                rings.record(steps.bytes(begin), Record { len, tag });
            }
            2 => rings.write(usize::from(steps.byte()) % WORDS_BEFORE, steps.word()),
            3 => {
                let at = WORDS_BEFORE + usize::from(steps.short());
                rings.write(at, steps.word());
            }
            4 => {
                let (len, tag) = (usize::from(steps.short()), u16::from(steps.byte()));
                rings.hostile.commit(Record { len, tag });
            }
            5 => {
                let (slot, which) =
                    (u16::from(steps.byte()) * 4 + HOSTILE_SLOT, usize::from(steps.byte()));
                rings.announce(slot, announced(fds[which % 4], fds[which / 4 % 4]));
            }
            6 => {
                let closed = u64::from(steps.byte() % 2);
                let _ = pwrite(hostile.as_fd(), &closed.to_ne_bytes(), CLOSED_AT);
            }
            _ => rings.turn(true),
        }
    }
    for _ in 0..TURNS {
        rings.turn(false);
    }
    assert!(rings.taken >= rings.pushed, "{} of {} packets", rings.taken, rings.pushed);
}

/// Packets short and long, and what is none.
pub fn ring_seeds() -> Vec<Vec<u8>> {
    let short = packet(0x1234);
    let short_len = short.len() as u8;
    let same = [&[0, short_len - 40, SAME_ENDS as u8][..], &short[40..], &[7]].concat();
    let short = [&[0, short_len, WITH_ENDS as u8][..], &short, &[7]].concat();
    // An RDMA WRITE's only packet, of a page.
    let mut long = packet(0x1234);
    long[40] = 0x0a;
    long.extend([0; 16]);
    let len = (long.len() + 4096) as u16;
    let begin = long.len() as u8 - 8;
    let tag = [WITH_ENDS as u8];
    let long = [&[1, begin][..], &len.to_le_bytes(), &tag, &long[..begin.into()], &[7]].concat();
    // The first word of the record behind a short one.
    let first = |at: u8, value: u64| [&[3, at, 0][..], &value.to_le_bytes()].concat();
    let behind = 1 + short_len.div_ceil(8);
    let lies = [1, 1 << 63, u64::MAX, 0x1_0000, 0x1_0001, 0x100].map(|lie| first(behind, lie));
    let mut seeds = vec![short.repeat(3), long.repeat(3), [&short[..], &long].concat().repeat(4)];
    seeds.extend([[&short[..], &same].concat().repeat(3), same]);
    seeds.extend(lies.map(|lie| [&short[..], &lie, &[7], &short].concat()));
    let skip = [&first(0, u64::MAX)[..], &[4, 0xff, 0xff, 0, 7]].concat();
    seeds.push([&skip[..], &short].concat());
    seeds.extend((0..16).map(|which| [&[5, 0, which][..], &short, &[6, 1, 7, 7]].concat()));
    seeds
}
