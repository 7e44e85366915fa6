//! Shared receive queues (IBA 10.2.9): receive requests that several QPs take from in order of arrival.

use crate::cq::Cq;
use crate::device::Device;
use crate::error::{Error, Result};
use crate::event::{AsyncEvent, EventSource};
use crate::key::PdId;
use crate::pd::{Belonging, Pd};
use crate::transport::{SharedReceive, XrcReceive};
use crate::types::{Completion, EventType, RecvWr};
use crate::xrc::{Xrcd, XrcdId};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

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
    requests: VecDeque<RecvWr>,
    attr: SrqAttr,
}

/// What an XRC queue has besides.
#[derive(Clone, Debug)]
pub struct XrcSrq {
    /// Its domain.
    pub xrcd: Arc<Xrcd>,
    /// Where its requests complete.
    pub cq: Arc<Cq>,
}

/// A shared receive queue. `queue` is taken under a QP's lock, never the other way.
pub struct Srq {
    device: Weak<Device>,
    pd: Belonging,
    queue: Mutex<Queue>,
    users: AtomicU32,
    /// The domain, where to complete, and the number by which peers name it.
    xrc: Option<(XrcSrq, u32)>,
    ended: AtomicBool,
    this: Weak<Srq>,
}

impl std::fmt::Debug for Srq {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Srq").field("attr", &self.queue().attr).finish_non_exhaustive()
    }
}

impl Srq {
    pub(crate) fn new(
        device: &Arc<Device>,
        pd: &Arc<Pd>,
        attr: SrqAttr,
        xrc: Option<XrcSrq>,
    ) -> Arc<Srq> {
        if let Some(xrc) = &xrc {
            xrc.xrcd.add_user();
            xrc.cq.add_user();
        }
        Arc::new_cyclic(|this| Srq {
            xrc: xrc.map(|xrc| (xrc, device.xrc().add_queue(this))),
            ended: AtomicBool::new(false),
            device: Arc::downgrade(device),
            pd: Belonging::new(pd),
            queue: Mutex::new(Queue { requests: VecDeque::new(), attr }),
            users: AtomicU32::new(0),
            this: this.clone(),
        })
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Protection domain.
    pub fn pd(&self) -> &Arc<Pd> {
        self.pd.pd()
    }

    /// The number by which peers name an XRC queue.
    pub fn number(&self) -> Option<u32> {
        self.xrc.as_ref().map(|(_, number)| *number)
    }

    /// Appends a receive request.
    ///
    /// # Errors
    /// [`Error::NoMemory`] when full, [`Error::Invalid`] with too many entries.
    pub fn post(&self, request: RecvWr) -> Result<()> {
        let mut queue = self.queue();
        if request.scatter.len() > queue.attr.max_sge as usize {
            return Err(Error::Invalid("more scatter entries than the queue allows"));
        }
        if queue.requests.len() >= queue.attr.max_wr as usize {
            return Err(Error::NoMemory("the shared receive queue is full"));
        }
        queue.requests.push_back(request);
        Ok(())
    }

    /// Size and limit.
    pub fn query(&self) -> SrqAttr {
        self.queue().attr
    }

    /// Changes size and limit, each where given, both or none. An armed limit that is already undercut raises its event
    /// at the next request taken.
    ///
    /// # Errors
    /// [`Error::Invalid`] when the size is 0, beyond the device's limit or below what waits, or the limit above the size.
    pub fn modify(&self, max_wr: Option<u32>, limit: Option<u32>) -> Result<()> {
        let most = self.device.upgrade().map_or(u32::MAX, |d| d.attr().max_srq_wr);
        let mut queue = self.queue();
        let size = max_wr.unwrap_or(queue.attr.max_wr);
        let limit = limit.unwrap_or(queue.attr.limit);
        if size == 0 || size > most || queue.requests.len() > size as usize {
            return Err(Error::Invalid("size of the shared receive queue out of range"));
        }
        if limit > size {
            return Err(Error::Invalid("limit above the size of the shared receive queue"));
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
        if let Some((xrc, number)) = &self.xrc {
            if let Some(device) = self.device.upgrade() {
                device.xrc().remove_queue(*number);
            }
            xrc.xrcd.drop_user();
            xrc.cq.drop_user();
        }
        self.pd.end();
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

impl XrcReceive for Srq {
    fn xrcd(&self) -> Option<XrcdId> {
        self.xrc.as_ref().map(|(xrc, _)| xrc.xrcd.id())
    }

    fn received(&self, completion: Completion) {
        if let (Some((xrc, _)), Some(device)) = (&self.xrc, self.device.upgrade()) {
            xrc.cq.push(Completion { timestamp_ns: device.now_ns(), ..completion });
        }
    }
}

impl SharedReceive for Srq {
    fn pd_id(&self) -> Option<PdId> {
        Some(self.pd.id())
    }

    fn take(&self) -> Option<RecvWr> {
        let mut queue = self.queue();
        let request = queue.requests.pop_front()?;
        let reached = queue.requests.len() < queue.attr.limit as usize;
        if reached {
            queue.attr.limit = 0;
        }
        drop(queue);
        if reached && let Some(device) = self.device.upgrade() {
            device.raise(AsyncEvent {
                event: EventType::SrqLimitReached,
                source: EventSource::Srq(self.this.clone()),
            });
        }
        Some(request)
    }
}
