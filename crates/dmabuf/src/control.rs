//! The control block: what an exporting software GPU says about a buffer, in shared memory.
//!
//! The data memfd holds data only, so that its size and `mmap` are right; everything else is here, in a second memfd that an
//! importer gets from the registry by the buffer's id. All fields are 64-bit words, changed atomically; version 1 is
//!
//! | byte | word |
//! | --- | --- |
//! | 0 | magic `peerdmaB` |
//! | 8 | version (1) |
//! | 16 | id of the buffer |
//! | 24 | the GPU's PCI address: domain << 16, bus << 8, device << 3, function |
//! | 32 | placement |
//! | 40 | generation: counts moves |
//! | 48 | revoked: 0 or 1, never back |
//! | 56 | process id of the exporter, for display |
//! | 64..128 | fences (reserved) |
//! | 128..4096 | enter/leave slots (reserved): 62 of 64 bytes |

use crate::Error;
use pcie::Address;
use rustix::io::Errno;
use shm::Shm;
use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::{Mutex, PoisonError};

const MAGIC: u64 = u64::from_le_bytes(*b"peerdmaB");
const VERSION: u64 = 1;
const BYTES: usize = 4096;

const AT_MAGIC: usize = 0;
const AT_VERSION: usize = 8;
const AT_ID: usize = 16;
const AT_GPU: usize = 24;
const AT_PLACEMENT: usize = 32;
const AT_GENERATION: usize = 40;
const AT_REVOKED: usize = 48;
const AT_PID: usize = 56;

/// Where a buffer's bytes are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u64)]
pub enum Placement {
    /// In the GPU's memory.
    Vram = 1,
    /// In host memory.
    Host = 2,
}

/// A buffer's control block, as exporter and importers share it.
#[derive(Debug)]
pub struct Control {
    shared: Shm,
}

impl Control {
    /// A new block for a buffer of the GPU at `gpu`.
    pub fn create(id: u64, gpu: Address, placement: Placement) -> rustix::io::Result<Control> {
        let shared = Shm::create("peerdma-control", BYTES)?;
        for (at, value) in [
            (AT_VERSION, VERSION),
            (AT_ID, id),
            (AT_GPU, pack(gpu)),
            (AT_PLACEMENT, placement as u64),
            (AT_PID, u64::from(std::process::id())),
        ] {
            shared.word(at).store(value, Relaxed);
        }
        shared.word(AT_MAGIC).store(MAGIC, Release);
        Ok(Control { shared })
    }

    /// Another process's block for the buffer `id`.
    pub fn open(fd: OwnedFd, id: u64) -> Result<Control, Error> {
        let refuse =
            |why: &str| Error::NotDmaBuf(format!("the control block of buffer {id:016x} {why}"));
        let shared = Shm::open(fd).map_err(|e| refuse(&format!("cannot be mapped: {e}")))?;
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
        if shared.word(AT_ID).load(Relaxed) != id {
            return Err(refuse("belongs to another buffer"));
        }
        let control = Control { shared };
        control.placement().ok_or_else(|| refuse("names an unknown placement"))?;
        Ok(control)
    }

    /// The buffer's id.
    pub fn id(&self) -> u64 {
        self.shared.word(AT_ID).load(Relaxed)
    }

    /// PCI address of the exporting GPU.
    pub fn gpu(&self) -> Address {
        unpack(self.shared.word(AT_GPU).load(Relaxed))
    }

    /// Where the bytes are now; `None` if the exporter wrote a value that this version does not know.
    pub fn placement(&self) -> Option<Placement> {
        match self.shared.word(AT_PLACEMENT).load(Acquire) {
            1 => Some(Placement::Vram),
            2 => Some(Placement::Host),
            _ => None,
        }
    }

    /// Number of moves so far.
    pub fn generation(&self) -> u64 {
        self.shared.word(AT_GENERATION).load(Acquire)
    }

    /// Whether the exporter has taken the buffer back.
    #[inline]
    pub fn revoked(&self) -> bool {
        self.shared.word(AT_REVOKED).load(Acquire) != 0
    }

    /// Takes the buffer back from all importers: none begins a new access after this. Returns whether it had not been yet.
    pub fn revoke(&self) -> bool {
        self.shared.word(AT_REVOKED).swap(1, AcqRel) == 0
    }

    /// Process id of the exporter, in its own PID namespace.
    pub fn exporter_pid(&self) -> u64 {
        self.shared.word(AT_PID).load(Relaxed)
    }
}

impl AsFd for Control {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.shared.as_fd()
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
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(id, fd);
        Ok(())
    }

    fn withdraw(&self, id: u64) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&id);
    }

    fn lookup(&self, id: u64) -> Result<Option<OwnedFd>, Errno> {
        let map = self.0.lock().unwrap_or_else(PoisonError::into_inner);
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
        let exporter = Control::create(5, gpu, Placement::Vram).unwrap();
        let importer = Control::open(again(&exporter), 5).unwrap();
        assert_eq!(
            (importer.id(), importer.gpu(), importer.placement()),
            (5, gpu, Some(Placement::Vram))
        );
        assert_eq!((importer.generation(), importer.revoked()), (0, false));
        assert_eq!(importer.exporter_pid(), u64::from(std::process::id()));
        assert!(exporter.revoke());
        assert!(!exporter.revoke());
        assert!(importer.revoked());
    }

    #[test]
    fn foreign_and_newer_blocks_are_refused() {
        let gpu = "1a:00.0".parse().unwrap();
        let make = || Control::create(5, gpu, Placement::Host).unwrap();
        let refused = |c: &Control, id| Control::open(again(c), id).unwrap_err().to_string();
        assert!(refused(&make(), 6).contains("another buffer"));
        for (at, value, why) in [
            (AT_MAGIC, 0, "not one of ours"),
            (AT_VERSION, 2, "version 2"),
            (AT_PLACEMENT, 9, "placement"),
        ] {
            let control = make();
            control.shared.word(at).store(value, Relaxed);
            assert!(refused(&control, 5).contains(why));
        }
        let short = Shm::create("short", 64).unwrap();
        assert!(Control::open(short.as_fd().try_clone_to_owned().unwrap(), 5).is_err());
        let unsealed =
            rustix::fs::memfd_create("unsealed", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        assert!(Control::open(unsealed, 5).is_err());
    }
}
