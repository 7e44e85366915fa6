//! A sealed memfd with given content, as another process would pass it.

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
use std::io::Write;
use std::os::fd::OwnedFd;

/// `None` when the system refuses one.
pub(crate) fn memfd(data: &[u8]) -> Option<OwnedFd> {
    let fd = memfd_create("fuzz", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).ok()?;
    let mut file = std::fs::File::from(fd);
    file.write_all(data).ok()?;
    fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW).ok()?;
    Some(file.into())
}
