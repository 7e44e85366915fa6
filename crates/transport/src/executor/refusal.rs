//! Why an incoming operation is refused, and what the errors of keys and memory mean for its peer.

use crate::keys::KeyError;
use crate::queues::slots::SlotLost;
use umem::AccessError;

/// Why an incoming operation is not done.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Refusal {
    /// The request breaks a rule of the protocol, or the QP does not offer the operation (NAK
    /// invalid request).
    #[error("invalid request: {0}")]
    InvalidRequest(&'static str),
    /// The key does not give the access (NAK remote access error).
    #[error("remote access: {0}")]
    RemoteAccess(KeyError),
    /// The memory behind a valid key failed (NAK remote operational error).
    #[error("memory failed: {0}")]
    RemoteOperational(AccessError),
    /// The memory behind a valid key is not there yet (the peer comes again, or its message is
    /// dropped).
    #[error("{0}")]
    PageFault(AccessError),
    /// No receive request waits (RNR NAK, or the message is dropped).
    #[error("receiver not ready")]
    NotReady,
    /// The message is longer than the receive request (local length error).
    #[error("the receive request is too short")]
    ReceiveTooShort,
    /// A receive request's own key does not give the access (local protection error).
    #[error("the receive request's memory is not accessible")]
    ReceiveProtection,
    /// The receive queue's own memory is gone: no request can be taken or reported (local work
    /// queue catastrophic error).
    #[error("{0}")]
    QueueLost(SlotLost),
}

impl Refusal {
    /// What a key that does not give an access means.
    pub(super) fn of_key(error: KeyError) -> Refusal {
        match error {
            KeyError::NoMemory => Refusal::RemoteOperational(AccessError::Fault),
            refused => Refusal::RemoteAccess(refused),
        }
    }

    /// What a failure of the memory behind a valid key means.
    pub(crate) fn of_memory(error: AccessError) -> Refusal {
        match error {
            AccessError::Revoked => Refusal::RemoteAccess(KeyError::Unknown),
            AccessError::OutOfRange => Refusal::RemoteAccess(KeyError::Range),
            AccessError::Unmapped => Refusal::RemoteAccess(KeyError::Unmapped),
            AccessError::NotPresent { .. } | AccessError::Moving => Refusal::PageFault(error),
            AccessError::Fault | AccessError::Unreachable => Refusal::RemoteOperational(error),
        }
    }

    /// Why a receive request's memory cannot be written.
    pub(super) fn of_receive(error: AccessError) -> Refusal {
        match error {
            AccessError::NotPresent { .. } | AccessError::Moving => Refusal::PageFault(error),
            _ => Refusal::ReceiveProtection,
        }
    }
}
