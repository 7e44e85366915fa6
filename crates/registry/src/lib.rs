//! The registry: how the peerdma processes of one user in one network namespace share UDP port 4791
//! and find each other.
//!
//! There is no daemon. Whichever member first binds an abstract UNIX socket hosts the registry in a
//! thread; when its process ends, however it ends, another member takes over. The registry hands
//! out *slots* (the upper 10 bits of all queue pair numbers and communication ids of a member),
//! passes each member its UDP sockets, and steers datagrams to them with a classic BPF program on
//! the `SO_REUSEPORT` group, without privilege. It also passes on the members' shared directories
//! and published descriptors, and keeps claims on numbers such as CM service ids. Nothing is left
//! on disk, and nothing of a killed process stays.
//!
//! Promises: - A member that is killed, stopped or debugged disturbs no other, also if it hosts the
//! registry: a host that ended is followed at once; one that is stopped is *deposed* by the first
//! process that gets no answer within half a second, or by a member that such an observer calls,
//! and abdicates when it wakes. One that is at work is waited for: hundreds of processes that begin
//! at once must not put each other's hosts aside (`system::pulse`). - A member's coming and going
//! moves no other member's traffic (`server::group`), also if it hosted the registry: what only the
//! host held is kept open by the others (`system::vault`), and its successor leaves the steering as
//! it is until all have come back; new members wait for them. Only when that takes too long (300 ms
//! for a new member, a second otherwise) and no other member knows their place, datagrams for those
//! that are not back may go astray for a moment. - What a new host is asked while members of the
//! one before are still on their way to it waits for them, for 300 ms at most; later an answer
//! "unknown" is certain at once. - A new host finds out the order of the group by experiment,
//! without the help of the members' engines and also for stopped members (`system::probe`); traffic
//! for unknown slots goes to the leader, the oldest member. - All calls end within two seconds, or
//! ten where the host is at work.
//!
//! How it is built: `server` holds the rules without I/O and the order of the sockets, over a trait
//! that `system` implements; `steer` writes BPF; `proto` has the messages; `client` the calls, and
//! the one thread that hosts the registry where nobody else does.

mod client;
mod error;
mod fds;
mod proto;
mod server;
mod steer;
mod system;

/// The message parsers, for fuzzing; not part of the API.
#[doc(hidden)]
pub use proto::decode_anything;

pub use client::{Client, Grant, Member, Options, Role};
pub use error::Error;
pub use proto::Identity;
pub use server::{CLAIM_JOINING, CLAIM_PORT, CLAIM_SERVICE, JOINING_LEASE};
pub use steer::{COMM_ID_INDEX_BITS, QPN_INDEX_BITS, SLOTS, fold};
