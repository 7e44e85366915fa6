//! `DMA_BUF_IOCTL_SYNC` on a buffer's descriptor: the bracket around a program's accesses to what
//! it mapped.
//!
//! A device's access is over when its completion is there, and a mapping shows the place that the
//! buffer is pinned at; so there is nothing to copy or flush. While a bracket is open the buffer
//! stays where it is, whoever mapped it. One that is never closed ends with the process.

use super::cpu_map::{self, LIMIT};
use crate::base::ffi::{Errno, INVALID, Res};
use dmabuf::{Storage, Use};
use engine_thread::lock;
use std::ffi::{c_int, c_void};
use std::sync::{Arc, Mutex};

const FAULT: Errno = Errno(libc::EFAULT);

// include/uapi/linux/dma-buf.h
const READ: u64 = 1;
const WRITE: u64 = 2;
const END: u64 = 4;

/// Brackets of a process.
struct Open {
    pid: u32,
    buffers: Vec<Arc<Storage>>,
}

static OPEN: Mutex<Open> = Mutex::new(Open { pid: 0, buffers: Vec::new() });

/// Answers the request on the descriptor of a buffer.
///
/// # Errors
/// EFAULT without readable flags, EINVAL for flags that the kernel refuses, those of a buffer that
/// was revoked or does not stop moving.
pub fn sync(fd: c_int, argument: *mut c_void) -> Res<()> {
    let mut flags = [0; 8];
    mm::guard::install();
    // SAFETY: the program's request names its flags there.
    let from = unsafe { mm::Source::vouched(argument as u64, 8) };
    from.read(&mut flags).map_err(|_| FAULT)?;
    let flags = u64::from_ne_bytes(flags);
    if flags & !(READ | WRITE | END) != 0 || flags & (READ | WRITE) == 0 {
        return Err(INVALID);
    }
    // without its exporter a buffer moves no more
    let Some(storage) = cpu_map::imported(fd) else { return Ok(()) };
    if flags & END == 0 {
        storage.enter_within(Use::RevocablePin, LIMIT).map_err(|error| Errno(error.errno()))?;
    }
    let mut open = lock(&OPEN);
    if open.pid != std::process::id() {
        // a parent's brackets, and its pins, are the parent's
        std::mem::forget(std::mem::take(&mut open.buffers));
        open.pid = std::process::id();
    }
    if flags & END != 0 {
        let same = |known: &Arc<Storage>| known.control().id() == storage.control().id();
        // an end without a beginning is none, as in the kernel
        if let Some(at) = open.buffers.iter().rposition(same) {
            open.buffers.swap_remove(at).leave(Use::RevocablePin);
        }
        return Ok(());
    }
    open.buffers.push(storage);
    Ok(())
}
