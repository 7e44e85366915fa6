//! What a responder still has to say to its peer.

use crate::executor::{Refusal, Target};
use crate::shelf::queue_of;
use crate::values::{PdId, Remote};
use std::collections::VecDeque;
use wire::{NakCode, Psn, Syndrome};

/// Packets of an answer with `len` bytes.
pub(crate) fn packets_of(len: u32, mtu: u32) -> u32 {
    len.div_ceil(mtu).max(1)
}

/// READ responses in progress.
pub(crate) struct ReadAnswer {
    pub(crate) psn: Psn,
    /// Packets that have left.
    pub(crate) done: u32,
    /// Bytes of all packets but the last.
    pub(crate) mtu: u32,
    pub(crate) len: u32,
    /// The memory as the peer named it.
    pub(crate) remote: Remote,
    pub(crate) target: Target,
    /// The domain of its key.
    pub(crate) pd: PdId,
    /// [`KeyTable::changes`](crate::keys::KeyTable) when the memory was granted, or
    /// [`ReadAnswer::UNSEEN`].
    pub(crate) seen: u64,
}

impl ReadAnswer {
    /// Whether its packet number `packet` begins at `remote`.
    pub(crate) fn is_at(&self, packet: u32, remote: Remote) -> bool {
        let at = u64::from(packet) * u64::from(self.mtu);
        remote.rkey == self.remote.rkey && remote.addr == self.remote.addr.wrapping_add(at)
    }
}

pub(crate) enum Answer {
    Ack,
    Nak(Syndrome),
    /// The value before, as bytes: so answers, of which each queue pair keeps many, are short.
    Atomic([u8; 8]),
    /// The oldest READ that [`Owed`] has and that no answer before this one is for.
    Read,
    /// A READ response without data: what ATOMIC WRITE and FLUSH are answered with.
    Done,
}

impl Answer {
    /// Whether a peer that does not get it asks again.
    pub(crate) fn comes_again(&self) -> bool {
        let again =
            |syndrome| matches!(syndrome, Syndrome::RnrNak(_) | Syndrome::Nak(NakCode::Sequence));
        match self {
            Answer::Ack => true,
            Answer::Nak(syndrome) => again(*syndrome),
            Answer::Atomic(_) | Answer::Read | Answer::Done => false,
        }
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
        matches!(self.answer, Answer::Atomic(_) | Answer::Read | Answer::Done)
    }

    fn is_read(&self) -> bool {
        matches!(self.answer, Answer::Read)
    }
}

impl ReadAnswer {
    /// The memory has to be asked for again in any case.
    pub(crate) const UNSEEN: u64 = u64::MAX;

    /// Packets of the answer.
    pub(crate) fn packets(&self) -> u32 {
        packets_of(self.len, self.mtu)
    }

    /// PSN of its next packet.
    pub(crate) fn next_psn(&self) -> Psn {
        self.psn.plus(self.done)
    }

    /// Where in the READ its next packet begins, and the bytes of payload that it carries.
    pub(crate) fn next(&self) -> (u64, usize) {
        let at = u64::from(self.done) * u64::from(self.mtu);
        (at, u64::from(self.len).saturating_sub(at).min(self.mtu.into()) as usize)
    }
}

/// All that is owed to the peer, in the order in which it leaves.
///
/// What is kept of a READ is several times as long as any other answer, and few answers are of
/// READs. So READs have a queue of their own.
#[derive(Default)]
pub(crate) struct Owed {
    answers: VecDeque<Response>,
    /// The READs among them.
    reads: VecDeque<ReadAnswer>,
}

impl Owed {
    /// Sets memory aside for so many answers, and for those of so many READs among them.
    ///
    /// # Errors
    /// [`Error::NoMemory`](crate::Error::NoMemory); nothing has changed then.
    pub(crate) fn set_aside(&mut self, all: usize, reads: usize) -> crate::Result<()> {
        let mut answers = queue_of(all.max(self.answers.len()))?;
        let mut of_reads = queue_of(reads.max(self.reads.len()))?;
        answers.append(&mut self.answers);
        of_reads.append(&mut self.reads);
        (self.answers, self.reads) = (answers, of_reads);
        Ok(())
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.answers.len()
    }

    /// Whether nothing is owed.
    pub(crate) fn is_empty(&self) -> bool {
        self.answers.is_empty()
    }

    /// How many occupy a responder resource.
    pub(crate) fn resources(&self) -> usize {
        self.answers.iter().filter(|response| response.fresh && response.is_answer()).count()
    }

    /// What leaves next.
    pub(crate) fn front(&self) -> Option<&Response> {
        self.answers.front()
    }

    /// What leaves last.
    pub(crate) fn back_mut(&mut self) -> Option<&mut Response> {
        self.answers.back_mut()
    }

    /// The READ that leaves next, if one does.
    pub(crate) fn front_read(&self) -> Option<&ReadAnswer> {
        let is_read = self.answers.front()?.is_read();
        self.reads.front().filter(|_| is_read)
    }

    /// The same, to change.
    pub(crate) fn front_read_mut(&mut self) -> Option<&mut ReadAnswer> {
        let is_read = self.answers.front()?.is_read();
        self.reads.front_mut().filter(|_| is_read)
    }

    /// Whether there are READs, and none is longer.
    pub(crate) fn has_only_reads_up_to(&self, len: u32) -> bool {
        !self.reads.is_empty() && self.reads.iter().all(|read| read.len <= len)
    }

    /// All READs, to change.
    pub(crate) fn reads_mut(&mut self) -> impl Iterator<Item = &mut ReadAnswer> {
        self.reads.iter_mut()
    }

    /// Makes room for one more READ, and says whether there is. Where none was set aside the system
    /// is asked.
    ///
    /// A peer has no more READs under way than there is room for, so the oldest of those that it
    /// repeated is one that it no longer waits for; or else it comes again.
    pub(crate) fn make_room_for_read(&mut self) -> bool {
        if self.has_room_for_repeated_read() {
            return true;
        }
        let oldest = self.answers.iter().position(|owed| owed.is_read() && !owed.fresh);
        let Some(at) = oldest else { return self.reads.try_reserve(1).is_ok() };
        let which = self.reads_before(at);
        self.answers.remove(at);
        self.reads.remove(which);
        true
    }

    /// Whether there is room for one more that the peer repeats; it comes again where there is
    /// none.
    pub(crate) fn has_room_for_repeated_read(&self) -> bool {
        self.reads.len() < self.reads.capacity()
    }

    /// Appends an answer other than that of a READ.
    pub(crate) fn push_back(&mut self, response: Response) {
        self.answers.push_back(response);
    }

    /// Appends that of a READ, for which the caller knows room.
    pub(crate) fn push_read(&mut self, msn: u32, read: ReadAnswer, fresh: bool) {
        self.answers.push_back(Response { psn: read.psn, msn, answer: Answer::Read, fresh });
        self.reads.push_back(read);
    }

    /// Puts an answer other than that of a READ before those to later requests: the peer takes
    /// answers in their order only. What has left of a later one is lost on it, so that one begins
    /// anew.
    pub(crate) fn insert(&mut self, response: Response) {
        let at = self.before_later(response.psn);
        self.answers.insert(at, response);
    }

    /// The same with that of a READ, for which the caller knows room.
    pub(crate) fn insert_read(&mut self, msn: u32, read: ReadAnswer, fresh: bool) {
        let at = self.before_later(read.psn);
        let which = self.reads_before(at);
        self.answers.insert(at, Response { psn: read.psn, msn, answer: Answer::Read, fresh });
        self.reads.insert(which, read);
    }

    /// How many READs leave before the answer at that place.
    fn reads_before(&self, at: usize) -> usize {
        self.answers.iter().take(at).filter(|owed| owed.is_read()).count()
    }

    /// Where an answer to a request with that PSN belongs. If it belongs before all others, what
    /// was on its way begins anew.
    fn before_later(&mut self, psn: Psn) -> usize {
        let later = self.answers.iter().position(|response| response.psn.after(psn) > 0);
        if later == Some(0)
            && let Some(read) = self.front_read_mut()
        {
            read.done = 0;
        }
        later.unwrap_or(self.answers.len())
    }

    /// Puts one that is not of a READ before all others.
    pub(crate) fn push_front(&mut self, response: Response) {
        self.answers.push_front(response);
    }

    /// Forgets what left.
    pub(crate) fn pop_front(&mut self) {
        if let Some(Response { answer: Answer::Read, .. }) = self.answers.pop_front() {
            self.reads.pop_front();
        }
    }

    /// Has something else leave in place of what would leave next.
    pub(crate) fn replace_front(&mut self, response: Response) {
        self.pop_front();
        self.push_front(response);
    }

    /// Forgets all, and keeps the memory that was set aside.
    pub(crate) fn clear(&mut self) {
        self.answers.clear();
        self.reads.clear();
    }
}
