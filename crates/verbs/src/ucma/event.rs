//! Taking events: `GET_EVENT`.

use super::channel::Channel;
use super::command::Header;
use super::{channel, failed, layout};
use crate::base::ffi::{Errno, Res, contained};
use std::ffi::{c_int, c_void};

unsafe extern "C-unwind" {
    /// read(2), where a thread may be cancelled.
    #[link_name = "read"]
    fn wait_read(fd: c_int, into: *mut c_void, len: usize) -> isize;
}

/// Waits for an event, unless the descriptor is non-blocking, and delivers it. A thread that waits
/// may be cancelled: nothing is held meanwhile.
///
/// # Safety
/// The program wrote the command at `buffer`, with a place of its own for the answer.
pub unsafe fn get(fd: c_int, inode: u64, header: Header, buffer: u64, len: usize) -> isize {
    let prepared = contained(|| {
        if header.out_len < layout::EVENT_LEN_OLD {
            return Err(Errno(libc::ENOSPC));
        }
        // SAFETY: the caller's promise.
        let response = unsafe { layout::read(buffer.wrapping_add(8)) }?;
        let response = u64::from_ne_bytes(response);
        channel(inode).map(|_| response)
    });
    let response = match prepared {
        Ok(response) => response,
        Err(errno) => return failed(errno),
    };
    loop {
        let mut token = [0u8; 1];
        // SAFETY: one byte of a live local.
        if unsafe { wait_read(fd, token.as_mut_ptr().cast(), 1) } < 0 {
            return -1;
        }
        // SAFETY: the command names the place.
        match contained(|| unsafe { deliver(&*channel(inode)?, response, header.out_len) }) {
            Ok(true) => return len as isize,
            Ok(false) => {}
            Err(errno) => return failed(errno),
        }
    }
}

/// Delivers the oldest event after the token was taken; false when somebody else did, or it was
/// removed.
///
/// # Safety
/// The program's command names `response` as the place for its answer.
unsafe fn deliver(channel: &Channel, response: u64, out_len: usize) -> Res<bool> {
    let id = channel.id();
    let engine = channel.engine();
    engine.cm.with_token(id, |cma| {
        let Some(delivered) = cma.next_event(id).map_err(super::command::errno)? else {
            return Ok(false);
        };
        let bytes = layout::event(&delivered);
        // SAFETY: as demanded of the caller.
        unsafe { layout::write(response, &bytes, out_len) }?;
        cma.delivered(id);
        Ok(true)
    })
}
