//! Completion queues (PRM "Completion Queue Context" `cqc`): a ring of entries in guest memory, a
//! consumer counter in a doorbell record, and arming by a doorbell. The event that a queue is armed
//! for may be raised late ([`crate::layout::moderation`]).

use crate::layout::bits::{Field, be32, put};
use crate::layout::context::Context;
use crate::layout::cqe;
use crate::layout::head::{Status, is_of_user};
use crate::layout::limits::LOG_MAX_CQ_SIZE;
use crate::layout::moderation::Moderation;
use crate::layout::request::RequestId;
use crate::machine::alarm::Appointed;
use crate::machine::buffer::{Buffer, DoorbellRecord};
use crate::machine::report::Act;
use crate::object::eq::{DATA_LEN, Eqs, event};
use crate::object::names::Names;
use crate::object::queue_memory::QueueMemory;
use crate::object::uar::Uar;
use crate::request::cq::{self, CreateCq};
use crate::request::queue::Placement;
use engine_thread::lock;
use hca::{BadSignature, Completion, CompletionSink, SignatureSink, WcStatus};
use std::ops::Deref;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::Instant;
use umem::AccessError;

// Fields of the context in the answer of a query.
const STATUS: Field = Field::new(0x0, 4);
const STATE: Field = Field::new(0x14, 4);
const CONSUMED: Field = Field::new(0x148, 24);
const PRODUCED: Field = Field::new(0x168, 24);
const STATUS_OVERFLOW: u64 = 0x9;
const STATUS_WRITE_FAILED: u64 = 0xa;
const STATE_SOLICITED_ARMED: u64 = 0x6;
const STATE_ARMED: u64 = 0x9;
const STATE_FIRED: u64 = 0xa;

/// Counters have 24 bits.
const COUNTER: u32 = 0xff_ffff;
/// In the first word of the arming doorbell: only for solicited completions and errors.
const SOLICITED_ONLY: u32 = 1 << 24;

/// Where the event of a failed queue says why (`struct mlx5_eqe_cq_err`), and what it says there.
const ERROR_SYNDROME: usize = 11;
const OVERRUN: u8 = 1;
const ACCESS: u8 = 2;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Armed {
    No,
    Solicited,
    Any,
}

/// Where a queue's entries are.
struct Entries {
    buffer: Buffer,
    log_size: u32,
    /// Bytes from one entry to the next.
    stride: u64,
}

impl Entries {
    /// As `create_cq_in` describes them, and `modify_cq_in` at the same places.
    fn new(places: &QueueMemory<'_>, request: &cq::Entries) -> Result<Entries, Status> {
        let log_size = request.log_cq_size;
        let stride = match request.cqe_sz {
            0 => 64,
            // 2 is an entry of 64 bytes padded to 128, which looks the same here.
            1 | 2 => 128,
            _ => return Err(Status::BadParameter),
        };
        if u64::from(log_size) > LOG_MAX_CQ_SIZE {
            return Err(Status::Limits);
        }
        let buffer = places.buffer(&request.placement)?;
        if !buffer.holds(stride << log_size) {
            return Err(Status::BadParameter);
        }
        Ok(Entries { buffer, log_size, stride })
    }

    fn len(&self) -> u32 {
        1 << self.log_size
    }

    /// Writes the entry with this counter; its owner bit tells the driver in which round of the
    /// ring it is.
    fn write(&self, counter: u32, mut entry: [u8; cqe::LEN]) -> Result<(), AccessError> {
        entry[cqe::OPCODE_OWNER] |= (counter >> self.log_size & 1) as u8;
        let index = u64::from(counter & (self.len() - 1));
        self.buffer.write(index * self.stride + (self.stride - cqe::LEN as u64), &entry)
    }
}

struct Ring {
    entries: Entries,
    /// Its context as the driver gave it.
    context: Context,
    produced: u32,
    /// As the doorbell record said last.
    consumed: u32,
    /// Produced counter after the latest solicited completion.
    solicited: u32,
    armed: Armed,
    moderation: Moderation,
    /// An event that it is armed for is yet to be raised.
    owes: bool,
    /// When it is looked at next.
    appointed: Option<Instant>,
    /// The syndrome of its end.
    failed: Option<u8>,
}

impl Ring {
    fn waiting(&self) -> u32 {
        self.produced.wrapping_sub(self.consumed) & COUNTER
    }
}

/// One completion queue.
pub(crate) struct Cq {
    this: Weak<Cq>,
    number: u32,
    eqs: Arc<Eqs>,
    names: Arc<Names>,
    uar: Arc<Uar>,
    eq: u8,
    record: DoorbellRecord,
    overrun_ignored: bool,
    /// Work queues of the Ethernet that complete to it; the HCA counts its own.
    users: AtomicU32,
    ring: Mutex<Ring>,
}

/// One work queue's use of a completion queue, which is not destroyed meanwhile.
pub(crate) struct InUse(Arc<Cq>);

impl InUse {
    pub(crate) fn of(queue: Arc<Cq>) -> InUse {
        queue.users.fetch_add(1, Relaxed);
        InUse(queue)
    }
}

impl Deref for InUse {
    type Target = Cq;

    fn deref(&self) -> &Cq {
        &self.0
    }
}

impl Drop for InUse {
    fn drop(&mut self) {
        self.0.users.fetch_sub(1, Relaxed);
    }
}

impl Cq {
    /// As `create_cq_in` describes it; `uar` is the page that it names.
    pub(crate) fn new(
        number: u32,
        places: &QueueMemory<'_>,
        eqs: &Arc<Eqs>,
        names: &Arc<Names>,
        uar: Arc<Uar>,
        request: &CreateCq,
    ) -> Result<Arc<Cq>, Status> {
        let entries = Entries::new(places, &request.entries)?;
        let eq = request.c_eqn;
        // What a driver hears of itself must not be drowned in what a program completes.
        if !eqs.exists(eq) || is_of_user(request.uid) && !eqs.is_for_completions(eq) {
            return Err(Status::BadResource);
        }
        let context = request.context.clone();
        let mut moderation = Moderation::default();
        moderation.set(&context);
        let ring = Ring {
            entries,
            context,
            produced: 0,
            consumed: 0,
            solicited: 0,
            armed: Armed::No,
            moderation,
            owes: false,
            appointed: None,
            failed: None,
        };
        let record = places.record(&request.entries.placement)?;
        Ok(Arc::new_cyclic(|this| Cq {
            this: this.clone(),
            number,
            eqs: eqs.clone(),
            names: names.clone(),
            uar,
            eq: eq as u8,
            record,
            overrun_ignored: request.oi,
            users: AtomicU32::new(0),
            ring: Mutex::new(ring),
        }))
    }

    /// Its context as it was created, with its present state and counters.
    pub(crate) fn context(&self) -> Context {
        let ring = self.ring();
        let mut context = ring.context.clone();
        let status = match ring.failed {
            None => 0,
            Some(OVERRUN) => STATUS_OVERFLOW,
            Some(_) => STATUS_WRITE_FAILED,
        };
        let state = match ring.armed {
            Armed::No => STATE_FIRED,
            Armed::Solicited => STATE_SOLICITED_ARMED,
            Armed::Any => STATE_ARMED,
        };
        let consumed = self.record.first().unwrap_or(ring.consumed) & COUNTER;
        for (field, value) in [
            (STATUS, status),
            (STATE, state),
            (CONSUMED, consumed.into()),
            (PRODUCED, ring.produced.into()),
        ] {
            context.set(field, value);
        }
        context
    }

    /// Goes on in other memory, of another size, as `modify_cq_in` describes it. The last entry in
    /// the old place says so; the driver takes those before it along, each one place further.
    pub(crate) fn resize(
        &self,
        places: &QueueMemory<'_>,
        request: &cq::Entries,
    ) -> Result<(), Status> {
        let entries = Entries::new(places, request)?;
        let mut ring = self.ring();
        ring.consumed = self.record.first().unwrap_or(ring.consumed) & COUNTER;
        let waiting = ring.waiting();
        if ring.failed.is_some() || waiting >= ring.entries.len() || waiting >= entries.len() {
            return Err(Status::BadResourceState);
        }
        ring.entries.write(ring.produced, cqe::resized()).map_err(|_| Status::BadResourceState)?;
        ring.produced = ring.produced.wrapping_add(1) & COUNTER;
        let Placement { page_offset, log_page_size, .. } = request.placement;
        for (field, value) in [
            (cq::CQE_SZ, request.cqe_sz.into()),
            (cq::PAGE_OFFSET, page_offset),
            (cq::LOG_CQ_SIZE, request.log_cq_size.into()),
            (cq::LOG_PAGE_SIZE, log_page_size.into()),
        ] {
            ring.context.set(field, value);
        }
        ring.entries = entries;
        Ok(())
    }

    /// Raises events as `fields` of `wanted` say from now on.
    pub(crate) fn moderate(&self, fields: &[Field], wanted: &Context) {
        let mut ring = self.ring();
        fields.iter().for_each(|field| ring.context.set(*field, wanted.get(*field)));
        let Ring { context, moderation, .. } = &mut *ring;
        moderation.set(context);
        if ring.owes {
            self.tell(ring);
        }
    }

    /// Raises the event that the queue is armed for, once that is due.
    fn tell(&self, mut ring: MutexGuard<'_, Ring>) {
        if ring.moderation.is_on() {
            let now = Instant::now();
            if let Some(due) = ring.moderation.due(now)
                && self.appoint(&mut ring, due)
            {
                ring.owes = true;
                return;
            }
            ring.moderation.told(now);
        }
        ring.owes = false;
        ring.armed = Armed::No;
        drop(ring);
        self.eqs.post_completion(self.eq, self.number);
    }

    /// Has itself looked at, at `at` or before; `false` when nobody will.
    fn appoint(&self, ring: &mut Ring, at: Instant) -> bool {
        if ring.appointed.is_some_and(|appointed| appointed <= at) {
            return true;
        }
        let set = self.eqs.alarms().set(at, self.this.clone());
        if set {
            ring.appointed = Some(at);
        }
        set
    }

    fn ring(&self) -> MutexGuard<'_, Ring> {
        lock(&self.ring)
    }

    fn is_full(&self, ring: &mut Ring) -> bool {
        if ring.waiting() < ring.entries.len() || self.overrun_ignored {
            return false;
        }
        ring.consumed = self.record.first().unwrap_or(ring.consumed) & COUNTER;
        ring.waiting() >= ring.entries.len()
    }

    /// Ends the queue: no entry comes any more, and one event tells the driver.
    fn fail(&self, mut ring: MutexGuard<'_, Ring>, syndrome: u8) -> bool {
        if ring.failed.replace(syndrome).is_none() {
            drop(ring);
            let why = if syndrome == OVERRUN { "it ran over" } else { "it is not in memory" };
            let place = format_args!("queue {:#x}: {why}", self.number);
            self.eqs.reports().tell(Act::CompletionQueue, place);
            let mut data = [0; DATA_LEN];
            put(&mut data, 0, &self.number.to_be_bytes());
            data[ERROR_SYNDROME] = syndrome;
            self.eqs.post(event::CQ_ERROR, 0, &data);
        }
        false
    }

    /// Whether a work queue of the Ethernet completes to it.
    pub(crate) fn is_in_use(&self) -> bool {
        self.users.load(Relaxed) > 0
    }

    /// No entry comes any more, even where the queue is still held.
    pub(crate) fn end(&self) {
        self.ring().failed = Some(ACCESS);
    }

    /// Whether its context names this page.
    pub(crate) fn is_rung_by(&self, uar: &Arc<Uar>) -> bool {
        Arc::ptr_eq(&self.uar, uar)
    }

    /// The arming doorbell: consumer counter in the low 24 bits of its first word.
    pub(crate) fn arm(&self, word: u32) {
        let mut ring = self.ring();
        let consumed = word & COUNTER;
        let latest = if word & SOLICITED_ONLY == 0 { ring.produced } else { ring.solicited };
        let unseen = latest.wrapping_sub(consumed) & COUNTER;
        ring.armed = if word & SOLICITED_ONLY == 0 { Armed::Any } else { Armed::Solicited };
        if (1..=ring.entries.len()).contains(&unseen) {
            self.tell(ring);
        }
    }

    /// The two words of the arming doorbell: the second names the queue.
    pub(crate) fn doorbell(data: &[u8]) -> (u32, u32) {
        (be32(data, 4) & COUNTER, be32(data, 0))
    }
}

impl Cq {
    /// Puts an entry into the ring, but for its owner bit; false once the queue has failed.
    pub(crate) fn post(&self, entry: [u8; cqe::LEN], solicited: bool) -> bool {
        let mut ring = self.ring();
        if ring.failed.is_some() || self.is_full(&mut ring) {
            return self.fail(ring, OVERRUN);
        }
        if ring.entries.write(ring.produced, entry).is_err() {
            return self.fail(ring, ACCESS);
        }
        ring.produced = ring.produced.wrapping_add(1) & COUNTER;
        if solicited {
            ring.solicited = ring.produced;
        }
        let wanted = match ring.armed {
            Armed::No => false,
            Armed::Solicited => solicited,
            Armed::Any => true,
        };
        if ring.moderation.is_on() {
            ring.moderation.completed(Instant::now());
        }
        if wanted {
            self.tell(ring);
        }
        true
    }
}

impl Appointed for Cq {
    /// An event may be due.
    fn due(&self) {
        let mut ring = self.ring();
        ring.appointed = None;
        if ring.owes {
            self.tell(ring);
        }
    }
}

/// The queues of a queue pair that bad block signatures are reported to, before the completion of
/// what met them.
pub(crate) struct SignatureReports {
    pub(crate) sends: Option<Arc<Cq>>,
    /// `None` where receives are of XRC: then only the key says it.
    pub(crate) receives: Option<Arc<Cq>>,
}

impl SignatureSink for SignatureReports {
    fn bad_signature(&self, found: &BadSignature, received: bool) {
        let queue = if received { &self.receives } else { &self.sends };
        if let Some(queue) = queue {
            queue.post(cqe::bad_signature(found), true);
        }
    }
}

impl CompletionSink for Cq {
    fn completed(&self, completion: Completion) -> bool {
        if completion.status == WcStatus::LocProtErr {
            let place = format_args!("queue pair {:#x}", completion.qp_num);
            self.eqs.reports().tell(Act::Protection, place);
        }
        let id = RequestId::from_wr_id(completion.wr_id);
        let name = self.names.of(completion.qp_num, id.srqn);
        self.post(cqe::encode(&completion, id, name), completion.solicited)
    }
}
