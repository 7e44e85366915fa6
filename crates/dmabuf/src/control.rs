//! The control block: what a software GPU's buffer shares between its exporter and its importers,
//! in shared memory.
//!
//! The data memfd holds data only, so that its size and `mmap` are right; everything else is here,
//! in a second memfd that an importer gets from the registry by the buffer's id. All fields are
//! 64-bit words, changed atomically; version 3 is
//!
//! | byte | word |
//! | --- | --- |
//! | 0 | magic `peerdmaB` |
//! | 8 | version (3) |
//! | 16 | id of the buffer |
//! | 24 | the GPU's PCI address: domain << 16, bus << 8, device << 3, function |
//! | 32 | state: bit 0 users kept out, 1 revoked, 2 in host memory; from bit 3 on: count of moves |
//! | 40 | 1 while the exporter keeps a place in its memory for the buffer |
//! | 48 | process id of who moves it, for display |
//! | 56 | process id of the exporter, for display |
//! | 64 | the placement whose bytes are in the data memfd: 1 VRAM, 2 host memory |
//! | 128 + 64 n | users of slot n (0 to 61): accesses, revocable pins << 32, pins << 48 |
//! | 136 + 64 n | process id of the slot's owner, for display |
//! | 144 + 64 n | descriptor of the data memfd in that process |
//! | 152 + 64 n | address in that process of the bytes in the data memfd, 0 where it has none |
//! | 160 + 64 n | address in that process of the other placement, 0 where it has none |
//! | 4096.. | the buffer's bytes while it is at the other placement |
//!
//! Bytes 1 and 128 + 64 n are locked (`F_OFD_SETLK`) by who moves the buffer and by the owner of
//! slot n: the kernel lets go of a lock when its owner ends, however it ends.

use crate::Error;
use crate::error::Refused;
use crate::turnstile::{self, TurnstileState, Use};
use descriptors::Kept;
use engine_thread::lock;
use mm::Sink;
use pcie::Address;
use rustix::io::Errno;
use shm::Shm;
use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Mutex;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::time::Duration;

const MAGIC: u64 = u64::from_le_bytes(*b"peerdmaB");
const VERSION: u64 = 3;
/// Name of the memfd.
pub(crate) const NAME: &str = "peerdma-control";
/// Bytes before the second place.
const BYTES: usize = 4096;

const AT_MAGIC: usize = 0;
const AT_VERSION: usize = 8;
const AT_ID: usize = 16;
const AT_GPU: usize = 24;
const AT_STATE: usize = 32;
const AT_HOME: usize = 40;
const AT_MOVER: usize = 48;
const AT_PID: usize = 56;
const AT_BORN: usize = 64;
const AT_SLOTS: usize = 128;
const SLOT_BYTES: usize = 64;
/// Within a slot.
const AT_OWNER: usize = 8;
const AT_DATA: usize = 16;
const AT_ADDRESSES: usize = 24;

/// Where the second place begins in the block's file.
pub(crate) const SECOND_PLACE: u64 = BYTES as u64;

/// Processes that can use a buffer at the same time.
pub(crate) const SLOTS: usize = (BYTES - AT_SLOTS) / SLOT_BYTES;
/// The byte that a mover locks.
pub(crate) const MOVER_BYTE: i64 = 1;

/// Where a buffer's bytes are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u64)]
pub enum Placement {
    /// The GPU's memory.
    Vram = 1,
    /// Host memory.
    Host = 2,
}

impl Placement {
    /// The one that it is not.
    pub(crate) fn other(self) -> Placement {
        match self {
            Placement::Vram => Placement::Host,
            Placement::Host => Placement::Vram,
        }
    }
}

impl std::fmt::Display for Placement {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Placement::Vram => "vram",
            Placement::Host => "host",
        })
    }
}

/// A buffer's control block, as exporter and importers share it.
#[derive(Debug)]
pub struct Control {
    shared: Shm,
    fd: Kept,
}

impl Control {
    /// A new block for a buffer of `size` bytes of the GPU at `gpu`.
    pub fn create(
        id: u64,
        gpu: Address,
        placement: Placement,
        size: u64,
    ) -> rustix::io::Result<Control> {
        let bytes = usize::try_from(size).ok().and_then(|size| size.checked_add(BYTES));
        let (shared, fd) = Shm::create(NAME, bytes.ok_or(Errno::NOMEM)?)?;
        for (at, value) in [
            (AT_VERSION, VERSION),
            (AT_ID, id),
            (AT_GPU, pack(gpu)),
            (AT_STATE, TurnstileState::new(placement).0),
            (AT_HOME, u64::from(placement == Placement::Vram)),
            (AT_PID, u64::from(std::process::id())),
            (AT_BORN, placement as u64),
        ] {
            shared.word(at).store(value, Relaxed);
        }
        shared.word(AT_MAGIC).store(MAGIC, Release);
        Ok(Control { shared, fd })
    }

    /// Another process's block for the buffer `id` of `size` bytes.
    pub fn open(fd: OwnedFd, id: u64, size: u64) -> Result<Control, Error> {
        let refuse = |why: &str| refused(&format!("of buffer {id:016x} {why}"));
        let control = Control::of(Shm::open(&fd), fd, &refuse)?;
        if control.id() != id {
            return Err(refuse("belongs to another buffer"));
        }
        if ((control.shared.bytes() - BYTES) as u64) < size {
            return Err(refuse("has no room for the buffer's bytes"));
        }
        Ok(control)
    }

    /// Another process's block for whatever buffer, without the second place: its length is for
    /// the other process to say, and takes as much address space here.
    pub(crate) fn open_any(fd: OwnedFd) -> Result<Control, Refused> {
        match Shm::open_first(&fd, BYTES) {
            Err(Errno::PROTO | Errno::PERM | Errno::INVAL) => Err(Refused::NotOurs),
            Err(_) => Err(Refused::NotNow),
            mapped => Control::of(mapped, fd, &refused).map_err(|_| Refused::NotOurs),
        }
    }

    fn of(
        mapped: rustix::io::Result<Shm>,
        fd: OwnedFd,
        refuse: &dyn Fn(&str) -> Error,
    ) -> Result<Control, Error> {
        let shared = mapped.map_err(|e| refuse(&format!("cannot be mapped: {e}")))?;
        if shared.bytes() < BYTES || shared.word(AT_MAGIC).load(Acquire) != MAGIC {
            return Err(refuse("is not one of ours"));
        }
        match shared.word(AT_VERSION).load(Relaxed) {
            VERSION => {}
            other => {
                return Err(refuse(&format!(
                    "has version {other}, this library knows version {VERSION}"
                )));
            }
        }
        Ok(Control { shared, fd: Kept::new(fd) })
    }

    /// The buffer's id.
    pub fn id(&self) -> u64 {
        self.shared.word(AT_ID).load(Relaxed)
    }

    /// PCI address of the exporting GPU.
    pub fn gpu(&self) -> Address {
        unpack(self.shared.word(AT_GPU).load(Relaxed))
    }

    /// Where the bytes are now, and what happens to them.
    #[inline]
    pub fn state(&self) -> TurnstileState {
        TurnstileState(self.state_word().load(SeqCst))
    }

    /// Whether the exporter keeps a place in its memory for the buffer.
    pub fn has_home(&self) -> bool {
        self.shared.word(AT_HOME).load(SeqCst) != 0
    }

    /// Process id of the exporter, in its own PID namespace.
    pub fn exporter_pid(&self) -> u64 {
        self.shared.word(AT_PID).load(Relaxed)
    }

    #[inline]
    pub(crate) fn state_word(&self) -> &AtomicU64 {
        self.shared.word(AT_STATE)
    }

    pub(crate) fn set_home(&self, home: bool) {
        self.shared.word(AT_HOME).store(u64::from(home), SeqCst);
    }

    pub(crate) fn set_mover(&self, pid: u32) {
        self.shared.word(AT_MOVER).store(u64::from(pid), Relaxed);
    }

    pub(crate) fn mover(&self) -> u64 {
        self.shared.word(AT_MOVER).load(Relaxed)
    }

    /// Changes the state and wakes who waits for that.
    pub(crate) fn set_state(&self, state: TurnstileState) {
        self.state_word().store(state.0, SeqCst);
        self.shared.wake(AT_STATE);
    }

    /// Waits for the state to be another than `seen`; may end early.
    pub(crate) fn wait_state(&self, seen: TurnstileState, limit: Duration) {
        self.shared.wait(AT_STATE, seen.0, limit);
    }

    /// The users of a slot.
    #[inline]
    pub(crate) fn users(&self, slot: usize) -> &AtomicU64 {
        self.shared.word(AT_SLOTS + slot * SLOT_BYTES)
    }

    /// The owner of a slot, for display.
    pub(crate) fn owner(&self, slot: usize) -> &AtomicU64 {
        self.of_slot(slot, AT_OWNER)
    }

    /// The descriptor of the data file in the process of a slot's owner.
    pub(crate) fn data_of(&self, slot: usize) -> &AtomicU64 {
        self.of_slot(slot, AT_DATA)
    }

    /// Where the process of a slot's owner has the bytes of a placement mapped, or 0.
    pub(crate) fn address_of(&self, slot: usize, placement: Placement) -> &AtomicU64 {
        let second = usize::from(placement != self.born());
        self.of_slot(slot, AT_ADDRESSES + second * 8)
    }

    /// The process of a slot's owner has the bytes mapped nowhere.
    pub(crate) fn forget_addresses(&self, slot: usize) {
        for placement in [Placement::Vram, Placement::Host] {
            self.address_of(slot, placement).store(0, SeqCst);
        }
    }

    fn of_slot(&self, slot: usize, at: usize) -> &AtomicU64 {
        self.shared.word(AT_SLOTS + slot * SLOT_BYTES + at)
    }

    /// Waits for a slot's users to be others than `seen`; may end early.
    pub(crate) fn wait_users(&self, slot: usize, seen: u64, limit: Duration) {
        self.shared.wait(AT_SLOTS + slot * SLOT_BYTES, seen, limit);
    }

    /// Begins to use the buffer under a slot: until [`Control::leave`] it stays where the answer
    /// says. The error is the state that keeps users out. Never allocates or waits.
    #[inline]
    pub(crate) fn enter(&self, slot: usize, how: Use) -> Result<TurnstileState, TurnstileState> {
        turnstile::enter(self.state_word(), self.users(slot), how)
            .inspect_err(|_| self.wake_users(slot))
    }

    /// Ends a use.
    #[inline]
    pub(crate) fn leave(&self, slot: usize, how: Use) {
        if turnstile::leave(self.state_word(), self.users(slot), how) {
            self.wake_users(slot);
        }
    }

    /// Wakes who waits for a slot's users.
    fn wake_users(&self, slot: usize) {
        self.shared.wake(AT_SLOTS + slot * SLOT_BYTES);
    }

    /// The placement at which the bytes are in the data file: where the buffer was made, so that a
    /// program that maps the descriptor of one that never moved sees them.
    pub fn born(&self) -> Placement {
        match self.shared.word(AT_BORN).load(Relaxed) {
            2 => Placement::Host,
            _ => Placement::Vram,
        }
    }

    /// The second place.
    pub(crate) fn second_place(&self) -> Option<Sink<'_>> {
        let (addr, behind) = (self.shared.addr(BYTES)?, self.shared.addr(self.shared.bytes())?);
        // SAFETY: mapped as long as the block is, and behind the words that it has references to.
        Some(unsafe { Sink::vouched(addr, behind - addr) })
    }
}

fn refused(why: &str) -> Error {
    Error::NotDmaBuf(format!("the control block {why}"))
}

/// The byte that the owner of a slot locks.
pub(crate) fn slot_byte(slot: usize) -> i64 {
    (AT_SLOTS + slot * SLOT_BYTES) as i64
}

impl AsFd for Control {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

fn pack(address: Address) -> u64 {
    u64::from(address.domain) << 16
        | u64::from(address.bus) << 8
        | u64::from(address.device & 31) << 3
        | u64::from(address.function & 7)
}

fn unpack(word: u64) -> Address {
    Address {
        domain: (word >> 16) as u32,
        bus: (word >> 8) as u8,
        device: (word >> 3) as u8 & 31,
        function: word as u8 & 7,
    }
}

/// Where control blocks are found by the id in a buffer's name: the registry, across processes.
pub trait ControlBlocks: Send + Sync {
    /// Makes a block known.
    fn publish(&self, id: u64, control: BorrowedFd<'_>) -> Result<(), Errno>;
    /// Takes a block back that was published here.
    fn withdraw(&self, id: u64);
    /// Fetches a block; `None` if nobody published it, or its exporter is gone.
    fn lookup(&self, id: u64) -> Result<Option<OwnedFd>, Errno>;
}

/// Control blocks across the user's processes, under `dmabuf-` and the id in hexadecimal.
impl ControlBlocks for registry::Client {
    fn publish(&self, id: u64, control: BorrowedFd<'_>) -> Result<(), Errno> {
        registry::Client::publish(self, &registry_name(id), control).map_err(registry_errno)
    }

    fn withdraw(&self, id: u64) {
        registry::Client::withdraw(self, &registry_name(id));
    }

    fn lookup(&self, id: u64) -> Result<Option<OwnedFd>, Errno> {
        match registry::Client::lookup(self, &registry_name(id)) {
            Ok(control) => Ok(Some(control)),
            Err(registry::Error::Unknown) => Ok(None),
            Err(error) => Err(registry_errno(error)),
        }
    }
}

fn registry_name(id: u64) -> String {
    format!("dmabuf-{id:016x}")
}

fn registry_errno(error: registry::Error) -> Errno {
    match error {
        registry::Error::System { errno, .. } => Errno::from_raw_os_error(errno),
        registry::Error::Taken => Errno::EXIST,
        registry::Error::Timeout => Errno::TIMEDOUT,
        _ => Errno::IO,
    }
}

/// Control blocks within one process.
#[derive(Default, Debug)]
pub struct LocalControls(Mutex<HashMap<u64, OwnedFd>>);

impl ControlBlocks for LocalControls {
    fn publish(&self, id: u64, control: BorrowedFd<'_>) -> Result<(), Errno> {
        let fd = rustix::io::fcntl_dupfd_cloexec(control, 0)?;
        lock(&self.0).insert(id, fd);
        Ok(())
    }

    fn withdraw(&self, id: u64) {
        lock(&self.0).remove(&id);
    }

    fn lookup(&self, id: u64) -> Result<Option<OwnedFd>, Errno> {
        let map = lock(&self.0);
        map.get(&id).map(|fd| rustix::io::fcntl_dupfd_cloexec(fd, 0)).transpose()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn again(control: &Control) -> OwnedFd {
        control.as_fd().try_clone_to_owned().unwrap()
    }

    #[test]
    fn both_sides_see_the_same_block() {
        let gpu = "1ffff:1a:1f.7".parse().unwrap();
        let exporter = Control::create(5, gpu, Placement::Vram, 64).unwrap();
        let importer = Control::open(again(&exporter), 5, 64).unwrap();
        assert_eq!((importer.id(), importer.gpu()), (5, gpu));
        assert_eq!(importer.state(), TurnstileState::new(Placement::Vram));
        assert_eq!(importer.exporter_pid(), u64::from(std::process::id()));
        assert!(importer.has_home());
        exporter.set_state(exporter.state().moved(Placement::Host).revoked());
        assert_eq!(importer.state().placement(), Placement::Host);
        assert!(importer.state().is_revoked());
    }

    #[test]
    fn foreign_and_newer_blocks_are_refused() {
        let gpu = "1a:00.0".parse().unwrap();
        let make = || Control::create(5, gpu, Placement::Host, 64).unwrap();
        let refused = |c: &Control, id| Control::open(again(c), id, 64).unwrap_err().to_string();
        assert!(refused(&make(), 6).contains("another buffer"));
        for (at, value, why) in [(AT_MAGIC, 0, "not one of ours"), (AT_VERSION, 1, "version 1")] {
            let control = make();
            control.shared.word(at).store(value, Relaxed);
            assert!(refused(&control, 5).contains(why));
        }
        assert!(Control::open(again(&make()), 5, 65).unwrap_err().to_string().contains("room"));
        let (_, short) = Shm::create("short", 64).unwrap();
        assert!(Control::open(short.as_fd().try_clone_to_owned().unwrap(), 5, 0).is_err());
        let unsealed =
            rustix::fs::memfd_create("unsealed", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        assert!(Control::open(unsealed, 5, 0).is_err());
    }
}
