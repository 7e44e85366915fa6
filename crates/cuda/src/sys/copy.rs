//! Copies within this process that answer an error where memory is gone or may not be touched, as
//! the kernel makes them (process_vm_writev(2)). Peers write the memory meanwhile: no reference to
//! it is ever made.
#![allow(unsafe_code, reason = "copies from and to addresses of the program")]

use std::ops::Range;

/// Some memory could not be touched; bytes before it may have been copied.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fault;

/// Memory of this process that somebody vouched for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Place {
    addr: u64,
    len: u64,
}

impl Place {
    /// Memory at an address.
    ///
    /// # Safety
    /// A copy may read or overwrite these bytes: nobody has a reference to them, and they are the
    /// program's, which asked for it, or ours. They need not be mapped.
    pub unsafe fn vouched(addr: u64, len: u64) -> Place {
        Place { addr, len }
    }

    /// Memory that the program named in a call of the driver's, which its contract says may be read
    /// or written as the call does.
    pub fn of_program(addr: u64, len: u64) -> Place {
        // SAFETY: the contract of `cuda.h`: what a program names is its own, and of the length that
        // it says. This crate is called by the C functions only.
        unsafe { Place::vouched(addr, len) }
    }

    /// Bytes of ours, for a copy that is made while they are borrowed.
    pub(crate) fn of_bytes(bytes: &mut [u8]) -> Place {
        Place { addr: bytes.as_mut_ptr() as u64, len: bytes.len() as u64 }
    }

    /// Length in bytes.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether the length is 0.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Its first byte's address.
    pub fn addr(&self) -> u64 {
        self.addr
    }

    /// A part of it; `None` beyond the end.
    pub fn part(&self, range: Range<u64>) -> Option<Place> {
        let len = range.end.checked_sub(range.start)?;
        (range.end <= self.len).then(|| Place { addr: self.addr + range.start, len })
    }
}

/// Bytes of one call, fewer than the kernel's limit.
const MOST: u64 = 1 << 30;

/// Copies as many bytes as both have.
///
/// # Errors
/// [`Fault`].
pub fn copy(to: Place, from: Place) -> Result<(), Fault> {
    let len = to.len.min(from.len);
    let mut done = 0;
    while done < len {
        let part = (len - done).min(MOST) as usize;
        let ours = iovec(from.addr + done, part);
        let theirs = iovec(to.addr + done, part);
        // SAFETY: the kernel checks both addresses; that the bytes at them may be read and written
        // was vouched for.
        let copied = unsafe {
            libc::process_vm_writev(own_pid(), &raw const ours, 1, &raw const theirs, 1, 0)
        };
        match u64::try_from(copied) {
            Ok(copied) if copied > 0 => done += copied,
            _ => return Err(Fault),
        }
    }
    Ok(())
}

/// Fills with a pattern over and over, from its beginning.
///
/// # Errors
/// [`Fault`].
pub fn fill(to: Place, pattern: &[u8]) -> Result<(), Fault> {
    const CHUNK: usize = 64 << 10;
    if pattern.is_empty() {
        return Ok(());
    }
    let times = (CHUNK / pattern.len()).max(1).min((to.len as usize).div_ceil(pattern.len()));
    let chunk = pattern.repeat(times.max(1));
    let mut done = 0;
    while done < to.len {
        let part = (to.len - done).min(chunk.len() as u64);
        let from = Place { addr: chunk.as_ptr() as u64, len: part };
        copy(Place { addr: to.addr + done, len: part }, from)?;
        done += part;
    }
    Ok(())
}

/// Whether the word of 4 bytes at a place, which is a multiple of 4, is this one: seen whole, where
/// [`copy`] may see a part of it before and another after somebody wrote it.
///
/// # Errors
/// [`Fault`].
pub fn is_word(at: Place, word: u32) -> Result<bool, Fault> {
    let operation = libc::FUTEX_CMP_REQUEUE | libc::FUTEX_PRIVATE_FLAG;
    // Nobody is woken and nobody moved: what is left of the operation is that it compares.
    let (none, addr) = (0_usize, at.addr as usize);
    // SAFETY: the kernel checks the address and reads 4 bytes at it.
    let answer = unsafe { libc::syscall(libc::SYS_futex, addr, operation, none, none, addr, word) };
    if answer >= 0 {
        return Ok(true);
    }
    match std::io::Error::last_os_error().raw_os_error() {
        Some(libc::EAGAIN) => Ok(false),
        _ => Err(Fault),
    }
}

fn iovec(addr: u64, len: usize) -> libc::iovec {
    libc::iovec { iov_base: addr as *mut libc::c_void, iov_len: len }
}

fn own_pid() -> libc::pid_t {
    // SAFETY: takes nothing, touches nothing.
    unsafe { libc::getpid() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::{Access, Mapping, page_size};

    #[test]
    fn bytes_arrive_and_a_hole_is_an_error() {
        let mut from: Vec<u8> = (0..100_000u32).map(|i| i as u8).collect();
        let mut to = vec![0; 100_000];
        copy(Place::of_bytes(&mut to), Place::of_bytes(&mut from)).unwrap();
        assert_eq!(to, from);
        let hole = Mapping::anonymous(page_size(), Access::None).unwrap();
        assert_eq!(copy(hole.place(), Place::of_bytes(&mut from)), Err(Fault));
        assert_eq!(copy(Place::of_bytes(&mut to), hole.place()), Err(Fault));
        let nowhere = Place { addr: 0, len: 8 };
        assert_eq!(copy(Place::of_bytes(&mut to), nowhere), Err(Fault));
    }

    #[test]
    fn a_word_is_compared_where_there_is_one() {
        let mut words = [7u8, 0, 0, 0, 0xff, 0xff, 0xff, 0xff];
        let place = Place::of_bytes(&mut words);
        assert_eq!(is_word(place, 7), Ok(true));
        assert_eq!(is_word(place, 8), Ok(false));
        assert_eq!(is_word(place.part(4..8).unwrap(), u32::MAX), Ok(true));
        let hole = Mapping::anonymous(page_size(), Access::None).unwrap();
        assert_eq!(is_word(hole.place(), 0), Err(Fault));
    }

    #[test]
    fn a_pattern_repeats_over_the_chunks() {
        let mut to = vec![9; 200_001];
        fill(Place::of_bytes(&mut to), &[1, 2, 3, 4]).unwrap();
        assert!(to.iter().enumerate().all(|(i, byte)| *byte == (i % 4) as u8 + 1));
        let mut few = vec![9; 3];
        fill(Place::of_bytes(&mut few), &[7, 8]).unwrap();
        assert_eq!(few, [7, 8, 7]);
    }
}
