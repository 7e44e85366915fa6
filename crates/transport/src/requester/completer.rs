//! The requester's other half: answers of the peer and the timers that stand in for missing ones.
//!
//! Every answer implies that all earlier requests are done, except that READs and atomics need
//! their own answer: one that is passed over was lost and is asked for again (implied NAK, IBA
//! 9.7.5.1).

use crate::executor::Arriving;
use crate::qp::{FaultSide, Transport};
use crate::requests::timing::rnr_wait;
use crate::requests::vendor;
use crate::requests::wqe::Phase;
use crate::values::*;
use crate::{Counter, Cx, Rx};
use std::time::Instant;
use wire::{NakCode, Operation, Psn, Syndrome};

/// `rnr_retry` that means "for ever".
const RNR_FOREVER: u8 = 7;

impl Transport {
    /// An acknowledge or response.
    pub(crate) fn answer(&mut self, rx: &Rx<'_>, cx: &mut Cx<'_>) {
        let psn = rx.headers.bth.psn;
        let stale = psn.after(self.req.una()) < 0 || psn.after(self.req.high) >= 0;
        if stale || !matches!(self.state, QpState::Rts | QpState::Sqd) {
            return;
        }
        // What it answers will be asked for again, from where the memory was missing.
        if self.faults.is_open(FaultSide::Landing) {
            return;
        }
        match rx.headers.bth.opcode.operation {
            Operation::Acknowledge => {
                if let Some(aeth) = rx.headers.aeth {
                    self.acknowledge(psn, aeth.syndrome, cx);
                }
            }
            Operation::ReadResponse => self.read_response(psn, rx, cx),
            Operation::AtomicAcknowledge => self.atomic_response(psn, rx, cx),
            _ => {}
        }
    }

    /// An acknowledge that completes more requests than may end now completes as many, and the rest
    /// of it waits.
    fn acknowledge(&mut self, psn: Psn, syndrome: Syndrome, cx: &mut Cx<'_>) {
        let upto = if matches!(syndrome, Syndrome::Ack(_)) { psn.plus(1) } else { psn };
        if self.ends_too_many(upto, (psn, syndrome), cx) {
            return;
        }
        match syndrome {
            Syndrome::Ack(_) => {
                if !self.advance(psn.plus(1), cx) {
                    return self.implied_nak(cx);
                }
                let una = self.req.una();
                // The peer took the probe for the packet it waited for: what had followed it was
                // lost as well.
                if self.req.probe_end == Some(una) && self.req.cursor_psn().after(una) > 0 {
                    self.req.window.lost();
                    self.req.go_back();
                }
                self.req.probe_end = None;
            }
            Syndrome::RnrNak(code) => {
                if self.advance(psn, cx) {
                    self.receiver_not_ready(code, cx);
                } else {
                    self.implied_nak(cx);
                }
            }
            Syndrome::Nak(code) => {
                if !self.advance(psn, cx) {
                    return self.implied_nak(cx);
                }
                let (status, counter) = match code {
                    NakCode::Sequence => {
                        cx.counters.count(Counter::PacketSeqErr, 1);
                        return self.lost(cx);
                    }
                    NakCode::InvalidRequest => {
                        (WcStatus::RemInvReqErr, Counter::ReqRemoteInvalidRequest)
                    }
                    NakCode::RemoteAccess => {
                        (WcStatus::RemAccessErr, Counter::ReqRemoteAccessErrors)
                    }
                    NakCode::RemoteOperational => (WcStatus::RemOpErr, Counter::ReqCqeError),
                    NakCode::InvalidRd => (WcStatus::RemInvRdReqErr, Counter::ReqCqeError),
                };
                cx.counters.count(counter, 1);
                self.fail_oldest(status, vendor::NONE, cx);
            }
        }
    }

    /// Whether taking every request before `upto` as done would end more of them than may end now.
    /// As many end as may, and what is left to acknowledge, `rest`, waits.
    fn ends_too_many(&mut self, upto: Psn, rest: (Psn, Syndrome), cx: &mut Cx<'_>) -> bool {
        let Some(wqe) = self.req.queue.get(cx.budget.endings() as usize) else { return false };
        let first = wqe.first;
        // Not by the PSN of its end: that may be half of all PSNs away.
        let reaches_end = i64::from(upto.after(first)) >= i64::from(wqe.packets);
        if wqe.phase != Phase::Started || !reaches_end {
            return false;
        }
        if !self.advance(first, cx) {
            self.implied_nak(cx);
            return true;
        }
        if self.req.rest.is_none_or(|(latest, _)| rest.0.after(latest) >= 0) {
            self.req.rest = Some(rest);
        }
        self.more = true;
        true
    }

    /// The same for the answer `psn` to a READ or an atomic. An answer that would have to wait is
    /// as good as lost: a probe asks for it again.
    fn answers_too_many(&mut self, psn: Psn, cx: &mut Cx<'_>) -> bool {
        let waits = self.ends_too_many(psn, (psn.minus(1), Syndrome::Ack(0)), cx);
        cx.counters.count(Counter::RxDropped, u64::from(waits));
        waits
    }

    /// Goes on with an acknowledge of which a part waited.
    pub(super) fn acknowledge_rest(&mut self, cx: &mut Cx<'_>) {
        if let Some((psn, syndrome)) = self.req.rest.take()
            && psn.after(self.req.una()) >= 0
        {
            self.acknowledge(psn, syndrome, cx);
        }
    }

    /// Takes every request before `upto` as done. `false`: a READ or atomic on the way has not been
    /// answered.
    fn advance(&mut self, upto: Psn, cx: &mut Cx<'_>) -> bool {
        let before = self.req.una();
        let reached = loop {
            let Some(wqe) = self.req.queue.front() else { break true };
            if wqe.phase != Phase::Started {
                break true;
            }
            let ahead = upto.after(wqe.first.plus(wqe.acked));
            if ahead <= 0 {
                break true;
            }
            if wqe.is_answered() {
                break false;
            }
            let steps = (ahead as u32).min(wqe.packets - wqe.acked);
            self.settle(steps, cx);
        };
        if self.req.una() != before {
            self.progressed(cx.now);
        }
        reached
    }

    /// `steps` more PSNs of the oldest request are answered.
    fn settle(&mut self, steps: u32, cx: &mut Cx<'_>) {
        let mtu = self.mtu;
        let req = &mut self.req;
        let Some(wqe) = req.queue.front_mut() else { return };
        let freed = wqe.position(wqe.acked + steps, mtu) - wqe.position(wqe.acked, mtu);
        wqe.acked += steps;
        let done = wqe.acked == wqe.packets;
        // An answer to an earlier emission may overtake a go-back.
        if req.cursor.wqe == 0 {
            req.cursor.packet = req.cursor.packet.max(wqe.acked);
        }
        req.window.acknowledged(freed);
        if done {
            self.complete_oldest(cx);
        }
    }

    /// The peer moved on: retries are available again, timers start anew.
    pub(crate) fn progressed(&mut self, now: Instant) {
        let una = self.req.una();
        let req = &mut self.req;
        req.retry_left = self.attr.retry_cnt;
        req.timeouts = 0;
        req.rnr_left = self.attr.rnr_retry;
        req.rnr_until = None;
        req.recovering = None;
        if let Some((psn, sent)) = req.sample
            && una.after(psn) > 0
        {
            // The time of a turn may be of before the post.
            if let Some(taken) = now.checked_duration_since(sent) {
                req.rtt.sample(taken);
            }
            req.sample = None;
        }
        if req.cursor_psn() == una {
            req.timers.stop();
        } else {
            req.timers.restart(now, &req.rtt);
        }
    }

    fn read_response(&mut self, psn: Psn, rx: &Rx<'_>, cx: &mut Cx<'_>) {
        if self.answers_too_many(psn, cx) {
            return;
        }
        if !self.advance(psn, cx) {
            return self.implied_nak(cx);
        }
        if self.state == QpState::Err {
            return;
        }
        let mtu = self.mtu;
        let cursor = self.req.cursor;
        let Some(wqe) = self.req.queue.front_mut() else { return };
        let answers = wqe.is_read() || wqe.is_placement();
        if wqe.phase != Phase::Started || !answers || wqe.first.plus(wqe.acked) != psn {
            return cx.counters.count(Counter::RxDropped, 1);
        }
        let packet = wqe.acked;
        let ends = wqe.covers(packet) == 1;
        let refused =
            rx.headers.aeth.is_some_and(|aeth| !matches!(aeth.syndrome, Syndrome::Ack(_)));
        if refused
            || rx.headers.bth.opcode.position.ends() != ends
            || rx.payload_len() != wqe.answer_at(packet, mtu)
        {
            return self.fail_oldest(WcStatus::BadRespErr, vendor::BAD_RESPONSE, cx);
        }
        let at = u64::from(packet) * u64::from(mtu);
        if let Err(error) = wqe.memory.place(at, rx.arriving()) {
            if self.waits_to_land(packet, rx.payload_len(), error, cx) {
                return;
            }
            return self.fail_oldest(WcStatus::LocProtErr, vendor::memory(error), cx);
        }
        // After a go-back an answer to the earlier emission was not asked for in this pass.
        if ends && (cursor.wqe > 0 || cursor.packet > packet) {
            self.req.reads = self.req.reads.saturating_sub(1);
        }
        self.settle(1, cx);
        self.progressed(cx.now);
    }

    fn atomic_response(&mut self, psn: Psn, rx: &Rx<'_>, cx: &mut Cx<'_>) {
        if self.answers_too_many(psn, cx) {
            return;
        }
        if !self.advance(psn, cx) {
            return self.implied_nak(cx);
        }
        if self.state == QpState::Err {
            return;
        }
        let cursor = self.req.cursor;
        let Some(wqe) = self.req.queue.front_mut() else { return };
        let (true, Some(old)) = (
            wqe.phase == Phase::Started && wqe.is_atomic() && wqe.first == psn,
            rx.headers.atomic_ack,
        ) else {
            return cx.counters.count(Counter::RxDropped, 1);
        };
        if let Err(error) = wqe.memory.place(0, Arriving::Here(&old.to_ne_bytes())) {
            if self.waits_to_land(0, 8, error, cx) {
                return;
            }
            return self.fail_oldest(WcStatus::LocProtErr, vendor::memory(error), cx);
        }
        if cursor.wqe > 0 || cursor.packet > 0 {
            self.req.reads = self.req.reads.saturating_sub(1);
        }
        self.settle(1, cx);
        self.progressed(cx.now);
    }

    fn implied_nak(&mut self, cx: &mut Cx<'_>) {
        cx.counters.count(Counter::ImpliedNakSeqErr, 1);
        self.lost(cx);
    }

    /// The peer misses something: go back, once per loss.
    fn lost(&mut self, cx: &mut Cx<'_>) {
        let una = self.req.una();
        if self.req.recovering == Some(una) || self.req.rnr_until.is_some() {
            return;
        }
        self.req.recovering = Some(una);
        if self.spend_retry(cx) {
            self.req.window.lost();
            self.req.go_back();
        }
    }

    /// Uses up one retry, or fails the oldest request for want of one.
    fn spend_retry(&mut self, cx: &mut Cx<'_>) -> bool {
        match self.req.retry_left.checked_sub(1) {
            Some(left) => {
                self.req.retry_left = left;
                true
            }
            None => {
                cx.counters.count(Counter::RetryExceededErr, 1);
                self.fail_oldest(WcStatus::RetryExcErr, vendor::NONE, cx);
                false
            }
        }
    }

    fn receiver_not_ready(&mut self, code: u8, cx: &mut Cx<'_>) {
        if self.req.rnr_until.is_some() || !matches!(self.state, QpState::Rts | QpState::Sqd) {
            return;
        }
        if self.attr.rnr_retry != RNR_FOREVER {
            let Some(left) = self.req.rnr_left.checked_sub(1) else {
                cx.counters.count(Counter::RnrNakRetryErr, 1);
                return self.fail_oldest(WcStatus::RnrRetryExcErr, vendor::NONE, cx);
            };
            self.req.rnr_left = left;
        }
        let una = self.req.una();
        if self.req.not_ready.replace(una) == Some(una) {
            self.req.window.not_ready();
        }
        self.req.go_back();
        self.req.rnr_until = Some(cx.now + rnr_wait(code));
    }

    /// What the passing of time brings to a reliable requester.
    pub(crate) fn request_timers(&mut self, cx: &mut Cx<'_>) {
        if self.req.rnr_until.is_some_and(|until| cx.now >= until) {
            self.req.rnr_until = None;
        }
        let timeout = self.ack_wait();
        if self.req.timers.expired(cx.now, timeout) {
            cx.counters.count(Counter::LocalAckTimeoutErr, 1);
            self.req.recovering = None;
            self.req.timeouts = self.req.timeouts.saturating_add(1);
            if self.spend_retry(cx) {
                self.req.window.timed_out();
                self.req.go_back();
            }
        } else if self.req.timers.take_probe(cx.now, &self.req.rtt, timeout) {
            self.probe(cx);
        }
    }

    /// Emits the oldest unanswered packet again and asks for an acknowledge. That is no retry of
    /// the specification: it only spares a lost tail the wait for the ACK timeout.
    fn probe(&mut self, cx: &mut Cx<'_>) {
        let Some(wqe) = self.req.queue.front() else { return };
        if wqe.phase != Phase::Started || self.req.cursor_psn() == self.req.una() {
            return;
        }
        if self.faults.is_open(FaultSide::Requests) {
            return;
        }
        let packet = wqe.acked;
        let end = (!wqe.is_answered()).then(|| wqe.first.plus(packet + 1));
        if let Err(error) = self.emit(0, packet, true, cx) {
            if self.waits_to_send((0, packet), error, cx) {
                return;
            }
            return self.fail_oldest(WcStatus::LocProtErr, vendor::memory(error), cx);
        }
        cx.counters.count(Counter::Retransmits, 1);
        self.req.probe_end = end;
        self.req.recovering = None;
        // A round trip that is being measured goes on: where it takes longer than a probe waits,
        // it would else never be known, and each packet probed for.
    }
}
