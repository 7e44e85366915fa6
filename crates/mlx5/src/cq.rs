//! Completion queues (PRM "Completion Queue Context" `cqc`): a ring of entries in guest memory, a consumer counter in a doorbell
//! record, and arming by a doorbell.

use crate::bits::{Field, be32, put};
use crate::buffer::{Buffer, DoorbellRecord};
use crate::bus::Bus;
use crate::caps::LOG_MAX_CQ_SIZE;
use crate::cqe;
use crate::eq::{DATA_LEN, Eqs, event};
use crate::opcode::Status;
use hca::{Completion, CompletionSink};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Bytes of `create_cq_in` before the pages.
const CREATE_LEN: usize = 0x110;
const CONTEXT_BIT: usize = 0x80;
pub(crate) const CONTEXT: std::ops::Range<usize> = 0x10..0x50;
const ENTRY_SIZE: Field = Field::new(0x8, 3).at(CONTEXT_BIT);
const OVERRUN_IGNORE: Field = Field::new(0xe, 1).at(CONTEXT_BIT);
const PAGE_OFFSET: Field = Field::new(0x54, 6).at(CONTEXT_BIT);
const LOG_SIZE: Field = Field::new(0x63, 5).at(CONTEXT_BIT);
const EQ: Field = Field::new(0xa0, 32).at(CONTEXT_BIT);
const LOG_PAGE_SIZE: Field = Field::new(0xc3, 5).at(CONTEXT_BIT);
const RECORD: Field = Field::new(0x1c0, 64).at(CONTEXT_BIT);

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

struct Ring {
    produced: u32,
    /// As the doorbell record said last.
    consumed: u32,
    /// Produced counter after the latest solicited completion.
    solicited: u32,
    armed: Armed,
    failed: bool,
}

/// One completion queue.
pub(crate) struct Cq {
    number: u32,
    eqs: Arc<Eqs>,
    eq: u8,
    buffer: Buffer,
    record: DoorbellRecord,
    log_size: u32,
    /// Bytes from one entry to the next.
    stride: u64,
    overrun_ignored: bool,
    context: Vec<u8>,
    ring: Mutex<Ring>,
}

impl Cq {
    /// As `create_cq_in` describes it.
    pub(crate) fn new(
        number: u32,
        bus: &dyn Bus,
        eqs: &Arc<Eqs>,
        input: &[u8],
    ) -> Result<Cq, Status> {
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
        let eq = EQ.get32(input);
        if !eqs.exists(eq) {
            return Err(Status::BadResource);
        }
        let pages = input.get(CREATE_LEN..).unwrap_or_default();
        let shift = LOG_PAGE_SIZE.get32(input) + 12;
        let offset = PAGE_OFFSET.get(input);
        let buffer = Buffer::new(bus.memory(), pages, shift, offset);
        if !buffer.holds(stride << log_size) {
            return Err(Status::BadParameter);
        }
        let ring = Ring { produced: 0, consumed: 0, solicited: 0, armed: Armed::No, failed: false };
        Ok(Cq {
            number,
            eqs: eqs.clone(),
            eq: eq as u8,
            buffer,
            record: DoorbellRecord::new(bus.memory(), RECORD.get(input)),
            log_size,
            stride,
            overrun_ignored: OVERRUN_IGNORE.is_set(input),
            context: input.get(CONTEXT).unwrap_or_default().to_vec(),
            ring: Mutex::new(ring),
        })
    }

    /// Its context as it was created.
    pub(crate) fn context(&self) -> &[u8] {
        &self.context
    }

    fn ring(&self) -> MutexGuard<'_, Ring> {
        self.ring.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn size(&self) -> u32 {
        1 << self.log_size
    }

    fn is_full(&self, ring: &mut Ring) -> bool {
        let waiting = |ring: &Ring| ring.produced.wrapping_sub(ring.consumed) & COUNTER;
        if waiting(ring) < self.size() || self.overrun_ignored {
            return false;
        }
        ring.consumed = self.record.first().unwrap_or(ring.consumed) & COUNTER;
        waiting(ring) >= self.size()
    }

    /// No entry comes any more; the driver is told once.
    fn fail(&self, mut ring: MutexGuard<'_, Ring>, syndrome: u8) -> bool {
        if !std::mem::replace(&mut ring.failed, true) {
            drop(ring);
            let mut data = [0; DATA_LEN];
            put(&mut data, 0, &self.number.to_be_bytes());
            data[ERROR_SYNDROME] = syndrome;
            self.eqs.post(event::CQ_ERROR, 0, &data);
        }
        false
    }

    /// The arming doorbell: consumer counter in the low 24 bits of its first word.
    pub(crate) fn arm(&self, word: u32) {
        let mut ring = self.ring();
        let consumed = word & COUNTER;
        let latest = if word & SOLICITED_ONLY == 0 { ring.produced } else { ring.solicited };
        let unseen = latest.wrapping_sub(consumed) & COUNTER;
        if (1..=self.size()).contains(&unseen) {
            ring.armed = Armed::No;
            drop(ring);
            self.eqs.post_completion(self.eq, self.number);
        } else {
            ring.armed = if word & SOLICITED_ONLY == 0 { Armed::Any } else { Armed::Solicited };
        }
    }

    /// The two words of the arming doorbell: the second names the queue.
    pub(crate) fn doorbell(data: &[u8]) -> (u32, u32) {
        (be32(data, 4) & COUNTER, be32(data, 0))
    }
}

impl CompletionSink for Cq {
    fn completed(&self, completion: Completion) -> bool {
        let mut ring = self.ring();
        if ring.failed || self.is_full(&mut ring) {
            return self.fail(ring, OVERRUN);
        }
        let mut entry = cqe::encode(&completion);
        entry[cqe::OPCODE_OWNER] |= (ring.produced >> self.log_size & 1) as u8;
        let index = u64::from(ring.produced & (self.size() - 1));
        let at = index * self.stride + (self.stride - cqe::LEN as u64);
        if self.buffer.write(at, &entry).is_err() {
            return self.fail(ring, ACCESS);
        }
        ring.produced = ring.produced.wrapping_add(1) & COUNTER;
        if completion.solicited {
            ring.solicited = ring.produced;
        }
        let wanted = match ring.armed {
            Armed::No => false,
            Armed::Solicited => completion.solicited,
            Armed::Any => true,
        };
        if wanted {
            ring.armed = Armed::No;
            drop(ring);
            self.eqs.post_completion(self.eq, self.number);
        }
        true
    }
}
