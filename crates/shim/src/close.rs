//! The engine's descriptors survive a program that closes what it did not open.
//!
//! Daemons and Python close every descriptor they can name. The engine's ([`descriptors::Kept`])
//! are spared: for the program they are not open (EBADF).

use core::ffi::{c_int, c_uint};

use descriptors::{is_kept, next_kept};

use crate::errno::fail;
use crate::{drm, rdma_cm};

/// A device of ours that a descriptor is of, by inode number.
struct Device {
    channel: Option<u64>,
    node: Option<u64>,
}

impl Device {
    #[inline]
    fn of(fd: c_int) -> Device {
        Device { channel: rdma_cm::channel(fd), node: drm::node(fd) }
    }

    /// Reports that the descriptor was closed.
    #[inline]
    fn closed(self) {
        self.channel.inspect(|inode| rdma_cm::closed(*inode));
        self.node.inspect(|inode| drm::closed(*inode));
    }
}

/// Reports that many descriptors were closed.
fn many_closed() {
    rdma_cm::many_closed();
    drm::many_closed();
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn close(fd: c_int) -> c_int {
    if is_kept(fd) {
        return fail(libc::EBADF);
    }
    let device = Device::of(fd);
    let code = pass!(CLOSE(fd), SYS_close, fd);
    device.closed();
    code
}

#[unsafe(no_mangle)]
unsafe extern "C" fn dup2(old: c_int, new: c_int) -> c_int {
    if is_kept(new) {
        return fail(libc::EBADF);
    }
    let device = Device::of(new);
    let code = pass_or!(DUP2(old, new), -1);
    device.closed();
    code
}

#[unsafe(no_mangle)]
unsafe extern "C" fn dup3(old: c_int, new: c_int, flags: c_int) -> c_int {
    if is_kept(new) {
        return fail(libc::EBADF);
    }
    let device = Device::of(new);
    let code = pass!(DUP3(old, new, flags), SYS_dup3, old, new, flags);
    device.closed();
    code
}

#[unsafe(no_mangle)]
unsafe extern "C" fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
    let code = close_others(first, last, flags);
    many_closed();
    code
}

fn close_others(first: c_uint, last: c_uint, flags: c_int) -> c_int {
    let mut from = first;
    let mut flags_left = flags as c_uint;
    while let Some(skipped) = next_kept(from).filter(|&fd| fd <= last) {
        if from < skipped {
            let code = system!(SYS_close_range, from, skipped - 1, flags_left);
            if code != 0 {
                return code as c_int;
            }
            flags_left &= !libc::CLOSE_RANGE_UNSHARE;
        }
        from = skipped + 1;
        if from > last {
            return 0;
        }
    }
    system!(SYS_close_range, from, last, flags_left) as c_int
}

#[unsafe(no_mangle)]
unsafe extern "C" fn closefrom(first: c_int) {
    let first = first.max(0) as c_uint;
    if next_kept(first).is_none() {
        pass_or!(CLOSEFROM(first as c_int), ());
        return many_closed();
    }
    // SAFETY: closing what the caller asked to close.
    if unsafe { close_range(first, c_uint::MAX, 0) } != 0 {
        close_listed(first);
        many_closed();
    }
}

/// Without the system call (old kernels, strict sandboxes): one by one, as `/proc` lists them.
fn close_listed(first: c_uint) {
    let Ok(listing) = std::fs::read_dir("/proc/self/fd") else { return };
    let numbers =
        listing.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<c_int>().ok());
    // Collected first, because the listing has a descriptor of its own.
    for fd in numbers.collect::<Vec<_>>() {
        if fd as c_uint >= first && !is_kept(fd) {
            system!(SYS_close, fd);
        }
    }
}
