//! Other processes as `/proc` shows them, by the numbers that system calls know them by.
//!
//! In a PID namespace whose `/proc` was not mounted anew (`unshare --pid --fork`), the numbers
//! there are those of the namespace outside: `/proc/PID` is a stranger.

use rustix::fs::{Mode, OFlags};
use rustix::io::{Errno, Result};
use std::fmt::Arguments;
use std::os::fd::OwnedFd;

/// `/proc`, of this process's own PID namespace.
pub struct Processes(OwnedFd);

impl Processes {
    /// Allocates nothing.
    ///
    /// # Errors
    /// `SRCH` where `/proc` is of another PID namespace, else what `open(2)` says.
    pub fn seen() -> Result<Processes> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let folder = rustix::fs::open(c"/proc", flags, Mode::empty())?;
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        let status = rustix::fs::openat(&folder, c"self/status", flags, Mode::empty())?;
        if is_of_own_namespace(|room| rustix::io::read(&status, room))? {
            Ok(Processes(folder))
        } else {
            Err(Errno::SRCH)
        }
    }

    /// Opens a file of process `pid`. Allocates nothing.
    ///
    /// # Errors
    /// What `open(2)` says.
    pub fn open(&self, pid: u32, file: Arguments<'_>, flags: OFlags) -> Result<OwnedFd> {
        use std::io::Write;
        let mut path = [0u8; 40];
        write!(&mut path[..39], "{pid}/{file}").map_err(|_| Errno::INVAL)?;
        let path = std::ffi::CStr::from_bytes_until_nul(&path).map_err(|_| Errno::INVAL)?;
        // Another process may have a lease on it.
        let flags = flags | OFlags::CLOEXEC | OFlags::NONBLOCK;
        rustix::fs::openat(&self.0, path, flags, Mode::empty())
    }
}

/// Whether the reader's `status` (proc_pid_status(5)) tells one number of it: those from the
/// namespace of the mount down to its own.
fn is_of_own_namespace(mut read: impl FnMut(&mut [u8]) -> Result<usize>) -> Result<bool> {
    const WORD: &[u8] = b"\nNStgid:";
    let (mut text, mut kept) = ([0u8; 4096], 0);
    loop {
        let len = kept + read(&mut text[kept..])?;
        if len == kept {
            // A kernel without such namespaces says nothing of them.
            return Ok(true);
        }
        let found = text[..len].windows(WORD.len()).position(|bytes| bytes == WORD);
        let line = found.map(|at| &text[at + WORD.len()..len]);
        if let Some(line) = line
            && let Some(end) = line.iter().position(|byte| *byte == b'\n')
        {
            let words = line[..end].split(u8::is_ascii_whitespace);
            return Ok(words.filter(|word| !word.is_empty()).count() == 1);
        }
        // The line may be cut.
        kept = len.min(1024);
        text.copy_within(len - kept..len, 0);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn is_own(status: &[u8]) -> bool {
        let mut rest = status;
        is_of_own_namespace(|room| Ok(std::io::Read::read(&mut rest, room).unwrap())).unwrap()
    }

    #[test]
    fn one_number_is_that_of_the_own_namespace() {
        assert!(is_own(b"Name:\tx\nNStgid:\t7\nNSpid:\t7\n") && is_own(b"Name:\tNStgid:\t7\t1\n"));
        assert!(!is_own(b"Name:\tx\nNStgid:\t4711\t7\nNSpid:\t4711\t7\n"));
        for groups in (4000..4200).map(|many| vec![b' '; many]) {
            let status = |told: &str| [b"Groups:", &groups[..], told.as_bytes()].concat();
            assert!(is_own(&status("\nNStgid:\t7\n")) && !is_own(&status("\nNStgid:\t71\t7\n")));
        }
    }

    #[test]
    fn strangers_are_no_processes_of_ours() {
        let own = std::process::id();
        let file = || Processes::seen()?.open(own, format_args!("stat"), OFlags::RDONLY);
        assert!(file().is_ok());
        // SAFETY: affects the children of this thread alone.
        if unsafe { libc::unshare(libc::CLONE_NEWPID) } != 0 {
            test_support::skip!("a PID namespace needs root");
        }
        // SAFETY: the child makes system calls only, and ends.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let is_stranger = file().err() == Some(Errno::SRCH);
            // SAFETY: as above.
            unsafe { libc::_exit(if is_stranger { 0 } else { 1 }) };
        }
        let mut status = 0;
        // SAFETY: `status` is live, and the child ours.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(status, 0);
    }
}
