//! `/dev/infiniband/rdma_cm`: the connection manager as librdmacm knows it (`rdma/rdma_user_cm.h`,
//! kernel `ucma.c`).
//!
//! A descriptor is one end of a socket pair (`channel`); what the program writes there arrives at
//! [`write`], is decoded (`layout`) and carried out (`command`, `event`) on the process's one
//! [`Service`], which lives as long as an engine does. Pointers inside commands are followed by
//! guarded copies only: a wrong one is EFAULT.

mod channel;
mod command;
mod event;
mod host;
mod layout;

use crate::base::ffi::{Errno, Res, set_errno};
use crate::connection::service::HOME;
use crate::engine::process;
use channel::Channel;
use engine_thread::lock;
use std::collections::HashMap;
use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard};

static RDMA_CM: shim::RdmaCm = shim::RdmaCm { open, write, closed };

/// Open channels by inode number.
static CHANNELS: Mutex<Option<HashMap<u64, Arc<Channel>>>> = Mutex::new(None);
/// The process that opened them; a forked child has only copies of their descriptors.
static OWNER: AtomicU32 = AtomicU32::new(0);

/// Lets librdmacm find its device.
pub fn announce() {
    shim::set_rdma_cm(&RDMA_CM);
}

/// In the process that `daemon(3)` made: the channels are its own.
pub fn adopt() {
    OWNER.store(std::process::id(), Relaxed);
}

fn channels() -> MutexGuard<'static, Option<HashMap<u64, Arc<Channel>>>> {
    lock(&CHANNELS)
}

/// A forked child may neither use nor close what is its parent's.
fn is_owner() -> bool {
    OWNER.load(Relaxed) == std::process::id()
}

fn open(flags: c_int) -> Result<c_int, c_int> {
    crate::base::ffi::contained(|| {
        if !is_owner() {
            // The parent's table, perhaps locked by a thread that is not here, is left alone:
            // nobody was there before.
            forget_parents();
        }
        let engine = process::get(HOME)?;
        let (fd, channel) = Channel::open(&engine, flags)?;
        channels().get_or_insert_default().insert(channel.inode(), Arc::new(channel));
        shim::count_channels(1);
        Ok(fd)
    })
    .map_err(|errno| errno.0)
}

/// In a forked child, before its first channel.
fn forget_parents() {
    if OWNER.swap(std::process::id(), Relaxed) == 0 {
        return;
    }
    if let Ok(mut channels) = CHANNELS.try_lock() {
        // Their engine is the parent's: nothing of it may be ended here.
        std::mem::forget(channels.take());
    }
}

fn channel(inode: u64) -> Res<Arc<Channel>> {
    if !is_owner() {
        return Err(Errno(libc::EIO));
    }
    let channels = channels();
    let found = channels.as_ref().and_then(|channels| channels.get(&inode));
    found.cloned().ok_or(Errno(libc::EBADF))
}

/// The channel that a descriptor of the program's is of.
fn channel_of(fd: c_int) -> Res<Arc<Channel>> {
    // SAFETY: only asks about the descriptor.
    if unsafe { libc::fcntl(fd, libc::F_GETFD) } < 0 {
        return Err(Errno(libc::ENOENT));
    }
    channel(shim::inode_of_channel(fd).ok_or(Errno(libc::EINVAL))?).map_err(|_| Errno(libc::EINVAL))
}

unsafe extern "C-unwind" fn write(
    fd: c_int,
    inode: u64,
    buffer: *const c_void,
    len: usize,
) -> isize {
    let buffer = buffer as u64;
    let wanted = crate::base::ffi::contained(|| {
        // SAFETY: the program writes the command.
        unsafe { command::header(buffer, len) }
    });
    let header = match wanted {
        Ok(header) => header,
        Err(errno) => return failed(errno),
    };
    if header.is_get_event() {
        // SAFETY: the program writes the command, as to the kernel's device.
        return unsafe { event::get(fd, inode, header, buffer, len) };
    }
    let done = crate::base::ffi::contained(|| {
        let channel = channel(inode)?;
        // SAFETY: as above.
        unsafe { command::run(&channel, fd, header, buffer) }
    });
    match done {
        Ok(()) => len as isize,
        Err(errno) => failed(errno),
    }
}

fn failed(errno: Errno) -> isize {
    set_errno(errno);
    -1
}

/// A descriptor was closed; if it was a channel's last, the channel ends.
fn closed(inode: Option<u64>) {
    if !is_owner() {
        return;
    }
    let _ = crate::base::ffi::contained(|| {
        let mut ended = Vec::new();
        if let Some(channels) = channels().as_mut() {
            let is_meant = |number: u64| inode.is_none_or(|inode| inode == number);
            channels.retain(|number, channel| {
                let ends = is_meant(*number) && channel.is_closed();
                if ends {
                    ended.push(channel.clone());
                }
                !ends
            });
        }
        for channel in ended {
            shim::count_channels(-1);
            channel.end();
        }
        Ok(())
    });
}
