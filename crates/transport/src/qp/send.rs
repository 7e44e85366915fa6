//! One send request on its way: where its bytes are, which PSNs it takes, how far it is.

use super::executor::{MAX_MESSAGE, total_length};
use super::rendezvous::Offload;
use super::window::request_cost;
use crate::keys::Alarm;
use crate::keys::{KeyError, KeyTable, MemRef};
use crate::queues::slots::{SendSlot, SlotLost};
use crate::shelf::{Lent, Shelf};
use crate::values::PdId;
use crate::values::*;
use crate::{CustomWork, Worked};
use std::sync::Arc;
use umem::AccessError;
use umem::Fold;
use wire::Psn;

/// Vendor error codes of completions: which check failed.
pub(super) mod vendor {
    use crate::keys::BindError;
    use crate::keys::ConfigureError;
    use crate::keys::KeyError;
    use umem::AccessError;

    pub(in super::super) const NONE: u32 = 0;
    pub(in super::super) const TOO_SHORT: u32 = 0x20;
    pub(in super::super) const NO_READ_RESOURCES: u32 = 0x21;
    pub(in super::super) const BAD_RESPONSE: u32 = 0x22;
    pub(in super::super) const FOREIGN_AH: u32 = 0x23;
    pub(in super::super) const SLOT_LOST: u32 = 0x24;
    pub(in super::super) const SIGNED: u32 = 0x25;
    pub(in super::super) const NO_MEMORY: u32 = 0x26;

    pub(in super::super) fn key(error: KeyError) -> u32 {
        match error {
            KeyError::Unknown => 1,
            KeyError::ForeignPd => 2,
            KeyError::Denied => 3,
            KeyError::Range => 4,
            KeyError::NotBound => 5,
            KeyError::Unmapped => 6,
            KeyError::NoMemory => NO_MEMORY,
        }
    }

    pub(in super::super) fn bind(error: BindError) -> u32 {
        match error {
            BindError::Window => 0x31,
            BindError::State => 0x32,
            BindError::Rights => 0x33,
            BindError::Region => 0x34,
            BindError::RegionRights => 0x35,
            BindError::Range => 0x36,
        }
    }

    pub(in super::super) fn configure(error: ConfigureError) -> u32 {
        match error {
            ConfigureError::Key => 0x41,
            ConfigureError::Rights => 0x42,
            ConfigureError::Entries => 0x43,
            ConfigureError::Signature => 0x44,
        }
    }

    pub(in super::super) fn memory(error: AccessError) -> u32 {
        match error {
            AccessError::Revoked => 0x11,
            AccessError::OutOfRange => 0x12,
            AccessError::Fault => 0x13,
            AccessError::Unreachable => 0x14,
            AccessError::Unmapped => 0x15,
            AccessError::NotPresent { .. } => 0x16,
            AccessError::Moving => 0x17,
        }
    }
}

/// Stores of resolved lists.
pub(super) type RangeShelf = Shelf<[MemRef; 2]>;

/// A resolved scatter/gather list, read or written mostly in order.
#[derive(Default)]
pub(super) struct SgMemory {
    entries: Lent<[MemRef; 2]>,
    /// Entry of the last access and the offset at which it begins.
    entry: usize,
    begin: u64,
}

impl SgMemory {
    /// Bytes of all.
    fn len(&self) -> u64 {
        self.entries.iter().map(MemRef::len).sum()
    }

    /// Has `alarm` set when the signature of a block fails its check.
    pub(super) fn watch(&mut self, alarm: &Alarm) {
        self.entries.iter_mut().for_each(|memory| memory.watch(Some(alarm)));
    }

    /// Checks every entry once; entries of length 0 name no memory.
    pub(super) fn resolve(
        keys: &KeyTable,
        pd: PdId,
        list: &[Sge],
        access: Access,
        entries: Lent<[MemRef; 2]>,
    ) -> Result<SgMemory, KeyError> {
        let mut memory = SgMemory { entries, ..SgMemory::default() };
        for sge in list.iter().filter(|sge| sge.length > 0) {
            memory.entries.push(keys.resolve(pd, sge.lkey, sge.addr, sge.length.into(), access)?);
        }
        Ok(memory)
    }

    fn for_each_part(
        &mut self,
        at: u64,
        len: usize,
        mut part: impl FnMut(&MemRef, u64, std::ops::Range<usize>) -> Result<(), AccessError>,
    ) -> Result<(), AccessError> {
        if at < self.begin {
            self.entry = 0;
            self.begin = 0;
        }
        let mut done = 0;
        while done < len {
            let Some(memory) = self.entries.get(self.entry) else {
                return Err(AccessError::OutOfRange);
            };
            let within = at + done as u64 - self.begin;
            if within >= memory.len() {
                self.begin += memory.len();
                self.entry += 1;
                continue;
            }
            let here = usize::try_from(memory.len() - within).unwrap_or(usize::MAX).min(len - done);
            part(memory, within, done..done + here)?;
            done += here;
        }
        Ok(())
    }

    /// Copies payload out; folds it on the way where it can, else `fold` is left off.
    pub(super) fn read(
        &mut self,
        at: u64,
        dst: &mut [u8],
        fold: &mut Fold,
    ) -> Result<(), AccessError> {
        self.for_each_part(at, dst.len(), |memory, within, range| {
            memory.read_folding(within, &mut dst[range], fold)
        })
    }

    pub(super) fn write(&mut self, at: u64, src: &[u8]) -> Result<(), AccessError> {
        self.for_each_part(at, src.len(), |memory, within, range| memory.write(within, &src[range]))
    }
}

/// How far a send request is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Phase {
    /// Not begun; has no PSN.
    Posted,
    /// Has its PSNs; packets are on their way.
    Started,
    /// Failed here, before or amid its packets; completes when it is the oldest.
    Failed(WcStatus, u32),
}

/// A send request in the queue.
pub(super) struct Wqe {
    /// Its payload is empty where `slot` describes it.
    pub(super) wr: SendWr,
    pub(super) slot: Option<SendSlot>,
    /// Payload, or bytes a READ or atomic brings.
    pub(super) length: u32,
    pub(super) signaled: bool,
    pub(super) memory: SgMemory,
    pub(super) phase: Phase,
    pub(super) first: Psn,
    /// PSNs it takes.
    pub(super) packets: u32,
    /// PSNs of it that the peer has answered.
    pub(super) acked: u32,
    /// READ: PSNs that one request packet covers.
    pub(super) chunk: u32,
    /// Bytes of a front end's own work that are done.
    pub(super) worked: u64,
    /// Cost of everything before it since the QP began to send.
    pub(super) base: u64,
    /// The HCA's own, not the program's.
    pub(super) offload: Option<Offload>,
    /// It was taken back before it began: it completes in its turn and does nothing else.
    pub(super) cancelled: bool,
}

impl Wqe {
    pub(super) fn new(wr: SendWr, sq_sig_all: bool) -> Wqe {
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

    /// A request of the HCA's own: `wr` for `offload`.
    pub(super) fn offloaded(wr: SendWr, offload: Offload) -> Wqe {
        Wqe { offload: Some(offload), ..Wqe::new(wr, false) }
    }

    /// The domain of its keys on a QP of domain `pd`.
    pub(super) fn pd(&self, pd: PdId) -> PdId {
        match &self.offload {
            Some(Offload::Fetch { pd, .. }) => *pd,
            _ => pd,
        }
    }

    /// Whether the peer answers it with more than an acknowledge and holds a resource for it.
    pub(super) fn is_answered(&self) -> bool {
        self.is_read() || self.is_atomic() || self.is_placement()
    }

    /// Whether the answer brings data: a READ or an atomic.
    pub(super) fn is_fetch(&self) -> bool {
        self.is_read() || self.is_atomic()
    }

    /// An ATOMIC WRITE or FLUSH, which a READ response without data answers.
    pub(super) fn is_placement(&self) -> bool {
        matches!(self.wr.op, SendOp::AtomicWrite(_) | SendOp::Flush(_))
    }

    /// Bytes that the READ response at PSN number `packet` brings.
    pub(super) fn answer_at(&self, packet: u32, mtu: u32) -> usize {
        if self.is_placement() { 0 } else { self.payload_at(packet, mtu) }
    }

    pub(super) fn is_read(&self) -> bool {
        matches!(self.wr.op, SendOp::Read(_))
    }

    pub(super) fn is_atomic(&self) -> bool {
        matches!(self.wr.op, SendOp::CompareSwap { .. } | SendOp::FetchAdd { .. })
    }

    /// Tells the peer nothing: changes a key here, or was cancelled.
    pub(super) fn is_local(&self) -> bool {
        use SendOp::{BindMw, ConfigureKey, Custom, LocalInvalidate};
        let of_keys =
            matches!(self.wr.op, LocalInvalidate(_) | BindMw(_) | ConfigureKey(_) | Custom(_));
        of_keys || self.cancelled
    }

    /// Does what [`Wqe::is_local`] is about, or a part of it. `Err` is the status it fails with.
    pub(super) fn change_key(
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
    pub(super) fn has_begun(&self) -> bool {
        self.phase != Phase::Posted || self.worked > 0
    }

    /// Takes PSNs from `first` on.
    pub(super) fn start(&mut self, first: Psn, mtu: u32, base: u64) {
        self.phase = Phase::Started;
        self.first = first;
        self.packets = if self.is_atomic() { 1 } else { self.length.div_ceil(mtu).max(1) };
        self.base = base;
    }

    /// The PSN after its last.
    pub(super) fn end(&self) -> Psn {
        self.first.plus(self.packets)
    }

    /// Where on the axis of costs its PSN number `packet` begins.
    pub(super) fn position(&self, packet: u32, mtu: u32) -> u64 {
        let payload = (u64::from(packet) * u64::from(mtu)).min(self.length.into());
        self.base + payload + request_cost(packet)
    }

    /// PSNs that the request packet at `packet` covers.
    pub(super) fn covers(&self, packet: u32) -> u32 {
        (self.chunk - packet % self.chunk).min(self.packets - packet)
    }

    /// Bytes of payload at PSN number `packet`.
    pub(super) fn payload_at(&self, packet: u32, mtu: u32) -> usize {
        let at = u64::from(packet) * u64::from(mtu);
        u64::from(self.length).saturating_sub(at).min(mtu.into()) as usize
    }

    /// Copies payload out, for a packet.
    pub(super) fn fill(
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

    /// Its completion.
    pub(super) fn completion(&self, qp_num: u32, status: WcStatus, vendor_err: u32) -> Completion {
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
    pub(super) fn resolve(
        &mut self,
        keys: &KeyTable,
        pd: PdId,
        ranges: &Arc<RangeShelf>,
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
        let entries =
            ranges.lend(list.len()).map_err(|_| (WcStatus::LocQpOpErr, vendor::NO_MEMORY))?;
        self.memory =
            SgMemory::resolve(keys, pd, list, access, entries).map_err(|error| match error {
                KeyError::NoMemory => (WcStatus::LocQpOpErr, vendor::NO_MEMORY),
                refused => (WcStatus::LocProtErr, vendor::key(refused)),
            })?;
        self.measure()
    }

    /// Takes the length that its memory has on the wire: with block signatures it may be another than the list names.
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
