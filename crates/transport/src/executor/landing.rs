//! A receive request that a message is filling.

use super::arriving::Arriving;
use super::refusal::Refusal;
use crate::keys::{Alarm, KeyError, KeyTable, MemRef};
use crate::queues::shared::{OwnCompletions, TagReceive, XrcReceive};
use crate::queues::tags::{Fetch, Label};
use crate::values::{Access, PdId, RecvWr, Sge, total_length};
use std::sync::Arc;

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
    pub(super) fn new(request: RecvWr, pd: PdId) -> Landing {
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

    /// Takes what the tag list says for the message that begins with `first`: the request, how many
    /// bytes of the message do not go there, and what to fetch.
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

    /// From now on it completes at `owner`, if there is one.
    pub(super) fn belong_to(&mut self, owner: Option<Arc<dyn OwnCompletions>>) {
        self.owner = owner;
    }

    /// The same request, with nothing in it, for its message that comes again or for another.
    pub(super) fn emptied(self) -> Landing {
        let Landing { request, pd, owner, label, alarm, .. } = self;
        Landing { owner, label, alarm, ..Landing::new(request, pd) }
    }

    /// The queue at which it completes, if not at the queue pair's own.
    pub(crate) fn owner(&self) -> Option<&dyn OwnCompletions> {
        self.owner.as_deref()
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
    pub(crate) fn into_request(self) -> (RecvWr, PdId) {
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

    /// Whether `len` more bytes fit. An entry of a key with block signatures takes another number
    /// of bytes than it names, which is looked up only when they seem not to fit.
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

    /// Has `alarm` rung when a block signature is bad.
    pub(crate) fn watch(&mut self, alarm: Option<&Alarm>) {
        self.alarm = alarm.cloned();
    }

    fn resolve(&self, keys: &KeyTable, sge: &Sge) -> Result<MemRef, KeyError> {
        let length = sge.length.into();
        let memory = keys.resolve(self.pd, sge.lkey, sge.addr, length, Access::LOCAL_WRITE)?;
        Ok(memory.watched(self.alarm.as_ref()))
    }

    /// As [`Target::ready`](super::Target::ready), of where the next bytes go: as far as the
    /// present entry, or the next one, reaches. Bytes that are ready are to be placed at once: the
    /// entry's key is not looked up again.
    pub fn ready(&mut self, keys: &KeyTable, len: usize) -> Result<(), Refusal> {
        let Some(sge) = self.request.scatter.get(self.entry) else { return Ok(()) };
        let known = self.resolved.take();
        let begun = known.is_some();
        let Some(memory) = known.or_else(|| self.resolve(keys, sge).ok()) else { return Ok(()) };
        let left = usize::try_from(memory.len() - self.within).unwrap_or(usize::MAX);
        let ready = memory.is_ready(self.within, len.min(left), true);
        self.resolved = Some(memory).filter(|_| begun || ready && sge.length > 0);
        if ready { Ok(()) } else { Err(Refusal::NotReady) }
    }

    /// Places the next bytes of the message. An entry's key is looked up once, when the first byte
    /// goes there, so an entry that no byte reaches may be bad. Where memory is not there yet, the
    /// message is as long as before.
    pub fn append(&mut self, keys: &KeyTable, bytes: Arriving<'_>) -> Result<(), Refusal> {
        let before = (self.entry, self.within, self.filled);
        let outcome = self.fill(keys, bytes);
        if let Err(Refusal::PageFault(_)) = outcome {
            (self.entry, self.within, self.filled) = before;
            self.resolved = None;
        }
        outcome
    }

    fn fill(&mut self, keys: &KeyTable, bytes: Arriving<'_>) -> Result<(), Refusal> {
        let (mut done, end) = (0, bytes.bytes());
        if !self.has_room(keys, end as u64) {
            return Err(Refusal::ReceiveTooShort);
        }
        while done < end {
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
            let room = usize::try_from(len - self.within).unwrap_or(usize::MAX);
            let here = room.min(end - done);
            let placed = bytes.place(done..done + here, memory, self.within);
            placed.map_err(Refusal::of_receive)?;
            done += here;
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
