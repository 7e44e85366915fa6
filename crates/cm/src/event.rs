//! What the connection manager tells the layer above.

use crate::params::{ConnId, Path};
use wire::cm::{Ece, Reason, SidrStatus, Transport};

/// A peer asks for a connection. READs and atomics are as this side shall use them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Request {
    /// The new conversation.
    pub conn: ConnId,
    /// The way back.
    pub path: Path,
    /// Service that is asked for.
    pub service_id: u64,
    /// Transport of the peer's queue pair.
    pub transport: Transport,
    /// Number of the peer's queue pair.
    pub qpn: u32,
    /// PSN that it expects first.
    pub psn: u32,
    /// READs and atomics that may come in at once.
    pub responder_resources: u8,
    /// READs and atomics that may go out at once.
    pub initiator_depth: u8,
    /// End-to-end flow control.
    pub flow_control: bool,
    /// Retries.
    pub retry_count: u8,
    /// Retries when the receiver is not ready.
    pub rnr_retry_count: u8,
    /// Whether the peer receives from a shared queue.
    pub srq: bool,
    /// Path MTU, verbs code.
    pub mtu: u8,
    /// ACK timeout.
    pub ack_timeout: u8,
    /// Flow label, traffic class and hop limit of the path.
    pub flow_label: u32,
    /// DSCP and ECN.
    pub traffic_class: u8,
    /// Hop limit.
    pub hop_limit: u8,
    /// The peer's GID as it names itself.
    pub remote_gid: [u8; 16],
    /// Vendor options.
    pub ece: Ece,
    /// 92 bytes.
    pub private: Vec<u8>,
}

/// The peer accepted.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Reply {
    /// The conversation.
    pub conn: ConnId,
    /// The peer's queue pair.
    pub qpn: u32,
    /// PSN that it expects first.
    pub psn: u32,
    /// READs and atomics that may come in at once.
    pub responder_resources: u8,
    /// READs and atomics that may go out at once.
    pub initiator_depth: u8,
    /// End-to-end flow control.
    pub flow_control: bool,
    /// Retries when the receiver is not ready.
    pub rnr_retry_count: u8,
    /// Whether the peer receives from a shared queue.
    pub srq: bool,
    /// Vendor options.
    pub ece: Ece,
    /// 196 bytes.
    pub private: Vec<u8>,
}

/// The peer refused.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Refused {
    /// The conversation, which is over.
    pub conn: ConnId,
    /// Why.
    pub reason: Reason,
    /// 148 bytes.
    pub private: Vec<u8>,
}

/// A peer asks which queue pair serves a datagram service.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SidrRequest {
    /// The new conversation.
    pub conn: ConnId,
    /// The way back.
    pub path: Path,
    /// Service that is asked for.
    pub service_id: u64,
    /// 216 bytes.
    pub private: Vec<u8>,
}

/// Which it is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SidrReply {
    /// The conversation, which is over.
    pub conn: ConnId,
    /// Whether there is such a service.
    pub status: SidrStatus,
    /// Number of its queue pair.
    pub qpn: u32,
    /// Queue key of its queue pair.
    pub qkey: u32,
    /// 136 bytes.
    pub private: Vec<u8>,
}

/// An event.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    /// REQ: answer with [`Cm::reply`](crate::Cm::reply) or [`Cm::reject`](crate::Cm::reject).
    Request(Box<Request>),
    /// REP: answer with [`Cm::ready`](crate::Cm::ready) or [`Cm::reject`](crate::Cm::reject).
    Reply(Box<Reply>),
    /// RTU, or the first message came.
    Established(ConnId),
    /// REJ.
    Refused(Box<Refused>),
    /// No answer to REQ or REP.
    Unreachable(ConnId),
    /// DREQ: answer with [`Cm::disconnect`](crate::Cm::disconnect).
    DisconnectRequested(ConnId),
    /// DREP.
    Disconnected(ConnId),
    /// No answer to DREQ.
    DisconnectUnanswered(ConnId),
    /// The queue pair may be used again.
    TimewaitExit(ConnId),
    /// SIDR_REQ: answer with [`Cm::sidr_reply`](crate::Cm::sidr_reply).
    SidrRequest(Box<SidrRequest>),
    /// SIDR_REP.
    SidrReply(Box<SidrReply>),
    /// No answer to SIDR_REQ.
    SidrUnanswered(ConnId),
}
