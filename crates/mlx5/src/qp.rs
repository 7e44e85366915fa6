//! Queue pairs (PRM "Queue Pair Context" `qpc`): both queues in one buffer of guest memory, receives first, and their doorbell
//! record.
//!
//! The HCA's queue pair does the work. Sends are read when the driver rings, and handed over as values; receives are read when
//! the HCA asks for one, as their posting tells nobody.

use crate::bits::{Field, be32};
use crate::buffer::{Buffer, DoorbellRecord};
use crate::opcode::Status;
use crate::request::RequestId;
use crate::uar::Uar;
use crate::user_memory::{Place, Places};
use crate::wqe::{self, BLOCK, Control};
use hca::transport::SharedReceive;
use hca::{ManagementInterface, QpType, RecvWr};
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicU16, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

/// `qpc` in the commands that carry one.
pub(crate) const CONTEXT_BIT: usize = 0xc0;
pub(crate) const CONTEXT: std::ops::Range<usize> = 0x18..0x100;
/// Bytes of `create_qp_in` before the pages.
const CREATE_LEN: usize = 0x110;

pub(crate) const STATE: Field = Field::new(0x0, 4);
const SERVICE: Field = Field::new(0x8, 8).at(CONTEXT_BIT);
pub(crate) const BLOCKS_OWN_MULTICAST: Field = Field::new(0x21, 1).at(CONTEXT_BIT);
pub(crate) const PD: Field = Field::new(0x28, 24).at(CONTEXT_BIT);
const LOG_RQ_SIZE: Field = Field::new(0x49, 4).at(CONTEXT_BIT);
const LOG_RQ_STRIDE: Field = Field::new(0x4d, 3).at(CONTEXT_BIT);
const NO_SQ: Field = Field::new(0x50, 1).at(CONTEXT_BIT);
const LOG_SQ_SIZE: Field = Field::new(0x51, 4).at(CONTEXT_BIT);
/// What user space calls it (`user_index`).
pub(crate) const NAME: Field = Field::new(0x88, 24).at(CONTEXT_BIT);
const LOG_PAGE_SIZE: Field = Field::new(0xa3, 5).at(CONTEXT_BIT);
const PAGE_OFFSET: Field = Field::new(0x494, 6).at(CONTEXT_BIT);
pub(crate) const SEND_CQ: Field = Field::new(0x3e8, 24).at(CONTEXT_BIT);
pub(crate) const RECEIVE_CQ: Field = Field::new(0x4e8, 24).at(CONTEXT_BIT);
pub(crate) const XRC_DOMAIN: Field = Field::new(0x4c8, 24).at(CONTEXT_BIT);
/// User memory in their place.
pub(crate) const WORK: Place = Place::behind_context(0x800);
pub(crate) const RECORD: Place = Place::new(
    Field::new(0x683, 1).at(CONTEXT_BIT),
    Field::new(0x720, 32).at(CONTEXT_BIT),
    Field::new(0x500, 64).at(CONTEXT_BIT),
);
/// "Fast registration enable": it may write lists of pages into memory keys.
pub(crate) const FAST_REGISTERS: Field = Field::new(0x394, 1).at(CONTEXT_BIT);
const RQ_TYPE: Field = Field::new(0x565, 3).at(CONTEXT_BIT);
pub(crate) const SRQ: Field = Field::new(0x568, 24).at(CONTEXT_BIT);

const SERVICE_RC: u64 = 0x0;
const SERVICE_UC: u64 = 0x1;
const SERVICE_UD: u64 = 0x2;
const SERVICE_XRC: u64 = 0x3;
const SERVICE_QP0: u64 = 0x7;
const SERVICE_QP1: u64 = 0x8;
const SERVICE_REG_UMR: u64 = 0xc;

const RQ_OWN: u64 = 0;
const RQ_SHARED: u64 = 1;
const RQ_NONE: u64 = 3;

/// Whether it sends datagrams, to peers that each name.
pub(crate) fn keeps_peers(input: &[u8]) -> bool {
    Purpose::of(input).is_ok_and(|purpose| purpose.service() == QpType::Ud)
}

/// Basic blocks of its send queue, as a logarithm.
pub(crate) fn log_sends(input: &[u8]) -> u32 {
    if sends(input) { LOG_SQ_SIZE.get32(input) } else { 0 }
}

/// Whether it has a send queue.
pub(crate) fn sends(input: &[u8]) -> bool {
    !NO_SQ.is_set(input)
}

/// Whether its receives come from a shared queue, which it names then.
pub(crate) fn receives_are_shared(input: &[u8]) -> bool {
    RQ_TYPE.get(input) == RQ_SHARED
}

/// The set of counters that it counts into.
pub(crate) const COUNTER_SET: Field = Field::new(0x60, 8).at(CONTEXT_BIT);

/// What a queue pair is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Purpose {
    /// One of the HCA's.
    Transport(QpType),
    /// QP 1: datagrams.
    GeneralServices,
    /// QP 0: datagrams too.
    SubnetManagement,
    /// Only changes memory keys.
    MemoryKeys,
}

impl Purpose {
    pub(crate) fn of(input: &[u8]) -> Result<Purpose, Status> {
        Ok(match SERVICE.get(input) {
            SERVICE_RC => Purpose::Transport(QpType::Rc),
            SERVICE_UC => Purpose::Transport(QpType::Uc),
            SERVICE_UD => Purpose::Transport(QpType::Ud),
            // The receiving half of XRC has no queue to send from.
            SERVICE_XRC if NO_SQ.is_set(input) => Purpose::Transport(QpType::XrcRecv),
            SERVICE_XRC => Purpose::Transport(QpType::XrcSend),
            SERVICE_QP0 => Purpose::SubnetManagement,
            SERVICE_QP1 => Purpose::GeneralServices,
            SERVICE_REG_UMR => Purpose::MemoryKeys,
            _ => return Err(Status::BadParameter),
        })
    }

    /// The number by which peers know it, where that is not its own.
    pub(crate) fn management(self) -> Option<ManagementInterface> {
        match self {
            Purpose::SubnetManagement => Some(ManagementInterface::Subnet),
            Purpose::GeneralServices => Some(ManagementInterface::GeneralServices),
            Purpose::Transport(_) | Purpose::MemoryKeys => None,
        }
    }

    /// Whether a queue is told of its sends. The receiving half of XRC names one, and leaves it alone.
    pub(crate) fn sends_complete(self) -> bool {
        self.service() != QpType::XrcRecv
    }

    /// Whether a queue is told of its receives, and a shared queue that it names gives them. XRC's packets name theirs.
    pub(crate) fn receives_complete(self) -> bool {
        let xrc = matches!(self.service(), QpType::XrcSend | QpType::XrcRecv);
        !xrc && self != Purpose::MemoryKeys
    }

    /// The HCA's service for it.
    pub(crate) fn service(self) -> QpType {
        match self {
            Purpose::Transport(service) => service,
            Purpose::GeneralServices | Purpose::SubnetManagement => QpType::Ud,
            Purpose::MemoryKeys => QpType::Rc,
        }
    }
}

/// Where a queue pair's receives come from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Receives {
    /// Its own queue.
    Own,
    /// A shared one.
    Shared(u32),
    /// It has none.
    None,
}

/// The queues of a queue pair in guest memory.
pub(crate) struct Queues {
    pub(crate) purpose: Purpose,
    pub(crate) receives: Receives,
    pub(crate) fast_registers: bool,
    /// By which page it is rung for.
    uar: Option<Arc<Uar>>,
    buffer: Buffer,
    record: DoorbellRecord,
    log_rq_size: u32,
    log_rq_stride: u32,
    log_sq_size: Option<u32>,
    /// Receive requests taken.
    received: AtomicU16,
    /// Counter of the next send's first basic block.
    sent: Mutex<u16>,
    context: Mutex<Vec<u8>>,
}

/// A send request as it was read, whole.
pub(crate) struct Entry {
    pub(crate) id: RequestId,
    pub(crate) bytes: Vec<u8>,
}

/// What the driver wrote into its send queue is none: it rang for more than there is room for, or memory is gone.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the send queue cannot be read")]
pub(crate) struct BadQueue;

impl Queues {
    /// As `create_qp_in` describes them; `uar` is the page that it names, if there are sends.
    pub(crate) fn new(
        places: &Places<'_>,
        uar: Option<Arc<Uar>>,
        input: &[u8],
    ) -> Result<Queues, Status> {
        let purpose = Purpose::of(input)?;
        let receives = match RQ_TYPE.get(input) {
            RQ_OWN if purpose != Purpose::MemoryKeys => Receives::Own,
            RQ_SHARED => Receives::Shared(SRQ.get32(input)),
            RQ_OWN | RQ_NONE => Receives::None,
            _ => return Err(Status::BadParameter),
        };
        let log_sq_size = (!NO_SQ.is_set(input)).then(|| LOG_SQ_SIZE.get32(input));
        let pages = input.get(CREATE_LEN..).unwrap_or_default();
        let shift = LOG_PAGE_SIZE.get32(input) + 12;
        let offset = PAGE_OFFSET.get(input);
        let queues = Queues {
            purpose,
            receives,
            fast_registers: FAST_REGISTERS.is_set(input),
            uar,
            buffer: places.buffer(input, &WORK, (pages, shift, offset))?,
            record: places.record(input, &RECORD)?,
            log_rq_size: LOG_RQ_SIZE.get32(input),
            log_rq_stride: LOG_RQ_STRIDE.get32(input) + 4,
            log_sq_size,
            received: AtomicU16::new(0),
            sent: Mutex::new(0),
            context: Mutex::new(input.get(CONTEXT).unwrap_or_default().to_vec()),
        };
        let sends = log_sq_size.map_or(0, |log| (BLOCK as u64) << log);
        if queues.buffer.holds(queues.send_queue() + sends) {
            Ok(queues)
        } else {
            Err(Status::BadParameter)
        }
    }

    /// Whether its context names this page.
    pub(crate) fn are_rung_by(&self, uar: &Arc<Uar>) -> bool {
        self.uar.as_ref().is_some_and(|own| Arc::ptr_eq(own, uar))
    }

    /// Where the send queue begins: behind the receive queue.
    fn send_queue(&self) -> u64 {
        match self.receives {
            Receives::Own => 1 << (self.log_rq_size + self.log_rq_stride),
            Receives::Shared(_) | Receives::None => 0,
        }
    }

    /// Most sends outstanding.
    pub(crate) fn max_sends(&self) -> u32 {
        self.log_sq_size.map_or(0, |log| 1 << log)
    }

    /// Its context as it was created, with what modifications brought.
    pub(crate) fn context(&self) -> Vec<u8> {
        self.context.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Keeps the address path and what else a modification gave, for queries.
    pub(crate) fn remember(&self, fields: &[Field], input: &[u8]) {
        let mut context = self.context.lock().unwrap_or_else(PoisonError::into_inner);
        for field in fields {
            field.set(&mut context, field.at(CONTEXT_BIT).get(input));
        }
    }

    /// Reads the sends that the driver rang for, in order, until `each` breaks off.
    ///
    /// # Errors
    /// [`BadQueue`]; those before it were handed out.
    pub(crate) fn drain(
        &self,
        mut each: impl FnMut(Entry) -> ControlFlow<()>,
    ) -> Result<(), BadQueue> {
        let Some(log_size) = self.log_sq_size else { return Err(BadQueue) };
        let mut sent = self.sent.lock().unwrap_or_else(PoisonError::into_inner);
        let posted = self.record.sends().map_err(|_| BadQueue)? as u16;
        let mut left = u32::from(posted.wrapping_sub(*sent));
        if left > 1 << log_size {
            return Err(BadQueue);
        }
        while left > 0 {
            let entry = self.entry(*sent, log_size).map_err(|_| BadQueue)?;
            let blocks = Control::parse(&entry.bytes).blocks();
            left = left.checked_sub(blocks.into()).ok_or(BadQueue)?;
            *sent = sent.wrapping_add(blocks);
            if each(entry).is_break() {
                break;
            }
        }
        Ok(())
    }

    /// The send request at `counter`, if it can be read.
    pub(crate) fn read(&self, counter: u16) -> Option<Entry> {
        self.entry(counter, self.log_sq_size?).ok()
    }

    /// The entry at `counter`, which may wrap around the end of the queue.
    fn entry(&self, counter: u16, log_size: u32) -> Result<Entry, umem::AccessError> {
        let mut bytes = self.blocks(counter, log_size, 1)?;
        let control = Control::parse(&bytes);
        if control.blocks() > 1 {
            bytes = self.blocks(counter, log_size, control.blocks())?;
        }
        bytes.truncate(control.len().max(16));
        let id = RequestId { counter, opcode: control.opcode, srqn: 0 };
        Ok(Entry { id, bytes })
    }

    fn blocks(&self, counter: u16, log_size: u32, n: u16) -> Result<Vec<u8>, umem::AccessError> {
        let mut bytes = vec![0; usize::from(n) * BLOCK];
        for (step, block) in (0..).zip(bytes.chunks_mut(BLOCK)) {
            let index = u64::from(counter.wrapping_add(step)) & ((1 << log_size) - 1);
            self.buffer.read(self.send_queue() + index * BLOCK as u64, block)?;
        }
        Ok(bytes)
    }

    /// Counter of the next send's first basic block.
    pub(crate) fn sent(&self) -> u16 {
        *self.sent.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends are read again from this counter on.
    pub(crate) fn rewind(&self, counter: u16) {
        *self.sent.lock().unwrap_or_else(PoisonError::into_inner) = counter;
    }

    /// RESET: counters begin anew.
    pub(crate) fn reset(&self) {
        self.received.store(0, Relaxed);
        *self.sent.lock().unwrap_or_else(PoisonError::into_inner) = 0;
    }
}

impl SharedReceive for Queues {
    fn take(&self) -> Option<RecvWr> {
        let taken = self.received.load(Relaxed);
        let posted = self.record.first().ok()? as u16;
        let waiting = posted.wrapping_sub(taken);
        if waiting == 0 || u32::from(waiting) > 1 << self.log_rq_size {
            return None;
        }
        let mut bytes = vec![0; 1 << self.log_rq_stride];
        let index = u64::from(taken) & ((1 << self.log_rq_size) - 1);
        self.buffer.read(index << self.log_rq_stride, &mut bytes).ok()?;
        self.received.store(taken.wrapping_add(1), Relaxed);
        let id = RequestId { counter: taken, opcode: 0, srqn: 0 };
        Some(wqe::receive(id, &bytes))
    }
}

/// The queue pair that a send doorbell names: its number is in the high 24 bits of the second word.
pub(crate) fn doorbell(data: &[u8]) -> u32 {
    be32(data, 4) >> 8
}
