//! Whole messages over a UNIX socket, with the descriptors that come with them.

use crate::protocol::{HEADER_LEN, Header, MAX_FDS};
use engine_thread::lock;
use rustix::io::{Errno, IoSlice, IoSliceMut, Result};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, Shutdown,
};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Mutex;
use std::time::Duration;

/// How long a client may leave its socket full before it is taken for dead. One that is stopped
/// makes its own machine wait, never the rest of the program.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);

/// One end of a connection. Any thread may send; one receives.
#[derive(Debug)]
pub(crate) struct Channel {
    socket: OwnedFd,
    /// Held while a message is on its way, so that messages do not mix.
    sending: Mutex<()>,
}

/// A message as it came.
#[derive(Debug)]
pub(crate) struct Message {
    pub(crate) header: Header,
    pub(crate) body: Vec<u8>,
    pub(crate) fds: Vec<OwnedFd>,
}

impl Channel {
    pub(crate) fn new(socket: OwnedFd) -> Result<Channel> {
        let option = rustix::net::sockopt::Timeout::Send;
        rustix::net::sockopt::set_socket_timeout(&socket, option, Some(PATIENCE))?;
        Ok(Channel { socket, sending: Mutex::new(()) })
    }

    /// Sends one message: its header with the right size put in, its parts, and perhaps a
    /// descriptor.
    ///
    /// # Errors
    /// What sendmsg says; part of the message may have gone then, so the connection is closed.
    pub(crate) fn send(
        &self,
        mut header: Header,
        parts: [&[u8]; 2],
        fd: Option<BorrowedFd<'_>>,
    ) -> Result<()> {
        let size = HEADER_LEN + parts[0].len() + parts[1].len();
        header.size = u32::try_from(size).map_err(|_| Errno::MSGSIZE)?;
        let header = header.bytes();
        let _turn = lock(&self.sending);
        let sent = self.send_all([&header, parts[0], parts[1]], fd);
        if sent.is_err() {
            self.close();
        }
        sent
    }

    fn send_all(&self, mut parts: [&[u8]; 3], mut fd: Option<BorrowedFd<'_>>) -> Result<()> {
        while parts.iter().any(|part| !part.is_empty()) {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
            let mut control = SendAncillaryBuffer::new(&mut space);
            if let Some(fd) = &fd {
                control.push(SendAncillaryMessage::ScmRights(std::slice::from_ref(fd)));
            }
            let slices = parts.map(IoSlice::new);
            let flags = SendFlags::NOSIGNAL;
            let mut sent = match rustix::net::sendmsg(&self.socket, &slices, &mut control, flags) {
                Err(Errno::INTR) => continue,
                other => other?,
            };
            fd = None;
            for part in &mut parts {
                let gone = sent.min(part.len());
                *part = &part[gone..];
                sent -= gone;
            }
        }
        Ok(())
    }

    /// The next message; none when the other end has closed.
    ///
    /// # Errors
    /// `INVAL` when the bytes are no message, `CONNRESET` when the connection ends inside of one,
    /// `TOOBIG` for more descriptors than a message may carry, else what recvmsg says.
    pub(crate) fn receive(&self) -> Result<Option<Message>> {
        let mut fds = Vec::new();
        let mut header = [0; HEADER_LEN];
        match self.fill(&mut header, &mut fds)? {
            HEADER_LEN => {}
            0 => return Ok(None),
            _ => return Err(Errno::CONNRESET),
        }
        let header = Header::parse(&header)?;
        let mut body = vec![0; header.size as usize - HEADER_LEN];
        if self.fill(&mut body, &mut fds)? < body.len() {
            return Err(Errno::CONNRESET);
        }
        Ok(Some(Message { header, body, fds }))
    }

    /// Fills `bytes`, as far as there are any before the end of the stream; how many there were.
    fn fill(&self, bytes: &mut [u8], fds: &mut Vec<OwnedFd>) -> Result<usize> {
        let mut filled = 0;
        while filled < bytes.len() {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
            let mut control = RecvAncillaryBuffer::new(&mut space);
            let mut slices = [IoSliceMut::new(&mut bytes[filled..])];
            let flags = RecvFlags::CMSG_CLOEXEC;
            let got = match rustix::net::recvmsg(&self.socket, &mut slices, &mut control, flags) {
                Err(Errno::INTR) => continue,
                other => other?,
            };
            for message in control.drain() {
                if let RecvAncillaryMessage::ScmRights(given) = message {
                    fds.extend(given);
                }
            }
            if got.flags.contains(ReturnFlags::CTRUNC) || fds.len() > MAX_FDS {
                return Err(Errno::TOOBIG);
            }
            if got.bytes == 0 {
                break;
            }
            filled += got.bytes;
        }
        Ok(filled)
    }

    /// The process at the other end; none for one of another name space.
    pub(crate) fn peer(&self) -> Option<u32> {
        let peer = rustix::net::sockopt::socket_peercred(&self.socket).ok()?;
        u32::try_from(peer.pid.as_raw_nonzero().get()).ok()
    }

    /// Ends the connection: whoever receives or sends on it, on either side, finds it closed.
    pub(crate) fn close(&self) {
        let _ = rustix::net::shutdown(self.socket.as_fd(), Shutdown::Both);
    }
}
