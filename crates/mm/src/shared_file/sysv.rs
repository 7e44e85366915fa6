//! A System V segment (shmget(2)), attached here by its number, which is the inode of its mappings.
//!
//! Who is attached is counted (`shm_nattch`), and programs go by that: some remove a segment when
//! nobody is, some do not start where somebody still is. So only what was removed already (IPC_RMID
//! with processes attached, as whoever wants no segment to outlive it does at once) is attached:
//! nobody finds that by its key any more, and it ends with the last process that detaches. That may
//! be this one, when it gives the loan back.

use super::maps::Extent;
use super::{Shown, refused};
use crate::{Mapping, NotLent};
use rustix::fs::OFlags;
use rustix::io::Errno;

/// `SHM_DEST` of `linux/shm.h`: it was removed.
const REMOVED: u32 = 0o1000;

/// A mapping of the segment that an extent of a process is in, up to `end` at least.
pub(super) fn attached(
    process: &Shown,
    extent: &Extent,
    end: u64,
    writable: bool,
) -> Result<Mapping, NotLent> {
    // Others have other segments of the same number.
    let own = Shown::new(std::process::id()).ok_or(NotLent::Never)?;
    let space = |process: &Shown| {
        let stat = rustix::fs::fstat(process.open("ns/ipc", OFlags::PATH).ok()?).ok()?;
        Some((stat.st_dev, stat.st_ino))
    };
    let is_same_space = space(&own).is_some_and(|own| space(process) == Some(own));
    let id = i32::try_from(extent.file.inode).map_err(|_| NotLent::Never)?;
    let is_removed = status(id).is_some_and(|status| status & REMOVED != 0);
    if !is_same_space || !is_removed {
        return Err(NotLent::Never);
    }
    let addr = attach(id, writable).map_err(|errno| refused(Some(errno)))?;
    let Some(extent_here) = Extent::of_process(&own, &(addr..addr + 1), writable) else {
        detach(addr);
        return Err(NotLent::Never);
    };
    // SAFETY: attached just now, from `addr` to the end of its one mapping; nobody else knows it.
    let mapping = unsafe { Mapping::made(addr, extent_here.end - addr) };
    // Where the program has all that it maps kept in memory (mlockall(2)), this is not.
    mapping.unlock();
    // The number may have become another segment's.
    let is_right = extent_here.file == extent.file && extent_here.offset == 0 && end <= mapping.len();
    if is_right { Ok(mapping) } else { Err(NotLent::Never) }
}

/// The mode of a segment, with what became of it.
fn status(id: i32) -> Option<u32> {
    // SAFETY: all-zero bytes are a valid shmid_ds, which the call fills.
    let (code, segment) = unsafe {
        let mut segment: libc::shmid_ds = std::mem::zeroed();
        (libc::syscall(libc::SYS_shmctl, id, libc::IPC_STAT, &raw mut segment), segment)
    };
    (code == 0).then_some(segment.shm_perm.mode.into())
}

/// Attaches a segment at an address of the kernel's choice. A raw system call, as the next: the C
/// library's are interposed.
fn attach(id: i32, writable: bool) -> Result<u64, Errno> {
    let flags = if writable { 0 } else { libc::SHM_RDONLY };
    // SAFETY: a new mapping at an address of the kernel's choice; nothing else is affected.
    let addr = unsafe { libc::syscall(libc::SYS_shmat, id, 0usize, flags) };
    if addr == -1 {
        return Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO));
    }
    Ok(addr as u64)
}

fn detach(addr: u64) {
    // SAFETY: a segment that `attach` has attached, which nobody uses.
    unsafe { libc::syscall(libc::SYS_shmdt, addr as usize) };
}
