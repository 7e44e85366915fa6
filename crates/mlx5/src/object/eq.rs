//! Event queues (PRM "Event Queue Context" `eqc`, "Event Queue Entry" `struct mlx5_eqe`): what
//! happened, written as entries into the driver's memory, with an interrupt.

use crate::layout::bits::put;
use crate::layout::head::Status;
use crate::layout::limits::{LOG_MAX_EQ_SIZE, MAX_EQS};
use crate::machine::alarm::Alarms;
use crate::machine::budget::{Budget, Charge};
use crate::machine::buffer::Buffer;
use crate::machine::bus::Bus;
use crate::machine::report::{Act, Reports};
use crate::object::uar::Uar;
use crate::request::event::CreateEq;
use engine_thread::{lock, read, write};
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, RwLock};

const ENTRY_LEN: u64 = 64;
/// Where an entry's data begin.
const DATA: usize = 0x20;
pub(crate) const DATA_LEN: usize = 28;
const OWNER: usize = 0x3f;

/// Types of events (`enum mlx5_event`).
pub(crate) mod event {
    pub(crate) const COMPLETION: u8 = 0x0;
    pub(crate) const COMMUNICATION_ESTABLISHED: u8 = 0x2;
    pub(crate) const SEND_QUEUE_DRAINED: u8 = 0x3;
    pub(crate) const CQ_ERROR: u8 = 0x4;
    pub(crate) const WQ_CATASTROPHIC: u8 = 0x5;
    pub(crate) const PORT_CHANGE: u8 = 0x9;
    pub(crate) const COMMAND: u8 = 0xa;
    pub(crate) const PAGE_FAULT: u8 = 0xc;
    pub(crate) const WQ_INVALID_REQUEST: u8 = 0x10;
    pub(crate) const WQ_ACCESS: u8 = 0x11;
    pub(crate) const LAST_WQE: u8 = 0x13;
    pub(crate) const SRQ_LIMIT: u8 = 0x14;
}

/// Most events that wait for room. A driver that serves its faults has no more open; beyond, they
/// are refused.
const MAX_LATE: usize = 1 << 15;
/// Bytes that each takes, with the room to which a list of them grows.
const LATE_SIZE: u64 = 64;

struct Ring {
    produced: u32,
    consumed: u32,
    armed: bool,
    /// Events that wait for room.
    late: VecDeque<(u8, u8, [u8; DATA_LEN])>,
    /// For as many of them as ever waited.
    charge: Charge,
}

/// One event queue.
struct Eq {
    number: u8,
    uar: Arc<Uar>,
    buffer: Buffer,
    log_size: u32,
    vector: u16,
    events: u64,
    ring: Mutex<Ring>,
}

impl Eq {
    fn is_full(&self, ring: &Ring) -> bool {
        ring.produced.wrapping_sub(ring.consumed) >= 1 << self.log_size
    }

    /// False if the event is lost: the driver stopped reading, and nothing can tell it so.
    fn post(&self, bus: &dyn Bus, kind: u8, sub_kind: u8, data: &[u8]) -> bool {
        let mut ring = lock(&self.ring);
        let fits = !self.is_full(&ring);
        if fits {
            self.place(&mut ring, bus, kind, sub_kind, data);
        }
        fits
    }

    /// As `post`, of an event that waits for room. False if too many do.
    fn post_late(&self, bus: &dyn Bus, kind: u8, sub_kind: u8, data: &[u8; DATA_LEN]) -> bool {
        let mut ring = lock(&self.ring);
        if !self.is_full(&ring) {
            self.place(&mut ring, bus, kind, sub_kind, data);
            return true;
        }
        let bytes = (ring.late.len() as u64 + 1) * LATE_SIZE;
        let fits = ring.late.len() < MAX_LATE && ring.charge.raise(bytes).is_ok();
        if fits {
            ring.late.push_back((kind, sub_kind, *data));
        }
        fits
    }

    fn place(&self, ring: &mut Ring, bus: &dyn Bus, kind: u8, sub_kind: u8, data: &[u8]) {
        let size = 1u32 << self.log_size;
        let mut entry = [0; ENTRY_LEN as usize];
        entry[1] = kind;
        entry[3] = sub_kind;
        put(&mut entry, DATA, &data[..data.len().min(DATA_LEN)]);
        entry[OWNER] = (ring.produced >> self.log_size & 1) as u8;
        let at = u64::from(ring.produced & (size - 1)) * ENTRY_LEN;
        // Memory that is gone loses the event: whoever took it away does not wait for it.
        let _ = self.buffer.write(at, &entry);
        ring.produced = ring.produced.wrapping_add(1);
        if std::mem::replace(&mut ring.armed, false) {
            bus.interrupt(self.vector);
        }
    }

    /// The driver has consumed what comes before `consumed` (24 bits), and wants an interrupt for
    /// what comes next.
    fn update(&self, bus: &dyn Bus, consumed: u32, arm: bool) {
        let mut ring = lock(&self.ring);
        let ahead = ring.produced.wrapping_sub(consumed) & 0xff_ffff;
        if ahead > 1 << self.log_size {
            return;
        }
        ring.consumed = ring.produced.wrapping_sub(ahead);
        while !self.is_full(&ring)
            && let Some((kind, sub_kind, data)) = ring.late.pop_front()
        {
            self.place(&mut ring, bus, kind, sub_kind, &data);
        }
        let ahead = ring.produced.wrapping_sub(ring.consumed);
        if arm && ahead > 0 {
            ring.armed = false;
            bus.interrupt(self.vector);
        } else if arm {
            ring.armed = true;
        }
    }
}

/// The event queues of a function.
pub(crate) struct Eqs {
    bus: Arc<dyn Bus>,
    reports: Arc<Reports>,
    queues: RwLock<BTreeMap<u8, Arc<Eq>>>,
    /// Those of completion queues whose events are raised late.
    alarms: Alarms,
}

impl Eqs {
    pub(crate) fn new(bus: Arc<dyn Bus>, reports: Arc<Reports>) -> Eqs {
        Eqs { bus, reports, queues: RwLock::default(), alarms: Alarms::default() }
    }

    /// Where wrong acts are reported.
    pub(crate) fn reports(&self) -> &Reports {
        &self.reports
    }

    pub(crate) fn alarms(&self) -> &Alarms {
        &self.alarms
    }

    /// As `create_eq_in` describes it; `uar` is the page that it names.
    pub(crate) fn create(
        &self,
        uar: Arc<Uar>,
        budget: &Arc<Budget>,
        request: &CreateEq,
    ) -> Result<u8, Status> {
        let log_size = request.log_eq_size;
        if u64::from(log_size) > LOG_MAX_EQ_SIZE {
            return Err(Status::Limits);
        }
        let CreateEq { pages, page_offset, .. } = request;
        let shift = request.log_page_size + 12;
        let buffer = Buffer::new(self.bus.memory(), pages, shift, *page_offset);
        if !buffer.holds(ENTRY_LEN << log_size) {
            return Err(Status::BadParameter);
        }
        let mut queues = write(&self.queues);
        let number = (0..MAX_EQS).find(|number| !queues.contains_key(number));
        let number = number.ok_or(Status::NoResources)?;
        let queue = Eq {
            number,
            uar,
            buffer,
            log_size,
            vector: request.intr,
            events: request.event_bitmask,
            ring: Mutex::new(Ring {
                produced: 0,
                consumed: 0,
                armed: false,
                late: VecDeque::new(),
                charge: budget.charge(0)?,
            }),
        };
        queues.insert(number, Arc::new(queue));
        Ok(number)
    }

    pub(crate) fn destroy(&self, number: u8) -> Result<(), Status> {
        let mut queues = write(&self.queues);
        queues.remove(&number).map(drop).ok_or(Status::BadResource)
    }

    pub(crate) fn exists(&self, number: u32) -> bool {
        u8::try_from(number).is_ok_and(|number| self.get(number).is_some())
    }

    /// Whether a queue was made for completions alone: drivers have others for events of their own.
    pub(crate) fn is_for_completions(&self, number: u32) -> bool {
        let queue = u8::try_from(number).ok().and_then(|number| self.get(number));
        queue.is_some_and(|queue| queue.events >> 1 == 0)
    }

    pub(crate) fn clear(&self) {
        self.alarms.clear();
        write(&self.queues).clear();
    }

    fn get(&self, number: u8) -> Option<Arc<Eq>> {
        read(&self.queues).get(&number).cloned()
    }

    /// Whether a queue was made for this type of events.
    pub(crate) fn wants(&self, kind: u8) -> bool {
        self.wanting(kind).is_some()
    }

    fn wanting(&self, kind: u8) -> Option<Arc<Eq>> {
        let queues = read(&self.queues);
        queues.values().find(|queue| queue.events >> kind & 1 == 1).cloned()
    }

    /// Tells of an event to the queue that was made for its type.
    pub(crate) fn post(&self, kind: u8, sub_kind: u8, data: &[u8]) {
        if let Some(queue) = self.wanting(kind)
            && !queue.post(&*self.bus, kind, sub_kind, data)
        {
            self.lost(&queue, kind);
        }
    }

    fn lost(&self, queue: &Eq, kind: u8) {
        self.reports.tell(Act::Event(kind), format_args!("event queue {}", queue.number));
    }

    /// Tells queue `number` that completion queue `cqn` has a completion.
    pub(crate) fn post_completion(&self, number: u8, cqn: u32) {
        if let Some(queue) = self.get(number) {
            let mut data = [0; DATA_LEN];
            put(&mut data, 24, &cqn.to_be_bytes());
            if !queue.post(&*self.bus, event::COMPLETION, 0, &data) {
                self.lost(&queue, event::COMPLETION);
            }
        }
    }

    /// Tells of an event of a queue pair or shared receive queue (`struct mlx5_eqe_qp_srq`).
    pub(crate) fn post_work_queue(&self, kind: u8, type_: u8, number: u32) {
        let mut data = [0; DATA_LEN];
        data[20] = type_;
        put(&mut data, 24, &number.to_be_bytes());
        self.post(kind, 0, &data);
    }

    /// Tells of a page fault, once there is room: somebody waits until it is served. False if the
    /// driver will not hear of it.
    pub(crate) fn post_page_fault(&self, sub_kind: u8, data: &[u8; DATA_LEN]) -> bool {
        let Some(queue) = self.wanting(event::PAGE_FAULT) else { return false };
        let told = queue.post_late(&*self.bus, event::PAGE_FAULT, sub_kind, data);
        if !told {
            self.lost(&queue, event::PAGE_FAULT);
        }
        told
    }

    /// Tells that commands are complete, a bit each.
    pub(crate) fn post_commands(&self, done: u32) {
        self.post(event::COMMAND, 0, &done.to_be_bytes());
    }

    /// A write to an event queue's doorbell in the page `uar`: number in the high 8 bits, consumer
    /// counter in the low 24. False if it is no queue of that page.
    pub(crate) fn doorbell(&self, uar: &Arc<Uar>, word: u32, arm: bool) -> bool {
        let queue = self.get((word >> 24) as u8).filter(|queue| Arc::ptr_eq(&queue.uar, uar));
        queue.inspect(|queue| queue.update(&*self.bus, word & 0xff_ffff, arm)).is_some()
    }
}
