//! What calls are given: the way to a peer, and what a connection or a datagram service is asked
//! for and answered with.

use std::net::IpAddr;
use wire::cm::{Ece, SidrStatus, Transport};

/// Names a conversation: its local communication id.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ConnId(pub(crate) u32);

/// The call does not fit the conversation's state, or its private data is too long.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Invalid;

/// What a manager is made from.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// Number of the bits below an adapter's prefix in a communication id.
    pub id_bits: u32,
    /// Any random number.
    pub seed: u64,
}

/// A channel adapter of this host, as its peers know it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Adapter {
    /// GUID of the adapter.
    pub ca_guid: u64,
    /// Upper bits of the communication ids of its conversations.
    pub id_prefix: u32,
}

/// The way between two queue pairs 1.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Path {
    /// Number of the adapter that has the local address, as given to
    /// [`Cm::attach`](crate::Cm::attach).
    pub adapter: usize,
    /// An address of this host.
    pub local: IpAddr,
    /// The peer.
    pub remote: IpAddr,
    /// Interface for link-local addresses.
    pub ifindex: u32,
    /// DSCP and ECN.
    pub traffic_class: u8,
    /// Hop limit; 0 leaves it to the host.
    pub hop_limit: u8,
}

/// What a connection is asked for with.
#[derive(Clone, Debug)]
pub struct ConnectParams {
    /// The way there.
    pub path: Path,
    /// Service that is asked for.
    pub service_id: u64,
    /// Transport of the own queue pair.
    pub transport: Transport,
    /// Number of the own queue pair.
    pub qpn: u32,
    /// First PSN to expect.
    pub psn: u32,
    /// READs and atomics that may come in at once.
    pub responder_resources: u8,
    /// READs and atomics that may go out at once.
    pub initiator_depth: u8,
    /// End-to-end flow control.
    pub flow_control: bool,
    /// Retries of the peer, 7 at most.
    pub retry_count: u8,
    /// Retries of the peer when the receiver is not ready, 7 at most.
    pub rnr_retry_count: u8,
    /// Receives come from a shared queue.
    pub srq: bool,
    /// Path MTU, verbs code.
    pub mtu: u8,
    /// ACK timeout.
    pub ack_timeout: u8,
    /// Rate, verbs code.
    pub rate: u8,
    /// Flow label.
    pub flow_label: u32,
    /// Vendor options.
    pub ece: Ece,
    /// GID of the own end.
    pub local_gid: [u8; 16],
    /// GID of the peer.
    pub remote_gid: [u8; 16],
    /// Private data, 92 bytes at most.
    pub private: Vec<u8>,
}

/// What a connection is accepted with.
#[derive(Clone, Debug, Default)]
pub struct ReplyParams {
    /// Number of the own queue pair.
    pub qpn: u32,
    /// First PSN to expect.
    pub psn: u32,
    /// READs and atomics that may come in at once.
    pub responder_resources: u8,
    /// READs and atomics that may go out at once.
    pub initiator_depth: u8,
    /// End-to-end flow control.
    pub flow_control: bool,
    /// Retries of the peer when the receiver is not ready, 7 at most.
    pub rnr_retry_count: u8,
    /// Receives come from a shared queue.
    pub srq: bool,
    /// Vendor options.
    pub ece: Ece,
    /// Private data, 196 bytes at most.
    pub private: Vec<u8>,
}

/// What a datagram service is answered with.
#[derive(Clone, Debug)]
pub struct SidrReplyParams {
    /// Whether there is such a service.
    pub status: SidrStatus,
    /// Number of its queue pair.
    pub qpn: u32,
    /// Queue key of its queue pair.
    pub qkey: u32,
    /// Private data, 136 bytes at most.
    pub private: Vec<u8>,
}
