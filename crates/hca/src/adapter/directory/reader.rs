//! Another process's directory, as listings see it.

use super::{
    Announced, BYTES, COUNTERS_AT, ENTRY, GOES_DIRECTLY, GROUPS_AT, KEYS_AT, MAGIC, MAX_QPS,
    PLUGGED, PRESENT, QPS_AT, ROUTES_AT, RX_AT, TX_AT, VERSION, announced_at, head,
};
use crate::adapter::membership::{MAX_MEMBERSHIPS, Membership};
use pcie::{Address, PublishedRoute};
use registry::SLOTS;
use rustix::fd::AsFd;
use rustix::io::{Errno, Result};
use shm::Shm;
use shm::sabotage::{self, Point};
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::fence;
use std::time::{Duration, Instant};
use transport::Counter;
use transport::keys::MAX_KEYS;

/// A QP as other processes see it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QpEntry {
    /// QP number.
    pub number: u32,
    /// `enum ibv_qp_type`.
    pub qp_type: u32,
    /// `enum ibv_qp_state`.
    pub state: u32,
    /// Protection domain.
    pub pd: u32,
    /// Peer's QP number, 0 when not connected.
    pub dest_qpn: u32,
    /// Payload bytes sent.
    pub tx_bytes: u64,
    /// Payload bytes received.
    pub rx_bytes: u64,
    /// Whether it does without the wire: through shared memory, or from memory to memory.
    pub goes_directly: bool,
}

/// An MKEY as other processes see it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KeyEntry {
    /// The key.
    pub key: u32,
    /// Protection domain.
    pub pd: u32,
    /// Access flags.
    pub access: u32,
    /// Address of the first byte.
    pub iova: u64,
    /// Length in bytes.
    pub len: u64,
    /// Size of the pages by which the memory was translated when it was registered; `None` where
    /// it is not by pages.
    pub page_size: Option<u64>,
}

/// Another process's directory, read only by convention and never trusted.
#[derive(Debug)]
pub struct Reader {
    pub(crate) shm: Shm,
}

impl Reader {
    /// Opens a directory received from the registry.
    ///
    /// # Errors
    /// `PERM` when it could shrink under us, `PROTO` when it is of another version or length.
    pub fn open(fd: impl AsFd) -> Result<Reader> {
        let shm = Shm::open_of(fd, BYTES)?;
        let known = shm.word(head::MAGIC).load(Acquire) == MAGIC
            && shm.word(head::VERSION).load(Relaxed) == VERSION;
        if known { Ok(Reader { shm }) } else { Err(Errno::PROTO) }
    }

    /// Device name.
    pub fn name(&self) -> String {
        let bytes: Vec<u8> = (0..head::NAME_WORDS)
            .flat_map(|i| self.shm.word(head::NAME + i * 8).load(Relaxed).to_le_bytes())
            .take_while(|&b| b != 0)
            .collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// A number that no other directory has.
    pub(crate) fn token(&self) -> u64 {
        self.shm.word(head::TOKEN).load(Relaxed)
    }

    /// Process that wrote it.
    pub fn pid(&self) -> u32 {
        self.shm.word(head::PID).load(Relaxed) as u32
    }

    /// Node GUID.
    pub fn guid(&self) -> u64 {
        self.shm.word(head::GUID).load(Relaxed)
    }

    /// The Data Direct function, and whether it is plugged in.
    pub fn data_direct(&self) -> Option<(Address, bool)> {
        let word = self.shm.word(head::DATA_DIRECT).load(Acquire);
        (word & PRESENT != 0).then(|| (Address::from_bits(word), word & PLUGGED != 0))
    }

    /// Asks the device's process to plug its Data Direct function in or out. It looks when it is
    /// kicked, see [`crate::control_id`]; the number is for [`Reader::wait_done`].
    pub fn ask_data_direct(&self, plug: bool) -> u64 {
        let next = |asked: u64| Some((asked & !1).wrapping_add(2) | u64::from(plug));
        let word = self.shm.word(head::ASKED);
        match word.fetch_update(AcqRel, Acquire, next) {
            Ok(before) | Err(before) => (before & !1).wrapping_add(2) | u64::from(plug),
        }
    }

    /// Waits until what was asked is done, for `limit` at most; says whether it is.
    pub fn wait_done(&self, asked: u64, limit: Duration) -> bool {
        let end = Instant::now() + limit;
        loop {
            let done = self.shm.word(head::DONE).load(Acquire);
            // A later one includes it.
            if done >= asked {
                return true;
            }
            let Some(left) = end.checked_duration_since(Instant::now()) else { return false };
            self.shm.wait(head::DONE, done, left);
        }
    }

    /// Whether the device's process has ended or runs another program, or the device is closed.
    pub(crate) fn is_over(&self) -> bool {
        self.shm.has_died(head::HOLDER) || self.shm.word(head::CLOSED).load(Acquire) != 0
    }

    /// Announces a ring from the device with slot `from`. It looks when it is kicked.
    pub(crate) fn announce(&self, from: u16, ring: Announced) {
        if from < SLOTS {
            let told = ring.to_word();
            self.shm.word(announced_at(from)).store(told, Release);
            sabotage::reached(Point::Announcing);
            self.shm.word(head::ANNOUNCED).fetch_add(1, AcqRel);
        }
    }

    /// A device counter.
    pub fn counter(&self, what: Counter) -> u64 {
        self.shm.word(COUNTERS_AT + what as usize * 8).load(Relaxed)
    }

    /// Every device counter.
    pub fn counters(&self) -> impl Iterator<Item = (&'static str, u64)> {
        Counter::ALL.iter().map(|&what| (what.name(), self.counter(what)))
    }

    pub(super) fn entry<const N: usize>(&self, at: usize) -> Option<(u64, [u64; N])> {
        for _ in 0..64 {
            let before = self.shm.word(at).load(Acquire);
            if before & 1 == 0 {
                return None;
            }
            let words = std::array::from_fn(|i| self.shm.word(at + 8 + i * 8).load(Relaxed));
            fence(Acquire);
            if self.shm.word(at).load(Relaxed) == before {
                return Some((before, words));
            }
        }
        None
    }

    /// All QPs.
    pub fn qps(&self) -> Vec<QpEntry> {
        self.first_qps(MAX_QPS)
    }

    /// The QPs in the first `places` of the table.
    #[doc(hidden)]
    pub fn first_qps(&self, places: usize) -> Vec<QpEntry> {
        (0..places.min(MAX_QPS))
            .filter_map(|index| {
                let at = QPS_AT + index * ENTRY;
                let (_, [ids, pd]) = self.entry(at)?;
                let counted = |counter| self.shm.word(at + counter).load(Relaxed);
                Some(QpEntry {
                    number: ids as u32 & 0xff_ffff,
                    qp_type: (ids >> 32) as u32 & 0xff,
                    state: (ids >> 40) as u32 & 0xff,
                    pd: pd as u32,
                    dest_qpn: (pd >> 32) as u32,
                    tx_bytes: counted(TX_AT),
                    rx_bytes: counted(RX_AT),
                    goes_directly: ids & GOES_DIRECTLY != 0,
                })
            })
            .collect()
    }

    /// The routes that bytes took or may take.
    pub fn routes(&self) -> Vec<PublishedRoute> {
        pcie::published(&self.shm, ROUTES_AT)
    }

    /// Whether the port is on an InfiniBand subnet.
    pub fn is_on_subnet(&self) -> bool {
        self.shm.word(head::SUBNET).load(Acquire) == 1
    }

    /// The multicast groups of an InfiniBand subnet that the port is in.
    pub fn memberships(&self) -> Vec<Membership> {
        let entries = (0..MAX_MEMBERSHIPS).map(|place| self.entry(GROUPS_AT + place * ENTRY));
        entries.flatten().map(|(_, words)| Membership::from_words(words)).collect()
    }

    /// All MKEYs.
    pub fn keys(&self) -> Vec<KeyEntry> {
        self.first_keys(self.shm.word(head::KEYS).load(Relaxed) as usize)
    }

    /// The MKEYs in the first `places` of the table.
    #[doc(hidden)]
    pub fn first_keys(&self, places: usize) -> Vec<KeyEntry> {
        (0..places.min(MAX_KEYS))
            .filter_map(|index| {
                let (_, [ids, access, iova, len]) = self.entry(KEYS_AT + index * ENTRY)?;
                Some(KeyEntry {
                    key: ids as u32,
                    pd: (ids >> 32) as u32,
                    access: access as u32,
                    iova,
                    len,
                    page_size: match access >> 32 & 0x3f {
                        0 => None,
                        bits => Some(1 << bits),
                    },
                })
            })
            .collect()
    }
}
