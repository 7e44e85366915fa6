//! Mappings and populated ranges, by raw system calls: the C library's `mmap` and `munmap` are
//! interposed by the shim.

use crate::guard::{self, Sink, Source};
use crate::page_size;
use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, BorrowedFd};

/// A mapping, unmapped on drop: of a descriptor, or of memory that has none. Its bytes are reached
/// by the guarded copies only: another process may write or truncate the file.
#[derive(Debug)]
pub struct Mapping {
    addr: u64,
    len: u64,
}

impl Mapping {
    /// Maps `len` bytes of `fd` from its start, for reading and writing. The error is `mmap(2)`'s.
    pub fn shared(fd: BorrowedFd<'_>, len: u64) -> io::Result<Mapping> {
        Mapping::of_file(fd, len, libc::MAP_SHARED)
    }

    /// The same, with no page set aside for it, so that huge pages can be mapped where there are
    /// none: enough for whoever only asks what is mapped.
    #[cfg(test)]
    pub fn shared_without_pages(fd: BorrowedFd<'_>, len: u64) -> io::Result<Mapping> {
        Mapping::of_file(fd, len, libc::MAP_SHARED | libc::MAP_NORESERVE)
    }

    /// A copy of its own of a file's `len` bytes, as a program may map one.
    #[cfg(test)]
    pub fn private(fd: BorrowedFd<'_>, len: u64) -> io::Result<Mapping> {
        Mapping::of_file(fd, len, libc::MAP_PRIVATE)
    }

    fn of_file(fd: BorrowedFd<'_>, len: u64, flags: libc::c_int) -> io::Result<Mapping> {
        Mapping::of(fd, len, flags, libc::PROT_READ | libc::PROT_WRITE)
    }

    fn of(
        fd: BorrowedFd<'_>,
        len: u64,
        flags: libc::c_int,
        protection: libc::c_int,
    ) -> io::Result<Mapping> {
        Mapping::of_part(fd, 0..len, flags, protection)
    }

    fn of_part(
        fd: BorrowedFd<'_>,
        part: Range<u64>,
        flags: libc::c_int,
        protection: libc::c_int,
    ) -> io::Result<Mapping> {
        let too_long = || io::Error::from_raw_os_error(libc::ENOMEM);
        let len = part.end.checked_sub(part.start).ok_or_else(too_long)?;
        let bytes = usize::try_from(len).map_err(|_| too_long())?;
        let (fd, from) = (fd.as_raw_fd(), part.start as usize);
        // SAFETY: a new mapping at an address of the kernel's choice; nothing else is affected.
        let addr =
            unsafe { libc::syscall(libc::SYS_mmap, 0usize, bytes, protection, flags, fd, from) };
        if addr == -1 {
            Err(io::Error::last_os_error())
        } else {
            Ok(Mapping { addr: addr as u64, len })
        }
    }

    /// Maps `len` bytes of private memory, all zero. The error is `mmap(2)`'s.
    pub fn anonymous(len: u64) -> io::Result<Mapping> {
        Mapping::of_nothing(len, libc::MAP_PRIVATE)
    }

    /// Maps `len` bytes that a forked process shares, all zero. The error is `mmap(2)`'s.
    pub fn anonymous_shared(len: u64) -> io::Result<Mapping> {
        Mapping::of_nothing(len, libc::MAP_SHARED)
    }

    fn of_nothing(len: u64, sharing: libc::c_int) -> io::Result<Mapping> {
        let bytes = usize::try_from(len).map_err(|_| io::Error::from_raw_os_error(libc::ENOMEM))?;
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = sharing | libc::MAP_ANONYMOUS;
        // SAFETY: a new mapping at an address of the kernel's choice; nothing else is affected.
        let addr =
            unsafe { libc::syscall(libc::SYS_mmap, 0usize, bytes, protection, flags, -1, 0usize) };
        if addr == -1 {
            Err(io::Error::last_os_error())
        } else {
            Ok(Mapping { addr: addr as u64, len })
        }
    }

    /// Address of the first byte.
    pub fn addr(&self) -> u64 {
        self.addr
    }

    /// Maps the bytes `part` of a file for reading, and for writing if it is to be `writable`. The
    /// part is of whole pages of the file. Pages come only when they are used, also where the
    /// program has all that it maps brought in (mlockall(2)), and none is set aside. The error is
    /// `mmap(2)`'s or `mprotect(2)`'s.
    pub fn shared_lazily(
        fd: BorrowedFd<'_>,
        part: Range<u64>,
        writable: bool,
    ) -> io::Result<Mapping> {
        let flags = libc::MAP_SHARED | libc::MAP_NORESERVE;
        let mapping = Mapping::of_part(fd, part, flags, libc::PROT_NONE)?;
        let protection =
            if writable { libc::PROT_READ | libc::PROT_WRITE } else { libc::PROT_READ };
        mapping.unlock();
        let (addr, len) = (mapping.addr as usize, mapping.len as usize);
        // SAFETY: the mapping is ours, and nobody knows of it yet.
        let code = unsafe { libc::syscall(libc::SYS_mprotect, addr, len, protection) };
        if code == 0 { Ok(mapping) } else { Err(io::Error::last_os_error()) }
    }

    /// Its pages may be swapped out, and need not be there.
    fn unlock(&self) {
        // SAFETY: this mapping is ours; its content stays as it is.
        unsafe { libc::syscall(libc::SYS_munlock, self.addr as usize, self.len as usize) };
    }

    /// Only this process shall have it, as long as it lives, where the kernel can do that: no child
    /// that it forks, and no core dump.
    pub fn keep_here(&self) {
        for advice in [libc::MADV_DONTFORK, libc::MADV_DONTDUMP] {
            // SAFETY: this mapping is ours; its content stays as it is, and a child has no value of
            // it that it uses.
            unsafe {
                let (addr, len) = (self.addr as usize, self.len as usize);
                libc::syscall(libc::SYS_madvise, addr, len, advice)
            };
        }
    }

    /// Its bytes, for writing.
    #[inline]
    pub fn sink(&self) -> Sink<'_> {
        // SAFETY: the mapping is ours for as long as it is borrowed, and nobody forms a reference
        // into it.
        unsafe { Sink::vouched(self.addr, self.len) }
    }

    /// Its bytes, for reading.
    #[inline]
    pub fn source(&self) -> Source<'_> {
        self.sink().source()
    }

    /// Length in bytes.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether the length is 0.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The mapped addresses.
    pub fn range(&self) -> Range<u64> {
        self.addr..self.addr + self.len
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: this mapping is ours and no reference into it exists.
        unsafe { libc::syscall(libc::SYS_munmap, self.addr as usize, self.len as usize) };
    }
}

/// Makes every page that `[addr, addr + len)` touches resident, for writing if `writable`, as
/// `pin_user_pages` would. Fails where that does: unmapped, protected against the access, or beyond
/// the end of a file (`EFAULT`).
pub fn populate(addr: u64, len: u64, writable: bool) -> Result<(), guard::Fault> {
    let page = page_size();
    let start = addr & !(page - 1);
    let end =
        addr.checked_add(len).and_then(|e| e.checked_next_multiple_of(page)).ok_or(guard::Fault)?;
    if end > 1 << 63 {
        return Err(guard::Fault);
    }
    let advice = if writable { libc::MADV_POPULATE_WRITE } else { libc::MADV_POPULATE_READ };
    loop {
        // SAFETY: populating changes no content; a wrong range is refused by the kernel.
        let code = unsafe {
            libc::syscall(libc::SYS_madvise, start as usize, (end - start) as usize, advice)
        };
        if code == 0 {
            return Ok(());
        }
        match io::Error::last_os_error().raw_os_error() {
            Some(libc::EAGAIN | libc::EINTR) => {}
            // Linux before 5.14 does not know the advice; since then EINVAL means protection or a
            // device mapping, both of which pin_user_pages refuses too
            Some(libc::EINVAL) if !populate_known() => return touch(start, end, writable),
            _ => return Err(guard::Fault),
        }
    }
}

fn touch(start: u64, end: u64, writable: bool) -> Result<(), guard::Fault> {
    (start..end).step_by(page_size() as usize).try_for_each(|page| {
        if writable { guard::touch_write(page) } else { guard::touch_read(page) }
    })
}

/// Whether the kernel knows `MADV_POPULATE_*`: it accepts an empty range only for advice it knows.
fn populate_known() -> bool {
    // SAFETY: an empty range affects nothing.
    unsafe { libc::syscall(libc::SYS_madvise, 0usize, 0usize, libc::MADV_POPULATE_READ) == 0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::{FromRawFd, OwnedFd};

    fn memfd(len: i64) -> OwnedFd {
        // SAFETY: fresh descriptor, owned below.
        unsafe {
            let fd = libc::memfd_create(c"map-test".as_ptr(), libc::MFD_CLOEXEC);
            assert_eq!(libc::ftruncate(fd, len), 0);
            OwnedFd::from_raw_fd(fd)
        }
    }

    #[test]
    fn populate_and_touch_agree() {
        use std::os::fd::AsFd;
        guard::install();
        let page = page_size();
        let fd = memfd(2 * page as i64);
        let map = Mapping::shared(fd.as_fd(), 3 * page).unwrap();
        let (start, inside, beyond) = (map.addr(), map.addr() + 2 * page, map.addr() + 3 * page);
        type Way = fn(u64, u64, bool) -> Result<(), guard::Fault>;
        let ways: [Way; 2] =
            [|a, l, w| populate(a, l, w), |a, l, w| touch(a & !(page_size() - 1), a + l, w)];
        for way in ways {
            for writable in [false, true] {
                assert_eq!(way(start + 5, inside - start - 5, writable), Ok(()));
                assert_eq!(
                    way(start, beyond - start, writable),
                    Err(guard::Fault),
                    "past the end of the file"
                );
            }
            // SAFETY: our own mapping.
            unsafe { libc::mprotect(start as usize as *mut _, page as usize, libc::PROT_READ) };
            assert_eq!(way(start, 1, false), Ok(()));
            assert_eq!(way(start, 1, true), Err(guard::Fault), "read-only");
            // SAFETY: our own mapping.
            unsafe {
                libc::mprotect(
                    start as usize as *mut _,
                    page as usize,
                    libc::PROT_READ | libc::PROT_WRITE,
                )
            };
        }
        assert_eq!(populate(0, 1, false), Err(guard::Fault), "unmapped");
        assert_eq!(populate(u64::MAX - 1, 9, false), Err(guard::Fault), "wraps");
        assert_eq!(populate(1 << 63, page, true), Err(guard::Fault), "the kernel's half");
    }

    #[test]
    fn a_descriptor_that_cannot_be_mapped_gives_mmaps_errno() {
        use std::os::fd::AsFd;
        // SAFETY: fresh descriptor, owned at once.
        let event = unsafe { OwnedFd::from_raw_fd(libc::eventfd(0, libc::EFD_CLOEXEC)) };
        let errno = Mapping::shared(event.as_fd(), 4096).unwrap_err().raw_os_error();
        assert_eq!(errno, Some(libc::ENODEV));
    }
}
