//! Work queues of the Ethernet (PRM "Work Queue" `wq`, "Receive Queue Context" `rqc`, "Send Queue
//! Context" `sqc`): one ring of entries in guest memory with a doorbell record, in the states
//! reset, ready and error.

use crate::layout::bits::{be32, be64, put};
use crate::layout::context::Context;
use crate::layout::cqe;
use crate::layout::head::Status;
use crate::machine::buffer::{Buffer, DoorbellRecord};
use crate::object::cq::InUse;
use crate::object::shared::Shared;
use crate::request::nic::{CreateRq, ModifyQueue};
use hca::PdId;
use hca::{Access, Device};

const CYCLIC: u8 = 1;
pub(crate) const LOG_MAX_SIZE: u64 = 15;
const UNIT: usize = 16;
/// In a data segment: the bytes follow in the entry.
const INLINE: u32 = 1 << 31;

/// In a completion: what user space calls the queue, when, why not, and which request.
const QUEUE_INDEX: usize = 0x20;
const TIMESTAMP: usize = 0x30;
const SYNDROME: usize = 0x37;
const WQE_COUNTER: usize = 0x3c;

/// Why a request failed (`MLX5_CQE_SYNDROME_*`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(super) enum Syndrome {
    /// It is malformed.
    LocalOperation = 0x02,
    /// Its memory cannot be reached.
    LocalProtection = 0x04,
    /// The queue failed before.
    Flushed = 0x05,
}

/// What became of bytes that were to be put where a request says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Scattered {
    All,
    /// There is no room for all.
    TooLong,
    Unreachable,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum QueueState {
    Reset,
    Ready,
    Error,
}

impl QueueState {
    fn of(number: u8) -> Result<QueueState, Status> {
        match number {
            0 => Ok(QueueState::Reset),
            1 => Ok(QueueState::Ready),
            3 => Ok(QueueState::Error),
            _ => Err(Status::BadParameter),
        }
    }

    pub(super) fn number(self) -> u8 {
        match self {
            QueueState::Reset => 0,
            QueueState::Ready => 1,
            QueueState::Error => 3,
        }
    }

    /// The state that `MODIFY_RQ` or `MODIFY_SQ` leads to from `now`.
    pub(super) fn next(now: QueueState, request: &ModifyQueue) -> Result<QueueState, Status> {
        let next = QueueState::of(request.state)?;
        let fits = matches!(
            (now, next),
            (QueueState::Reset, QueueState::Ready) | (_, QueueState::Error | QueueState::Reset)
        );
        if request.from_state != now.number() || !(fits || now == next) {
            return Err(Status::BadResourceState);
        }
        Ok(next)
    }
}

/// A ring of entries in guest memory.
pub(super) struct Ring {
    buffer: Buffer,
    record: DoorbellRecord,
    log_size: u32,
    log_stride: u32,
    pd: PdId,
    cq: InUse,
    user_index: u32,
    pub(super) context: Context,
}

impl Ring {
    /// As `create_rq_in` and `create_sq_in` describe it.
    pub(super) fn new(shared: &Shared, request: &CreateRq) -> Result<Ring, Status> {
        let wq = &request.wq;
        let (log_size, log_stride) = (wq.log_wq_sz, wq.log_wq_stride);
        if wq.wq_type != CYCLIC || wq.wq_signature || log_stride < 4 {
            return Err(Status::BadParameter);
        }
        if u64::from(log_size) > LOG_MAX_SIZE {
            return Err(Status::Limits);
        }
        let cq = InUse::of(shared.objects.cqs.get(request.cqn)?.front);
        let pd = match shared.objects.pds.get(wq.pd) {
            Ok(pd) => pd.id(),
            // A queue that nothing is posted to may name none.
            Err(_) => shared.no_pd,
        };
        let places = shared.queue_memory();
        let buffer = places.buffer(&wq.placement)?;
        if !buffer.holds(1 << (log_size + log_stride)) {
            return Err(Status::BadParameter);
        }
        Ok(Ring {
            buffer,
            record: places.record(&wq.placement)?,
            log_size,
            log_stride,
            pd,
            cq,
            user_index: request.user_index,
            context: request.context.clone(),
        })
    }

    pub(super) fn size(&self) -> u32 {
        1 << self.log_size
    }

    /// Receive requests posted.
    pub(super) fn received(&self) -> Option<u16> {
        self.record.first().ok().map(|counter| counter as u16)
    }

    /// Basic blocks of send requests posted.
    pub(super) fn sends(&self) -> Option<u16> {
        self.record.sends().ok().map(|counter| counter as u16)
    }

    /// `count` entries from `counter` on.
    pub(super) fn entries(&self, counter: u16, count: u16) -> Option<Vec<u8>> {
        let len = 1usize << self.log_stride;
        let mut bytes = vec![0; usize::from(count) * len];
        for (step, entry) in (0..count).zip(bytes.chunks_mut(len)) {
            let index = u32::from(counter.wrapping_add(step)) & (self.size() - 1);
            self.buffer.read(u64::from(index) << self.log_stride, entry).ok()?;
        }
        Some(bytes)
    }

    /// Tells the driver that the request at `counter` is done; `entry` has what else there is to
    /// say. False if nothing reaches the driver.
    pub(super) fn complete(
        &self,
        hca: &Device,
        kind: u8,
        counter: u16,
        mut entry: [u8; cqe::LEN],
    ) -> bool {
        put(&mut entry, TIMESTAMP, &hca.now_ns().to_be_bytes());
        self.post(kind, counter, entry, false)
    }

    /// Tells the driver that the request at `counter` failed.
    pub(super) fn fail(
        &self,
        kind: u8,
        counter: u16,
        syndrome: Syndrome,
        mut entry: [u8; cqe::LEN],
    ) {
        entry[SYNDROME] = syndrome as u8;
        self.post(kind, counter, entry, true);
    }

    fn post(&self, kind: u8, counter: u16, mut entry: [u8; cqe::LEN], solicited: bool) -> bool {
        put(&mut entry, QUEUE_INDEX, &self.user_index.to_be_bytes());
        put(&mut entry, WQE_COUNTER, &counter.to_be_bytes());
        entry[cqe::OPCODE_OWNER] = kind << 4;
        self.cq.post(entry, solicited)
    }

    /// The bytes that data segments name, `limit` at most.
    ///
    /// # Errors
    /// [`Syndrome`] of why they cannot be had.
    pub(super) fn gather(
        &self,
        hca: &Device,
        segments: &[u8],
        limit: usize,
    ) -> Result<Vec<u8>, Syndrome> {
        let mut bytes = Vec::new();
        let mut rest = segments;
        while rest.len() >= UNIT {
            let count = be32(rest, 0);
            let len = (count & !INLINE) as usize;
            if bytes.len().saturating_add(len) > limit {
                return Err(Syndrome::LocalOperation);
            }
            if count & INLINE != 0 {
                bytes.extend_from_slice(rest.get(4..4 + len).ok_or(Syndrome::LocalOperation)?);
                rest = rest.get((4 + len).next_multiple_of(UNIT)..).unwrap_or_default();
                continue;
            }
            let from = bytes.len();
            bytes.resize(from + len, 0);
            self.memory(hca, rest, Access::empty())
                .and_then(|memory| memory.read(0, &mut bytes[from..]).ok())
                .ok_or(Syndrome::LocalProtection)?;
            rest = &rest[UNIT..];
        }
        Ok(bytes)
    }

    fn memory(&self, hca: &Device, segment: &[u8], access: Access) -> Option<hca::keys::MemRef> {
        let (len, key, addr) = (be32(segment, 0), be32(segment, 4), be64(segment, 8));
        hca.keys().resolve(self.pd, key, addr, (len & !INLINE).into(), access).ok()
    }

    /// Puts `bytes` where the data segments of a receive request say.
    pub(super) fn scatter(&self, hca: &Device, segments: &[u8], bytes: &[u8]) -> Scattered {
        let mut rest = bytes;
        for segment in segments.chunks_exact(UNIT) {
            // A key may have the number that ends a list; what ends one has no length.
            if rest.is_empty() {
                break;
            }
            let len = (be32(segment, 0) & !INLINE) as usize;
            let (piece, behind) = rest.split_at(len.min(rest.len()));
            let placed = self
                .memory(hca, segment, Access::LOCAL_WRITE)
                .is_some_and(|memory| memory.write(0, piece).is_ok());
            if !placed && !piece.is_empty() {
                return Scattered::Unreachable;
            }
            rest = behind;
        }
        if rest.is_empty() { Scattered::All } else { Scattered::TooLong }
    }
}
