//! One open descriptor of the device: the program's end is a socket that is readable while an event
//! waits.
//!
//! The other end is ours. One byte lies in the socket while the channel has events; who takes an
//! event reads it first, with the program's own descriptor, so that O_NONBLOCK, signals and
//! cancellation are as in a system call. All copies of the program's end closed is what the end of
//! the channel is.

use crate::base::ffi::{Errno, Res, last_errno};
use crate::engine::process::{self, Engine};
use cma::ChannelId;
use descriptors::Kept;
use engine_thread::lock;
use std::ffi::c_int;
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard};

/// An open channel. It keeps the engine of its messages running, and those of the devices that its
/// ids are of.
pub struct Channel {
    inode: u64,
    engine: Arc<Engine>,
    devices: Mutex<Vec<Arc<Engine>>>,
    end: Arc<Kept>,
}

impl Channel {
    /// Opens one; answers the program's descriptor.
    pub fn open(engine: &Arc<Engine>, flags: c_int) -> Res<(c_int, Channel)> {
        let mut pair = [0; 2];
        let kind = libc::SOCK_STREAM | libc::SOCK_CLOEXEC;
        // SAFETY: two places for descriptors.
        if unsafe { libc::socketpair(libc::AF_UNIX, kind, 0, pair.as_mut_ptr()) } != 0 {
            return Err(last_errno());
        }
        // SAFETY: just made, and nobody else's.
        let [theirs, ours] = pair.map(|fd| unsafe { OwnedFd::from_raw_fd(fd) });
        let ours = Kept::new(ours);
        let inode = shim::mark(theirs.as_raw_fd()).ok_or(Errno(libc::EIO))?;
        // SAFETY: no pointers are passed.
        unsafe {
            if flags & libc::O_CLOEXEC == 0 {
                libc::fcntl(theirs.as_raw_fd(), libc::F_SETFD, 0);
            }
            if flags & libc::O_NONBLOCK != 0 {
                libc::fcntl(theirs.as_raw_fd(), libc::F_SETFL, libc::O_NONBLOCK);
            }
        }
        let end = Arc::new(ours);
        engine.cm.open(ChannelId(inode), end.clone());
        let channel = Channel { inode, engine: engine.clone(), devices: Mutex::default(), end };
        Ok((theirs.into_raw_fd(), channel))
    }

    /// Inode number of the program's descriptors.
    pub fn inode(&self) -> u64 {
        self.inode
    }

    /// The channel's name.
    pub fn id(&self) -> ChannelId {
        ChannelId(self.inode)
    }

    /// The engine whose connection manager it is of.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    fn devices(&self) -> MutexGuard<'_, Vec<Arc<Engine>>> {
        lock(&self.devices)
    }

    /// The engine of the device of a number, for an id of this channel.
    pub fn device(&self, number: usize) -> Res<Arc<Engine>> {
        let engine = process::get(number)?;
        self.keep(&engine);
        Ok(engine)
    }

    fn keep(&self, engine: &Arc<Engine>) {
        let mut devices = self.devices();
        if !devices.iter().any(|known| Arc::ptr_eq(known, engine)) {
            devices.push(engine.clone());
        }
    }

    /// Keeps what an id needs that comes from another channel.
    pub fn take_from(&self, other: &Channel) {
        let theirs = other.devices().clone();
        theirs.iter().for_each(|engine| self.keep(engine));
    }

    /// Whether no descriptor of the program's is left.
    pub fn is_closed(&self) -> bool {
        let mut poll = libc::pollfd { fd: self.end.as_raw_fd(), events: 0, revents: 0 };
        // SAFETY: one live pollfd.
        unsafe { libc::poll(&mut poll, 1, 0) == 1 && poll.revents & libc::POLLHUP != 0 }
    }

    /// Ends its ids.
    pub fn end(&self) {
        self.engine.cm.close(self.id());
    }
}
