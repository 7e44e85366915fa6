//! The shared directory: what other processes may know of one device while it runs (D6, D7, D13).
//!
//! A sealed memfd of atomic words with six parts: a header with identity and counters, a table of
//! QPs, a table of MKEYs, the table of the routes that its bytes take, the multicast groups that
//! its port is in, and the passes of those who reach its memory. `peerdma ps` and `peerdma top`
//! read it; the same-host path finds its target's QPs and keys in it. An entry is valid while its
//! `generation` word is odd; a reader takes the generation before and after (a sequence lock), so
//! it never acts on half an entry. Every number read from another process's directory is checked
//! before use.

use crate::adapter::membership::{MAX_MEMBERSHIPS, Membership};
use descriptors::Kept;
use pcie::{Address, RouteTable};
use registry::SLOTS;
use rustix::fd::{AsFd, AsRawFd, BorrowedFd};
use rustix::io::Result;
use rustix::rand::{GetRandomFlags, getrandom};
use shm::{Held, Passes, Shm};
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicU32, AtomicU64, fence};
use transport::keys::{MAX_KEYS, place_of};
use transport::values::{Access, QpState, QpType};
use transport::{Count, Counter};

mod asked;
mod buffers;
mod files;
mod keys;
pub(crate) mod neighbour;
mod reader;
pub(crate) mod shown;
mod ways;

pub use reader::{KeyEntry, QpEntry, Reader};

const MAGIC: u64 = u64::from_le_bytes(*b"peerdma\0");
/// Version of the layout; a reader of another version declines.
pub const VERSION: u64 = 9;
/// QP numbers of one slot: 14 bits.
pub const MAX_QPS: usize = 1 << 14;

const ENTRY: usize = 64;
const COUNTERS_AT: usize = 512;
const QPS_AT: usize = 4096;
const KEYS_AT: usize = QPS_AT + MAX_QPS * ENTRY;
const ROUTES_AT: usize = KEYS_AT + MAX_KEYS * ENTRY;
const GROUPS_AT: usize = ROUTES_AT + RouteTable::BYTES;
const PASSES_AT: usize = GROUPS_AT + MAX_MEMBERSHIPS * ENTRY;
/// An [`Announced`] for each slot.
const ANNOUNCED_AT: usize = PASSES_AT + Passes::BYTES;
const BYTES: usize = ANNOUNCED_AT + SLOTS as usize * 8;
/// Where they all begin, for fuzzing.
pub(super) const PARTS: [usize; 8] =
    [0, COUNTERS_AT, QPS_AT, KEYS_AT, ROUTES_AT, GROUPS_AT, PASSES_AT, ANNOUNCED_AT];

/// Where in a QP's entry its traffic is counted, beyond the words of its generation.
const TX_AT: usize = 40;
const RX_AT: usize = 48;

pub(crate) mod head {
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
    /// Held by the device's thread as long as its process lives and runs the same program.
    pub const HOLDER: usize = 160;
    /// Where in the process's memory a word is that has the value of the next one: who can read it
    /// there may reach the memory.
    pub const TOKEN_AT: usize = 168;
    pub const TOKEN: usize = 176;
    /// How many rings were announced.
    pub const ANNOUNCED: usize = 184;
    /// 1 once the device is closed.
    pub const CLOSED: usize = 192;
    /// How many places of the table of MKEYs, from the first on, were ever in use. To look at one
    /// that was not takes memory.
    pub const KEYS: usize = 200;
    /// The directory's descriptor in its process.
    pub const FD: usize = 208;
    /// Not 0 while the device's thread sleeps, and has to be woken for what comes by a ring. It is
    /// written often and has a cache line of its own.
    pub const ASLEEP: usize = 320;
}

/// There is a Data Direct function.
const PRESENT: u64 = 1 << 63;
/// It is plugged in.
const PLUGGED: u64 = 1 << 62;

/// The directory of one device, written by its owner.
#[derive(Debug)]
pub struct Directory {
    shm: Arc<Shm>,
    fd: Kept,
    passes: Passes,
    /// Who held it when neighbours were last kept out.
    holder: AtomicU32,
    /// Read by neighbours, who find it by its address.
    token: Box<AtomicU64>,
}

/// A QP as it is shown to other processes.
pub(crate) struct ShownQp {
    pub(crate) number: u32,
    pub(crate) qp_type: QpType,
    pub(crate) state: QpState,
    pub(crate) pd: u32,
    pub(crate) dest_qpn: u32,
    /// Whether it does without the wire, by a ring or to its peer's memory.
    pub(crate) goes_directly: bool,
    /// What its peer may do without packets, if anything, and [`ends_word`] of its packets.
    pub(crate) open: Option<(Access, u64)>,
}

/// A ring that a device announces to another: its process, and the descriptors of the ring and of
/// the device's directory there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Announced {
    pub(crate) pid: u32,
    pub(crate) ring: u32,
    pub(crate) directory: u32,
}

impl Announced {
    /// A process number has 22 bits on Linux. The descriptors have 21 each here; a ring with a
    /// greater one is not found.
    fn to_word(self) -> u64 {
        let fd = |fd: u32| u64::from(fd) & 0x1f_ffff;
        u64::from(self.pid) << 42 | fd(self.ring) << 21 | fd(self.directory)
    }

    fn of_word(word: u64) -> Announced {
        let fd = |word: u64| (word & 0x1f_ffff) as u32;
        Announced { pid: (word >> 42) as u32, ring: fd(word >> 21), directory: fd(word) }
    }
}

/// What of a QP's entry is 1 where its requests may go without packets.
const GOES_DIRECTLY: u64 = 1 << 48;
/// The marks of a QP and of a key that are open to a neighbour.
const OPEN: u64 = 1 << 63;
/// Where an entry is, and the generation under which it was read.
type Entry = (usize, u64);

/// The addresses that a packet goes from and to, as one number (FNV-1a).
pub(crate) fn ends_word(from: IpAddr, to: IpAddr) -> u64 {
    let octets = |ip: IpAddr| match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
        IpAddr::V6(ip) => ip.octets(),
    };
    let bytes = octets(from).into_iter().chain(octets(to));
    let fold = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
    bytes.fold(0xcbf2_9ce4_8422_2325, fold)
}

impl Directory {
    /// An empty directory for a device.
    pub fn create(name: &str, guid: u64) -> Result<Directory> {
        let (shm, fd) = Shm::create("peerdma-directory", BYTES)?;
        let mut bytes = [0u8; head::NAME_WORDS * 8];
        let take = name.len().min(bytes.len() - 1);
        bytes[..take].copy_from_slice(&name.as_bytes()[..take]);
        for (i, word) in bytes.chunks_exact(8).enumerate() {
            let word = u64::from_le_bytes(word.try_into().unwrap_or_default());
            shm.word(head::NAME + i * 8).store(word, Relaxed);
        }
        shm.word(head::GUID).store(guid, Relaxed);
        shm.word(head::VERSION).store(VERSION, Relaxed);
        // Not std's random numbers, which are the same in processes forked from one.
        let mut token = [0; 8];
        getrandom(&mut token, GetRandomFlags::empty())?;
        let token = Box::new(AtomicU64::new(u64::from_ne_bytes(token)));
        shm.word(head::TOKEN_AT).store(token.as_ptr() as u64, Relaxed);
        shm.word(head::TOKEN).store(token.load(Relaxed), Relaxed);
        shm.word(head::FD).store(fd.as_fd().as_raw_fd() as u64, Relaxed);
        let directory = Directory {
            shm: Arc::new(shm),
            fd,
            passes: Passes::new(PASSES_AT),
            holder: AtomicU32::new(0),
            token,
        };
        directory.own();
        directory.shm.word(head::MAGIC).store(MAGIC, Release);
        Ok(directory)
    }

    /// A number that no other directory has.
    pub(crate) fn token(&self) -> u64 {
        self.token.load(Relaxed)
    }

    /// Notes that the device is this process's.
    pub(crate) fn own(&self) {
        self.shm.word(head::PID).store(u64::from(std::process::id()), Relaxed);
    }

    /// Has the calling thread, which is the device's, show that the process lives.
    ///
    /// # Errors
    /// Where the kernel would not notice its end: nobody reaches the memory then.
    pub(crate) fn hold(&self) -> Result<Held> {
        Held::new(&self.shm, head::HOLDER)
    }

    /// Keeps all neighbours out until [`Directory::let_in`], or until another thread holds the
    /// directory; returns once none is inside.
    pub(crate) fn keep_out(&self) {
        if let Some(holder) = self.shm.holder(head::HOLDER) {
            self.holder.store(holder, Relaxed);
            self.shm.yield_hold(head::HOLDER, holder, 0);
        }
        self.passes.wait(&self.shm, |_| true);
    }

    /// Ends what [`Directory::keep_out`] began: the thread that held the directory still lives.
    pub(crate) fn let_in(&self) {
        let holder = self.holder.swap(0, Relaxed);
        if holder != 0 {
            self.shm.yield_hold(head::HOLDER, 0, holder);
        }
    }

    /// This process, as neighbours know it.
    pub(crate) fn pid(&self) -> u32 {
        self.shm.word(head::PID).load(Relaxed) as u32
    }

    /// Notes the slot that the registry granted.
    pub fn set_slot(&self, slot: u16) {
        self.shm.word(head::SLOT).store(u64::from(slot), Relaxed);
    }

    /// Shows that the port is on an InfiniBand subnet.
    pub(crate) fn show_subnet(&self) {
        self.shm.word(head::SUBNET).store(1, Release);
    }

    /// Shows a membership of the port's at one of [`MAX_MEMBERSHIPS`] places, or that none is
    /// there.
    pub(crate) fn publish_membership(&self, place: usize, membership: Option<&Membership>) {
        let at = GROUPS_AT + place * ENTRY;
        match membership {
            Some(membership) => self.write_entry(at, &membership.to_words()),
            None => drop(self.shut(at)),
        }
    }

    /// Shows the Data Direct function, and whether it is plugged in.
    pub(crate) fn show_data_direct(&self, function: Address, plugged: bool) {
        let plugged = if plugged { PLUGGED } else { 0 };
        self.shm.word(head::DATA_DIRECT).store(PRESENT | plugged | function.to_bits(), Release);
    }

    /// What another process asked and was not done yet: its number, and whether to plug the
    /// function in.
    pub(crate) fn asked(&self) -> Option<(u64, bool)> {
        let asked = self.shm.word(head::ASKED).load(Acquire);
        (asked != self.shm.word(head::DONE).load(Relaxed)).then_some((asked, asked & 1 == 1))
    }

    /// Tells that process that it is done.
    pub(crate) fn done(&self, asked: u64) {
        self.shm.word(head::DONE).store(asked, Release);
        self.shm.wake(head::DONE);
    }

    /// The device is closed.
    pub(crate) fn close(&self) {
        self.shm.word(head::CLOSED).store(1, Release);
    }

    /// How many rings were announced so far.
    pub(crate) fn announced(&self) -> u64 {
        self.shm.word(head::ANNOUNCED).load(Acquire)
    }

    /// Whether the device with that slot has announced one that was not taken yet.
    pub(crate) fn has_announced(&self, slot: u16) -> bool {
        slot < SLOTS && self.shm.word(announced_at(slot)).load(Acquire) != 0
    }

    /// Takes what the device with that slot has announced, if anything.
    pub(crate) fn take_announced(&self, slot: u16) -> Option<Announced> {
        let told = self.shm.word(announced_at(slot)).swap(0, AcqRel);
        (told != 0).then(|| Announced::of_word(told))
    }

    /// The device's thread is about to sleep: who puts something into a ring from now on wakes it.
    /// What was put there before is seen after this.
    pub(crate) fn sleeps(&self) {
        self.shm.word(head::ASLEEP).store(1, Relaxed);
        fence(SeqCst);
    }

    /// It is awake, or leaves the rings to the program. What a thread told before it said that it
    /// sleeps is seen after this.
    pub(crate) fn is_awake(&self) {
        let asleep = self.shm.word(head::ASLEEP);
        if asleep.load(Relaxed) != 0 {
            asleep.store(0, Relaxed);
            fence(SeqCst);
        }
    }

    /// Changes an entry and makes it valid; nobody who looked before goes by it any more.
    fn write_entry(&self, at: usize, words: &[u64]) {
        let closed = self.write_closed(at, words);
        self.shm.word(at).store(closed + 1, SeqCst);
    }

    /// Changes an entry that is not valid then; the generation for [`Directory::open`].
    fn write_closed(&self, at: usize, words: &[u64]) -> u64 {
        let closed = self.shut(at);
        self.write_words(at, words);
        closed
    }

    /// Changes the words of an entry, whose generation is even meanwhile: the fences order them
    /// between the two generations.
    fn write_words(&self, at: usize, words: &[u64]) {
        fence(Release);
        for (i, &word) in words.iter().enumerate() {
            self.shm.word(at + 8 + i * 8).store(word, Relaxed);
        }
    }

    /// Makes an entry invalid, or one that is so of another generation: its generation then, which
    /// is even. Whoever was about to make it valid fails.
    fn shut(&self, at: usize) -> u64 {
        let closed = |now| Some(closed_after(now));
        let changed = self.shm.word(at).fetch_update(SeqCst, SeqCst, closed);
        closed_after(changed.unwrap_or_else(|now| now))
    }

    /// The generation of an entry that is not valid.
    fn closed(&self, at: usize) -> Option<u64> {
        Some(self.shm.word(at).load(SeqCst)).filter(|generation| generation & 1 == 0)
    }

    /// Makes an entry valid that was not, if it has not changed since `closed` was its generation.
    fn open(&self, at: usize, closed: u64) -> bool {
        let generation = self.shm.word(at);
        generation.compare_exchange(closed, closed.wrapping_add(1), SeqCst, SeqCst).is_ok()
    }

    /// Publishes a QP or its new state.
    pub(crate) fn publish_qp(&self, qp: &ShownQp) {
        let ids = u64::from(qp.number) | (qp.qp_type as u64) << 32 | (qp.state as u64) << 40;
        let directly = if qp.goes_directly { GOES_DIRECTLY } else { 0 };
        let (access, ends) = qp.open.unwrap_or((Access::empty(), 0));
        let open = if qp.open.is_some() { OPEN } else { 0 };
        self.write_entry(
            qp_at(qp.number),
            &[
                ids | directly,
                u64::from(qp.pd) | u64::from(qp.dest_qpn) << 32,
                u64::from(access.bits()) | open,
                ends,
            ],
        );
    }

    /// Returns once nobody is inside any more who came by an earlier entry of this QP.
    pub(crate) fn wait_for_visitors_of_qp(&self, number: u32) {
        let index = number as usize % MAX_QPS;
        self.passes.wait(&self.shm, |ticket| ticket.second() as usize == index);
    }

    /// The same for a key.
    pub(crate) fn wait_for_visitors_of_key(&self, key: u32) {
        self.passes.wait(&self.shm, |ticket| ticket.first() as usize == place_of(key));
    }

    /// Keeps a QP's peer out, and returns once it has left; the entry is invalid until the next.
    pub(crate) fn shut_qp(&self, number: u32) {
        self.shut(qp_at(number));
        self.wait_for_visitors_of_qp(number);
    }

    /// Removes a QP and zeroes its counters. Its peer has left when this returns.
    pub(crate) fn remove_qp(&self, number: u32) {
        self.shut_qp(number);
        let at = qp_at(number);
        self.shm.word(at + TX_AT).store(0, Relaxed);
        self.shm.word(at + RX_AT).store(0, Relaxed);
    }

    /// Adds to a QP's traffic.
    pub fn add_traffic(&self, number: u32, tx_bytes: u64, rx_bytes: u64) {
        let at = qp_at(number);
        if tx_bytes != 0 {
            self.shm.word(at + TX_AT).fetch_add(tx_bytes, Relaxed);
        }
        if rx_bytes != 0 {
            self.shm.word(at + RX_AT).fetch_add(rx_bytes, Relaxed);
        }
    }

    /// The table for the routes of the device's functions. A device has one: a second would write
    /// over the first.
    pub fn route_table(&self) -> Result<RouteTable> {
        Ok(RouteTable::new(Shm::open(&self.fd)?, ROUTES_AT))
    }

    /// Shows what is no count but a state.
    pub(crate) fn show(&self, what: Counter, value: u64) {
        self.shm.word(COUNTERS_AT + what as usize * 8).store(value, Relaxed);
    }

    /// A reader over the same memory.
    pub fn reader(&self) -> Result<Reader> {
        Reader::open(&self.fd)
    }
}

impl AsFd for Directory {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Count for Directory {
    fn count(&self, what: Counter, by: u64) {
        if by != 0 {
            self.shm.word(COUNTERS_AT + what as usize * 8).fetch_add(by, Relaxed);
        }
    }
}

/// The next generation of an entry that is not valid.
fn closed_after(generation: u64) -> u64 {
    (generation & !1).wrapping_add(2)
}

fn announced_at(slot: u16) -> usize {
    ANNOUNCED_AT + usize::from(slot) * 8
}

fn qp_at(number: u32) -> usize {
    QPS_AT + (number as usize % MAX_QPS) * ENTRY
}
