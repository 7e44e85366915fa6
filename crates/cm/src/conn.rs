//! One conversation: its state, the message that is repeated until it is answered, and when.

use crate::params::Path;
use std::time::{Duration, Instant};
use wire::cm::{Mad, Transport};

/// How long an answer may take: 4.096 µs · 2^20, about four seconds (`CMA_CM_RESPONSE_TIMEOUT`).
pub(crate) const RESPONSE_TIMEOUT: u8 = 20;
/// Repetitions of a message without an answer (`CMA_MAX_CM_RETRIES`).
pub(crate) const RETRIES: u8 = 15;

/// How far a conversation is (IBA 12.9, 12.11).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ConnState {
    ReqSent,
    ReqReceived,
    RepSent,
    RepReceived,
    Established,
    DreqSent,
    DreqReceived,
    Timewait,
    SidrReqSent,
    SidrReqReceived,
}

/// A conversation.
#[derive(Debug)]
pub(crate) struct Conn {
    pub(crate) state: ConnState,
    pub(crate) path: Path,
    pub(crate) tid: u64,
    /// The peer's id for it; of a SIDR request, its request id.
    pub(crate) remote_id: u32,
    pub(crate) remote_guid: u64,
    pub(crate) remote_qpn: u32,
    pub(crate) local_qpn: u32,
    pub(crate) service_id: u64,
    pub(crate) transport: Transport,
    /// The layer above let it go: it ends by itself, and silently.
    pub(crate) detached: bool,
    /// Last message, sent again when the answer or our message was lost.
    pub(crate) last: Option<Mad>,
    pub(crate) retries_left: u8,
    /// How long an answer may take.
    pub(crate) patience: Duration,
    /// The same once the peer said that it needs more time for this message (MRA).
    pub(crate) granted: Option<Duration>,
    /// How often requests are repeated.
    pub(crate) retries: u8,
    /// How long the queue pair must not be used again.
    pub(crate) timewait: Duration,
    pub(crate) deadline: Option<Instant>,
}

/// Milliseconds of a timeout code: 4.096 µs · 2^code, as Linux rounds it (`cm_convert_to_ms`).
pub(crate) fn duration(code: u8) -> Duration {
    Duration::from_millis(1 << code.min(31).saturating_sub(8))
}

/// A conversation about a datagram service.
pub(crate) fn sidr(state: ConnState, path: Path, remote_id: u32, service_id: u64) -> Conn {
    Conn {
        state,
        path,
        tid: 0,
        remote_id,
        remote_guid: 0,
        remote_qpn: 0,
        local_qpn: 0,
        service_id,
        transport: Transport::Rc,
        detached: false,
        last: None,
        retries_left: RETRIES,
        patience: duration(RESPONSE_TIMEOUT),
        granted: None,
        retries: RETRIES,
        timewait: Duration::ZERO,
        deadline: None,
    }
}
