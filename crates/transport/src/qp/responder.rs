//! The state of a queue pair's receive side, and the message that it is receiving.

use super::cx::ReadInPlace;
use super::replies::Replies;
use super::response::{Owed, ReadAnswer};
use crate::error::Result as HcaResult;
use crate::executor::{Arriving, Executor, Inbox, Landing, Refusal, Target};
use crate::queues::shared::XrcReceive;
use crate::queues::tags::Fetch;
use crate::sabotage::{self, Sabotage};
use crate::shelf::queue_of;
use crate::values::Remote;
use std::collections::VecDeque;
use std::sync::Arc;
use umem::{AccessError, Source};
use wire::{Position, Psn, Reth};

/// A message of several packets that has begun.
pub(crate) enum Incoming {
    Send(Landing),
    Write(Write),
}

/// A SEND that begins: its receive request, and what the tag list said of it.
pub(crate) type Begun = (Landing, Matched);

/// What a tag list says of a message: the bytes in front that do not go to the receive request, and
/// what to fetch instead.
pub(crate) type Matched = (usize, Option<Fetch>);

/// An RDMA WRITE in progress.
pub(crate) struct Write {
    pub(crate) target: Target,
    /// The memory as the peer named it.
    pub(crate) remote: Remote,
    pub(crate) len: u32,
    pub(crate) done: u32,
    /// [`KeyTable::changes`](crate::keys::KeyTable) when the memory was granted; `None` when it has
    /// to be asked for again in any case.
    pub(crate) seen: Option<u64>,
}

/// State of the receive side.
#[derive(Default)]
pub(crate) struct Responder {
    /// The PSN that comes next.
    pub(crate) expected: Psn,
    /// Bytes of all packets but the last of the message that the latest request was of.
    pub(crate) mtu: u32,
    /// Messages completed, 24 bits.
    pub(crate) msn: u32,
    /// A NAK or RNR NAK went out and the expected packet has not come since: no second one.
    pub(crate) nak_sent: bool,
    pub(crate) message: Option<Incoming>,
    pub(crate) responses: Owed,
    /// The peer has to ask again for a READ and for whatever followed it. What it has not asked for
    /// yet begins here, and nothing new is served before it has.
    pub(crate) put_off: Option<Psn>,
    /// Results of the latest atomics, for their repetition.
    pub(crate) saved: VecDeque<(Psn, u64)>,
    /// PSN of the latest READ or atomic.
    pub(crate) last_answered: Option<Psn>,
    /// The XRC queue that the packet at hand names: its domain is also that of the memory keys.
    pub(crate) queue: Option<Arc<dyn XrcReceive>>,
    /// What the tag list said of the receive request that the inbox holds, whose message comes
    /// again.
    pub(crate) matched: Option<Matched>,
    /// The communication-established event was raised.
    pub(crate) established: bool,
    /// Whether an acknowledge waits for what the program answers.
    pub(crate) replies: Replies,
}

impl Responder {
    /// What the queue pair lets its peer do has changed: messages in progress ask again.
    pub(crate) fn forget_grants(&mut self) {
        if let Some(Incoming::Write(write)) = &mut self.message {
            write.seen = None;
        }
        self.responses.reads_mut().for_each(|read| read.seen = ReadAnswer::UNSEEN);
    }

    /// Begins anew, in the same memory.
    pub(crate) fn restart(&mut self, expected: Psn) {
        let mut responses = std::mem::take(&mut self.responses);
        let mut saved = std::mem::take(&mut self.saved);
        responses.clear();
        saved.clear();
        *self = Responder { expected, responses, saved, ..Responder::default() };
    }

    /// Sets memory aside for all that it can owe to a peer that may have `resources` READs and
    /// atomics under way; for READs only where it `is_read`.
    ///
    /// # Errors
    /// [`Error::NoMemory`](crate::Error::NoMemory); nothing has changed then.
    pub(crate) fn set_aside(&mut self, resources: usize, is_read: bool) -> HcaResult<()> {
        // A request of each resource, and the NAK that ends the connection, come on top of what is
        // bounded.
        let mut saved = queue_of(resources)?;
        let reads = if is_read { resources } else { 0 };
        self.responses.set_aside(most_owed(resources) + resources + 1, reads)?;
        saved.append(&mut self.saved);
        self.saved = saved;
        Ok(())
    }
}

/// What may wait to be said to a peer that repeats itself faster than the answers leave; it comes
/// again for the rest.
pub(crate) fn most_owed(resources: usize) -> usize {
    2 * resources + 8
}

impl Write {
    /// Begins with the packet that carries the RETH.
    pub(crate) fn begin(
        executor: Executor<'_>,
        reth: Option<Reth>,
        position: Position,
        mtu: u32,
    ) -> Result<Write, Refusal> {
        let Some(Reth { va, rkey, len }) = reth else {
            return Err(Refusal::InvalidRequest("RDMA WRITE without RETH"));
        };
        if position == Position::First && len <= mtu && !sabotage::on(Sabotage::SkipLengthCheck) {
            return Err(Refusal::InvalidRequest("RDMA WRITE shorter than its first packet says"));
        }
        let remote = Remote { addr: va, rkey };
        let seen = Some(executor.keys.changes());
        let target = executor.write(remote, len)?;
        Ok(Write { target, remote, len, done: 0, seen })
    }

    /// Asks for the memory again where rights may have changed since it was granted: the rest of a
    /// message comes by what holds now.
    pub(crate) fn renew(&mut self, executor: &Executor<'_>) -> Result<(), Refusal> {
        let now = Some(executor.keys.changes());
        if self.seen != now {
            self.target = executor.write(self.remote, self.len)?;
            self.seen = now;
        }
        Ok(())
    }

    /// Checks the lengths of the next packet.
    pub(crate) fn check(&self, payload: usize, ends: bool) -> Result<(), Refusal> {
        let end = u64::from(self.done) + payload as u64;
        let fits = if ends { end == self.len.into() } else { end < self.len.into() };
        if fits || sabotage::on(Sabotage::SkipLengthCheck) {
            Ok(())
        } else {
            Err(Refusal::InvalidRequest("RDMA WRITE differs from its announced length"))
        }
    }

    /// Places the next packet.
    pub(crate) fn place(&mut self, payload: Arriving<'_>) -> Result<(), Refusal> {
        if !sabotage::on(Sabotage::LoseWrite) {
            match self.target.place(self.done.into(), payload) {
                Err(_) if sabotage::on(Sabotage::AckBeforePlace) => {}
                other => other?,
            }
        }
        self.done = self.done.saturating_add(payload.bytes() as u32);
        Ok(())
    }
}

impl ReadInPlace for &Target {
    fn read(
        &mut self,
        at: u64,
        len: usize,
        each: &mut dyn FnMut(Source<'_>) -> std::result::Result<(), AccessError>,
    ) -> std::result::Result<(), AccessError> {
        self.fetch_in_place(at, len, each)
    }
}

/// Takes what an aborted message had consumed, for the next message or the flush.
pub(crate) fn abandon(message: &mut Option<Incoming>, inbox: &mut Inbox) {
    if let Some(Incoming::Send(landing)) = message.take() {
        inbox.put_back(landing);
    }
}
