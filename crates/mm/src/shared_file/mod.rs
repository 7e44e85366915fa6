//! The file that another process's memory is, mapped here: what a process maps as shared
//! (MAP_SHARED) others may map, too.
//!
//! Nobody says which file that is, and whoever mapped it has mostly closed the descriptor. So it is
//! looked for when it is wanted: `/proc/PID/maps` tells device and inode, and a descriptor of the
//! process or the path in `maps` leads there. What no way leads to is not mapped here;
//! `/proc/PID/map_files` would, and needs CAP_CHECKPOINT_RESTORE.
//!
//! # What is promised
//! What is mapped is a file in memory (tmpfs, hugetlbfs) that `maps` named at some moment of the
//! call, by device, inode and name, at the place in it that `maps` said. Whether the process has it
//! there any longer is for the caller to know. Nobody is waited for who serves a file system: a
//! file is looked at before it is opened, and by no call that asks its file system. What the
//! program could find out is left alone: a file that may still be sealed, which a mapping for
//! writing would keep from that (F_SEAL_WRITE). And so is a System V segment: when that is detached
//! by a bare call, the kernel tells nobody who watches the memory.

mod find;
mod in_memory;
mod maps;
mod process;

use crate::{Loan, Mapping, NotLent, OtherProcess, View};
use find::refused;
use maps::Extent;
use process::Shown;
use rustix::io::Errno;
use std::ops::Range;
use std::os::fd::AsFd;

impl OtherProcess {
    /// A loan of what it has at `range`, if all of that is one piece of a file in memory that it
    /// may read, and write if the loan is to be `writable`. Waits for no lock.
    ///
    /// # Errors
    /// [`NotLent`]: of what is no such file, or is not found, [`NotLent::Never`].
    pub fn lends(self, range: Range<u64>, writable: bool) -> Result<Loan, NotLent> {
        if !View::may_be_lent() {
            return Err(NotLent::Never);
        }
        of_process(self.pid(), range, writable)
    }
}

fn of_process(pid: u32, range: Range<u64>, writable: bool) -> Result<Loan, NotLent> {
    let process = Shown::new(pid).ok_or(NotLent::Never)?;
    let size = range.end.checked_sub(range.start).filter(|size| *size > 0);
    let size = size.ok_or(NotLent::Never)?;
    let extent = Extent::of_process(&process, &range, writable).ok_or(NotLent::Never)?;
    let end = extent.offset.checked_add(size).ok_or(NotLent::Never)?;
    let (mapping, at) = mapped(&process, &extent, end, writable)?;
    Ok(Loan::new(View::lend(mapping, at, size)?, range.start))
}

/// A mapping of a file up to `end`, and where in that the extent begins.
fn mapped(
    process: &Shown,
    extent: &Extent,
    end: u64,
    writable: bool,
) -> Result<(Mapping, u64), NotLent> {
    let (file, page) = find::open(process, extent, end, writable)?;
    // Huge pages are mapped whole.
    let start = extent.offset - extent.offset % page;
    let end = end.checked_next_multiple_of(page).ok_or(NotLent::Never)?;
    let mapping = Mapping::shared_lazily(file.as_fd(), start..end, writable);
    let mapping = mapping.map_err(|error| refused(Errno::from_io_error(&error)))?;
    Ok((mapping, extent.offset - start))
}

#[cfg(all(test, not(loom)))]
mod tests;
