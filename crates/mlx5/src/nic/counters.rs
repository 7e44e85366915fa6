//! What a port counts of packets and frames, and how its counter register groups that (PRM "Ports
//! Counters Register", `ppcnt_reg`). On an Ethernet RoCE packets are frames too, of priority 0 and
//! to one station each, which the HCA's endpoint counts.

use super::vport::{Vport, kind};
use crate::layout::bits::Field;
use crate::object::shared::{Shared, is_on_ethernet};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use wire::ethernet::{self, Mac};

/// Groups of counters, as the register names them.
mod group {
    pub(super) const IEEE_802_3: u64 = 0x0;
    pub(super) const RFC_2863: u64 = 0x1;
    pub(super) const RFC_2819: u64 = 0x2;
    pub(super) const PER_PRIORITY: u64 = 0x10;
    pub(super) const PHYSICAL_LAYER: u64 = 0x12;
    pub(super) const INFINIBAND: u64 = 0x20;
}

const GROUP: Field = Field::new(0x1a, 6);
const PRIORITY: Field = Field::new(0x3d, 3);
/// Where the counters begin, in bits.
const COUNTERS: usize = 64;
/// `link_down_events` among those of the physical layer.
const LINK_DOWNS: Field = Field::new(0x600, 32).at(COUNTERS);

const PRIORITIES: usize = 8;
/// The frame check sequence, which counts in sizes by RFC 2819 and is not in our frames.
const FCS_LEN: u64 = 4;
/// The local route header, which packets of the subnet's network do not carry.
const LRH_LEN: u64 = 8;
/// Longest frames of each class of sizes by RFC 2819.
const SIZES: [u64; 10] = [64, 127, 255, 511, 1023, 1518, 2047, 4095, 8191, 10239];

/// Frames of one kind.
#[derive(Default)]
pub(super) struct Count {
    pub(super) frames: AtomicU64,
    pub(super) bytes: AtomicU64,
}

impl Count {
    fn add(&self, bytes: usize) {
        self.frames.fetch_add(1, Relaxed);
        self.bytes.fetch_add(bytes as u64, Relaxed);
    }

    fn now(&self) -> Sum {
        Sum { frames: self.frames.load(Relaxed), bytes: self.bytes.load(Relaxed) }
    }
}

/// As much as was counted at some time.
#[derive(Clone, Copy, Default)]
pub(crate) struct Sum {
    pub(crate) frames: u64,
    pub(crate) bytes: u64,
}

/// Frames of one direction.
#[derive(Default)]
pub(super) struct Direction {
    /// Unicast, multicast, broadcast.
    pub(super) kinds: [Count; 3],
    priorities: [Count; PRIORITIES],
}

impl Direction {
    fn add(&self, frame: &[u8]) {
        let dst: Mac = frame.first_chunk().copied().unwrap_or_default();
        let priority = ethernet::tag_of(frame).map_or(0, |tag| tag >> 13);
        self.kinds[kind(dst)].add(frame.len());
        self.priorities[usize::from(priority)].add(frame.len());
    }

    fn all(&self) -> Sum {
        self.kinds.iter().map(Count::now).fold(Sum::default(), |all, kind| Sum {
            frames: all.frames + kind.frames,
            bytes: all.bytes + kind.bytes,
        })
    }
}

/// All of a port's.
#[derive(Default)]
pub(super) struct Counters {
    pub(super) received: Direction,
    pub(super) sent: Direction,
    /// Frames that no request was there for.
    pub(super) unwanted: AtomicU64,
    /// Frames that could not be sent.
    pub(super) lost: AtomicU64,
    /// How often the link went down.
    pub(super) link_downs: AtomicU64,
    sizes: [AtomicU64; SIZES.len()],
}

impl Counters {
    /// A frame came, and found a request or not.
    pub(super) fn received(&self, frame: &[u8], taken: bool) {
        self.received.add(frame);
        let len = frame.len() as u64 + FCS_LEN;
        if let Some(class) = SIZES.iter().position(|longest| len <= *longest) {
            self.sizes[class].fetch_add(1, Relaxed);
        }
        if !taken {
            self.unwanted.fetch_add(1, Relaxed);
        }
    }

    /// A frame went.
    pub(super) fn sent(&self, frame: &[u8]) {
        self.sent.add(frame);
    }

    /// Fills a group of a port whose RoCE packets are `rdma`, received and sent.
    fn fill(&self, data: &mut [u8], rdma: [Sum; 2]) {
        let of = |count: &AtomicU64| count.load(Relaxed);
        let [unicast, multicast, broadcast] =
            self.received.kinds.each_ref().map(|one| of(&one.frames));
        let [to_one, to_group, to_all] = self.sent.kinds.each_ref().map(|one| of(&one.frames));
        let (received, sent) = (self.received.all(), self.sent.all());
        let (frames_in, frames_out) =
            (received.frames + rdma[0].frames, sent.frames + rdma[1].frames);
        let (bytes_in, bytes_out) = (received.bytes + rdma[0].bytes, sent.bytes + rdma[1].bytes);
        let (unwanted, lost) = (of(&self.unwanted), of(&self.lost));
        let priority = PRIORITY.get(data) as usize;
        let values: &[(usize, u64)] = &match GROUP.get(data) {
            group::IEEE_802_3 => vec![
                (0x0, frames_out),
                (0x40, frames_in),
                (0x100, bytes_out),
                (0x140, bytes_in),
                (0x180, to_group),
                (0x1c0, to_all),
                (0x200, multicast),
                (0x240, broadcast),
            ],
            group::RFC_2863 => vec![
                (0x0, bytes_in),
                (0x40, unicast + rdma[0].frames),
                (0x80, unwanted),
                (0x140, bytes_out),
                (0x180, to_one + rdma[1].frames),
                (0x1c0, lost),
                (0x240, multicast),
                (0x280, broadcast),
                (0x2c0, to_group),
                (0x300, to_all),
            ],
            group::RFC_2819 => {
                let whole = received.bytes + FCS_LEN * received.frames;
                let all = [(0x0, unwanted), (0x40, whole), (0x80, received.frames)];
                let kinds = [(0xc0, broadcast), (0x100, multicast)];
                let sizes = (0x2c0..).step_by(0x40).zip(self.sizes.iter().map(of));
                all.into_iter().chain(kinds).chain(sizes).collect()
            }
            group::PER_PRIORITY => {
                let plain = if priority == 0 { rdma } else { [Sum::default(); 2] };
                let came = self.received.priorities[priority].now();
                let went = self.sent.priorities[priority].now();
                vec![
                    (0x0, came.bytes + plain[0].bytes),
                    (0x100, came.frames + plain[0].frames),
                    (0x140, went.bytes + plain[1].bytes),
                    (0x240, went.frames + plain[1].frames),
                ]
            }
            group::PHYSICAL_LAYER => {
                LINK_DOWNS.set(data, of(&self.link_downs).min(u32::MAX.into()));
                Vec::new()
            }
            // Nothing of the others can happen: no symbol is wrong and nobody pauses.
            _ => Vec::new(),
        };
        for (bit, value) in values {
            Field::new(*bit, 64).at(COUNTERS).set(data, *value);
        }
    }
}

/// RoCE or InfiniBand packets of the HCA, received and sent, with all their bytes: of an InfiniBand
/// packet those from its LRH to its ICRC (IBA 16.1.3.5), of a RoCE packet its frame.
pub(crate) fn packets(shared: &Shared) -> [Sum; 2] {
    let stats = shared.hca.endpoint().stats();
    let head = if is_on_ethernet(&shared.hca) { 0 } else { LRH_LEN };
    let sum = |packets: &AtomicU64, bytes: &AtomicU64| {
        let frames = packets.load(Relaxed);
        Sum { frames, bytes: bytes.load(Relaxed) + head * frames }
    };
    [sum(&stats.rx_datagrams, &stats.rx_bytes), sum(&stats.tx_datagrams, &stats.tx_bytes)]
}

/// Reads the counter register of an Ethernet port, in place.
pub(crate) fn ethernet(vport: &Vport, shared: &Shared, data: &mut [u8]) {
    if GROUP.get(data) == group::INFINIBAND {
        infiniband(shared, data);
    } else {
        vport.counters.fill(data, packets(shared));
    }
}

/// The same of any port's group of InfiniBand.
pub(crate) fn infiniband(shared: &Shared, data: &mut [u8]) {
    if GROUP.get(data) == group::INFINIBAND {
        fill_infiniband(data, packets(shared));
    }
}

/// PortCounters (IBA 16.1.3.5) of packets received and sent: what does not fit stays at the most
/// there is.
fn fill_infiniband(data: &mut [u8], [received, sent]: [Sum; 2]) {
    /// Data are counted in words.
    const WORD: u64 = 4;
    for (bit, value) in [
        (0xa0, sent.bytes / WORD),
        (0xc0, received.bytes / WORD),
        (0xe0, sent.frames),
        (0x100, received.frames),
    ] {
        let field = Field::new(bit, 32).at(COUNTERS);
        field.set(data, value.min(u32::MAX.into()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(counters: &Counters, group: u64, priority: u64, bit: usize) -> u64 {
        let mut data = vec![0; 0x100];
        GROUP.set(&mut data, group);
        PRIORITY.set(&mut data, priority);
        let rdma = [Sum { frames: 2, bytes: 100 }, Sum { frames: 1, bytes: 50 }];
        counters.fill(&mut data, rdma);
        Field::new(bit, 64).at(COUNTERS).get(&data)
    }

    #[test]
    fn each_group_counts_the_same_frames() {
        let counters = Counters::default();
        let to = |dst: Mac, len: usize| [&dst[..], &vec![0; len - 6]].concat();
        counters.received(&to([2; 6], 60), true);
        counters.received(&to([3; 6], 124), true);
        let mut tagged = to([0xff; 6], 1000);
        tagged[12..16].copy_from_slice(&[0x81, 0, 0xa0, 5]);
        counters.received(&tagged, false);
        counters.sent(&to([2; 6], 70));
        for (group, bit, value) in [
            (group::IEEE_802_3, 0x40, 5),
            (group::IEEE_802_3, 0x140, 1284),
            (group::IEEE_802_3, 0x240, 1),
            (group::RFC_2863, 0x0, 1284),
            (group::RFC_2863, 0x40, 3),
            (group::RFC_2863, 0x80, 1),
            (group::RFC_2863, 0x180, 2),
            (group::RFC_2863, 0x240, 1),
            (group::RFC_2819, 0x80, 3),
            (group::RFC_2819, 0x2c0, 1),
            (group::RFC_2819, 0x340, 1),
            (group::RFC_2819, 0x3c0, 1),
            (group::PER_PRIORITY, 0x100, 4),
            (group::PER_PRIORITY, 0x140, 120),
        ] {
            assert_eq!(read(&counters, group, 0, bit), value, "{group:#x} {bit:#x}");
        }
        assert_eq!(read(&counters, group::PER_PRIORITY, 5, 0x0), 1000);
        assert_eq!(read(&counters, group::PER_PRIORITY, 5, 0x100), 1);
        assert_eq!(read(&counters, 0x12, 0, 0x0), 0);
    }

    #[test]
    fn what_does_not_fit_stays_at_the_most() {
        const MOST: u64 = u32::MAX as u64;
        let read = |frames, bytes| {
            let mut data = vec![0; 0x100];
            fill_infiniband(&mut data, [Sum { frames, bytes }; 2]);
            [0xa0, 0xc0, 0xe0, 0x100].map(|bit| Field::new(bit, 32).at(COUNTERS).get(&data))
        };
        assert_eq!(read(MOST - 1, 4 * MOST - 4), [MOST - 1; 4]);
        assert_eq!(read(MOST + 1, 4 * MOST + 4), [MOST; 4]);
        assert_eq!(read(u64::MAX, u64::MAX), [MOST; 4]);
    }
}
