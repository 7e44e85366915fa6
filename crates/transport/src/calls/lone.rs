//! A short SEND that is posted where nothing else is under way, and that leaves at once.
//!
//! It is the request that programs post most whose messages go back and forth. It becomes a
//! [`Wqe`] only where somebody has to look at it before its acknowledge is there; until then it is
//! a few words beside the queue. Every other call of [`Transport`] begins with
//! [`Transport::unfold`], after which all is as if it had been posted and transmitted as others
//! are.

use crate::keys::{KeyTable, MemRef};
use crate::qp::Transport;
use crate::requests::gather::SgMemory;
use crate::requests::timing::PROBE_FLOOR;
use crate::requests::vendor;
use crate::requests::window::request_cost;
use crate::requests::wqe::Wqe;
use crate::values::*;
use std::time::{Duration, Instant};
use wire::timer::local_ack_timeout;
use wire::{Psn, SHORT_PACKET, SHORT_PAYLOAD, ShortSend};

/// A SEND with one entry of memory at most.
#[derive(Clone, Debug)]
pub struct ShortWr {
    /// The program's identifier.
    pub wr_id: u64,
    /// Immediate data (host order of the big-endian wire word), if it has any.
    pub imm: Option<u32>,
    /// Flags.
    pub flags: SendFlags,
    /// Payload.
    pub payload: ShortPayload,
}

/// Payload of a [`ShortWr`].
#[derive(Clone, Debug)]
pub enum ShortPayload {
    /// The bytes lie in registered memory.
    Memory(Sge),
    /// The bytes were copied when the request was posted.
    Inline(InlineData),
}

/// One that has left and is not acknowledged.
pub(crate) struct Lone {
    wr: ShortWr,
    length: u32,
    /// Where the payload is, if that is in registered memory and not empty.
    memory: Option<MemRef>,
    /// Not known of one that was posted without a look at the clock.
    sent: Option<Instant>,
}

/// The flags of which it is known here what they mean.
const KNOWN: SendFlags = SendFlags::SIGNALED.union(SendFlags::SOLICITED).union(SendFlags::INLINE);

impl ShortWr {
    /// The length of its payload, in bytes.
    pub fn len(&self) -> usize {
        match &self.payload {
            ShortPayload::Memory(entry) => entry.length as usize,
            ShortPayload::Inline(bytes) => bytes.len(),
        }
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The same as any other request.
    fn into_any(self) -> SendWr {
        let payload = match self.payload {
            ShortPayload::Memory(entry) => Payload::Gather([entry].into_iter().collect()),
            ShortPayload::Inline(bytes) => Payload::Inline(bytes),
        };
        let op = self.imm.map_or(SendOp::Send, SendOp::SendImm);
        let (wr_id, flags) = (self.wr_id, self.flags);
        SendWr { wr_id, op, payload, flags, datagram: None, xrc_srqn: 0 }
    }

    /// What the queue pair allows, and is known here.
    fn is_allowed(&self, cap: &QpCap) -> bool {
        let fits = match &self.payload {
            ShortPayload::Memory(_) => cap.max_send_sge > 0,
            ShortPayload::Inline(bytes) => bytes.len() <= cap.max_inline_data as usize,
        };
        fits && KNOWN.contains(self.flags) && cap.max_send_wr > 0
    }
}

impl Transport {
    /// Posts `wr` as the only request that there is, and makes its packet in `packet`: its length.
    /// It leaves now, or [`Transport::forget_lone`] is called. `None`: nothing has happened, and it
    /// is to be posted as any other. Without `now`, [`Transport::timer`] is to be called within
    /// [`Transport::least_wait`]: from then on its time counts.
    pub fn post_lone(
        &mut self,
        keys: &KeyTable,
        wr: ShortWr,
        packet: &mut [u8; SHORT_PACKET],
        now: Option<Instant>,
    ) -> Option<usize> {
        let req = &self.req;
        let is_timed = now.or(self.now).is_some();
        let is_free =
            is_timed && !self.has_requests() && req.rnr_until.is_none() && req.rest.is_none();
        let length = wr.len();
        if !is_free || length > SHORT_PAYLOAD || !wr.is_allowed(&self.attr.cap) || !self.is_plain()
        {
            return None;
        }
        // It is apart from the queue pair, of which there may be many that post nothing.
        self.lone.try_reserve_exact(1).ok()?;
        let solicited = wr.flags.contains(SendFlags::SOLICITED);
        let (dest_qp, psn) = (self.attr.dest_qp_num, req.next_psn);
        let send = ShortSend { dest_qp, psn, imm: wr.imm, solicited };
        let end = send.emit(length, packet)?;
        let into = packet.get_mut(send.payload_at()..)?.get_mut(..length)?;
        let memory = match &wr.payload {
            ShortPayload::Inline(bytes) => {
                into.copy_from_slice(bytes);
                None
            }
            ShortPayload::Memory(_) if length == 0 => None,
            ShortPayload::Memory(Sge { addr, length, lkey }) => {
                let (len, access) = (u64::from(*length), Access::empty());
                let memory = keys.resolve(self.pd, *lkey, *addr, len, access).ok()?;
                // What is not there is refused once more, and then the program hears of it.
                let is_there = memory.is_plain() && memory.read(0, into).is_ok();
                is_there.then_some(())?;
                Some(memory)
            }
        };
        (self.now, self.more, self.paced_until) = (now.or(self.now), false, None);
        self.lone.push(Lone { wr, length: length as u32, memory, sent: now });
        Some(end)
    }

    /// The request that [`Transport::post_lone`] posted last has not left, and never was posted.
    pub fn forget_lone(&mut self) {
        self.lone = Vec::new();
    }

    /// How long [`Transport::lone_deadline`] is away at least, when it was posted just now.
    pub fn least_wait(&self) -> Duration {
        PROBE_FLOOR.min(local_ack_timeout(self.attr.timeout).unwrap_or(PROBE_FLOOR))
    }

    /// When to call [`Transport::timer`] for it.
    pub fn lone_deadline(&self) -> Option<Instant> {
        let Some(sent) = self.lone.first()?.sent else { return self.now };
        self.req.timers.deadline_since(sent, &self.req.rtt, self.ack_wait())
    }

    /// Takes an acknowledge of it. `None`: it is of something else, and nothing has happened.
    /// Otherwise there is its completion to report, if the program wants one.
    pub(super) fn acknowledged_lone(
        &mut self,
        psn: Psn,
        now: Instant,
    ) -> Option<Option<Completion>> {
        if psn != self.req.next_psn || !self.is_plain() {
            return None;
        }
        let Lone { wr, length, sent, .. } = self.take_lone()?;
        let cost = u64::from(length) + request_cost(1);
        let req = &mut self.req;
        (req.next_psn, req.high) = (psn.plus(1), psn.plus(1));
        req.next_base += cost;
        (req.since_ack_req, req.probe_end) = (0, None);
        req.window.acknowledged(cost);
        req.sample = req.sample.or(sent.map(|sent| (psn, sent)));
        self.now = Some(now);
        self.progressed(now);
        let is_awaited = self.sq_sig_all || wr.flags.contains(SendFlags::SIGNALED);
        is_awaited
            .then(|| {
                let (status, opcode) = (WcStatus::Success, WcOpcode::Send);
                let done = Completion::new(wr.wr_id, status, opcode, self.qpn);
                Completion { byte_len: length, vendor_err: vendor::NONE, ..done }
            })
            .into()
    }

    /// Whether a request is posted and not complete.
    pub fn has_requests(&self) -> bool {
        self.has_lone() || !self.req.queue.is_empty()
    }

    /// Whether such a request is under way.
    pub(crate) fn has_lone(&self) -> bool {
        !self.lone.is_empty()
    }

    fn take_lone(&mut self) -> Option<Lone> {
        std::mem::take(&mut self.lone).pop()
    }

    /// Makes a request as any other of the one that is under way, if there is one.
    #[inline]
    pub(crate) fn unfold(&mut self) {
        if self.has_lone() {
            self.unfold_it();
        }
    }

    /// The same in a call that knows the time, from which on that of a request counts that was
    /// posted without.
    #[inline]
    pub(crate) fn unfold_at(&mut self, now: Instant) {
        self.unfold();
        if std::mem::take(&mut self.untimed) && self.req.una() != self.req.next_psn {
            self.req.timers.ensure(now, &self.req.rtt);
        }
    }

    #[cold]
    fn unfold_it(&mut self) {
        let Some(Lone { wr, memory, sent, .. }) = self.take_lone() else { return };
        let mut wqe = Wqe::new(wr.into_any(), self.sq_sig_all);
        wqe.memory = memory.map_or_else(SgMemory::default, SgMemory::of);
        self.req.queue.push_back(wqe);
        self.untimed |= sent.is_none();
        self.begun_short(sent);
    }
}
