//! How a process takes part in the registry, what a member gets, and how it is listed.

use crate::proto::Row;
use std::os::fd::OwnedFd;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// How a process takes part.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    /// Hosts the registry when nobody does.
    Member,
    /// Never hosts; gets [`Error::NoRegistry`](crate::Error::NoRegistry) when nobody does.
    Observer,
}

/// Where the registry is; the default is what production uses, other values are for tests.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Options {
    /// UDP port of the sockets it hands out.
    pub port: u16,
    /// Appended to the registry's name, to have one of its own.
    pub name_suffix: Option<String>,
}

impl Default for Options {
    fn default() -> Self {
        Options { port: wire::ROCE_PORT, name_suffix: None }
    }
}

/// What a member gets.
#[derive(Debug)]
pub struct Grant {
    /// The member's slot, 1 to 1023: its queue pair numbers are `slot << 14 | index`.
    pub slot: u16,
    /// UDP socket on `0.0.0.0`, bound to the port; `None` where the host has no IPv4.
    ///
    /// It receives the datagrams for this slot's queue pairs (and for QP 0 and 1 and unknown slots
    /// while this member leads). It is in blocking mode. Never connect it: that takes it out of the
    /// port's group.
    pub v4: Option<OwnedFd>,
    /// The same on `[::]`, IPv6 only; `None` where the host has no IPv6.
    pub v6: Option<OwnedFd>,
}

impl Grant {
    /// The upper 10 bits of this member's CM communication ids; no other member has the same.
    pub fn comm_id_prefix(&self) -> u32 {
        u32::from(self.slot) << 22
    }
}

/// A member as the registry lists it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Member {
    /// Its slot.
    pub slot: u16,
    /// Its process; 0 if it is not visible in the PID namespace of the registry's host.
    pub pid: i32,
    /// Its user.
    pub uid: u32,
    /// Command name of its process.
    pub comm: String,
    /// Its device.
    pub device: String,
    /// Node GUID of its device.
    pub guid: u64,
    /// When it joined.
    pub joined_at: SystemTime,
    /// Whether it receives what belongs to no slot: datagrams for QP 0 and 1 and for unknown slots.
    pub leader: bool,
}

impl From<Row> for Member {
    fn from(row: Row) -> Self {
        let since = Duration::from_nanos(row.joined_at);
        Member {
            slot: row.slot,
            pid: row.pid,
            uid: row.uid,
            comm: row.who.comm,
            device: row.who.device,
            guid: row.who.guid,
            joined_at: UNIX_EPOCH.checked_add(since).unwrap_or(UNIX_EPOCH),
            leader: row.leader,
        }
    }
}
