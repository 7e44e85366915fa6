//! One record with descriptors over a `SOCK_SEQPACKET` socket, never blocking.

use crate::proto::{MAX_FDS, MAX_RECORD};
use rustix::io::{Errno, Result};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags,
};
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

const SPACE: usize = rustix::cmsg_space!(ScmRights(MAX_FDS));

/// A record that arrived.
pub(crate) struct Record {
    pub bytes: Vec<u8>,
    pub fds: Vec<OwnedFd>,
    /// Bytes or descriptors did not fit, the latter also when this process has no more descriptors.
    pub cut: bool,
}

/// Sends one record, or `EAGAIN`.
pub(crate) fn send(to: impl AsFd, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> Result<()> {
    let mut space = [MaybeUninit::uninit(); SPACE];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(Errno::INVAL);
    }
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    rustix::net::sendmsg(to, &[IoSlice::new(bytes)], &mut ancillary, flags).map(drop)
}

/// Receives one record, `None` at the end of the connection, or `EAGAIN`.
pub(crate) fn receive(from: impl AsFd) -> Result<Option<Record>> {
    take(from, RecvFlags::empty())
}

/// Copies the record at the socket's peek offset, which moves on; see
/// [`crate::system::sys::peek_from_start`].
pub(crate) fn peek(from: impl AsFd) -> Result<Option<Record>> {
    take(from, RecvFlags::PEEK)
}

fn take(from: impl AsFd, flags: RecvFlags) -> Result<Option<Record>> {
    let mut bytes = vec![0; MAX_RECORD];
    let mut space = [MaybeUninit::uninit(); SPACE];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let flags = flags | RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
    let got =
        rustix::net::recvmsg(from, &mut [IoSliceMut::new(&mut bytes)], &mut ancillary, flags)?;
    let mut fds = Vec::new();
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(received) = message {
            fds.extend(received);
        }
    }
    if got.bytes == 0 {
        return Ok(None);
    }
    bytes.truncate(got.bytes);
    let cut = got.flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC);
    Ok(Some(Record { bytes, fds, cut }))
}
