//! The executor: every check and every effect of an incoming operation, in one place (D3).
//!
//! It knows no packets. The packet responder calls it, the same-host path calls it, a PCI front end may. What it refuses
//! it refuses with a typed [`Refusal`]; the caller turns that into a NAK, a completion or silence.

use crate::keys::Alarm;
use crate::keys::{KeyError, KeyTable, MemRef};
use crate::queues::slots::{Fifo, SlotLost};
use crate::queues::tags::{Fetch, Label};
use crate::sabotage::{self, Sabotage};
use crate::values::PdId;
use crate::values::{Access, Completion, Flush, RecvWr, Remote, Sge};
use crate::{OwnCompletions, SharedReceive, Sink, TagReceive, XrcReceive};
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use umem::Fold;
use umem::{AccessError, AtomicOp};

/// Longest message (IBA 9.4.1): 2^31 bytes.
pub const MAX_MESSAGE: u32 = 1 << 31;

/// Why an incoming operation is not done.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Refusal {
    /// The request breaks a rule of the protocol, or the QP does not offer the operation (NAK invalid request).
    #[error("invalid request: {0}")]
    InvalidRequest(&'static str),
    /// The key does not give the access (NAK remote access error).
    #[error("remote access: {0}")]
    RemoteAccess(KeyError),
    /// The memory behind a valid key failed (NAK remote operational error).
    #[error("memory failed: {0}")]
    RemoteOperational(AccessError),
    /// The memory behind a valid key is not there yet (the peer comes again, or its message is dropped).
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
    /// The receive queue's own memory is gone: no request can be taken or told of (local work queue catastrophic error).
    #[error("{0}")]
    QueueLost(SlotLost),
}

fn key(error: KeyError) -> Refusal {
    match error {
        KeyError::NoMemory => Refusal::RemoteOperational(AccessError::Fault),
        refused => Refusal::RemoteAccess(refused),
    }
}

fn memory(error: AccessError) -> Refusal {
    match error {
        AccessError::Revoked => Refusal::RemoteAccess(KeyError::Unknown),
        AccessError::OutOfRange => Refusal::RemoteAccess(KeyError::Range),
        AccessError::Unmapped => Refusal::RemoteAccess(KeyError::Unmapped),
        AccessError::NotPresent { .. } | AccessError::Moving => Refusal::PageFault(error),
        AccessError::Fault | AccessError::Unreachable => Refusal::RemoteOperational(error),
    }
}

/// The rights under which incoming operations of one QP run.
#[derive(Clone)]
pub struct Executor<'a> {
    /// Keys of the device.
    pub keys: &'a KeyTable,
    /// Protection domain of the QP.
    pub pd: PdId,
    /// Its number: windows of type 2 are open to one QP.
    pub qpn: u32,
    /// What the QP lets its peer do.
    pub access: Access,
    /// Rings when a block signature is bad.
    pub(super) alarm: Option<Alarm>,
}

impl Executor<'_> {
    fn enabled(&self, right: Access, why: &'static str) -> Result<(), Refusal> {
        if self.access.contains(right) || sabotage::on(Sabotage::SkipAccessFlags) {
            Ok(())
        } else {
            Err(Refusal::InvalidRequest(why))
        }
    }

    fn target(&self, remote: Remote, len: u32, right: Access) -> Result<Target, Refusal> {
        if len > MAX_MESSAGE {
            return Err(Refusal::InvalidRequest("longer than 2^31 bytes"));
        }
        if len == 0 {
            return Ok(Target(None));
        }
        self.keys
            .resolve_remote((self.pd, self.qpn), remote.rkey, remote.addr, u64::from(len), right)
            .map(|memory| Target(Some(memory.watched(self.alarm.as_ref()))))
            .map_err(key)
    }

    /// Memory that an RDMA WRITE of `len` bytes may fill. A length of 0 names no memory (IBA 9.7.4.1.6).
    pub fn write(&self, remote: Remote, len: u32) -> Result<Target, Refusal> {
        self.enabled(Access::REMOTE_WRITE, "RDMA WRITE is not enabled on the QP")?;
        self.target(remote, len, Access::REMOTE_WRITE)
    }

    /// Memory that an RDMA READ of `len` bytes may fetch.
    pub fn read(&self, remote: Remote, len: u32) -> Result<Target, Refusal> {
        self.enabled(Access::REMOTE_READ, "RDMA READ is not enabled on the QP")?;
        self.target(remote, len, Access::REMOTE_READ)
    }

    /// Does one atomic and returns the word's old value.
    pub fn atomic(&self, remote: Remote, op: AtomicOp) -> Result<u64, Refusal> {
        self.enabled(Access::REMOTE_ATOMIC, "atomics are not enabled on the QP")?;
        if !remote.addr.is_multiple_of(8) {
            return Err(Refusal::InvalidRequest("atomic on a misaligned address"));
        }
        let target = self.target(remote, 8, Access::REMOTE_ATOMIC)?;
        target.ready(0, 8, true)?;
        match target.0 {
            Some(word) => word.atomic(op).map_err(memory),
            None => Err(Refusal::InvalidRequest("atomic on nothing")),
        }
    }

    /// Writes 8 aligned bytes at once (IBA A19.4.2).
    pub fn atomic_write(&self, remote: Remote, value: u64) -> Result<(), Refusal> {
        self.enabled(Access::REMOTE_WRITE, "RDMA WRITE is not enabled on the QP")?;
        if !remote.addr.is_multiple_of(8) {
            return Err(Refusal::InvalidRequest("ATOMIC WRITE to a misaligned address"));
        }
        let target = self.target(remote, 8, Access::REMOTE_WRITE)?;
        target.ready(0, 8, true)?;
        let Target(Some(word)) = target else {
            return Err(Refusal::InvalidRequest("ATOMIC WRITE to nothing"));
        };
        let mut compare = value;
        loop {
            let swap = AtomicOp::CompareSwap { compare, swap: value };
            match word.atomic(swap).map_err(memory)? {
                found if found == compare => return Ok(()),
                found => compare = found,
            }
        }
    }

    /// Brings earlier writes to where `flush` says (IBA A19.4.1). They were placed before this is called, in memory that
    /// all processors see, so what is left is that none of it is still in this one's store buffer.
    pub fn flush(&self, flush: &Flush) -> Result<(), Refusal> {
        let right = match flush.placement {
            1 => Access::FLUSH_GLOBAL,
            2 => Access::FLUSH_PERSISTENT,
            3 => Access::FLUSH_GLOBAL | Access::FLUSH_PERSISTENT,
            _ => return Err(Refusal::InvalidRequest("FLUSH to an unknown placement")),
        };
        let right = if sabotage::on(Sabotage::SkipFlushRight) { Access::empty() } else { right };
        self.enabled(right, "FLUSH is not enabled on the QP")?;
        if flush.len > MAX_MESSAGE {
            return Err(Refusal::InvalidRequest("longer than 2^31 bytes"));
        }
        let Remote { addr, rkey } = flush.remote;
        let who = (self.pd, self.qpn);
        let flushed = if flush.whole {
            self.keys.resolve_whole(who, rkey, right)
        } else {
            self.keys.resolve_remote(who, rkey, addr, flush.len.into(), right)
        };
        // The access of no byte finds out whether the memory is still there.
        flushed.map_err(key)?.read(0, &mut []).map_err(memory)?;
        fence(Ordering::SeqCst);
        Ok(())
    }

    /// Invalidates a key on the peer's behalf.
    pub fn invalidate(&self, key: u32) -> Result<(), Refusal> {
        self.keys.invalidate_by_peer((self.pd, self.qpn), key).map_err(Refusal::RemoteAccess)
    }
}

/// Memory that a peer's operation was granted.
#[derive(Clone)]
pub struct Target(Option<MemRef>);

impl Target {
    /// Places bytes of an RDMA WRITE, `at` counted from its start.
    pub fn place(&self, at: u64, bytes: &[u8]) -> Result<(), Refusal> {
        match &self.0 {
            Some(memory_ref) if !bytes.is_empty() => memory_ref.write(at, bytes).map_err(memory),
            _ => Ok(()),
        }
    }

    /// Refuses for now an access to on-demand memory whose pages are just being changed: the peer comes again, and nobody waits
    /// here for a system call of the program's.
    pub fn ready(&self, at: u64, len: usize, write: bool) -> Result<(), Refusal> {
        match &self.0 {
            Some(memory_ref) if !memory_ref.is_ready(at, len, write) => Err(Refusal::NotReady),
            _ => Ok(()),
        }
    }

    /// No memory: for an answer without data.
    pub(super) fn none() -> Target {
        Target(None)
    }

    /// Fetches bytes for an RDMA READ, `at` counted from its start. The error is that of the memory.
    pub fn fetch(&self, at: u64, bytes: &mut [u8], fold: &mut Fold) -> Result<(), AccessError> {
        match &self.0 {
            Some(memory_ref) if !bytes.is_empty() => memory_ref.read_folding(at, bytes, fold),
            _ => Ok(()),
        }
    }
}

/// A memory failure while fetching, as a refusal.
pub(super) fn fetch_failed(error: AccessError) -> Refusal {
    memory(error)
}

/// The receive requests that a QP may consume: its own queue or a shared one.
#[derive(Default)]
pub struct Inbox {
    own: Fifo<RecvWr>,
    shared: Option<Arc<dyn SharedReceive>>,
    /// `shared` is this QP's alone.
    kept: bool,
    /// The shared one, if it matches tags.
    tags: Option<Arc<dyn TagReceive>>,
    /// Taken for a message that then was dropped whole; the next message gets it.
    held: Option<Landing>,
}

impl Inbox {
    /// An inbox over an own queue, or over a shared one.
    pub fn new(own: Fifo<RecvWr>, shared: Option<SharedQueue>) -> Inbox {
        let own = Inbox { own, ..Inbox::default() };
        match shared {
            None => own,
            Some(SharedQueue::Plain(queue)) => Inbox { shared: Some(queue), ..own },
            Some(SharedQueue::Kept(queue)) => Inbox { shared: Some(queue), kept: true, ..own },
            Some(SharedQueue::Tags(queue)) => {
                Inbox { shared: Some(queue.clone()), tags: Some(queue), ..own }
            }
        }
    }

    /// The shared queue, if it matches tags.
    pub fn tags(&self) -> Option<&Arc<dyn TagReceive>> {
        self.tags.as_ref()
    }

    /// Whether receives come from a shared queue.
    pub fn is_shared(&self) -> bool {
        self.shared.is_some() && !self.kept
    }

    /// Whether receives come from a queue of this QP alone that the front end keeps.
    pub fn is_kept(&self) -> bool {
        self.kept
    }

    /// Whether receives are posted here.
    pub fn is_own(&self) -> bool {
        self.shared.is_none()
    }

    /// Requests waiting in the own queue.
    pub fn len(&self) -> usize {
        self.own.len()
    }

    /// Whether no request waits in the own queue.
    pub fn is_empty(&self) -> bool {
        self.own.is_empty()
    }

    /// Appends to the own queue.
    ///
    /// # Errors
    /// [`SlotLost`] when its memory is gone.
    pub fn post(&mut self, request: RecvWr) -> Result<(), SlotLost> {
        self.own.push_back(request)
    }

    /// Takes the next request.
    pub fn take(&mut self, pd: PdId) -> Result<Landing, Refusal> {
        if let Some(landing) = self.held.take() {
            return Ok(landing);
        }
        let shared_pd = self.shared.as_ref().and_then(|shared| shared.pd_id());
        let request = match &self.shared {
            Some(shared) => shared.take(),
            None => self.own.pop_front().transpose().map_err(Refusal::QueueLost)?,
        };
        let landing = Landing::new(request.ok_or(Refusal::NotReady)?, shared_pd.unwrap_or(pd));
        Ok(Landing { owner: self.tags.clone().map(|queue| queue as _), ..landing })
    }

    /// Takes a datagram of these `parts` whole, or not at all, into the next request.
    pub fn land(&mut self, keys: &KeyTable, pd: PdId, parts: &[&[u8]]) -> Landed {
        let mut landing = match self.take(pd) {
            Ok(landing) => landing,
            Err(Refusal::QueueLost(_)) => return Landed::QueueLost,
            Err(_) => return Landed::NotReady,
        };
        if !landing.has_room(keys, parts.iter().map(|part| part.len() as u64).sum()) {
            // The request waits for a datagram that fits.
            self.put_back(landing);
            return Landed::TooLong;
        }
        match parts.iter().try_for_each(|part| landing.append(keys, part)) {
            Ok(()) => Landed::Placed(landing),
            Err(Refusal::PageFault(error)) => Landed::PageFault(error, landing),
            Err(_) => Landed::Failed(landing),
        }
    }

    /// Gives back a request whose message was dropped whole.
    pub fn put_back(&mut self, landing: Landing) {
        let Landing { request, pd, owner, label, alarm, .. } = landing;
        self.held = Some(Landing { owner, label, alarm, ..Landing::new(request, pd) });
    }

    /// The request that [`Inbox::put_back`] gave back.
    pub fn held(&self) -> Option<&Landing> {
        self.held.as_ref()
    }

    /// Takes it out.
    pub fn take_held(&mut self) -> Option<Landing> {
        self.held.take()
    }

    /// Takes what the QP itself still holds, for the flush: never the shared queue's.
    ///
    /// # Errors
    /// [`SlotLost`], once for each request that cannot be told of.
    pub fn drain(&mut self, pd: PdId) -> Option<Result<Landing, SlotLost>> {
        if let Some(landing) = self.held.take() {
            return Some(Ok(landing));
        }
        if let Some(kept) = self.shared.as_ref().filter(|_| self.kept) {
            return Some(Ok(Landing::new(kept.take()?, pd)));
        }
        Some(self.own.pop_front()?.map(|request| Landing::new(request, pd)))
    }

    /// Lets go of the queue's memory, with all in it.
    pub(super) fn leave_memory(&mut self) {
        self.held = None;
        self.own = Fifo::default();
    }

    /// Forgets everything (RESET).
    pub fn clear(&mut self) {
        self.held = None;
        self.own.clear();
    }
}

/// A receive queue that several QPs share.
#[derive(Clone)]
pub enum SharedQueue {
    /// Its completions go to the QP's.
    Plain(Arc<dyn SharedReceive>),
    /// Of one QP alone; the front end keeps it.
    Kept(Arc<dyn SharedReceive>),
    /// It matches tags.
    Tags(Arc<dyn TagReceive>),
}

/// What became of a datagram.
pub enum Landed {
    /// It fills this request.
    Placed(Landing),
    /// The memory of this request cannot be written.
    Failed(Landing),
    /// The memory of this request is not there yet.
    PageFault(AccessError, Landing),
    /// No request waits: it is dropped.
    NotReady,
    /// It is longer than the request, which stays: it is dropped.
    TooLong,
    /// The memory of the queue itself is gone.
    QueueLost,
}

/// A consumed receive request that a message is filling from its start.
pub struct Landing {
    request: RecvWr,
    pd: PdId,
    capacity: u64,
    filled: u64,
    /// The entry being filled, and how far.
    entry: usize,
    within: u64,
    resolved: Option<MemRef>,
    /// Rings when a block signature is bad.
    alarm: Option<Alarm>,
    /// The queue it comes from, and completes at.
    owner: Option<Arc<dyn OwnCompletions>>,
    label: Label,
}

impl Landing {
    fn new(request: RecvWr, pd: PdId) -> Landing {
        let capacity = total_length(&request.scatter);
        Landing {
            request,
            pd,
            capacity,
            filled: 0,
            entry: 0,
            within: 0,
            resolved: None,
            alarm: None,
            owner: None,
            label: Label::PLAIN,
        }
    }

    /// Takes what the tag list says for the message that begins with `first`: the request, how many bytes of the message
    /// do not go there, and what to fetch.
    pub fn of_tags(
        queue: &Arc<dyn TagReceive>,
        pd: PdId,
        (first, whole, fetches): (&[u8], bool, bool),
    ) -> Result<(Landing, usize, Option<Fetch>), Refusal> {
        let found = queue.accept(first, whole, fetches).ok_or(Refusal::NotReady)?;
        let landing = Landing::new(found.request, queue.pd_id().unwrap_or(pd));
        let landing = Landing { owner: Some(queue.clone()), label: found.label, ..landing };
        Ok((landing, found.skip, found.fetch))
    }

    /// Takes the next request of an XRC queue.
    pub fn of_xrc(queue: Arc<dyn XrcReceive>, pd: PdId) -> Result<Landing, Refusal> {
        let request = queue.take().ok_or(Refusal::NotReady)?;
        let pd = queue.pd_id().unwrap_or(pd);
        Ok(Landing { owner: Some(queue), ..Landing::new(request, pd) })
    }

    /// Reports its completion to whom it belongs.
    pub(super) fn tell(&self, done: Completion, sink: &mut dyn Sink) {
        match &self.owner {
            Some(queue) => queue.received(done),
            None => sink.received(done),
        }
    }

    /// The program's identifier.
    pub fn wr_id(&self) -> u64 {
        self.request.wr_id
    }

    /// What its completion says.
    pub fn label(&self) -> Label {
        self.label
    }

    /// The request itself, with the domain of its keys.
    pub(super) fn into_request(self) -> (RecvWr, PdId) {
        (self.request, self.pd)
    }

    /// Bytes placed.
    pub fn filled(&self) -> u64 {
        self.filled
    }

    /// Bytes that still fit.
    pub fn room(&self) -> u64 {
        self.capacity - self.filled
    }

    /// Whether `len` more bytes fit. An entry of a key with block signatures takes another number of bytes than it names,
    /// which is looked up only when they seem not to fit.
    pub fn has_room(&mut self, keys: &KeyTable, len: u64) -> bool {
        if len <= self.room() {
            return true;
        }
        let rest =
            self.request.scatter.iter().skip(self.entry).map(|sge| {
                self.resolve(keys, sge).map_or(sge.length.into(), |memory| memory.len())
            });
        self.capacity = self.filled + rest.sum::<u64>().saturating_sub(self.within);
        len <= self.room()
    }

    /// The same, which rings `alarm` when a block signature is bad.
    pub(super) fn watched(self, alarm: Option<&Alarm>) -> Landing {
        Landing { alarm: alarm.cloned(), ..self }
    }

    fn resolve(&self, keys: &KeyTable, sge: &Sge) -> Result<MemRef, KeyError> {
        let length = sge.length.into();
        let memory = keys.resolve(self.pd, sge.lkey, sge.addr, length, Access::LOCAL_WRITE)?;
        Ok(memory.watched(self.alarm.as_ref()))
    }

    /// As [`Target::ready`], of where the next bytes go: as far as the present entry, or the next one, reaches.
    pub fn ready(&self, keys: &KeyTable, len: usize) -> Result<(), Refusal> {
        let Some(sge) = self.request.scatter.get(self.entry) else { return Ok(()) };
        let memory = self.resolved.clone().or_else(|| self.resolve(keys, sge).ok());
        match memory {
            Some(memory) => {
                let left = usize::try_from(memory.len() - self.within).unwrap_or(usize::MAX);
                let ready = memory.is_ready(self.within, len.min(left), true);
                if ready { Ok(()) } else { Err(Refusal::NotReady) }
            }
            None => Ok(()),
        }
    }

    /// Places the next bytes of the message. An entry's key is looked up once, when the first byte goes there, so an entry
    /// that no byte reaches may be bad. Where memory is not there yet, the message is as long as before.
    pub fn append(&mut self, keys: &KeyTable, bytes: &[u8]) -> Result<(), Refusal> {
        let before = (self.entry, self.within, self.filled);
        let outcome = self.fill(keys, bytes);
        if let Err(Refusal::PageFault(_)) = outcome {
            (self.entry, self.within, self.filled) = before;
            self.resolved = None;
        }
        outcome
    }

    fn fill(&mut self, keys: &KeyTable, mut bytes: &[u8]) -> Result<(), Refusal> {
        if !self.has_room(keys, bytes.len() as u64) {
            return Err(Refusal::ReceiveTooShort);
        }
        while !bytes.is_empty() {
            let Some(sge) = self.request.scatter.get(self.entry) else {
                return Err(Refusal::ReceiveTooShort);
            };
            if sge.length == 0 {
                self.entry += 1;
                continue;
            }
            let memory = match &self.resolved {
                Some(memory) => memory,
                None => {
                    let memory = self.resolve(keys, sge).map_err(|_| Refusal::ReceiveProtection)?;
                    self.resolved.insert(memory)
                }
            };
            let len = memory.len();
            let here = bytes.len().min(usize::try_from(len - self.within).unwrap_or(usize::MAX));
            memory.write(self.within, &bytes[..here]).map_err(into_receive)?;
            bytes = &bytes[here..];
            self.within += here as u64;
            self.filled += here as u64;
            if self.within == len {
                self.entry += 1;
                self.within = 0;
                self.resolved = None;
            }
        }
        Ok(())
    }
}

/// Why a receive request's memory cannot be written.
fn into_receive(error: AccessError) -> Refusal {
    match error {
        AccessError::NotPresent { .. } | AccessError::Moving => Refusal::PageFault(error),
        _ => Refusal::ReceiveProtection,
    }
}

/// Sum of the lengths of a list, in bytes.
pub(super) fn total_length(list: &[Sge]) -> u64 {
    list.iter().map(|sge| u64::from(sge.length)).sum()
}
