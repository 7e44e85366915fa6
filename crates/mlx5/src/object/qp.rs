//! Queue pairs (PRM "Queue Pair Context" `qpc`): both queues in one buffer of guest memory,
//! receives first, and their doorbell record.
//!
//! The HCA's queue pair does the work. Sends are read when the driver rings, and handed over as
//! values; receives are read when the HCA asks for one, as their posting tells nobody.

use crate::layout::bits::{Field, be32};
use crate::layout::context::Context;
use crate::layout::head::Status;
use crate::layout::request::RequestId;
use crate::layout::wqe::{self, BLOCK, Control};
use crate::machine::buffer::{Buffer, DoorbellRecord};
use crate::object::queue_memory::QueueMemory;
use crate::object::uar::Uar;
use crate::request::qp::CreateQp;
use engine_thread::lock;
use hca::transport::SharedReceive;
use hca::{ManagementInterface, QpType, RecvWr};
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicU16, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

/// The state in `qpc`.
pub(crate) const STATE: Field = Field::new(0x0, 4);

const SERVICE_RC: u8 = 0x0;
const SERVICE_UC: u8 = 0x1;
const SERVICE_UD: u8 = 0x2;
const SERVICE_XRC: u8 = 0x3;
const SERVICE_QP0: u8 = 0x7;
const SERVICE_QP1: u8 = 0x8;
const SERVICE_REG_UMR: u8 = 0xc;

const RQ_OWN: u8 = 0;
const RQ_SHARED: u8 = 1;
const RQ_NONE: u8 = 3;

/// Whether it sends datagrams, to peers that each name.
pub(crate) fn keeps_peers(request: &CreateQp) -> bool {
    Purpose::of(request).is_ok_and(|purpose| purpose.service() == QpType::Ud)
}

/// Basic blocks of its send queue, as a logarithm.
pub(crate) fn log_sends(request: &CreateQp) -> u32 {
    if request.no_sq { 0 } else { request.log_sq_size }
}

/// Whether its receives come from a shared queue, which it names then.
pub(crate) fn receives_are_shared(request: &CreateQp) -> bool {
    request.rq_type == RQ_SHARED
}

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
    pub(crate) fn of(request: &CreateQp) -> Result<Purpose, Status> {
        Ok(match request.st {
            SERVICE_RC => Purpose::Transport(QpType::Rc),
            SERVICE_UC => Purpose::Transport(QpType::Uc),
            SERVICE_UD => Purpose::Transport(QpType::Ud),
            // The receiving half of XRC has no queue to send from.
            SERVICE_XRC if request.no_sq => Purpose::Transport(QpType::XrcRecv),
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

    /// Whether its sends complete to a queue. The receiving half of XRC names one, and leaves it
    /// alone.
    pub(crate) fn sends_complete(self) -> bool {
        self.service() != QpType::XrcRecv
    }

    /// Whether its receives complete to a queue, and come from the shared queue that it names, if
    /// any. XRC's packets name theirs.
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
    context: Mutex<Context>,
}

/// A send request as it was read, whole.
pub(crate) struct Entry {
    pub(crate) id: RequestId,
    pub(crate) bytes: Vec<u8>,
}

/// What the driver wrote into its send queue is none: it rang for more than there is room for, or
/// memory is gone.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the send queue cannot be read")]
pub(crate) struct BadQueue;

impl Queues {
    /// As `create_qp_in` describes them; `uar` is the page that it names, if there are sends.
    pub(crate) fn new(
        places: &QueueMemory<'_>,
        uar: Option<Arc<Uar>>,
        request: &CreateQp,
    ) -> Result<Queues, Status> {
        let purpose = Purpose::of(request)?;
        let receives = match request.rq_type {
            RQ_OWN if purpose != Purpose::MemoryKeys => Receives::Own,
            RQ_SHARED => Receives::Shared(request.srqn_rmpn_xrqn),
            RQ_OWN | RQ_NONE => Receives::None,
            _ => return Err(Status::BadParameter),
        };
        let log_sq_size = (!request.no_sq).then_some(request.log_sq_size);
        let queues = Queues {
            purpose,
            receives,
            fast_registers: request.fre,
            uar,
            buffer: places.buffer(&request.placement)?,
            record: places.record(&request.placement)?,
            log_rq_size: request.log_rq_size,
            log_rq_stride: request.log_rq_stride + 4,
            log_sq_size,
            received: AtomicU16::new(0),
            sent: Mutex::new(0),
            context: Mutex::new(request.context.clone()),
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
    pub(crate) fn context(&self) -> Context {
        lock(&self.context).clone()
    }

    /// Keeps the address path and what else a modification gave, for queries.
    pub(crate) fn remember(&self, fields: &[Field], given: &Context) {
        let mut context = lock(&self.context);
        for field in fields {
            context.set(*field, given.get(*field));
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
        let mut sent = lock(&self.sent);
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
        *lock(&self.sent)
    }

    /// Sends are read again from this counter on.
    pub(crate) fn rewind(&self, counter: u16) {
        *lock(&self.sent) = counter;
    }

    /// RESET: counters begin anew.
    pub(crate) fn reset(&self) {
        self.received.store(0, Relaxed);
        *lock(&self.sent) = 0;
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
