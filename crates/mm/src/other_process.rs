//! The memory of another process, copied by process_vm_readv(2) and process_vm_writev(2).
//!
//! It promises that a copy ends with an error where either side's memory is not there, and that
//! nothing of this process is touched but the range that the caller names. Whether the kernel lets
//! one process at the other's memory (`ptrace_may_access`) shows at the first copy. Which pages of
//! the other process may be touched is for the caller to know.

use crate::guard::{Sink, Source};
use std::io;

/// Another process of the same PID namespace.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OtherProcess(libc::pid_t);

/// Which way bytes go.
#[derive(Clone, Copy)]
enum Way {
    /// From the other process.
    In,
    /// To the other process.
    Out,
}

impl OtherProcess {
    /// The process `pid`; `None` for this one and for what is no number of a process: whoever
    /// copies to an address of this process needs to be vouched for.
    pub fn new(pid: u32) -> Option<OtherProcess> {
        let pid = libc::pid_t::try_from(pid).ok().filter(|&pid| pid > 0)?;
        // SAFETY: always succeeds.
        (pid != unsafe { libc::getpid() }).then_some(OtherProcess(pid))
    }

    /// Its number.
    pub fn pid(self) -> u32 {
        self.0.cast_unsigned()
    }

    /// Copies `from` to its address `to`, the last word last.
    ///
    /// # Errors
    /// process_vm_writev(2)'s; EFAULT when only a part was copied.
    pub fn write(self, to: u64, from: Source<'_>) -> io::Result<()> {
        self.copy(Way::Out, from.addr(), to, from.len())
    }

    /// Fills `into` from its address `from`.
    ///
    /// # Errors
    /// process_vm_readv(2)'s; EFAULT when only a part was copied.
    pub fn read(self, from: u64, into: Sink<'_>) -> io::Result<()> {
        self.copy(Way::In, into.addr(), from, into.len())
    }

    /// The word at its address `at`.
    ///
    /// # Errors
    /// process_vm_readv(2)'s: EPERM when the kernel does not let this process at its memory.
    pub fn word(self, at: u64) -> io::Result<u64> {
        let mut word = 0u64;
        self.copy(Way::In, &raw mut word as u64, at, 8)?;
        Ok(word)
    }

    /// Copies `from` to its address `to`, so that nobody there sees a part of an aligned word of
    /// eight bytes; answers `false`, and nothing has changed, where that cannot be. The kernel
    /// copies what is no whole word byte by byte, so only one byte of that may differ from what
    /// is there. The last word comes last.
    ///
    /// # Errors
    /// process_vm_writev(2)'s; EFAULT when only a part was copied.
    pub fn write_words(self, to: u64, from: &[u8]) -> io::Result<bool> {
        let Words { head, whole, tail } = Words::of(to, from.len());
        let end = to.wrapping_add(head + whole);
        if head > 1 || tail > 1 {
            let mut there = [0u8; 14];
            let ends = [part(to, head)?, part(end, tail)?];
            self.call(Way::In, &[part(there.as_mut_ptr() as u64, head + tail)?], &ends)?;
            let (head_there, tail_there) = there.split_at(head as usize);
            let tail_here = from.get((head + whole) as usize..).unwrap_or_default();
            let tail_there = tail_there.get(..tail as usize).unwrap_or_default();
            if changed(from, head_there) > 1 || changed(tail_here, tail_there) > 1 {
                return Ok(false);
            }
        }
        let last = if tail > 0 { tail } else { whole.min(8) };
        let remote = [
            part(to, head)?,
            part(to.wrapping_add(head), whole + tail - last)?,
            part(end.wrapping_add(tail).wrapping_sub(last), last)?,
        ];
        let local = part(from.as_ptr() as u64, from.len() as u64)?;
        self.call(Way::Out, &[local], &remote)?;
        Ok(true)
    }

    /// Fills `into` from its address `from` on, without a part of an aligned word as it was before
    /// another wrote it, beside a part of it as it was after. What else these words hold is read
    /// as well.
    ///
    /// # Errors
    /// process_vm_readv(2)'s; EFAULT when only a part was copied.
    pub fn read_words(self, from: u64, into: &mut [u8]) -> io::Result<()> {
        let Words { head, whole, tail } = Words::of(from, into.len());
        let (mut first, mut last) = ([0u8; 8], [0u8; 8]);
        let skipped = from & 7;
        let (before, after) = (if head > 0 { 8 } else { 0 }, if tail > 0 { 8 } else { 0 });
        let middle = into.get_mut(head as usize..).unwrap_or_default();
        let local = [
            part(first.as_mut_ptr() as u64, before)?,
            part(middle.as_mut_ptr() as u64, whole)?,
            part(last.as_mut_ptr() as u64, after)?,
        ];
        let remote = part(if head > 0 { from - skipped } else { from }, before + whole + after)?;
        self.call(Way::In, &local, &[remote])?;
        let head_here = first.iter().skip(skipped as usize);
        into.iter_mut().take(head as usize).zip(head_here).for_each(|(here, byte)| *here = *byte);
        let tail_here = into.iter_mut().skip((head + whole) as usize);
        tail_here.zip(&last).for_each(|(here, byte)| *here = *byte);
        Ok(())
    }

    fn copy(self, way: Way, here: u64, there: u64, len: u64) -> io::Result<()> {
        let last = last_word(there, len);
        let remote = [part(there, len - last)?, part(there.wrapping_add(len - last), last)?];
        let remote = if len == last { &remote[1..] } else { &remote[..] };
        self.call(way, &[part(here, len)?], remote)
    }

    /// Copies between ranges here, which may be read or written as `way` has it, and others there.
    fn call(self, way: Way, local: &[libc::iovec], remote: &[libc::iovec]) -> io::Result<()> {
        let len = local.iter().map(|part| part.iov_len as u64).sum::<u64>();
        // SAFETY: the local ranges may be read or written (`Span::vouched`, or bytes of the
        // caller's), and the kernel answers EFAULT where one is not mapped. The other ranges are of
        // another process, so nothing here aliases them.
        let copied = unsafe {
            let (pieces, others) = (local.len() as _, remote.len() as _);
            let (local, remote) = (local.as_ptr(), remote.as_ptr());
            match way {
                Way::In => libc::process_vm_readv(self.0, local, pieces, remote, others, 0),
                Way::Out => libc::process_vm_writev(self.0, local, pieces, remote, others, 0),
            }
        };
        match u64::try_from(copied) {
            Ok(copied) if copied == len => Ok(()),
            Ok(_) => Err(io::Error::from_raw_os_error(libc::EFAULT)),
            Err(_) => Err(io::Error::last_os_error()),
        }
    }
}

fn part(addr: u64, len: u64) -> io::Result<libc::iovec> {
    let fault = || io::Error::from_raw_os_error(libc::EFAULT);
    let iov_len = usize::try_from(len).map_err(|_| fault())?;
    addr.checked_add(len).ok_or_else(fault)?;
    Ok(libc::iovec { iov_base: addr as *mut libc::c_void, iov_len })
}

/// How a range lies on aligned words of eight bytes: bytes of the word that it begins in, of whole
/// words, and of the word that it ends in.
struct Words {
    head: u64,
    whole: u64,
    tail: u64,
}

impl Words {
    fn of(addr: u64, len: usize) -> Words {
        let len = len as u64;
        let head = (addr.wrapping_neg() & 7).min(len);
        let whole = (len - head) & !7;
        Words { head, whole, tail: len - head - whole }
    }
}

/// How many bytes of `there` are others here.
fn changed(here: &[u8], there: &[u8]) -> usize {
    here.iter().zip(there).filter(|(here, there)| here != there).count()
}

/// Bytes of the aligned word in which a range ends: they are copied apart, after all others. The
/// kernel copies a piece in any order, and a program may wait for the last byte of a message.
fn last_word(addr: u64, len: u64) -> u64 {
    len.min((addr.wrapping_add(len).wrapping_sub(1) & 7) + 1)
}

/// Lets every process of this user at this one's memory where Yama asks for leave
/// (`PR_SET_PTRACER_ANY`, `ptrace_scope` 1). Without Yama nothing happens.
pub fn permit_others() {
    // SAFETY: sets an attribute of this process; no pointers are involved.
    unsafe { libc::prctl(libc::PR_SET_PTRACER, libc::PR_SET_PTRACER_ANY) };
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::Mapping;

    /// A child that sleeps until it is dropped, with all memory as it was here.
    struct Child(libc::pid_t);

    impl Child {
        fn new() -> Child {
            // SAFETY: the child makes two system calls and never returns.
            match unsafe { libc::fork() } {
                0 => loop {
                    // SAFETY: no pointers are involved.
                    unsafe { libc::pause() };
                },
                pid => Child(pid),
            }
        }
    }

    impl Drop for Child {
        fn drop(&mut self) {
            // SAFETY: our own child, which is waited for here only.
            unsafe {
                libc::kill(self.0, libc::SIGKILL);
                libc::waitpid(self.0, std::ptr::null_mut(), 0);
            }
        }
    }

    #[test]
    fn bytes_go_both_ways_and_ours_stay() {
        let map = Mapping::anonymous(2 << 20).unwrap();
        map.sink().fill(7).unwrap();
        let child = Child::new();
        let other = OtherProcess::new(child.0 as u32).unwrap();
        let source = [1u8, 2, 3, 4, 5, 6, 7, 8];
        other.write(map.addr() + 5, Source::from(&source[..])).unwrap();
        assert_eq!(other.word(map.addr() + 5).unwrap(), u64::from_ne_bytes(source));
        let mut own = [0; 8];
        map.sink().source().part(5, 8).unwrap().read(&mut own).unwrap();
        assert_eq!(own, [7; 8], "the write is the child's");
        other.read(map.addr() + 5, map.sink().part(100, 8).unwrap()).unwrap();
        map.sink().source().part(100, 8).unwrap().read(&mut own).unwrap();
        assert_eq!(own, source);
    }

    #[test]
    fn the_last_word_is_the_aligned_one_that_holds_the_end() {
        for (addr, len, last) in [(0, 0, 0), (8, 8, 8), (8, 9, 1), (5, 2, 2), (7, 9, 8), (0, 20, 4)]
        {
            assert_eq!(last_word(addr, len), last, "{addr} {len}");
        }
    }

    #[test]
    fn a_range_lies_on_words() {
        let cases = [
            (0, 0, [0, 0, 0]),
            (0, 2, [0, 0, 2]),
            (6, 2, [2, 0, 0]),
            (3, 2, [2, 0, 0]),
            (7, 2, [1, 0, 1]),
            (5, 30, [3, 24, 3]),
            (8, 24, [0, 24, 0]),
            (u64::MAX, 9, [1, 8, 0]),
        ];
        for (addr, len, parts) in cases {
            let Words { head, whole, tail } = Words::of(addr, len);
            assert_eq!([head, whole, tail], parts, "{addr} {len}");
        }
    }

    /// All places and lengths within four words.
    #[test]
    fn what_is_no_whole_word_is_written_where_one_byte_changes_and_read_whole() {
        let map = Mapping::anonymous(4096).unwrap();
        map.sink().fill(7).unwrap();
        let child = Child::new();
        let other = OtherProcess::new(child.0 as u32).unwrap();
        let all = || {
            let mut all = [0; 32];
            other.read_words(map.addr(), &mut all).unwrap();
            all
        };
        let mut model = [7u8; 32];
        for (at, len) in (0..32usize).flat_map(|at| (0..=32 - at).map(move |len| (at, len))) {
            let to = map.addr() + at as u64;
            let Words { head, whole, tail } = Words::of(to, len);
            let (head, end) = (head as usize, (head + whole) as usize);
            let mut new = model[at..at + len].to_vec();
            new[head..end].iter_mut().for_each(|byte| *byte ^= 0xff);
            for begin in [(head > 0).then_some(0), (tail > 0).then_some(end)].into_iter().flatten()
            {
                new[begin] ^= 0xff;
            }
            for (begin, bytes) in [(0, head), (end, tail as usize)] {
                if bytes > 1 {
                    let mut two = new.clone();
                    two[begin + 1] ^= 0xff;
                    assert!(!other.write_words(to, &two).unwrap(), "{at} {len}");
                    assert_eq!(all(), model, "{at} {len}");
                }
            }
            assert!(other.write_words(to, &new).unwrap(), "{at} {len}");
            model[at..at + len].copy_from_slice(&new);
            assert_eq!(all(), model, "{at} {len}");
            let mut read = vec![0; len];
            other.read_words(to, &mut read).unwrap();
            assert_eq!(read, model[at..at + len], "{at} {len}");
        }
    }

    #[test]
    fn what_is_not_there_is_an_error_on_either_side() {
        let map = Mapping::anonymous(4096).unwrap();
        map.sink().fill(1).unwrap();
        let child = Child::new();
        let other = OtherProcess::new(child.0 as u32).unwrap();
        let errno = |done: io::Result<()>| done.unwrap_err().raw_os_error();
        assert_eq!(errno(other.write(8, map.sink().source())), Some(libc::EFAULT));
        assert_eq!(errno(other.write(u64::MAX - 8, map.sink().source())), Some(libc::EFAULT));
        // SAFETY: an address that nothing is mapped at; only the copies reach it.
        let nowhere = unsafe { Sink::vouched(8, 8) };
        assert_eq!(errno(other.read(map.addr(), nowhere)), Some(libc::EFAULT));
        drop(child);
        assert_eq!(errno(other.write(map.addr(), map.sink().source())), Some(libc::ESRCH));
        assert!(OtherProcess::new(std::process::id()).is_none());
        assert!(OtherProcess::new(0).is_none() && OtherProcess::new(u32::MAX).is_none());
    }
}
