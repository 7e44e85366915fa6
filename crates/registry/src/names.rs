//! The abstract socket names by which processes find each other.
//!
//! Abstract names are scoped to the network namespace and vanish with their holder, even on `kill -9`.
//! `peerdma/<version>/<uid>` is the registry. A host that is stopped keeps its name, so a process that
//! gets no answer hosts the next *generation* under `…/g1` and so on; the highest that exists is the one
//! that counts, and a host that wakes up beneath a higher one abdicates.
//! `…/slot/<n>` is a datagram socket that the holder of slot `n` keeps: its deed. A datagram there asks the
//! holder to see whether its registry still counts and answers.

use crate::fds::{Fd, Table};
use crate::proto::VERSION;
use crate::sys;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, socket_with};
use std::sync::Arc;

/// Generations a registry can have; each stands on a stopped process.
const GENERATIONS: u32 = 8;
const BACKLOG: i32 = 1024;

/// What became of an attempt to host.
pub(crate) enum Hosting {
    Ours(Fd),
    /// Another process was faster.
    Lost,
}

/// A connection to the registry that counts.
pub(crate) struct Found {
    pub fd: Fd,
    pub generation: u32,
    /// Its host has not accepted for so long that no more connections fit.
    pub deaf: bool,
}

struct Peer {
    fd: Fd,
    uid: u32,
    deaf: bool,
}

/// The names of one user's registry.
#[derive(Clone)]
pub(crate) struct Names {
    base: String,
    uid: u32,
    table: Arc<Table>,
}

impl Names {
    pub(crate) fn new(suffix: Option<&str>, table: Arc<Table>) -> Self {
        let uid = rustix::process::geteuid().as_raw();
        let mut base = format!("peerdma/{VERSION}/{uid}");
        if let Some(suffix) = suffix {
            base.push('/');
            base.push_str(suffix);
        }
        Names { base, uid, table }
    }

    fn address(&self, tail: &str) -> rustix::io::Result<SocketAddrUnix> {
        SocketAddrUnix::new_abstract_name(format!("{}{tail}", self.base).as_bytes())
    }

    fn registry(&self, generation: u32) -> rustix::io::Result<SocketAddrUnix> {
        match generation {
            0 => self.address(""),
            g => self.address(&format!("/g{g}")),
        }
    }

    fn socket(&self, kind: SocketType) -> rustix::io::Result<Fd> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        Ok(self.table.keep(socket_with(AddressFamily::UNIX, kind, flags, None)?))
    }

    /// Connects to one generation; `None`: nobody is there.
    fn connect(&self, generation: u32) -> rustix::io::Result<Option<Peer>> {
        let fd = self.socket(SocketType::SEQPACKET)?;
        match rustix::net::connect(&fd, &self.registry(generation)?) {
            Ok(()) => {
                let (_, uid) = sys::peer(&fd)?;
                Ok(Some(Peer { fd, uid, deaf: false }))
            }
            Err(Errno::AGAIN) => Ok(Some(Peer { fd, uid: self.uid, deaf: true })),
            Err(Errno::CONNREFUSED) => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// The registry that counts, if any of our user exists; else the uid of a squatter, if any.
    pub(crate) fn find(&self) -> rustix::io::Result<Result<Found, Option<u32>>> {
        let mut squatter = None;
        for generation in (0..GENERATIONS).rev() {
            match self.connect(generation)? {
                Some(Peer { fd, uid, deaf }) if uid == self.uid => {
                    return Ok(Ok(Found { fd, generation, deaf }));
                }
                Some(Peer { uid, .. }) => squatter = Some(uid),
                None => {}
            }
        }
        Ok(Err(squatter))
    }

    /// Whether a registry of a higher generation exists.
    pub(crate) fn is_deposed(&self, generation: u32) -> bool {
        (generation + 1..GENERATIONS)
            .any(|g| matches!(self.connect(g), Ok(Some(peer)) if peer.uid == self.uid))
    }

    /// Tries to become the host of a generation.
    pub(crate) fn host(&self, generation: u32) -> rustix::io::Result<Hosting> {
        if generation >= GENERATIONS {
            return Ok(Hosting::Lost);
        }
        let fd = self.socket(SocketType::SEQPACKET)?;
        match rustix::net::bind(&fd, &self.registry(generation)?) {
            Ok(()) => {
                rustix::net::listen(&fd, BACKLOG)?;
                Ok(Hosting::Ours(fd))
            }
            Err(Errno::ADDRINUSE) => Ok(Hosting::Lost),
            Err(e) => Err(e),
        }
    }

    /// The deed of a slot, or `None` if somebody holds it.
    pub(crate) fn deed(&self, slot: u16) -> rustix::io::Result<Option<Fd>> {
        let fd = self.socket(SocketType::DGRAM)?;
        match rustix::net::bind(&fd, &self.address(&format!("/slot/{slot}"))?) {
            Ok(()) => Ok(Some(fd)),
            Err(Errno::ADDRINUSE) => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// Whether somebody holds the deed of a slot. The holder does not notice.
    pub(crate) fn is_held(&self, slot: u16) -> rustix::io::Result<bool> {
        let fd = self.socket(SocketType::DGRAM)?;
        match rustix::net::connect(&fd, &self.address(&format!("/slot/{slot}"))?) {
            Ok(()) => Ok(true),
            Err(Errno::CONNREFUSED) => Ok(false),
            Err(e) => Err(e),
        }
    }

    /// Tells the holders of these slots to look for the registry; returns those that exist.
    pub(crate) fn summon(&self, slots: impl Iterator<Item = u16>) -> rustix::io::Result<Vec<u16>> {
        let from = self.socket(SocketType::DGRAM)?;
        let mut existing = Vec::new();
        for slot in slots {
            let to = self.address(&format!("/slot/{slot}"))?;
            let sent = rustix::net::sendto(&from, b"look", rustix::net::SendFlags::NOSIGNAL, &to);
            if matches!(sent, Ok(_) | Err(Errno::AGAIN)) {
                existing.push(slot);
            }
        }
        Ok(existing)
    }

    pub(crate) fn uid(&self) -> u32 {
        self.uid
    }
}
