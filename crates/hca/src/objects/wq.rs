//! Work queues (ibv_create_wq(3)): a receive queue by itself, which an indirection table hands
//! frames to.

use crate::adapter::Adapter;
use crate::adapter::event::{AsyncEvent, EventSource};
use crate::memory::pd::{Belonging, Pd};
use crate::objects::cq::Cq;
use crate::objects::srq::lists_of;
use engine_thread::lock;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use transport::Shelf;
use transport::executor::{Inbox, Landed, Landing};
use transport::queues::slots::Fifo;
use transport::values::{Completion, EventType, RecvWr, SgList, Sge, WcOpcode, WcStatus};
use transport::{Count, Counter};
use transport::{Error, Result};
use umem::AccessError;

/// Work queues of a device that it announces.
pub const MAX_WQS: u32 = 1 << 14;
/// Where numbers of work queues begin: above the 24 bits of queue pair numbers, so that a
/// completion is of one or the other.
pub(crate) const FIRST_NUMBER: u32 = 1 << 24;

/// State of a work queue (`enum ibv_wq_state`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum WqState {
    /// Empty; takes neither requests nor frames.
    Reset = 0,
    /// Takes frames.
    Rdy = 1,
    /// Flushes what is posted.
    Err = 2,
}

/// What a work queue is created from (`struct ibv_wq_init_attr`).
#[derive(Clone, Debug)]
pub struct WqInit {
    /// Outstanding requests.
    pub max_wr: u32,
    /// Scatter entries of a request.
    pub max_sge: u32,
    /// The queue in which requests complete.
    pub cq: Arc<Cq>,
}

struct Core {
    state: WqState,
    inbox: Inbox,
}

/// A work queue. `core` is taken under the device's `receiving`, as a QP's is.
pub struct Wq {
    adapter: Weak<Adapter>,
    number: u32,
    init: WqInit,
    pd: Belonging,
    core: Mutex<Core>,
    lists: Shelf<[Sge; 2]>,
    users: AtomicU32,
    ended: AtomicBool,
    this: Weak<Wq>,
}

impl std::fmt::Debug for Wq {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Wq {{ number: {:#x} }}", self.number)
    }
}

impl Wq {
    pub(crate) fn new(
        adapter: &Arc<Adapter>,
        number: u32,
        pd: &Arc<Pd>,
        init: WqInit,
    ) -> Result<Arc<Wq>> {
        let lists = Shelf::new(lists_of(init.max_wr, &None), init.max_sge as usize)?;
        let own = Fifo::own(init.max_wr as usize)?;
        init.cq.add_user();
        Ok(Arc::new_cyclic(|this| Wq {
            adapter: Arc::downgrade(adapter),
            number,
            init,
            pd: Belonging::new(pd),
            core: Mutex::new(Core { state: WqState::Reset, inbox: Inbox::new(own, None) }),
            lists,
            users: AtomicU32::new(0),
            ended: AtomicBool::new(false),
            this: this.clone(),
        }))
    }

    fn core(&self) -> MutexGuard<'_, Core> {
        lock(&self.core)
    }

    /// An empty list for the `len` entries of a request.
    ///
    /// # Errors
    /// [`Error::NoMemory`] when more requests are under way than the queue takes, and the system
    /// has no memory.
    pub fn scatter_list(&self, len: usize) -> Result<SgList> {
        self.lists.lend(len)
    }

    /// The queue's number.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// What it was created from.
    pub fn init(&self) -> &WqInit {
        &self.init
    }

    /// Protection domain.
    pub fn pd(&self) -> &Arc<Pd> {
        self.pd.pd()
    }

    /// Present state.
    pub fn state(&self) -> WqState {
        self.core().state
    }

    /// Changes the state, if it is `current` where that is given.
    ///
    /// # Errors
    /// [`Error::Invalid`] from ERR to RDY, from RESET to ERR, and where the queue is not `current`.
    pub fn modify(&self, current: Option<WqState>, next: WqState) -> Result<()> {
        let mut core = self.core();
        if current.is_some_and(|current| current != core.state) {
            return Err(Error::Invalid("curr_wq_state is not the work queue's state"));
        }
        match (core.state, next) {
            (WqState::Err, WqState::Rdy) | (WqState::Reset, WqState::Err) => {
                return Err(Error::Invalid("no such transition of the work queue's state"));
            }
            (_, WqState::Reset) => {
                core.inbox.clear();
                self.init.cq.forget(self.number);
            }
            (_, WqState::Err) => self.flush(&mut core),
            (_, WqState::Rdy) => {}
        }
        core.state = next;
        Ok(())
    }

    /// Appends receive requests in order. In the error state they are flushed.
    ///
    /// # Errors
    /// The request refused is the last one asked for: [`Error::Invalid`] in RESET or with too many
    /// entries, [`Error::NoMemory`] when full.
    pub fn post(&self, requests: &mut dyn Iterator<Item = Result<RecvWr>>) -> Result<()> {
        let mut core = self.core();
        for request in requests {
            let request = request?;
            if core.state == WqState::Reset {
                return Err(Error::Invalid("the work queue is in RESET"));
            }
            if request.scatter.len() > self.init.max_sge as usize {
                return Err(Error::Invalid("more scatter entries than the work queue allows"));
            }
            if core.inbox.len() >= self.init.max_wr as usize {
                return Err(Error::NoMemory("the work queue is full"));
            }
            let lost = |_| Error::Lost("the memory of the work queue is gone");
            core.inbox.post(request).map_err(lost)?;
            if core.state == WqState::Err {
                self.flush(&mut core);
            }
        }
        Ok(())
    }

    fn flush(&self, core: &mut Core) {
        // A queue in the engine's own memory loses nothing.
        while let Some(Ok(landing)) = core.inbox.drain(self.pd.id()) {
            if let Some(adapter) = self.adapter.upgrade() {
                adapter.directory().count(Counter::CqeFlushErr, 1);
            }
            self.complete(&landing, WcStatus::WrFlushErr);
        }
    }

    fn complete(&self, landing: &Landing, status: WcStatus) {
        let success = status == WcStatus::Success;
        let completion = Completion {
            byte_len: if success { landing.filled() as u32 } else { 0 },
            solicited: !success,
            ..Completion::new(landing.wr_id(), status, WcOpcode::Recv, self.number)
        };
        let now_ns = || self.adapter.upgrade().map_or(0, |adapter| adapter.now_ns());
        self.init.cq.push(completion, now_ns);
    }

    /// A frame that a table chose the queue for.
    pub(crate) fn receive_frame(&self, adapter: &Adapter, frame: &[u8]) {
        let mut core = self.core();
        if core.state != WqState::Rdy || self.ended.load(Relaxed) {
            return adapter.directory().count(Counter::RxDropped, 1);
        }
        match core.inbox.land(adapter.keys(), self.pd.id(), &[frame]) {
            Landed::Placed(landing) => self.complete(&landing, WcStatus::Success),
            Landed::NotReady => adapter.directory().count(Counter::OutOfBuffer, 1),
            Landed::QueueLost => self.fail(adapter, &mut core),
            Landed::TooLong => adapter.directory().count(Counter::RespLocalLengthError, 1),
            // It moves: the frame is lost, and the next one may find it there.
            Landed::PageFault(AccessError::Moving, landing) => {
                core.inbox.put_back(landing);
                adapter.directory().count(Counter::RxDropped, 1);
            }
            // Otherwise its memory is the program's own, of which no page is ever awaited.
            Landed::Failed(landing) | Landed::PageFault(_, landing) => {
                adapter.directory().count(Counter::RespCqeError, 1);
                self.complete(&landing, WcStatus::LocProtErr);
                self.fail(adapter, &mut core);
            }
        }
        if self.init.cq.failed() && core.state == WqState::Rdy {
            self.fail(adapter, &mut core);
        }
    }

    /// Nothing more can be received, or reported.
    fn fail(&self, adapter: &Adapter, core: &mut Core) {
        core.state = WqState::Err;
        self.flush(core);
        let source = EventSource::Wq(self.this.clone());
        adapter.raise(AsyncEvent { event: EventType::WqFatal, source });
    }

    /// Ends the queue's life: no completion of it comes afterwards.
    ///
    /// # Errors
    /// [`Error::Busy`] while an indirection table uses it.
    pub fn destroy(&self) -> Result<()> {
        if self.users.load(Relaxed) > 0 {
            return Err(Error::Busy("indirection tables still use the work queue"));
        }
        self.end();
        Ok(())
    }

    fn end(&self) {
        let core = self.core();
        if self.ended.swap(true, Relaxed) {
            return;
        }
        self.init.cq.forget(self.number);
        drop(core);
        self.init.cq.drop_user();
        self.pd.end();
    }

    pub(crate) fn add_user(&self) {
        self.users.fetch_add(1, Relaxed);
    }

    pub(crate) fn drop_user(&self) {
        self.users.fetch_sub(1, Relaxed);
    }
}

impl Drop for Wq {
    fn drop(&mut self) {
        self.end();
    }
}
