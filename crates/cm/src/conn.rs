//! One conversation: its state, the message that is repeated until it is answered, and when.

use crate::machine::Path;
use crate::mad::{Mad, Transport};
use std::time::{Duration, Instant};

/// How far a conversation is (IBA 12.9, 12.11).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum State {
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
    pub(crate) state: State,
    pub(crate) path: Path,
    pub(crate) tid: u64,
    /// The peer's id for it; of a SIDR request, its request id.
    pub(crate) remote_id: u32,
    pub(crate) remote_guid: u64,
    pub(crate) remote_qpn: u32,
    pub(crate) service_id: u64,
    pub(crate) transport: Transport,
    /// The layer above let it go: it ends by itself, and silently.
    pub(crate) detached: bool,
    /// Last message, sent again when the answer or our message was lost.
    pub(crate) last: Option<Mad>,
    pub(crate) retries_left: u8,
    /// How long an answer may take.
    pub(crate) patience: Duration,
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
