//! The registry: how the peerdma processes of one user in one network namespace share UDP port 4791 and
//! find each other.
//!
//! There is no daemon. Whichever member first binds an abstract UNIX socket hosts the registry in a thread;
//! when its process ends, however it ends, another member takes over. The registry hands out *slots* (the
//! upper 10 bits of all queue pair numbers and communication ids of a member), passes each member its UDP sockets, and steers
//! datagrams to them with a classic BPF program on the `SO_REUSEPORT` group, without privilege. It also
//! passes on the members' shared directories and published descriptors, and keeps claims on numbers such as
//! CM service ids. Nothing is left on disk, and nothing of a killed process stays.
//!
//! Promises:
//! - A member that is killed, stopped or debugged disturbs no other, also if it hosts the registry: a host
//!   that ended is followed at once; one that is stopped is *deposed* by the first process that gets no
//!   answer within half a second, or by a member that such an observer calls, and abdicates when it wakes.
//! - A member's coming and going moves no other member's traffic (`group`), also if it hosted the registry: what
//!   only the host held is kept open by the others (`vault`), and its successor leaves the steering as it is
//!   until all have come back; new members wait for them. Only when that takes too long (300 ms for a new member, a
//!   second otherwise) and no other member knows their place, datagrams for those that are not back may go astray
//!   for a moment.
//! - What a new host is asked while members of the one before are still on their way to it waits for them, for 300 ms at
//!   most; later an answer "unknown" is certain at once.
//! - A new host finds out the order of the group by experiment, without the help of the members' engines and
//!   also for stopped members (`probe`); traffic for unknown slots goes to the leader, the oldest member.
//! - All calls end within two seconds.
//!
//! How it is built: `server` holds the rules without I/O and `group` the order of the sockets, over the
//! `kernel` trait that `linux` implements; `steer` writes BPF; `proto` and `record` are the messages; `names`
//! the abstract names, and `census` whose they are; `host` and `worker` the one thread; `connection` and `client` the calls.

mod census;
mod client;
mod connection;
mod error;
mod fds;
mod fork_pause;
mod group;
mod host;
mod kernel;
mod linux;
mod names;
mod probe;
mod proto;
mod record;
mod server;
mod steer;
mod sys;
mod vault;
mod worker;

/// The message parsers, for fuzzing; not part of the API.
#[doc(hidden)]
pub use proto::decode_anything;

pub use client::{Client, Grant, Member, Options, Role};
pub use error::Error;
pub use proto::Identity;
pub use server::{CLAIM_PORT, CLAIM_SERVICE};
pub use steer::{COMM_ID_INDEX_BITS, QPN_INDEX_BITS, SLOTS, fold};

/// The UDP port of RoCEv2 (IBA annex A17).
pub const ROCE_PORT: u16 = 4791;
