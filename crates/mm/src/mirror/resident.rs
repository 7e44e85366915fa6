//! Where the pages of a mirrored range come from: the memory of this process, or what a test makes
//! up.

use crate::guard::{Fault, Sink};
use crate::private::{DevicePage, PrivateMemory, RangeFault};
use crate::{page_size, populate};
use std::ops::Range;

/// An address space that a [`crate::Mirror`] shows to a device. All ranges are of whole pages.
pub trait Pages: Send + Sync {
    /// Brings every page of `range` in, for writing if `write` (`hmm_range_fault` with its request
    /// flags). Names in `found`, in order, those that are in a device's memory and may be reached
    /// there, and counts those that were and had to be brought to the host's. May wait for the
    /// system, and must not wait for an invalidation.
    ///
    /// # Errors
    /// Part of the range is not mapped, or not for this access.
    fn fault(
        &self,
        range: &Range<u64>,
        write: bool,
        found: &mut dyn FnMut(DevicePage),
    ) -> Result<u64, Fault>;

    /// Brings what of `range` is in a device's memory to the host's, which tells of it as of any
    /// move.
    fn to_host(&self, range: &Range<u64>);

    /// Names the parts of `range` that are there now, in order, and brings nothing in
    /// (`hmm_range_fault` without request flags). Parts may be left out.
    fn resident(&self, range: &Range<u64>, found: &mut dyn FnMut(Range<u64>));

    /// The memory that holds every page which [`Pages::fault`] names as a peer's. Without it none
    /// is reached there.
    fn devices(&self) -> Option<Sink<'static>> {
        None
    }
}

/// The memory of this process. Pages that are in devices' memories come home to be reached, unless
/// it knows those.
#[derive(Clone, Copy, Debug, Default)]
pub struct ProcessPages {
    devices: Option<Sink<'static>>,
}

impl ProcessPages {
    /// This process's pages, with the memory that holds the frames of all devices
    /// ([`crate::DeviceMemory`]), where peers reach them.
    pub fn with_devices(devices: Sink<'static>) -> ProcessPages {
        ProcessPages { devices: Some(devices) }
    }
}

impl Pages for ProcessPages {
    fn fault(
        &self,
        range: &Range<u64>,
        write: bool,
        found: &mut dyn FnMut(DevicePage),
    ) -> Result<u64, Fault> {
        let how = RangeFault { write, allow_p2p: self.devices.is_some(), owner: None };
        match PrivateMemory::running() {
            None => populate(range.start, range.end - range.start, write).map(|()| 0),
            Some(private) => private.range_fault(range, how, found),
        }
    }

    fn to_host(&self, range: &Range<u64>) {
        PrivateMemory::running().map(|private| private.home(range));
    }

    fn devices(&self) -> Option<Sink<'static>> {
        self.devices
    }

    /// From `pagemap`, which tells every process about its own pages; when it cannot be read,
    /// nothing is there.
    fn resident(&self, range: &Range<u64>, found: &mut dyn FnMut(Range<u64>)) {
        /// A page is in memory (`Documentation/admin-guide/mm/pagemap.rst`).
        const PRESENT: u64 = 1 << 63;
        let Some(pagemap) = Pagemap::open() else { return };
        let page = page_size();
        let mut entries = [0u64; 512];
        let mut at = range.start;
        while at < range.end {
            let wanted = ((range.end - at) / page).min(entries.len() as u64) as usize;
            let read = pagemap.read(at / page, &mut entries[..wanted]);
            if read == 0 {
                return;
            }
            for run in entries[..read].chunk_by(|a, b| (a ^ b) & PRESENT == 0) {
                let end = at + run.len() as u64 * page;
                if run[0] & PRESENT != 0 {
                    found(at..end);
                }
                at = end;
            }
        }
    }
}

/// An open `pagemap`, by raw system calls: the C library's are interposed by the shim.
struct Pagemap(i32);

impl Pagemap {
    fn open() -> Option<Pagemap> {
        let path = c"/proc/self/pagemap";
        let flags = libc::O_RDONLY | libc::O_CLOEXEC;
        // SAFETY: the path is terminated.
        let fd = unsafe { libc::syscall(libc::SYS_openat, libc::AT_FDCWD, path.as_ptr(), flags) };
        (fd >= 0).then_some(Pagemap(fd as i32))
    }

    /// Entries of the pages from number `first` on. Gives how many were read.
    fn read(&self, first: u64, entries: &mut [u64]) -> usize {
        let bytes = size_of_val(entries);
        // SAFETY: the kernel writes at most `bytes` into `entries`.
        let read = unsafe {
            libc::syscall(libc::SYS_pread64, self.0, entries.as_mut_ptr(), bytes, first * 8)
        };
        usize::try_from(read).unwrap_or(0) / size_of::<u64>()
    }
}

impl Drop for Pagemap {
    fn drop(&mut self) {
        // SAFETY: the descriptor is ours.
        unsafe { libc::syscall(libc::SYS_close, self.0) };
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::{Mapping, guard};
    use std::os::fd::{AsFd, FromRawFd, OwnedFd};

    #[test]
    fn only_touched_pages_are_resident() {
        guard::install();
        let page = page_size();
        // SAFETY: a fresh descriptor, owned at once, of a size that is ours to set.
        let fd = unsafe {
            let fd = libc::memfd_create(c"resident-test".as_ptr(), libc::MFD_CLOEXEC);
            assert_eq!(libc::ftruncate(fd, 2000 * page as i64), 0);
            OwnedFd::from_raw_fd(fd)
        };
        let map = Mapping::shared(fd.as_fd(), 2000 * page).unwrap();
        let at = |number: u64| map.addr() + number * page;
        let parts = |range: &Range<u64>| {
            let mut parts = Vec::new();
            ProcessPages::default().resident(range, &mut |part| parts.push(part));
            parts
        };
        let whole = map.range();
        assert_eq!(parts(&whole), []);
        ProcessPages::default().fault(&(at(3)..at(5)), true, &mut |_| ()).unwrap();
        ProcessPages::default().fault(&(at(1500)..at(1501)), true, &mut |_| ()).unwrap();
        let pages: u64 = parts(&whole).iter().map(|part| (part.end - part.start) / page).sum();
        // a kernel may map neighbours of a touched page of a file too
        assert!((3..2000).contains(&pages), "{pages} pages");
        assert!(parts(&whole).iter().any(|part| part.start <= at(3) && part.end >= at(5)));
        assert_eq!(parts(&(at(600)..at(700))), []);
    }
}
