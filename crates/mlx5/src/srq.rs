//! Shared receive queues (PRM "XRC SRQ Context" `xrc_srqc`, "Receive Memory Pool Context" `rmpc`, `xrqc` of
//! `mlx5_ifc.h`): requests linked to a list in guest memory.
//!
//! Every request begins with a segment that names the index of the next one. The driver counts what it appended in a
//! doorbell record; nothing tells us that it did.

use crate::bits::{Field, be16};
use crate::buffer::{Buffer, DoorbellRecord};
use crate::eq::{Eqs, event};
use crate::opcode::Status;
use crate::request::RequestId;
use crate::tags::Names;
use crate::user_memory::{Place, Places};
use crate::wqe;
use hca::RecvWr;
use hca::transport::SharedReceive;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Bytes of the segment that links a request to the next.
const LINK: usize = 16;
const NEXT_INDEX: usize = 2;

/// Bytes of `create_xrc_srq_in` and of `create_rmp_in` before the pages.
const CREATE_LEN: usize = 0x110;
const XRC_BIT: usize = 0x80;
pub(crate) const XRC_CONTEXT: std::ops::Range<usize> = 0x10..0x50;
const XRC_LOG_SIZE: Field = Field::new(0x4, 4).at(XRC_BIT);
const XRC_LOG_STRIDE: Field = Field::new(0x25, 3).at(XRC_BIT);
pub(crate) const XRC_DOMAIN: Field = Field::new(0x28, 24).at(XRC_BIT);
const XRC_PAGE_OFFSET: Field = Field::new(0x40, 6).at(XRC_BIT);
pub(crate) const XRC_CQ: Field = Field::new(0x48, 24).at(XRC_BIT);
const XRC_LOG_PAGE_SIZE: Field = Field::new(0x82, 6).at(XRC_BIT);
/// What user space calls it (`user_index`).
pub(crate) const XRC_NAME: Field = Field::new(0x88, 24).at(XRC_BIT);
pub(crate) const XRC_PD: Field = Field::new(0xc8, 24).at(XRC_BIT);
/// User memory in the place of pages and of the doorbell record's address.
pub(crate) const XRC_ENTRIES: Place = Place::behind_context(0x280);
pub(crate) const XRC_RECORD: Place = Place::new(
    Field::new(0x47, 1).at(XRC_BIT),
    Field::new(0x60, 32).at(XRC_BIT),
    Field::new(0x140, 64).at(XRC_BIT),
);
/// Of the answer of a query: requests below which an event is raised.
pub(crate) const XRC_LIMIT: Field = Field::new(0xe0, 16);

/// `rmpc` begins at 0x100, its work queue `wq` 0x180 later.
const POOL_BIT: usize = 0x280;
/// Where both are in bytes.
pub(crate) const POOL_CONTEXT: std::ops::Range<usize> = 0x20..0x110;
const POOL_PAGE_OFFSET: Field = Field::new(0x2b, 5).at(POOL_BIT);
pub(crate) const POOL_LIMIT: Field = Field::new(0x30, 16).at(POOL_BIT);
pub(crate) const POOL_PD: Field = Field::new(0x48, 24).at(POOL_BIT);
pub(crate) const POOL_ENTRIES: Place = Place::of_work_queue(POOL_BIT);
pub(crate) const POOL_RECORD: Place = Place::of_work_queue_record(POOL_BIT);
const POOL_LOG_STRIDE: Field = Field::new(0x10c, 4).at(POOL_BIT);
const POOL_LOG_PAGE_SIZE: Field = Field::new(0x113, 5).at(POOL_BIT);
const POOL_LOG_SIZE: Field = Field::new(0x11b, 5).at(POOL_BIT);

/// `xrqc` begins at 0x80, its work queue 0x400 later; the pages follow that.
const TAGS_CREATE_LEN: usize = 0x150;
const TAGS_BIT: usize = 0x80;
const TAGS_WORK_QUEUE: usize = 0x400;
pub(crate) const TAGS_CONTEXT: std::ops::Range<usize> = 0x10..TAGS_CREATE_LEN;
const TAGS_TOPOLOGY: Field = Field::new(0x14, 4).at(TAGS_BIT);
const TOPOLOGY_TAG_MATCHING: u64 = 1;
/// What user space calls the queue.
pub(crate) const TAGS_NAME: Field = Field::new(0x28, 24).at(TAGS_BIT);
pub(crate) const TAGS_CQ: Field = Field::new(0x48, 24).at(TAGS_BIT);
/// Entries of the matching list, as a logarithm.
const TAGS_LOG_LIST: Field = Field::new(0x100, 4).at(TAGS_BIT);
pub(crate) const TAGS_ENTRIES: Place = Place::of_work_queue(TAGS_BIT + TAGS_WORK_QUEUE);
pub(crate) const TAGS_RECORD: Place = Place::of_work_queue_record(TAGS_BIT + TAGS_WORK_QUEUE);
pub(crate) const TAGS_PD: Field = in_tags_queue(POOL_PD);
/// Of the answer of a query: requests below which an event is raised, and the counts of unexpected messages.
pub(crate) const TAGS_LIMIT: Field = Field::new(TAGS_WORK_QUEUE + 0x30, 16);
pub(crate) const TAGS_HANDLED: Field = Field::new(0x120, 16);
pub(crate) const TAGS_DELIVERED: Field = Field::new(0x130, 16);

/// A field of a pool's work queue in that of a queue that matches tags.
const fn in_tags_queue(field: Field) -> Field {
    field.at_start(POOL_BIT).at(TAGS_BIT + TAGS_WORK_QUEUE)
}

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
pub(crate) fn tagged_buffers(input: &[u8]) -> u32 {
    (1 << TAGS_LOG_LIST.get32(input)) - 1
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
    context: Vec<u8>,
    list: Mutex<List>,
    /// Of its matching list.
    pub(crate) names: Names,
}

struct Layout {
    log_size: u32,
    log_stride: u32,
    page_shift: u32,
    offset: u64,
    entries: Place,
    record: Place,
    context: std::ops::Range<usize>,
    /// Bytes of the command before the pages.
    command_len: usize,
}

impl Srq {
    /// As `create_xrc_srq_in` describes it.
    pub(crate) fn of_xrc(places: &Places<'_>, eqs: &Arc<Eqs>, input: &[u8]) -> Result<Srq, Status> {
        let layout = Layout {
            log_size: XRC_LOG_SIZE.get32(input),
            log_stride: XRC_LOG_STRIDE.get32(input) + 4,
            page_shift: XRC_LOG_PAGE_SIZE.get32(input) + 12,
            offset: XRC_PAGE_OFFSET.get(input),
            entries: XRC_ENTRIES,
            record: XRC_RECORD,
            context: XRC_CONTEXT,
            command_len: CREATE_LEN,
        };
        Srq::new(places, eqs, input, layout)
    }

    /// As `create_rmp_in` describes it.
    pub(crate) fn of_pool(
        places: &Places<'_>,
        eqs: &Arc<Eqs>,
        input: &[u8],
    ) -> Result<Srq, Status> {
        let layout = Layout {
            log_size: POOL_LOG_SIZE.get32(input),
            log_stride: POOL_LOG_STRIDE.get32(input),
            page_shift: POOL_LOG_PAGE_SIZE.get32(input) + 12,
            offset: POOL_PAGE_OFFSET.get(input),
            entries: POOL_ENTRIES,
            record: POOL_RECORD,
            context: POOL_CONTEXT,
            command_len: CREATE_LEN,
        };
        Srq::new(places, eqs, input, layout)
    }

    /// As `create_xrq_in` describes it.
    pub(crate) fn of_tags(
        places: &Places<'_>,
        eqs: &Arc<Eqs>,
        input: &[u8],
    ) -> Result<Srq, Status> {
        if TAGS_TOPOLOGY.get(input) != TOPOLOGY_TAG_MATCHING {
            return Err(Status::BadParameter);
        }
        let layout = Layout {
            log_size: in_tags_queue(POOL_LOG_SIZE).get32(input),
            log_stride: in_tags_queue(POOL_LOG_STRIDE).get32(input),
            page_shift: in_tags_queue(POOL_LOG_PAGE_SIZE).get32(input) + 12,
            offset: in_tags_queue(POOL_PAGE_OFFSET).get(input),
            entries: TAGS_ENTRIES,
            record: TAGS_RECORD,
            context: TAGS_CONTEXT,
            command_len: TAGS_CREATE_LEN,
        };
        Srq::new(places, eqs, input, layout)
    }

    fn new(
        places: &Places<'_>,
        eqs: &Arc<Eqs>,
        input: &[u8],
        layout: Layout,
    ) -> Result<Srq, Status> {
        let Layout { log_size, log_stride, .. } = layout;
        if log_size > MAX_LOG_SIZE || !(5..=MAX_LOG_STRIDE).contains(&log_stride) {
            return Err(Status::Limits);
        }
        let pages = input.get(layout.command_len..).unwrap_or_default();
        let pages = (pages, layout.page_shift, layout.offset);
        let buffer = places.buffer(input, &layout.entries, pages)?;
        if !buffer.holds(1 << (log_size + log_stride)) {
            return Err(Status::BadParameter);
        }
        Ok(Srq {
            number: AtomicU32::new(0),
            eqs: eqs.clone(),
            buffer,
            record: places.record(input, &layout.record)?,
            log_size,
            log_stride,
            context: input.get(layout.context).unwrap_or_default().to_vec(),
            list: Mutex::new(List { head: 0, taken: 0, limit: 0 }),
            names: Names::default(),
        })
    }

    pub(crate) fn set_number(&self, number: u32) {
        self.number.store(number, Relaxed);
    }

    pub(crate) fn number(&self) -> u32 {
        self.number.load(Relaxed)
    }

    fn list(&self) -> MutexGuard<'_, List> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Its context as it was created.
    pub(crate) fn context(&self) -> &[u8] {
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
