//! Receive queues that several queue pairs share.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex};
use transport::queues::tags::{Accepted, TagList, TagOp, TagWr, TmCap};
use transport::values::*;
use transport::{OwnCompletions, SharedReceive, TagReceive, XrcQueues, XrcReceive};

/// A shared receive queue.
#[derive(Default)]
pub struct Loose(pub Mutex<VecDeque<RecvWr>>);

impl SharedReceive for Loose {
    fn take(&self) -> Option<RecvWr> {
        self.0.lock().unwrap().pop_front()
    }
}

/// An XRC receive queue and its completions.
pub struct XrcQueue {
    pub requests: Loose,
    pub xrcd: XrcdId,
    pub pd: PdId,
    pub told: Mutex<Vec<Completion>>,
}

impl SharedReceive for XrcQueue {
    fn take(&self) -> Option<RecvWr> {
        self.requests.take()
    }
    fn pd_id(&self) -> Option<PdId> {
        Some(self.pd)
    }
}

impl XrcReceive for XrcQueue {
    fn xrcd(&self) -> Option<XrcdId> {
        Some(self.xrcd)
    }
}

impl OwnCompletions for XrcQueue {
    fn received(&self, completion: Completion) {
        self.told.lock().unwrap().push(completion);
    }
}

/// A queue that matches tags, and its completions.
pub struct TagQueue {
    pub requests: Loose,
    pub list: Mutex<TagList>,
    pub told: Mutex<Vec<Completion>>,
}

impl TagQueue {
    pub fn new() -> Arc<TagQueue> {
        let list = Mutex::new(TagList::new(TmCap { max_num_tags: 64, max_ops: 64 }).unwrap());
        Arc::new(TagQueue { requests: Loose::default(), list, told: Mutex::default() })
    }

    /// Posts a buffer for `tag`, in step.
    pub fn add(&self, wr_id: u64, tag: u64, into: &[Sge]) {
        let request = RecvWr { wr_id, scatter: into.iter().copied().collect() };
        let op = TagOp::Add { request, tag, mask: u64::MAX };
        let wr = TagWr { wr_id: 0, op, signaled: false, handled: None };
        assert_eq!(self.list.lock().unwrap().apply(wr).unwrap().flags, WcFlags::empty());
    }

    pub fn post(&self, wr_id: u64, sge: Sge) {
        let request = RecvWr { wr_id, scatter: [sge].into_iter().collect() };
        self.requests.0.lock().unwrap().push_back(request);
    }

    pub fn told(&self) -> Vec<Completion> {
        self.told.lock().unwrap().clone()
    }
}

impl SharedReceive for TagQueue {
    fn take(&self) -> Option<RecvWr> {
        self.requests.take()
    }
    fn pd_id(&self) -> Option<PdId> {
        Some(QUEUE_PD)
    }
}

impl OwnCompletions for TagQueue {
    fn received(&self, completion: Completion) {
        self.told.lock().unwrap().push(completion);
    }
}

impl TagReceive for TagQueue {
    fn accept(&self, first: &[u8], whole: bool, fetches: bool) -> Option<Accepted> {
        self.list.lock().unwrap().accept(first, whole, fetches, || self.requests.take())
    }
}

/// The XRC queues of a node, by number.
#[derive(Default)]
pub struct Queues(pub HashMap<u32, Arc<XrcQueue>>);

impl XrcQueues for Queues {
    fn queue(&self, number: u32) -> Option<Arc<dyn XrcReceive>> {
        Some(self.0.get(&number)?.clone())
    }
}

/// The XRC domain of every receiving half.
pub const XRCD: XrcdId = XrcdId(3);

/// Domain of the shared queues that have one of their own.
pub const QUEUE_PD: PdId = PdId(40);
