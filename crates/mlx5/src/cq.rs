//! Completion queues (PRM "Completion Queue Context" `cqc`): a ring of entries in guest memory, a consumer counter in a doorbell
//! record, and arming by a doorbell. What was armed for may be told late ([`crate::moderation`]).

use crate::alarm::Appointed;
use crate::bits::{Field, be32, put};
use crate::buffer::{Buffer, DoorbellRecord};
use crate::caps::LOG_MAX_CQ_SIZE;
use crate::cqe;
use crate::eq::{DATA_LEN, Eqs, event};
use crate::moderation::Moderation;
use crate::names::Names;
use crate::opcode::Status;
use crate::report::Act;
use crate::request::RequestId;
use crate::uar::Uar;
use crate::uctx;
use crate::user_memory::{Place, Places};
use hca::{BadSignature, Completion, CompletionSink, SignatureSink, WcStatus};
use std::ops::Deref;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Instant;
use umem::AccessError;

/// Bytes of `create_cq_in` before the pages.
const CREATE_LEN: usize = 0x110;
pub(crate) const CONTEXT_BIT: usize = 0x80;
pub(crate) const CONTEXT: std::ops::Range<usize> = 0x10..0x50;
const ENTRY_SIZE: Field = Field::new(0x8, 3).at(CONTEXT_BIT);
const OVERRUN_IGNORE: Field = Field::new(0xe, 1).at(CONTEXT_BIT);
const PAGE_OFFSET: Field = Field::new(0x54, 6).at(CONTEXT_BIT);
const LOG_SIZE: Field = Field::new(0x63, 5).at(CONTEXT_BIT);
const EQ: Field = Field::new(0xa0, 32).at(CONTEXT_BIT);
const LOG_PAGE_SIZE: Field = Field::new(0xc3, 5).at(CONTEXT_BIT);
/// User memory in their place.
pub(crate) const ENTRIES: Place = Place::behind_context(0x280);
pub(crate) const RECORD: Place = Place::new(
    Field::new(0x6, 1).at(CONTEXT_BIT),
    Field::new(0x20, 32).at(CONTEXT_BIT),
    Field::new(0x1c0, 64).at(CONTEXT_BIT),
);
/// Of the answer of a query, in the context itself.
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
    fn new(places: &Places<'_>, input: &[u8]) -> Result<Entries, Status> {
        let log_size = LOG_SIZE.get32(input);
        let stride = match ENTRY_SIZE.get(input) {
            0 => 64,
            // 2 is an entry of 64 bytes padded to 128, which looks the same here.
            1 | 2 => 128,
            _ => return Err(Status::BadParameter),
        };
        if u64::from(log_size) > LOG_MAX_CQ_SIZE {
            return Err(Status::Limits);
        }
        let pages = input.get(CREATE_LEN..).unwrap_or_default();
        let shift = LOG_PAGE_SIZE.get32(input) + 12;
        let pages = (pages, shift, PAGE_OFFSET.get(input));
        let buffer = places.buffer(input, &ENTRIES, pages)?;
        if !buffer.holds(stride << log_size) {
            return Err(Status::BadParameter);
        }
        Ok(Entries { buffer, log_size, stride })
    }

    fn len(&self) -> u32 {
        1 << self.log_size
    }

    /// Writes the entry with this counter; its owner bit tells the driver in which round of the ring it is.
    fn write(&self, counter: u32, mut entry: [u8; cqe::LEN]) -> Result<(), AccessError> {
        entry[cqe::OPCODE_OWNER] |= (counter >> self.log_size & 1) as u8;
        let index = u64::from(counter & (self.len() - 1));
        self.buffer.write(index * self.stride + (self.stride - cqe::LEN as u64), &entry)
    }
}

struct Ring {
    entries: Entries,
    /// Its context as the driver gave it.
    context: Vec<u8>,
    produced: u32,
    /// As the doorbell record said last.
    consumed: u32,
    /// Produced counter after the latest solicited completion.
    solicited: u32,
    armed: Armed,
    moderation: Moderation,
    /// Something that it is armed for waits to be told of.
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
        places: &Places<'_>,
        eqs: &Arc<Eqs>,
        names: &Arc<Names>,
        uar: Arc<Uar>,
        input: &[u8],
    ) -> Result<Arc<Cq>, Status> {
        let entries = Entries::new(places, input)?;
        let eq = EQ.get32(input);
        // What a driver hears of itself must not be drowned in what a program completes.
        if !eqs.exists(eq) || uctx::is_of_user(input) && !eqs.is_for_completions(eq) {
            return Err(Status::BadResource);
        }
        let context = input.get(CONTEXT).unwrap_or_default().to_vec();
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
        let record = places.record(input, &RECORD)?;
        Ok(Arc::new_cyclic(|this| Cq {
            this: this.clone(),
            number,
            eqs: eqs.clone(),
            names: names.clone(),
            uar,
            eq: eq as u8,
            record,
            overrun_ignored: OVERRUN_IGNORE.is_set(input),
            users: AtomicU32::new(0),
            ring: Mutex::new(ring),
        }))
    }

    /// Its context as it was created, with its present state and counters.
    pub(crate) fn context(&self) -> Vec<u8> {
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
            field.set(&mut context, value);
        }
        context
    }

    /// Goes on in other memory, of another size, as `modify_cq_in` describes it. The last entry in the old place says so; the
    /// driver takes those before it along, each one place further.
    pub(crate) fn resize(&self, places: &Places<'_>, input: &[u8]) -> Result<(), Status> {
        let entries = Entries::new(places, input)?;
        let mut ring = self.ring();
        ring.consumed = self.record.first().unwrap_or(ring.consumed) & COUNTER;
        let waiting = ring.waiting();
        if ring.failed.is_some() || waiting >= ring.entries.len() || waiting >= entries.len() {
            return Err(Status::BadResourceState);
        }
        ring.entries.write(ring.produced, cqe::resized()).map_err(|_| Status::BadResourceState)?;
        ring.produced = ring.produced.wrapping_add(1) & COUNTER;
        for field in [ENTRY_SIZE, PAGE_OFFSET, LOG_SIZE, LOG_PAGE_SIZE] {
            field.at_start(CONTEXT_BIT).set(&mut ring.context, field.get(input));
        }
        ring.entries = entries;
        Ok(())
    }

    /// Tells of events as `fields` of `context` say from now on.
    pub(crate) fn moderate(&self, fields: &[Field], context: &[u8]) {
        let mut ring = self.ring();
        fields.iter().for_each(|field| field.set(&mut ring.context, field.get(context)));
        let Ring { context, moderation, .. } = &mut *ring;
        moderation.set(context);
        if ring.owes {
            self.tell(ring);
        }
    }

    /// Tells of what the queue is armed for, once that is due.
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
        self.ring.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_full(&self, ring: &mut Ring) -> bool {
        if ring.waiting() < ring.entries.len() || self.overrun_ignored {
            return false;
        }
        ring.consumed = self.record.first().unwrap_or(ring.consumed) & COUNTER;
        ring.waiting() >= ring.entries.len()
    }

    /// No entry comes any more; the driver is told once.
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

    /// No entry comes any more, whoever still has the queue.
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

/// Queues of a queue pair that hear of bad block signatures, before the completion of what met them.
pub(crate) struct SignatureReports {
    pub(crate) sends: Option<Arc<Cq>>,
    /// None where receives are of XRC: then nobody is told but the key.
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
