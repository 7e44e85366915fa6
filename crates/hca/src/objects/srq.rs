//! Shared receive queues (IBA 10.2.9): receive requests that several QPs take from in order of
//! arrival.

use crate::adapter::Adapter;
use crate::adapter::event::{AsyncEvent, EventSource};
use crate::memory::pd::{Belonging, Pd};
use crate::objects::cq::Cq;
use crate::objects::xrc::{Xrc, Xrcd};
use engine_thread::lock;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use transport::Shelf;
use transport::queues::slots::{Fifo, QueueMemory, SlotLost};
use transport::queues::tags::{Accepted, Applied, TagList, TagOp, TagWr, TmCap};
use transport::values::PdId;
use transport::values::XrcdId;
use transport::values::{Completion, EventType, RecvWr, SgList, Sge};
use transport::{Error, Result};
use transport::{OwnCompletions, SharedQueue, SharedReceive, TagReceive, XrcReceive};

/// Size and limit of a shared receive queue (`struct ibv_srq_attr`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SrqAttr {
    /// Outstanding requests.
    pub max_wr: u32,
    /// Scatter entries of a request.
    pub max_sge: u32,
    /// An event is raised once fewer requests than this wait; 0 = unarmed.
    pub limit: u32,
}

struct Queue {
    requests: Fifo<RecvWr>,
    attr: SrqAttr,
    tags: Option<TagList>,
    /// The memory that the program gave it is gone or was overwritten.
    lost: bool,
    /// Stores of the requests' lists.
    lists: Shelf<[Sge; 2]>,
}

impl Queue {
    /// Takes the oldest request, and says whether the armed limit is undercut now.
    fn take(
        requests: &mut Fifo<RecvWr>,
        attr: &mut SrqAttr,
    ) -> Option<std::result::Result<(RecvWr, bool), SlotLost>> {
        let request = match requests.pop_front()? {
            Ok(request) => request,
            Err(lost) => return Some(Err(lost)),
        };
        let reached = requests.len() < attr.limit as usize;
        if reached {
            attr.limit = 0;
        }
        Some(Ok((request, reached)))
    }
}

const LOST: Error = Error::Lost(
    "the memory that the program gave the shared receive queue is gone or was overwritten",
);

/// Requests of a queue of `max_wr` whose lists need a store: those that wait, unless in `memory` of
/// the program's, and two on their way in and out.
pub(crate) fn lists_of(max_wr: u32, memory: &Option<QueueMemory>) -> usize {
    if memory.is_some() { 2 } else { max_wr as usize + 2 }
}

/// What an XRC queue has besides.
#[derive(Clone, Debug)]
pub struct XrcSrq {
    /// The XRC domain that it is in.
    pub xrcd: Arc<Xrcd>,
    /// The queue in which its requests complete.
    pub cq: Arc<Cq>,
}

/// What a queue is for (`enum ibv_srq_type`).
#[derive(Clone, Debug)]
pub enum SrqKind {
    /// Any QPs of the protection domain.
    Basic,
    /// The receiving halves of an XRC domain.
    Xrc(XrcSrq),
    /// RC QPs whose messages carry tags. Everything completes at this queue.
    TagMatching(Arc<Cq>, TmCap),
}

impl SrqKind {
    /// Where its requests complete, if not at the QP's.
    pub(crate) fn cq(&self) -> Option<&Arc<Cq>> {
        match self {
            SrqKind::Basic => None,
            SrqKind::Xrc(xrc) => Some(&xrc.cq),
            SrqKind::TagMatching(cq, _) => Some(cq),
        }
    }
}

/// A shared receive queue. `queue` is taken under a QP's lock, never the other way.
pub struct Srq {
    adapter: Weak<Adapter>,
    pd: Belonging,
    queue: Mutex<Queue>,
    users: AtomicU32,
    kind: SrqKind,
    /// Where the front end keeps its requests, if not here.
    source: Option<Arc<dyn SharedReceive>>,
    /// Where an XRC queue is filed, and the number by which peers name it.
    filed: Option<(Arc<Xrc>, u32)>,
    ended: AtomicBool,
    /// Its own completions were lost, and the program knows (IBA 11.6.3.2, SRQ catastrophic error).
    failed: AtomicBool,
    this: Weak<Srq>,
}

impl std::fmt::Debug for Srq {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Srq").field("attr", &self.queue().attr).finish_non_exhaustive()
    }
}

impl Srq {
    /// Whether it is an object of `adapter`.
    pub(crate) fn is_of(&self, adapter: &Adapter) -> bool {
        std::ptr::eq(self.adapter.as_ptr(), adapter)
    }

    pub(crate) fn new(
        adapter: &Arc<Adapter>,
        xrc: &Arc<Xrc>,
        pd: &Arc<Pd>,
        attr: SrqAttr,
        kind: SrqKind,
        memory: Option<QueueMemory>,
        source: Option<Arc<dyn SharedReceive>>,
    ) -> Result<Arc<Srq>> {
        let lists = Shelf::new(lists_of(attr.max_wr, &memory), attr.max_sge as usize)?;
        let requests = Fifo::of_receives(attr.max_wr, attr.max_sge, memory)?;
        let tags = match &kind {
            SrqKind::TagMatching(_, cap) => Some(TagList::new(*cap)?),
            _ => None,
        };
        let number = match kind {
            SrqKind::Xrc(_) => Some(xrc.take_number()?),
            _ => None,
        };
        if let Some(cq) = kind.cq() {
            cq.add_user();
        }
        if let SrqKind::Xrc(of) = &kind {
            of.xrcd.add_user();
        }
        let srq = Arc::new_cyclic(|this: &Weak<Srq>| Srq {
            filed: number.map(|number| (xrc.clone(), number)),
            kind,
            source,
            ended: AtomicBool::new(false),
            failed: AtomicBool::new(false),
            adapter: Arc::downgrade(adapter),
            pd: Belonging::new(pd),
            queue: Mutex::new(Queue { requests, attr, tags, lost: false, lists }),
            users: AtomicU32::new(0),
            this: this.clone(),
        });
        if let Some(number) = number {
            xrc.add_queue(number, srq.this.clone());
        }
        Ok(srq)
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        lock(&self.queue)
    }

    /// Protection domain.
    pub fn pd(&self) -> &Arc<Pd> {
        self.pd.pd()
    }

    /// The number by which peers name an XRC queue.
    pub fn number(&self) -> Option<u32> {
        self.filed.as_ref().map(|(_, number)| *number)
    }

    /// Where everything of a queue that matches tags completes.
    pub(crate) fn tags_cq(&self) -> Option<&Arc<Cq>> {
        self.kind.cq().filter(|_| self.matches_tags())
    }

    /// Whether it matches tags.
    pub fn matches_tags(&self) -> bool {
        matches!(self.kind, SrqKind::TagMatching(..))
    }

    /// The queue as the transport of a QP over it takes it.
    pub(crate) fn shared(self: &Arc<Srq>) -> SharedQueue {
        if self.matches_tags() {
            SharedQueue::Tags(self.clone())
        } else {
            SharedQueue::Plain(self.clone())
        }
    }

    /// Changes the matching list, at once. Gives the handle of a buffer added.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a queue that does not match tags or too many entries,
    /// [`Error::NoMemory`] when the list is full.
    pub fn post_op(&self, wr: TagWr) -> Result<Option<u32>> {
        let mut queue = self.queue();
        let Some(tags) = &mut queue.tags else {
            return Err(Error::Invalid("the shared receive queue does not match tags"));
        };
        if let TagOp::Add { request, .. } = &wr.op
            && self
                .adapter
                .upgrade()
                .is_some_and(|d| request.scatter.len() > d.attr().max_srq_sge as usize)
        {
            return Err(Error::Invalid("more scatter entries than a tagged buffer may have"));
        }
        let (wr_id, signaled) = (wr.wr_id, wr.signaled);
        let Applied { handle, opcode, status, flags, delivered } = tags.apply(wr)?;
        if signaled {
            // Under the lock: the buffer's own completion comes later.
            let imm_or_key = delivered.into();
            let done = Completion::new(wr_id, status, opcode, 0);
            self.received(Completion { flags, imm_or_key, ..done });
        }
        Ok(handle)
    }

    /// How many unexpected messages a queue that matches tags delivered, and how many of these were
    /// reported handled; both modulo 2^16.
    pub fn tag_counts(&self) -> Option<(u16, u16)> {
        self.queue().tags.as_ref().map(TagList::counts)
    }

    /// An empty list for the `len` entries of a request.
    ///
    /// # Errors
    /// [`Error::NoMemory`] when more requests are under way than the queue has room for, and the
    /// system has no memory.
    pub fn scatter_list(&self, len: usize) -> Result<SgList> {
        let lists = self.queue().lists.clone();
        lists.lend(len)
    }

    /// Appends a receive request.
    ///
    /// # Errors
    /// [`Error::NoMemory`] when full, [`Error::Invalid`] with too many entries, [`Error::Lost`]
    /// when its memory is.
    pub fn post(&self, request: RecvWr) -> Result<()> {
        let mut queue = self.queue();
        if request.scatter.len() > queue.attr.max_sge as usize {
            return Err(Error::Invalid("more scatter entries than the queue allows"));
        }
        if queue.requests.len() >= queue.attr.max_wr as usize {
            return Err(Error::NoMemory("the shared receive queue is full"));
        }
        if queue.lost || queue.requests.push_back(request).is_err() {
            return Err(LOST);
        }
        Ok(())
    }

    /// Size and limit.
    pub fn query(&self) -> SrqAttr {
        self.queue().attr
    }

    /// Changes size and limit, each where given, both or none. With a new size it moves to
    /// `memory`, where the front end provides it. An armed limit that is already undercut raises
    /// its event at the next request taken.
    ///
    /// # Errors
    /// [`Error::Invalid`] when the size is 0, beyond the device's limit or below what waits, or the
    /// limit above the size; [`Error::NoMemory`] without memory for the new size; [`Error::Lost`]
    /// when the old or the new memory is not there.
    pub fn modify(
        &self,
        max_wr: Option<u32>,
        limit: Option<u32>,
        memory: Option<QueueMemory>,
    ) -> Result<()> {
        let most = self.adapter.upgrade().map_or(u32::MAX, |d| d.attr().max_srq_wr);
        let mut queue = self.queue();
        let size = max_wr.unwrap_or(queue.attr.max_wr);
        let limit = limit.unwrap_or(queue.attr.limit);
        if size == 0 || size > most || queue.requests.len() > size as usize {
            return Err(Error::Invalid("size of the shared receive queue out of range"));
        }
        if limit > size {
            return Err(Error::Invalid("limit above the size of the shared receive queue"));
        }
        if max_wr.is_some() {
            let lists = Shelf::new(lists_of(size, &memory), queue.attr.max_sge as usize)?;
            let moved = Fifo::of_receives(size, queue.attr.max_sge, memory)?;
            queue.lists = lists;
            if queue.requests.move_to(moved).is_err() {
                self.fail(queue);
                return Err(LOST);
            }
        }
        queue.attr.max_wr = size;
        queue.attr.limit = limit;
        Ok(())
    }

    /// Ends the queue's life.
    ///
    /// # Errors
    /// [`Error::Busy`] while a QP uses it.
    pub fn destroy(&self) -> Result<()> {
        if self.users.load(Relaxed) > 0 {
            return Err(Error::Busy("queue pairs still use the shared receive queue"));
        }
        self.end();
        Ok(())
    }

    fn end(&self) {
        if self.ended.swap(true, Relaxed) {
            return;
        }
        if let Some((xrc, number)) = &self.filed {
            xrc.remove_queue(*number);
        }
        if let SrqKind::Xrc(xrc) = &self.kind {
            xrc.xrcd.drop_user();
        }
        if let Some(cq) = self.kind.cq() {
            cq.drop_user();
        }
        // Whoever provided its memory takes it back now.
        self.queue().requests = Fifo::default();
        self.pd.end();
    }

    fn raise_limit(&self, reached: bool) {
        if reached {
            self.raise(EventType::SrqLimitReached);
        }
    }

    /// Nothing can be taken from it any more; an event tells the program so (IBA 11.6.3.3).
    fn fail(&self, mut queue: MutexGuard<'_, Queue>) {
        queue.lost = true;
        queue.requests = Fifo::default();
        drop(queue);
        self.raise(EventType::SrqErr);
    }

    fn raise(&self, event: EventType) {
        if let Some(adapter) = self.adapter.upgrade() {
            adapter.raise(AsyncEvent { event, source: EventSource::Srq(self.this.clone()) });
        }
    }

    pub(crate) fn add_user(&self) {
        self.users.fetch_add(1, Relaxed);
    }

    pub(crate) fn drop_user(&self) {
        self.users.fetch_sub(1, Relaxed);
    }
}

impl Drop for Srq {
    fn drop(&mut self) {
        self.end();
    }
}

impl OwnCompletions for Srq {
    fn received(&self, completion: Completion) {
        if let (Some(cq), Some(adapter)) = (self.kind.cq(), self.adapter.upgrade()) {
            cq.push(completion, || adapter.now_ns());
            if cq.failed() && !self.failed.swap(true, Relaxed) {
                self.raise(EventType::SrqErr);
            }
        }
    }
}

impl XrcReceive for Srq {
    fn xrcd(&self) -> Option<XrcdId> {
        match &self.kind {
            SrqKind::Xrc(xrc) => Some(xrc.xrcd.id()),
            _ => None,
        }
    }
}

impl TagReceive for Srq {
    fn accept(&self, first: &[u8], whole: bool, fetches: bool) -> Option<Accepted> {
        let mut queue = self.queue();
        let Queue { requests, attr, tags: Some(tags), .. } = &mut *queue else { return None };
        let (mut reached, mut lost) = (false, false);
        let accepted = tags.accept(first, whole, fetches, || {
            if let Some(source) = &self.source {
                return source.take();
            }
            let Ok((request, undercut)) = Queue::take(requests, attr)? else {
                lost = true;
                return None;
            };
            reached = undercut;
            Some(request)
        });
        if lost {
            self.fail(queue);
        } else {
            drop(queue);
        }
        self.raise_limit(reached);
        accepted
    }
}

impl SharedReceive for Srq {
    fn pd_id(&self) -> Option<PdId> {
        Some(self.pd.id())
    }

    fn take(&self) -> Option<RecvWr> {
        if let Some(source) = &self.source {
            return source.take();
        }
        let mut queue = self.queue();
        let Queue { requests, attr, .. } = &mut *queue;
        let Ok((request, reached)) = Queue::take(requests, attr)? else {
            self.fail(queue);
            return None;
        };
        drop(queue);
        self.raise_limit(reached);
        Some(request)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many requests are taken until the limit is reported, with so many posted.
    fn taken(posted: u64, limit: u32) -> Option<usize> {
        let mut requests = Fifo::default();
        for wr_id in 0..posted {
            requests.push_back(RecvWr { wr_id, scatter: Default::default() }).unwrap();
        }
        let mut attr = SrqAttr { max_wr: 8, max_sge: 1, limit };
        let reports: Vec<bool> = std::iter::from_fn(|| Queue::take(&mut requests, &mut attr))
            .map(|taken| taken.unwrap().1)
            .collect();
        assert!(reports.iter().filter(|reached| **reached).count() <= 1, "armed for one event");
        assert_eq!(attr.limit == 0, limit == 0 || reports.contains(&true), "then it is unarmed");
        reports.iter().position(|reached| *reached).map(|at| at + 1)
    }

    #[test]
    fn the_limit_is_reported_once_when_fewer_wait() {
        assert_eq!(taken(5, 3), Some(3), "3 left is not below 3, 2 is");
        assert_eq!(taken(5, 1), Some(5));
        assert_eq!(taken(5, 5), Some(1));
        assert_eq!(taken(2, 5), Some(1), "undercut already: at the next one");
        assert_eq!(taken(5, 0), None, "0 is unarmed");
        assert_eq!(taken(0, 3), None, "what takes nothing reports nothing");
    }
}
