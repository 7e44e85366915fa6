//! The requester of an unreliable service: a request is complete once its last packet is out.

use crate::qp::{FaultSide, PAUSE, Transport};
use crate::requests::check::MAX_FRAME;
use crate::requests::requester::Cursor;
use crate::requests::vendor;
use crate::requests::wqe::Phase;
use crate::values::{QpState, QpType, WcStatus, Worked};
use crate::{Counter, Cx, Half, To};

impl Transport {
    /// Emits requests of an unreliable service: each is complete once its last packet is out.
    pub(super) fn send_unacknowledged(&mut self, cx: &mut Cx<'_>) {
        if self.faults.is_open(FaultSide::Requests) {
            return;
        }
        while let Some(wqe) = self.req.queue.front_mut() {
            if cx.budget.requests.is_spent() || cx.tx.is_busy(cx.now) {
                self.more = true;
                return;
            }
            if wqe.phase == Phase::Posted {
                if self.state != QpState::Rts && !wqe.has_begun() {
                    return;
                }
                let outcome = if wqe.is_local() {
                    wqe.change_key(cx.keys, (self.pd, self.qpn), self.custom.as_deref())
                } else {
                    wqe.resolve(cx.keys, self.pd, &self.ranges).map(|()| Worked::All(0))
                };
                let worked = match outcome {
                    Ok(Worked::All(bytes)) => bytes,
                    Ok(Worked::Part(bytes)) => {
                        cx.budget.requests.spend(bytes);
                        continue;
                    }
                    Err((status, vendor_err)) => {
                        wqe.phase = Phase::Failed(status, vendor_err);
                        return self.fail_if_oldest(cx);
                    }
                };
                if let Some(alarm) = &self.alarm {
                    wqe.memory.watch(alarm);
                }
                // C10-93.1.1: nothing of a datagram beyond the port's MTU leaves, and that is no
                // error.
                let too_long = match self.kind {
                    QpType::Ud => wqe.length > cx.tx.port_mtu(),
                    QpType::RawPacket => wqe.length > MAX_FRAME,
                    _ => false,
                };
                if too_long {
                    cx.counters.count(Counter::TxRefused, 1);
                }
                if too_long || wqe.is_local() {
                    cx.budget.requests.spend(worked);
                    self.complete_oldest(cx);
                    continue;
                }
                wqe.start(self.req.next_psn, self.mtu, 0);
                self.req.next_psn = wqe.end();
                self.req.cursor = Cursor::default();
            }
            let (packet, packets) = (self.req.cursor.packet, wqe.packets);
            let cost = wqe.position(packet + 1, self.mtu) - wqe.position(packet, self.mtu);
            if !self.keeps_pace(cost, cx) {
                return;
            }
            let (to, dest_qpn) = match &self.req.queue[0].wr.datagram {
                Some(datagram) => (To::Ah(&datagram.ah), datagram.remote_qpn),
                None => (To::Peer(Half::Requester), self.attr.dest_qp_num),
            };
            let go = match cx.tx.room(to, dest_qpn, cost, cx.now) {
                Some(true) => Ok(()),
                Some(false) => Err(cx.now + PAUSE),
                None => self.req.pace.take(cx.now, cost),
            };
            if let Err(until) = go {
                self.paced_until = Some(until);
                return;
            }
            if let Err(error) = self.emit(0, packet, false, cx) {
                if self.waits_to_send((0, packet), error, cx) {
                    return;
                }
                self.req.queue[0].phase =
                    Phase::Failed(WcStatus::LocProtErr, vendor::memory(error));
                return self.fail_if_oldest(cx);
            }
            cx.budget.requests.spend(cost);
            self.req.cursor.packet += 1;
            if packet + 1 == packets {
                self.complete_oldest(cx);
            }
        }
    }
}
