//! Shared receive queues (PRM "XRC SRQ Context" `xrc_srqc`, "Receive Memory Pool Context" `rmpc`,
//! `xrqc` of `mlx5_ifc.h`): requests linked to a list in guest memory.
//!
//! Every request begins with a segment that names the index of the next one. The driver counts what
//! it appended in a doorbell record; nothing tells us that it did.

use crate::layout::bits::{Field, be16};
use crate::layout::context::Context;
use crate::layout::head::Status;
use crate::layout::request::RequestId;
use crate::layout::wqe;
use crate::machine::buffer::{Buffer, DoorbellRecord};
use crate::object::eq::{Eqs, event};
use crate::object::queue_memory::QueueMemory;
use crate::object::tag_names::TagNames;
use crate::request::queue::Placement;
use crate::request::srq::{CreateRmp, CreateXrcSrq, CreateXrq};
use engine_thread::lock;
use hca::RecvWr;
use hca::transport::SharedReceive;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard};

/// Bytes of the segment that links a request to the next.
const LINK: usize = 16;
const NEXT_INDEX: usize = 2;

// Fields of contexts in the answers of queries: the requests below which an event is raised, and
// the counts of unexpected messages.
pub(crate) const XRC_LIMIT: Field = Field::new(0xe0, 16);
pub(crate) const TAGS_LIMIT: Field = Field::new(0x400 + 0x30, 16);
pub(crate) const TAGS_HANDLED: Field = Field::new(0x120, 16);
pub(crate) const TAGS_DELIVERED: Field = Field::new(0x130, 16);

const TOPOLOGY_TAG_MATCHING: u8 = 1;
/// Longest request, as a logarithm.
const MAX_LOG_STRIDE: u32 = 10;
const MAX_LOG_SIZE: u32 = 15;

struct List {
    /// Index of the next request to take.
    head: u16,
    /// Requests taken.
    taken: u16,
    /// An event is raised when fewer wait; 0 is unarmed.
    limit: u16,
}

/// Tagged buffers that a queue is made for: one entry of its list is always free.
pub(crate) fn tagged_buffers(request: &CreateXrq) -> u32 {
    (1 << request.log_matching_list_sz) - 1
}

/// One shared receive queue.
pub(crate) struct Srq {
    /// Known after the HCA made its half.
    number: AtomicU32,
    eqs: Arc<Eqs>,
    buffer: Buffer,
    record: DoorbellRecord,
    log_size: u32,
    log_stride: u32,
    context: Context,
    list: Mutex<List>,
    /// What the driver calls the entries of its matching list.
    pub(crate) names: TagNames,
}

impl Srq {
    /// As `create_xrc_srq_in` describes it.
    pub(crate) fn of_xrc(
        places: &QueueMemory<'_>,
        eqs: &Arc<Eqs>,
        request: &CreateXrcSrq,
    ) -> Result<Srq, Status> {
        let CreateXrcSrq { log_xrc_srq_size, log_rq_stride, placement, context, .. } = request;
        let ring = (*log_xrc_srq_size, log_rq_stride + 4, placement);
        Srq::new(places, eqs, ring, context)
    }

    /// As `create_rmp_in` describes it.
    pub(crate) fn of_pool(
        places: &QueueMemory<'_>,
        eqs: &Arc<Eqs>,
        CreateRmp { wq, context }: &CreateRmp,
    ) -> Result<Srq, Status> {
        Srq::new(places, eqs, (wq.log_wq_sz, wq.log_wq_stride, &wq.placement), context)
    }

    /// As `create_xrq_in` describes it.
    pub(crate) fn of_tags(
        places: &QueueMemory<'_>,
        eqs: &Arc<Eqs>,
        CreateXrq { topology, wq, context, .. }: &CreateXrq,
    ) -> Result<Srq, Status> {
        if *topology != TOPOLOGY_TAG_MATCHING {
            return Err(Status::BadParameter);
        }
        Srq::new(places, eqs, (wq.log_wq_sz, wq.log_wq_stride, &wq.placement), context)
    }

    fn new(
        places: &QueueMemory<'_>,
        eqs: &Arc<Eqs>,
        (log_size, log_stride, placement): (u32, u32, &Placement),
        context: &Context,
    ) -> Result<Srq, Status> {
        if log_size > MAX_LOG_SIZE || !(5..=MAX_LOG_STRIDE).contains(&log_stride) {
            return Err(Status::Limits);
        }
        let buffer = places.buffer(placement)?;
        if !buffer.holds(1 << (log_size + log_stride)) {
            return Err(Status::BadParameter);
        }
        Ok(Srq {
            number: AtomicU32::new(0),
            eqs: eqs.clone(),
            buffer,
            record: places.record(placement)?,
            log_size,
            log_stride,
            context: context.clone(),
            list: Mutex::new(List { head: 0, taken: 0, limit: 0 }),
            names: TagNames::default(),
        })
    }

    pub(crate) fn set_number(&self, number: u32) {
        self.number.store(number, Relaxed);
    }

    pub(crate) fn number(&self) -> u32 {
        self.number.load(Relaxed)
    }

    fn list(&self) -> MutexGuard<'_, List> {
        lock(&self.list)
    }

    /// Its context as it was created.
    pub(crate) fn context(&self) -> &Context {
        &self.context
    }

    pub(crate) fn limit(&self) -> u16 {
        self.list().limit
    }

    /// Asks for an event when fewer than `limit` requests wait.
    pub(crate) fn arm(&self, limit: u16) {
        self.list().limit = limit;
    }
}

impl SharedReceive for Srq {
    fn take(&self) -> Option<RecvWr> {
        let mut list = self.list();
        let posted = self.record.first().ok()? as u16;
        let waiting = posted.wrapping_sub(list.taken);
        if waiting == 0 || u32::from(waiting) > 1 << self.log_size {
            return None;
        }
        let stride = 1usize << self.log_stride;
        let mut bytes = vec![0; stride];
        let index = list.head & ((1 << self.log_size) - 1);
        self.buffer.read(u64::from(index) << self.log_stride, &mut bytes).ok()?;
        list.head = be16(&bytes, NEXT_INDEX);
        list.taken = list.taken.wrapping_add(1);
        let number = self.number();
        if waiting - 1 < list.limit {
            list.limit = 0;
            self.eqs.post_work_queue(event::SRQ_LIMIT, 0, number);
        }
        let id = RequestId { counter: index, opcode: 0, srqn: number };
        Some(wqe::receive(id, &bytes[LINK..]))
    }
}
