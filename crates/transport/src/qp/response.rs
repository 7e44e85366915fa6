//! What a responder still has to say to its peer.

use crate::executor::{Refusal, Target};
use crate::values::{PdId, Remote};
use wire::{NakCode, Psn, Syndrome};

/// READ responses in progress.
pub(crate) struct ReadAnswer {
    pub(crate) psn: Psn,
    pub(crate) packets: u32,
    pub(crate) done: u32,
    /// Bytes of all packets but the last.
    pub(crate) mtu: u32,
    pub(crate) len: u32,
    /// The memory as the peer named it.
    pub(crate) remote: Remote,
    pub(crate) target: Target,
    /// The domain of its key.
    pub(crate) pd: PdId,
    /// [`KeyTable::changes`](crate::keys::KeyTable) when the memory was granted; `None` when it has
    /// to be asked for again in any case.
    pub(crate) seen: Option<u64>,
}

pub(crate) enum Answer {
    Ack,
    Nak(Syndrome),
    Atomic(u64),
    Read(ReadAnswer),
}

impl Answer {
    /// Whether a peer that does not get it asks again.
    pub(crate) fn comes_again(&self) -> bool {
        let again =
            |syndrome| matches!(syndrome, Syndrome::RnrNak(_) | Syndrome::Nak(NakCode::Sequence));
        match self {
            Answer::Ack => true,
            Answer::Nak(syndrome) => again(*syndrome),
            Answer::Atomic(_) | Answer::Read(_) => false,
        }
    }

    /// A READ response without data: what ATOMIC WRITE and FLUSH are answered with.
    pub(crate) fn done(psn: Psn) -> Answer {
        let (remote, target, pd) = (Remote::default(), Target::none(), PdId(0));
        let (packets, done, mtu, len, seen) = (1, 0, 0, 0, None);
        Answer::Read(ReadAnswer { psn, packets, done, mtu, len, remote, target, pd, seen })
    }

    /// The NAK for a repeated READ that can no longer be done. A requester that still waits learns
    /// why no data comes; for one that does not it is stale.
    pub(crate) fn refused_repetition(refusal: Refusal) -> Answer {
        Answer::Nak(Syndrome::Nak(match refusal {
            Refusal::RemoteAccess(_) | Refusal::PageFault(_) => NakCode::RemoteAccess,
            Refusal::RemoteOperational(_) => NakCode::RemoteOperational,
            _ => NakCode::InvalidRequest,
        }))
    }
}

/// One answer that is owed to the peer.
pub(crate) struct Response {
    pub(crate) psn: Psn,
    pub(crate) msn: u32,
    pub(crate) answer: Answer,
    /// Not a repetition: it occupies a responder resource.
    pub(crate) fresh: bool,
}

impl Response {
    pub(crate) fn is_answer(&self) -> bool {
        matches!(self.answer, Answer::Atomic(_) | Answer::Read(_))
    }

    /// Bytes of payload that its next packet carries.
    pub(crate) fn next_len(&self) -> usize {
        match &self.answer {
            Answer::Read(read) => {
                let at = u64::from(read.done) * u64::from(read.mtu);
                u64::from(read.len).saturating_sub(at).min(read.mtu.into()) as usize
            }
            _ => 0,
        }
    }
}
