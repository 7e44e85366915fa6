//! Mappings of the driver's own, each given back when dropped.
#![allow(unsafe_code, reason = "mmap(2), whose it is, and munmap(2)")]

use super::copy::Place;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::OnceLock;

/// What a processor may do with a mapping.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    /// Nothing: a touch faults.
    None,
    /// Read and write.
    Both,
}

impl Access {
    fn bits(self) -> i32 {
        match self {
            Access::None => libc::PROT_NONE,
            Access::Both => libc::PROT_READ | libc::PROT_WRITE,
        }
    }
}

/// Where a mapping is to be.
#[derive(Clone, Copy, Debug)]
pub enum Where<'a> {
    /// Where there is room.
    Anywhere,
    /// Over a part of a mapping of ours, from an offset: what was there goes.
    Over(&'a Mapping, u64),
}

/// Size of a page in bytes.
pub fn page_size() -> u64 {
    // SAFETY: takes and touches nothing.
    let size = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    u64::try_from(size).unwrap_or(4096)
}

/// Whole pages that this process has mapped for the driver.
#[derive(Debug)]
pub struct Mapping {
    addr: u64,
    len: u64,
}

impl Mapping {
    /// Zeroed memory of this process alone, in whole pages.
    ///
    /// # Errors
    /// ENOMEM; EINVAL for length 0.
    pub fn anonymous(len: u64, access: Access) -> io::Result<Mapping> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let reserved = if access == Access::None { libc::MAP_NORESERVE } else { 0 };
        // SAFETY: no address is asked for, so nothing that is mapped goes.
        let addr = unsafe {
            libc::mmap(std::ptr::null_mut(), size(len)?, access.bits(), flags | reserved, -1, 0)
        };
        mapped(addr, len)
    }

    /// Addresses that nothing is behind, which begin at a multiple of `align` (a power of two).
    ///
    /// # Errors
    /// ENOMEM; EINVAL for a length that is 0 or too large.
    pub fn reserve(len: u64, align: u64) -> io::Result<Mapping> {
        let page = page_size();
        let align = align.max(page);
        let room = len.checked_add(align - page).ok_or(io::ErrorKind::InvalidInput)?;
        let whole = Mapping::anonymous(room, Access::None)?;
        let start = whole.addr.next_multiple_of(align);
        let (end, whole_end) = (start + len, whole.addr + whole.len);
        let kept = Mapping { addr: start, len };
        // what is before and after goes
        drop((start > whole.addr).then(|| Mapping { addr: whole.addr, len: start - whole.addr }));
        drop((whole_end > end).then(|| Mapping { addr: end, len: whole_end - end }));
        std::mem::forget(whole);
        Ok(kept)
    }

    /// Its first address.
    pub fn addr(&self) -> u64 {
        self.addr
    }

    /// Length in bytes.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether the length is 0; never true.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Its bytes, to copy from and to.
    pub fn place(&self) -> Place {
        // SAFETY: the mapping's own bytes, which nobody has references to. A copy after its end
        // finds no memory, or that of who mapped some there since: who copies keeps the mapping.
        unsafe { Place::vouched(self.addr, self.len) }
    }

    /// Takes what is mapped over a part of it away again: addresses that nothing is behind.
    ///
    /// # Errors
    /// ENOMEM; EINVAL beyond its end.
    pub fn clear(&self, offset: u64, len: u64) -> io::Result<()> {
        let at = self.at(offset, len)?;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED;
        // SAFETY: a part of this mapping, which is ours.
        let addr = unsafe { libc::mmap(at as _, size(len)?, libc::PROT_NONE, flags, -1, 0) };
        mapped(addr, len).map(std::mem::forget)
    }

    /// Keeps a child of fork(2) from having it: a GPU's addresses are of one process.
    pub fn keep_from_children(&self) {
        // SAFETY: advice about a mapping of ours; a refusal leaves things as they are.
        unsafe { libc::madvise(self.addr as _, self.len as usize, libc::MADV_DONTFORK) };
    }

    fn at(&self, offset: u64, len: u64) -> io::Result<u64> {
        let end = offset
            .checked_add(len)
            .filter(|end| *end <= self.len && offset.is_multiple_of(page_size()));
        end.map(|_| self.addr + offset).ok_or_else(|| io::ErrorKind::InvalidInput.into())
    }
}

/// Whether each page of some addresses has something mapped, accessible or not.
pub fn is_mapped(addr: u64, len: u64) -> bool {
    const PAGES: usize = 4096;
    let page = page_size();
    let (mut at, end) = (addr / page * page, addr.saturating_add(len));
    let mut states = [0_u8; PAGES];
    while at < end {
        let part = (end - at).min(PAGES as u64 * page);
        // SAFETY: mincore(2) writes a byte for each page, for which there is room.
        let answer = unsafe { libc::mincore(at as _, part as usize, states.as_mut_ptr()) };
        if answer != 0 {
            return false;
        }
        at += part;
    }
    true
}

/// Maps a file's bytes from `offset`, shared. Mapped over another mapping, it is that one's and the
/// answer is `None`.
///
/// # Errors
/// As mmap(2)'s.
pub fn map_file(
    file: impl AsFd,
    offset: u64,
    len: u64,
    access: Access,
    place: Where<'_>,
) -> io::Result<Option<Mapping>> {
    let (at, fixed) = match place {
        Where::Anywhere => (0, 0),
        Where::Over(mapping, from) => (mapping.at(from, len)?, libc::MAP_FIXED),
    };
    let offset = i64::try_from(offset).map_err(|_| io::ErrorKind::InvalidInput)?;
    let file = file.as_fd().as_raw_fd();
    let (map, flags) = (nodes_map(), libc::MAP_SHARED | fixed);
    // SAFETY: nothing that is mapped goes but what is the driver's own.
    let addr = unsafe { map(at as _, size(len)?, access.bits(), flags, file, offset) };
    let mapping = mapped(addr, len)?;
    if fixed != 0 {
        std::mem::forget(mapping);
        return Ok(None);
    }
    Ok(Some(mapping))
}

/// `mmap`, as mmap(2) has it.
type Map = unsafe extern "C" fn(
    *mut libc::c_void,
    usize,
    libc::c_int,
    libc::c_int,
    libc::c_int,
    libc::off_t,
) -> *mut libc::c_void;

/// That of the library which plays the kernel to the GPUs' nodes, by the name that it alone has: a
/// program's own `mmap`, as tools that watch memory and sanitizers bring one, goes on to the C
/// library's and past it.
fn nodes_map() -> Map {
    static MAP: OnceLock<Map> = OnceLock::new();
    *MAP.get_or_init(|| {
        // SAFETY: looks a name up.
        let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"peerdma_shim_mmap".as_ptr()) };
        if found.is_null() {
            return libc::mmap;
        }
        // SAFETY: the name is that library's, for a function of this type.
        unsafe { std::mem::transmute::<*mut libc::c_void, Map>(found) }
    })
}

fn size(len: u64) -> io::Result<usize> {
    usize::try_from(len)
        .ok()
        .filter(|len| *len > 0)
        .ok_or_else(|| io::ErrorKind::InvalidInput.into())
}

fn mapped(addr: *mut libc::c_void, len: u64) -> io::Result<Mapping> {
    if addr == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    Ok(Mapping { addr: addr as u64, len })
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: ours, and nobody has a reference into it.
        unsafe { libc::munmap(self.addr as _, self.len as usize) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::{copy, fill};

    #[test]
    fn a_reservation_is_aligned_and_can_be_filled_and_cleared() {
        let page = page_size();
        let reserved = Mapping::reserve(4 * page, 1 << 21).unwrap();
        assert_eq!(reserved.addr() % (1 << 21), 0);
        let file = tempfile();
        map_file(&file, 0, page, Access::Both, Where::Over(&reserved, page)).unwrap();
        let part = reserved.place().part(page..2 * page).unwrap();
        fill(part, &[5]).unwrap();
        assert!(fill(reserved.place(), &[5]).is_err(), "the first page is no memory");
        reserved.clear(page, page).unwrap();
        assert!(fill(part, &[5]).is_err());
        let again = map_file(&file, 0, page, Access::Both, Where::Anywhere).unwrap().unwrap();
        let mut byte = [0];
        // SAFETY: a local that nobody else has.
        copy(unsafe { Place::vouched(byte.as_mut_ptr() as u64, 1) }, again.place()).unwrap();
        assert_eq!(byte, [5]);
        assert!(map_file(&file, 0, 8 * page, Access::Both, Where::Over(&reserved, 0)).is_err());
    }

    fn tempfile() -> std::fs::File {
        use std::os::fd::FromRawFd;
        // SAFETY: a new descriptor, or -1, which the next call refuses.
        let file = unsafe { std::fs::File::from_raw_fd(libc::memfd_create(c"test".as_ptr(), 1)) };
        file.set_len(1 << 20).unwrap();
        file
    }
}
