//! A process that memory may be lent by.

use rustix::fs::OFlags;
use shm::Processes;
use std::os::fd::OwnedFd;

/// A process as `/proc` shows it, which is the one that the kernel's copies reach by its number.
pub(super) struct Shown {
    all: Processes,
    pub(super) pid: u32,
}

impl Shown {
    pub(super) fn new(pid: u32) -> Option<Shown> {
        Some(Shown { all: Processes::seen().ok()?, pid })
    }

    pub(super) fn open(&self, file: &str, flags: OFlags) -> rustix::io::Result<OwnedFd> {
        self.all.open(self.pid, format_args!("{file}"), flags)
    }
}
