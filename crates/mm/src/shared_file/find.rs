//! The file of an extent, opened here: by a descriptor of its process, or by its path there.
//!
//! The process may put anything in the place of what was looked at. So a file is found without
//! being opened (O_PATH), looked at, and opened as the very file that was found: nothing but a
//! regular file in memory ever is. Its file system is asked no sooner.

use super::in_memory::is_in_memory;
use super::maps::{Extent, FileId};
use super::process::Shown;
use crate::NotLent;
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, ResolveFlags, SealFlags, StatxFlags};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;

/// Descriptors of a process that are looked at.
const MOST: usize = 1024;

const FOUND: OFlags = OFlags::PATH.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// The file of an extent of a process, which has pages up to byte `end`, and their size.
pub(super) fn open(
    process: &Shown,
    extent: &Extent,
    end: u64,
    writable: bool,
) -> Result<(OwnedFd, u64), NotLent> {
    if !is_in_memory(process, extent.file.device) {
        return Err(NotLent::Never);
    }
    let found = by_descriptor(process, extent).map_or_else(|| by_path(process, extent), Ok)?;
    let system = rustix::fs::fstatfs(&found).map_err(|errno| refused(Some(errno)))?;
    let page = u64::try_from(system.f_bsize).ok().filter(|page| page.is_power_of_two());
    let page = page.ok_or(NotLent::Never)?;
    let file = opened(&found, writable).map_err(|errno| refused(Some(errno)))?;
    // Its last page is there to its end.
    let size = rustix::fs::fstat(&file).ok().and_then(|stat| u64::try_from(stat.st_size).ok());
    let size = size.and_then(|size| size.checked_next_multiple_of(page));
    let is_long_enough = size.is_some_and(|size| end <= size);
    // Nobody may seal it any more, who would be kept from that by a mapping.
    let is_settled =
        rustix::fs::fcntl_get_seals(&file).is_ok_and(|seals| seals.contains(SealFlags::SEAL));
    if !is(&file, extent.file) || !is_settled {
        return Err(NotLent::Never);
    }
    // What was cut off may be there again later.
    if is_long_enough { Ok((file, page)) } else { Err(NotLent::NotNow) }
}

/// Opens the very file that was found.
fn opened(found: &OwnedFd, writable: bool) -> Result<OwnedFd, Errno> {
    let access = if writable { OFlags::RDWR } else { OFlags::RDONLY };
    // Somebody may have a lease on it, who is not waited for.
    let flags = access | OFlags::CLOEXEC | OFlags::NONBLOCK;
    rustix::fs::open(format!("/proc/self/fd/{}", found.as_raw_fd()), flags, Mode::empty())
}

/// What a call of the system that failed means for the loan.
pub(super) fn refused(errno: Option<Errno>) -> NotLent {
    match errno {
        Some(Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::AGAIN) => NotLent::NotNow,
        _ => NotLent::Never,
    }
}

/// Whether that is the file, and a regular one. Asks no file system.
fn is(file: impl AsFd, wanted: FileId) -> bool {
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    let stat = rustix::fs::statx(file, c"", flags, StatxFlags::TYPE | StatxFlags::INO);
    stat.is_ok_and(|stat| {
        let id = FileId { device: (stat.stx_dev_major, stat.stx_dev_minor), inode: stat.stx_ino };
        let kind = FileType::from_raw_mode(stat.stx_mode.into());
        id == wanted && kind == FileType::RegularFile
    })
}

/// What one of the process's descriptors is of.
fn by_descriptor(process: &Shown, extent: &Extent) -> Option<OwnedFd> {
    let folder = process.open("fd", OFlags::RDONLY | OFlags::DIRECTORY).ok()?;
    let mut name = Vec::new();
    for entry in Dir::read_from(&folder).ok()?.take(MOST) {
        let entry = entry.ok()?;
        let Ok(link) = rustix::fs::readlinkat(&folder, entry.file_name(), name) else {
            // Closed meanwhile, or no link.
            name = Vec::new();
            continue;
        };
        let is_called_so = link.to_bytes() == extent.name;
        name = link.into_bytes();
        if is_called_so
            && let Ok(found) = rustix::fs::openat(
                &folder,
                entry.file_name(),
                OFlags::PATH | OFlags::CLOEXEC,
                Mode::empty(),
            )
            && is(&found, extent.file)
        {
            return Some(found);
        }
    }
    None
}

/// What the path is of, as the process's root has it: through directories that the kernel has at
/// hand, as it has all in memory, and no links, so that nobody is asked on the way (from Linux 5.12
/// on).
fn by_path(process: &Shown, extent: &Extent) -> Result<OwnedFd, NotLent> {
    let errno = |errno| refused(Some(errno));
    let path = extent.name.strip_prefix(b"/").ok_or(NotLent::Never)?;
    if path.ends_with(b" (deleted)") {
        return Err(NotLent::Never);
    }
    let root = process.open("root", OFlags::PATH | OFlags::DIRECTORY).map_err(errno)?;
    let how = ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS | ResolveFlags::CACHED;
    let path = OsStr::from_bytes(path);
    let found = rustix::fs::openat2(root, path, FOUND, Mode::empty(), how).map_err(errno)?;
    if is(&found, extent.file) { Ok(found) } else { Err(NotLent::Never) }
}
