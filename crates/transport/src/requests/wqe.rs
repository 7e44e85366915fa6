//! One send request on its way: where its bytes are, which PSNs it takes, how far it is.

use super::gather::{RangeShelf, SgMemory};
use super::vendor;
use super::window::request_cost;
use crate::keys::{KeyError, KeyTable};
use crate::queues::shared::TagReceive;
use crate::queues::slots::{SendSlot, SlotLost};
use crate::values::*;
use std::sync::Arc;
use umem::{AccessError, Fold};
use wire::Psn;

/// How far a send request is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Phase {
    /// Not begun; has no PSN.
    Posted,
    /// Has its PSNs; packets are on their way.
    Started,
    /// Failed here, before or amid its packets; completes when it is the oldest.
    Failed(WcStatus, u32),
}

/// A request that the HCA itself posted.
pub(crate) enum Offload {
    /// The READ of what a rendezvous announced.
    Fetch {
        /// Where the tagged buffer completes.
        queue: Arc<dyn TagReceive>,
        /// The domain of its keys.
        pd: PdId,
        /// What ends the rendezvous.
        fin: [u8; 16],
    },
    /// The message that ends a rendezvous.
    Fin,
}

/// The end of a send request.
pub(crate) struct Ended {
    pub(crate) done: Completion,
    /// What the HCA posted it for, if the program did not.
    pub(crate) offload: Option<Offload>,
}

/// A send request in the queue.
pub(crate) struct Wqe {
    /// Its payload is empty where `slot` describes it.
    pub(crate) wr: SendWr,
    pub(crate) slot: Option<SendSlot>,
    /// Payload, or bytes a READ or atomic brings.
    pub(crate) length: u32,
    pub(crate) signaled: bool,
    pub(crate) memory: SgMemory,
    pub(crate) phase: Phase,
    pub(crate) first: Psn,
    /// PSNs it takes.
    pub(crate) packets: u32,
    /// PSNs of it that the peer has answered.
    pub(crate) acked: u32,
    /// READ: PSNs that one request packet covers.
    pub(crate) chunk: u32,
    /// Bytes of a front end's own work that are done.
    pub(crate) worked: u64,
    /// Cost of everything before it since the QP began to send.
    pub(crate) base: u64,
    /// The HCA posted it, not the program.
    pub(crate) offload: Option<Offload>,
    /// It was taken back before it began: it completes in its turn and does nothing else.
    pub(crate) cancelled: bool,
}

impl Wqe {
    /// Whether it has PSNs: one that failed before it began has none.
    pub(crate) fn has_psns(&self) -> bool {
        self.phase != Phase::Posted && self.packets > 0
    }

    pub(crate) fn new(wr: SendWr, sq_sig_all: bool) -> Wqe {
        let length = match (&wr.op, &wr.payload) {
            (SendOp::CompareSwap { .. } | SendOp::FetchAdd { .. }, _) => 8,
            (SendOp::Flush(_), _) => 0,
            (_, Payload::Inline(bytes)) => bytes.len() as u32,
            // `post_send` has refused anything longer than 2^31.
            (_, Payload::Gather(list)) => total_length(list) as u32,
        };
        Wqe {
            signaled: sq_sig_all || wr.flags.contains(SendFlags::SIGNALED),
            wr,
            slot: None,
            length,
            memory: SgMemory::default(),
            phase: Phase::Posted,
            first: Psn::default(),
            packets: 0,
            acked: 0,
            chunk: 1,
            worked: 0,
            base: 0,
            offload: None,
            cancelled: false,
        }
    }

    /// A request that the HCA itself posts: `wr`, for `offload`.
    pub(crate) fn offloaded(wr: SendWr, offload: Offload) -> Wqe {
        Wqe { offload: Some(offload), ..Wqe::new(wr, false) }
    }

    /// The domain of its keys on a QP of domain `pd`.
    pub(crate) fn pd(&self, pd: PdId) -> PdId {
        match &self.offload {
            Some(Offload::Fetch { pd, .. }) => *pd,
            _ => pd,
        }
    }

    /// Whether the peer answers it with more than an acknowledge and holds a resource for it.
    pub(crate) fn is_answered(&self) -> bool {
        self.is_read() || self.is_atomic() || self.is_placement()
    }

    /// Whether the answer brings data: a READ or an atomic.
    pub(crate) fn is_fetch(&self) -> bool {
        self.is_read() || self.is_atomic()
    }

    /// An ATOMIC WRITE or FLUSH, which a READ response without data answers.
    pub(crate) fn is_placement(&self) -> bool {
        matches!(self.wr.op, SendOp::AtomicWrite(_) | SendOp::Flush(_))
    }

    /// Bytes that the READ response at PSN number `packet` brings.
    pub(crate) fn answer_at(&self, packet: u32, mtu: u32) -> usize {
        if self.is_placement() { 0 } else { self.payload_at(packet, mtu) }
    }

    pub(crate) fn is_read(&self) -> bool {
        matches!(self.wr.op, SendOp::Read(_))
    }

    pub(crate) fn is_atomic(&self) -> bool {
        matches!(self.wr.op, SendOp::CompareSwap { .. } | SendOp::FetchAdd { .. })
    }

    /// Tells the peer nothing: changes a key here, or was cancelled.
    pub(crate) fn is_local(&self) -> bool {
        use SendOp::{BindMw, ConfigureKey, Custom, LocalInvalidate};
        let of_keys =
            matches!(self.wr.op, LocalInvalidate(_) | BindMw(_) | ConfigureKey(_) | Custom(_));
        of_keys || self.cancelled
    }

    /// Does what [`Wqe::is_local`] is about, or a part of it. `Err` is the status it fails with.
    pub(crate) fn change_key(
        &mut self,
        keys: &KeyTable,
        who: (PdId, u32),
        custom: Option<&dyn CustomWork>,
    ) -> Result<Worked, (WcStatus, u32)> {
        let done = match &self.wr.op {
            _ if self.cancelled => Ok(()),
            SendOp::Custom(token) => {
                let custom = custom.ok_or((WcStatus::LocQpOpErr, vendor::NONE))?;
                let worked = custom.perform(*token, self.worked);
                let worked = worked.map_err(|status| (status, vendor::NONE))?;
                if let Worked::Part(bytes) = worked {
                    self.worked += bytes;
                }
                return Ok(worked);
            }
            SendOp::LocalInvalidate(key) => keys
                .invalidate(who, *key)
                .map_err(|error| (WcStatus::MwBindErr, vendor::key(error))),
            SendOp::ConfigureKey(config) => keys
                .configure(who.0, config)
                .map_err(|error| (WcStatus::MwBindErr, vendor::configure(error))),
            SendOp::BindMw(bind) => {
                keys.bind(who, bind).map_err(|error| (WcStatus::MwBindErr, vendor::bind(error)))
            }
            _ => Ok(()),
        };
        done.map(|()| Worked::All(0))
    }

    /// Whether something of it was done or has left.
    pub(crate) fn has_begun(&self) -> bool {
        self.phase != Phase::Posted || self.worked > 0
    }

    /// Takes PSNs from `first` on.
    pub(crate) fn start(&mut self, first: Psn, mtu: u32, base: u64) {
        self.phase = Phase::Started;
        self.first = first;
        self.packets = if self.is_atomic() { 1 } else { self.length.div_ceil(mtu).max(1) };
        self.base = base;
    }

    /// The PSN after its last.
    pub(crate) fn end(&self) -> Psn {
        self.first.plus(self.packets)
    }

    /// Where on the axis of costs its PSN number `packet` begins.
    pub(crate) fn position(&self, packet: u32, mtu: u32) -> u64 {
        let payload = (u64::from(packet) * u64::from(mtu)).min(self.length.into());
        self.base + payload + request_cost(packet)
    }

    /// PSNs that the request packet at `packet` covers.
    pub(crate) fn covers(&self, packet: u32) -> u32 {
        (self.chunk - packet % self.chunk).min(self.packets - packet)
    }

    /// Bytes of payload at PSN number `packet`.
    pub(crate) fn payload_at(&self, packet: u32, mtu: u32) -> usize {
        let at = u64::from(packet) * u64::from(mtu);
        u64::from(self.length).saturating_sub(at).min(mtu.into()) as usize
    }

    /// Copies payload out, for a packet.
    pub(crate) fn fill(
        &mut self,
        at: u64,
        dst: &mut [u8],
        fold: &mut Fold,
    ) -> Result<(), AccessError> {
        if let Some(slot) = self.slot.as_ref().filter(|slot| slot.is_inline()) {
            return slot.inline(at, dst);
        }
        match &self.wr.payload {
            Payload::Inline(bytes) => {
                let at = at as usize;
                dst.copy_from_slice(bytes.get(at..at + dst.len()).ok_or(AccessError::OutOfRange)?);
                Ok(())
            }
            Payload::Gather(_) => self.memory.read(at, dst, fold),
        }
    }

    /// What there is to report of its end.
    pub(crate) fn ended(&mut self, qp_num: u32, status: WcStatus, vendor_err: u32) -> Ended {
        let done = self.completion(qp_num, status, vendor_err);
        Ended { done, offload: self.offload.take() }
    }

    /// Its completion.
    fn completion(&self, qp_num: u32, status: WcStatus, vendor_err: u32) -> Completion {
        let opcode = match self.wr.op {
            SendOp::Send | SendOp::SendImm(_) | SendOp::SendInvalidate(_) => WcOpcode::Send,
            SendOp::Write(_) | SendOp::WriteImm(..) => WcOpcode::RdmaWrite,
            SendOp::Read(_) => WcOpcode::RdmaRead,
            SendOp::CompareSwap { .. } => WcOpcode::CompSwap,
            SendOp::FetchAdd { .. } => WcOpcode::FetchAdd,
            SendOp::LocalInvalidate(_) | SendOp::Custom(_) => WcOpcode::LocalInv,
            SendOp::BindMw(_) => WcOpcode::BindMw,
            SendOp::ConfigureKey(_) => WcOpcode::ConfigureKey,
            SendOp::AtomicWrite(_) => WcOpcode::AtomicWrite,
            SendOp::Flush(_) => WcOpcode::Flush,
        };
        Completion {
            vendor_err,
            byte_len: if status == WcStatus::Success { self.length } else { 0 },
            solicited: status != WcStatus::Success,
            ..Completion::new(self.wr.wr_id, status, opcode, qp_num)
        }
    }

    /// Resolves what it reads or writes here. `Err` is the status it fails with.
    pub(crate) fn resolve(
        &mut self,
        keys: &KeyTable,
        pd: PdId,
        ranges: &RangeShelf,
    ) -> Result<(), (WcStatus, u32)> {
        // IBA 10.2.2.2: an address handle serves the queue pairs of its own domain.
        if let Some(to) = &self.wr.datagram
            && to.ah.pd_id().is_some_and(|of| of != pd)
        {
            return Err((WcStatus::LocQpOpErr, vendor::FOREIGN_AH));
        }
        let access = if self.is_fetch() { Access::LOCAL_WRITE } else { Access::empty() };
        let stored;
        let list: &[Sge] = match (&self.slot, &self.wr.payload) {
            (Some(slot), _) => match slot.gather() {
                None => return Ok(()),
                Some(Ok(list)) => {
                    stored = list;
                    &stored
                }
                Some(Err(SlotLost)) => return Err((WcStatus::LocQpOpErr, vendor::SLOT_LOST)),
            },
            (None, Payload::Inline(_)) => return Ok(()),
            (None, Payload::Gather(list)) => list,
        };
        if self.is_atomic() && total_length(list) < 8 {
            return Err((WcStatus::LocLenErr, vendor::TOO_SHORT));
        }
        let resolved = self.memory.resolve(keys, pd, list, access, ranges);
        resolved.map_err(|error| match error {
            KeyError::NoMemory => (WcStatus::LocQpOpErr, vendor::NO_MEMORY),
            refused => (WcStatus::LocProtErr, vendor::key(refused)),
        })?;
        self.measure()
    }

    /// Takes the length that its memory has on the wire: with block signatures it may be another
    /// than the list names.
    fn measure(&mut self) -> Result<(), (WcStatus, u32)> {
        let len = self.memory.len();
        match self.wr.op {
            SendOp::CompareSwap { .. } | SendOp::FetchAdd { .. } | SendOp::Flush(_) => Ok(()),
            SendOp::AtomicWrite(_) if len != self.length.into() => {
                Err((WcStatus::LocLenErr, vendor::SIGNED))
            }
            _ if len > MAX_MESSAGE.into() => Err((WcStatus::LocLenErr, vendor::SIGNED)),
            _ => {
                self.length = len as u32;
                Ok(())
            }
        }
    }
}
