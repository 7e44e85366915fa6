//! The receive requests that a queue pair may consume: its own queue or a shared one.

use super::{Arriving, Landing, Refusal};
use crate::keys::KeyTable;
use crate::queues::shared::{SharedQueue, SharedReceive, TagReceive};
use crate::queues::slots::{Fifo, SlotLost};
use crate::values::{PdId, RecvWr, Sge};
use std::sync::Arc;
use umem::AccessError;

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

    /// The next request, if it lies here and has one entry that `len` bytes fit into, and at least
    /// one is to go there.
    pub(crate) fn simple(&self, len: usize) -> Option<(u64, Sge)> {
        if self.shared.is_some() || self.held.is_some() || len == 0 {
            return None;
        }
        let request = self.own.front()?;
        let [entry] = request.scatter[..] else { return None };
        (len <= entry.length as usize).then_some((request.wr_id, entry))
    }

    /// Whether a request waits in the own queue, and that is in the engine's own memory.
    pub(crate) fn is_in_memory(&self) -> bool {
        self.own.front().is_some()
    }

    /// Takes the request that [`Inbox::simple`] told of, and which is done.
    pub(crate) fn done(&mut self) {
        drop(self.own.pop_front());
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
        let mut landing = Landing::new(request.ok_or(Refusal::NotReady)?, shared_pd.unwrap_or(pd));
        landing.belong_to(self.tags.clone().map(|queue| queue as _));
        Ok(landing)
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
        match parts.iter().try_for_each(|part| landing.append(keys, Arriving::Here(part))) {
            Ok(()) => Landed::Placed(landing),
            Err(Refusal::PageFault(error)) => Landed::PageFault(error, landing),
            Err(_) => Landed::Failed(landing),
        }
    }

    /// Gives back a request whose message was dropped whole.
    pub fn put_back(&mut self, landing: Landing) {
        self.held = Some(landing.emptied());
    }

    /// The request that [`Inbox::put_back`] gave back.
    pub fn held(&self) -> Option<&Landing> {
        self.held.as_ref()
    }

    /// Takes out the request that [`Inbox::put_back`] gave back.
    pub fn take_held(&mut self) -> Option<Landing> {
        self.held.take()
    }

    /// Takes what the QP itself still holds, for the flush: never the shared queue's.
    ///
    /// # Errors
    /// [`SlotLost`], once for each request that cannot be reported.
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
    pub(crate) fn leave_memory(&mut self) {
        self.held = None;
        self.own = Fifo::default();
    }

    /// Forgets everything (RESET).
    pub fn clear(&mut self) {
        self.held = None;
        self.own.clear();
    }
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
