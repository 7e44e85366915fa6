//! Short messages of a reliable connection that has nothing else to do: a SEND of one packet, and
//! its acknowledge.
//!
//! What [`Transport::transmit`] and [`Transport::receive`] do for them is done here without the
//! questions whose answers are known then, in half the time. Each call decides before it changes
//! anything: where it answers that it did nothing, those two do what there is to do, and refuse
//! what is to be refused. Packets, completions and what is kept for the time after are the same
//! either way.

use crate::executor::Arriving;
use crate::keys::KeyTable;
use crate::qp::Transport;
use crate::requests::requester::Cursor;
use crate::requests::wqe::{Ended, Phase, Wqe};
use crate::values::*;
use std::time::Instant;
use umem::Fold;
use wire::{Psn, SHORT_PACKET, SHORT_PAYLOAD, ShortAck, ShortSend};

impl Transport {
    /// A connection both of whose sides work as they do nearly always.
    pub(super) fn is_plain(&self) -> bool {
        self.kind == QpType::Rc
            && self.state == QpState::Rts
            && self.resp.responses.is_empty()
            && self.faults.are_none()
            && !self.controls_congestion()
            && self.alarm.is_none()
            && self.peer_alarm.is_none()
            && self.send_slots.is_none()
            && !self.more
    }

    /// Whether the only request that is posted may be a short SEND.
    pub fn may_make_short(&self) -> bool {
        let queue = &self.req.queue;
        queue.len() == 1 && queue.front().is_some_and(|wqe| wqe.wr.op.plain_send().is_some())
    }

    /// Makes the packet of the only request that is posted, if that is a short SEND that has not
    /// begun, in `packet`: its length. It counts as sent by [`Transport::sent_short`], once it has
    /// left.
    pub fn make_short(
        &mut self,
        keys: &KeyTable,
        packet: &mut [u8; SHORT_PACKET],
    ) -> Option<usize> {
        let is_free = self.is_plain() && self.req.rnr_until.is_none() && self.req.rest.is_none();
        if !is_free || self.req.queue.len() != 1 || self.has_lone() {
            return None;
        }
        let (psn, dest_qp, pd) = (self.req.next_psn, self.attr.dest_qp_num, self.pd);
        let wqe = self.req.queue.front_mut().filter(|wqe| !wqe.has_begun())?;
        let imm = short_send(wqe)?;
        // What is refused here is refused once more, and then the program hears of it.
        wqe.resolve(keys, pd, &self.ranges).ok()?;
        let solicited = wqe.wr.flags.contains(SendFlags::SOLICITED);
        let send = ShortSend { dest_qp, psn, imm, solicited };
        let len = wqe.length as usize;
        let end = send.emit(len, packet)?;
        wqe.fill(0, packet.get_mut(send.payload_at()..)?.get_mut(..len)?, &mut Fold::off()).ok()?;
        Some(end)
    }

    /// The packet that [`Transport::make_short`] made has left. Answers with the bytes of its
    /// payload.
    pub fn sent_short(&mut self, now: Instant) -> u64 {
        (self.now, self.more, self.paced_until) = (Some(now), false, None);
        self.begun_short(Some(now))
    }

    /// The only request that is posted has become packets at `now`, if that is known.
    pub(super) fn begun_short(&mut self, now: Option<Instant>) -> u64 {
        let mtu = self.mtu;
        let req = &mut self.req;
        let Some(wqe) = req.queue.front_mut() else { return 0 };
        let psn = req.next_psn;
        wqe.start(psn, mtu, req.next_base);
        let (end, bytes) = (wqe.end(), wqe.length.into());
        (req.next_psn, req.high) = (end, end);
        req.next_base = wqe.position(1, mtu);
        req.since_ack_req = 0;
        req.cursor = Cursor { wqe: 1, packet: 0 };
        if let Some(now) = now {
            req.sample.get_or_insert((psn, now));
            req.timers.ensure(now, &req.rtt);
        }
        bytes
    }

    /// Takes an acknowledge of the only request that there is, a short one; `None` where it is of
    /// another or there are others. Otherwise there is its completion to report, if the program
    /// wants one.
    pub fn acknowledged_short(&mut self, psn: Psn, now: Instant) -> Option<Option<Completion>> {
        if self.has_lone() {
            return self.acknowledged_lone(psn, now);
        }
        let mtu = self.mtu;
        let req = &self.req;
        let wqe = req.queue.front().filter(|_| req.queue.len() == 1)?;
        let is_next = wqe.phase == Phase::Started && wqe.first == psn && short_send(wqe).is_some();
        let is_sent = req.cursor.wqe == 1 && req.rest.is_none() && req.rnr_until.is_none();
        let bytes = wqe.position(1, mtu) - wqe.base;
        if !is_next || !is_sent || !self.is_plain() {
            return None;
        }
        self.now = Some(now);
        self.req.window.acknowledged(bytes);
        let done = self.pop_done();
        self.progressed(now);
        self.req.probe_end = None;
        Some(done.map(|Ended { done, .. }| done))
    }

    /// Takes a short SEND that is the next request of the peer's, and was sent in packets of up to
    /// `mtu` bytes: its completion, to be reported before [`Transport::short_ack`] leaves.
    pub fn take_short(
        &mut self,
        send: &ShortSend,
        payload: &[u8],
        keys: &KeyTable,
        (now, mtu): (Instant, u32),
    ) -> Option<Completion> {
        let resp = &self.resp;
        let is_next = send.psn == resp.expected && resp.message.is_none();
        let is_plain = resp.put_off.is_none() && self.is_plain();
        if !is_next || !is_plain || self.inbox.tags().is_some() || self.inbox.is_kept() {
            return None;
        }
        let wr_id = self.land_short(payload, keys)?;
        (self.now, self.resp.mtu, self.resp.nak_sent) = (Some(now), mtu, false);
        self.message_done();
        self.resp.expected = send.psn.plus(1);
        let (status, opcode) = (WcStatus::Success, WcOpcode::Recv);
        let flags = if send.imm.is_some() { WcFlags::WITH_IMM } else { WcFlags::empty() };
        Some(Completion {
            byte_len: payload.len() as u32,
            imm_or_key: send.imm.unwrap_or_default(),
            flags,
            src_qp: self.attr.dest_qp_num,
            solicited: send.solicited,
            ..Completion::new(wr_id, status, opcode, self.qpn)
        })
    }

    /// Fills the next receive request with a message, if nothing is wrong with it: its identifier.
    /// Otherwise the message comes again, to where it is said what is wrong.
    fn land_short(&mut self, payload: &[u8], keys: &KeyTable) -> Option<u64> {
        if let Some((wr_id, Sge { addr, length, lkey })) = self.inbox.simple(payload.len()) {
            let len = length.into();
            let memory = keys.resolve(self.pd, lkey, addr, len, Access::LOCAL_WRITE).ok()?;
            if memory.is_plain() {
                memory.write(0, payload).ok()?;
                self.inbox.done();
                return Some(wr_id);
            }
        }
        // A shared queue tells of a request that it has lost; an own one would have to be told of.
        let tells = self.inbox.is_shared() || self.inbox.held().is_some();
        if !tells && !self.inbox.is_in_memory() {
            return None;
        }
        let mut landing = self.inbox.take(self.pd).ok()?;
        let ready = landing.ready(keys, payload.len());
        if ready.and_then(|()| landing.append(keys, Arriving::Here(payload))).is_err() {
            self.inbox.put_back(landing);
            return None;
        }
        Some(landing.wr_id())
    }

    /// When to call [`Transport::timer`] after [`Transport::sent_short`].
    pub fn short_deadline(&self) -> Option<Instant> {
        self.req.timers.deadline(self.ack_wait())
    }

    /// The acknowledge of what [`Transport::take_short`] has taken.
    pub fn short_ack(&self) -> ShortAck {
        let (dest_qp, psn) = (self.attr.dest_qp_num, self.resp.expected.minus(1));
        ShortAck { dest_qp, psn, msn: self.resp.msn }
    }

    /// That one has not left: it is owed as others are, until [`Transport::end_of_batch`].
    pub fn owe_short_ack(&mut self) {
        self.owe_ack(self.resp.expected.minus(1));
    }
}

/// The immediate data of a request that is a short SEND and nothing else, if it has any.
fn short_send(wqe: &Wqe) -> Option<Option<u32>> {
    let imm = wqe.wr.op.plain_send()?;
    let is_short = wqe.length as usize <= SHORT_PAYLOAD;
    let is_plain = !wqe.cancelled && wqe.offload.is_none() && wqe.wr.datagram.is_none();
    (is_short && is_plain).then_some(imm)
}
