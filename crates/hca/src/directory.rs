//! The shared directory: what other processes may know of one device while it runs (D6, D7, D13).
//!
//! A sealed memfd of atomic words with five parts: a header with identity and counters, a table of QPs, a table of MKEYs,
//! the table of the routes that its bytes take, and the multicast groups that its port is in.
//! `peerdma ps` and `peerdma top` read it; the same-host path finds its target's QPs and keys in it. An entry is
//! valid while its `generation` word is odd; a reader takes the generation before and after (a sequence lock),
//! so it never acts on half an entry. Every number read from another process's directory is checked before use.

use crate::membership::{MAX_MEMBERSHIPS, Membership};
use pcie::{Address, PublishedRoute, RouteTable};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::{Errno, Result};
use shm::Shm;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::fence;
use std::time::{Duration, Instant};
use transport::keys::{MAX_KEYS, Mkey, place_of};
use transport::values::{QpState, QpType};
use transport::{Count, Counter};

const MAGIC: u64 = u64::from_le_bytes(*b"peerdma\0");
/// Version of the layout; a reader of another version declines.
pub const VERSION: u64 = 3;
/// QP numbers of one slot: 14 bits.
pub const MAX_QPS: usize = 1 << 14;

const ENTRY: usize = 64;
const COUNTERS_AT: usize = 512;
const QPS_AT: usize = 4096;
const KEYS_AT: usize = QPS_AT + MAX_QPS * ENTRY;
const ROUTES_AT: usize = KEYS_AT + MAX_KEYS * ENTRY;
const GROUPS_AT: usize = ROUTES_AT + RouteTable::BYTES;
const BYTES: usize = GROUPS_AT + MAX_MEMBERSHIPS * ENTRY;

mod head {
    pub const MAGIC: usize = 0;
    pub const VERSION: usize = 8;
    pub const PID: usize = 16;
    pub const SLOT: usize = 24;
    pub const GUID: usize = 32;
    pub const NAME: usize = 64;
    pub const NAME_WORDS: usize = 8;
    /// The Data Direct function: [`super::PRESENT`], [`super::PLUGGED`], its address.
    pub const DATA_DIRECT: usize = 128;
    /// What another process asks for it: a number that rises by 2, plus 1 to plug it in.
    pub const ASKED: usize = 136;
    /// The last of those that was done.
    pub const DONE: usize = 144;
    /// 1 where the port is on an InfiniBand subnet.
    pub const SUBNET: usize = 152;
}

/// There is a Data Direct function.
const PRESENT: u64 = 1 << 63;
/// It is plugged in.
const PLUGGED: u64 = 1 << 62;

/// The directory of one device, written by its owner.
#[derive(Debug)]
pub struct Directory {
    shm: Shm,
}

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
}

impl Directory {
    /// An empty directory for a device.
    pub fn create(name: &str, guid: u64) -> Result<Directory> {
        let shm = Shm::create("peerdma-directory", BYTES)?;
        let mut bytes = [0u8; head::NAME_WORDS * 8];
        let take = name.len().min(bytes.len() - 1);
        bytes[..take].copy_from_slice(&name.as_bytes()[..take]);
        for (i, word) in bytes.chunks_exact(8).enumerate() {
            let word = u64::from_le_bytes(word.try_into().unwrap_or_default());
            shm.word(head::NAME + i * 8).store(word, Relaxed);
        }
        shm.word(head::GUID).store(guid, Relaxed);
        shm.word(head::VERSION).store(VERSION, Relaxed);
        let directory = Directory { shm };
        directory.own();
        directory.shm.word(head::MAGIC).store(MAGIC, Release);
        Ok(directory)
    }

    /// Notes that the device is this process's.
    pub(crate) fn own(&self) {
        self.shm.word(head::PID).store(u64::from(std::process::id()), Relaxed);
    }

    /// Notes the slot that the registry granted.
    pub fn set_slot(&self, slot: u16) {
        self.shm.word(head::SLOT).store(u64::from(slot), Relaxed);
    }

    /// Shows that the port is on an InfiniBand subnet.
    pub(crate) fn show_subnet(&self) {
        self.shm.word(head::SUBNET).store(1, Release);
    }

    /// Shows a membership of the port's at one of [`MAX_MEMBERSHIPS`] places, or that none is there.
    pub(crate) fn publish_membership(&self, place: usize, membership: Option<&Membership>) {
        let at = GROUPS_AT + place * ENTRY;
        match membership {
            Some(membership) => self.write_entry(at, &membership.to_words()),
            None => self.clear_entry(at),
        }
    }

    /// Shows the Data Direct function, and whether it is plugged in.
    pub(crate) fn show_data_direct(&self, function: Address, plugged: bool) {
        let plugged = if plugged { PLUGGED } else { 0 };
        self.shm.word(head::DATA_DIRECT).store(PRESENT | plugged | function.to_bits(), Release);
    }

    /// What another process asked and was not done yet: its number, and whether to plug the function in.
    pub(crate) fn asked(&self) -> Option<(u64, bool)> {
        let asked = self.shm.word(head::ASKED).load(Acquire);
        (asked != self.shm.word(head::DONE).load(Relaxed)).then_some((asked, asked & 1 == 1))
    }

    /// Tells that process that it is done.
    pub(crate) fn done(&self, asked: u64) {
        self.shm.word(head::DONE).store(asked, Release);
        self.shm.wake(head::DONE);
    }

    fn write_entry(&self, at: usize, words: &[u64]) {
        let generation = self.shm.word(at);
        let before = generation.load(Relaxed);
        // Even while it changes; the fences order the words between the two generations.
        generation.store(before & !1, Relaxed);
        fence(Release);
        for (i, &word) in words.iter().enumerate() {
            self.shm.word(at + 8 + i * 8).store(word, Relaxed);
        }
        generation.store((before & !1).wrapping_add(3), Release);
    }

    fn clear_entry(&self, at: usize) {
        let generation = self.shm.word(at);
        generation.store(generation.load(Relaxed) & !1, Release);
    }

    /// Publishes a QP or its new state.
    pub fn publish_qp(&self, number: u32, qp_type: QpType, state: QpState, pd: u32, dest_qpn: u32) {
        let at = qp_at(number);
        self.write_entry(
            at,
            &[
                u64::from(number) | (qp_type as u64) << 32 | (state as u64) << 40,
                u64::from(pd) | u64::from(dest_qpn) << 32,
            ],
        );
    }

    /// Removes a QP and zeroes its counters.
    pub fn remove_qp(&self, number: u32) {
        let at = qp_at(number);
        self.clear_entry(at);
        self.shm.word(at + 24).store(0, Relaxed);
        self.shm.word(at + 32).store(0, Relaxed);
    }

    /// Adds to a QP's traffic.
    pub fn add_traffic(&self, number: u32, tx_bytes: u64, rx_bytes: u64) {
        let at = qp_at(number);
        if tx_bytes != 0 {
            self.shm.word(at + 24).fetch_add(tx_bytes, Relaxed);
        }
        if rx_bytes != 0 {
            self.shm.word(at + 32).fetch_add(rx_bytes, Relaxed);
        }
    }

    /// Publishes an MKEY.
    pub fn publish_key(&self, key: u32, mkey: &Mkey) {
        let words = [
            u64::from(key) | u64::from(mkey.pd.0) << 32,
            u64::from(mkey.access.bits()),
            mkey.iova,
            mkey.umem.len(),
        ];
        self.write_entry(key_at(key), &words);
    }

    /// Removes an MKEY.
    pub fn remove_key(&self, key: u32) {
        self.clear_entry(key_at(key));
    }

    /// The table for the routes of the device's functions. A device has one: a second would write over the first.
    pub fn route_table(&self) -> Result<RouteTable> {
        let fd = self.shm.as_fd().try_clone_to_owned().map_err(|_| Errno::MFILE)?;
        Ok(RouteTable::new(Shm::open(fd)?, ROUTES_AT))
    }

    /// Shows what is no count but a state.
    pub(crate) fn show(&self, what: Counter, value: u64) {
        self.shm.word(COUNTERS_AT + what as usize * 8).store(value, Relaxed);
    }

    /// A reader over the same memory.
    pub fn reader(&self) -> Result<Reader> {
        Reader::open(self.shm.as_fd().try_clone_to_owned().map_err(|_| Errno::MFILE)?)
    }
}

impl AsFd for Directory {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.shm.as_fd()
    }
}

impl Count for Directory {
    fn count(&self, what: Counter, by: u64) {
        self.shm.word(COUNTERS_AT + what as usize * 8).fetch_add(by, Relaxed);
    }
}

fn qp_at(number: u32) -> usize {
    QPS_AT + (number as usize % MAX_QPS) * ENTRY
}

fn key_at(key: u32) -> usize {
    KEYS_AT + place_of(key) * ENTRY
}

/// Another process's directory, read only by convention and never trusted.
#[derive(Debug)]
pub struct Reader {
    shm: Shm,
}

impl Reader {
    /// Opens a directory received from the registry.
    ///
    /// # Errors
    /// `PERM` when it could shrink under us, `PROTO` when it is of another version or too short.
    pub fn open(fd: OwnedFd) -> Result<Reader> {
        let shm = Shm::open(fd)?;
        let known = shm.bytes() >= BYTES
            && shm.word(head::MAGIC).load(Acquire) == MAGIC
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

    /// Asks the device's process to plug its Data Direct function in or out. It looks when it is kicked, see
    /// [`crate::control_id`]; the number is for [`Reader::wait_done`].
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

    /// A device counter.
    pub fn counter(&self, what: Counter) -> u64 {
        self.shm.word(COUNTERS_AT + what as usize * 8).load(Relaxed)
    }

    /// Every device counter.
    pub fn counters(&self) -> impl Iterator<Item = (&'static str, u64)> {
        Counter::ALL.iter().map(|&what| (what.name(), self.counter(what)))
    }

    fn entry<const N: usize>(&self, at: usize) -> Option<[u64; N]> {
        for _ in 0..64 {
            let before = self.shm.word(at).load(Acquire);
            if before & 1 == 0 {
                return None;
            }
            let words = std::array::from_fn(|i| self.shm.word(at + 8 + i * 8).load(Relaxed));
            fence(Acquire);
            if self.shm.word(at).load(Relaxed) == before {
                return Some(words);
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
                let [ids, pd, tx_bytes, rx_bytes] = self.entry::<4>(QPS_AT + index * ENTRY)?;
                Some(QpEntry {
                    number: ids as u32 & 0xff_ffff,
                    qp_type: (ids >> 32) as u32 & 0xff,
                    state: (ids >> 40) as u32 & 0xff,
                    pd: pd as u32,
                    dest_qpn: (pd >> 32) as u32,
                    tx_bytes,
                    rx_bytes,
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
        entries.flatten().map(Membership::from_words).collect()
    }

    /// All MKEYs.
    pub fn keys(&self) -> Vec<KeyEntry> {
        self.first_keys(MAX_KEYS)
    }

    /// The MKEYs in the first `places` of the table.
    #[doc(hidden)]
    pub fn first_keys(&self, places: usize) -> Vec<KeyEntry> {
        (0..places.min(MAX_KEYS))
            .filter_map(|index| {
                let [ids, access, iova, len] = self.entry::<4>(KEYS_AT + index * ENTRY)?;
                Some(KeyEntry {
                    key: ids as u32,
                    pd: (ids >> 32) as u32,
                    access: access as u32,
                    iova,
                    len,
                })
            })
            .collect()
    }
}
